"""Rebuilding: what is read of the bucket, what is written, and when nothing is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from offloaderd.core.errors import Archived, Conflict, InvalidInput, OutcomeUnknown, Transient
from offloaderd.core.model import START, LedgerEnd, Loss, Position
from offloaderd.metadata import paths
from offloaderd.metadata.identity import deployment, ensure_deployment
from offloaderd.metadata.records import ownership
from offloaderd.metadata.records.identity import Deployment
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.objects import keys
from offloaderd.policy.store import enabled_topics, topic_policies
from offloaderd.testing.faults import Faults, FaultyMetadata
from offloaderd.testing.memory.metadata import MemoryTree
from offloaderd.upkeep import rebuild
from offloaderd.upkeep.flaws import Kind
from offloaderd.upkeep.stored import Site
from tests.unit.broker_objects import BrokerLedger
from tests.unit.upkeep.site import (
    BUCKET,
    CLUSTER,
    OURS,
    PREFIX,
    TOPIC,
    Ground,
    all_keys,
    data_key,
    index_key,
    manifest_key,
    runs,
    segment_id,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.core.model import TopicName
    from offloaderd.metadata.port import MetadataStore
    from offloaderd.testing.faults import Plan

OTHER = replace(TOPIC, local="other")
SITE = Site(cluster=CLUSTER, bucket=BUCKET, prefix=PREFIX)


@pytest.fixture
async def ground() -> Ground:
    """A site with two topics, one over three ledgers with a loss."""
    site = Ground()
    for topic in (TOPIC, OTHER):
        await site.enable(topic)
    await site.segment(1, runs(1, 0, 10))
    described = await site.store(2, [*runs(1, 10, 5), *runs(3, 0, 4)], ends=((1, LedgerEnd(15, 3)),))
    await site.commit(described)
    loss = Loss(Position(3, 3), Position(7, 0), 5, 99)
    described = await site.store(
        3, runs(7, 0, 4), losses=(loss,), ends=((3, LedgerEnd(4, 4)), (7, LedgerEnd(9, None))), epoch=8
    )
    topic_map = await site.map()
    await site.metadata.transact(topic_map.with_loss(loss)[0])
    await site.commit(described)
    await site.segment(4, runs(20, 0, 3), OTHER)
    return site


async def planned(
    ground: Ground,
    *,
    prefer: Sequence[UUID] = (),
    without: Sequence[UUID] = (),
    topics: Sequence[TopicName] = (),
) -> rebuild.Plan:
    """Read and plan."""
    found = await rebuild.read_buckets(ground.objects, [SITE], lambda _: None)
    return rebuild.make_plan(found, prefer=prefer, without=without, topics=topics)


async def written(
    ground: Ground, target: MetadataStore, *, topics: Sequence[TopicName] = (), enable: bool = False, **chosen: object
) -> list[TopicName]:
    """Read, plan and write."""
    plan = await planned(ground, topics=topics, **chosen)  # type: ignore[arg-type]
    return await rebuild.write(target, plan, topics=topics, enable=enable, now_ms=1, progress=lambda _: None)


async def nodes(store: MetadataStore, *folders: str) -> dict[str, bytes]:
    """Return the content of all nodes below some folders."""
    found = {}
    for folder in folders:
        for name in await store.children(folder):
            found[f"{folder}/{name}"] = (await store.get(f"{folder}/{name}")).value
    return found


async def test_contexts_and_losses_come_back_byte_for_byte(ground: Ground) -> None:
    """Every node of the map is as it was; topics are there, and disabled."""
    target = MemoryTree().connect()
    assert await written(ground, target) == [TOPIC, OTHER]
    folders = [make(topic) for topic in (TOPIC, OTHER) for make in (paths.ledgers, paths.losses, paths.trash)]
    assert await nodes(target, *folders) == await nodes(ground.metadata, *folders)
    assert len(await nodes(target, *folders)) == 5
    for topic in (TOPIC, OTHER):
        assert (await catalog.load(target, topic)).segments == (await ground.map(topic)).segments
    policies = await topic_policies(target)
    assert {topic: policy.enabled for topic, policy in policies.items()} == {TOPIC: False, OTHER: False}  # type: ignore[union-attr]
    node = await target.get(paths.epoch(TOPIC))
    assert ownership.decode_epoch(node.value, path="epoch").epoch == 8
    assert await target.children("/") == ["topics"]


async def test_topics_can_be_enabled_at_once(ground: Ground) -> None:
    """If it is said."""
    target = MemoryTree().connect()
    await written(ground, target, enable=True)
    assert await enabled_topics(target) == [TOPIC, OTHER]


@pytest.mark.parametrize("path", [paths.daemon("one"), paths.topic(OTHER)])
async def test_a_target_that_is_not_empty_is_refused(ground: Ground, path: str) -> None:
    """A running daemon or a topic: nothing is written."""
    target = MemoryTree().connect()
    await target.create(path, b"")
    with pytest.raises(Conflict):
        await written(ground, target)
    assert await target.children(paths.topic(TOPIC)) == []


async def test_metadata_that_is_there_is_told_before_a_daemon_that_runs(ground: Ground) -> None:
    """Who stops a daemon for a rebuild that nothing needs has stopped it for nothing."""
    target = MemoryTree().connect()
    for path in (paths.daemon("one"), paths.topic(OTHER)):
        await target.create(path, b"")
    with pytest.raises(Conflict, match="the metadata is not empty") as refused:
        await written(ground, target)
    assert "nothing needs a rebuild" in refused.value.hint


@pytest.mark.parametrize("whole", [True, False])
async def test_a_deployment_that_a_daemon_made_over_lost_metadata_gives_way(ground: Ground, whole: bool) -> None:
    """Who hears from a running daemon that the metadata is lost has let it make one; single topics change nothing."""
    target = MemoryTree().connect()
    wrote, fresh = (Deployment(deployment_id=UUID(int=number), made_ms=1, made_by="one") for number in (1, 2))
    await ensure_deployment(target, fresh)
    topics = [] if whole else [OTHER]
    plan = replace(await planned(ground, topics=topics), deployment_id=str(wrote.deployment_id))
    await rebuild.write(target, plan, topics=topics, enable=False, now_ms=1, progress=lambda _: None)
    found = await deployment(target)
    assert found is not None
    assert found.deployment_id == (wrote if whole else fresh).deployment_id


async def test_single_topics_come_back_beside_others(ground: Ground) -> None:
    """By name, with daemons running, if nothing is known of them."""
    target = MemoryTree().connect()
    await target.create(paths.daemon("one"), b"")
    assert await written(ground, target, topics=[OTHER]) == [OTHER]
    assert await written(ground, target, topics=[TOPIC]) == [TOPIC]
    with pytest.raises(Conflict):
        await written(ground, target, topics=[TOPIC])
    with pytest.raises(InvalidInput):
        await planned(ground, topics=[replace(TOPIC, local="nobody")])


async def test_a_segment_that_is_deleted_while_the_bucket_is_read_is_left_out(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Owners of other topics delete meanwhile what they no longer need; that is told, and ends no rebuild."""
    get = ground.memory.get

    async def late(key: str, first: int = 0, length: int | None = None) -> bytes:
        if key == manifest_key(4):
            await ground.memory.delete(all_keys(4))
        return await get(key, first, length)

    monkeypatch.setattr(ground.memory, "get", late)
    plan = await planned(ground, topics=[TOPIC])
    assert [problem.segments for problem in plan.problems] == [(segment_id(4),)]
    assert not plan.blocked
    assert plan.topics[0].map.segments == (await ground.map()).segments


async def test_a_rebuild_that_is_broken_off_goes_on(ground: Ground) -> None:
    """Whichever request fails, the same command completes what is there."""
    total = 0
    for number in range(200):
        target = MemoryTree().connect()
        try:
            await written(ground, FaultyMetadata(target, nth_write(number, "before", Transient("gone"))))
        except Transient:
            total += 1
            await written(ground, target)
        else:
            break
        assert await nodes(target, paths.ledgers(TOPIC)) == await nodes(ground.metadata, paths.ledgers(TOPIC))
        assert await target.children("/") == ["topics"]
    assert total > 15


async def test_a_rebuild_of_all_that_is_broken_off_goes_on_without_daemons(ground: Ground) -> None:
    """They may have been started meanwhile; or it was one of a single topic, in a cluster that works."""
    target = MemoryTree().connect()
    ours = Deployment(deployment_id=UUID(int=2), made_ms=1, made_by="one")
    await ensure_deployment(target, ours)
    for path in (paths.REBUILD, paths.daemon("one"), paths.topic(replace(TOPIC, local="live"))):
        await target.create(path, b"")
    plan = replace(await planned(ground), deployment_id=str(UUID(int=1)))
    with pytest.raises(Conflict, match="daemons are running: one"):
        await rebuild.write(target, plan, topics=[], enable=False, now_ms=1, progress=lambda _: None)
    assert await deployment(target) == ours
    assert await written(ground, target, topics=[OTHER]) == [OTHER], "a topic comes back beside them"


async def test_daemons_are_told_of_topics_that_come_back(ground: Ground) -> None:
    """They look for topics when the version of the folder moves."""
    target = MemoryTree().connect()
    await target.create(paths.TOPICS, b"")
    before = (await target.get(paths.TOPICS)).version
    assert await written(ground, target, topics=[OTHER], enable=True) == [OTHER]
    assert (await target.get(paths.TOPICS)).version > before


async def test_answers_that_are_lost_are_settled_on_the_way(ground: Ground) -> None:
    """Whichever write was carried out though nobody said so: it is there, and the rebuild complete."""
    for number in range(25):
        target = MemoryTree().connect()
        lost = nth_write(number, "after", OutcomeUnknown("lost"))
        assert await written(ground, FaultyMetadata(target, lost)) == [TOPIC, OTHER]
        assert await nodes(target, paths.ledgers(TOPIC)) == await nodes(ground.metadata, paths.ledgers(TOPIC))
        assert await target.children("/") == ["topics"]


def nth_write(number: int, when: str, error: Exception) -> Plan:
    """Fail one write of all, before or after it was carried out."""
    count = -1

    def plan(operation: str, _key: str, moment: str) -> Exception | None:
        nonlocal count
        if operation not in {"create", "replace", "delete"} or moment != when:
            return None
        count += 1
        return error if count == number else None

    return plan


async def test_going_on_with_another_bucket_is_refused(ground: Ground) -> None:
    """What a rebuild that was broken off has written must be what would be written."""
    target = MemoryTree().connect()
    faults = Faults()
    faults.fail("delete", Transient("gone"), times=-1)
    with pytest.raises(Transient):
        await written(ground, FaultyMetadata(target, faults))
    await ground.store(5, runs(20, 3, 3), topic=OTHER)
    with pytest.raises(Conflict, match="something else"):
        await written(ground, target)


async def test_nothing_of_a_topic_that_fails_is_written(ground: Ground) -> None:
    """The others are; what was decided with --prefer and --without is."""
    await ground.store(5, runs(1, 5, 5))
    plan = await planned(ground)
    assert [(one.topic, one.blocked) for one in plan.topics] == [(TOPIC, True), (OTHER, False)]
    assert {problem.kind for one in plan.topics for problem in one.problems} == {Kind.OVERLAP}
    target = MemoryTree().connect()
    assert await written(ground, target) == [OTHER]
    assert await target.children(paths.topic(TOPIC)) == []
    assert await written(ground, target, topics=[TOPIC], without=[segment_id(5)]) == [TOPIC]
    assert await nodes(target, paths.ledgers(TOPIC)) == await nodes(ground.metadata, paths.ledgers(TOPIC))


async def test_incomplete_segments_block_their_topic(ground: Ground) -> None:
    """A segment whose data or index is not what its manifest says holds its topic back; leaving it out is a choice."""
    await ground.objects.delete([index_key(4)])
    await ground.objects.put(data_key(3), b"short", metadata=OURS)
    plan = await planned(ground)
    assert {(one.kind, one.topic) for topic in plan.topics for one in topic.problems} == {(Kind.INCOMPLETE, TOPIC)}
    assert [(one.kind, one.topic) for one in plan.problems] == [(Kind.INCOMPLETE, OTHER)]
    plan = await planned(ground, without=[segment_id(3), segment_id(4)])
    assert not plan.blocked
    assert [(one.topic, one.blocked) for one in plan.topics] == [(TOPIC, False)]


async def test_a_manifest_that_cannot_be_read_blocks_as_little_as_possible(ground: Ground) -> None:
    """If it still names a topic of the bucket that topic is held back, else everything is."""
    broken = bytearray(await ground.objects.get(manifest_key(4)))
    broken[-1] ^= 1
    await ground.objects.put(manifest_key(4), bytes(broken), metadata=OURS)
    await ground.store(5, runs(20, 3, 3), topic=OTHER)
    plan = await planned(ground)
    assert not plan.blocked
    assert [one.blocked for one in plan.topics] == [False, True]
    assert plan.topics[1].problems[0].kind is Kind.UNREADABLE
    await ground.objects.put(manifest_key(4), b"nothing of it is left", metadata=OURS)
    plan = await planned(ground)
    assert plan.blocked
    assert await written(ground, MemoryTree().connect()) == []
    plan = await planned(ground, without=[segment_id(4)])
    assert not plan.blocked
    await ground.objects.put(manifest_key(4), await ground.objects.get(manifest_key(1)), metadata=OURS)
    assert [one.kind for one in (await planned(ground)).topics[0].problems] == [Kind.UNREADABLE]


async def test_all_archived_objects_are_named_with_the_restore_that_is_needed(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Manifests and heads alike: one run tells all that is to be restored, and writes nothing."""
    archived = {manifest_key(3), manifest_key(4), keys.head(PREFIX, CLUSTER, TOPIC.managed_ledger)}
    read = ground.objects.get

    async def get(key: str, first: int = 0, length: int | None = None) -> bytes:
        if key in archived:
            raise Archived(f"GetObject {key}: InvalidObjectState", hint="restore it (restore-object)")
        return await read(key, first, length)

    monkeypatch.setattr(ground.objects, "get", get)
    plan = await planned(ground)
    assert plan.blocked
    found = [*plan.problems, *(problem for topic in plan.topics for problem in topic.problems)]
    told = [one for one in found if "InvalidObjectState" in one.text]
    assert sorted(key for one in told for key in archived if key in one.text) == sorted(archived)
    assert all("restore-object" in one.what_to_do for one in told)
    assert await written(ground, MemoryTree().connect()) == []
    archived.discard(keys.head(PREFIX, CLUSTER, TOPIC.managed_ledger))
    assert not (await planned(ground, without=[segment_id(3), segment_id(4)])).blocked


async def test_orphans_and_other_clusters_are_said(ground: Ground) -> None:
    """They block nothing, and are in no map."""
    await ground.objects.put(data_key(8), b"x", metadata=OURS)
    await ground.store(9, runs(1, 0, 5), cluster="elsewhere")
    plan = await planned(ground)
    assert [one.kind for one in plan.problems] == [Kind.ORPHAN, Kind.FOREIGN]
    assert not plan.blocked
    assert not any(one.blocked for one in plan.topics)


async def test_segments_that_nobody_has_are_a_mistake(ground: Ground) -> None:
    """A uuid that is not in the bucket is a typing error."""
    for chosen in ({"prefer": [segment_id(77)]}, {"without": [segment_id(77)]}):
        with pytest.raises(InvalidInput, match="no segment"):
            await planned(ground, **chosen)  # type: ignore[arg-type]


def brokers(ledger_id: int, *, number: int = 0, labels: dict[str, str] | None = None) -> BrokerLedger:
    """Return a ledger of five entries as a broker of our cluster has offloaded it into our bucket."""
    return BrokerLedger(
        topic=TOPIC,
        ledger_id=ledger_id,
        object_id=segment_id(100 + ledger_id + number),
        payloads=[f"{ledger_id}:{entry}".encode() for entry in range(5)],
        user_metadata={keys.CLUSTER_KEY: CLUSTER, **(labels or {})},
    )


async def filled(ground: Ground, *, without: Sequence[UUID] = ()) -> rebuild.Plan:
    """Plan as the command does: with what brokers have offloaded, if segments do not join without it."""
    found = await rebuild.read_buckets(ground.objects, [SITE], lambda _: None)
    await rebuild.read_brokers(ground.objects, [SITE], found)
    return rebuild.make_plan(found, without=without)


async def cut() -> Ground:
    """A site with a topic of which ledgers 2 and 4 are not in our segments, as is known of 2."""
    site = Ground()
    await site.enable(TOPIC)
    await site.store(1, runs(1, 0, 10), ends=((1, LedgerEnd(10, 2)),))
    await site.store(2, runs(3, 0, 4), ends=((2, LedgerEnd(5, 3)), (3, LedgerEnd(4, 4))))
    await site.store(3, runs(5, 0, 4), ends=((4, LedgerEnd(5, 5)),))
    return site


async def test_a_brokers_ledger_gets_the_driver_of_its_store() -> None:
    """Its objects do not name it; a broker's deletion is checked against it later."""
    ground = await cut()
    for ledger_id in (2, 4):
        await brokers(ledger_id).put(ground.objects)
    site = replace(SITE, broker_driver="azureblob")
    found = await rebuild.read_buckets(ground.objects, [site], lambda _: None)
    await rebuild.read_brokers(ground.objects, [site], found)
    (plan,) = rebuild.make_plan(found).topics
    assert [one.driver for one in plan.map.segments if one.foreign] == ["azureblob", "azureblob"]


async def test_what_a_broker_has_offloaded_fills_a_gap() -> None:
    """Two of our segments with a broker's ledgers between them are one topic again, and these stay the broker's."""
    ground = await cut()
    (without,) = (await filled(ground)).topics
    assert without.blocked
    for ledger_id in (2, 4):
        await brokers(ledger_id).put(ground.objects)
    (plan,) = (await filled(ground)).topics
    assert not plan.blocked
    assert [(one.begin.ledger_id, one.entries, one.foreign) for one in plan.map.segments] == [
        (1, 10, False),
        (2, 5, True),
        (3, 4, False),
        (4, 5, True),
        (5, 4, False),
    ]
    assert plan.map.ends[2] == LedgerEnd(5, 3)
    assert plan.map.segments[1].keys.data == brokers(2).keys.data


@pytest.mark.parametrize(
    "wrong",
    ["another cluster", "ours", "another topic", "cut short", "no index", "twice"],
)
async def test_what_is_not_certain_fills_no_gap(wrong: str) -> None:
    """Objects of others, objects that are not whole, and two copies of one ledger leave the gap as it is."""
    ground = await cut()
    await brokers(4).put(ground.objects)
    labels = {keys.CLUSTER_KEY: "elsewhere" if wrong == "another cluster" else CLUSTER}
    if wrong == "ours":
        labels[keys.SOFTWARE_VERSION_KEY] = "offloaderd-1"
    if wrong == "another topic":
        labels[keys.MANAGED_LEDGER_KEY] = OTHER.managed_ledger
    ledger = brokers(2, labels=labels)
    await ledger.put(ground.objects)
    if wrong == "cut short":
        data = await ground.objects.get(ledger.keys.data)
        found = await ground.objects.head(ledger.keys.data)
        await ground.objects.put(ledger.keys.data, data[:-1], metadata=found.metadata)
    if wrong == "no index":
        await ground.objects.delete([ledger.keys.index])
    if wrong == "twice":
        await brokers(2, number=50, labels=labels).put(ground.objects)
    (plan,) = (await filled(ground)).topics
    assert plan.blocked
    assert [problem.kind for problem in plan.problems if problem.blocks] == [Kind.GAP]
    assert not any(one.foreign and one.begin.ledger_id == 2 for one in plan.map.segments)
    if wrong == "twice":
        (plan,) = (await filled(ground, without=[ledger.object_id])).topics
        assert not plan.blocked


async def test_what_a_broker_has_offloaded_comes_back_before_our_first_segment() -> None:
    """Where our first segment tells that something was before it."""
    ground = Ground()
    await ground.enable(TOPIC)
    await ground.store(2, runs(3, 0, 4), ends=((2, LedgerEnd(5, 3)),))
    await brokers(2).put(ground.objects)
    (plan,) = (await filled(ground)).topics
    assert [one.begin.ledger_id for one in plan.map.segments] == [2, 3]


FRONT, MIDDLE = Loss(START, Position(3, 0), 10), Loss(Position(3, 3), Position(6, 0), 10, 7)


@pytest.mark.parametrize(
    ("there", "left"),
    [
        ((1, 2, 4, 5), []),
        ((2, 4, 5), [Loss(START, Position(2, 0), 5), Loss(Position(2, 4), Position(3, 0), 0)]),
        ((1, 2, 4), [Loss(Position(4, 4), Position(6, 0), 5, 7)]),
        ((1, 2, 5), [Loss(Position(3, 3), Position(5, 0), 5, 7), Loss(Position(5, 4), Position(6, 0), 0, 7)]),
        ((), [FRONT, MIDDLE]),
    ],
)
async def test_what_was_recorded_as_lost_by_mistake_comes_back(there: Sequence[int], left: Sequence[Loss]) -> None:
    """The settings named another account when brokers' ledgers were looked for: what is there now is lost no more."""
    ground = Ground()
    await ground.enable(TOPIC)
    await ground.store(1, runs(3, 0, 4), losses=(FRONT,), ends=((3, LedgerEnd(4, 4)),))
    await ground.store(2, runs(6, 0, 4), losses=(MIDDLE,))
    for ledger_id in there:
        await brokers(ledger_id).put(ground.objects)
    (plan,) = (await filled(ground)).topics
    assert not plan.blocked
    assert [one.begin.ledger_id for one in plan.map.segments] == sorted([3, 6, *there])
    assert list(plan.map.losses) == left
