"""Reading one ledger from real bookies, in a process of its own: by the wire codec alone, or by the ledger source.

`python -m bench.bookie_reader` reads a task as JSON from standard input and prints what it took. `measure` runs it as a
child. The codec's loop is the reference: one connection, batches of 1 MiB with the next request sent before an answer
is looked at, every digest and length checked, and nothing else. Connecting is not measured.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING, TypedDict

from bench.child import Took, in_child, used_s
from offloaderd.bookkeeper.connections.bookies import BookiePool
from offloaderd.bookkeeper.wire import v2
from offloaderd.bookkeeper.wire.entry import DigestType, EntryChecker
from offloaderd.core.clock import SystemClock
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import TopicName
from offloaderd.daemon import log
from offloaderd.ledgers.pulsar.source import BookKeeperLedgers
from offloaderd.metadata.zookeeper.store import ZooKeeperStore

if TYPE_CHECKING:
    from collections.abc import Callable

CLOCK = SystemClock()
BATCH_BYTES = 1 << 20


class Task(TypedDict):
    """Which ledger to read, and how: "codec" (from this bookie) or "source" (by way of ZooKeeper)."""

    how: str
    zookeeper: str
    topic: str
    bookie: str
    ledger_id: int
    last_entry_id: int


async def measure(task: Task) -> Took:
    """Run a task in a process of its own."""
    return await in_child("bench.bookie_reader", task)


class _Loop(asyncio.Protocol):
    """The reference: asks, checks, asks again."""

    def __init__(self, task: Task) -> None:
        self.done = asyncio.Event()
        self._task = task
        self._decoder = v2.Decoder()
        self._checker = EntryChecker(task["ledger_id"], DigestType.CRC32C)
        self._next = 0
        self._length = 0
        self._write: Callable[[bytes], None] = lambda _: None

    def start(self, write: Callable[[bytes], None]) -> None:
        """Ask for the first batch."""
        self._write = write
        self._ask()

    def _ask(self) -> None:
        ledger_id, count = self._task["ledger_id"], self._task["last_entry_id"] - self._next + 1
        if count > 0:
            self._write(v2.encode_batch_read(self._next, ledger_id, self._next, count_max=count, bytes_max=BATCH_BYTES))

    def data_received(self, data: bytes) -> None:
        """Take in what has come."""
        for answer in self._decoder.feed(data):
            if not isinstance(answer, v2.BatchAnswer) or answer.first_entry_id != self._next:
                raise RuntimeError(f"an answer to another question: {answer}")
            self._next += len(answer.entries)
            self._ask()
            run = self._checker.check_run(answer.first_entry_id, answer.entries)
            if run.error is not None:
                raise run.error
            run.check_lengths(self._length)
            self._length = run.lengths[-1]
        if self._next > self._task["last_entry_id"]:
            self.done.set()


async def by_codec(task: Task) -> Took:
    """Read by the codec alone."""
    host, _, port = task["bookie"].rpartition(":")
    transport, loop = await asyncio.get_running_loop().create_connection(lambda: _Loop(task), host, int(port))
    try:
        started, before = CLOCK.monotonic(), used_s()
        loop.start(transport.write)
        await loop.done.wait()
        return Took(CLOCK.monotonic() - started, used_s() - before)
    finally:
        transport.close()


async def by_source(task: Task) -> Took:
    """Read by the ledger source, as the tailer does."""
    metrics, topic = Metrics(), TopicName.parse(task["topic"])
    async with AsyncExitStack() as stack:
        znodes = await stack.enter_async_context(ZooKeeperStore(task["zookeeper"], "/"))
        bookies = await stack.enter_async_context(BookiePool(znodes, clock=CLOCK, metrics=metrics))
        source = await stack.enter_async_context(BookKeeperLedgers(znodes, bookies, clock=CLOCK, metrics=metrics))
        await source.confirmed(topic, task["ledger_id"])
        found = 0
        started, before = CLOCK.monotonic(), used_s()
        entries = source.read(topic, task["ledger_id"], 0, task["last_entry_id"], batch_bytes=BATCH_BYTES)
        async with aclosing(entries) as batches:
            async for batch in batches:
                found += len(batch.payloads)
        if found != task["last_entry_id"] + 1:
            raise RuntimeError(f"{found} entries were read")
        return Took(CLOCK.monotonic() - started, used_s() - before)


if __name__ == "__main__":
    log.configure("warning", "json")
    given: Task = json.load(sys.stdin)
    json.dump(asyncio.run(by_codec(given) if given["how"] == "codec" else by_source(given)), sys.stdout)
