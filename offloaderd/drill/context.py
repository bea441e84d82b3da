"""The context of the exercises of a drill: its daemon, the proxies in front of the stores, and the written entries."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from offloaderd.client import DaemonClient, TimedOut
from offloaderd.core.clock import Clock
from offloaderd.core.errors import OffloaderError
from offloaderd.core.model import START, Position
from offloaderd.daemon.daemon import Daemon
from offloaderd.drill.s3_proxy import S3Proxy
from offloaderd.drill.scratch import TOPIC, Scratch
from offloaderd.drill.tcp_proxy import Link
from offloaderd.protocol.v1 import admin_pb2, ledgers_pb2

BATCH = 100
WITHIN_S = 90.0
"""Longest wait for an expected event; after it the promise counts as broken."""
LOOK_S = 0.2


class Broken(OffloaderError):
    """A promise was not kept."""


@dataclass(kw_only=True)
class Ground:
    """A running drill. `written` has every entry in order, `last` is the position of the newest."""

    scratch: Scratch
    daemon: Daemon
    client: DaemonClient
    s3: S3Proxy
    zookeeper: Link
    clock: Clock
    written: list[bytes] = field(default_factory=list)
    last: Position = field(default_factory=lambda: Position(0, 0))
    memory_max_bytes: int = 0

    async def write(self, count: int, size_bytes: int) -> None:
        """Append unique entries."""
        first = len(self.written)
        payloads = [f"{self.scratch.name}/{first + number}/".encode().ljust(size_bytes, b"%d" % (number % 10))
                    for number in range(count)]  # fmt: skip

        async def batches() -> AsyncIterator[Sequence[bytes]]:
            for begin in range(0, count, BATCH):
                yield payloads[begin : begin + BATCH]

        def note(response: ledgers_pb2.AppendResponse) -> None:
            self.last = Position(response.last.ledger_id, response.last.entry_id)

        await self.client.append(TOPIC, batches(), note, timeout_s=WITHIN_S)
        self.written += payloads

    async def offload(self) -> None:
        """Offload all entries, and wait. Raises Broken if it fails or takes too long."""
        try:
            async for progress in self.client.offload(TOPIC, wait=True, timeout_s=WITHIN_S):
                if progress.done and progress.outcome == "failed":
                    raise Broken(f"the offload failed: {progress.reason}")
        except TimedOut:
            raise Broken(f"not all was offloaded within {WITHIN_S:g} s of the last fault") from None
        await self.until(self.all_durable, "everything to be durable")

    async def all_durable(self) -> bool:
        """Return whether the daemon has reported the newest entry as durable."""
        offloaded = (await self.topic()).offloaded
        return Position(offloaded.ledger_id, offloaded.entry_id) >= self.last

    async def topic(self) -> admin_pb2.TopicStatus:
        """Return the topic's status."""
        return (await self.client.status(TOPIC)).topics[0]

    async def read_back(self) -> int:
        """Read all entries and compare them with the written ones; return their number. Raises Broken."""
        count, before = 0, START
        async for response in self.client.read(TOPIC, timeout_s=WITHIN_S):
            batch = response.batch
            for number, payload in enumerate(batch.payloads):
                position = Position(batch.ledger_id, batch.first_entry_id + number)
                if position <= before:
                    raise Broken(f"{position} came behind {before}")
                if count >= len(self.written) or payload != self.written[count]:
                    raise Broken(f"entry {position} is not what was written as number {count}")
                count, before = count + 1, position
        if count != len(self.written):
            raise Broken(f"{count} of {len(self.written)} entries came back")
        return count

    async def until(self, condition: Callable[[], Awaitable[bool]], what: str) -> None:
        """Wait for a condition. Raises Broken if it does not become true; failed calls are repeated."""
        try:
            async with asyncio.timeout(WITHIN_S):
                while True:
                    try:
                        if await condition():
                            return
                    except Broken:
                        raise
                    except OffloaderError:
                        pass  # the condition could not be checked at this moment
                    await self.clock.sleep(LOOK_S)
        except TimeoutError:
            raise Broken(f"waited {WITHIN_S:g} s for {what}") from None

    def metric(self, name: str) -> float:
        """Return one of the daemon's metrics."""
        return self.daemon.metrics.registry.get_sample_value(f"offloaderd_{name}") or 0.0

    async def watch_memory(self) -> None:
        """Record the greatest memory of the pools of the daemon, until cancelled."""
        while True:
            self.memory_max_bytes = max(self.memory_max_bytes, self.daemon.snapshot().memory_used_bytes)
            await self.clock.sleep(0.05)
