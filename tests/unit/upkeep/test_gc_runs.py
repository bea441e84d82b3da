"""Collections of garbage: one at a time, what becomes of one that fails, and when they come by themselves."""

from __future__ import annotations

import asyncio

import pytest

from offloaderd.core.errors import Conflict, Denied, OutcomeUnknown
from offloaderd.metadata import paths
from offloaderd.testing import FakeClock
from offloaderd.testing.faults import Faults, FaultyStore
from offloaderd.upkeep.gc.findings import Finding, Verdict
from offloaderd.upkeep.settings import GcSettings
from tests.unit.upkeep.site import (
    GRACE_S,
    OURS,
    Ground,
    all_keys,
    data_key,
)


async def test_one_collection_at_a_time(ground: Ground) -> None:
    """A second collection is refused while one runs, and not after it was broken off."""
    collector = ground.collector()
    first = collector.collect(grace_s=0, apply=False)
    await ground.objects.put(data_key(2), b"x", metadata=OURS)
    assert isinstance(await anext(first), Finding)
    with pytest.raises(Conflict):
        await anext(collector.collect(grace_s=0, apply=False))
    await first.aclose()
    assert isinstance(await anext(collector.collect(grace_s=0, apply=False)), Finding)


@pytest.mark.parametrize(("when", "left"), [("before", 1), ("after", 0)])
async def test_a_deletion_that_fails_is_told_and_tried_again(ground: Ground, when: str, left: int) -> None:
    """A refused deletion, or one whose answer was lost, is told; the next collection finds what is left."""
    await ground.objects.put(data_key(2), b"x", metadata=OURS)
    await ground.age()

    def plan(operation: str, key: str, moment: str) -> Exception | None:
        failing = operation == "delete" and key == data_key(2) and moment == when
        return OutcomeUnknown("lost") if failing else None

    finds, _ = await ground.collect(objects=FaultyStore(ground.objects, plan))
    assert [find.verdict for find in finds] == [Verdict.FAILED]
    assert "its deletion failed: lost" in finds[0].reason
    finds, _ = await ground.collect()
    assert [find.verdict for find in finds] == [Verdict.DELETED] * left
    assert await ground.keys() == all_keys(1)


async def test_the_time_of_a_collection_is_shown_once_it_is_complete(ground: Ground) -> None:
    """By this an alert knows that none has come to its end for days."""

    def last_s() -> float | None:
        return ground.metrics.registry.get_sample_value("offloaderd_gc_last_complete_timestamp_seconds")

    faults = Faults()
    faults.fail("list", Denied("no right"), times=-1)
    with pytest.raises(Denied):
        await ground.collect(objects=FaultyStore(ground.objects, faults))
    assert not last_s()
    await ground.collect()
    assert last_s() == ground.clock.wall_ms() / 1000


async def test_the_clock_object_does_not_stay(ground: Ground) -> None:
    """What was written to learn the time is deleted again."""
    await ground.collect(apply=False)
    assert await ground.keys() == all_keys(1)


async def test_collections_come_at_an_interval_and_only_where_one_leads(ground: Ground) -> None:
    """The first within a quarter of an hour, later ones at the interval; a failure does not end them."""
    clock = FakeClock()
    ground.clock = clock
    leads = True
    async with asyncio.TaskGroup() as group:
        task = group.create_task(
            ground.collector().keep(lambda: GcSettings(interval_s=3600.0, grace_s=GRACE_S), lambda: leads)
        )
        await ground.objects.put(data_key(2), b"x", metadata=OURS)
        await ground.age()
        await ground.metadata.create(paths.REBUILD, b"")
        await clock.advance(900)
        assert runs_of(ground, "failed") == 1
        await ground.metadata.delete(paths.REBUILD)
        leads = False
        await clock.advance(3600)
        assert runs_of(ground, "ok") == 0
        leads = True
        await clock.advance(3600)
        assert runs_of(ground, "ok") in {1, 2}
        assert await ground.keys() == all_keys(1)
        task.cancel()


def runs_of(ground: Ground, outcome: str) -> float | None:
    """Return how many collections ended so."""
    return ground.metrics.registry.get_sample_value("offloaderd_gc_runs_total", {"outcome": outcome})


@pytest.mark.parametrize(
    ("schedule", "left"),
    [
        (GcSettings(interval_s=60, grace_s=0, mode="off"), 1),
        (GcSettings(interval_s=60, grace_s=0, mode="report"), 1),
        (GcSettings(interval_s=60, grace_s=0), 0),
    ],
)
async def test_what_a_daemon_does_by_itself(ground: Ground, schedule: GcSettings, left: int) -> None:
    """Nothing, say what it would delete, or delete: as it is set."""
    await ground.objects.put(data_key(2), b"x", metadata=OURS)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(ground.collector().keep(lambda: schedule, lambda: True))
        await ground.clock.advance(61)
        task.cancel()
    assert len(await ground.keys()) == 3 + left
    assert runs_of(ground, "ok") == (0 if schedule.mode == "off" else 1)
