"""Topics of a bucket written into the metadata of a cluster, and taken out again."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from offloaderd.bookkeeper.metadata import Layout, instance_path, layout_path
from offloaderd.core.errors import Conflict, InvalidConfig, NoSpace, OutcomeUnknown, Transient
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import Position, TopicName
from offloaderd.core.names.patterns import TopicPattern
from offloaderd.format.pb.bookkeeper.data_formats_pb2 import LedgerMetadataFormat
from offloaderd.format.pb.pulsar import ml_data_formats_pb2 as pb
from offloaderd.ledgers.pulsar.managed_ledger import decode
from offloaderd.mount.cluster import TargetCluster
from offloaderd.mount.lists import INDEX
from offloaderd.mount.mount import BLOCKED, MOUNTED, READY, Bucket, Preparation, apply, prepare
from offloaderd.mount.plan import AtGap
from offloaderd.testing.faults import Faults, FaultyMetadata
from offloaderd.testing.memory.metadata import MemoryTree
from offloaderd.upkeep.bucket_topics import BucketTopics
from offloaderd.upkeep.stored import Site
from tests.unit.bookkeeper.test_ledger_metadata import message, version_3
from tests.unit.rigs.owned import offloaded_topic
from tests.unit.rigs.rig import TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from offloaderd.metadata.topic_map.map import TopicMap
    from offloaderd.testing.faults import Plan
    from tests.unit.rigs.rig import Rig

SITE = Site(cluster="test", bucket="b", prefix="seg/")
NAMESPACE = f"{TOPIC.tenant}/{TOPIC.namespace}"
POLICIES = f"/admin/policies/{NAMESPACE}"
UNLIMITED = {"retention_policies": {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}}
LIST = f"/managed-ledgers/{TOPIC.managed_ledger}"
ALL = [TopicPattern.parse(f"{TOPIC.tenant}/*")]
PARTITIONS = tuple(replace(TOPIC, local=f"parts-partition-{number}") for number in range(3))
PARTITIONED = f"/admin/partitioned-topics/{NAMESPACE}/persistent/parts"
HIGH = "/ledgers/idgen-long/HOB-0000000001"
FIRST_NEW = 1 << 32


class Target:
    """An empty cluster with the namespace of the topic."""

    def __init__(self) -> None:
        self.tree = MemoryTree()
        self.store = self.tree.connect()

    async def made(self, policies: dict[str, Any] | None = None) -> Target:
        """Write what a cluster has before its first topic."""
        await self.store.create(instance_path("/ledgers"), b"an instance")
        await self.store.create(POLICIES, json.dumps(UNLIMITED if policies is None else policies).encode())
        return self

    def cluster(self, plan: Plan | None = None) -> TargetCluster:
        """Return the cluster, with faults if there is a plan of them."""
        store = self.store if plan is None else FaultyMetadata(self.store, plan)
        return TargetCluster(store, ledgers_root="/ledgers", lists_root="/managed-ledgers")

    async def nodes(self) -> dict[str, bytes]:
        """Return all nodes with their values."""
        found: dict[str, bytes] = {}
        todo = ["/"]
        while todo:
            path = todo.pop()
            found[path] = (await self.store.get(path)).value
            todo += [f"{path.rstrip('/')}/{name}" for name in await self.store.children(path)]
        return found


async def maps_of(rig: Rig) -> dict[TopicName, TopicMap]:
    """Return the maps of the rig's bucket."""
    topics = BucketTopics(rig.store, [SITE], listing_s=300.0, head_s=2.0, clock=rig.clock, metrics=Metrics())
    await topics.refresh()
    return {topic: found for topic in topics.topics if (found := topics.known(topic)) is not None}


def nothing(_: TopicName) -> tuple[str, ...]:
    """Nothing of any topic is unread."""
    return ()


async def prepared(
    rig: Rig,
    cluster: TargetCluster,
    *,
    any_retention: bool = False,
    unread: Callable[[TopicName], Sequence[str]] = nothing,
) -> Preparation:
    """Plan the mount of all topics of the bucket, and of partitions with the same segments."""
    maps = await maps_of(rig)
    maps |= {one: replace(maps[TOPIC], topic=one) for one in PARTITIONS}
    bucket = Bucket(objects=rig.store, maps=maps, unread=unread, clock=rig.clock)
    return await prepare(bucket, cluster, list(maps), at_gap=AtGap.REFUSE, any_retention=any_retention)


async def mounted(rig: Rig, target: Target, plan: Plan | None = None) -> list[str]:
    """Mount everything; returns the problems of partitioned topics."""
    cluster = target.cluster(plan)
    _, problems = await apply(cluster, await prepared(rig, cluster), lambda _: None)
    return problems


async def written_to(target: Target, **ledger: int) -> None:
    """Have a broker load the topic: the placeholder goes, a new ledger comes."""
    node = await target.store.get(LIST)
    found = pb.ManagedLedgerInfo.FromString(node.value)
    del found.ledgerInfo[-1]
    found.ledgerInfo.add(ledgerId=FIRST_NEW, **ledger)
    await target.store.replace(LIST, found.SerializeToString(), node.version)


async def new_ledger(target: Target, **changes: object) -> str:
    """Write BookKeeper's metadata of the new ledger."""
    path = Layout.HIERARCHICAL.path("/ledgers", FIRST_NEW)
    await target.store.create(path, version_3(message(**changes)))
    return path


async def test_topics_of_the_bucket_come_up_with_all_their_ledgers() -> None:
    """Lists, partitions, and ids of new ledgers above those of all lists."""
    rig, target = await offloaded_topic(10, 15, 5), await Target().made()
    assert await mounted(rig, target) == []
    nodes = await target.nodes()
    found = decode(nodes[LIST], key=LIST)
    assert [(one.ledger_id, one.entries) for one in found.ledgers] == [(0, 10), (1, 10), (2, 10), (FIRST_NEW - 1, 0)]
    assert HIGH in nodes
    assert json.loads(nodes[PARTITIONED])["partitions"] == 3
    assert {f"/managed-ledgers/{one.managed_ledger}" for one in PARTITIONS} <= nodes.keys()
    again = await prepared(rig, target.cluster())
    assert {one.state for one in again.topics} == {MOUNTED}
    assert await mounted(rig, target) == []
    assert await target.nodes() == nodes


async def test_undo_leaves_nothing_but_the_raised_ids() -> None:
    """Of what patterns match; everything else of the cluster stays."""
    rig, target = await offloaded_topic(10), await Target().made()
    before = await target.nodes()
    await mounted(rig, target)
    cluster = target.cluster()
    topics = await cluster.mounted(ALL)
    assert topics == sorted([TOPIC, *PARTITIONS])
    for topic in topics:
        undone = await cluster.plan_undo(topic)
        assert (undone.why, undone.ledgers) == ("", 1)
        await cluster.undo(undone)
    assert await cluster.undo_partitions(ALL) == [replace(TOPIC, local="parts")]
    left = (await target.nodes()).keys() - before.keys()
    folders = {f"/{root}/{NAMESPACE}/persistent" for root in ("managed-ledgers", "admin/partitioned-topics")}
    assert {one for one in left if not any(folder.startswith(one) for folder in folders)} == {
        HIGH,
        HIGH.rpartition("/")[0],
    }


def killed_at(number: int, when: str, *operations: str) -> Plan:
    """Return the end of a command at one of its writes, counted from 0."""
    writes = count()
    return lambda what, _, moment: (
        RuntimeError("killed") if what in operations and moment == when and next(writes) == number else None
    )


async def taken_out(target: Target, plan: Plan | None = None) -> None:
    """Take everything out that was mounted."""
    cluster = target.cluster(plan)
    for topic in await cluster.mounted(ALL):
        await cluster.undo(await cluster.plan_undo(topic))
    await cluster.undo_partitions(ALL)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_undo_that_breaks_off_at_any_write_is_completed_by_the_next(when: str) -> None:
    """The same nodes in the end, whatever was taken out before: three topics, and then their partitioned topic."""
    rig, whole = await offloaded_topic(10), await Target().made()
    await mounted(rig, whole)
    await taken_out(whole)
    expected = await whole.nodes()
    for number in range(4):
        target = await Target().made()
        await mounted(rig, target)
        with pytest.raises(RuntimeError):
            await taken_out(target, killed_at(number, when, "transact", "delete"))
        await taken_out(target)
        assert await target.nodes() == expected


async def test_a_topic_that_a_broker_has_loaded_and_closed_again_is_taken_out_with_its_empty_ledger() -> None:
    """While its ledger is open the broker writes the list as well."""
    rig, target = await offloaded_topic(10), await Target().made()
    await mounted(rig, target)
    await written_to(target)
    empty = [message().segment[0]]
    path = await new_ledger(target, segment=empty)
    cluster = target.cluster()
    assert "unload it first" in (await cluster.plan_undo(TOPIC)).why
    await target.store.delete(path)
    await new_ledger(target, state=LedgerMetadataFormat.CLOSED, segment=empty)
    await cluster.undo(await cluster.plan_undo(TOPIC))
    assert not {path, LIST} & (await target.nodes()).keys()


@pytest.mark.parametrize("where", ["BookKeeper, open", "BookKeeper, closed", "the list"])
async def test_a_topic_that_producers_have_written_to_stays(where: str) -> None:
    """Also if BookKeeper has its new ledger no more: it was offloaded."""
    rig, target = await offloaded_topic(10), await Target().made()
    await mounted(rig, target)
    if where == "the list":
        await written_to(target, entries=3, size=30, timestamp=5)
    else:
        await written_to(target)
        closed = {"state": LedgerMetadataFormat.CLOSED, "length": 30, "lastEntryId": 2}
        await new_ledger(target, **(closed if where == "BookKeeper, closed" else {}))
    assert "have written to it" in (await target.cluster().plan_undo(TOPIC)).why


async def test_a_topic_with_subscriptions_stays() -> None:
    """Their positions are in BookKeeper, and the brokers' to delete."""
    rig, target = await offloaded_topic(10), await Target().made()
    await mounted(rig, target)
    await target.store.create(f"{LIST}/billing", b"")
    assert "subscriptions (billing)" in (await target.cluster().plan_undo(TOPIC)).why


async def test_a_topic_that_changes_between_plan_and_undo_stays() -> None:
    """A broker has loaded it meanwhile."""
    rig, target = await offloaded_topic(10), await Target().made()
    await mounted(rig, target)
    undone = await target.cluster().plan_undo(TOPIC)
    await written_to(target)
    assert "changed meanwhile" in (await target.cluster().undo(undone)).why
    assert LIST in await target.nodes()


async def test_a_topic_whose_new_ledger_is_nowhere_stays() -> None:
    """Its metadata may be in a place that the settings do not name."""
    rig, target = await offloaded_topic(10), await Target().made()
    await mounted(rig, target)
    await written_to(target)
    assert "may have written to" in (await target.cluster().plan_undo(TOPIC)).why


@pytest.mark.parametrize("value", ["", "x", "-1", "9" * 5000, str(FIRST_NEW)])
async def test_the_property_of_a_mount_on_any_other_topic_takes_nothing_out(value: str) -> None:
    """Users may set properties: a ledger that BookKeeper has is not a mount's."""
    target = await Target().made()
    message = pb.ManagedLedgerInfo(ledgerInfo=[pb.LedgerInfo(ledgerId=3, entries=10, size=100, timestamp=5)])
    message.properties.add(key="offloaderd.mounted", value=value)
    await target.store.create(LIST, message.SerializeToString())
    assert "no mount has written" in (await target.cluster().plan_undo(TOPIC)).why
    assert {one.state for one in (await prepared(await offloaded_topic(10), target.cluster())).topics} == {
        BLOCKED,
        READY,
    }


async def test_nodes_that_cannot_be_read_stop_no_other_topic() -> None:
    """A damaged list may be of a mount, so it is told; a name that no topic has is none."""
    rig, target = await offloaded_topic(10), await Target().made()
    await target.store.create(LIST, b"\xff damaged")
    await target.store.create(f"/managed-ledgers/{NAMESPACE}/persistent/%zz", b"")
    await target.store.create(f"/admin/partitioned-topics/{NAMESPACE}/persistent/bad", b"[]")
    found = await prepared(rig, target.cluster())
    assert {one.plan.topic: one.state for one in found.topics} == {TOPIC: BLOCKED} | dict.fromkeys(PARTITIONS, READY)
    await mounted(rig, target)
    cluster = target.cluster()
    undone = [await cluster.plan_undo(topic) for topic in await cluster.mounted(ALL)]
    assert {one.topic: bool(one.why) for one in undone} == {TOPIC: True} | dict.fromkeys(PARTITIONS, False)
    for one in undone:
        if not one.why:
            await cluster.undo(one)
    assert await cluster.undo_partitions(ALL) == [replace(TOPIC, local="parts")]


async def test_a_topic_that_was_mounted_otherwise_is_not_called_mounted() -> None:
    """Of an earlier bucket, or up to a gap that has been repaired since; what brokers have trimmed does not count."""
    rig, target = await offloaded_topic(10, 10, 10), await Target().made()
    await mounted(rig, target)

    async def state_without(number: int) -> str:
        node = await target.store.get(LIST)
        found = pb.ManagedLedgerInfo.FromString(node.value)
        del found.ledgerInfo[number]
        await target.store.replace(LIST, found.SerializeToString(), node.version)
        states = {one.plan.topic: one for one in (await prepared(rig, target.cluster())).topics}
        return " ".join([states[TOPIC].state, *states[TOPIC].why])

    assert await state_without(0) == MOUNTED
    assert "0 entries of ledger 2, and this mount would give it 10" in await state_without(1)


async def test_a_topic_that_a_broker_makes_meanwhile_stops_no_other_one() -> None:
    """It stays as the broker made it, and the command is to be repeated."""
    rig, target = await offloaded_topic(10), await Target().made()
    cluster = target.cluster()
    found = await prepared(rig, cluster)
    await target.store.create(LIST, b"")
    written, problems = await apply(cluster, found, lambda _: None)
    assert written == sorted(PARTITIONS)
    assert [str(TOPIC) in one for one in problems] == [True]
    assert (await target.nodes())[LIST] == b""


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_mount_that_breaks_off_at_any_write_is_completed_by_the_next(when: str) -> None:
    """The same nodes in the end, whatever was written before."""
    rig = await offloaded_topic(10, 5)
    whole = await Target().made()
    await mounted(rig, whole)
    expected = await whole.nodes()
    for number in range(100):
        target = await Target().made()
        try:
            await mounted(rig, target, killed_at(number, when, "create"))
        except (RuntimeError, ExceptionGroup):
            assert HIGH in (left := await target.nodes()) or LIST not in left
            await mounted(rig, target)
            assert await target.nodes() == expected
            continue
        assert number > 0
        return
    raise AssertionError("it never came to its end")


async def test_a_write_whose_answer_is_lost_counts_by_what_is_there() -> None:
    """Each is read back."""
    rig, target, faults = await offloaded_topic(10), await Target().made(), Faults()
    faults.lose_answer("create", times=3)
    await mounted(rig, target, faults)
    assert (await target.cluster().mounted(ALL)) == sorted([TOPIC, *PARTITIONS])
    undone = await target.cluster().plan_undo(TOPIC)
    faults.lose_answer("transact")
    await target.cluster(faults).undo(undone)
    faults.fail("transact", OutcomeUnknown("no answer"))
    with pytest.raises(OutcomeUnknown):
        await target.cluster(faults).undo(await target.cluster().plan_undo(PARTITIONS[0]))


async def test_a_topic_of_the_cluster_itself_is_never_touched() -> None:
    """Its list stays as it is, and the others are mounted."""
    rig, target = await offloaded_topic(10), await Target().made()
    await target.store.create(LIST, b"")
    found = await prepared(rig, target.cluster())
    states = {one.plan.topic: one.state for one in found.topics}
    assert states.pop(TOPIC) == BLOCKED
    assert set(states.values()) == {READY}
    await mounted(rig, target)
    assert (await target.nodes())[LIST] == b""
    assert TOPIC not in await target.cluster().mounted(ALL)


@pytest.mark.parametrize(
    "policies",
    [
        {},
        {"retention_policies": {"retentionTimeInMinutes": -1}},
        {"retention_policies": {"retentionTimeInMinutes": -1, "retentionSizeInMB": 0}},
        {"retention_policies": None},
        {"retention_policies": [-1, -1]},
    ],
)
async def test_a_namespace_whose_brokers_would_delete_the_ledgers_is_refused(policies: dict[str, Any]) -> None:
    """A broker that loads a topic without subscriptions trims what retention does not keep."""
    rig, target = await offloaded_topic(10), await Target().made(policies)
    found = await prepared(rig, target.cluster())
    assert {one.state for one in found.topics} == {BLOCKED}
    assert "set-retention" in found.topics[0].why[0]
    allowed = await prepared(rig, target.cluster(), any_retention=True)
    assert {one.state for one in allowed.topics} == {READY}


@pytest.mark.parametrize(
    ("policies", "acts"),
    [
        ({"message_ttl_in_seconds": 60}, True),
        ({"subscription_expiration_time_minutes": 5}, True),
        ({"backlog_quota_map": {"destination_storage": {"policy": "consumer_backlog_eviction"}}}, True),
        ({"backlog_quota_map": {"destination_storage": {"policy": "producer_request_hold"}}}, False),
        ({"message_ttl_in_seconds": 0, "backlog_quota_map": None}, False),
    ],
)
async def test_a_namespace_whose_brokers_would_acknowledge_what_is_old_is_refused(
    policies: dict[str, Any], *, acts: bool
) -> None:
    """Consumers have had no chance to get it while the cluster was away."""
    rig, target = await offloaded_topic(10), await Target().made({**UNLIMITED, **policies})
    (one, *_) = (await prepared(rig, target.cluster())).topics
    assert (one.state, any(name in " ".join(one.why) for name in policies)) == (BLOCKED if acts else READY, acts)


async def test_a_namespace_that_is_missing_is_named() -> None:
    """Its policies are not in the bucket, so an operator makes it."""
    rig, target = await offloaded_topic(10), await Target().made()
    await target.store.delete(POLICIES)
    found = await prepared(rig, target.cluster())
    assert "namespaces create" in found.topics[0].why[0]


async def test_partitioned_topics_of_a_cluster_with_policies_elsewhere_are_left_to_its_operator() -> None:
    """A node here would be read by nobody."""
    rig, target = await offloaded_topic(10), await Target().made()
    for path in (POLICIES, f"/admin/policies/{TOPIC.tenant}"):
        await target.store.delete(path)
    cluster = target.cluster()
    found = await prepared(rig, cluster, any_retention=True)
    _, problems = await apply(cluster, found, lambda _: None)
    assert [one.endswith("-p 3") for one in problems] == [True]
    assert PARTITIONED not in await target.nodes()


async def test_a_partitioned_topic_with_fewer_partitions_is_told() -> None:
    """Its clients would not read the others; more are the operator's choice."""
    rig, target = await offloaded_topic(10), await Target().made()
    await target.store.create(PARTITIONED, b'{"partitions":2}')
    assert "update-partitioned-topic" in (await mounted(rig, target))[0]
    await target.store.replace(PARTITIONED, b'{"partitions":4}', 0)
    assert await mounted(rig, target) == []


@pytest.mark.parametrize(("path", "value"), [(PARTITIONED, b'{"partitions":null}'), (PARTITIONED, b"[]")])
async def test_a_partitioned_topic_that_cannot_be_read_is_told(path: str, value: bytes) -> None:
    """And left as it is."""
    rig, target = await offloaded_topic(10), await Target().made()
    await target.store.create(path, value)
    assert [path in one for one in await mounted(rig, target)] == [True]
    assert (await target.nodes())[path] == value


async def test_a_topic_without_partitions_is_not_hidden_by_a_partitioned_one() -> None:
    """Clients would find the partitions alone."""
    rig, target = await offloaded_topic(10), await Target().made()
    await target.store.create(f"/managed-ledgers/{NAMESPACE}/persistent/parts", b"")
    assert ["without partitions" in one for one in await mounted(rig, target)] == [True]
    assert PARTITIONED not in await target.nodes()


async def test_a_date_in_a_name_makes_no_millions_of_partitions() -> None:
    """A topic without partitions may be named like one."""
    target = await Target().made()
    problems = await target.cluster().write_partitions([replace(TOPIC, local="logs-partition-20261128")])
    assert ["create-partitioned-topic" in one for one in problems] == [True]
    assert not any("partitioned-topics" in path for path in await target.nodes())


async def test_ids_that_are_above_already_are_not_raised_again() -> None:
    """A cluster may have run out of short ids itself."""
    rig, target = await offloaded_topic(10), await Target().made()
    await target.store.create("/ledgers/idgen-long/HOB-0000000007", b"")
    await target.store.create("/ledgers/idgen-long/OLD-0000000009", b"")
    await mounted(rig, target)
    nodes = await target.nodes()
    assert decode(nodes[LIST], key=LIST).ledgers[-1].ledger_id == (7 << 32) - 1
    assert HIGH not in nodes


@pytest.mark.parametrize("layout", [Layout.HIERARCHICAL, Layout.LONG_HIERARCHICAL])
async def test_a_topic_whose_ids_other_ledgers_have_is_not_mounted(layout: Layout) -> None:
    """Its brokers would delete them with it, by their numbers. Other ids in the same folder prevent nothing."""
    rig, target = await offloaded_topic(10, 10), await Target().made()
    named = f"2\norg.apache.bookkeeper.meta.{layout}LedgerManagerFactory:1"
    await target.store.create(layout_path("/ledgers"), named.encode())
    await target.store.create(layout.path("/ledgers", 7), b"")
    assert {one.state for one in (await prepared(rig, target.cluster())).topics} == {READY}
    await target.store.create(layout.path("/ledgers", 1), b"")
    found = await prepared(rig, target.cluster())
    assert {one.state for one in found.topics} == {BLOCKED}
    assert "1 of its 2 ledger ids in use, first 1: brokers that delete" in found.topics[0].why[0]


async def test_ledgers_that_brokers_make_until_the_ids_are_raised_count_as_well() -> None:
    """The plan did not see them."""
    rig, target = await offloaded_topic(10), await Target().made()
    cluster = target.cluster()
    found = await prepared(rig, cluster)
    await target.store.create(Layout.HIERARCHICAL.path("/ledgers", 0), b"")
    written, problems = await apply(cluster, found, lambda _: None)
    assert (written, ["in use, first 0" in one for one in problems]) == ([], [True] * 4)


async def test_a_topic_that_was_mounted_over_ids_in_use_is_told() -> None:
    """To be taken out before anybody deletes it."""
    rig, target = await offloaded_topic(10), await Target().made()
    await mounted(rig, target)
    await target.store.create(Layout.HIERARCHICAL.path("/ledgers", 0), b"")
    assert {one.state for one in (await prepared(rig, target.cluster())).topics} == {BLOCKED}


async def test_a_list_that_no_node_holds_stops_no_other_topic() -> None:
    """A list of very many ledgers, or a quota: the others are mounted."""
    rig, target = await offloaded_topic(10), await Target().made()
    found = await prepared(rig, target.cluster())

    def full(_: str, path: str, when: str) -> Exception | None:
        return NoSpace("the list is too large") if (path, when) == (LIST, "before") else None

    written, problems = await apply(target.cluster(full), found, lambda _: None)
    assert (len(written), problems) == (3, [f"{TOPIC}: its list of 1 ledger is not written: the list is too large"])


async def test_long_ids_of_the_bucket_get_longer_ones_above() -> None:
    """The bucket may be that of a topic that was mounted before."""
    cluster = (await Target().made()).cluster()
    assert await cluster.placeholder(FIRST_NEW + 5) == 2 * FIRST_NEW - 1
    assert await cluster.placeholder(FIRST_NEW - 2) == FIRST_NEW - 1


async def test_ids_that_cannot_be_raised_take_no_topics() -> None:
    """No id is above the greatest one, and a cluster may have used up all others."""
    target = await Target().made()
    last = (1 << 31) - 1
    assert await target.cluster().placeholder((last << 32) - 1) == (last << 32) - 1
    with pytest.raises(InvalidConfig, match="cannot be raised above it"):
        await target.cluster().placeholder(last << 32)
    await target.store.create("/ledgers/idgen-long", b"")
    await target.store.create(f"/ledgers/idgen-long/HOB-{last + 1}", b"")
    with pytest.raises(InvalidConfig, match="63 bits"):
        await prepared(await offloaded_topic(10), target.cluster())


@pytest.mark.parametrize(("driver", "named"), [(None, [NAMESPACE]), ("aws-s3", [NAMESPACE]), ("offloaderd", [])])
async def test_a_namespace_without_the_driver_is_told(driver: str | None, named: list[str]) -> None:
    """Its topics are mounted all the same: broker.conf may name the driver for all namespaces."""
    policies = UNLIMITED | ({} if driver is None else {"offload_policies": {"managedLedgerOffloadDriver": driver}})
    target = await Target().made(policies)
    found = await prepared(await offloaded_topic(10), target.cluster())
    assert (list(found.without_driver), {one.state for one in found.topics}) == (named, {READY})


async def test_the_message_index_goes_on() -> None:
    """With the greatest index of the entries that come up, if they have one."""
    rig, target = await offloaded_topic(10), await Target().made()
    await mounted(rig, target)
    assert INDEX not in decode((await target.nodes())[LIST], key=LIST).properties


async def test_what_is_no_cluster_takes_no_topics() -> None:
    """Wrong servers, a layout of short ids, a cluster that moves its metadata."""
    rig = await offloaded_topic(10)
    with pytest.raises(Transient):
        await prepared(rig, Target().cluster())
    flat = await Target().made()
    await flat.store.create(layout_path("/ledgers"), b"2\norg.apache.bookkeeper.meta.FlatLedgerManagerFactory:1")
    with pytest.raises(InvalidConfig):
        await prepared(rig, flat.cluster())
    moving = await Target().made()
    await moving.store.create("/pulsar/migration-coordinator/migration", b'{"phase":"COPYING","targetUrl":"oxia://x"}')
    with pytest.raises(Conflict):
        await prepared(rig, moving.cluster())


async def test_a_segment_that_cannot_be_read_and_may_be_the_newest_is_decided_by_an_operator() -> None:
    """Its entries are behind all that is known, where no gap shows them."""
    rig, target = await offloaded_topic(10), await Target().made()
    damage = {TOPIC: ["segment 7: corrupt data"]}
    found = await prepared(rig, target.cluster(), unread=lambda topic: damage.get(topic, []))
    first, second = next(one.why for one in found.topics if one.plan.topic == TOPIC)
    assert first == "its newest entries may be missing: segment 7: corrupt data"
    assert second == "decide with --at-gap skip or --at-gap stop"
    assert {one.state for one in found.topics if one.plan.topic != TOPIC} == {READY}


async def test_topics_of_pulsar_itself_are_not_mounted() -> None:
    """Transactions and load balancing of another cluster are no good here, and a compacted ledger is no topic."""
    rig, target = await offloaded_topic(10), await Target().made()
    own = TopicName("pulsar", "system", "transaction_coordinator_assign")
    compacted = replace(TOPIC, local=f"{TOPIC.local}/__compaction")
    maps = {one: replace((await maps_of(rig))[TOPIC], topic=one) for one in (own, compacted)}
    cluster = target.cluster()
    bucket = Bucket(objects=rig.store, maps=maps, unread=nothing, clock=rig.clock)
    found = await prepare(bucket, cluster, list(maps), at_gap=AtGap.SKIP, any_retention=True, named=list(maps))
    assert [(one.state, one.plan.end) for one in found.topics] == [(BLOCKED, Position(0, 9))] * 2


async def test_of_pulsars_own_topics_those_that_users_need_are_mounted_where_they_are_named() -> None:
    """Policies of topics, and what was aborted; a pattern of a namespace does not choose them."""
    rig, target = await offloaded_topic(10), await Target().made()
    own = [replace(TOPIC, local=name) for name in ("__change_events", "__transaction_buffer_snapshot_segments")]
    never = replace(TOPIC, local="t-s__transaction_pending_ack")
    maps = {one: replace((await maps_of(rig))[TOPIC], topic=one) for one in (*own, never)}

    bucket = Bucket(objects=rig.store, maps=maps, unread=nothing, clock=rig.clock)

    async def states(*named: TopicName) -> list[str]:
        found = await prepare(bucket, target.cluster(), list(maps), at_gap=AtGap.SKIP, any_retention=True, named=named)
        return [one.state for one in found.topics if one.plan.topic in named or not named]

    assert await states() == [BLOCKED] * 3
    assert await states(*own) == [READY] * 2
    assert await states(never) == [BLOCKED]
