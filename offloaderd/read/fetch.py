"""Getting bytes out of the bucket: exact ranges, and retries of what may pass.

An object that ends too early is corrupt: it was stored longer.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

from offloaderd.core.retry import retried
from offloaderd.errors import CorruptData, InvalidInput
from offloaderd.objects.whole import read_apart, sure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from offloaderd.clock import Clock
    from offloaderd.core.retry import RetryPolicy
    from offloaderd.objects.port import ObjectReader

T = TypeVar("T")


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
