"""Seeking in ledgers that brokers offloaded themselves (PIP-17): nothing is known of them but where some entries begin.

Those of the index, at least the first of each block, and those that earlier reads have passed are compared first; then
the entries are read through from the last one that is surely before the goal. Exact up to a disorder of `DISORDER_MS`,
and up to `BLANK_MAX` entries without a time or index in a row, as among entries of the source.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from offloaderd.format.entry_time import time_of
from offloaderd.model import Position
from offloaderd.read.errors import EntriesMissing
from offloaderd.read.plan import Tier
from offloaderd.read.seek_goal import Hit
from offloaderd.read.seek_segments import first_true
from offloaderd.read.seek_source import BLANK_MAX

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from offloaderd.metadata.committed import CommittedSegment
    from offloaderd.model import EntryBatch, TopicName
    from offloaderd.read.seek_goal import Cost, Goal
    from offloaderd.read.segment import SegmentReader


class LedgerSeek:
    """The entries of one such ledger, numbered by their ids. What it costs counts pieces, cached ones as well."""

    def __init__(self, reader: SegmentReader, topic: TopicName, segment: CommittedSegment, cost: Cost) -> None:
        self.entries = segment.entries
        self._reader = reader
        self._topic = topic
        self._segment = segment
        self._cost = cost

    def position(self, number: int) -> Position:
        """Return where an entry is."""
        return Position(self._segment.begin.ledger_id, self._segment.begin.entry_id + number)

    async def find(self, goal: Goal) -> Hit | None:
        """Return the first entry that reaches the goal. Raises what reading a segment raises."""
        self._cost.at = self._segment
        places = await self._reader.known_places(self._segment)

        async def behind(number: int) -> bool:
            payload, _ = await self.entry(places[number])
            key = goal.key_of(payload)
            return key is None or key >= goal.surely_before

        first = await first_true(0, len(places), len(places) // 2, behind)
        blanks = 0
        async with aclosing(self._batches(places[max(0, first - 1)], self.entries - 1)) as batches:
            async for batch in batches:
                for entry_id, payload in enumerate(batch.payloads, batch.first_entry_id):
                    time = time_of(payload)
                    key = goal.of(time)
                    if key is not None and key >= goal.value:
                        return Hit(position=Position(batch.ledger_id, entry_id), time=time, tier=Tier.OBJECTS)
                    blanks = blanks + 1 if key is None else 0
                if blanks >= BLANK_MAX:
                    self._cost.skipped = self._cost.skipped or batch.last
                    return None
        return None

    async def entry(self, number: int) -> tuple[bytes, Tier]:
        """Return one entry."""
        self._cost.at = self._segment
        async with aclosing(self._batches(number, number)) as batches:
            async for batch in batches:
                return batch.payloads[0], Tier.OBJECTS
        raise EntriesMissing(f"the object of {self._segment.range} ended before {self.position(number)}")

    async def _batches(self, first: int, last: int) -> AsyncGenerator[EntryBatch, None]:
        reading = self._reader.read(self._topic, self._segment, self.position(first), self.position(last))
        async with aclosing(reading) as batches:
            async for batch in batches:
                self._cost.blocks += 1
                self._cost.gets += 1
                self._cost.get_bytes += batch.payload_bytes()
                yield batch
