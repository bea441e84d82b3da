"""The reader against a naive model: random ledgers, segments, buffers, faults and ranges."""

from __future__ import annotations

import uuid
from contextlib import aclosing
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from offloaderd.core.errors import OffloaderError
from offloaderd.core.model import EntryBatch, Position
from offloaderd.core.read_options import ReadPriority
from offloaderd.objects import keys
from tests.unit.read.build import PREFIX, TOPIC, Piece, flat, make_read_rig, payload, put_segment
from tests.unit.read.shelf import Shelf
from tests.virtual import virtually

if TYPE_CHECKING:
    from offloaderd.core.entries import Entries

FAULTS = ("none", "none", "data gone", "data cut", "block flipped", "index flipped", "index gone", "manifest flipped")


@dataclass
class World:
    """A topic as it was written, and what each tier has of it."""

    ledgers: dict[int, int]
    in_source: set[int] | None
    cuts: list[tuple[Position, Position]]
    faults: list[str]
    sealed_open: list[bool]
    hot: list[tuple[Position, Position]]
    rotten: set[tuple[int, int]]
    priority: ReadPriority
    first: Position
    last: Position
    batch_bytes: int
    entries_max: int
    framed: bool

    def entries(self) -> list[Position]:
        """All entries that were ever written."""
        return [Position(ledger, entry) for ledger, count in self.ledgers.items() for entry in range(count)]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Draw a topic with at least one entry, and a range within it."""
    counts = draw(st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(any))
    step = draw(st.integers(1, 3))
    ledgers = {3 + step * number: count for number, count in enumerate(counts)}
    entries = [Position(ledger, entry) for ledger, count in ledgers.items() for entry in range(count)]
    marks = sorted(draw(st.sets(st.integers(0, len(entries)), max_size=5)))
    cuts = [(entries[low], entries[high - 1]) for low, high in pairwise(marks)]
    kept = draw(st.one_of(st.none(), st.sets(st.sampled_from(list(ledgers)))))
    if kept is not None:
        kept.add(max(ledgers))  # the open ledger cannot be deleted
    hot_at = draw(st.integers(0, len(entries)))
    hot_end = draw(st.integers(hot_at, len(entries)))
    low = draw(st.integers(0, len(entries) - 1))
    high = draw(st.integers(low, len(entries) - 1))
    return World(
        ledgers=ledgers,
        in_source=kept,
        cuts=cuts,
        faults=[draw(st.sampled_from(FAULTS)) for _ in cuts],
        sealed_open=[draw(st.booleans()) for _ in cuts],
        hot=[(entries[hot_at], entries[hot_end - 1])] if hot_end > hot_at else [],
        rotten=set(draw(st.sets(st.sampled_from(entries), max_size=1))),
        priority=draw(st.sampled_from(list(ReadPriority))),
        first=entries[low],
        last=entries[high],
        batch_bytes=draw(st.sampled_from([1, 20, 1000])),
        entries_max=draw(st.sampled_from([0, 0, 1, 5])),
        framed=draw(st.booleans()),
    )


def within(world: World, low: Position, high: Position) -> list[tuple[int, int, int]]:
    """Return ledger, first and last entry of each ledger's part of [low, high]."""
    found = []
    for ledger, count in world.ledgers.items():
        ids = [entry for entry in range(count) if low <= (ledger, entry) <= high]
        if ids:
            found.append((ledger, ids[0], ids[-1]))
    return found


class Checked:
    """Builds a world's tiers and knows which entries they can give."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.given: set[Position] = set()
        self.ended: set[int] = set()
        self.shelf: Shelf | None = None
        if world.in_source is not None:
            self.shelf = Shelf()
            for ledger in sorted(world.in_source):
                count = world.ledgers[ledger]
                closed = ledger != max(world.ledgers)
                self.shelf.put(ledger, [payload(ledger, entry) for entry in range(count)], closed=closed)
                self.given |= {Position(ledger, entry) for entry in range(count)}
                self.ended |= {ledger} if closed else set()
            self.shelf.rotten = world.rotten
            self.given -= {Position(*one) for one in world.rotten}

    async def build(self) -> None:
        """Store the segments, then break them."""
        world = self.world
        self.rig = make_read_rig(
            source=self.shelf, batch_bytes=world.batch_bytes, cache_bytes=300, read_ahead_bytes=256
        )
        for number, ((low, high), fault) in enumerate(zip(world.cuts, world.faults, strict=True), start=1):
            pieces = []
            for ledger, first, last in within(world, low, high):
                whole = last == world.ledgers[ledger] - 1 and ledger != max(world.ledgers)
                open_yet = (ledger == high.ledger_id and world.sealed_open[number - 1]) or not whole
                closed = None if open_yet else world.ledgers[ledger]
                pieces.append(Piece(ledger, first, [payload(ledger, one) for one in range(first, last + 1)], closed))
            segment = await put_segment(self.rig.store, pieces, segment_id=uuid.UUID(int=number), block_entries=2)
            self.rig.map.segments.append(segment)
            self.ended |= {piece.ledger_id for piece in pieces if piece.ledger_id < world.cuts[-1][1].ledger_id}
            held = [
                Position(piece.ledger_id, piece.first_entry_id + at)
                for piece in pieces
                for at in range(len(piece.payloads))
            ]
            self.given |= set(await self.broken(segment.segment_id, fault, held, pieces))
        for low, high in world.hot:
            before: Position | None = None
            for ledger, first, last in within(world, low, high):
                batch = EntryBatch(ledger, first, [payload(ledger, one) for one in range(first, last + 1)])
                self.rig.hot.add(batch, follows=before)
                if before is not None:
                    self.ended.add(before.ledger_id)
                before = batch.last
                self.given |= {Position(ledger, one) for one in range(first, last + 1)}

    async def broken(
        self, segment_id: uuid.UUID, fault: str, held: list[Position], pieces: list[Piece]
    ) -> list[Position]:
        """Apply a fault; returns the entries that can still be read."""
        store = self.rig.store
        data, index = keys.SegmentKeys(PREFIX, segment_id).data, keys.SegmentKeys(PREFIX, segment_id).index
        manifest = keys.SegmentKeys(PREFIX, segment_id).manifest

        async def flip(key: str, at: int) -> None:
            stored = bytearray(await store.get(key))
            stored[at] ^= 0x10
            await store.put(key, bytes(stored))

        if fault == "none":
            return held
        if fault == "data gone":
            await store.delete([data])
        elif fault == "data cut":
            await store.put(data, (await store.get(data))[:-1])
        elif fault == "block flipped":
            await flip(data, 130)
            return held[min(2, len(pieces[0].payloads)) :]
        elif fault == "index flipped":
            await flip(index, -1)
        elif fault == "index gone":
            await store.delete([index])
        else:
            await flip(manifest, -1)
        return []


def traceless(world: World) -> bool:
    """Whether a ledger after the oldest entry has left no trace in any tier: nobody could tell that it was there."""
    kept = world.in_source or set()
    kept |= {ledger for low, high in [*world.cuts, *world.hot] for ledger, _, _ in within(world, low, high)}
    return any(
        count and ledger not in kept and ledger > min(kept, default=ledger) for ledger, count in world.ledgers.items()
    )


async def check(world: World) -> None:
    """Read the range; what comes must be right, and must come if some tier has it."""
    checked = Checked(world)
    await checked.build()
    wanted = [one for one in world.entries() if world.first <= one <= world.last]
    if world.entries_max:
        wanted = wanted[: world.entries_max]
    expected = [(one.ledger_id, one.entry_id, payload(*one)) for one in wanted]
    batches: list[Entries] = []
    error: OffloaderError | None = None
    async with checked.rig.reader as reader:
        entries = reader.read(
            TOPIC,
            first=world.first,
            last=world.last,
            priority=world.priority,
            batch_bytes=world.batch_bytes,
            entries_max=world.entries_max,
            framed=world.framed,
        )
        try:
            async with aclosing(entries) as found:
                async for batch, _ in found:
                    assert len(batch.payloads) == 1 or batch.payload_bytes() <= world.batch_bytes
                    batches.append(batch)
        except OffloaderError as caught:
            error = caught
        assert reader.segments.pinned_bytes == 0
    got = flat(batches)
    assert got == expected[: len(got)]
    assert error is not None or len(got) == len(expected)
    crossed = {one.ledger_id for one in wanted if one.ledger_id < wanted[-1].ledger_id}
    if {*wanted, world.last} <= checked.given and crossed <= checked.ended:
        assert error is None, f"{error!r}"


@given(worlds())
@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_each_entry_once_in_order_or_an_error(world: World) -> None:
    """Whatever is missing or broken, a read gives exactly its range in order, or stops with a typed error."""
    assume(not traceless(world))
    virtually(check(world))
