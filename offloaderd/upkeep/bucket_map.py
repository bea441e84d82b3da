"""The map of a topic for a daemon that has nothing but the bucket. Pure.

A rebuild (`rebuild_plan.py`) writes nothing until an operator has decided what manifests leave open. A daemon that only
reads serves what is beyond doubt and reports the rest: entries that no such segment holds are a gap, with the reason.

Segments that overlap are settled by proof alone. Those with the same content are one. A segment that the topic's head
names was committed, so what overlaps it was given up. Of the others, only one row of segments may join the neighbours
on both sides, since a topic is committed without gaps. If nothing proves which segments were committed, none of them
is served.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from types import MappingProxyType
from uuid import UUID

from offloaderd.core.model import START, Gap, LedgerEnd, Loss, Position, TopicName
from offloaderd.format.head import HeadSegment
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.upkeep.flaws import Kind
from offloaderd.upkeep.rebuild_plan import (
    Known,
    Problem,
    between,
    ends_of,
    filled,
    has_front,
    losses_of,
    merged,
    overlap,
    place_of,
    still_lost,
    superseded,
)

REASONS_MAX = 3
"""Problems that the reason of a gap quotes."""
ROWS_MAX = 1000
"""Rows of overlapping segments that are compared; of more, none counts as proven."""


@dataclass(frozen=True, slots=True)
class _Records:
    """What the manifests of a topic say of its ledgers' ends and its losses."""

    ends: Mapping[int, LedgerEnd]
    losses: Sequence[Loss]

    def missing(self, one: Known, other: Known, *, possibly: bool = False) -> list[Problem]:
        """Return what is certainly missing between two segments, or `possibly`."""
        flaws = between(one.segment, other.segment, self.ends, self.losses)
        return [flaw for flaw in flaws if flaw.blocks or possibly]

    def join(self, one: Known, other: Known) -> bool:
        """Whether the other segment may follow the one directly."""
        return one.segment.end < other.segment.begin and not self.missing(one, other)


@dataclass(frozen=True, slots=True)
class _Doubt:
    """Segments of which none is served: where they begin, and the reason."""

    begin: Position
    why: str


def readable_map(
    topic: TopicName,
    found: Iterable[Known],
    *,
    heads: Sequence[HeadSegment] = (),
    brokers: Iterable[Known] = (),
    problems: Sequence[Problem] = (),
) -> TopicMap:
    """Return the map with all segments that are beyond doubt, and the gaps between and behind them.

    `heads` are the newest segments that heads of the topic name or have named; `brokers` the ledgers that brokers have
    offloaded, which fill gaps; `problems` those of the listing, for the reasons of gaps.
    """
    named = {one.segment_id for one in heads}
    offered = list(brokers)
    known = sorted([*found, *(one for one in offered if one.segment.segment_id in named)], key=place_of)
    contradictions: list[Problem] = []
    kept, replaced = superseded(known, named, [])
    kept, sources = merged(kept, named, [])
    every = [*replaced, *sources, *kept]
    records = _Records(ends_of(every, contradictions), losses_of(every))
    kept, doubts = _undisputed(kept, contradictions)
    doubts += [_Doubt(one.entries.begin, one.text) for one in problems if one.entries is not None]
    chosen, unsettled = _settled(kept, named, records)
    doubts += unsettled
    chosen = filled(chosen, offered, records.ends, records.losses)
    records = replace(records, losses=still_lost(records.losses, chosen, records.ends))
    segments = tuple(one.segment for one in chosen)
    last = segments[-1].end if segments else START
    gaps = [*_gaps_between(chosen, records, doubts, problems), *_gap_behind(last, heads, doubts, problems)]
    gaps = [*_gap_before(chosen, doubts, problems, others=bool(gaps)), *gaps]
    return TopicMap(
        topic,
        segments,
        ends=MappingProxyType(_offloaded_whole(records.ends, segments)),
        losses=tuple(records.losses),
        gaps=tuple(gaps),
    )


def settled(topic: TopicName, found: Sequence[Known], new: AbstractSet[UUID], *, begins: bool) -> list[Known]:
    """Return the segments without `new` ones behind a gap, or behind a begin that may be one if the topic `begins`.

    A listing takes a while, and is in the order of keys: one that has a segment which was committed meanwhile may lack
    those before it. All that was committed before a segment that an earlier listing had is in a listing.
    """
    if new.isdisjoint(one.segment.segment_id for one in found):
        return list(found)
    if begins and has_front(found) and all(one.segment.segment_id in new for one in found):
        return []
    made = readable_map(topic, found)
    behind = {gap.before for gap in made.gaps}
    cut = next((one.begin for one in made.segments if one.begin in behind and one.segment_id in new), None)
    return [one for one in found if cut is None or one.segment.begin < cut or one.segment.segment_id not in new]


def extended(topic_map: TopicMap, known: Known) -> TopicMap | None:
    """Return the map with a segment that directly follows it; None for any other."""
    if topic_map.gaps and topic_map.gaps[-1].before is None:
        return None
    last = topic_map.segments[-1] if topic_map.segments else None
    if last is None or known.segment.begin <= last.end:
        return None
    ends = {**topic_map.ends, **dict(known.ends)}
    losses = tuple(sorted({*topic_map.losses, *known.losses}))
    if any(True for _ in between(last, known.segment, ends, losses)):
        return None
    closed = {one: LedgerEnd(entries, None) for one, entries in known.closed.items()} | dict(known.ends)
    whole = _offloaded_whole(closed, (last, known.segment))
    return replace(
        topic_map,
        segments=(*topic_map.segments, known.segment),
        ends=MappingProxyType({**topic_map.ends, **whole}),
        losses=losses,
    )


def _offloaded_whole(ends: Mapping[int, LedgerEnd], segments: Iterable[CommittedSegment]) -> dict[int, LedgerEnd]:
    """Return the ends of the ledgers that segments, in order, hold up to their last entry."""
    offloaded = {part.ledger_id: part.last_entry_id for segment in segments for part in segment.slices}
    return {one: end for one, end in ends.items() if offloaded.get(one, -1) + 1 == end.entries > 0}


def _undisputed(known: Sequence[Known], contradictions: Sequence[Problem]) -> tuple[list[Known], list[_Doubt]]:
    """Return the segments without those of ledgers about which manifests contradict each other."""
    concerned = {segment_id for problem in contradictions for segment_id in problem.segments}
    ledgers = {part.ledger_id for one in known if one.segment.segment_id in concerned for part in one.segment.slices}
    kept, doubts = [], []
    why = "; ".join(problem.text for problem in contradictions[:REASONS_MAX])
    for one in known:
        if ledgers.isdisjoint(part.ledger_id for part in one.segment.slices):
            kept.append(one)
        else:
            doubts.append(_Doubt(one.segment.begin, why))
    return kept, doubts


def _settled(known: Sequence[Known], named: Collection[UUID], records: _Records) -> tuple[list[Known], list[_Doubt]]:
    """Return the segments without those that were given up, and those of which nothing shows which were."""
    same = {(one.segment.slices, one.content): one.segment.segment_id for one in reversed(known) if one.content}
    sure = [one for one in known if one.segment.segment_id in named]
    kept = [
        one
        for one in known
        if one.segment.segment_id in named
        or (
            same.get((one.segment.slices, one.content), one.segment.segment_id) == one.segment.segment_id
            and not any(overlap(one.segment, other.segment) for other in sure)
        )
    ]
    groups = _groups(kept)
    chosen: list[Known] = []
    doubts: list[_Doubt] = []
    before: Known | None = None
    for group, following in zip_longest(groups, groups[1:]):
        rows = [group] if len(group) == 1 else _rows(group, before, following[0] if following else None, records)
        if len(rows) == 1:
            chosen += rows[0]
            before = chosen[-1]
        else:
            ids = ", ".join(str(one.segment.segment_id) for one in group[:REASONS_MAX])
            why = f"segments {ids} hold the same entries, and nothing shows which of them was committed"
            doubts.append(_Doubt(group[0].segment.begin, why))
            before = None
    return chosen, doubts


def _groups(known: Sequence[Known]) -> list[list[Known]]:
    """Return the segments in groups, in order: those of different groups do not overlap."""
    groups: list[list[Known]] = []
    end = START
    for one in known:
        if groups and one.segment.begin <= end:
            groups[-1].append(one)
        else:
            groups.append([one])
        end = max(end, one.segment.end)
    return groups


def _rows(group: Sequence[Known], before: Known | None, after: Known | None, records: _Records) -> list[list[Known]]:
    """Return the rows of a group that join each other and the neighbours; without a neighbour all from the begin on."""
    begin = group[0].segment.begin
    firsts = [one for one in group if (records.join(before, one) if before is not None else one.segment.begin == begin)]
    rows: list[list[Known]] = []
    open_rows = [[one] for one in firsts]
    while open_rows and len(rows) + len(open_rows) <= ROWS_MAX:
        row = open_rows.pop()
        following = [one for one in group if records.join(row[-1], one)]
        open_rows += [[*row, one] for one in following]
        if not following and (after is None or records.join(row[-1], after)):
            rows.append(row)
    return rows if not open_rows else []


def _gaps_between(
    chosen: Sequence[Known], records: _Records, doubts: Sequence[_Doubt], problems: Sequence[Problem]
) -> Iterator[Gap]:
    """Yield what is certainly missing between two segments, and what is in doubt there.

    What may be missing by segments that record no ends (of older versions) counts if a manifest could not be read.
    """
    unread = _unread(problems)
    for one, other in pairwise(chosen):
        after, before = one.segment.end, other.segment.begin
        inside = [doubt for doubt in doubts if after < doubt.begin < before]
        if inside or records.missing(one, other, possibly=unread):
            yield Gap(after, before, _why(inside, problems, "no segment in the bucket holds them"))


def _gap_before(
    chosen: Sequence[Known], doubts: Sequence[_Doubt], problems: Sequence[Problem], *, others: bool
) -> Iterator[Gap]:
    """Yield the gap before the first segment, if something there cannot be read; else retention deleted it.

    A manifest that cannot be read does not show where its entries were: without `others`, there.
    """
    if not chosen:
        return
    begin = chosen[0].segment.begin
    inside = [doubt for doubt in doubts if doubt.begin < begin]
    if inside or (not others and has_front(chosen) and _unread(problems)):
        yield Gap(START, begin, _why(inside, problems, "they were offloaded, and retention may have deleted them"))


def _gap_behind(
    last: Position, heads: Sequence[HeadSegment], doubts: Sequence[_Doubt], problems: Sequence[Problem]
) -> Iterator[Gap]:
    """Yield the gap behind the last segment, if something is known to have been there."""
    inside = [doubt for doubt in doubts if doubt.begin > last]
    ahead = [one for one in heads if one.end > last]
    if inside or ahead or (last == START and _unread(problems)):
        named = [f"the topic's head names segment {one.segment_id} ({one.begin} to {one.end}), " for one in ahead[-1:]]
        missing = "".join([*named, "which cannot be read, or was deleted"]) if named else "no segment can be read"
        yield Gap(last, None, _why(inside, problems, missing))


def _unread(problems: Iterable[Problem]) -> bool:
    """Whether there is a manifest of which nothing is known."""
    return any(one.kind is Kind.UNREADABLE for one in problems)


def _why(doubts: Sequence[_Doubt], problems: Sequence[Problem], otherwise: str) -> str:
    """Return the reason of a gap: the doubts in it, or else what of the topic could not be read."""
    reasons = list(dict.fromkeys(doubt.why for doubt in doubts))[:REASONS_MAX]
    reasons = reasons or [otherwise, *(one.text for one in problems if one.blocks)][: REASONS_MAX + 1]
    return "; ".join(reasons)
