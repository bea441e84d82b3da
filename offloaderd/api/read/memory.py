"""The memory that messages take while they are unpacked and sent, of all reads together.

Whoever unpacks an entry waits for its turn, and holds nothing else that others wait for. Chunks that wait for the rest
of their message are counted apart: nobody knows for how long, so what finds no room is refused, and holds up nobody.
A caller that takes no answers, or reads chunks that never end, holds what it has for as long as it likes: one identity
gets no more while there is not as much again for others, and of the room for chunks no more than half.
"""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from offloaderd.core.errors import Throttled
from offloaderd.core.limits import ByteBudget
from offloaderd.core.metrics.metrics import Metrics

UNPACK_BYTES = 64 * 1024 * 1024


class Unpacking:
    """Two budgets, half of `limit_bytes` each. A `holder` is whose read it is; None: nobody can say."""

    def __init__(self, limit_bytes: int, metrics: Metrics) -> None:
        self._unpacked = ByteBudget(limit_bytes - limit_bytes // 2)
        self._waiting = ByteBudget(limit_bytes // 2)
        self._waiting_of: Counter[str] = Counter()
        metrics.memory_used_bytes.labels(pool="unpack").set_function(lambda: self.used_bytes)

    @property
    def used_bytes(self) -> int:
        """What is held at this moment."""
        return self._unpacked.used_bytes + self._waiting.used_bytes

    @asynccontextmanager
    async def room(self, size_bytes: int, holder: str | None = None) -> AsyncIterator[None]:
        """Hold room for what is unpacked, once it is there."""
        async with self._unpacked.held(size_bytes, holder):
            yield

    def wait(self, before_bytes: int, now_bytes: int, holder: str | None = None) -> None:
        """Count what the chunks of one read hold now, and held before. Raises Throttled when there is no room."""
        more_bytes = now_bytes - before_bytes
        if more_bytes <= 0:
            self._waiting.release(-more_bytes)
        else:
            self._take(more_bytes, holder)
        if holder is not None and more_bytes:
            self._waiting_of[holder] += more_bytes
            if not self._waiting_of[holder]:
                del self._waiting_of[holder]

    def _take(self, more_bytes: int, holder: str | None) -> None:
        limit_bytes = self._waiting.limit_bytes
        if holder is not None and self._waiting_of[holder] + more_bytes > limit_bytes // 2:
            whose, limit_bytes = "this caller may have", limit_bytes // 2
        elif self._waiting.take_now(more_bytes):
            return
        else:
            whose = "there are"
        raise Throttled(
            f"chunks of messages that wait for the rest take all {limit_bytes} bytes {whose}",
            hint="try again later, read without them (as entries), or raise memory.unpack_bytes",
        )
