"""The plan of a topic's map, made of its manifests alone. Pure.

Nothing is chosen silently. Manifests that contradict each other, overlap, or lack entries that existed block the plan
until an operator decides. What manifests cannot show (an empty ledger between two segments, what came before the first
one) is reported and blocks nothing.

One overlap is no contradiction: a rollback (`history/rollback.py`) writes a ledger as an object of its own,
which supersedes the slices of that ledger in streaming segments. Its manifest is written after all of its data, and the
replaced segments are deleted only afterwards. A segment keeps the slices that nothing supersedes. An object whose slice
would leave a hole cannot have been part of the topic and is left out. A merged segment names the segments that it was
made of (`metadata/topic_map/merging.py`), and supersedes their entries.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple
from uuid import UUID

from offloaderd.core.errors import CorruptData, InvalidInput
from offloaderd.core.model import LedgerEnd, Loss, OffloadMethod, Position, SegmentRange, TopicName, lost_up_to
from offloaderd.metadata import paths, pieces
from offloaderd.metadata.committed import CommittedSegment, LedgerSlice
from offloaderd.metadata.pieces import StoredContext
from offloaderd.metadata.records.context import LedgerContext, LedgerSegment
from offloaderd.metadata.topic_map.map import TopicMap, ledger_segment
from offloaderd.upkeep.flaws import Kind

BLOCKING = frozenset({Kind.UNREADABLE, Kind.INCOMPLETE, Kind.OVERLAP, Kind.GAP, Kind.CONTRADICTION})
"""Kinds that keep a topic from being written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem for an operator to know or to decide. Without a topic it concerns all topics."""

    kind: Kind
    text: str
    topic: TopicName | None = None
    segments: tuple[UUID, ...] = ()
    what_to_do: str = ""
    entries: SegmentRange | None = None
    """The entries of a segment that is described and not whole."""

    @property
    def blocks(self) -> bool:
        """Whether nothing may be written before an operator decides."""
        return self.kind in BLOCKING


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A manifest without its blocks. `closed`: number of entries of each closed ledger; `replaces`: its sources.

    `content` is a digest of the places and checksums of its blocks: equal for the same entries, cut alike.
    """

    topic: TopicName
    segment: CommittedSegment
    epoch: int
    losses: tuple[Loss, ...] = ()
    ends: tuple[tuple[int, LedgerEnd], ...] = ()
    closed: Mapping[int, int] = field(default_factory=dict)
    replaces: frozenset[UUID] = frozenset()
    index_bytes: int = 0
    content: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    """A topic's planned map and epoch; of a blocked plan the map has what fits together."""

    map: TopicMap
    epoch: int
    problems: tuple[Problem, ...]
    left_out: tuple[UUID, ...] = ()
    """The segments of the topic's heads that the operator left out."""

    @property
    def topic(self) -> TopicName:
        """The topic of the map."""
        return self.map.topic

    @property
    def blocked(self) -> bool:
        """Whether an operator has to decide first."""
        return any(problem.blocks for problem in self.problems)


def plan_topic(
    topic: TopicName,
    found: Iterable[Known],
    *,
    prefer: Collection[UUID] = (),
    boundary: Position | None = None,
    brokers: Iterable[Known] = (),
    lost: Collection[Position] = (),
) -> TopicPlan:
    """Plan the map of one topic; segments that `prefer` names win over those that overlap them.

    Missing entries right before the `boundary` are history that is still to come, and no problem. Ledgers that
    `brokers` have offloaded fill gaps, possible gaps, recorded losses, and what is missing before the first segment. A
    gap behind a position of `lost` becomes a recorded loss. Raises InvalidInput if nothing is missing there.
    """
    known = sorted(found, key=place_of)
    problems: list[Problem] = []
    kept, replaced = superseded(known, prefer, problems)
    kept, sources = merged(kept, prefer, problems)
    replaced += sources
    chosen = _disjoint(kept, prefer, problems)
    losses = losses_of([*replaced, *chosen])
    chosen = filled(chosen, brokers, ends_of([*replaced, *chosen], []), losses)
    ends = ends_of([*replaced, *chosen], problems)
    losses = still_lost(losses, chosen, ends)
    if chosen and (boundary is None or chosen[0].segment.begin < boundary):
        problems += _front(chosen[0])
    for before, after in pairwise(chosen):
        if boundary is not None and before.segment.end < boundary <= after.segment.begin:
            continue
        if before.segment.end in lost:
            losses = _widest([*losses, _accepted(before.segment, after.segment, ends, losses)])
        problems += between(before.segment, after.segment, ends, losses)
    topic_map = TopicMap(topic)
    try:
        topic_map = TopicMap.build(topic, _contexts(topic, [one.segment for one in chosen], ends), losses)
    except (ValueError, CorruptData) as error:
        if not any(problem.blocks for problem in problems):
            problems.append(Problem(kind=Kind.CONTRADICTION, text=str(error)))
    named = tuple(replace(problem, topic=topic) for problem in problems)
    return TopicPlan(map=topic_map, epoch=max((one.epoch for one in known), default=0), problems=named)


def with_copies(found: Sequence[Known]) -> tuple[list[Known], list[Problem]]:
    """Return each segment once, with the place of its copy, and a problem for places that contradict each other.

    `found` is in the order of the places. The first place counts as the segment's own, the second as its mirror: their
    objects are the same, and no object says which was written first. A third is left to the collector of garbage.
    """
    by_id: dict[UUID, list[Known]] = {}
    for one in found:
        by_id.setdefault(one.segment.segment_id, []).append(one)
    known: list[Known] = []
    problems: list[Problem] = []
    for first, *others in by_id.values():
        segment = first.segment
        known.append(replace(first, segment=replace(segment, mirror=others[0].segment.place)) if others else first)
        for other in others:
            bucket, prefix = other.segment.place
            if replace(other, segment=replace(other.segment, bucket=segment.bucket, prefix=segment.prefix)) != first:
                text = f"segment {segment.segment_id} has another manifest in bucket {segment.bucket!r} under prefix "
                text += f"{segment.prefix!r} than in bucket {bucket!r} under prefix {prefix!r}"
                problems.append(
                    Problem(
                        kind=Kind.CONTRADICTION,
                        text=text,
                        topic=first.topic,
                        segments=(segment.segment_id,),
                        what_to_do="verify both, and take the wrong one out of its bucket",
                    )
                )
    return known, problems


def _disjoint(known: Sequence[Known], prefer: Collection[UUID], problems: list[Problem]) -> list[Known]:
    """Return segments that do not overlap; an overlap is a problem unless one of the two is preferred."""
    preferred = [one.segment for one in known if one.segment.segment_id in prefer]
    chosen: list[Known] = []
    for one in known:
        segment = one.segment
        if segment not in preferred and any(overlap(segment, other) for other in preferred):
            continue
        if chosen and overlap(chosen[-1].segment, segment):
            problems.append(_overlapping(chosen[-1].segment, segment))
            if segment.end > chosen[-1].segment.end:
                chosen[-1] = one
            continue
        chosen.append(one)
    return chosen


def filled(
    chosen: Sequence[Known], brokers: Iterable[Known], ends: Mapping[int, LedgerEnd], losses: Sequence[Loss]
) -> list[Known]:
    """Return the segments with brokers' ledgers where entries are, or may be, missing between or before them.

    A recorded loss counts as missing entries: its owner may have looked in the wrong place. Before the first segment
    only the loss itself is filled, as retention may have deleted the rest. A ledger with several copies fills nothing:
    its broker refers to only one of them, and nothing shows which.
    """
    offered = sorted(brokers, key=place_of)
    copies = Counter(one.segment.begin.ledger_id for one in offered)
    sole = [one for one in offered if copies[one.segment.begin.ledger_id] == 1]
    filled: list[Known] = []
    if chosen:
        earlier = [one for one in sole if one.segment.begin.ledger_id < chosen[0].segment.begin.ledger_id]
        begun = any(True for _ in _front(chosen[0]))
        filled += earlier if begun else [one for one in earlier if any(_is_in(one.segment, loss) for loss in losses)]
    filled += chosen[:1]
    for before, after in pairwise(chosen):
        gone, begin = before.segment.end, after.segment.begin
        if _lost_in(losses, gone, begin) or any(True for _ in between(before.segment, after.segment, ends, ())):
            filled += [one for one in sole if gone.ledger_id < one.segment.begin.ledger_id < begin.ledger_id]
        filled.append(after)
    return filled


def _lost_in(losses: Iterable[Loss], after: Position, before: Position) -> bool:
    return any(after <= loss.after and loss.before <= before for loss in losses)


def _is_in(segment: CommittedSegment, loss: Loss) -> bool:
    """Whether a segment has entries within a loss, and ends there."""
    return loss.after < segment.end < loss.before


def still_lost(losses: Sequence[Loss], chosen: Sequence[Known], ends: Mapping[int, LedgerEnd]) -> tuple[Loss, ...]:
    """Return what is left of recorded losses after brokers' ledgers were found within them."""
    found = [one.segment for one in chosen if one.segment.foreign]
    return tuple(left for loss in losses for left in _left_of(loss, [one for one in found if _is_in(one, loss)], ends))


def _left_of(loss: Loss, found: Sequence[CommittedSegment], ends: Mapping[int, LedgerEnd]) -> list[Loss]:
    """Return the parts of a loss between segments that were found within it, none once just its entries are there.

    A loss may be of more entries than were known. Where more than that were found, others may still be lost.
    """
    cut = sum(loss.after.entry_id + 1 for one in found if one.begin <= loss.after)  # the first one may begin before it
    entries = loss.entries - sum(one.entries for one in found) + cut
    if not found or (loss.certain and not entries):
        return [] if found else [loss]
    bounds = zip([loss.after, *(one.end for one in found)], [*(one.begin for one in found), loss.before], strict=True)
    parts = []
    for after, before in bounds:
        if before <= after:
            continue
        first, missing = _missing(after, before, ends, ())
        if missing or not _joined(first, before, ends):
            known = sum(run.entries for run in missing)
            parts.append(loss._replace(after=after, before=before, entries=known))
    unplaced = entries - sum(part.entries for part in parts)
    if unplaced > 0 and parts:
        parts[0] = parts[0]._replace(entries=parts[0].entries + unplaced)
    return parts


def overlap(one: CommittedSegment, other: CommittedSegment) -> bool:
    """Whether two segments hold entries of each other."""
    return one.begin <= other.end and other.begin <= one.end


def _overlapping(one: CommittedSegment, other: CommittedSegment) -> Problem:
    same = one.range == other.range
    return Problem(
        kind=Kind.OVERLAP,
        text=f"segments {one.segment_id} ({one.range}) and {other.segment_id} ({other.range}) hold "
        + ("the same entries" if same else "entries of each other"),
        segments=(one.segment_id, other.segment_id),
        what_to_do="one of them was never committed: verify both and name the one to keep with --prefer",
    )


def ends_of(chosen: Sequence[Known], problems: list[Problem]) -> dict[int, LedgerEnd]:
    """Return the ends of ledgers by all manifests; manifests that disagree are a problem."""
    words: defaultdict[int, list[tuple[LedgerEnd, CommittedSegment]]] = defaultdict(list)
    for one in chosen:
        said = dict(one.ends)
        said |= {ledger: LedgerEnd(entries, None) for ledger, entries in one.closed.items() if ledger not in said}
        for ledger_id, end in said.items():
            words[ledger_id].append((end, one.segment))
    parts = [(part, one.segment) for one in chosen for part in one.segment.slices]
    filled = {part.ledger_id for part, _ in parts}
    filled |= {ledger_id for ledger_id, found in words.items() if any(end.entries for end, _ in found)}
    ends = {ledger_id: _end_of(ledger_id, found, filled, problems) for ledger_id, found in words.items()}
    for part, segment in parts:
        ended = ends.get(part.ledger_id)
        if ended is not None and ended.entries <= part.last_entry_id:
            text = f"ledger {part.ledger_id} ended with {ended.entries} entries, and segment "
            text += f"{segment.segment_id} holds entry {part.last_entry_id} of it"
            problems.append(_contradiction(text, segment))
    return ends


def _end_of(
    ledger_id: int,
    words: Sequence[tuple[LedgerEnd, CommittedSegment]],
    filled: Collection[int],
    problems: list[Problem],
) -> LedgerEnd:
    """Return the end of a ledger by what manifests say of it; `filled` are the ledgers that had entries.

    Of several next ledgers the last one counts if a segment with entries of it says so, and none of the others had an
    entry: brokers drop an empty ledger from the list when they load the topic. The owner that found it dropped would
    have recorded a loss if it might have had entries.
    """
    followers = {end.next_ledger_id for end, _ in words if end.next_ledger_id is not None}
    last = max(followers, default=None)
    dropped = followers - {last}
    is_sure = any(last is not None and end.next_ledger_id == last <= segment.end.ledger_id for end, segment in words)
    if dropped and is_sure and dropped.isdisjoint(filled):
        words = [(LedgerEnd(end.entries, last), segment) for end, segment in words]
    known, _ = words[0]
    for end, segment in words:
        nexts = {known.next_ledger_id, end.next_ledger_id} - {None}
        if known.entries != end.entries or len(nexts) > 1:
            text = f"ledger {ledger_id} ended with {known.entries} entries before {known.next_ledger_id}, or with"
            text += f" {end.entries} before {end.next_ledger_id}, as segment {segment.segment_id} says"
            problems.append(_contradiction(text, segment))
        elif end.next_ledger_id is not None:
            known = end
    return known


def _contradiction(text: str, segment: CommittedSegment) -> Problem:
    return Problem(
        kind=Kind.CONTRADICTION,
        text=text,
        segments=(segment.segment_id,),
        what_to_do="verify the segments; leave out the one that is wrong with --without",
    )


def losses_of(chosen: Sequence[Known]) -> tuple[Loss, ...]:
    """Return the recorded losses, each once; a range within a wider one is part of it."""
    return _widest(loss for one in chosen for loss in one.losses)


def _widest(losses: Iterable[Loss]) -> tuple[Loss, ...]:
    found = sorted(set(losses))
    return tuple(
        loss
        for loss in found
        if not any(other != loss and other.after <= loss.after and loss.before <= other.before for other in found)
    )


def has_front(found: Collection[Known]) -> bool:
    """Whether something of the topic is known to have been offloaded before the first segment."""
    return bool(found) and any(True for _ in _front(min(found, key=place_of)))


def _front(first: Known) -> Iterator[Problem]:
    begin = first.segment.begin
    earlier = [ledger_id for ledger_id, _ in first.ends if ledger_id < begin.ledger_id]
    if begin.entry_id > 0 or earlier:
        what = f"something up to ledger {earlier[-1]}" if earlier else f"ledger {begin.ledger_id} up to {begin}"
        yield Problem(
            kind=Kind.FRONT,
            text=f"the bucket begins with {begin}; {what} was offloaded before, and is not in it",
            segments=(first.segment.segment_id,),
            what_to_do="nothing, if retention deleted it",
        )


def between(
    before: CommittedSegment, after: CommittedSegment, ends: Mapping[int, LedgerEnd], losses: Sequence[Loss]
) -> Iterator[Problem]:
    """Yield what is missing between two segments."""
    gone, begin = before.end, after.begin
    first, missing = _missing(gone, begin, ends, losses)
    segments = (before.segment_id, after.segment_id)
    if missing:
        yield Problem(
            kind=Kind.GAP,
            text=f"{', '.join(map(str, missing))} between {gone} and {begin}: in no segment, and not recorded as lost",
            segments=segments,
            what_to_do="look for a segment that is incomplete, unreadable or gone from the bucket and restore it; or "
            f"record the entries as lost with --lost {gone}; or begin the topic behind the gap: leave out what lies "
            "before it with --without, and what of it the source still has is offloaded again as history",
        )
    elif not _joined(first, begin, ends):
        yield Problem(
            kind=Kind.DOUBT,
            text=f"it is unknown whether there was anything between {gone} and {begin}",
            segments=segments,
            what_to_do="nothing; a version that did not record it yet has written these segments",
        )


class _Run(NamedTuple):
    """Consecutive entries of one ledger."""

    first: Position
    entries: int

    def __str__(self) -> str:
        last = Position(self.first.ledger_id, self.first.entry_id + self.entries - 1)
        return f"{self.first}" if self.entries == 1 else f"{self.first}..{last}"


def _missing(
    gone: Position, begin: Position, ends: Mapping[int, LedgerEnd], losses: Sequence[Loss]
) -> tuple[Position, list[_Run]]:
    """Return where the recorded losses behind `gone` end, and what is missing from there up to `begin`.

    Entries are missing by the known ends of the ledgers, and where a loss begins: losses begin behind what was
    offloaded, or within one another.
    """
    lost = lost_up_to(losses, gone, begin)
    first = lost if lost is not None else gone.next()
    missing = [_Run(loss.after, 1) for loss in losses if first <= loss.after < begin]
    if begin.ledger_id == first.ledger_id:
        runs = [_Run(first, begin.entry_id - first.entry_id)]
    else:
        end = ends.get(first.ledger_id)
        runs = [_Run(first, end.entries - first.entry_id if end is not None else 0)]
        directly = end is not None and end.next_ledger_id == begin.ledger_id  # as a rule: all ends are many
        others = () if directly else sorted(ends)
        between = [ledger_id for ledger_id in others if first.ledger_id < ledger_id < begin.ledger_id]
        runs += [_Run(Position(ledger_id, 0), ends[ledger_id].entries) for ledger_id in between]
        runs.append(_Run(Position(begin.ledger_id, 0), begin.entry_id))
    return first, missing + [run for run in runs if run.entries > 0]


def _accepted(
    before: CommittedSegment, after: CommittedSegment, ends: Mapping[int, LedgerEnd], losses: Sequence[Loss]
) -> Loss:
    """Return the loss of all that is missing between two segments. Raises InvalidInput for nothing."""
    _, missing = _missing(before.end, after.begin, ends, losses)
    if not missing:
        raise InvalidInput(f"nothing is known to be missing behind {before.end}")
    entries = sum(run.entries for run in missing)
    return Loss(before.end, after.begin, entries, noticed_ms=after.offloaded_ms)


def _joined(first: Position, begin: Position, ends: Mapping[int, LedgerEnd]) -> bool:
    """Whether one ledger is known to follow the other, over empty ones if need be."""
    ledger_id: int | None = first.ledger_id
    while ledger_id is not None and ledger_id < begin.ledger_id:
        end = ends.get(ledger_id)
        ledger_id = end.next_ledger_id if end is not None else None
    return ledger_id == begin.ledger_id


def _contexts(
    topic: TopicName, segments: Sequence[CommittedSegment], ends: Mapping[int, LedgerEnd]
) -> dict[int, StoredContext]:
    """Return the ledger nodes as commits would have left them. Raises ValueError for a gap inside a ledger."""
    parts: dict[int, list[LedgerSegment]] = {}
    created: dict[int, int] = {}
    for segment in segments:
        for part in segment.slices:
            parts.setdefault(part.ledger_id, []).append(ledger_segment(segment, part))
            if part.created_ms is not None:
                created.setdefault(part.ledger_id, part.created_ms)
    contexts = {}
    for ledger_id, found in parts.items():
        end = ends.get(ledger_id)
        whole = end is not None and found[-1].end_entry_id + 1 == end.entries
        known = LedgerContext(segments=tuple(found), end=end if whole else None, created_ms=created.get(ledger_id))
        contexts[ledger_id] = pieces.of_segments(paths.ledger(topic, ledger_id), known)
    return contexts


def superseded(
    known: Sequence[Known], prefer: Collection[UUID], problems: list[Problem]
) -> tuple[list[Known], list[Known]]:
    """Take slices out of streaming segments that are in objects of whole ledgers; return the rest, and the replaced.

    A preferred segment keeps all its slices. Two objects of one ledger supersede nothing.
    """
    wholes: dict[int, list[Known]] = {}
    for one in known:
        if one.segment.method is OffloadMethod.LEDGER_BASED:
            wholes.setdefault(one.segment.begin.ledger_id, []).append(one)
    sole = {ledger_id: found[0] for ledger_id, found in wholes.items() if len(found) == 1}
    kept: list[Known] = []
    replaced: list[Known] = []
    left_out: set[UUID] = set()
    for one in known:
        segment = one.segment
        gone = {part.ledger_id for part in segment.slices} & sole.keys()
        if segment.method is OffloadMethod.LEDGER_BASED or segment.segment_id in prefer or not gone:
            kept.append(one)
            continue
        rest = _run_without(segment, gone)
        held = {part.ledger_id for part in rest}
        left_out |= {sole[ledger_id].segment.segment_id for ledger_id in gone & held}
        (kept if rest else replaced).append(replace(one, segment=replace(segment, slices=rest)) if rest else one)
        if gone - held:
            problems.append(_replaced(segment, sorted(gone - held), sole))
    return sorted((one for one in kept if one.segment.segment_id not in left_out), key=place_of), replaced


def merged(
    known: Sequence[Known], prefer: Collection[UUID], problems: list[Problem]
) -> tuple[list[Known], list[Known]]:
    """Take out of segments what a merged segment holds; return the rest, and the replaced. A preferred one stays."""
    makers: dict[UUID, list[CommittedSegment]] = {}
    for one in known:
        for replaced_id in one.replaces if one.segment.method is OffloadMethod.STREAMING else ():
            makers.setdefault(replaced_id, []).append(one.segment)
    kept: list[Known] = []
    replaced: list[Known] = []
    for one in known:
        segment, made = one.segment, makers.get(one.segment.segment_id, [])
        gone = {part.ledger_id for part in segment.slices if any(_holds(other, part) for other in made)}
        rest = _run_without(segment, gone)
        if segment.segment_id in prefer or len(rest) == len(segment.slices):
            kept.append(one)
            continue
        (kept if rest else replaced).append(replace(one, segment=replace(segment, slices=rest)) if rest else one)
        text = f"segment {segment.segment_id} ({segment.range}) holds entries that were put into another"
        ids = (segment.segment_id, *(other.segment_id for other in made))
        todo = "nothing: the other was made of it; --prefer the segment to keep it as it is"
        problems.append(Problem(kind=Kind.SUPERSEDED, text=text, segments=ids, what_to_do=todo))
    return sorted(kept, key=place_of), replaced


def _holds(segment: CommittedSegment, part: LedgerSlice) -> bool:
    return segment.holds(part.range.begin) and segment.holds(part.range.end)


def _run_without(segment: CommittedSegment, gone: Collection[int]) -> tuple[LedgerSlice, ...]:
    """Return the slices of a segment without the ledgers of `gone` at its front and end."""
    slices = list(segment.slices)
    while slices and slices[0].ledger_id in gone:
        slices.pop(0)
    while slices and slices[-1].ledger_id in gone:
        slices.pop()
    return tuple(slices)


def _replaced(segment: CommittedSegment, ledgers: Sequence[int], sole: Mapping[int, Known]) -> Problem:
    objects = tuple(sole[ledger_id].segment.segment_id for ledger_id in ledgers)
    return Problem(
        kind=Kind.SUPERSEDED,
        text=f"segment {segment.segment_id} ({segment.range}) holds entries of ledgers that have objects of their own: "
        + ", ".join(f"{ledger_id} in {one}" for ledger_id, one in zip(ledgers, objects, strict=True)),
        segments=(segment.segment_id, *objects),
        what_to_do="nothing: the objects are what they were rewritten as; --prefer the segment to keep its slices",
    )


def place_of(one: Known) -> tuple[Position, Position, UUID]:
    """Return the sort key of segments."""
    return one.segment.begin, one.segment.end, one.segment.segment_id
