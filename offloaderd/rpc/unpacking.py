"""The memory that messages take while they are unpacked and sent, of all reads together.

Whoever unpacks an entry waits for its turn, and holds nothing else that others wait for. Chunks that wait for the rest
of their message are counted apart: nobody knows for how long, so what finds no room is refused, and holds up nobody.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from offloaderd.errors import Throttled
from offloaderd.offload.budget import ByteBudget

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from offloaderd.metrics import Metrics

UNPACK_BYTES = 64 * 1024 * 1024


class Unpacking:
    """Two budgets, half of `limit_bytes` each."""

    def __init__(self, limit_bytes: int, metrics: Metrics) -> None:
        self._unpacked = ByteBudget(limit_bytes - limit_bytes // 2)
        self._waiting = ByteBudget(limit_bytes // 2)
        metrics.memory_used_bytes.labels(pool="unpack").set_function(lambda: self.used_bytes)

    @property
    def used_bytes(self) -> int:
        """What is held at this moment."""
        return self._unpacked.used_bytes + self._waiting.used_bytes

    @asynccontextmanager
    async def room(self, size_bytes: int) -> AsyncIterator[None]:
        """Hold room for what is unpacked, once it is there."""
        await self._unpacked.acquire(size_bytes)
        try:
            yield
        finally:
            self._unpacked.release(size_bytes)

    def wait(self, before_bytes: int, now_bytes: int) -> None:
        """Count what the chunks of one read hold now, and held before. Raises Throttled when there is no room."""
        if now_bytes <= before_bytes:
            self._waiting.release(before_bytes - now_bytes)
        elif not self._waiting.take_now(now_bytes - before_bytes):
            raise Throttled(
                f"chunks of messages that wait for the rest take all {self._waiting.limit_bytes} bytes there are",
                hint="try again later, read without them (as entries), or raise memory.unpack_bytes",
            )
