"""Topics that we write without a broker say in ZooKeeper what a broker's would, and hold the ledgers that they list."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import pytest

from offloaderd.bookkeeper.metadata import Layout, LedgerState
from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import NotFound
from offloaderd.core.model import Position
from offloaderd.core.names.managed_ledgers import is_compacted, misplaced_ledger
from offloaderd.ledgers.pulsar.managed_ledger import ListedLedger, ManagedLedger, decode
from offloaderd.testing.memory.metadata import MemoryTree
from tests.real.pulsar_nodes import Compression
from tests.real.writer import LedgerWriter, Plan, ledger_writer
from tests.real.written_topic import WrittenTopic, written_topic

if TYPE_CHECKING:
    from tests.real.bookies import BookKeeperCluster
    from tests.real.java_client import JavaClient

CLOCK = SystemClock()
PAPER = Plan(ensemble=1, write_quorum=1, ack_quorum=1, bookies=("a:1",))


async def listed(topic: WrittenTopic, writer: LedgerWriter) -> ManagedLedger:
    """Return what a reader finds in ZooKeeper."""
    return decode((await writer.store.get(topic.path)).value, key=topic.path)


@pytest.mark.parametrize("compression", [None, *get_args(Compression)])
async def test_list_is_read_back(compression: Compression | None) -> None:
    """Every compression of the list holds the same: closed ledgers with numbers, the open one with its id alone."""
    writer = LedgerWriter(MemoryTree().connect(), Layout.HIERARCHICAL, CLOCK)
    topic = await written_topic(writer, "a/b/c d*", plan=PAPER, compression=compression)
    first = topic.ledger
    assert await listed(topic, writer) == ManagedLedger(ledgers=(ListedLedger(ledger_id=first.ledger_id),))
    first.skip(5)
    await first.close(last_entry_id=4, length=77)
    assert (await listed(topic, writer)).ledgers[0].closed is False, "the close alone is not in the list"
    second = await topic.roll()
    found = await listed(topic, writer)
    assert found == topic.listed
    assert [ledger.ledger_id for ledger in found.ledgers] == [first.ledger_id, second.ledger_id]
    assert (found.ledgers[0].entries, found.ledgers[0].size_bytes) == (5, 77)
    assert misplaced_ledger(first.metadata.custom, topic.name) is None
    await topic.write(ManagedLedger(ledgers=found.ledgers, terminated_at=Position(4, 2), properties={"index": "3"}))
    assert await listed(topic, writer) == topic.listed


async def test_trimmed_and_deleted() -> None:
    """Retention takes the oldest ledgers, deletion all of them and the cursors."""
    writer = LedgerWriter(MemoryTree().connect(), Layout.HIERARCHICAL, CLOCK)
    topic = await written_topic(writer, "t", plan=PAPER)
    await topic.roll()
    await topic.roll()
    oldest, middle, newest = topic.ledgers
    await topic.trim(1)
    assert [ledger.ledger_id for ledger in (await listed(topic, writer)).ledgers] == [
        middle.ledger_id,
        newest.ledger_id,
    ]
    with pytest.raises(NotFound):
        await writer.open(oldest.ledger_id)
    await topic.add_cursor("__compaction")
    assert is_compacted(await writer.store.children(topic.path))
    await topic.delete()
    for gone in (middle, newest):
        with pytest.raises(NotFound):
            await writer.open(gone.ledger_id)
    with pytest.raises(NotFound):
        await listed(topic, writer)


async def test_taken_over(bookkeeper: BookKeeperCluster, java_ledgers: JavaClient) -> None:
    """After the take-over of a topic its old ledger is closed with all that was stored, and it goes on in a new one."""
    async with ledger_writer(bookkeeper.zookeeper, CLOCK) as writer:
        topic = await written_topic(writer, f"t-{CLOCK.uuid().hex}")
        written = [b"%d" % number for number in range(40)]
        await topic.add(written, window=40)
        new = await topic.take_over()
        old = topic.ledgers[0]
        assert (old.metadata.state, old.metadata.last_entry_id) == (LedgerState.CLOSED, 39)
        assert (await listed(topic, writer)).ledgers[0].entries == 40
        await topic.add([b"next"])
        await new.close()
        assert java_ledgers.read(old.ledger_id) == written
        assert java_ledgers.read(new.ledger_id) == [b"next"]
