"""Reading the bucket for no reader's sake: slowly, patiently, and within somebody else's memory.

What a look costs is paid afterwards: whoever has read many bytes waits before the next request, so that all who share
a throttle stay below its rate together, whatever the sizes of what they read.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, TypeVar

from offloaderd.core.limits import TokenBucket
from offloaderd.core.retry import retried
from offloaderd.errors import InvalidInput
from offloaderd.objects.whole import read_apart, sure

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from offloaderd.clock import Clock
    from offloaderd.core.limits import Admission
    from offloaderd.objects.port import ObjectInfo, ObjectReader

T = TypeVar("T")

CALLS_BYTES = 16 * 1024 * 1024
"""What all calls that verify or explain hold of blocks at a time; a larger block is looked at alone."""


class Looker:
    """Asks the store, again after Transient, and counts what it read. Raises what the store raises in the end."""

    def __init__(
        self,
        objects: ObjectReader,
        *,
        clock: Clock,
        throttle: TokenBucket | None = None,
        budget: Admission | None = None,
        read: Callable[[int], None] | None = None,
    ) -> None:
        """Read `objects`; `read` hears of every byte."""
        self.read_bytes = 0
        self._objects = objects
        self._clock = clock
        self._throttle = throttle or TokenBucket(0, clock)
        self._budget = budget
        self._heard = read

    def at(self, bucket: str) -> Looker:
        """Return who looks at another bucket, out of the same purse. Raises BucketMissing."""
        there = self._objects.at(bucket)
        if there is self._objects:
            return self
        return Looker(there, clock=self._clock, throttle=self._throttle, budget=self._budget, read=self._count)

    async def head(self, key: str) -> ObjectInfo:
        """Return what the store says of an object. Raises NotFound."""
        await self._throttle.ready()
        return await retried(lambda: self._objects.head(key), clock=self._clock)

    async def table(self, key: str, decode: Callable[[bytes], T]) -> T:
        """Return what `decode`, which is pure, makes of an index or a manifest. Raises NotFound, and what it raises."""

        async def get(length: int | None) -> bytes:
            data = await self._objects.get(key, 0, length)
            self._spent(len(data))
            return data

        async def read() -> T:
            await self._throttle.ready()
            return await retried(lambda: read_apart(decode, get), clock=self._clock)

        return await sure(read)

    async def checked(self, key: str, first: int, length: int, check: Callable[[bytes], T]) -> T:
        """Return what `check` makes of bytes of an object, fewer where it ends. Raises NotFound, and what it raises."""

        async def read() -> T:
            async with self.piece(key, first, length) as data:
                return check(data)

        return await sure(read)

    @asynccontextmanager
    async def piece(self, key: str, first: int, length: int) -> AsyncIterator[bytes]:
        """Give bytes of an object, fewer where it ends; they are to be forgotten at the end. Raises NotFound."""
        await self._throttle.ready()
        async with self._budget.held(length) if self._budget is not None else nullcontext():
            try:
                data = await retried(lambda: self._objects.get(key, first, length), clock=self._clock)
            except InvalidInput:
                data = b""  # the object ends before that byte
            self._spent(len(data))
            yield data

    def _spent(self, count: int) -> None:
        self._throttle.take(count)
        self._count(count)

    def _count(self, count: int) -> None:
        self.read_bytes += count
        if self._heard is not None:
            self._heard(count)
