"""A backfill on in-memory twins: executors are coroutines with sessions of their own, and may die."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from offloaderd.core.errors import Transient
from offloaderd.core.model import OffloadMethod
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.spark.backfill.backfill import Progress, TopicBackfill
from offloaderd.spark.backfill.plan import Aim
from offloaderd.spark.jobs.driver import Driver
from offloaderd.spark.jobs.task import SegmentTask, Written, write_segment
from tests.unit.history.test_history import rig_with
from tests.unit.rigs.owned import Owned
from tests.unit.rigs.rig import TOPIC, Rig, enabled, payloads, until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from offloaderd.metadata.topic_map.map import TopicMap
    from offloaderd.testing.memory.metadata import MemoryMetadata

SEGMENT_BYTES = 4000


@dataclass
class LocalRunner:
    """Carries tasks out on this loop; `before` is called with each and its number, and may raise or wait."""

    rig: Rig
    before: Callable[[SegmentTask, int], Awaitable[None]] | None = None
    ran: list[SegmentTask] = field(default_factory=list)
    at_once: int = 0
    at_once_most: int = 0

    async def run(self, task: SegmentTask) -> Written:
        """Write the segment as an executor would."""
        self.ran.append(task)
        self.at_once += 1
        self.at_once_most = max(self.at_once_most, self.at_once)
        store = self.rig.tree.connect()
        try:
            if self.before is not None:
                await self.before(task, len(self.ran))
            ledgers = self.rig.ledgers
            assert ledgers is not None
            return await write_segment(self.rig.context(store, source=ledgers), ledgers, task)
        finally:
            self.at_once -= 1
            store.close()


async def planned(entries: int = 200, *, segment_bytes: int = SEGMENT_BYTES) -> Rig:
    """A topic whose live edge is offloaded, and nothing of its history, which is a job's."""
    rig = await rig_with(entries, daemon_bytes_max=0, segment_bytes=segment_bytes)
    async with rig.engine() as engine:
        topic = await enabled(engine)
        target = await topic.request_roll()
        await until(lambda: topic.offloaded == target)
    return rig


def backfill(
    rig: Rig,
    runner: LocalRunner | None = None,
    *,
    me: str = "driver",
    slots: int = 2,
    store: MemoryMetadata | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
    patience_s: float = 5.0,
    segment_bytes: int = SEGMENT_BYTES,
    method: OffloadMethod = OffloadMethod.STREAMING,
) -> TopicBackfill:
    """One run of the rig's topic."""
    ledgers = rig.ledgers
    assert ledgers is not None
    context = rig.context(store or rig.tree.connect(), source=ledgers)
    driver = Driver(
        write=(runner or LocalRunner(rig)).run,
        slots=asyncio.Semaphore(slots),
        me=me,
        patience_s=patience_s,
        progress=progress,
    )
    aim = Aim(segment_bytes=segment_bytes, place=context.places.home, method=method)
    return TopicBackfill(context, ledgers, TOPIC, driver, aim=aim)


async def map_of(rig: Rig) -> TopicMap:
    """The topic as it is stored."""
    return await catalog.load(rig.tree.connect(), TOPIC)


async def whole(rig: Rig, count: int = 200) -> TopicMap:
    """Everything is committed once, in order; after the trash was emptied nothing is left over."""
    found = await map_of(rig)
    assert found.history is not None
    assert found.unfinished is None
    assert found.history.holder == ""
    assert [payload for _, payload in await rig.committed()] == payloads(count)
    for before, after in zip(found.segments, found.segments[1:], strict=False):
        assert found.joined(before.end, after.begin)
    assert await (await Owned.claim(rig)).empty_trash() == 0
    assert await rig.leftovers() == []
    return found


class Died(Transient):
    """What a driver hears of an executor that was killed."""
