"""Reading one segment: what is fetched, what is checked, what each kind of damage gives."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

import google_crc32c
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from offloaderd.core.errors import BucketMissing, CorruptData, NotFound, OffloaderError, Transient
from offloaderd.core.limits import FLOW, Flow
from offloaderd.core.model import Position, TopicName
from offloaderd.format import manifest_bytes, v2
from offloaderd.objects import keys
from offloaderd.objects.checks import cut
from offloaderd.read import cache
from offloaderd.read import segments as segment_module
from offloaderd.read.cache import ReadAhead
from offloaderd.read.tables import table_of
from tests.unit.read.build import (
    PREFIX,
    TOPIC,
    Piece,
    flat,
    make_read_rig,
    payload,
    payloads,
    put_segment,
    sample,
    turns,
)
from tests.unit.read.shelf import Broken
from tests.virtual import virtually

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.core.model import EntryBatch
    from offloaderd.metadata.committed import CommittedSegment
    from offloaderd.read.segments import SegmentReader
    from tests.unit.read.build import ReadRig

ID = uuid.UUID(int=7)
KEYS = {
    "data": keys.SegmentKeys(PREFIX, ID).data,
    "index": keys.SegmentKeys(PREFIX, ID).index,
    "manifest": keys.SegmentKeys(PREFIX, ID).manifest,
}
PIECES = [Piece(4, 5, payloads(4, 5, 15), 16), Piece(6, 0, payloads(6, 0, 9))]
WHOLE = (Position(4, 5), Position(6, 9))


class Counting:
    """A reader of objects that remembers what was asked, and can wait or stumble."""

    def __init__(self, rig: ReadRig) -> None:
        self.store = rig.store
        self.gets: list[tuple[str, int, int | None]] = []
        self.stumbles = 0
        self.gate: asyncio.Event | None = None

    def at(self, bucket: str) -> Counting:
        """See ObjectReader."""
        return self

    async def get(self, key: str, first: int = 0, length: int | None = None) -> bytes:
        """Pass on, after the gate."""
        self.gets.append((key, first, length))
        if self.gate is not None:
            await self.gate.wait()
        if self.stumbles:
            self.stumbles -= 1
            raise Transient("the store stumbles")
        return await self.store.get(key, first, length)

    async def get_pieces(self, key: str, first: int, lengths: Sequence[int]) -> Sequence[bytes]:
        """See ObjectReader."""
        return cut(await self.get(key, first, sum(lengths)), lengths)

    def ranges(self) -> list[tuple[int, int | None]]:
        """Return the ranges of the data object that were asked."""
        return [(first, length) for key, first, length in self.gets if key == KEYS["data"]]


def counted(rig: ReadRig) -> Counting:
    """Put a Counting between the reader and its store."""
    counting = Counting(rig)
    rig.reader.segments.fetcher.reader._objects = counting  # type: ignore[assignment]
    return counting


async def read(
    reader: SegmentReader, segment: CommittedSegment, first: Position, last: Position, pace: ReadAhead | None = None
) -> list[tuple[int, int, bytes]]:
    """Return all entries of a range."""
    async with aclosing(reader.read(TOPIC, segment, first, last, pace)) as batches:
        return flat([batch async for batch in batches])


def entries(first: Position, last: Position) -> list[tuple[int, int, bytes]]:
    """Return what a range of the test's segment holds."""
    ids = [(4, entry) for entry in range(5, 16)] + [(6, entry) for entry in range(10)]
    return [(*one, payload(*one)) for one in ids if first <= one <= last]


@pytest.mark.parametrize("preamble", [False, True])
@pytest.mark.parametrize("block_entries", [1, 3, 100])
async def test_every_range_is_read_exactly(block_entries: int, *, preamble: bool) -> None:
    """Any range inside a segment over two ledgers gives its entries, with any size of blocks."""
    rig = make_read_rig()
    segment = await put_segment(rig.store, PIECES, segment_id=ID, block_entries=block_entries, preamble=preamble)
    everything = [Position(ledger, entry) for ledger, entry, _ in entries(*WHOLE)]
    async with rig.reader:
        for at, first in enumerate(everything):
            for last in everything[at::3]:
                assert await read(rig.reader.segments, segment, first, last) == entries(first, last)
        assert rig.reader.segments.pinned_bytes == 0


async def test_tables_are_fetched_once_for_all_readers() -> None:
    """Ten readers at once cost one index, one manifest and each block once."""
    rig = make_read_rig()
    segment = await put_segment(rig.store, PIECES, segment_id=ID)
    counting = counted(rig)
    async with rig.reader:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(read(rig.reader.segments, segment, *WHOLE)) for _ in range(10)]
        assert all(task.result() == entries(*WHOLE) for task in tasks)
    asked = [key for key, _, _ in counting.gets]
    assert asked.count(KEYS["index"]) == asked.count(KEYS["manifest"]) == 1
    size = (await rig.store.head(KEYS["data"])).size_bytes
    assert sum(length or 0 for _, length in counting.ranges()) == size


async def test_one_entry_costs_one_block_and_a_long_read_few_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single entry fetches its block only; a sequential read grows its requests up to a third of the read-ahead."""
    monkeypatch.setattr(cache, "WINDOW_BYTES_MIN", 64)
    rig = make_read_rig(read_ahead_bytes=4096)
    segment = await put_segment(
        rig.store, [Piece(1, 0, [b"x" * 100] * 200)], segment_id=ID, block_entries=1
    )  # blocks of 244 bytes
    counting = counted(rig)
    async with rig.reader:
        assert len(await read(rig.reader.segments, segment, Position(1, 50), Position(1, 50))) == 1
        assert counting.ranges() == [(50 * 244, 244)]
        counting.gets.clear()
        rig.reader.segments._blocks.limit_bytes = 1 << 20
        assert len(await read(rig.reader.segments, segment, Position(1, 60), Position(1, 199), ReadAhead(64))) == 140
        sizes = [length or 0 for _, length in counting.ranges()]
        assert sizes[0] == 244
        assert max(sizes) == 4096 // 3 // 244 * 244
        assert len(sizes) < 40
    assert 0 < sample(rig.metrics, "offloaderd_prefetch_bytes_total") < 140 * 244


async def test_a_sequential_read_keeps_its_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes next of a long read begins with one block and goes on with large requests at once."""
    monkeypatch.setattr(cache, "WINDOW_BYTES_MIN", 64)
    rig = make_read_rig(read_ahead_bytes=4096)
    segment = await put_segment(rig.store, [Piece(1, 0, [b"x" * 100] * 200)], segment_id=ID, block_entries=1)
    counting = counted(rig)
    pace = ReadAhead(64)
    async with rig.reader:
        rig.reader.segments._blocks.limit_bytes = 1 << 20
        for first, last in ((0, 99), (100, 199)):
            counting.gets.clear()
            read_ = rig.reader.segments.read(TOPIC, segment, Position(1, first), Position(1, last), pace)
            assert sum([len(batch.payloads) async for batch in read_]) == 100
    assert [length for _, length in counting.ranges()][:2] == [244, 4096 // 3 // 244 * 244]


async def test_two_requests_are_under_way_while_blocks_are_yielded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One alone does not keep a store busy: the next is asked for before the one before has been used up."""
    monkeypatch.setattr(cache, "WINDOW_BYTES_MIN", 64)
    rig = make_read_rig(read_ahead_bytes=6 * 244, cache_bytes=1 << 20)
    segment = await put_segment(rig.store, [Piece(1, 0, [b"x" * 100] * 60)], segment_id=ID, block_entries=1)
    counting = counted(rig)
    asked: list[int] = []
    async with rig.reader:
        reading = rig.reader.segments.read(TOPIC, segment, Position(1, 0), Position(1, 59), ReadAhead(64))
        async with aclosing(reading) as batches:
            async for batch in batches:
                await turns(20)
                end = max(first + (length or 0) for first, length in counting.ranges()) // 244
                asked.append(end - batch.last_entry_id - 1)
    assert set(asked[20:40]) == {4, 5}


async def test_a_reader_that_pauses_fetches_no_more_than_its_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is fetched for a reader that stops in the middle is bounded, and freed when it goes away."""
    monkeypatch.setattr(cache, "WINDOW_BYTES_MIN", 64)
    rig = make_read_rig(read_ahead_bytes=4096)
    segment = await put_segment(rig.store, [Piece(1, 0, [b"x" * 100] * 400)], segment_id=ID, block_entries=1)
    counting = counted(rig)
    segments = rig.reader.segments
    async with rig.reader:
        batches = segments.read(TOPIC, segment, Position(1, 0), Position(1, 399), ReadAhead(64))
        for _ in range(100):
            await anext(batches)
        await turns(50)
        fetched = sum(length or 0 for _, length in counting.ranges())
        assert fetched <= 100 * 244 + 4096 + 244
        assert 0 < segments._blocks.pinned_bytes <= (4096 + 244) // 244 * (244 + segment_module.SLOT_BLOCK_BYTES)
        await batches.aclose()
        assert segments.pinned_bytes == 0


async def test_readers_share_the_room_for_what_is_fetched_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who began first has no more of the cache than those that came later, and gets it back when they go."""
    monkeypatch.setattr(cache, "WINDOW_BYTES_MIN", 64)
    cost = 20_144 + segment_module.SLOT_BLOCK_BYTES
    rig = make_read_rig(cache_bytes=33 * cost, read_ahead_bytes=24 * cost)
    ids = [uuid.UUID(int=number) for number in range(1, 5)]
    stored = [
        await put_segment(rig.store, [Piece(1, 0, [bytes(20_000)] * 200)], segment_id=one, block_entries=1)
        for one in ids
    ]
    segments = rig.reader.segments

    def held(segment_id: uuid.UUID) -> int:
        """Return how many blocks of a segment its reader has pinned."""
        return sum(key[0] == segment_id and slot.pins > 0 for key, slot in segments._blocks._slots.items())  # type: ignore[index]

    async with rig.reader:
        reads = [segments.read_framed(TOPIC, one, Position(1, 0), Position(1, 199), ReadAhead(64)) for one in stored]
        for _ in range(60):
            await anext(reads[0])
            await turns(3)
        assert held(ids[0]) > 12
        for _ in range(60):
            for one in reads:
                await anext(one)
            await turns(3)
        assert segments.read_ahead_bytes == 33 * cost // 4
        assert all(5 <= held(one) <= 9 for one in ids), [held(one) for one in ids]
        for one in reads[1:]:
            await one.aclose()
        assert segments.read_ahead_bytes == 24 * cost
        await reads[0].aclose()
        assert segments.pinned_bytes == 0


async def test_namespaces_that_read_no_more_have_no_share_of_the_room() -> None:
    """Else each that ever read would make all others slower, up to a restart."""
    rig = make_read_rig(cache_bytes=40_000, read_ahead_bytes=30_000)
    segment = await put_segment(rig.store, [Piece(1, 0, [bytes(100)] * 20)], segment_id=ID, block_entries=1)
    segments = rig.reader.segments
    async with rig.reader:
        for _ in range(2):
            token = FLOW.set(Flow())
            reading = segments.read_framed(TOPIC, segment, Position(1, 0), Position(1, 19))
            await anext(reading)
            FLOW.reset(token)
            assert segments.read_ahead_bytes == 30_000, "one alone has all of it"
            other = segments.read_framed(TOPIC, segment, Position(1, 0), Position(1, 19))
            await anext(other)
            assert segments.read_ahead_bytes == 20_000
            await other.aclose()
            await reading.aclose()


async def test_a_small_budget_slows_reading_ahead_but_not_reading() -> None:
    """With room for hardly one block everything is still read, and memory stays at the budget plus what is held."""
    rig = make_read_rig(cache_bytes=200, read_ahead_bytes=4096)
    segment = await put_segment(rig.store, [Piece(1, 0, [b"x" * 100] * 50)], segment_id=ID, block_entries=1)
    async with rig.reader as reader:
        used: list[int] = []
        async with aclosing(reader.segments.read(TOPIC, segment, Position(1, 0), Position(1, 49))) as batches:
            async for batch in batches:
                assert batch.payloads == [b"x" * 100]
                used.append(reader.segments._blocks.used_bytes)
        assert len(used) == 50
        assert max(used) <= 2 * (244 + segment_module.SLOT_BLOCK_BYTES)


@pytest.mark.parametrize("what", ["data", "index", "manifest"])
async def test_a_deleted_object_is_not_found(what: str) -> None:
    """Whichever object is gone, the error names it."""
    rig = make_read_rig()
    segment = await put_segment(rig.store, PIECES, segment_id=ID)
    await rig.store.delete([KEYS[what]])
    async with rig.reader:
        with pytest.raises(NotFound, match=KEYS[what]):
            await read(rig.reader.segments, segment, *WHOLE)
        assert rig.reader.segments.pinned_bytes == 0


@given(what=st.sampled_from(["data", "index", "manifest"]), at=st.integers(0, 10**6), bit=st.integers(0, 7))
@example("data", 160, 0)  # inside an entry: only the checksum tells
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_flipped_bit_is_found(what: str, at: int, bit: int) -> None:
    """A flipped bit anywhere in any object gives CorruptData with that key; what came before it is right."""

    async def run() -> None:
        rig = make_read_rig()
        segment = await put_segment(rig.store, PIECES, segment_id=ID)
        stored = bytearray(await rig.store.get(KEYS[what]))
        stored[at % len(stored)] ^= 1 << bit
        await rig.store.put(KEYS[what], bytes(stored))
        await expect_damage(rig, segment, KEYS[what])

    virtually(run())


@pytest.mark.parametrize("what", ["index", "manifest"])
async def test_no_flipped_bit_of_a_table_passes(what: str) -> None:
    """Every single bit of index and manifest counts, also of what a reader of ours has no use for."""
    rig = make_read_rig()
    segment = await put_segment(rig.store, PIECES, segment_id=ID)
    tables = {name: await rig.store.get(KEYS[name]) for name in ("index", "manifest")}
    for bit in range(8 * len(tables[what])):
        flipped = bytearray(tables[what])
        flipped[bit // 8] ^= 1 << bit % 8
        given_ = {**tables, what: bytes(flipped)}
        with pytest.raises(CorruptData) as caught:
            table_of(TOPIC, segment, given_["index"], given_["manifest"])
        assert caught.value.key == KEYS[what]


@given(what=st.sampled_from(["data", "index", "manifest"]), at=st.integers(0, 10**6), longer=st.booleans())
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_other_length_is_found(what: str, at: int, *, longer: bool) -> None:
    """An object that was cut anywhere, or a table that grew, gives CorruptData with that key."""

    async def run() -> None:
        rig = make_read_rig()
        segment = await put_segment(rig.store, PIECES, segment_id=ID)
        stored = await rig.store.get(KEYS[what])
        changed = stored + b"\0" if longer and what != "data" else stored[: at % len(stored)]
        await rig.store.put(KEYS[what], changed)
        await expect_damage(rig, segment, KEYS[what])

    virtually(run())


async def expect_damage(rig: ReadRig, segment: CommittedSegment, key: str) -> None:
    """Read everything: right entries, then CorruptData that names the key and is counted."""
    found: list[EntryBatch] = []

    async def collect() -> None:
        async with aclosing(rig.reader.segments.read(TOPIC, segment, *WHOLE)) as batches:
            async for batch in batches:
                found.append(batch)  # noqa: PERF401 - what came before an error counts

    async with rig.reader as reader:
        with pytest.raises(CorruptData) as caught:
            await collect()
        assert reader.segments.pinned_bytes == 0
    assert caught.value.key == key
    size = (await rig.store.head(key)).size_bytes
    assert 0 <= caught.value.offset <= size
    assert flat(found) == entries(*WHOLE)[: len(flat(found))]
    assert sample(rig.metrics, "offloaderd_checksum_failures_total", {"where": "read"}) >= 1


async def test_objects_of_another_segment_are_refused() -> None:
    """A right object at the wrong key (another segment, another topic, other entries) is corrupt, not read."""
    rig = make_read_rig()
    segment = await put_segment(rig.store, PIECES, segment_id=ID)
    other_id = uuid.UUID(int=8)
    await put_segment(rig.store, PIECES, segment_id=other_id)
    swapped = await rig.store.get(keys.SegmentKeys(PREFIX, other_id).manifest)
    own = await rig.store.get(KEYS["manifest"])
    async with rig.reader:
        await rig.store.put(KEYS["manifest"], swapped)
        with pytest.raises(CorruptData, match=str(ID)):
            await read(rig.reader.segments, segment, *WHOLE)
        await put_segment(rig.store, PIECES, segment_id=ID, topic=TopicName("a", "b", "c"))
        with pytest.raises(CorruptData, match="orders"):
            await read(rig.reader.segments, segment, *WHOLE)
        await put_segment(rig.store, [Piece(4, 5, payloads(4, 5, 14)), PIECES[1]], segment_id=ID)
        with pytest.raises(CorruptData, match="4:5"):
            await read(rig.reader.segments, segment, *WHOLE)
        await rig.store.put(KEYS["manifest"], own)
        with pytest.raises(CorruptData, match="index"):
            await read(rig.reader.segments, segment, *WHOLE)


async def test_an_index_that_lists_other_blocks_is_refused() -> None:
    """Index and manifest may each be sound and still not belong together: then neither is believed."""
    rig = make_read_rig()
    segment = await put_segment(rig.store, PIECES, segment_id=ID)
    manifest = manifest_bytes.decode(await rig.store.get(KEYS["manifest"]), key="")
    index = v2.decode_index(await rig.store.get(KEYS["index"]), key="")
    group = index.groups[0]
    moved = group.entries[1]._replace(first_entry_id=group.entries[1].first_entry_id + 1)
    entries_ = (group.entries[0], moved, *group.entries[2:])
    groups = (v2.LedgerIndex(group.ledger_id, group.metadata, entries_), *index.groups[1:])
    other = v2.encode_index(index.data_bytes, groups)
    await rig.store.put(KEYS["index"], other)
    told = replace(manifest, index_bytes=len(other), index_crc32c=google_crc32c.value(other))
    await rig.store.put(KEYS["manifest"], manifest_bytes.encode(told))
    async with rig.reader:
        with pytest.raises(CorruptData, match="blocks of the manifest"):
            await read(rig.reader.segments, segment, *WHOLE)


async def test_a_cut_object_is_reported_where_it_ends() -> None:
    """The offset of the error is the first byte that is missing."""
    rig = make_read_rig()
    segment = await put_segment(rig.store, PIECES, segment_id=ID)
    stored = await rig.store.get(KEYS["data"])
    async with rig.reader:
        for end in (len(stored) - 1, 200, 0):
            await rig.store.put(KEYS["data"], stored[:end])
            with pytest.raises(CorruptData) as caught:
                await read(rig.reader.segments, segment, *WHOLE)
            assert (caught.value.key, caught.value.offset) == (KEYS["data"], end)


async def test_a_store_that_stumbles_is_tried_again() -> None:
    """Transient errors are retried with growing pauses, each request on its own; no reader notices."""
    rig = make_read_rig()
    segment = await put_segment(rig.store, PIECES, segment_id=ID, block_entries=100)
    counting = counted(rig)
    async with rig.reader:
        async with rig.reader.segments.table(TOPIC, segment):
            pass
        counting.stumbles = 2
        assert await read(rig.reader.segments, segment, Position(4, 5), Position(4, 6)) == entries(
            Position(4, 5), Position(4, 6)
        )
    assert rig.clock.pauses == [0.1, 0.2]


@pytest.mark.parametrize("error", [Transient("down"), BucketMissing("no bucket")])
async def test_a_store_that_never_works_gives_its_error(error: OffloaderError) -> None:
    """Retries are bounded, and what cannot pass is not retried at all."""
    broken = Broken(error)
    rig = make_read_rig(objects=broken)  # type: ignore[arg-type]
    segment = await put_segment(rig.store, PIECES, segment_id=ID)
    async with rig.reader:
        with pytest.raises(type(error)):
            await read(rig.reader.segments, segment, *WHOLE)
    assert broken.calls <= (6 if isinstance(error, Transient) else 2)


async def test_a_reader_that_joined_outlives_the_one_that_began() -> None:
    """When the reader that began a request goes away, another one that waits for the same block still gets it."""
    rig = make_read_rig()
    segment = await put_segment(rig.store, PIECES, segment_id=ID, block_entries=100)
    counting = counted(rig)
    async with rig.reader:
        async with rig.reader.segments.table(TOPIC, segment):
            pass
        counting.gate = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            first = group.create_task(read(rig.reader.segments, segment, Position(4, 5), Position(4, 6)))
            await turns(2)
            second = group.create_task(read(rig.reader.segments, segment, Position(4, 7), Position(4, 8)))
            await turns(5)
            first.cancel()
            await turns(5)
            counting.gate.set()
        assert second.result() == entries(Position(4, 7), Position(4, 8))
    assert len(counting.ranges()) == 1


async def test_decoding_lets_the_loop_go_between_blocks() -> None:
    """While one large request is decoded, other tasks get a turn for every block."""
    rig = make_read_rig(cache_bytes=1 << 24)
    segment = await put_segment(rig.store, [Piece(1, 0, [b"x" * 50] * 300)], segment_id=ID, block_entries=1)
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await turns()

    async with rig.reader, asyncio.TaskGroup() as group:
        ticking = group.create_task(tick())
        assert len(await read(rig.reader.segments, segment, Position(1, 0), Position(1, 299))) == 300
        ticking.cancel()
    assert ticks >= 300
