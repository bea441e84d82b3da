"""The next step of a read: a pure function of the view of the topic.

A read is a cursor that moves through the ledgers. The plan gives one step for each cursor: a run of entries of one
tier, a hop to the next ledger, a read of a manifest, or waiting. A cursor leaves a ledger only when its end is known:
- the ledger source shows it as closed, or
- it is recorded as offloaded to its end, or
- a manifest shows that it was closed when the segment was sealed, or
- the next committed segment begins in a later ledger: segments of a topic are committed without gaps, but for the one
  between the offloaded part of an unfinished history and the live segments.

Known entries that no tier has are an error, as are a ledger that is deleted during the read, a recorded loss, and
entries that the topic's retention deleted.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from operator import attrgetter
from typing import NamedTuple
from uuid import UUID

from offloaderd.core.errors import (
    EntriesDeleted,
    EntriesLost,
    EntriesMissing,
    IdentityRefused,
    InvalidInput,
    OutOfRange,
)
from offloaderd.core.model import ENTRY_ID_MAX, Gap, LedgerEnd, Loss, Position
from offloaderd.core.read_options import ReadPriority, Tier
from offloaderd.metadata.committed import CommittedSegment, LedgerSlice

_BEGIN = attrgetter("begin")
_LEDGER_ID = attrgetter("ledger_id")


class Why(StrEnum):
    """The reason for the tier of entries, as metrics name it."""

    CHOSEN = "chosen"
    """The read priority names it, or it is the buffer."""
    ONLY_HERE = "only_here"
    """The tier that the priority names does not have them."""
    MISSING = "fell_back_missing"
    CORRUPT = "fell_back_corrupt"
    UNAVAILABLE = "fell_back_unavailable"


class SourceLedger(NamedTuple):
    """One ledger of the source: its newest readable entry (-1: none), and whether that is final.

    `previous` is the ledger directly before it in the source's own list, whether or not that can be read; None if
    unknown.
    """

    ledger_id: int
    last_entry_id: int
    closed: bool
    previous: int | None = None


@dataclass(frozen=True, slots=True)
class TopicView:
    """The state of a topic in all tiers at one moment.

    `ends` has the ends of ledgers in manifests, by segment and ledger: the last entry of a closed ledger, None for an
    open one. `complete` has the ledgers that are recorded as offloaded to their end. Retention deleted all up to
    `floor`. The history between the two positions of `unfinished` is not offloaded. `source_away`: why the
    source did not answer; `refused`: it was not read, since it may be another topic's.
    """

    segments: Sequence[CommittedSegment] = ()
    source: Sequence[SourceLedger] = ()
    hot: tuple[Position, Position] | None = None
    ends: Mapping[tuple[UUID, int], int | None] = field(default_factory=dict)
    complete: Mapping[int, LedgerEnd] = field(default_factory=dict)
    losses: Sequence[Loss] = ()
    gaps: Sequence[Gap] = ()
    floor: Position | None = None
    unfinished: tuple[Position, Position] | None = None
    source_away: str = ""
    refused: IdentityRefused | None = None

    def is_empty(self) -> bool:
        """Whether no tier has anything of the topic: it is empty, or unknown."""
        return not (self.segments or self.source or self.hot or self.floor or self.gaps)

    @property
    def ends_in_gap(self) -> bool:
        """Whether more may follow the newest entry that cannot be read."""
        return bool(self.gaps) and self.gaps[-1].before is None

    def ledger(self, ledger_id: int) -> SourceLedger | None:
        """Return a ledger of the source; None without it."""
        at = bisect_left(self.source, ledger_id, key=_LEDGER_ID)
        return self.source[at] if at < len(self.source) and self.source[at].ledger_id == ledger_id else None

    def oldest(self) -> Position | None:
        """Return the oldest entry of any tier."""
        known = [Position(one.ledger_id, 0) for one in self.source if one.last_entry_id >= 0][:1]
        known += [one.begin for one in self.segments[:1]]
        known += [self.hot[0]] if self.hot else []
        return min(known, default=None)

    def newest(self) -> Position | None:
        """Return the newest entry of any tier."""
        known = [Position(one.ledger_id, one.last_entry_id) for one in self.source if one.last_entry_id >= 0][-1:]
        known += [one.end for one in self.segments[-1:]]
        known += [self.hot[1]] if self.hot else []
        return max(known, default=None)


@dataclass(frozen=True, slots=True)
class Run:
    """Entries of one ledger in one tier (SOURCE, or OBJECTS with the segment).

    `preferred`: the priority names this tier. `instead_of` is the preferred holder of the entries, which failed.
    """

    tier: Tier
    ledger_id: int
    first_entry_id: int
    last_entry_id: int
    segment: CommittedSegment | None = None
    preferred: bool = field(default=False, compare=False)
    instead_of: object = field(default=None, compare=False)

    @property
    def holder(self) -> object:
        """The key of a failure: the segment, or the ledger in the source."""
        return self.segment.segment_id if self.segment else self.ledger_id


@dataclass(frozen=True, slots=True)
class Hop:
    """The end of a ledger: continue at the first entry of the next one."""

    to: Position


@dataclass(frozen=True, slots=True)
class ReadEnd:
    """Only this segment's manifest shows whether the ledger has ended."""

    ledger_id: int
    segment: CommittedSegment


class Stop(Enum):
    """The end of the read, for now or for good."""

    DONE = "done"
    WAIT = "wait"


Step = Run | Hop | ReadEnd | Stop


def checked_range(
    view: TopicView, first: Position | None, last: Position | None, *, follow: bool
) -> tuple[Position | None, Position | None]:
    """Return the range to read; a missing end is the newest entry, or stays open when following.

    (None, ...) means that there is nothing yet. The end stays open before a gap too, which the read comes to. Raises
    InvalidInput for a reversed range or a negative position, IdentityRefused for what only a source that is refused may
    have, OutOfRange beyond the newest entry, EntriesMissing before the oldest (EntriesDeleted up to the floor) and in a
    gap. A begin between the floor and the oldest entry is left to `next_step`: whoever read up to the floor goes on.
    """
    for bound in (first, last):
        if bound is not None:
            bound.checked()
    if first is not None and last is not None and first > last:
        raise InvalidInput(f"the range {first}..{last} is reversed", hint="the first position comes before the last")
    oldest, newest = view.oldest(), view.newest()
    if view.refused is not None:
        _only_offloaded(view, view.refused, first, last)
    for bound in (first, last):
        if bound is not None and (oldest is None or bound < oldest):
            _not_deleted(view, bound)
    _not_in_gap(view, first or Position(0, 0))
    if oldest is None or newest is None:
        if not follow and (first is not None or last is not None):
            raise OutOfRange("the topic has no entries yet", hint="leave the range out, or follow")
        return first, last
    for bound in (first, last):
        if bound is not None and bound > newest and not follow:
            _not_in_gap(view, bound)
            raise OutOfRange(f"position {bound} is beyond the end", hint=f"the topic holds {oldest} to {newest}")
    for bound in (first, last):
        if bound is not None and bound < oldest and (view.floor is None or first is None):
            raise EntriesMissing(f"position {bound} is older than all stored entries", hint=f"the oldest is {oldest}")
    return first or oldest, last if last is not None or follow or view.ends_in_gap else newest


def _only_offloaded(view: TopicView, refused: IdentityRefused, first: Position | None, last: Position | None) -> None:
    """Raise `refused` for a range beyond the other tiers."""
    oldest, newest = view.oldest(), view.newest()
    outside = oldest is None or newest is None
    for bound in (first, last):
        if bound is not None and oldest is not None and bound < oldest:
            _not_deleted(view, bound)
            outside |= view.floor is None
        outside |= bound is not None and newest is not None and bound > newest
    if outside or (first is None and view.unfinished is not None):
        raise refused


def next_step(
    view: TopicView,
    cursor: Position,
    last: Position | None,
    *,
    priority: ReadPriority,
    failed: Mapping[object, Position],
) -> Step:
    """Return the step at `cursor`, the position of the next entry.

    `failed` has the position at which a segment or a ledger of the source last failed: it is used again only without
    another choice and at a later position. Raises EntriesMissing.
    """
    if last is not None and cursor > last:
        return Stop.DONE
    runs = _runs(view, cursor, last, priority)
    for run in runs:
        if run.holder not in failed:
            return run if run is runs[0] else replace(run, instead_of=runs[0].holder)
    for run in runs:
        if failed[run.holder] < cursor:
            return run if run is runs[0] else replace(run, instead_of=runs[0].holder)
    if not runs:
        _not_deleted(view, cursor)
        _not_in_gap(view, cursor)
    if runs or _has_later(view, cursor):
        raise EntriesMissing(f"entry {cursor} is in no tier", hint="`offloadctl segments` shows what is stored")
    return _leave(view, cursor)


def _not_deleted(view: TopicView, position: Position) -> None:
    """Raise EntriesDeleted for a position up to the floor."""
    if view.floor is not None and position <= view.floor:
        oldest = view.oldest()
        hint = f"the oldest is {oldest}" if oldest else "nothing is left of the topic; follow it to read what comes"
        raise EntriesDeleted(f"position {position} was deleted by retention, like all up to {view.floor}", hint=hint)


def _not_in_gap(view: TopicView, position: Position) -> None:
    """Raise EntriesMissing for a position that no readable segment holds."""
    for gap in view.gaps:
        if gap.holds(position):
            hint = f"read on from {gap.before}, or repair the bucket" if gap.before is not None else "repair the bucket"
            raise EntriesMissing(f"entries {gap} cannot be read: {gap.why}", hint=hint)


def _runs(view: TopicView, cursor: Position, last: Position | None, priority: ReadPriority) -> list[Run]:
    """Return the runs from the cursor on, best first; each ends where another choice begins."""
    ledger_id, entry_id = cursor
    source_first = priority is ReadPriority.BOOKKEEPER_FIRST
    limit = last.entry_id if last is not None and last.ledger_id == ledger_id else ENTRY_ID_MAX
    if view.hot and view.hot[0].ledger_id == ledger_id and view.hot[0].entry_id > entry_id:
        limit = min(limit, view.hot[0].entry_id - 1)
    runs = []
    at = bisect_right(view.segments, cursor, key=_BEGIN) - 1
    segment = view.segments[at] if at >= 0 else None
    held = _slice(segment, ledger_id) if segment else None
    if held and held.first_entry_id <= entry_id <= held.last_entry_id:
        end = min(limit, held.last_entry_id)
        runs.append(Run(Tier.OBJECTS, ledger_id, entry_id, end, segment, preferred=not source_first))
    source = view.ledger(ledger_id)
    if source and entry_id <= source.last_entry_id:
        end = min(limit, source.last_entry_id)
        if source_first:
            runs.insert(0, Run(Tier.SOURCE, ledger_id, entry_id, end, preferred=True))
        else:
            if runs:
                end = runs[0].last_entry_id
            elif at + 1 < len(view.segments) and view.segments[at + 1].begin.ledger_id == ledger_id:
                end = min(end, view.segments[at + 1].begin.entry_id - 1)
            runs.append(Run(Tier.SOURCE, ledger_id, entry_id, end))
    return runs


def _slice(segment: CommittedSegment, ledger_id: int) -> LedgerSlice | None:
    return next((one for one in segment.slices if one.ledger_id == ledger_id), None)


def _last_segment(view: TopicView, ledger_id: int) -> int:
    return bisect_right(view.segments, Position(ledger_id, ENTRY_ID_MAX), key=_BEGIN) - 1


def _has_later(view: TopicView, cursor: Position) -> bool:
    """Whether the bucket holds later entries of the cursor's ledger than the cursor."""
    at = _last_segment(view, cursor.ledger_id)
    held = _slice(view.segments[at], cursor.ledger_id) if at >= 0 else None
    return held is not None and cursor.entry_id <= held.last_entry_id


def _leave(view: TopicView, cursor: Position) -> Step:
    """Return the step at a cursor behind all entries of its ledger that the source or the bucket has."""
    ledger_id = cursor.ledger_id
    for loss in view.losses:
        if loss.holds(cursor):
            lost = "were deleted before they were offloaded"
            doubt = "may have been there: ledgers were deleted before they were read"
            raise EntriesLost(f"entries {loss} {lost if loss.certain else doubt}", hint=f"read on from {loss.before}")
    source = view.ledger(ledger_id)
    if source is not None:
        return _next_ledger(view, ledger_id) if source.closed else Stop.WAIT
    if ledger_id in view.complete:
        return _hop(view, cursor, view.complete[ledger_id].entries - 1)
    at = _last_segment(view, ledger_id)
    held = _slice(view.segments[at], ledger_id) if at >= 0 else None
    followed = at + 1 < len(view.segments) and not _before_gap(view, ledger_id)
    if held is not None:
        asked = (view.segments[at].segment_id, ledger_id)
        if asked not in view.ends:
            return ReadEnd(ledger_id, view.segments[at])
        if (end := view.ends[asked]) is not None:
            return _hop(view, cursor, end)
        followed |= view.segments[at].end.ledger_id > ledger_id
        committed = held.last_entry_id
    elif view.floor is not None and view.floor.ledger_id == ledger_id:
        committed = view.floor.entry_id
    elif _later_ledgers(view, ledger_id):
        raise EntriesMissing(f"no tier knows ledger {ledger_id} of {cursor}", hint="it was deleted; begin after it")
    else:
        return Stop.WAIT
    if followed:
        return _next_ledger(view, ledger_id)
    if (view.source and view.source[-1].ledger_id > ledger_id) or _before_gap(view, ledger_id):
        raise EntriesMissing(
            f"it is unknown whether ledger {ledger_id} ended at entry {committed}",
            hint="the ledger source has dropped it, and its segment was sealed before it was closed",
        )
    return Stop.WAIT


def _before_gap(view: TopicView, ledger_id: int) -> bool:
    """Whether history that is not offloaded is between a ledger and the next one in the bucket."""
    gap = view.unfinished
    return gap is not None and gap[0].ledger_id <= ledger_id < gap[1].ledger_id


def _later_source_ledgers(view: TopicView, ledger_id: int) -> list[int]:
    at = bisect_right(view.source, ledger_id, key=_LEDGER_ID)
    return [one.ledger_id for one in view.source[at : at + 1]]


def _later_segment_ledgers(view: TopicView, ledger_id: int) -> list[int]:
    at = _last_segment(view, ledger_id)
    later = []
    for segment in view.segments[max(at, 0) : at + 2]:
        later += [one.ledger_id for one in segment.slices if one.ledger_id > ledger_id][:1]
    return later


def _later_ledgers(view: TopicView, ledger_id: int) -> list[int]:
    """Return later ledgers of the source, of the bucket and of the buffer."""
    later = _later_source_ledgers(view, ledger_id) + _later_segment_ledgers(view, ledger_id)
    if view.hot:
        later += [one.ledger_id for one in view.hot if one.ledger_id > ledger_id][:1]
    return later


def _hop(view: TopicView, cursor: Position, end_entry_id: int) -> Step:
    if cursor.entry_id <= end_entry_id:
        raise EntriesMissing(
            f"entries {cursor} to {cursor.ledger_id}:{end_entry_id} are in no tier",
            hint="the ledger source has dropped them before they were offloaded",
        )
    return _next_ledger(view, cursor.ledger_id)


def _next_ledger(view: TopicView, ledger_id: int) -> Step:
    """Return the hop to the ledger after an ended one, if there is one and none can be between.

    The buffer proves nothing: it shows its two ends only. Nor does the bucket before a gap: only the source's list, or
    the ledger's record, shows that the gap is empty. The bucket's ledgers behind the gap come before later ones of the
    source.
    """
    gap = _before_gap(view, ledger_id)
    stored, listed = _later_segment_ledgers(view, ledger_id), _later_source_ledgers(view, ledger_id)
    later = [*stored, *listed]
    if (gap or not stored) and later and not _directly_follows(view, ledger_id, min(later)):
        raise EntriesMissing(
            f"it is unknown what was between ledgers {ledger_id} and {min(later)}",
            hint="the source does not have it any more; what was lost is known once the owner has read the source",
        )
    if not later and gap:
        raise EntriesMissing(
            f"what follows ledger {ledger_id} is not offloaded yet, and not at the source",
            hint="`offloadctl history status` shows how far the topic's history is offloaded",
        )
    return Hop(Position(min(later), 0)) if later else Stop.WAIT


def _directly_follows(view: TopicView, ledger_id: int, later: int) -> bool:
    """Whether it is known that no ledger with entries was between two neighbours of what can be read.

    The source's own list also names ledgers that it cannot give any more: BookKeeper has deleted them. One that is gone
    from the middle of that list was empty, since all others are deleted from its front.
    """
    listed = view.ledger(later)
    if listed is not None and listed.previous is not None and listed.previous >= ledger_id:
        return listed.previous == ledger_id
    if view.ledger(ledger_id) is not None:
        return True
    known = view.complete.get(ledger_id)
    return known is not None and known.next_ledger_id == later
