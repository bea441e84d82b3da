"""What mounted topics get out of a capture."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.capture.records import Capture, Key, Kind, cursor_value
from offloaderd.core.model import Position, encode_local
from offloaderd.format.pb.pulsar import cursors_pb2
from offloaderd.ledgers.pulsar.cursors import Cursor, decode_node, encode_node
from offloaderd.ledgers.pulsar.managed_ledger import decode
from offloaderd.mount.captured import RETENTION, Captured, fitted
from offloaderd.mount.lists import MOUNTED
from offloaderd.mount.mount import BLOCKED, READY, Bucket, Preparation, apply, prepare
from offloaderd.mount.plan import AtGap, MountedLedger, MountPlan
from offloaderd.testing.faults import Faults
from tests.unit.mount.test_mount import (
    ALL,
    LIST,
    NAMESPACE,
    PARTITIONED,
    PARTITIONS,
    POLICIES,
    Target,
    maps_of,
    nothing,
)
from tests.unit.rigs.owned import offloaded_topic
from tests.unit.rigs.rig import TOPIC

if TYPE_CHECKING:
    from offloaderd.core.model import TopicName
    from offloaderd.metadata.committed import CommittedSegment
    from offloaderd.mount.cluster import TargetCluster
    from tests.unit.rigs.rig import Rig

AT = Position
MARK = (MOUNTED, "true")
LEDGERS = {3: 10, 5: 1, 8: 4}
"""Ledgers of a plan, with their numbers of entries."""
TENANT = f"/admin/policies/{TOPIC.tenant}"
CURSOR = f"{LIST}/a+b"


def planned(entries: dict[int, int]) -> MountPlan:
    """Return a plan of these ledgers."""
    segment: CommittedSegment = None  # type: ignore[assignment] # cursors are fitted to numbers alone
    ledgers = tuple(MountedLedger(ledger_id=id_, entries=n, size_bytes=n, last=segment) for id_, n in entries.items())
    return MountPlan(topic=TOPIC, ledgers=ledgers, left_out=(), gaps=(), losses=(), undecided=False)


PLAN = planned(LEDGERS)


@pytest.mark.parametrize(
    ("captured", "expected"),
    [
        (AT(3, 4), AT(3, 4)),
        (AT(3, -1), AT(3, -1)),
        (AT(3, 99), AT(3, 9)),
        (AT(8, 99), AT(8, 3)),
        (AT(4, 7), AT(3, 9)),
        (AT(7, 0), AT(5, 0)),
        (AT(900, 1), AT(8, 3)),
        (AT(1, 50), AT(3, -1)),
        (AT(-1, -1), AT(3, -1)),
    ],
)
def test_a_position_stays_or_is_the_last_that_comes_up_before_it(captured: Position, expected: Position) -> None:
    """Ledgers that retention has deleted, that were left out, or that were not offloaded."""
    assert fitted(Cursor(mark_delete=captured), PLAN).mark_delete == expected


def test_acknowledged_ranges_and_batches_are_those_of_entries_that_come_up() -> None:
    """Cut at the end of each ledger; a range that begins in a ledger that is gone begins with its own."""
    cursor = Cursor(
        mark_delete=AT(3, 1),
        acknowledged=(
            (AT(1, 0), AT(1, 5)),
            (AT(3, 0), AT(3, 1)),
            (AT(3, 2), AT(3, 4)),
            (AT(4, 9), AT(5, 0)),
            (AT(8, 1), AT(8, 77)),
            (AT(9, 0), AT(9, 1)),
        ),
        batches=((AT(3, 1), (1,)), (AT(3, 2), (2,)), (AT(3, 10), (3,)), (AT(4, 0), (4,)), (AT(8, 3), (5,))),
        numbers=(("producer", 7),),
        texts=(("owner", "me"), (MOUNTED, "x"), ("#pulsar.internal.delayed.bucket_1_9", "77")),
    )
    assert fitted(cursor, PLAN) == Cursor(
        mark_delete=AT(3, 1),
        acknowledged=((AT(3, 2), AT(3, 4)), (AT(5, -1), AT(5, 0)), (AT(8, 1), AT(8, 3))),
        batches=((AT(3, 2), (2,)), (AT(8, 3), (5,))),
        numbers=(("producer", 7),),
        texts=(("owner", "me"), MARK),
    )


PLACES = st.builds(Position, st.integers(1, 10), st.integers(-1, 12))


def acknowledged(cursor: Cursor) -> set[Position]:
    """Return the entries of the plan that a cursor has acknowledged."""
    everything = [AT(ledger_id, entry) for ledger_id, count in LEDGERS.items() for entry in range(count)]
    return {
        one
        for one in everything
        if one <= cursor.mark_delete or any(after < one <= last for after, last in cursor.acknowledged)
    }


@given(PLACES, st.lists(st.tuples(PLACES, PLACES), max_size=4))
def test_an_entry_is_acknowledged_after_a_mount_only_if_it_was_before(
    mark_delete: Position, ranges: list[tuple[Position, Position]]
) -> None:
    """All that comes up and was acknowledged by a range in one ledger, or up to the position, stays so."""
    found = tuple((after, last) for after, last in ranges if after < last)
    cursor = Cursor(mark_delete=mark_delete, acknowledged=found)
    after = acknowledged(fitted(cursor, PLAN))
    assert after <= acknowledged(cursor)
    within = tuple(one for one in found if one[0].ledger_id == one[1].ledger_id)
    assert after >= acknowledged(replace(cursor, acknowledged=within))


def capture(**records: tuple[str, object]) -> Captured:
    """Return a capture with a subscription that has acknowledged 4 entries, and more records by `kind`."""
    cursor = Cursor(mark_delete=AT(0, 3))
    found: dict[Key, object] = {
        (Kind.SUBSCRIPTION, str(TOPIC), "a b"): cursor_value(cursor),
        (Kind.SUBSCRIPTION, str(TOPIC), "__compaction"): cursor_value(cursor),
        (Kind.SUBSCRIPTION, str(TOPIC), "pulsar.repl.eu"): cursor_value(cursor),
        (Kind.SUBSCRIPTION, str(TOPIC), "damaged"): {"mark_delete": 7},
        (Kind.PROPERTIES, str(TOPIC), ""): {
            "colour": "red",
            "migrated": "true",
            MOUNTED: "5",
            "index": "9",
        },
        (Kind.PARTITIONS, str(replace(TOPIC, local="parts")), ""): {"partitions": 5},
        **{(kind, about, ""): value for kind, (about, value) in records.items()},
    }
    return Captured(Capture(cluster="test", deployment_id="", taken_ms=5, records=found))


async def prepared(rig: Rig, cluster: TargetCluster, captured: Captured, *more: TopicName) -> Preparation:
    """Plan the mount of the topic, and of `more`."""
    maps = await maps_of(rig)
    maps |= {one: replace(maps[TOPIC], topic=one) for one in more}
    bucket = Bucket(objects=rig.store, maps=maps, unread=nothing, clock=rig.clock)
    return await prepare(bucket, cluster, list(maps), at_gap=AtGap.REFUSE, any_retention=False, captured=captured)


async def test_a_topic_comes_up_with_its_subscriptions_and_properties() -> None:
    """Those of the compaction and of replicators are told, and so is one that cannot be read."""
    rig, target = await offloaded_topic(10), await Target().made()
    cluster = target.cluster()
    (one,) = (preparation := await prepared(rig, cluster, capture())).topics
    assert set(one.subscriptions.left_out) == {"__compaction", "pulsar.repl.eu", "damaged"}
    await apply(cluster, preparation, lambda _: None)
    nodes = await target.nodes()
    first = decode(nodes[LIST], key=LIST).ledgers[0].ledger_id
    found = decode_node(nodes[f"{LIST}/{encode_local('a b')}"], path=LIST)
    assert (found.cursor.mark_delete.ledger_id, found.cursor.texts, found.ledger_id) == (first, (MARK,), None)
    properties = decode(nodes[LIST], key=LIST).properties
    assert properties["colour"] == "red"
    assert "migrated" not in properties
    assert properties[MOUNTED] != "5"
    assert await target.store.children(LIST) == ["a+b"]


@pytest.mark.parametrize(("captured", "comes_up"), [(AT(8, 3), True), (AT(1, 7), True), (AT(8, 4), False)])
def test_sequence_ids_of_entries_that_do_not_come_up_are_left_out(captured: Position, *, comes_up: bool) -> None:
    """Brokers would drop what a producer sends again. A topic without them takes everything."""
    cursor = cursor_value(Cursor(mark_delete=captured, numbers=(("producer", 500),)))
    records: dict[Key, object] = {(Kind.SUBSCRIPTION, str(TOPIC), name): cursor for name in ("pulsar.dedup", "s")}
    found = Captured(Capture(cluster="c", deployment_id="", taken_ms=5, records=records)).subscriptions(PLAN)
    assert ("pulsar.dedup" in found.nodes, "pulsar.dedup" in found.left_out) == (comes_up, not comes_up)
    assert "s" in found.nodes


async def test_a_lost_answer_makes_a_topic_with_its_subscriptions_once() -> None:
    """List and subscriptions are one transaction, and what an earlier try has written counts."""
    rig, target, faults = await offloaded_topic(10), await Target().made(), Faults()
    faults.lose_answer("transact", times=2)
    cluster = target.cluster(faults)
    written, problems = await apply(cluster, await prepared(rig, cluster, capture()), lambda _: None)
    assert (written, problems) == ([TOPIC], [])
    assert await target.store.children(LIST) == ["a+b"]


async def test_subscriptions_that_a_mount_has_written_are_taken_out_with_the_topic() -> None:
    """Not once a broker has written their nodes."""
    rig, target = await offloaded_topic(10), await Target().made()
    cluster = target.cluster()
    await apply(cluster, await prepared(rig, cluster, capture()), lambda _: None)
    undone = await cluster.plan_undo(TOPIC)
    assert not undone.why
    node = await target.store.get(CURSOR)
    await target.store.replace(CURSOR, node.value, node.version)
    assert "subscriptions (a+b)" in (await cluster.plan_undo(TOPIC)).why
    assert "changed meanwhile" in (await cluster.undo(undone)).why
    assert LIST in await target.nodes()


async def test_a_subscription_of_its_consumers_keeps_a_topic() -> None:
    """A broker has made it at the same version, and it has no mark of a mount."""
    rig, target = await offloaded_topic(10), await Target().made()
    cluster = target.cluster()
    await apply(cluster, await prepared(rig, cluster, capture()), lambda _: None)
    await target.store.create(f"{LIST}/new", encode_node(Cursor(mark_delete=AT(0, 0))))
    assert "subscriptions (new)" in (await cluster.plan_undo(TOPIC)).why
    await target.store.delete(f"{LIST}/new")
    await target.store.create(f"{LIST}/odd", cursors_pb2.PositionInfo(ledgerId=1, entryId=1).SerializeToString())
    await target.store.delete(CURSOR)
    assert "subscriptions (odd)" in (await cluster.plan_undo(TOPIC)).why


async def test_partitions_without_an_entry_are_counted_by_the_capture() -> None:
    """The bucket has nothing of them."""
    rig, target = await offloaded_topic(10), await Target().made()
    cluster = target.cluster()
    _, problems = await apply(cluster, await prepared(rig, cluster, capture(), *PARTITIONS), lambda _: None)
    assert problems == []
    assert json.loads((await target.nodes())[PARTITIONED])["partitions"] == 5


async def empty(*clusters: str) -> Target:
    """Return a cluster without the tenant and the namespace."""
    target = await Target().made()
    await target.store.delete(POLICIES)
    await target.store.delete(TENANT)
    await target.store.create("/admin/policies/other", b"{}")
    for name in ("global", *clusters):
        await target.store.create(f"/admin/clusters/{name}", b"{}")
    return target


CAPTURED: dict[str, tuple[str, object]] = {
    "tenant": (TOPIC.tenant, {"adminRoles": ["me"], "allowedClusters": ["old"]}),
    "namespace": (
        NAMESPACE,
        {
            "replication_clusters": ["old"],
            "allowed_clusters": ["old"],
            "retention_policies": {"retentionTimeInMinutes": 60, "retentionSizeInMB": 100},
            "message_ttl_in_seconds": 30,
            "subscription_expiration_time_minutes": 5,
            "backlog_quota_map": {
                "message_age": {"limitSize": -1, "limitTime": 9, "policy": "consumer_backlog_eviction"},
                "odd": 7,
            },
            "offload_policies": {"managedLedgerOffloadDriver": "offloaderd"},
        },
    ),
}


async def test_a_namespace_that_is_missing_comes_up_with_unlimited_retention() -> None:
    """Its tenant too, both in the new cluster; how its retention becomes what it was is told."""
    rig, target = await offloaded_topic(10), await empty("new")
    cluster, captured = target.cluster(), capture(**CAPTURED)
    preparation = await prepared(rig, cluster, captured)
    assert [one.state for one in preparation.topics] == [READY]
    await apply(cluster, preparation, lambda _: None)
    nodes = await target.nodes()
    assert json.loads(nodes[TENANT]) == {"adminRoles": ["me"], "allowedClusters": ["new"]}
    policies = json.loads(nodes[POLICIES])
    assert policies["retention_policies"] == RETENTION
    assert policies["replication_clusters"] == policies["allowed_clusters"] == ["new"]
    assert policies["message_ttl_in_seconds"] == policies["subscription_expiration_time_minutes"] == 0
    assert policies["backlog_quota_map"] == {}
    assert policies["offload_policies"] == {"managedLedgerOffloadDriver": "offloaderd"}
    later = [one.partition(f"{NAMESPACE} ")[2].rpartition(f"{NAMESPACE} ")[2] for one in captured.later(NAMESPACE)]
    assert later == [
        "--time 60m --size 100M",
        "--messageTTL 30",
        "--time 5",
        "--limit -1 --limitTime 9 --policy consumer_backlog_eviction --type message_age",
    ]
    assert await cluster.namespace_hindrances([NAMESPACE]) == {}


async def test_a_namespace_that_others_make_meanwhile_keeps_its_topics_from_being_mounted() -> None:
    """Its retention may be limited; the next try looks at it."""
    rig, target = await offloaded_topic(10), await empty("new")
    cluster = target.cluster()
    preparation = await prepared(rig, cluster, capture(**CAPTURED))
    await target.store.create(POLICIES, b"{}")
    written, problems = await apply(cluster, preparation, lambda _: None)
    assert (written, ["repeat the command" in one for one in problems]) == ([], [True])
    assert LIST not in await target.nodes()


async def test_policies_without_limits_keep_those_of_the_brokers() -> None:
    """What a broker's own settings say holds; only retention is always written, and taken away again later."""
    rig, target = await offloaded_topic(10), await empty("new")
    captured = capture(**{**CAPTURED, "namespace": (NAMESPACE, {"message_ttl_in_seconds": None})})
    await apply(target.cluster(), await prepared(rig, target.cluster(), captured), lambda _: None)
    policies = json.loads((await target.nodes())[POLICIES])
    assert policies == {
        "message_ttl_in_seconds": None,
        "retention_policies": RETENTION,
        "replication_clusters": ["new"],
    }
    assert [f"remove-retention {NAMESPACE}" in one for one in captured.later(NAMESPACE)] == [True]


@pytest.mark.parametrize("lacking", ["capture", "clusters", "deleted", "policies", "name"])
async def test_a_namespace_that_cannot_be_made_keeps_topics_from_being_mounted(lacking: str) -> None:
    """Without a capture of it, without the cluster's name, or where policies are in another store.

    Brokers delete the topics of a namespace that is replicated to others, and not to their own cluster.
    """
    records = dict(CAPTURED)
    if lacking == "capture":
        records.pop("namespace")
    elif lacking == "deleted":
        records["namespace"] = (NAMESPACE, {"deleted": True})
    clusters = {"clusters": [], "name": ["new", "old"]}.get(lacking, ["new"])
    rig, target = await offloaded_topic(10), await empty(*clusters)
    if lacking == "policies":
        await target.store.delete("/admin/policies/other")
    preparation = await prepared(rig, target.cluster(), capture(**records))
    assert [one.state for one in preparation.topics] == [BLOCKED]
    assert preparation.namespaces == {}


async def test_a_list_and_subscriptions_that_exceed_a_transaction_are_a_problem_of_their_topic() -> None:
    """Nothing of it is written, and the others are mounted."""
    rig, target = await offloaded_topic(10), await Target().made()
    cursor = cursor_value(Cursor(mark_delete=AT(0, 3), texts=(("x", "y" * 100_000),)))
    found: dict[Key, object] = {(Kind.SUBSCRIPTION, str(TOPIC), f"s{number}"): cursor for number in range(20)}
    captured = Captured(Capture(cluster="test", deployment_id="", taken_ms=5, records=found))
    cluster = target.cluster()
    written, problems = await apply(cluster, await prepared(rig, cluster, captured, *PARTITIONS), lambda _: None)
    assert (written, len(problems)) == (sorted(PARTITIONS), 1)
    assert LIST not in await target.nodes()
    assert await cluster.mounted(ALL) == sorted(PARTITIONS)
