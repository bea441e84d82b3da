"""Loads pieces of data objects into a cache: neighbours by one request, each checked, from place after place."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from offloaderd.core.errors import Closed, CorruptData, OffloaderError, reported
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.read.cache import Cache, Slot
from offloaderd.read.disk.fetcher import Fetcher, Range
from offloaderd.read.places import PASSED_ON, Places, graver
from offloaderd.read.tables import SegmentTable

V = TypeVar("V")


class Extents(NamedTuple):
    """Neighbouring ranges of a data object, and the block `around` them if they are parts of one."""

    ranges: Sequence[Range]
    around: Range | None = None


class _Piece(NamedTuple, Generic[V]):
    """A range of a data object to load, and the error of the places that were read for it."""

    extent: Range
    slot: Slot[V]
    check: Callable[..., V]
    error: OffloaderError | None = None


@dataclass(frozen=True, slots=True)
class Loading(Generic[V]):
    """Loads pieces of data objects into a cache, from the mirror of a segment if its own place does not give them."""

    fetcher: Fetcher
    places: Places
    cache: Cache[V]
    slot_bytes: int
    report: Callable[[CorruptData], None]

    async def load(
        self, table: SegmentTable, extents: Extents, slots: Sequence[Slot[V]], checks: Sequence[Callable[..., V]]
    ) -> None:
        """Fetch neighbouring pieces of the data object with one request; check each."""
        left = [_Piece(*piece) for piece in zip(extents.ranges, slots, checks, strict=True)]
        places = self.places.of(table.segment)
        for number, one in enumerate(places, start=1):
            failed: list[_Piece[V]] = []
            for run in _neighbours(left):
                failed += await self._load_from(table, one, run, extents.around)
            if failed and failed[0].error is not None and number < len(places):
                self.places.passed_on(table.topic, one, failed[0].error)
            left = failed
        for piece in left:
            self.cache.fail(piece.slot, piece.error or Closed("the value is gone"))

    async def _load_from(
        self, table: SegmentTable, one: CommittedSegment, run: Sequence[_Piece[V]], around: Range | None
    ) -> list[_Piece[V]]:
        """Load neighbouring pieces from one place; return those that it did not give, with the error."""
        key, failed = one.keys.data, []
        try:
            there = self.fetcher.at(one.bucket, table.owner)
            async with AsyncExitStack() as stack:
                with reported(self.report):
                    pieces = there.ranges(key, [piece.extent for piece in run], around)
                    fetched = await stack.enter_async_context(pieces)
                for piece, found in zip(run, fetched, strict=True):
                    try:
                        sound = await there.sound(key, found, partial(piece.check, key=key))
                    except PASSED_ON as error:
                        if isinstance(error, CorruptData):
                            self.report(error)
                        failed.append(piece._replace(error=graver(piece.error, error)))
                    else:
                        self.cache.fill(piece.slot, sound, piece.extent.length + self.slot_bytes)
                    await asyncio.sleep(0)  # noqa: TID251 - yields to the loop between pieces, takes no time
        except PASSED_ON as error:
            return [piece._replace(error=graver(piece.error, error)) for piece in run]
        return failed


def _neighbours(pieces: Sequence[_Piece[V]]) -> list[list[_Piece[V]]]:
    """Return the pieces in runs without a gap, one for each request."""
    runs: list[list[_Piece[V]]] = []
    for piece in pieces:
        if runs and sum(runs[-1][-1].extent) == piece.extent.offset:
            runs[-1].append(piece)
        else:
            runs.append([piece])
    return runs
