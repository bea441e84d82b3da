"""What a read goes on with is fetched before it gets there: in the next segment, and in the next ledger."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import aclosing
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from offloaderd.core.aio import Signal
from offloaderd.core.errors import Closed, EntriesMissing
from offloaderd.core.model import Position
from offloaderd.objects.checks import cut
from offloaderd.read import cache
from offloaderd.read.cache import ReadAhead
from offloaderd.read.segments import SLOT_BLOCK_BYTES
from tests.unit.read.build import TOPIC, Piece, make_read_rig, put_segment, turns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.metadata.committed import CommittedSegment
    from tests.unit.read.build import ReadRig

STORE_S = 0.05
"""How long the store takes to answer."""
BATCH_S = 0.01
"""How long the caller takes for a batch: for each segment longer than the store for its tables and a block."""
BLOCKS = 20
BLOCK_BYTES = 244
"""Bytes of a block with one entry of 100 bytes."""


class Slow:
    """A store that takes its time, and keeps what it was asked for."""

    def __init__(self, rig: ReadRig) -> None:
        self.store = rig.store
        self.gets: list[tuple[str, int, int | None]] = []
        self.answers = asyncio.Event()
        """Unset: requests of objects in `silent` from an offset on are not answered."""
        self.answers.set()
        self.silent: dict[str, int] = {}
        self.faulty: set[str] = set()
        rig.reader.segments.fetcher.reader._objects = self  # type: ignore[assignment]

    def at(self, bucket: str) -> Slow:
        """See ObjectReader."""
        return self

    async def get(self, key: str, first: int = 0, length: int | None = None) -> bytes:
        """Answer after a while."""
        self.gets.append((key, first, length))
        await asyncio.sleep(STORE_S)  # noqa: TID251 - virtual time
        if key in self.faulty:
            raise RuntimeError("a fault of the library")
        if first >= self.silent.get(key, first + 1):
            await self.answers.wait()
        return await self.store.get(key, first, length)

    async def get_pieces(self, key: str, first: int, lengths: Sequence[int]) -> Sequence[bytes]:
        """See ObjectReader."""
        return cut(await self.get(key, first, sum(lengths)), lengths)

    def asked_of(self, segment: CommittedSegment) -> list[tuple[int, int | None]]:
        """Return the ranges of a segment's objects, its tables included, that were asked for."""
        return [(first, length) for key, first, length in self.gets if segment.segment_id.hex in key.replace("-", "")]


def pieces_of(ledger_id: int, begin: int = 0, *, closed: bool = False) -> Piece:
    """Return BLOCKS entries of a ledger."""
    return Piece(ledger_id, begin, [b"x" * 100] * BLOCKS, begin + BLOCKS if closed else None)


async def shelf(monkeypatch: pytest.MonkeyPatch, *segments: list[Piece]) -> tuple[ReadRig, Slow]:
    """Return a topic of these segments, in blocks of one entry, and its store."""
    monkeypatch.setattr(cache, "WINDOW_BYTES_MIN", BLOCK_BYTES)
    rig = make_read_rig(read_ahead_bytes=16 * BLOCK_BYTES)
    for number, pieces in enumerate(segments, 1):
        rig.map.segments.append(await put_segment(rig.store, pieces, segment_id=uuid.UUID(int=number), block_entries=1))
    return rig, Slow(rig)


async def waits(rig: ReadRig, **wanted: Any) -> dict[Position, float]:  # noqa: ANN401
    """Read a range; return for how long each entry was waited for, where it was at all."""
    loop, found = asyncio.get_running_loop(), dict[Position, float]()
    async with aclosing(rig.reader.read(TOPIC, **wanted)) as batches:
        began = loop.time()
        async for batch, _ in batches:
            if loop.time() > began + BATCH_S / 10:
                found[batch.first] = round(loop.time() - began, 3)
            await asyncio.sleep(BATCH_S)  # noqa: TID251 - virtual time
            began = loop.time()
    return found


@pytest.mark.parametrize(
    "segments",
    [
        pytest.param([[pieces_of(1)], [pieces_of(1, BLOCKS)], [pieces_of(1, 2 * BLOCKS)]], id="segments of a ledger"),
        pytest.param([[pieces_of(1, closed=True)], [pieces_of(2, closed=True)], [pieces_of(5)]], id="ledgers apart"),
        pytest.param([[pieces_of(1, closed=True), pieces_of(2, closed=True), pieces_of(3)]], id="ledgers of a segment"),
    ],
)
@pytest.mark.parametrize("framed", [False, True])
async def test_a_read_waits_for_the_store_at_its_begin_alone(
    monkeypatch: pytest.MonkeyPatch, segments: list[list[Piece]], *, framed: bool
) -> None:
    """For tables and first block, and until its window has grown; each byte is asked for once."""
    rig, store = await shelf(monkeypatch, *segments)
    async with rig.reader:
        found = await waits(rig, framed=framed)
        assert rig.reader.segments.pinned_bytes == 0
    assert found
    assert max(found) < Position(1, 10)
    assert len(store.gets) == len(set(store.gets))
    data = {one.keys.data for one in rig.map.segments}
    asked = [
        (key, at) for key, first, length in store.gets if key in data for at in range(first, first + (length or 0))
    ]
    assert len(asked) == len(set(asked)) > 0


async def test_what_the_caller_did_not_ask_for_is_not_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither behind the last entry, nor behind as many as are wanted."""
    for wanted in ({"last": Position(1, BLOCKS - 1)}, {"entries_max": BLOCKS}):
        rig, store = await shelf(monkeypatch, [pieces_of(1)], [pieces_of(1, BLOCKS)])
        async with rig.reader:
            await waits(rig, **wanted)
            await asyncio.sleep(1)  # noqa: TID251 - virtual time
        assert store.asked_of(rig.map.segments[0])
        assert not store.asked_of(rig.map.segments[1])


async def test_a_read_that_is_gone_on_with_finds_its_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a broker reads, ledger by ledger: the next one's first block is in the cache, and its tables."""
    rig, store = await shelf(monkeypatch, [pieces_of(1, closed=True)], [pieces_of(2)])
    async with rig.reader:
        await waits(rig, first=Position(1, 0), last=Position(1, BLOCKS - 1), onward=True)
        await asyncio.sleep(1)  # noqa: TID251 - virtual time
        assert len(store.asked_of(rig.map.segments[1])) >= 3
        assert rig.reader.segments.pinned_bytes == 0
        assert not await waits(rig, first=Position(2, 0), last=Position(2, 0))


async def test_a_caller_that_leaves_has_nothing_more_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was on its way is cancelled, and nothing stays pinned."""
    rig, store = await shelf(monkeypatch, [pieces_of(1)], [pieces_of(1, BLOCKS)])
    async with rig.reader:
        reading = rig.reader.read(TOPIC)
        while not store.asked_of(rig.map.segments[1]):
            await anext(reading)
            await turns(20)
        await reading.aclose()
        await turns(20)
        asked = store.asked_of(rig.map.segments[1])
        assert len(asked) == 2  # its tables
        await asyncio.sleep(1)  # noqa: TID251 - virtual time
        assert store.asked_of(rig.map.segments[1]) == asked
        assert rig.reader.segments.pinned_bytes == 0


async def test_a_caller_that_leaves_has_no_segment_fetched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the next one nor that behind it, whose begin is fetched as well where the next one is short."""
    short = Piece(1, BLOCKS, [b"x" * 100] * 14, None)
    rig, store = await shelf(monkeypatch, [pieces_of(1)], [short], [pieces_of(1, BLOCKS + 14)])
    store.silent = {one.keys.data: 1 for one in rig.map.segments[1:]}
    store.answers.clear()
    async with rig.reader:
        reading = rig.reader.read(TOPIC)
        for _ in range(BLOCKS + 5):
            await anext(reading)
            await asyncio.sleep(BATCH_S)  # noqa: TID251 - virtual time
        assert store.asked_of(rig.map.segments[2])
        await reading.aclose()
        assert rig.reader.segments.pinned_bytes == 0


async def test_nothing_is_fetched_on_far_from_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only once no more than another window of the segment is left."""
    long = Piece(1, 0, [b"x" * 100] * 60, None)
    rig, store = await shelf(monkeypatch, [long], [pieces_of(1, 60)])
    async with rig.reader, aclosing(rig.reader.read(TOPIC)) as reading:
        for _ in range(60 - 2 * 16):
            await anext(reading)
            await asyncio.sleep(STORE_S)  # noqa: TID251 - virtual time
        assert not store.asked_of(rig.map.segments[1])
        for _ in range(16):
            await anext(reading)
            await asyncio.sleep(STORE_S)  # noqa: TID251 - virtual time
        assert store.asked_of(rig.map.segments[1])


async def test_a_fault_in_what_is_fetched_before_is_that_of_who_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of the reader, which all reads of a process share."""
    rig, store = await shelf(monkeypatch, [pieces_of(1)], [pieces_of(1, BLOCKS)])
    store.faulty = {rig.map.segments[1].keys.data}
    async with rig.reader:
        reading = rig.reader.read(TOPIC)
        for _ in range(BLOCKS):
            await anext(reading)
            await asyncio.sleep(BATCH_S)  # noqa: TID251 - virtual time
        assert store.asked_of(rig.map.segments[1])
        with pytest.raises(RuntimeError, match="of the library"):
            await anext(reading)
        await waits(rig, last=Position(1, BLOCKS - 1))


@pytest.mark.parametrize(
    ("count", "onward", "goes_on"), [(BLOCKS, False, False), (BLOCKS - 1, True, False), (BLOCKS, True, True)]
)
async def test_only_a_read_to_its_end_that_is_gone_on_with_leaves_a_fetch_behind(
    monkeypatch: pytest.MonkeyPatch, count: int, *, onward: bool, goes_on: bool
) -> None:
    """All blocks are there, so the tables of what comes next are on their way when the caller leaves."""
    rig, store = await shelf(monkeypatch, [pieces_of(1, closed=True)], [pieces_of(2)])
    async with rig.reader:
        await waits(rig, last=Position(1, BLOCKS - 1))
        reading = rig.reader.read(TOPIC, last=Position(1, BLOCKS - 1) if onward else None, onward=onward)
        for _ in range(count):
            await anext(reading)
            await turns(20)
        await reading.aclose()
        assert len(store.asked_of(rig.map.segments[1])) == 2
        await asyncio.sleep(1)  # noqa: TID251 - virtual time
        assert (len(store.asked_of(rig.map.segments[1])) > 2) is goes_on
        assert rig.reader.segments.pinned_bytes == 0


async def test_only_what_there_is_room_for_is_fetched_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the cache, and in the read's own window; the tables have a cache of their own."""
    rig, store = await shelf(monkeypatch, [pieces_of(1)])
    (segment,) = rig.map.segments
    before: Any = SimpleNamespace(pace=ReadAhead(15 * BLOCK_BYTES), moved=Signal(), room_bytes=0, closed=False)
    async with rig.reader:
        segments = rig.reader.segments
        segments._blocks.limit_bytes = BLOCK_BYTES - 1
        fetching = asyncio.ensure_future(  # noqa: TID251 - ends here
            segments.fetch_begin(TOPIC, segment, segment.begin, segment.end, before)
        )
        asked: list[tuple[int, int | None]] = []
        for room, limit, blocks in ((0, 1 << 20, 0), (10, BLOCK_BYTES - 1, 0), (4, 1 << 20, 0), (10, 1 << 20, 10)):
            before.room_bytes, segments._blocks.limit_bytes = room * BLOCK_BYTES, limit
            before.moved.notify()
            await asyncio.sleep(1)  # noqa: TID251 - virtual time
            asked = store.asked_of(segment)
            assert sum(length or 0 for _, length in asked[2:]) == blocks * BLOCK_BYTES
        assert len(asked) == 4  # its tables, and two requests of a third of the window
        assert segments._blocks.pinned_bytes > 10 * BLOCK_BYTES
        before.closed = True
        before.moved.notify()
        await fetching
        assert segments.pinned_bytes == 0


async def test_a_read_holds_no_more_than_its_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what it goes on with, whose first block may be one more."""
    rig, store = await shelf(monkeypatch, [pieces_of(1)], [pieces_of(1, BLOCKS)])
    segments, held = rig.reader.segments, 0
    async with rig.reader, aclosing(rig.reader.read(TOPIC)) as batches:
        async for _ in batches:
            for _ in range(50):
                await asyncio.sleep(STORE_S / 10)  # noqa: TID251 - virtual time
                held = max(held, segments._blocks.pinned_bytes)
    assert store.asked_of(rig.map.segments[1])
    assert held // (BLOCK_BYTES + SLOT_BLOCK_BYTES) in {15, 16, 17}


async def test_a_read_holds_no_more_than_its_window_where_a_request_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was fetched before such a request is held by the read alone."""
    rig, store = await shelf(monkeypatch, [pieces_of(1)], [pieces_of(1, BLOCKS)])
    segments, held = rig.reader.segments, 0
    store.silent = {rig.map.segments[1].keys.data: 9 * BLOCK_BYTES}
    store.answers.clear()
    async with rig.reader:
        reading = rig.reader.read(TOPIC)
        for _ in range(BLOCKS + 9):
            await anext(reading)
            await asyncio.sleep(BATCH_S)  # noqa: TID251 - virtual time
            held = max(held, segments._blocks.pinned_bytes)
        await reading.aclose()
    assert held // (BLOCK_BYTES + SLOT_BLOCK_BYTES) in {15, 16, 17}


async def test_what_is_missing_there_is_told_where_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not before: all entries that come first are given."""
    rig, _ = await shelf(monkeypatch, [pieces_of(1)], [pieces_of(1, BLOCKS)])
    await rig.store.delete([rig.map.segments[1].keys.manifest])
    async with rig.reader, aclosing(rig.reader.read(TOPIC)) as reading:
        for entry_id in range(BLOCKS):
            batch, _ = await anext(reading)
            assert batch.first == batch.last == Position(1, entry_id)
            await asyncio.sleep(BATCH_S)  # noqa: TID251 - virtual time
        with pytest.raises(EntriesMissing):
            await anext(reading)


async def test_no_more_is_fetched_than_the_entries_that_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are behind them."""
    rig, store = await shelf(monkeypatch, [pieces_of(1)], [pieces_of(1, BLOCKS)])
    async with rig.reader:
        await waits(rig, entries_max=BLOCKS + 1)
        await asyncio.sleep(1)  # noqa: TID251 - virtual time
    assert sum(length or 0 for first, length in store.asked_of(rig.map.segments[1])[2:]) == BLOCK_BYTES


async def test_a_few_entries_of_the_next_segment_are_read_by_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As they are without being fetched before: not by their whole block."""
    rig, store = await shelf(monkeypatch, [pieces_of(1)])
    payloads = [b"x" * 20] * 90
    rig.map.segments.append(
        await put_segment(
            rig.store, [Piece(1, BLOCKS, payloads)], segment_id=uuid.UUID(int=2), block_entries=90, chunk_bytes=512
        )
    )
    async with rig.reader:
        await waits(rig, last=Position(1, BLOCKS))
    assert 0 < sum(length or 0 for first, length in store.asked_of(rig.map.segments[1])[2:]) <= 2 * 512


async def test_a_reader_that_is_closed_leaves_no_block_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor where what follows was to be fetched next."""
    many = 3 * BLOCKS
    rig, store = await shelf(monkeypatch, [Piece(1, 0, [b"x" * 100] * many, None)], [pieces_of(1, many)])
    segments = rig.reader.segments
    async with rig.reader:
        await waits(rig, last=Position(1, many - 1))
        reading = rig.reader.read(TOPIC)
        await anext(reading)
    with pytest.raises(Closed):
        async for _ in reading:
            pass
    assert not store.asked_of(rig.map.segments[1])
    assert segments.pinned_bytes == 0


async def test_a_reader_comes_to_what_another_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """One leaves while its requests are under way, one waits for a block of them: a third gets all that it wants."""
    rig, store = await shelf(monkeypatch, [pieces_of(1)])
    store.silent = {rig.map.segments[0].keys.data: 6 * BLOCK_BYTES}
    store.answers.clear()

    async def read(first: int, last: int | None = None) -> list[Position]:
        end = Position(1, last) if last is not None else None
        async with aclosing(rig.reader.read(TOPIC, first=Position(1, first), last=end)) as batches:
            return [batch.first async for batch, _ in batches]

    async with rig.reader, asyncio.TaskGroup() as group:
        leaves = group.create_task(read(0))
        await asyncio.sleep(2)  # noqa: TID251 - virtual time
        stays = group.create_task(read(8, 8))
        await asyncio.sleep(1)  # noqa: TID251 - as above
        leaves.cancel()
        await turns(5)
        comes = group.create_task(read(6))
        await asyncio.sleep(1)  # noqa: TID251 - as above
        store.answers.set()
        assert await stays == [Position(1, 8)]
        assert await comes == [Position(1, at) for at in range(6, BLOCKS)]
        assert rig.reader.segments.pinned_bytes == 0
