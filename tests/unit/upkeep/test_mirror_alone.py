"""What a mirror alone gives when the first place is away, or is lost, or the metadata as well."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.aio import Group
from offloaderd.core.errors import Denied, OutcomeUnknown, Transient
from offloaderd.core.model import RefusalKind
from offloaderd.fleet.engine import mark_places
from offloaderd.metadata import nodes, paths
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.policy.records import TopicPolicy
from offloaderd.testing.memory.metadata import MemoryTree
from offloaderd.upkeep import rebuild
from offloaderd.upkeep.gc.findings import Verdict
from offloaderd.upkeep.mirror import Mirror
from offloaderd.upkeep.settings import MirrorSettings
from tests.unit.read.test_mirror import Reading
from tests.unit.rigs.owned import Owned
from tests.unit.rigs.rig import TOPIC, Rig, enabled, payloads, until
from tests.unit.upkeep.test_mirror import (
    AWAY,
    HOME,
    PLACES,
    THIRD,
    breaking,
    buckets_of,
    check_copies,
    lag,
    mirroring,
    offloaded,
    rig_of,
)
from tests.unit.upkeep.test_mirror_away import HOUR_S, SEGMENTS_AN_HOUR
from tests.unit.upkeep.test_mirrored import SITES, collected, segments_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.core.model import TopicName
    from offloaderd.metadata.port import MetadataStore
    from offloaderd.metadata.topic_map.map import TopicMap
    from offloaderd.upkeep.rebuild import Plan
    from offloaderd.upkeep.stored import Site

OURS = str(uuid.UUID(int=7))
ALONE = [site for site in SITES if (site.bucket, site.prefix) == AWAY]


async def marked_and_mirrored() -> Rig:
    """Return a rig of a deployment that has marked its places, with a topic whose segments all have a copy."""
    rig = rig_of()
    rig.deployment_id = OURS
    await offloaded(rig, 10, 10)
    async with mirroring(rig) as owned:
        await until(lambda: not lag(owned))
    await mark_places((await Owned.claim(rig)).context, "one")
    return rig


async def planned(rig: Rig, sites: Sequence[Site]) -> Plan:
    """Plan a rebuild from some places."""
    return rebuild.make_plan(await rebuild.read_buckets(rig.store, sites, lambda _: None))


async def test_a_rebuild_from_the_mirror_alone_goes_on_as_the_same_deployment() -> None:
    """There are no heads, but a marker: else nothing would be collected there, as it were another deployment's."""
    rig = await marked_and_mirrored()
    before, plan = await segments_of(rig), await planned(rig, ALONE)
    assert plan.deployment_id == OURS
    target = MemoryTree().connect()
    assert await rebuild.write(target, plan, topics=(), enable=True, now_ms=1, progress=lambda _: None) == [TOPIC]
    after = (await catalog.load(target, TOPIC)).segments
    assert [(one.segment_id, one.slices, one.place, one.mirror) for one in after] == [
        (one.segment_id, one.slices, AWAY, None) for one in before
    ]


async def test_where_another_deployment_works_nothing_is_stored_before_all_heads_were_read() -> None:
    """The head that says whose the topic is may lie in a place that is away; else the others would find it foreign."""
    rig = await marked_and_mirrored()
    rig.tree, rig.deployment_id = MemoryTree(), str(uuid.UUID(int=8))
    away = asyncio.Event()

    def plan(operation: str, key: str, when: str) -> None:
        if (operation, when) == ("get", "before") and key.endswith(".head") and not away.is_set():
            raise Transient("gone")

    breaking(rig, HOME[0], plan)
    async with rig.engine("two", within_s=HOUR_S) as engine:
        topic = await enabled(engine, TopicPolicy(enabled=True, bucket=AWAY[0], prefix=AWAY[1]))
        await topic.request_roll()
        await rig.clock.sleep(60)
        assert not topic.map.segments
        assert engine.context.shared == {bucket for bucket, _ in PLACES}
        away.set()
        await until(lambda: [one.kind for one in engine.statuses()[0].refusals] == [RefusalKind.OTHER_DEPLOYMENT])
    assert not await segments_of(rig)


@pytest.mark.parametrize("error", [Transient("gone"), Denied("no"), OutcomeUnknown("no answer")])
async def test_a_first_place_that_is_away_for_an_hour_is_read_in_the_mirror_and_catches_up(error: Exception) -> None:
    """What is offloaded is read throughout, new entries wait at the source, and no memory is held for them."""
    rig = await offloaded(rig_of(), 150, 150)
    async with mirroring(rig) as owned:
        await until(lambda: not lag(owned))
    assert rig.ledgers is not None
    written, asked = [*payloads(150), *payloads(150, seed=1)], list[str]()
    back = asyncio.Event()

    def plan(operation: str, key: str, when: str) -> None:
        if when == "before" and not back.is_set():
            asked.append(operation)
            raise error

    async with rig.engine(within_s=2 * HOUR_S) as engine, Group() as group:
        topic = await enabled(engine, TopicPolicy(enabled=True, mirror="/".join(AWAY)))
        duty = group.create_task(Mirror(engine.context, MirrorSettings()).run(topic))
        await until(topic.identity.checked.is_set)
        before = last = topic.offloaded
        breaking(rig, HOME[0], plan)
        for number in range(SEGMENTS_AN_HOUR):
            await rig.clock.sleep(HOUR_S / SEGMENTS_AN_HOUR)
            last = await rig.ledgers.append(TOPIC, payloads(10, seed=2 + number))
            await topic.request_roll()
            written += payloads(10, seed=2 + number)
            reading = Reading(rig)
            assert await reading.all() == written[:300]
            assert reading.told == []
        await rig.clock.sleep(60)
        status = topic.status()
        assert (topic.offloaded, status.state, status.lag_entries) == (before, "stalled", 10 * SEGMENTS_AN_HOUR)
        assert str(error) in status.stalled_reason
        assert engine.context.upload_context.budget.used < engine.context.upload_context.budget.limit
        assert SEGMENTS_AN_HOUR < len(asked) < HOUR_S
        back.set()
        await rig.clock.sleep(60)
        assert (topic.offloaded, topic.status().state) == (last, "offloading")
        now = topic.status().mirror
        assert now is not None
        assert (now.lag_segments, now.failure) == (0, "")
        duty.cancel()
    assert [payload for _, payload in await rig.committed()] == written
    await check_copies(rig)
    assert await rig.leftovers() == []


@pytest.mark.parametrize("stored", [b"", None])
async def test_markers_that_say_nothing_are_passed(stored: bytes | None) -> None:
    """A damaged one, or none: an operator accepts the place, as the collector asks for."""
    rig = await marked_and_mirrored()
    there = buckets_of(rig).at(AWAY[0])
    [key] = [info.key async for info in there.list() if info.key.endswith(".marker")]
    await (there.delete([key]) if stored is None else there.put(key, stored))
    plan = await planned(rig, ALONE)
    assert (plan.deployment_id, plan.blocked) == ("", False)


async def test_heads_count_before_markers() -> None:
    """They are of the last commits; a marker may be of a deployment that was there first."""
    rig = await marked_and_mirrored()
    found = await rebuild.read_buckets(rig.store, SITES, lambda _: None)
    found.marked = {str(uuid.UUID(int=8))}
    assert rebuild.make_plan(found).deployment_id == OURS


async def test_a_collection_that_fails_before_it_deletes_holds_up_no_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata do not answer after it has taken the record of the topic's copies: it gives the record back."""
    rig = await marked_and_mirrored()
    rig.policy = replace(rig.policy, mirror=THIRD)
    async with mirroring(rig) as owned:
        await until(lambda: not lag(owned))
    store, load = rig.tree.connect(), catalog.load

    async def fails(metadata: MetadataStore, topic: TopicName) -> TopicMap:
        if await nodes.node(store, paths.mirror(topic)) is not None:
            raise Transient("gone")
        return await load(metadata, topic)

    with monkeypatch.context() as patched:
        patched.setattr(catalog, "load", fails)
        assert {one.verdict for one in await collected(rig)} == {Verdict.FAILED}
    assert await nodes.node(store, paths.mirror(TOPIC)) is None
    assert {one.verdict for one in await collected(rig)} == {Verdict.DELETED}
