"""Reading a few entries by chunks: what is fetched, what is kept, what damage gives, and when whole blocks are read."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offloaderd.core.errors import CorruptData, NotFound
from offloaderd.core.model import Position
from offloaderd.core.read_options import Goal, ReadPriority, SeekKind
from offloaderd.format.manifest_bytes import CHUNKS_BYTES
from offloaderd.read.seek import seek
from offloaderd.read.tables import table_of
from tests.unit.read.build import TOPIC, Piece, flat, make_read_rig, put_segment, sample
from tests.unit.read.shelf import Shelf
from tests.unit.read.test_segment import KEYS, PIECES, WHOLE, counted, entries, read
from tests.virtual import virtually

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.core.read_options import Tier
    from offloaderd.metadata.committed import CommittedSegment
    from tests.unit.read.build import ReadRig
    from tests.unit.read.test_segment import Counting

ID = uuid.UUID(int=7)
CHUNK = 1000
PAYLOADS = [bytes([number % 251]) * 88 for number in range(300)]
"""Ten entries a chunk: a block of 100 is 11 chunks long, its header included."""


def at(entry: int) -> Position:
    """Return the position of an entry of the one ledger."""
    return Position(3, entry)


async def stored(rig: ReadRig, payloads: Sequence[bytes] = PAYLOADS, **options: Any) -> CommittedSegment:  # noqa: ANN401
    """Store one ledger in blocks of 100 entries."""
    piece = Piece(3, 0, payloads, len(payloads))
    return await put_segment(rig.store, [piece], segment_id=ID, block_entries=100, **{"chunk_bytes": CHUNK, **options})


async def opened(rig: ReadRig, segment: CommittedSegment) -> Counting:
    """Have the tables in memory; returns what counts requests from then on."""
    async with rig.reader.segments.table(TOPIC, segment):
        return counted(rig)


async def one(rig: ReadRig, segment: CommittedSegment, first: int, last: int | None = None) -> list[bytes]:
    """Read some entries."""
    last = first if last is None else last
    found = await read(rig.reader.segments, segment, at(first), at(last))
    assert [entry for _, entry, _ in found] == list(range(first, last + 1))
    assert rig.reader.segments.pinned_bytes == 0
    return [payload for _, _, payload in found]


@pytest.mark.parametrize("chunk_bytes", [1, 20, 64, 200])
@pytest.mark.parametrize("preamble", [False, True])
async def test_every_range_is_read_exactly(chunk_bytes: int, *, preamble: bool) -> None:
    """Any range of a segment over two ledgers, each time with an empty cache."""
    for first_at in range(21):
        rig = make_read_rig(cache_bytes=0)
        segment = await put_segment(
            rig.store, PIECES, segment_id=ID, block_entries=100, preamble=preamble, chunk_bytes=chunk_bytes
        )
        everything = [Position(ledger, entry) for ledger, entry, _ in entries(*WHOLE)]
        async with rig.reader:
            for last in everything[first_at:]:
                first = everything[first_at]
                assert await read(rig.reader.segments, segment, first, last) == entries(first, last)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    sizes=st.lists(
        st.one_of(st.integers(0, 50), st.integers(900, 1100), st.integers(0, 9000)), min_size=1, max_size=80
    ),
    ranges=st.lists(st.tuples(st.integers(0, 79), st.integers(0, 4)), max_size=12),
    block=st.sampled_from([7, 30, 100]),
    cache_bytes=st.sampled_from([0, 3000, 20_000, 1 << 20]),
)
def test_any_reads_in_any_order_are_what_blocks_would_give(
    sizes: list[int], ranges: list[tuple[int, int]], block: int, cache_bytes: int
) -> None:
    """Whatever is in the cache of what went before: chunks, blocks, or nothing."""
    payloads = [bytes([number % 251]) * size for number, size in enumerate(sizes)]

    async def run() -> None:
        rig = make_read_rig(cache_bytes=cache_bytes)
        segment = await put_segment(
            rig.store, [Piece(3, 0, payloads)], segment_id=ID, block_entries=block, chunk_bytes=CHUNK
        )
        async with rig.reader:
            for first, more in ranges:
                low, high = first % len(payloads), min(first % len(payloads) + more, len(payloads) - 1)
                assert await one(rig, segment, low, high) == payloads[low : high + 1]

    virtually(run())


async def test_one_entry_takes_one_request_for_its_chunk() -> None:
    """No more bytes than the one or two chunks that it lies in; once they are there, none."""
    rig = make_read_rig()
    segment = await stored(rig)
    async with rig.reader:
        counting = await opened(rig, segment)
        assert await one(rig, segment, 50) == PAYLOADS[50:51]
        assert counting.ranges() == [(5000, 1000)]
        assert await one(rig, segment, 50) == PAYLOADS[50:51]
        assert await one(rig, segment, 52, 54) == PAYLOADS[52:55]
        assert await one(rig, segment, 148) == PAYLOADS[148:149]  # 9928 + 132 + 48 * 100 is in two chunks
        block = 100 * 100 + 132
        assert counting.ranges() == [(5000, 1000), (block + 4000, 2000)]
        assert await one(rig, segment, 148) == PAYLOADS[148:149]
        assert len(counting.ranges()) == 2
        assert rig.reader.segments.used_bytes < 3 * CHUNK + 10_000
    assert sample(rig.metrics, "offloaderd_prefetch_bytes_total") == 0


async def test_a_chunk_that_was_damaged_on_its_way_is_read_once_more() -> None:
    """It alone, and nobody hears of it; one that is damaged again is damaged."""
    rig = make_read_rig()
    segment = await stored(rig)
    sound, left = rig.store.get, 1

    async def get(key: str, first: int = 0, length: int | None = None) -> bytes:
        nonlocal left
        data = await sound(key, first, length)
        if key == KEYS["data"] and left:
            left -= 1
            return data[:-1] + bytes([data[-1] ^ 1])
        return data

    async with rig.reader:
        counting = await opened(rig, segment)
        rig.store.get = get  # type: ignore[method-assign]
        assert await one(rig, segment, 148) == PAYLOADS[148:149]
        block = 100 * 100 + 132
        assert counting.ranges() == [(block + 4000, 2000), (block + 5000, 1000)]
        left = 2
        with pytest.raises(CorruptData):
            await one(rig, segment, 20)
        assert left == 0
    assert sample(rig.metrics, "offloaderd_checksum_failures_total", {"where": "read"}) == 1


async def test_who_comes_back_for_more_of_a_block_gets_all_of_it() -> None:
    """The second chunk is not asked for, but the block; and behind a block that is there the next one."""
    rig = make_read_rig()
    segment = await stored(rig)
    block = 100 * 100 + 132
    async with rig.reader:
        counting = await opened(rig, segment)
        for entry in range(200):
            assert await one(rig, segment, entry) == PAYLOADS[entry : entry + 1]
        assert counting.ranges() == [(0, 1000), (0, block), (block, block)]


async def test_chunks_that_are_there_are_used_whatever_has_come_since() -> None:
    """Not when the block before them was read, either."""
    rig = make_read_rig()
    segment = await stored(rig)
    async with rig.reader:
        counting = await opened(rig, segment)
        assert await one(rig, segment, 150) == PAYLOADS[150:151]
        assert await one(rig, segment, 0, 99) == PAYLOADS[:100]
        asked = len(counting.ranges())
        assert await one(rig, segment, 150) == PAYLOADS[150:151]
        assert len(counting.ranges()) == asked


@pytest.mark.parametrize(("count", "blocks"), [(50, 1), (100, 2), (150, 2)])
async def test_who_wants_much_of_a_block_gets_all_of_it(count: int, blocks: int) -> None:
    """Half of it or more, or something of the next one too."""
    rig = make_read_rig()
    segment = await stored(rig)
    async with rig.reader:
        counting = await opened(rig, segment)
        assert await one(rig, segment, 10, 9 + count) == PAYLOADS[10 : 10 + count]
        assert counting.ranges() == [(0, blocks * (100 * 100 + 132))]


@pytest.mark.parametrize("chunk_bytes", [0, 20_000])
async def test_blocks_without_chunks_are_read_whole(chunk_bytes: int) -> None:
    """Those of older manifests, those that another process had stored, and small ones."""
    rig = make_read_rig()
    segment = await stored(rig, chunk_bytes=chunk_bytes)
    async with rig.reader:
        counting = await opened(rig, segment)
        assert await one(rig, segment, 50) == PAYLOADS[50:51]
        assert counting.ranges() == [(0, 100 * 100 + 132)]


async def test_several_who_want_one_entry_fetch_it_once() -> None:
    """Who comes while it is on its way waits for it; who wants another part of the block then gets all of it."""
    rig = make_read_rig()
    segment = await stored(rig)
    async with rig.reader:
        counting = await opened(rig, segment)
        async with asyncio.TaskGroup() as group:
            for entry in (50, 50, 51, 20):
                group.create_task(read(rig.reader.segments, segment, at(entry), at(entry)))
        assert counting.ranges() == [(5000, 1000), (0, 100 * 100 + 132)]
        assert rig.reader.segments.pinned_bytes == 0


async def test_a_read_that_is_given_up_leaves_nothing() -> None:
    """Nobody waits any more for its chunk: the request is cancelled, and the next one asks again."""
    rig = make_read_rig()
    segment = await stored(rig)
    async with rig.reader:
        counting = await opened(rig, segment)
        counting.gate = asyncio.Event()
        task = asyncio.ensure_future(read(rig.reader.segments, segment, at(50), at(50)))  # noqa: TID251
        while not counting.ranges():
            await asyncio.sleep(0)  # noqa: TID251 - gives up the turn, measures no time
        task.cancel()
        await asyncio.wait([task])
        counting.gate = None
        assert await one(rig, segment, 50) == PAYLOADS[50:51]
        assert counting.ranges() == [(5000, 1000)] * 2


async def test_chunks_keep_within_the_cache() -> None:
    """One budget for chunks and blocks; what was not wanted for long goes first."""
    rig = make_read_rig(cache_bytes=3000)
    segment = await stored(rig)
    async with rig.reader:
        counting = await opened(rig, segment)
        for entry in (50, 150, 250, 50):
            await one(rig, segment, entry)
            assert rig.reader.segments._blocks.used_bytes <= 3000
        assert len(counting.ranges()) == 4


async def test_a_damaged_chunk_is_named_and_the_others_are_read() -> None:
    """Key and byte of the chunk; damage elsewhere in the block is no matter for what can be checked."""
    rig = make_read_rig(cache_bytes=0)
    segment = await stored(rig)
    data = bytearray(await rig.store.get(KEYS["data"]))
    data[5500] ^= 1
    await rig.store.put(KEYS["data"], bytes(data))
    async with rig.reader:
        for entry in (49, 50, 54, 57):  # entry 48 begins at 4928 and reaches into the damaged chunk
            with pytest.raises(CorruptData, match="a chunk of 1000 bytes") as caught:
                await one(rig, segment, entry)
            assert (caught.value.key, caught.value.offset) == (KEYS["data"], 5000)
            assert await one(rig, segment, 20) == PAYLOADS[20:21]
        with pytest.raises(CorruptData, match="a block with checksum"):
            await one(rig, segment, 0, 99)
    assert sample(rig.metrics, "offloaderd_checksum_failures_total", {"where": "read"}) == 5


async def test_an_object_that_ends_too_early_or_is_gone() -> None:
    """As for whole blocks: corrupt where it ends, not found when it is not there."""
    rig = make_read_rig(cache_bytes=0)
    segment = await stored(rig)
    data = await rig.store.get(KEYS["data"])
    async with rig.reader:
        await rig.store.put(KEYS["data"], data[:5500])
        with pytest.raises(CorruptData, match="ends at byte 5500"):
            await one(rig, segment, 50)
        await rig.store.delete([KEYS["data"]])
        with pytest.raises(NotFound):
            await one(rig, segment, 50)


@pytest.mark.parametrize("framed", [False, True])
async def test_a_damaged_chunk_has_the_other_tier_asked(*, framed: bool) -> None:
    """The entry comes from the ledger source, as for a damaged block."""
    shelf = Shelf()
    shelf.put(3, PAYLOADS)
    rig = make_read_rig(source=shelf)
    rig.map.segments = [await stored(rig)]
    data = bytearray(await rig.store.get(KEYS["data"]))
    data[5500] ^= 1
    await rig.store.put(KEYS["data"], bytes(data))
    async with rig.reader:
        batches, tiers = await through(rig, first=at(52), entries_max=3, framed=framed)
    assert batches == [(3, entry, PAYLOADS[entry]) for entry in (52, 53, 54)]
    assert {str(tier) for tier in tiers} == {"source"}


async def through(rig: ReadRig, **wanted: Any) -> tuple[list[tuple[int, int, bytes]], list[Tier]]:  # noqa: ANN401
    """Read through all tiers, the bucket first."""
    priority = ReadPriority.TIERED_STORAGE_FIRST
    async with aclosing(rig.reader.read(TOPIC, priority=priority, **wanted)) as found:
        pairs = [pair async for pair in found]
    batches = [batch.decoded() if hasattr(batch, "decoded") else batch for batch, _ in pairs]
    return flat(batches), [tier for _, tier in pairs]


@pytest.mark.parametrize("framed", [False, True])
async def test_a_limit_of_entries_is_a_small_range(*, framed: bool) -> None:
    """One entry from a position on, with no end said: no more is fetched than for that entry."""
    rig = make_read_rig()
    rig.map.segments = [await stored(rig)]
    async with rig.reader:
        counting = await opened(rig, rig.map.segments[0])
        found, _ = await through(rig, first=at(150), entries_max=2, framed=framed)
        assert found == [(3, entry, PAYLOADS[entry]) for entry in (150, 151)]
        assert [length for _, length in counting.ranges()] == [CHUNK]
        found, _ = await through(rig, first=at(95), entries_max=110, framed=framed)
        assert found == [(3, entry, PAYLOADS[entry]) for entry in range(95, 205)]


async def test_a_seek_by_sequence_reads_one_chunk() -> None:
    """The entry is looked at for its time, not its block."""
    rig = make_read_rig()
    rig.map.segments = [await stored(rig)]
    async with rig.reader:
        counting = await opened(rig, rig.map.segments[0])
        found = await seek(rig.reader, TOPIC, Goal(SeekKind.SEQUENCE, 250))
        assert found.hit is not None
        assert found.hit.position == at(250)
        assert [length for _, length in counting.ranges()] == [CHUNK]


async def test_tables_count_their_chunks() -> None:
    """Four bytes a chunk, and what a block's chunks take in all."""
    rig = make_read_rig()
    costs = []
    for chunk_bytes in (0, CHUNK):
        segment = await stored(rig, chunk_bytes=chunk_bytes)
        index, manifest = await rig.store.get(KEYS["index"]), await rig.store.get(KEYS["manifest"])
        table = table_of(TOPIC, segment, index, manifest)
        costs.append(table.cost_bytes - 128 * sum(len(block.sparse) for block in table.manifest.blocks))
    assert costs[1] - costs[0] == 3 * (CHUNKS_BYTES + 4 * 11)
