"""A tenant at ten times its share: what another one notices of it, in virtual time.

The store takes about as long for a request however many there are, so uploads and reads wait for slots alone.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from offloaderd.core.limits import FLOW, Pace
from offloaderd.core.model import Position, TopicName
from offloaderd.fleet.hot_tier import HotBuffers, ReadableMaps, ReadablePolicies
from offloaderd.read.reader import ReadOptions, TopicReader
from offloaderd.read.segments import SegmentOptions
from offloaderd.segment.roll import RollPolicy
from offloaderd.testing.faults import Faults, FaultyStore
from offloaderd.testing.memory.objects import MemoryStore
from tests.unit.rigs.rig import Rig, enabled, memory_ledgers, payloads, until_offloaded
from tests.virtual import LoopClock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from offloaderd.fleet.engine import Engine
    from offloaderd.topic.offloader import TopicOffloader

QUIET = TopicName("quiet", "ns", "orders")
LOUD = [TopicName("loud", "ns", f"clicks-{number}") for number in range(10)]
SLOTS, GETS, REQUEST_S, PART_BYTES = 4, 16, 0.05, 16_384
CAPACITY_BYTES_PER_S = SLOTS * PART_BYTES / REQUEST_S
SHARE = 0.3
"""What each tenant sends at its share, of what the slots can carry."""
READERS = 6
"""Readers of the loud tenant at its share, each with one request after the other."""
TICK_S, LASTS_S = 0.1, 10.0
FACTOR = 1.2


class SlowStore(FaultyStore):
    """A store that takes REQUEST_S for a part or a range."""

    def __init__(self, clock: LoopClock) -> None:
        super().__init__(MemoryStore(clock, part_bytes_min=1), Faults())
        self._clock = clock

    async def _do(self, operation: str, key: str, act: Callable[[], Awaitable[Any]]) -> Any:  # noqa: ANN401 - any result
        if operation in {"upload_part", "get"}:
            await self._clock.sleep(self._clock.jitter(REQUEST_S) + REQUEST_S / 4)
        return await super()._do(operation, key, act)


class Felt(NamedTuple):
    """What the quiet tenant notices: the 99th percentiles of its lag and of the time of its reads, in seconds."""

    lag_s: float
    read_s: float


def p99(values: list[float]) -> float:
    """Return the 99th percentile."""
    assert len(values) > 50
    return sorted(values)[int(len(values) * 0.99)]


async def written(rig: Rig, topic: TopicOffloader, bytes_per_s: float, until_s: float, lags: list[float]) -> None:
    """Append to a topic at a rate, and note how long each append takes to be offloaded."""
    assert rig.ledgers is not None
    entries = payloads(4, round(bytes_per_s * TICK_S / 4))

    async def noted(position: Position, at_s: float) -> None:
        await until_offloaded(topic, position)
        lags.append(rig.clock.monotonic() - at_s)

    async with asyncio.TaskGroup() as group:
        while rig.clock.monotonic() < until_s:
            last = await rig.ledgers.append(topic.topic, entries)
            if topic.topic == QUIET and rig.clock.monotonic() < until_s - 4:
                group.create_task(noted(last, rig.clock.monotonic()))
            await rig.clock.sleep(TICK_S)


def reader_of(rig: Rig, engine: Engine) -> TopicReader:
    """Return a reader that keeps nothing in memory for a second read."""
    return TopicReader(
        maps=ReadableMaps(engine),
        policies=ReadablePolicies(engine),
        objects=rig.store,
        source=None,
        hot=HotBuffers(engine),
        clock=rig.clock,
        metrics=rig.metrics,
        options=ReadOptions(segments=SegmentOptions(cache_bytes=40_000, read_ahead_bytes=16_000, gets_max=GETS)),
    )


async def read(rig: Rig, engine: Engine, reader: TopicReader, topic: TopicName, took: list[float]) -> None:
    """Read one entry after the other, of all segments of a topic, as a call that the gate has let in."""
    FLOW.set(engine.context.accounts.of(topic))
    while True:
        found = engine.find(topic)
        if found is None or not found.map.segments:
            await rig.clock.sleep(TICK_S)
            continue
        began_s, segments = rig.clock.monotonic(), found.map.segments
        one = segments[len(took) % len(segments)].range
        async with aclosing(reader.read(topic, first=one.begin, last=one.begin)) as batches:
            async for _ in batches:
                pass
        took.append(rig.clock.monotonic() - began_s)
        await rig.clock.sleep(0.01)


async def felt(times: int) -> Felt:
    """Return what the quiet tenant notices when the loud one sends and reads so many times its share."""
    clock = LoopClock()
    rig = Rig(
        clock=clock,
        objects=SlowStore(clock),
        pace=Pace(SLOTS),
        policy=RollPolicy(segment_bytes_max=1 << 30, segment_age_max_s=1.0),
        buffer_bytes=2 << 20,
    )
    rig.layout = replace(rig.layout, part_bytes=PART_BYTES)
    rig.ledgers = memory_ledgers(clock)
    lags: list[float] = []
    took: list[float] = []
    async with rig.engine() as engine, reader_of(rig, engine) as reader:
        quiet = await enabled(engine, topic=QUIET)
        loud = [await enabled(engine, topic=topic) for topic in LOUD]
        until_s, rate = clock.monotonic() + LASTS_S, SHARE * CAPACITY_BYTES_PER_S
        async with asyncio.TaskGroup() as group:
            reading = [group.create_task(read(rig, engine, reader, QUIET, took))]
            reading += [
                group.create_task(read(rig, engine, reader, LOUD[number % len(LOUD)], [0.0] * number))
                for number in range(READERS * times)
            ]
            async with asyncio.TaskGroup() as writing:
                writing.create_task(written(rig, quiet, rate, until_s, lags))
                for topic in loud:
                    writing.create_task(written(rig, topic, times * rate / len(loud), until_s, []))
            for one in reading:
                one.cancel()
        for topic in loud:
            topic.stop()
    return Felt(p99(lags), p99(took))


async def test_a_tenant_at_ten_times_its_share_changes_little_for_another() -> None:
    """Neither the lag of its topics nor the time of its reads grows by a fifth at the 99th percentile."""
    before = await felt(1)
    now = await felt(10)
    assert now.lag_s < FACTOR * before.lag_s, (before, now)
    assert now.read_s < FACTOR * before.read_s, (before, now)
