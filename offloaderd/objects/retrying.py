"""A reader of objects with retries: a limited number after temporary errors, one after damaged bytes.

Readers of a bucket share its connections, by namespaces in turn: without a queue here they would wait in the client's,
in the order of their requests. Background readers share a rate and a memory budget. The bytes of a request are charged
after it, and the next request waits until they are paid for, so all readers together stay below the rate, whatever the
sizes of their objects.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import TypeVar

from offloaderd.core.clock import Clock
from offloaderd.core.errors import CorruptData, InvalidInput
from offloaderd.core.limits import Admission, TokenBucket
from offloaderd.core.retry import USUAL, RetryPolicy, retried
from offloaderd.objects.port import ObjectInfo, ObjectReader
from offloaderd.objects.whole import read_apart, sure

T = TypeVar("T")

TURN_BYTES = 64 * 1024
"""What a small request counts in the turns of the namespaces."""


class Slots:
    """Requests at a time to each bucket, `most` of them; `here` are those of one."""

    def __init__(self, most: int, known: "dict[str, Slots] | None" = None) -> None:
        self.here = Admission(most)
        self._known: dict[str, Slots] = {} if known is None else known

    def at(self, bucket: str) -> "Slots":
        """Return the slots of another bucket."""
        if bucket not in self._known:
            self._known[bucket] = Slots(self.here.limit, self._known)
        return self._known[bucket]


class RetryingReader:
    """Reads a store, retries after Transient, and counts the bytes. Raises the store's last error."""

    def __init__(
        self,
        objects: ObjectReader,
        *,
        clock: Clock,
        retry: RetryPolicy = USUAL,
        throttle: TokenBucket | None = None,
        budget: Admission | None = None,
        read: Callable[[int], None] | None = None,
        slots: "Slots | None" = None,
    ) -> None:
        """Read `objects`; `read` is called with the number of bytes of each read. `slots` None: no limit."""
        self._slots = slots
        self.read_bytes = 0
        self._objects = objects
        self._clock = clock
        self._retry = retry
        self._throttle = throttle or TokenBucket(0, clock)
        self._budget = budget
        self._last_answer = read

    def at(self, bucket: str) -> "RetryingReader":
        """Return the reader of another bucket, under the same limits. Raises BucketMissing."""
        there = self._objects.at(bucket)
        if there is self._objects:
            return self
        return RetryingReader(
            there,
            clock=self._clock,
            retry=self._retry,
            throttle=self._throttle,
            budget=self._budget,
            read=self._count,
            slots=self._slots.at(bucket) if self._slots is not None else None,
        )

    async def head(self, key: str) -> ObjectInfo:
        """Return an object's metadata. Raises NotFound."""
        return await self._asked(lambda: self._objects.head(key))

    async def table(self, decode: Callable[..., T], *keys: str) -> T:
        """Return the result of `decode`, a pure function, for small objects. Raises NotFound, and its errors."""
        gets = [partial(self._get, key, 0) for key in keys]
        return await sure(lambda: self._asked(lambda: read_apart(decode, *gets)))

    async def checked(self, key: str, first: int, length: int, check: Callable[[bytes], T]) -> T:
        """Return the result of `check` for a range of an object, cut at its end. Raises NotFound, and its errors."""

        async def read() -> T:
            async with self.piece(key, first, length) as data:
                return check(data)

        return await sure(read)

    @asynccontextmanager
    async def piece(self, key: str, first: int, length: int) -> AsyncIterator[bytes]:
        """Lend a range of an object, cut at its end, within the memory budget until the block ends. Raises NotFound."""
        await self._throttle.ready()
        async with self._budget.held(length) if self._budget is not None else nullcontext():
            try:
                data = await retried(lambda: self._get(key, first, length), clock=self._clock, policy=self._retry)
            except InvalidInput:
                data = b""  # the object ends before that byte
            yield data

    async def exactly(self, key: str, first: int, length: int) -> bytes:
        """Return exactly `length` bytes from byte `first`. Raises NotFound, CorruptData when there are fewer."""
        return (await self.pieces(key, first, [length]))[0]

    async def sound(self, key: str, first: int, data: bytes, check: Callable[[bytes], T]) -> T:
        """Return the result of `check` for `data`, which is at byte `first`; after CorruptData it is read once more.

        Raises the errors of `check` and of `exactly`.
        """

        async def read() -> T:
            return check(await self.exactly(key, first, len(data)))

        return await sure(read, lambda: check(data))

    async def pieces(self, key: str, first: int, lengths: Sequence[int]) -> Sequence[bytes]:
        """Return consecutive ranges of exactly these lengths by one request. Raises as `exactly` does.

        An object that ends too early is corrupt, as it was longer when it was stored.
        """

        async def read() -> Sequence[bytes]:
            try:
                found = await self._asked(lambda: self._objects.get_pieces(key, first, lengths), sum(lengths))
            except InvalidInput:
                found = ()
            size_bytes = sum(map(len, found))
            self._spent(size_bytes)
            if size_bytes != sum(lengths):
                raise _short(key, first, first + size_bytes, sum(lengths))
            return found

        return await sure(read)

    async def _get(self, key: str, first: int, length: int | None) -> bytes:
        data = await self._objects.get(key, first, length)
        self._spent(len(data))
        return data

    async def _asked(self, ask: Callable[[], Awaitable[T]], size_bytes: int = 0) -> T:
        await self._throttle.ready()
        slots = self._slots

        async def in_turn() -> T:
            if slots is None:
                return await ask()
            async with slots.here.held(size=max(size_bytes, TURN_BYTES)):
                return await ask()

        return await retried(in_turn, clock=self._clock, policy=self._retry)

    def _spent(self, count: int) -> None:
        self._throttle.take(count)
        self._count(count)

    def _count(self, count: int) -> None:
        self.read_bytes += count
        if self._last_answer is not None:
            self._last_answer(count)


def _short(key: str, first: int, end: int, length: int) -> CorruptData:
    return CorruptData(
        key=key,
        offset=end,
        expected=f"bytes {first} to {first + length - 1}",
        found=f"an object that ends at byte {end}" if end > first else f"an object that ends before byte {first + 1}",
        hint="the object is shorter than when it was committed; restore it, or read from the ledger source",
    )
