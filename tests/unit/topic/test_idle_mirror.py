"""The mirror of a topic that is suspended: what its status and gauges say, and what it waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offloaderd.metadata import nodes, paths
from offloaderd.metadata.records import copy as copy_record
from offloaderd.metadata.records.copy import REMOVAL_S, CopyAttempt
from offloaderd.policy.records import TopicPolicy
from offloaderd.topic.status import Reporter
from offloaderd.upkeep.deletion import KEPT_S
from offloaderd.upkeep.mirror import Mirror
from offloaderd.upkeep.settings import MirrorSettings
from tests.unit.rigs.owned import Owned
from tests.unit.rigs.rig import TOPIC, enabled, payloads, until, until_offloaded
from tests.unit.upkeep.test_mirror import AWAY, THIRD, rig_of
from tests.unit.upkeep.test_mirror_away import HOUR_S
from tests.unit.upkeep.test_mirrored import left_by_a_collection, mirrored, segments_of

if TYPE_CHECKING:
    from offloaderd.topic.offloader import TopicOffloader


async def test_the_lag_of_a_mirror_grows_while_its_topic_is_suspended() -> None:
    """A segment that cannot be copied is tried again in an hour, and an alert is about its age."""
    rig = rig_of()
    rig.suspend_after_s = 0.1
    assert rig.ledgers is not None
    async with rig.engine() as engine:
        topic = await enabled(engine, TopicPolicy(enabled=True, mirror="eu/topics/"))
        last = await rig.ledgers.append(TOPIC, payloads(10))
        await topic.request_roll()
        await until_offloaded(topic, last)
        await until(lambda: engine.statuses()[0].asleep)
        await rig.clock.sleep(20.0)
        [status] = engine.statuses()
        assert status.asleep
        assert status.mirror is not None
        assert status.mirror.lag_seconds >= 20
        await Reporter(engine.context, engine.statuses).report()
        shown = rig.metrics.registry.get_sample_value("offloaderd_mirror_lag_seconds", {"topic": str(TOPIC)})
        assert shown == status.mirror.lag_seconds


async def test_a_removal_that_broke_off_is_waited_for_once_however_often_its_topic_is_suspended() -> None:
    """Else no copy would be made of a topic without traffic."""
    rig = await mirrored(10)
    await left_by_a_collection(rig)
    mirrors: list[Mirror] = []

    async def copy(offloader: TopicOffloader) -> None:
        await mirrors[0].run(offloader)

    rig.suspend_after_s, rig.duties = 0.5, {"mirror": copy}
    async with rig.engine(within_s=2 * REMOVAL_S) as engine:
        mirrors.append(Mirror(engine.context, MirrorSettings()))
        await enabled(engine, TopicPolicy(enabled=True, mirror="/".join(THIRD)))
        await rig.clock.sleep(REMOVAL_S / 2)
        assert await nodes.node(rig.tree.connect(), paths.mirror(TOPIC)) is not None
        await rig.clock.sleep(REMOVAL_S)
        assert rig.metrics.topic_wakes.labels(cause="due")._value.get() > 10
    assert [one.mirror for one in await segments_of(rig)] == [THIRD]
    assert await nodes.node(rig.tree.connect(), paths.mirror(TOPIC)) is None


async def test_copies_of_a_suspended_topic_are_deleted_soon_after_another_copy_was_made() -> None:
    """While one is made none is deleted; then the topic sleeps, and would wake in an hour."""
    rig = await mirrored(10)
    owned = await Owned.claim(rig)
    [segment] = owned.offloader.map.segments
    await owned.offloader.record.drop_copy(segment.segment_id, AWAY)
    bucket, prefix = THIRD
    making = CopyAttempt(segment_id=segment.segment_id, bucket=bucket, prefix=prefix, part_bytes=1, begun_ms=0)
    store, path = rig.tree.connect(), paths.mirror(TOPIC)
    await store.create(path, copy_record.encode(making))
    rig.suspend_after_s = 0.5
    async with rig.engine(within_s=HOUR_S) as engine:
        await enabled(engine)
        await rig.clock.sleep(10.0)
        assert await store.children(paths.trash(TOPIC)) != []
        await store.delete(path, 0)
        await rig.clock.sleep(3 * KEPT_S)
        assert engine.statuses()[0].asleep
        assert await store.children(paths.trash(TOPIC)) == []


async def test_copies_of_a_suspended_topic_are_deleted_though_a_removal_broke_off() -> None:
    """It is resumed for moments, an hour apart, in which nobody could wait for the removal anew."""
    rig = await mirrored(10)
    owned = await Owned.claim(rig)
    [segment] = owned.offloader.map.segments
    await owned.offloader.record.drop_copy(segment.segment_id, AWAY)
    await left_by_a_collection(rig)
    rig.suspend_after_s = 0.5
    async with rig.engine(within_s=4 * HOUR_S) as engine:
        await enabled(engine)
        await rig.clock.sleep(2.5 * HOUR_S)
        assert engine.statuses()[0].asleep
    assert await rig.tree.connect().children(paths.trash(TOPIC)) == []
    assert await nodes.node(rig.tree.connect(), paths.mirror(TOPIC)) is None
