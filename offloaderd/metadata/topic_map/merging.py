"""Merges of consecutive segments to one streaming segment (V2) in a topic's map. Pure.

Whole ledgers (V1) become streaming segments, alone or together, and small segments become larger ones. A source is
merged whole or not at all: one transaction replaces the sources by the new segment in every context, and puts them on
the trash list. Ends of ledgers, losses, marks, the floor and the offloaded position do not change.

Excluded are segments that a broker wrote, that are marked deleted, or that have a loss inside or between them, and the
topic's newest segment, behind which its owner appends. Earlier segments of the same ledger may be merged: a concurrent
commit of the owner fails because the context has changed, and the owner reads the map again.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from offloaderd.core.errors import Conflict, InvalidInput
from offloaderd.core.model import OffloadMethod, SegmentRange
from offloaderd.metadata import paths, pieces
from offloaderd.metadata.committed import CommittedSegment, LedgerSlice, Sliced
from offloaderd.metadata.port import Step
from offloaderd.metadata.topic_map.map import TopicMap, ledger_segment
from offloaderd.metadata.topic_map.removal import to_trash

SOURCES_MAX = 500
"""Most sources of a merge: its record names them all, and one transaction puts them on the trash list."""

REASON = "rewritten as one segment"
"""Reason on the trash list for the sources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal(Sliced):
    """One object to be written from consecutive entries of `sources`: a whole ledger (V1) or a segment (V2)."""

    slices: tuple[LedgerSlice, ...]
    sources: tuple[CommittedSegment, ...]
    whole: bool


def goal_of(sources: Sequence[CommittedSegment], *, ledger_id: int | None = None) -> Goal:
    """Return the goal of all entries of consecutive segments; with `ledger_id` of that ledger alone, as a whole."""
    slices: list[LedgerSlice] = []
    for part in (part for one in sources for part in one.slices if ledger_id in {None, part.ledger_id}):
        last = slices[-1] if slices else None
        if last is not None and last.ledger_id == part.ledger_id:
            size = last.payload_bytes + part.payload_bytes
            slices[-1] = replace(part, first_entry_id=last.first_entry_id, payload_bytes=size)
        else:
            slices.append(part)
    return Goal(slices=tuple(slices), sources=tuple(sources), whole=ledger_id is not None)


def obstacle(topic_map: TopicMap, segment: CommittedSegment, buckets: Collection[str]) -> str:
    """Return why a segment cannot be replaced; empty if it can."""
    if segment.foreign:
        return "a broker wrote it"
    if segment.segment_id == topic_map.segments[-1].segment_id:
        return "it is the newest of the tier"
    if any(part.ledger_id in topic_map.deleted for part in segment.slices):
        return "a ledger of it is marked deleted"
    if segment.bucket not in buckets:
        return "it is in another bucket"
    if any(segment.begin < loss.before <= segment.end for loss in topic_map.losses):
        return "entries were lost inside it"
    return ""


def runs(topic_map: TopicMap, wanted: Collection[CommittedSegment], *, payload_bytes: int, ledgers: int) -> list[Goal]:
    """Group consecutive wanted segments into goals, up to a size and a number of ledgers; each segment is in one goal.

    The segments of a goal share bucket and prefix, and have no loss between them.
    """
    found: list[list[CommittedSegment]] = []
    held: set[int] = set()
    size_bytes = 0
    before: CommittedSegment | None = None
    chosen = {one.segment_id for one in wanted}
    lost = {(loss.after, loss.before) for loss in topic_map.losses}
    for one in topic_map.segments:
        if one.segment_id in chosen:
            its = {part.ledger_id for part in one.slices}
            if (
                before is not None
                and before.segment_id in chosen
                and (before.bucket, before.prefix) == (one.bucket, one.prefix)
                and (before.end, one.begin) not in lost
                and topic_map.joined(before.end, one.begin)
                and len(found[-1]) < SOURCES_MAX
                and size_bytes + one.payload_bytes <= payload_bytes
                and len(held | its) <= ledgers
            ):
                found[-1].append(one)
                size_bytes, held = size_bytes + one.payload_bytes, held | its
            else:
                found.append([one])
                size_bytes, held = one.payload_bytes, its
        before = one
    return [goal_of(run) for run in found]


def with_merged(topic_map: TopicMap, merged: CommittedSegment, *, now_ms: int) -> tuple[list[Step], TopicMap]:
    """Return the steps that replace segments by the one that holds all their entries, and the map afterwards.

    Raises InvalidInput if it is no streaming segment, Conflict unless replaceable segments hold exactly its entries.
    """
    merged.checked()
    topic = topic_map.topic
    if merged.method is not OffloadMethod.STREAMING:
        raise InvalidInput(f"object {merged.segment_id} holds a whole ledger")
    sources = [one for one in topic_map.segments if one.begin <= merged.end and merged.begin <= one.end]
    held = goal_of(sources).slices if sources else ()
    if _ranges(held) != _ranges(merged.slices):
        raise Conflict(f"{topic} does not hold {merged.range} in segments that {merged.segment_id} could replace")
    why = next((why for one in sources if (why := obstacle(topic_map, one, {one.bucket}))), "")
    if why:
        raise Conflict(f"segments of {topic} in {merged.range} cannot be replaced: {why}")
    gone = {one.segment_id for one in sources}
    steps: list[Step] = []
    contexts = dict(topic_map.contexts)
    for part in merged.slices:
        stored, entries = contexts[part.ledger_id], (part.first_entry_id, part.last_entry_id)
        written, left = pieces.exchanged(
            stored, paths.ledger(topic, part.ledger_id), entries, (ledger_segment(merged, part),)
        )
        assert left is not None  # noqa: S101 - it has the segment
        steps += written
        contexts[part.ledger_id] = left
    steps += [to_trash(topic, one, reason=REASON, now_ms=now_ms) for one in sources]
    rest = [one for one in topic_map.segments if one.segment_id not in gone]
    after = replace(
        topic_map,
        segments=tuple(sorted([*rest, merged], key=lambda one: one.begin)),
        contexts=MappingProxyType(contexts),
    )
    return steps, after


def _ranges(slices: Iterable[LedgerSlice]) -> list[SegmentRange]:
    return [part.range for part in slices]
