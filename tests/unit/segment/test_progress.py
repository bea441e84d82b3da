"""How often an attempt's record is written, what it holds, and that it never goes back."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from offloaderd.core.errors import Conflict, Fenced
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import Position
from offloaderd.format.manifest import BlockInfo
from offloaderd.metadata import paths
from offloaderd.metadata.records import attempt as attempt_record
from offloaderd.metadata.records.attempt import Attempt, AttemptStatus, StoredPart, stored_part
from offloaderd.segment import writer
from offloaderd.segment.claim.attempt_log import AttemptLog
from offloaderd.segment.claim.fence import Claim
from offloaderd.segment.writer import PAUSE_MIN_S, AttemptProgress
from offloaderd.testing.clock import FakeClock
from offloaderd.testing.memory.metadata import MemoryTree
from tests.unit.rigs.rig import TOPIC

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.metadata.port import Step

ATTEMPT = Attempt(segment_id=UUID(int=7), begin=Position(1, 0), assigned_ms=5, epoch=3, status=AttemptStatus.ASSIGNED)


def part(number: int) -> StoredPart:
    """One block a part."""
    block = BlockInfo(ledger_id=1, first_entry_id=number, entry_count=1, offset=number, length=1, crc32c=number)
    return stored_part(f"etag-{number}", number, (block,))


class Room:
    """A recorded attempt, and what is written to its node."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.tree = MemoryTree()
        self.store = self.tree.connect()

    async def begun(self) -> AttemptProgress:
        """Record the attempt under epoch 3."""
        await self.store.create(paths.epoch(TOPIC), b"")
        log = AttemptLog(self.store, Claim(TOPIC, 3, 0), clock=self.clock, metrics=Metrics())
        await log.begin(ATTEMPT)
        return AttemptProgress(log, ATTEMPT, None, epoch=3, clock=self.clock)

    @property
    def version(self) -> int:
        """How often the node was written after its creation."""
        return self.tree.node(paths.attempt(TOPIC)).version

    @property
    def recorded(self) -> Attempt:
        """What the node says."""
        return attempt_record.decode(self.tree.node(paths.attempt(TOPIC)).value, path="")


async def test_parts_are_recorded_without_a_gap_and_not_too_often() -> None:
    """Many parts within the pause are one update; what finished out of order waits for those before it."""
    room = Room()
    kept = await room.begun()
    async with asyncio.TaskGroup() as group:
        group.create_task(kept.run())
        await room.clock.settle()
        for number in (1, 3, 2, 5):
            kept.stored(number, part(number))
        await room.clock.advance(PAUSE_MIN_S * 0.9)
        assert room.version == 0
        await room.clock.advance(PAUSE_MIN_S * 0.2)
        assert (room.version, len(room.recorded.parts)) == (1, 3)
        kept.stored(4, part(4))
        await room.clock.settle()
        assert room.version == 1
        await room.clock.advance(PAUSE_MIN_S)
        assert (room.version, room.recorded.parts) == (2, tuple(map(part, range(1, 6))))
        await room.clock.advance(60)
        assert room.version == 2
        kept.end()


async def test_a_large_record_is_written_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause grows with what each update has to write."""
    monkeypatch.setattr(writer, "RECORD_BYTES_PER_S", len(part(1).encoded))
    room = Room()
    kept = await room.begun()
    async with asyncio.TaskGroup() as group:
        group.create_task(kept.run())
        for number in range(1, 11):
            kept.stored(number, part(number))
        await room.clock.advance(9)
        assert room.version == 0
        await room.clock.advance(2)
        assert room.version == 1
        kept.end()


async def test_the_end_records_what_the_pause_held_back() -> None:
    """Told to end, it writes what it has at once and returns."""
    room = Room()
    kept = await room.begun()
    async with asyncio.TaskGroup() as group:
        group.create_task(kept.run())
        await room.clock.settle()
        kept.stored(1, part(1))
        kept.end()
    assert len(room.recorded.parts) == 1


async def test_a_record_never_outgrows_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not fit is left out for good: a gap would make the parts behind it useless."""
    monkeypatch.setattr(writer, "RECORD_BYTES_MAX", writer.HEAD_BYTES + 3 * len(part(1).encoded))
    room = Room()
    kept = await room.begun()
    for number in range(1, 9):
        kept.stored(number, part(number))
    await kept.note_upload("u")
    assert len(room.recorded.parts) == 3
    assert room.recorded.upload_id == "u"


async def test_no_record_is_held_that_cannot_be_in_the_node_any_more() -> None:
    """A long segment writes thousands, each with all of its parts."""
    room = Room()
    kept = await room.begun()
    for number in range(1, 6):
        kept.stored(number, part(number))
        await kept.note_upload("u")
    assert kept._log._ours == [room.recorded]


async def test_an_update_that_was_cut_short_does_not_confuse_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancelled after the store had acted, its version is found out: the seal, or giving up, still gets through."""
    room = Room()
    kept = await room.begun()
    act = room.store.transact

    async def cut_short(steps: Sequence[Step]) -> None:
        await act(steps)
        raise asyncio.CancelledError

    with monkeypatch.context() as patched:
        patched.setattr(room.store, "transact", cut_short)
        with pytest.raises(asyncio.CancelledError):
            await kept.note_upload("t")
    await kept.note_upload("u")
    assert (room.version, room.recorded.upload_id) == (2, "u")


async def test_a_record_that_another_process_wrote_is_not_replaced() -> None:
    """Who writes it under the same claim has taken over."""
    room = Room()
    kept = await room.begun()
    value = attempt_record.encode(theirs := replace(ATTEMPT, upload_id="theirs"))
    await room.store.replace(paths.attempt(TOPIC), value, 0)
    with pytest.raises(Conflict):
        await kept.note_upload("u")
    assert room.recorded == theirs


async def test_a_deposed_owner_records_nothing() -> None:
    """Its epoch is over: neither progress nor a seal is written."""
    room = Room()
    kept = await room.begun()
    await room.store.replace(paths.epoch(TOPIC), b"", 0)
    kept.stored(1, part(1))
    with pytest.raises(Fenced):
        await kept.note_upload("u")
    assert room.version == 0
