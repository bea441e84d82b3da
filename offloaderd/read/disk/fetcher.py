"""Ranges of objects for readers: from the disk cache if they are there, else from the store, checked and then kept.

Without a disk cache this is the store's reader alone. With one there are never more GETs than without: neighbouring
ranges of which some are on the disk are fetched from the first missing one to the last.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from offloaderd.core.errors import CorruptData, OffloaderError
from offloaderd.objects.retrying import RetryingReader
from offloaderd.objects.whole import AT_ONCE_BYTES, apart
from offloaderd.read.disk.cache import DiskCache, Flight, Wanted
from offloaderd.read.disk.files import Owner, Place, place_of

T = TypeVar("T")


class Range(NamedTuple):
    """Bytes of an object, by the first and their number."""

    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """A fetched range: its bytes; its place if the disk had it, or the flight that ends with its check.

    `around` is the place of the block that it may have been read from.
    """

    offset: int
    data: bytes
    place: Place | None = None
    flight: Flight | None = None
    around: Place | None = None


@dataclass(slots=True)
class Fetcher:
    """Reads a bucket for a segment, its `owner`; `at` returns the fetcher of others. Errors as `RetryingReader`."""

    reader: RetryingReader
    disk: DiskCache | None = None
    bucket: str = ""
    owner: Owner = b""

    def at(self, bucket: str, owner: Owner) -> "Fetcher":
        """Return the fetcher of a bucket for a segment. Raises BucketMissing."""
        return Fetcher(self.reader.at(bucket), self.disk, bucket, owner)

    def _place(self, key: str, offset: int = 0, length: int = 0) -> Place:
        return place_of(self.owner, self.bucket, key, offset, length)

    @property
    def waiting_bytes(self) -> int:
        """Bytes in memory that wait to be written to the disk."""
        return self.disk.waiting_bytes if self.disk is not None else 0

    def _usable(self) -> DiskCache | None:
        return self.disk if self.disk is not None and self.disk.is_open else None

    async def table(self, decode: Callable[..., T], *keys: str) -> T:
        """Return the result of `decode`, a pure function, for small objects. Raises NotFound, and its errors."""
        disk = self._usable()
        if disk is None:
            return await self.reader.table(decode, *keys)
        places = [self._place(key) for key in keys]
        found = [data for data in await disk.get([Wanted(place, 0) for place in places]) if data is not None]
        if len(found) == len(keys):
            try:
                table = await apart(decode, *found)
            except CorruptData:
                for place in places:
                    disk.discard(place)
            else:
                disk.saved(len(keys))
                return table
        taken: list[bytes] = []

        def decoded(*data: bytes) -> T:
            result = decode(*data)
            if max(map(len, data)) < AT_ONCE_BYTES:  # a longer one is not held in memory for longer than needed
                taken[:] = data
            return result

        table = await self.reader.table(decoded, *keys)
        for place, data in zip(places, taken, strict=False):
            disk.put(place, data)
        return table

    @asynccontextmanager
    async def ranges(
        self,
        key: str,
        ranges: Sequence[Range],
        around: Range | None = None,
        *,
        wanted: bool = False,
        checked: bool = True,
    ) -> AsyncIterator[Sequence[Fetched]]:
        """Lend neighbouring ranges, each of its exact length, by one GET at most. Raises as `RetryingReader.pieces`.

        Those that pass `sound` before the block ends are kept on the disk. `around` is the block that holds them, if
        they are parts of one; `wanted` ones are admitted first. Not `checked`: no checksum is compared in `sound`.
        """
        disk = self._usable()
        if disk is None:
            pieces = await self.reader.pieces(key, ranges[0].offset, [length for _, length in ranges])
            yield [Fetched(offset, data) for (offset, _), data in zip(ranges, pieces, strict=True)]
            return
        looked_up = [self._wanted(key, one, around)._replace(checked=checked) for one in ranges]
        found = await disk.get(looked_up)
        missing = [number for number, data in enumerate(found) if data is None]
        got = [
            Fetched(offset, data, one.place, around=one.around) if data is not None else None
            for (offset, _), data, one in zip(ranges, found, looked_up, strict=True)
        ]
        if not missing:
            disk.saved(1)
            yield [one for one in got if one is not None]
            return
        first, end = missing[0], missing[-1] + 1
        flights = {
            number: disk.begin(looked_up[number].place, ranges[number].length, wanted=wanted) for number in missing
        }
        try:
            pieces = await self.reader.pieces(key, ranges[first].offset, [length for _, length in ranges[first:end]])
            for number, data in enumerate(pieces, first):
                if got[number] is None:
                    got[number] = Fetched(ranges[number].offset, data, None, flights[number])
            yield [one for one in got if one is not None]
        except OffloaderError as error:
            for flight in flights.values():
                disk.abandon(flight, error)
            raise
        finally:
            for flight in flights.values():
                disk.abandon(flight)

    def _wanted(self, key: str, one: Range, around: Range | None) -> Wanted:
        place = self._place(key, *one)
        if around is None:
            return Wanted(place, one.length)
        return Wanted(place, one.length, self._place(key, *around), one.offset - around.offset)

    async def sound(self, key: str, fetched: Fetched, check: Callable[[bytes], T]) -> T:
        """Return the result of `check` for a fetched range, and keep the range; after CorruptData it is read once more.

        What the disk had is read from the store then. Raises the errors of `check`, and as `ranges` does.
        """
        held = fetched.data

        def checked(data: bytes) -> T:
            nonlocal held
            result = check(data)
            held = data
            return result

        if fetched.place is not None and self.disk is not None:
            try:
                return check(held)
            except CorruptData:
                for place in (fetched.place, fetched.around):
                    if place is not None:
                        self.disk.discard(place)
                held = await self.reader.exactly(key, fetched.offset, len(held))
        result = await self.reader.sound(key, fetched.offset, held, checked)
        if fetched.flight is not None and self.disk is not None:
            self.disk.keep(fetched.flight, held)
        elif fetched.place is not None and self.disk is not None:
            self.disk.put(fetched.place, held)
        return result

    def forget(self, key: str, one: Range) -> None:
        """Drop a range from the disk, as its bytes turned out to be damaged."""
        if self.disk is not None:
            self.disk.discard(self._place(key, *one))

    def holds(self, key: str, one: Range) -> bool:
        """Whether a range is on the disk, or on its way there."""
        return self.disk is not None and self.disk.holds(self._place(key, *one))
