"""Where segments of history end: whatever the lengths are worth, every entry is in one range, and probes are few."""

from __future__ import annotations

from itertools import accumulate, pairwise
from math import ceil, log2
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.core.errors import NotFound, Transient
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import LedgerInfo, Position
from offloaderd.history.boundaries import Splitter, segment_bytes_for
from offloaderd.segment.builder import LEDGERS_MAX, SegmentLayout
from tests.unit.rigs.rig import TOPIC
from tests.virtual import LoopClock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from offloaderd.core.model import TopicName
    from offloaderd.history.boundaries import Split
    from offloaderd.metadata.records.history import HistoryRange

Sizes = dict[int, list[int]]
sizes = st.dictionaries(st.integers(0, 500), st.lists(st.integers(0, 90), max_size=40), max_size=8)


class Lengths:
    """A source of lengths alone, which may be wrong."""

    def __init__(
        self, ledgers: Mapping[int, Sequence[int]], *, wrong: Mapping[tuple[int, int], int] | None = None
    ) -> None:
        self.sums = {ledger_id: list(accumulate(one)) for ledger_id, one in ledgers.items()}
        self.wrong = wrong or {}
        self.asked: list[tuple[int, int]] = []
        self.fails: Exception | None = None

    async def length_at(self, topic: TopicName, ledger_id: int, entry_id: int) -> int:
        """Say what is stored, or the wrong value."""
        assert topic == TOPIC
        self.asked.append((ledger_id, entry_id))
        if self.fails is not None:
            raise self.fails
        return self.wrong.get((ledger_id, entry_id), self.sums[ledger_id][entry_id])


def infos_of(ledgers: Mapping[int, Sequence[int]]) -> list[LedgerInfo]:
    """The ledgers as their source lists them."""
    return [
        LedgerInfo(ledger_id=one, closed=True, entries=len(ledgers[one]), size_bytes=sum(ledgers[one]), closed_at_ms=1)
        for one in sorted(ledgers)
    ]


def positions(ledgers: Mapping[int, Sequence[int]], first: Position, last: Position) -> list[Position]:
    """All entries between two positions."""
    every = [Position(one, entry) for one in sorted(ledgers) for entry in range(len(ledgers[one]))]
    return [one for one in every if first <= one <= last]


def held(ranges: Sequence[HistoryRange], every: Sequence[Position]) -> list[list[Position]]:
    """The entries of each range."""
    return [[one for one in every if part.begin <= one <= part.end] for part in ranges]


async def split(
    source: Lengths, infos: Sequence[LedgerInfo], first: Position, last: Position, segment_bytes: int = 100
) -> Split:
    """Split with that source."""
    splitter = Splitter(
        source,  # type: ignore[arg-type]  # of a source, only the lengths are asked for
        TOPIC,
        segment_bytes=segment_bytes,
        clock=LoopClock(),
        metrics=Metrics(),
    )
    return await splitter.split(infos, first, last)


def sound(found: Split, ledgers: Sizes, first: Position, last: Position) -> list[list[Position]]:
    """Check that the ranges hold every entry once, begin and end with one, and name how many there are."""
    every = positions(ledgers, first, last)
    parts = held(found.ranges, every)
    assert [one for part in parts for one in part] == every
    for part, one in zip(parts, found.ranges, strict=True):
        assert (one.begin, one.end, one.entries) == (part[0], part[-1], len(part))
        assert len({position.ledger_id for position in part}) < LEDGERS_MAX
    for before, after in pairwise(found.ranges):
        assert before.end < after.begin
    return parts


@given(sizes, st.integers(1, 300), st.data())
async def test_ranges_hold_everything_once_and_are_as_large_as_asked(
    ledgers: Sizes, segment_bytes: int, data: st.DataObject
) -> None:
    """For any ledgers and any part of them; a range misses the size by less than its own and its neighbour's entry."""
    every = positions(ledgers, Position(0, 0), Position(10_000, 0))
    bounds = sorted(data.draw(st.lists(st.sampled_from(every), min_size=2, max_size=2))) if every else [Position(0, 0)]
    first, last = bounds[0], bounds[-1]
    source = Lengths(ledgers)
    found = await split(source, infos_of(ledgers), first, last, segment_bytes)
    parts = sound(found, ledgers, first, last)
    sizes_of = [[ledgers[one.ledger_id][one.entry_id] for one in part] for part in parts]
    if not found.doubts:
        largest = max((size for part in sizes_of for size in part), default=0)
        for part in sizes_of[:-1]:
            assert segment_bytes - largest < sum(part) < segment_bytes + largest
        assert [sum(part) for part in sizes_of] == [one.payload_bytes for one in found.ranges]


@given(sizes.filter(lambda ledgers: all(sum(one) > 0 for one in ledgers.values())), st.integers(1, 300))
async def test_probes_are_few(ledgers: Sizes, segment_bytes: int) -> None:
    """At most log2 of a ledger's entries for each boundary in it, and one to compare the whole."""
    source = Lengths(ledgers)
    found = await split(source, infos_of(ledgers), Position(0, 0), Position(10_000, 0), segment_bytes)
    assert found.probes == len(source.asked) == len(set(source.asked))
    longest = max((len(one) for one in ledgers.values()), default=1)
    assert found.probes <= found.boundaries * (ceil(log2(longest)) + 1)
    assert not found.doubts


@given(
    sizes,
    st.dictionaries(st.integers(0, 7), st.integers(-50, 4000)),
    st.dictionaries(st.tuples(st.integers(0, 7), st.integers(0, 39)), st.integers(-100, 5000)),
    st.integers(1, 300),
)
async def test_wrong_lengths_break_nothing(
    ledgers: Sizes, listed: dict[int, int], stored: dict[tuple[int, int], int], segment_bytes: int
) -> None:
    """Sizes that are zero, negative, too small or too large, and lengths that fall: every entry is in one range."""
    ids = sorted(ledgers)
    infos = [
        LedgerInfo(ledger_id=one.ledger_id, closed=True, entries=one.entries, size_bytes=listed.get(n, one.size_bytes))
        for n, one in enumerate(infos_of(ledgers))
    ]
    wrong = {(ids[n], entry): length for (n, entry), length in stored.items() if n < len(ids)}
    found = await split(Lengths(ledgers, wrong=wrong), infos, Position(0, 0), Position(10_000, 0), segment_bytes)
    sound(found, ledgers, Position(0, 0), Position(10_000, 0))


async def test_a_ledger_without_a_size_is_named_and_split_by_its_entries() -> None:
    """Pulsar #24344: entries are there, and neither the list nor the entries say how long they are."""
    ledgers = {1: [10] * 20, 2: [10] * 40, 3: [10] * 20}
    infos = [LedgerInfo(ledger_id=n, closed=True, entries=len(ledgers[n]), size_bytes=0) for n in ledgers]
    found = await split(Lengths(ledgers, wrong={(2, 39): 0}), infos, Position(1, 0), Position(3, 19), segment_bytes=200)
    assert [one.ledger_id for one in found.doubts] == [2]
    assert [(one.begin, one.end) for one in found.ranges] == [
        (Position(1, 0), Position(1, 19)),
        (Position(2, 0), Position(2, 19)),
        (Position(2, 20), Position(2, 39)),
        (Position(3, 0), Position(3, 19)),
    ]


async def test_a_ledger_that_has_vanished_is_split_all_the_same() -> None:
    """Retention may take it while the plan is made; whoever reads it records the loss."""
    ledgers = {1: [10] * 20}
    source = Lengths(ledgers)
    source.fails = NotFound("gone")
    found = await split(source, infos_of(ledgers), Position(1, 0), Position(1, 19), segment_bytes=100)
    assert [(one.begin.entry_id, one.end.entry_id) for one in found.ranges] == [(0, 9), (10, 19)]
    source.fails = Transient("away")
    with pytest.raises(Transient):
        await split(source, infos_of(ledgers), Position(1, 0), Position(1, 19), segment_bytes=100)


@pytest.mark.parametrize("count", [LEDGERS_MAX - 1, LEDGERS_MAX, 3 * LEDGERS_MAX])
async def test_a_segment_has_no_more_ledgers_than_a_commit_can_write(count: int) -> None:
    """However small they are."""
    ledgers = {n: [1] for n in range(count)}
    found = await split(Lengths(ledgers), infos_of(ledgers), Position(0, 0), Position(count, 0), segment_bytes=10**9)
    sound(found, ledgers, Position(0, 0), Position(count, 0))
    assert len(found.ranges) == ceil(count / (LEDGERS_MAX - 1))
    assert found.probes == 0


def test_a_segment_is_no_larger_than_an_object_can_be() -> None:
    """Parts are limited in number; half of their bytes may be framing."""
    layout = SegmentLayout(block_bytes=64, part_bytes=1000)
    assert segment_bytes_for(10**12, layout) == 5_000_000
    assert segment_bytes_for(100, layout) == 100
