"""A ledger that a broker offloaded is read by its index alone: every entry, from anywhere, and no damage unnoticed."""

from __future__ import annotations

import struct
import uuid
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offloaderd.core.errors import CorruptData, NotFound
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import Position
from offloaderd.core.read_options import ReadPriority, Tier
from offloaderd.core.retry import RetryPolicy
from offloaderd.format.v1 import BlockScan, block_spans, decode_index
from offloaderd.read import broker_ledgers as ledger_object
from offloaderd.read.cache import ReadAhead
from offloaderd.read.segments import SegmentOptions, SegmentReader
from offloaderd.testing.memory.ledgers import MemoryLedgers
from offloaderd.testing.memory.objects import MemoryStore
from tests.unit.broker_objects import BrokerLedger
from tests.unit.read.build import TOPIC, FastClock, make_read_rig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from offloaderd.metadata.committed import CommittedSegment

OBJECT = uuid.UUID(int=77)
PIECE = 400


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a small object have many pieces."""
    monkeypatch.setattr(ledger_object, "PIECE_BYTES", PIECE)


def ledger(sizes: list[int], **others: int) -> BrokerLedger:
    """Return a ledger with entries of these sizes."""
    payloads = [bytes((31 * number + k) % 256 for k in range(size)) for number, size in enumerate(sizes)]
    made = BrokerLedger(topic=TOPIC, ledger_id=9, object_id=OBJECT, payloads=payloads)
    for name, value in others.items():
        setattr(made, name, value)
    return made


@pytest.fixture
def clock() -> FastClock:
    """A clock that does not wait."""
    return FastClock()


@pytest.fixture
def store(clock: FastClock) -> MemoryStore:
    """A bucket."""
    return MemoryStore(clock)


@pytest.fixture
async def reader(store: MemoryStore, clock: FastClock) -> AsyncIterator[SegmentReader]:
    """A reader with room for some pieces."""
    options = SegmentOptions(cache_bytes=6 * PIECE, read_ahead_bytes=4 * PIECE, retry=RetryPolicy(tries_max=2))
    async with SegmentReader(store, clock=clock, metrics=Metrics(), options=options) as made:
        yield made
        assert made.pinned_bytes == 0, "a read lets go of all that it pinned"


async def entries(reader: SegmentReader, segment: CommittedSegment, first: int, last: int) -> list[tuple[int, bytes]]:
    """Read a range."""
    found: list[tuple[int, bytes]] = []
    async for batch in reader.read(TOPIC, segment, Position(9, first), Position(9, last), ReadAhead()):
        assert batch.ledger_id == 9
        found += enumerate(batch.payloads, batch.first_entry_id)
    return found


SIZES = [(number * 97) % 300 for number in range(60)]


@pytest.mark.parametrize("every", [0, 1, 7])
async def test_every_range(reader: SegmentReader, store: MemoryStore, every: int) -> None:
    """From any entry to any other, with an index entry a block and with a denser index."""
    one = ledger(SIZES, index_every=every)
    await one.put(store)
    everything = list(enumerate(one.payloads))
    segment = one.adopted
    for first in range(0, 60, 7):
        for last in (first, first + 1, 59):
            assert await entries(reader, segment, first, min(last, 59)) == everything[first : min(last, 59) + 1]


async def test_large_entries_and_empty_ones(reader: SegmentReader, store: MemoryStore) -> None:
    """Entries over many pieces, of no bytes, and one that has a block of its own."""
    one = ledger([0, 0, 5000, 0, 900, 871, 872, 873, 0, 3 * PIECE, 1])
    await one.put(store)
    assert await entries(reader, one.adopted, 0, 10) == list(enumerate(one.payloads))
    assert await entries(reader, one.adopted, 9, 9) == [(9, one.payloads[9])]


async def test_places_are_remembered(
    reader: SegmentReader, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second read near the end of a large block asks for what is near, not for the block."""
    one = ledger([50] * 300, block_bytes_max=1 << 20)
    await one.put(store)
    segment = one.adopted
    await entries(reader, segment, 0, 299)
    asked: list[int] = []
    get = store.get

    async def noted(key: str, first: int = 0, length: int | None = None) -> bytes:
        asked.append(first)
        return await get(key, first, length)

    monkeypatch.setattr(store, "get", noted)
    assert await entries(reader, segment, 150, 150) == [(150, one.payloads[150])]
    assert len(asked) <= 3


async def test_one_entry_of_a_block_that_was_read_is_found_from_a_place_nearby(
    reader: SegmentReader, store: MemoryStore
) -> None:
    """The places are about a piece apart: more of them would take memory that the table is not counted with."""
    one = ledger([50] * 300, block_bytes_max=1 << 20)
    await one.put(store)
    segment = one.adopted
    assert await reader.known_places(TOPIC, segment) == [0]
    await entries(reader, segment, 0, 299)
    places = await reader.known_places(TOPIC, segment)
    length = 300 * 62
    assert length // PIECE // 2 <= len(places) <= 1 + length // PIECE
    assert all((after - before) * 62 >= PIECE - 128 for before, after in pairwise(places))


async def test_no_place_is_remembered_near_one_of_the_index(reader: SegmentReader, store: MemoryStore) -> None:
    """Before it or behind it: the index has a place for every ten entries, that is for more than each piece."""
    one = ledger([50] * 300, block_bytes_max=1 << 20, index_every=10)
    await one.put(store)
    segment = one.adopted
    places = await reader.known_places(TOPIC, segment)
    assert len(places) == 30
    await entries(reader, segment, 0, 299)
    assert await reader.known_places(TOPIC, segment) == places


async def test_pieces_fetched_ahead_stay_within_the_budget(reader: SegmentReader, store: MemoryStore) -> None:
    """A block of any size is never held whole."""
    one = ledger([50] * 1000, block_bytes_max=1 << 20)
    await one.put(store)
    most = 0
    async for _ in reader.read(TOPIC, one.adopted, Position(9, 0), Position(9, 999), ReadAhead()):
        most = max(most, reader.used_bytes)
    length = len(one.objects()[0])
    table = ledger_object.TABLE_BYTES + ledger_object.PLACE_BYTES * (1 + length // PIECE)
    assert most - table <= 6 * PIECE < length


async def read_into(found: list[tuple[int, bytes]], reader: SegmentReader, segment: CommittedSegment) -> None:
    """Collect all entries up to the first that cannot be read."""
    async for batch in reader.read(TOPIC, segment, segment.begin, segment.end, ReadAhead()):
        found += enumerate(batch.payloads, batch.first_entry_id)


async def pass_on(reader: SegmentReader, segment: CommittedSegment) -> None:
    """Read all entries as a daemon does that hands them on framed, without taking them apart."""
    async for batch in reader.read_framed(TOPIC, segment, segment.begin, segment.end):
        assert batch.count


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "another header": (lambda data: b"\0" + data[1:], "magic"),
    "an entry of another id": (lambda data: data[:139] + b"\x09" + data[140:], "entry id 0"),
    "a length beyond the block": (lambda data: data[:128] + struct.pack(">i", 1 << 30) + data[132:], "entry 0"),
    "padding where an entry should be": (lambda data: data[:128] + b"\xfe\xdc\xde\xad" + data[132:], "entry 0"),
    "no padding": (lambda data: data[:999] + b"\0" + data[1000:], "padding"),
    "cut short": (lambda data: data[:-1], "bytes"),
}


@pytest.mark.parametrize("name", DAMAGES)
async def test_damage(reader: SegmentReader, store: MemoryStore, name: str) -> None:
    """Whatever its framing shows is a typed error that names the object, and nothing wrong is handed out."""
    change, said = DAMAGES[name]
    one = ledger([100] * 20)
    await one.put(store)
    data = await store.get(one.keys.data)
    await store.put(one.keys.data, change(data))
    found: list[tuple[int, bytes]] = []
    with pytest.raises(CorruptData, match=said) as error:
        await read_into(found, reader, one.adopted)
    assert error.value.key == one.keys.data
    assert found == list(enumerate(one.payloads))[: len(found)]
    with pytest.raises(CorruptData, match=said):
        await pass_on(reader, one.adopted)


async def test_index_of_another_ledger(reader: SegmentReader, store: MemoryStore) -> None:
    """An index that is longer or shorter than what was committed, cut, or missing."""
    one, other = ledger([100] * 20), ledger([100] * 21)
    await one.put(store)
    index = other.objects()[1]
    for content in (index, one.objects()[1][:-1], b""):
        await store.put(one.keys.index, content)
        with pytest.raises(CorruptData) as error:
            await entries(reader, one.adopted, 0, 0)
        assert error.value.key == one.keys.index
    await store.delete([one.keys.index])
    with pytest.raises(NotFound):
        await entries(reader, one.adopted, 0, 0)


@pytest.mark.parametrize("priority", list(ReadPriority))
@pytest.mark.parametrize("damage", ["data", "index", "missing", "none"])
async def test_the_other_tier_makes_up_for_it(priority: ReadPriority, damage: str) -> None:
    """Where the broker's copy is damaged or gone the ledger source is read, and the other way round, without a hole."""
    clock = FastClock()
    source = MemoryLedgers(clock=clock)
    one = ledger(SIZES)
    await source.append(TOPIC, one.payloads)
    await source.roll(TOPIC)
    (info,) = [info for info in await source.ledgers(TOPIC) if info.closed]
    one.ledger_id = info.ledger_id
    rig = make_read_rig(source=source)
    await one.put(rig.store)
    rig.map.segments, rig.map.priority, rig.map.enabled = [one.adopted], priority, True
    if damage == "missing":
        await rig.store.delete([one.keys.data, one.keys.index])
    elif damage != "none":
        key = one.keys.data if damage == "data" else one.keys.index
        content = await rig.store.get(key)
        await rig.store.put(key, content[:5] + b"\xff" + content[6:])
    found: list[bytes] = []
    tiers = set()
    async with rig.reader as reader:
        async for batch, tier in reader.read(TOPIC):
            found += batch.payloads
            tiers.add(tier)
    assert found == list(one.payloads)
    sound = damage == "none" and priority is ReadPriority.TIERED_STORAGE_FIRST
    assert tiers == {Tier.OBJECTS if sound else Tier.SOURCE}


@settings(max_examples=200)
@given(
    sizes=st.lists(st.integers(0, 700), min_size=1, max_size=40),
    block=st.integers(200, 2000),
    every=st.integers(0, 5),
    pieces=st.lists(st.integers(1, 500), min_size=1, max_size=5),
)
def test_scan_in_any_pieces(sizes: list[int], block: int, every: int, pieces: list[int]) -> None:
    """However a block's bytes come, its entries come out whole and in order, and it ends where it should."""
    one = ledger(sizes, block_bytes_max=block, index_every=every)
    data, index_data = one.objects()
    found: list[bytes] = []
    for span in block_spans(decode_index(index_data, key="index")):
        scan = BlockScan(span, ledger_id=9, key="data")
        turn = 0
        while not scan.done:
            length = pieces[turn % len(pieces)]
            turn += 1
            batch = scan.feed(data[scan.wanted_at : scan.wanted_at + length])
            assert batch.first == (9, len(found))
            found += batch.payloads
        assert scan.at == span.end
    assert found == list(one.payloads)
