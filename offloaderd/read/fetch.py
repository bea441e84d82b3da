"""Getting bytes out of the bucket: exact ranges, and retries of what may pass.

Transient errors are tried again a bounded number of times with jittered, growing pauses; everything else is final.
An object that ends too early is corrupt: it was stored longer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from offloaderd.errors import CorruptData, InvalidInput, Transient
from offloaderd.objects.whole import read_apart, sure

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from offloaderd.clock import Clock
    from offloaderd.objects.port import ObjectReader

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often to try, and how long to pause: `pause_s` doubles up to `pause_max_s`; each pause is jittered.

    No try begins later than `patience_s` after the first: a store may take long to answer that it fails, and whoever
    reads has a deadline before which he wants to hear of which object.
    """

    tries_max: int = 5
    pause_s: float = 0.1
    pause_max_s: float = 2.0
    patience_s: float = 15.0


async def retried(call: Callable[[], Awaitable[T]], *, clock: Clock, policy: RetryPolicy) -> T:
    """Return what `call` returns, calling again after Transient. Raises the last error."""
    pause_s = policy.pause_s
    until_s = clock.monotonic() + policy.patience_s
    for tries in range(1, policy.tries_max + 1):
        try:
            return await call()
        except Transient:
            if tries == policy.tries_max or clock.monotonic() >= until_s:
                raise
        await clock.sleep(clock.jitter(pause_s))
        pause_s = min(2 * pause_s, policy.pause_max_s)
    raise AssertionError("tries_max must be at least 1")


class Fetcher:
    """Reads objects of any bucket whole or in exact ranges."""

    def __init__(self, objects: ObjectReader, *, clock: Clock, retry: RetryPolicy) -> None:
        self._objects = objects
        self._clock = clock
        self._retry = retry

    async def table(self, bucket: str, decode: Callable[..., T], *names: str) -> T:
        """Return what `decode`, which is pure, makes of small objects. Raises NotFound, and as both do.

        What seems damaged is read once more.
        """
        gets = [partial(self._objects.at(bucket).get, key, 0) for key in names]
        return await sure(lambda: retried(lambda: read_apart(decode, *gets), clock=self._clock, policy=self._retry))

    async def exactly(self, bucket: str, key: str, first: int, length: int) -> bytes:
        """Return exactly `length` bytes from byte `first`. Raises NotFound, CorruptData when there are fewer."""
        return (await self.pieces(bucket, key, first, [length]))[0]

    async def checked(self, bucket: str, key: str, first: int, data: bytes, check: Callable[[bytes], T]) -> T:
        """Return what `check` makes of `data`, which lies at byte `first`; what seems damaged is read once more.

        Raises what `check` raises, and as `exactly` does.
        """

        async def read() -> T:
            return check(await self.exactly(bucket, key, first, len(data)))

        return await sure(read, lambda: check(data))

    async def pieces(self, bucket: str, key: str, first: int, lengths: Sequence[int]) -> Sequence[bytes]:
        """Return neighbouring ranges of exactly these lengths by one request. Raises as `exactly` does."""
        return await sure(lambda: self._pieces(bucket, key, first, lengths))

    async def _pieces(self, bucket: str, key: str, first: int, lengths: Sequence[int]) -> Sequence[bytes]:
        objects, length = self._objects.at(bucket), sum(lengths)
        try:
            found = await retried(
                lambda: objects.get_pieces(key, first, lengths), clock=self._clock, policy=self._retry
            )
        except InvalidInput:
            raise _short(key, first, first, length) from None
        size_bytes = sum(map(len, found))
        if size_bytes != length:
            raise _short(key, first, first + size_bytes, length)
        return found


def _short(key: str, first: int, end: int, length: int) -> CorruptData:
    return CorruptData(
        key=key,
        offset=end,
        expected=f"bytes {first} to {first + length - 1}",
        found=f"an object that ends at byte {end}" if end > first else f"an object that ends before byte {first + 1}",
        hint="the object is shorter than when it was committed; restore it, or read from the ledger source",
    )
