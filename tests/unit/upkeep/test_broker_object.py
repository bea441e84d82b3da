"""What a broker has offloaded is looked at by index and framing; nothing about it says that a manifest is missing."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import CorruptData
from offloaderd.core.model import OffloadMethod
from offloaderd.metadata.committed import CommittedSegment, LedgerSlice
from offloaderd.objects.retrying import RetryingReader
from offloaderd.testing.memory.objects import MemoryStore
from offloaderd.upkeep.flaws import Kind
from offloaderd.upkeep.verify import segment as segment_module
from offloaderd.upkeep.verify.segment import (
    Target,
    check_broker_entries,
    check_broker_objects,
    check_tables,
    find_broker_entry,
)
from tests.unit.broker_objects import BrokerLedger
from tests.unit.read.build import TOPIC, FastClock

if TYPE_CHECKING:
    from collections.abc import Callable

PIECE = 300


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a small object have many pieces."""
    monkeypatch.setattr(segment_module, "PIECE_BYTES", PIECE)


@pytest.fixture
def ledger() -> BrokerLedger:
    """A ledger in several blocks."""
    payloads = [bytes([number]) * (number * 37 % 400) for number in range(40)]
    return BrokerLedger(topic=TOPIC, ledger_id=4, object_id=uuid.UUID(int=5), payloads=payloads)


@pytest.fixture
async def store(ledger: BrokerLedger) -> MemoryStore:
    """A bucket that has it."""
    made = MemoryStore(FastClock())
    await ledger.put(made)
    return made


@pytest.fixture
def reader(store: MemoryStore) -> RetryingReader:
    """Who looks."""
    return RetryingReader(store, clock=FastClock())


def committed(ledger: BrokerLedger) -> CommittedSegment:
    """Return it as it was adopted."""
    return CommittedSegment(
        segment_id=ledger.object_id,
        slices=(LedgerSlice(4, 0, len(ledger.payloads) - 1, sum(map(len, ledger.payloads))),),
        object_bytes=len(ledger.objects()[0]),
        assigned_ms=1,
        offloaded_ms=1,
        bucket="b",
        prefix="",
        method=OffloadMethod.LEDGER_BASED,
        driver="aws-s3",
    )


async def test_sound(ledger: BrokerLedger, reader: RetryingReader) -> None:
    """Tables and entries have no flaw, and every entry is found where it lies."""
    segment = committed(ledger)
    target = Target(bucket=segment.bucket, keys=segment.keys, cluster="test", topic=TOPIC, committed=segment)
    tables = await check_tables(reader, target)
    assert (tables.flaws, tables.manifest) == ([], None)
    assert await check_broker_entries(reader, segment) == []
    data, _ = ledger.objects()
    for entry_id, payload in enumerate(ledger.payloads):
        at, length = await find_broker_entry(reader, segment, entry_id)
        assert data[at : at + length] == payload
        assert data[at - 8 : at] == entry_id.to_bytes(8, "big")


async def test_a_ledger_of_any_size_is_read_piece_by_piece(
    ledger: BrokerLedger, reader: RetryingReader, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of 2 GB is not in memory as a whole, for all its entries or for one."""
    get = store.get
    lengths: list[int] = []

    async def noted(key: str, first: int = 0, length: int | None = None) -> bytes:
        if key == segment.keys.data:
            lengths.append(length or 0)
        return await get(key, first, length)

    segment = committed(ledger)
    monkeypatch.setattr(store, "get", noted)
    assert await check_broker_entries(reader, segment) == []
    await find_broker_entry(reader, segment, len(ledger.payloads) - 1)
    assert 0 < max(lengths) <= PIECE


CHANGES: dict[str, tuple[Callable[[bytes], bytes], Kind]] = {
    "shorter": (lambda data: data[:-1], Kind.SIZE),
    "an entry": (lambda data: data[:139] + b"\x09" + data[140:], Kind.BLOCK),
}


@pytest.mark.parametrize("name", CHANGES)
async def test_damaged_data(ledger: BrokerLedger, reader: RetryingReader, store: MemoryStore, name: str) -> None:
    """Each flaw names the object and what to do."""
    change, kind = CHANGES[name]
    segment = committed(ledger)
    await store.put(segment.keys.data, change(ledger.objects()[0]))
    flaws = [
        *await check_broker_objects(reader, segment),
        *await check_broker_entries(reader, segment),
    ]
    assert {flaw.key for flaw in flaws} == {segment.keys.data}
    assert kind in {flaw.kind for flaw in flaws}
    if kind is Kind.BLOCK:
        with pytest.raises(CorruptData):
            await find_broker_entry(reader, segment, 1)


async def test_missing_and_foreign_index(ledger: BrokerLedger, reader: RetryingReader, store: MemoryStore) -> None:
    """An index of another ledger, and no objects at all."""
    segment = committed(ledger)
    other = BrokerLedger(topic=TOPIC, ledger_id=4, object_id=ledger.object_id, payloads=[b"x"])
    await store.put(segment.keys.index, other.objects()[1])
    (flaw,) = await check_broker_objects(reader, segment)
    assert (flaw.kind, flaw.key) == (Kind.INDEX, segment.keys.index)
    await store.delete([segment.keys.index, segment.keys.data])
    flaws = await check_broker_objects(reader, segment)
    assert [(flaw.kind, flaw.key) for flaw in flaws] == [
        (Kind.MISSING, segment.keys.index),
        (Kind.MISSING, segment.keys.data),
    ]
