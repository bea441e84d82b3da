"""Segments that earlier owners sealed and did not finish, taken over all at once by a daemon with little memory."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import Transient
from offloaderd.core.model import EntryBatch, OfferResult, Position, TopicName
from offloaderd.metadata import paths
from offloaderd.segment import writer
from offloaderd.segment.roll import RollPolicy
from offloaderd.topic import live_segment
from offloaderd.topic.buffer import ENTRY_OVERHEAD_BYTES
from tests.unit.rigs.lives import life, until_recorded
from tests.unit.rigs.rig import LAYOUT, Rig, enabled, memory_ledgers, offloader_of, payloads, turn, until_offloaded

if TYPE_CHECKING:
    from offloaderd.topic.offloader import TopicOffloader

TOPICS = [TopicName.parse(f"public/default/t{number}") for number in range(3)]
ENTRIES = 500
ENTRY_COST = 100 + ENTRY_OVERHEAD_BYTES
PART_COST = LAYOUT.part_bytes // 100 * ENTRY_COST
"""Memory that the entries of one part take in a buffer, in bytes."""
BUFFER_BYTES = 40_000
"""More than that, and less than it is for each topic."""


class Stubborn:
    """A store that takes the first part of each object and no other."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def __call__(self, operation: str, key: str, when: str) -> Exception | None:
        """Look at a call."""
        if operation != "upload_part":
            return None
        if when == "after":
            self._taken.add(key)
        return Transient("busy") if when == "before" and key in self._taken else None


async def push(topic: TopicOffloader, number: int) -> None:
    """Push all entries of a topic, each batch as soon as there is room."""
    last = topic.handle.last_offered()
    for first in range(0 if last is None else last.entry_id + 1, ENTRIES, 20):
        batch = EntryBatch(0, first, payloads(ENTRIES, seed=number)[first : first + 20])
        while topic.offer(batch) is OfferResult.FULL:
            await topic.handle.room()


async def sealed_everywhere(*, push_only: bool) -> Rig:
    """Make a rig in which each topic has a segment whose end is recorded, and of whose entries most are not stored."""
    rig = Rig(policy=RollPolicy(segment_bytes_max=1 << 30, segment_age_max_s=3600))
    rig.ledgers = memory_ledgers(rig.clock)
    async with life(rig, "one", Stubborn(), push_only=push_only) as one:
        topics = [await enabled(one.engine, topic=name) for name in TOPICS]
        for number, topic in enumerate(topics):
            if push_only:
                await push(topic, number)
            else:
                await rig.ledgers.append(TOPICS[number], payloads(ENTRIES, seed=number))
            await topic.request_roll()
        for name in TOPICS:
            await until_recorded(
                rig, lambda found: found.seal is not None and len(found.parts) > 0, paths.attempt(name)
            )
    return rig


@pytest.mark.parametrize("push_only", [False, True], ids=["source", "pushed"])
async def test_segments_that_cannot_end_do_not_wait_for_each_others_memory(push_only: bool) -> None:
    """Each of them lacks a part's worth of entries, all memory is pinned by them: they are finished one by one."""
    rig = await sealed_everywhere(push_only=push_only)
    rig.buffer_bytes = BUFFER_BYTES
    most = 0
    async with rig.engine("two", push_only=push_only) as engine, asyncio.TaskGroup() as group:
        topics = [await offloader_of(engine, name) for name in TOPICS]
        pool = topics[0].buffer._pool
        if push_only:
            for number, topic in enumerate(topics):
                group.create_task(push(topic, number))
        while any(topic.offloaded is None for topic in topics):
            await turn()
            most = max(most, pool.overdrawn_bytes)
    assert 0 < most <= (ENTRIES * ENTRY_COST if push_only else 2 * PART_COST)
    assert pool.used_bytes == 0
    for number, name in enumerate(TOPICS):
        assert [payload for _, payload in await rig.committed(name)] == payloads(ENTRIES, seed=number)
    assert rig.metrics.segments.labels(state="failed")._value.get() == 0
    assert rig.metrics.segments_resumed._value.get() == len(TOPICS)


async def test_a_segment_whose_entries_stay_away_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has taken more memory than there is, then its pusher goes away: after a while another may, and is finished."""
    monkeypatch.setattr(live_segment, "OVERDRAW_S", 0.2)
    monkeypatch.setattr(writer, "CHECK_S", 0.05)
    rig = await sealed_everywhere(push_only=True)
    rig.buffer_bytes = BUFFER_BYTES
    async with rig.engine("two", push_only=True) as engine, asyncio.TaskGroup() as group:
        away, other, _ = [await offloader_of(engine, name) for name in TOPICS]
        pool = away.buffer._pool
        pushing = group.create_task(push(away, 0))
        while not pool.overdrawn_bytes:
            await turn()
        pushing.cancel()
        await push(other, 1)
        await until_offloaded(other, Position(0, ENTRIES - 1))
        assert away.offloaded is None
        await push(away, 0)
        await until_offloaded(away, Position(0, ENTRIES - 1))
