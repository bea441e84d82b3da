"""A client that appends to a topic, reads it and asks what is durable, and notes all of it in a history.

The daemon it talks to may end at any moment: then the call that was under way has no known outcome, and the next
daemon is asked.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from offloaderd.client.channel import RESUME_S
from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import OffloaderError
from offloaderd.core.model import Position
from tests.patience import PATIENCE_S
from tests.real.history import History

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from offloaderd.client import DaemonClient
    from offloaderd.core.model import TopicName
    from offloaderd.protocol.v1 import ledgers_pb2

CLOCK = SystemClock()
RETRY_S = 0.2


class Workload:
    """One topic's writer and reader."""

    def __init__(self, topic: TopicName, history: History | None = None, *, entry_bytes: int = 300) -> None:
        self.topic = topic
        self.history = history or History()
        self.entry_bytes = entry_bytes
        self._made = 0

    def make(self, count: int) -> list[bytes]:
        """Make entries that occur nowhere else, of different lengths."""
        first, self._made = self._made, self._made + count
        return [
            f"{self.topic}/{number}/".encode().ljust(1 + self.entry_bytes * (1 + number % 3) // 2, b"%d" % (number % 7))
            for number in range(first, first + count)
        ]

    async def append(self, client: DaemonClient, count: int, *, batch: int = 50) -> None:
        """Append entries one batch after the other. Raises what the client raises when the daemon goes away."""
        offers = []
        answered = 0

        async def batches() -> AsyncIterator[Sequence[bytes]]:
            for first in range(0, count, batch):
                payloads = self.make(min(batch, count - first))
                offers.append(self.history.offer(payloads))
                yield payloads

        def note(response: ledgers_pb2.AppendResponse) -> None:
            nonlocal answered
            self.history.ack(offers[answered], Position(response.last.ledger_id, response.last.entry_id))
            answered += 1

        await client.append(self.topic, batches(), note, timeout_s=PATIENCE_S)

    async def offload(self, client: DaemonClient) -> None:
        """Ask for everything to be committed, wait for it, and note what is said to be durable."""
        async for progress in client.offload(self.topic, wait=True, timeout_s=PATIENCE_S):
            if progress.HasField("offloaded"):
                self.history.durable(Position(progress.offloaded.ledger_id, progress.offloaded.entry_id))

    async def read(self, client: DaemonClient, *, resume_s: float = RESUME_S) -> None:
        """Read from the oldest entry to the newest."""
        read = self.history.begin_read()
        async for response in client.read(self.topic, timeout_s=PATIENCE_S, resume_s=resume_s):
            first = Position(response.batch.ledger_id, response.batch.first_entry_id)
            read.entries += [
                (first._replace(entry_id=first.entry_id + number), payload)
                for number, payload in enumerate(response.batch.payloads)
            ]
        self.history.end_read(read)

    async def read_at_last(self, client: DaemonClient) -> None:
        """Read again until a read came to its end: a typed error is an answer, and not the last one."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    await self.read(client)
                except OffloaderError:
                    await CLOCK.sleep(RETRY_S)
                else:
                    return

    async def until_it_dies(self, client: DaemonClient, ended: asyncio.Future[int], count: int) -> None:
        """Append, offload, close the ledger and read until the daemon ends; what was under way then stays unknown."""
        appended = False
        while not ended.done():
            try:
                if not appended:
                    appended = True
                    await self.append(client, count)
                await self.offload(client)
                await client.roll(self.topic)
                await self.read(client, resume_s=0)  # by nobody else: it may be dead by now
            except OffloaderError:
                await asyncio.wait({ended}, timeout=RETRY_S)
