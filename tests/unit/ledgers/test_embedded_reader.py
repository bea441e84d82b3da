"""The embedded store, read beside the process that has it open."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import CorruptData, Denied, NotFound
from offloaderd.core.model import Confirmed, Position, TopicName
from offloaderd.ledgers.book import RollLimits
from offloaderd.ledgers.embedded.database import READERS
from offloaderd.ledgers.embedded.store import EmbeddedLedgers, EmbeddedReader
from tests.virtual import LoopClock

if TYPE_CHECKING:
    from pathlib import Path

TOPIC = TopicName.parse("public/default/orders")
OTHER = TopicName.parse("public/other/orders")
CLOCK = LoopClock()


async def read(reader: EmbeddedReader, ledger_id: int, first: int, last: int) -> list[bytes]:
    """Read a range in small batches."""
    found: list[bytes] = []
    async with aclosing(reader.read(TOPIC, ledger_id, first, last, batch_bytes=20)) as batches:
        async for batch in batches:
            assert batch.first_entry_id == first + len(found)
            found += batch.payloads
    return found


async def test_what_is_written_meanwhile_is_read(tmp_path: Path) -> None:
    """Topics, ledgers, lengths and entries are those of the store, as of its last commit."""
    entries = [f"{number}".encode() * 3 for number in range(25)]
    async with EmbeddedLedgers(tmp_path, clock=CLOCK, limits=RollLimits(entries_max=10)) as store:
        await store.append(TOPIC, entries[:5])
        async with EmbeddedReader(tmp_path, clock=CLOCK) as reader:
            await store.append(TOPIC, entries[5:])
            await store.append(OTHER, [b"x"])
            assert await reader.topics() == await store.topics() == [TOPIC, OTHER]
            assert await reader.topics(tenant="public", namespace="other") == [OTHER]
            assert await reader.ledgers(TOPIC) == await store.ledgers(TOPIC)
            assert await reader.reserved(TOPIC) is None
            assert await reader.confirmed(TOPIC, 2) == Confirmed(4, closed=False)
            assert await reader.length_at(TOPIC, 1, 7) == await store.length_at(TOPIC, 1, 7)
            assert await read(reader, 1, 2, 9) == entries[12:20]


async def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    """A directory without a store, a topic, a ledger that was deleted, an entry beyond the end; nothing is written."""
    with pytest.raises(NotFound, match="no ledger store"):
        async with EmbeddedReader(tmp_path, clock=CLOCK):
            pass
    assert list(tmp_path.iterdir()) == []
    async with EmbeddedLedgers(tmp_path, clock=CLOCK, limits=RollLimits(entries_max=10)) as store:
        last = await store.append(TOPIC, [b"x"] * 15)
        assert last == Position(1, 4)
        async with EmbeddedReader(tmp_path, clock=CLOCK) as reader:
            for wrong in (reader.ledgers(OTHER), reader.confirmed(TOPIC, 7), reader.length_at(TOPIC, 1, 5)):
                with pytest.raises(NotFound):
                    await wrong
            await store.append(OTHER, [b"x"])
            with pytest.raises(NotFound, match=r"no ledger 0 in .*public/other/orders"):
                await reader.length_at(OTHER, 0, 0)
            await store.delete(TOPIC, 0)
            while await store._written_by(store._database.sweep):
                pass
            with pytest.raises(NotFound):
                await read(reader, 0, 0, 3)
            with pytest.raises(Denied):
                await reader.delete(TOPIC, 1)


async def test_a_missing_row_of_a_ledger_that_is_there_is_corrupt(tmp_path: Path) -> None:
    """It is not taken for a deleted ledger, which would count as a loss."""
    async with EmbeddedLedgers(tmp_path, clock=CLOCK, limits=RollLimits(entries_max=10)) as store:
        await store.append(TOPIC, [b"x"] * 15)
        writer = store._database._writer
        assert writer is not None
        await store._written_by(writer.execute, "DELETE FROM rows WHERE ledger_id = 0")
        async with EmbeddedReader(tmp_path, clock=CLOCK) as reader:
            with pytest.raises(CorruptData):
                await read(reader, 0, 0, 3)
            with pytest.raises(CorruptData):
                await reader.length_at(TOPIC, 0, 3)


async def test_a_range_costs_the_same_in_a_store_of_many_ledgers(tmp_path: Path) -> None:
    """A job asks for thousands of lengths while it finds the boundaries of segments: none of them reads all ledgers."""
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    async def cost() -> int:
        nonlocal steps
        async with EmbeddedReader(tmp_path, clock=CLOCK) as reader:
            connections = [reader._database._readers.get() for _ in range(READERS)]
            for connection in connections:
                connection.set_progress_handler(step, 1)
                reader._database._readers.put(connection)
            steps = 0
            assert await reader.length_at(TOPIC, 0, 0) == 1
            assert await read(reader, 0, 0, 0) == [b"x"]
            return steps

    async with EmbeddedLedgers(tmp_path, clock=CLOCK, limits=RollLimits(entries_max=1)) as store:
        await store.append(TOPIC, [b"x"] * 3)
        alone = await cost()
        await store.append(TOPIC, [b"x"] * 300)
        for number in range(20):
            await store.append(TopicName.parse(f"public/default/other-{number}"), [b"x"])
        assert 0 < await cost() < 2 * alone
