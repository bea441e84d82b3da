"""The boundaries between segments of history (PIP-76: "binary search to decide segment start and end").

The lengths of closed ledgers are known. A length inside a ledger is a query to the source, and a boundary takes log2 of
the ledger's entries of them. Boundaries are multiples of the requested size, so each is searched for by itself, several
at a time, and a segment misses the size by one entry at most.

Lengths are not trusted: they may be zero or too small although there are entries (Pulsar #24344). A ledger is split in
proportion to its entries, and named, if its last entry's length is not that of its info, or if its lengths fall. The
plan holds every entry once in any case: a wrong length only makes a segment of another size.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import structlog

from offloaderd.core.aio import each
from offloaderd.core.clock import Clock
from offloaderd.core.errors import OffloaderError, Transient
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import LedgerInfo, Position, TopicName
from offloaderd.ledgers.port import LedgerSource
from offloaderd.metadata.records.history import HistoryRange
from offloaderd.segment.builder import LEDGERS_MAX, PART_COUNT_MAX, SegmentLayout

log = structlog.get_logger(__name__)

PROBES_AT_A_TIME = 8
"""Boundaries that are searched for at a time; each sends one query after the other."""

GUESSED_BYTES = 1024
"""Assumed bytes of an entry where no ledger of the topic has a length."""


class Doubt(NamedTuple):
    """A ledger that was split by its number of entries, and why."""

    ledger_id: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Ranges in order, without gaps, that hold all entries; and the cost of the search."""

    ranges: tuple[HistoryRange, ...]
    probes: int = 0
    boundaries: int = 0
    seconds: float = 0.0
    doubts: tuple[Doubt, ...] = ()


@dataclass(slots=True)
class _Ledger:
    """The entries of one ledger to split, and their known lengths."""

    ledger_id: int
    first: int
    last: int
    size_bytes: int
    before_bytes: int = 0  # of the ledger's entries before `first`
    doubt: str = ""
    lengths: dict[int, int] = field(default_factory=dict)

    @property
    def entries(self) -> int:
        return self.last - self.first + 1

    def question(self, reason: str) -> None:
        """Note why the lengths cannot be right; the first reason is kept."""
        self.doubt = self.doubt or reason

    def by_count(self, wanted_bytes: int) -> int:
        """Return the entry at a share of the ledger, as if all entries had one size."""
        return self.first + min(self.entries - 1, -(-wanted_bytes * self.entries // max(1, self.size_bytes)) - 1)


class Splitter:
    """Splits the history of one topic into segments of about `segment_bytes` of payload."""

    def __init__(
        self,
        source: LedgerSource,
        topic: TopicName,
        *,
        segment_bytes: int,
        clock: Clock,
        metrics: Metrics | None = None,
    ) -> None:
        self._source = source
        self._topic = topic
        self._segment_bytes = segment_bytes
        self._clock = clock
        self._metrics = metrics
        self._probes = 0

    async def split(self, infos: Sequence[LedgerInfo], first: Position, last: Position) -> Split:
        """Split the entries from `first` to `last`, both inclusive; `infos` are the ledgers there, all closed.

        Raises Transient when the source does not answer.
        """
        started, self._probes = self._clock.monotonic(), 0
        ledgers = [_within(info, first, last) for info in infos]
        ledgers = [one for one in ledgers if one.entries > 0]
        await each(ledgers, lambda one: self._know_size(one, infos), in_flight_max=PROBES_AT_A_TIME)
        _estimate_unknown(ledgers)
        sums = [0, *accumulate(one.size_bytes for one in ledgers)]
        targets = range(self._segment_bytes, sums[-1], self._segment_bytes)
        asked: dict[int, list[int]] = {}
        for target in targets:
            asked.setdefault(bisect_left(sums, target) - 1, []).append(target)
        cuts: set[tuple[int, int]] = set()
        searches = [(index, target - sums[index]) for index, inside in asked.items() for target in inside]
        found = await each(searches, lambda one: self._search(ledgers[one[0]], one[1]), in_flight_max=PROBES_AT_A_TIME)
        for (index, wanted), entry_id in zip(searches, found, strict=True):
            one = ledgers[index]  # doubts that a later query raised have the whole ledger split by count
            cuts.add((index, one.by_count(wanted) if one.doubt else entry_id))
        doubts = tuple(Doubt(one.ledger_id, one.doubt) for one in ledgers if one.doubt)
        if self._metrics is not None:
            self._metrics.history_boundaries.inc(len(targets))
            self._metrics.history_doubtful_ledgers.inc(len(doubts))
        for doubt in doubts:
            log.warning("history.length_doubtful", topic=str(self._topic), ledger_id=doubt.ledger_id, why=doubt.reason)
        return Split(
            ranges=_ranges(ledgers, sums, sorted(cuts)),
            probes=self._probes,
            boundaries=len(targets),
            seconds=self._clock.monotonic() - started,
            doubts=doubts,
        )

    async def _know_size(self, one: _Ledger, infos: Sequence[LedgerInfo]) -> None:
        """Query the size of a ledger's entries if its info lacks it, or has it for the whole ledger alone."""
        whole = next(info for info in infos if info.ledger_id == one.ledger_id)
        if one.first:
            one.before_bytes = await self._length(one, one.first - 1)
        if one.last < whole.entries - 1 or whole.size_bytes <= 0:
            one.size_bytes = await self._length(one, one.last) - one.before_bytes
        else:
            one.size_bytes = whole.size_bytes - one.before_bytes
        if one.size_bytes <= 0:
            one.question(f"{one.entries} entries have {one.size_bytes} bytes")
        if one.doubt:
            one.size_bytes = 0

    async def _search(self, one: _Ledger, wanted_bytes: int) -> int:
        """Return the first entry up to which the ledger has that many bytes, if its lengths can be trusted."""
        if not one.doubt and await self._length(one, one.last) != one.before_bytes + one.size_bytes:
            stored = one.lengths.get(one.last, 0) - one.before_bytes
            one.question(f"{one.size_bytes} bytes as listed, {stored} as stored")
        low, high = one.first, one.last
        floor, wanted, ceiling = one.before_bytes, one.before_bytes + wanted_bytes, one.before_bytes + one.size_bytes
        while low < high and not one.doubt:
            middle = (low + high) // 2
            length = await self._length(one, middle)
            if not floor <= length <= ceiling:
                one.question(f"{length} bytes up to entry {middle}, not between {floor} and {ceiling}")
            elif length >= wanted:
                high, ceiling = middle, length
            else:
                low, floor = middle + 1, length
        return low

    async def _length(self, one: _Ledger, entry_id: int) -> int:
        """Query a length, once for each entry; 0 and a doubt if the source has none. Raises Transient."""
        if entry_id not in one.lengths:
            self._probes += 1
            started = self._clock.monotonic()
            try:
                one.lengths[entry_id] = await self._source.length_at(self._topic, one.ledger_id, entry_id)
            except Transient:
                raise
            except OffloaderError as error:
                one.question(f"the source cannot tell the length at entry {entry_id}: {error}")
            finally:
                if self._metrics is not None:
                    self._metrics.history_probes.inc()
                    self._metrics.history_probe_duration_seconds.observe(self._clock.monotonic() - started)
        return one.lengths.get(entry_id, 0)


def segment_bytes_for(segment_bytes_max: int, layout: SegmentLayout) -> int:
    """Return the payload bytes of a segment of history: the maximum, but at most what half of the parts can hold.

    The other half is for framing and padding; a segment of very small entries is cut by its writer all the same.
    """
    return max(1, min(segment_bytes_max, (PART_COUNT_MAX // 2) * layout.part_bytes))


def _within(info: LedgerInfo, first: Position, last: Position) -> _Ledger:
    begin = first.entry_id if info.ledger_id == first.ledger_id else 0
    end = info.entries - 1
    if not first.ledger_id <= info.ledger_id <= last.ledger_id:
        end = begin - 1
    elif info.ledger_id == last.ledger_id:
        end = min(end, last.entry_id)
    return _Ledger(info.ledger_id, begin, end, info.size_bytes)


def _estimate_unknown(ledgers: Sequence[_Ledger]) -> None:
    """Give ledgers of unknown size the size of as many entries of the other ledgers."""
    known = [one for one in ledgers if one.size_bytes > 0]
    entries, size = sum(one.entries for one in known), sum(one.size_bytes for one in known)
    for one in ledgers:
        if one.size_bytes <= 0:
            one.size_bytes = max(one.entries, one.entries * size // entries if entries else one.entries * GUESSED_BYTES)
            one.before_bytes = 0


def _ranges(
    ledgers: Sequence[_Ledger], sums: Sequence[int], cuts: Sequence[tuple[int, int]]
) -> tuple[HistoryRange, ...]:
    """Return the ranges that end at the cuts (index into the ledgers, entry), and at the last entry."""
    if not ledgers:
        return ()
    ends: list[tuple[int, int]] = []
    for cut in [*cuts, (len(ledgers) - 1, ledgers[-1].last)]:
        begin = _following(ledgers, *ends[-1])[0] if ends and ends[-1] < cut else 0
        while cut[0] - begin >= LEDGERS_MAX - 1:  # a segment with the most ledgers allowed is full
            begin += LEDGERS_MAX - 1
            ends.append((begin - 1, ledgers[begin - 1].last))
        if not ends or cut > ends[-1]:
            ends.append(cut)
    found = []
    for before, (index, entry_id) in zip([None, *ends], ends, strict=False):
        begin_index, begin_entry = (0, ledgers[0].first) if before is None else _following(ledgers, *before)
        inside = [one.entries for one in ledgers[begin_index : index + 1]]
        skipped = begin_entry - ledgers[begin_index].first
        found.append(
            HistoryRange(
                begin=Position(ledgers[begin_index].ledger_id, begin_entry),
                end=Position(ledgers[index].ledger_id, entry_id),
                entries=sum(inside) - skipped - (ledgers[index].last - entry_id),
                payload_bytes=_bytes_to(ledgers, sums, index, entry_id)
                - (_bytes_to(ledgers, sums, *before) if before is not None else 0),
            )
        )
    return tuple(found)


def _following(ledgers: Sequence[_Ledger], index: int, entry_id: int) -> tuple[int, int]:
    one = ledgers[index]
    return (index, entry_id + 1) if entry_id < one.last else (index + 1, ledgers[index + 1].first)


def _bytes_to(ledgers: Sequence[_Ledger], sums: Sequence[int], index: int, entry_id: int) -> int:
    """Return the payload bytes of all entries up to a cut, as far as lengths are known."""
    one = ledgers[index]
    if entry_id == one.last:
        return sums[index + 1]
    if not one.doubt and entry_id in one.lengths:
        return sums[index] + one.lengths[entry_id] - one.before_bytes
    return sums[index] + one.size_bytes * (entry_id - one.first + 1) // one.entries
