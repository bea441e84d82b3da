"""Conversion of streaming segments (V2) to whole ledgers (V1) in a topic's map: which ledgers, in which order. Pure.

A broker without offloaderd reads a ledger only from an object of its own (PIP-17), so each ledger is rewritten as one
before a return to such brokers. Only a ledger with all entries in the map, from 0 to its recorded end, is converted.
One transaction replaces its context and takes its slices out of their segments; a segment without slices goes to the
trash list in the same transaction. A segment has no holes (`TopicMap.build`), so a ledger can leave it only at its
front or its end: a ledger between two that have to stay is not converted. Ends, losses, marks, the floor and the
offloaded position do not change.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from heapq import heapify, heappop, heappush
from types import MappingProxyType
from typing import TypeAlias
from uuid import UUID

from offloaderd.core.errors import Conflict, InvalidInput
from offloaderd.core.model import OffloadMethod
from offloaderd.metadata import paths, pieces
from offloaderd.metadata.committed import CommittedSegment, LedgerSlice
from offloaderd.metadata.port import Step
from offloaderd.metadata.topic_map.map import TopicMap, ledger_segment
from offloaderd.metadata.topic_map.removal import to_trash

_Held: TypeAlias = tuple[CommittedSegment, LedgerSlice]

REASON = "rewritten as whole ledgers"
"""Reason on the trash list for a segment without slices."""

TRASH_MAX = 1000
"""Most segments that go to the trash list with their ledger, as a transaction has to stay below 1 MB.

The garbage collector deletes the others, since all of their entries are found elsewhere.
"""


class Standing(StrEnum):
    """State of a ledger for a conversion."""

    WHOLE = "whole"
    """It is stored in an object of its own."""
    CONVERTIBLE = "convertible"
    OPEN = "open"
    """It is not closed, or not offloaded to its end."""
    TRIMMED = "trimmed"
    """Its first entries were deleted by retention."""
    LOST = "lost"
    """Entries of it were lost before they were offloaded."""
    UNSURE = "unsure"
    """Its end is not recorded."""
    DELETED = "deleted"
    """It is marked deleted, and is removed after the ledgers before it."""
    ELSEWHERE = "elsewhere"
    """Part of it is stored in a bucket that this daemon does not use."""
    PINNED = "pinned"
    """It is in a segment, between ledgers that have to stay there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerState:
    """One ledger of the map. `entries` and `payload_bytes` count its offloaded part, which is in `segments` segments.

    `segment_id` and `driver` are those of the object of a whole ledger.
    """

    ledger_id: int
    standing: Standing
    why: str
    entries: int
    payload_bytes: int
    segments: int
    segment_id: UUID | None = None
    driver: str = ""


def ledger_states(
    topic_map: TopicMap, *, buckets: Collection[str], to: int | None = None, without: Collection[int] = ()
) -> tuple[LedgerState, ...]:
    """Return the state of every ledger of the map, by id.

    `buckets` are the daemon's. Ledgers after `to`, and those in `without`, are not to be converted.
    """
    held: dict[int, list[_Held]] = defaultdict(list)
    for segment in topic_map.segments:
        for part in segment.slices:
            held[part.ledger_id].append((segment, part))
    found = [_first_look(topic_map, ledger_id, parts, buckets) for ledger_id, parts in sorted(held.items())]
    wanted = {
        one.ledger_id
        for one in found
        if one.standing is Standing.CONVERTIBLE and one.ledger_id not in without and (to is None or one.ledger_id <= to)
    }
    going = set(sequence(topic_map, wanted))
    return tuple(_pinned(one) if one.ledger_id in wanted - going else one for one in found)


def sequence(topic_map: TopicMap, wanted: Collection[int]) -> list[int]:
    """Return those of the ledgers that can leave their segments, in a possible order, oldest first.

    Once the ledgers before it have left, each is at the front or the end of every segment that holds it.
    """
    holders: dict[int, list[deque[int]]] = defaultdict(list)
    for segment in topic_map.segments:
        if segment.method is OffloadMethod.STREAMING:
            row = deque(part.ledger_id for part in segment.slices)
            for ledger_id in row:
                holders[ledger_id].append(row)

    def is_free(ledger_id: int) -> bool:
        return ledger_id in wanted and all(ledger_id in {row[0], row[-1]} for row in holders[ledger_id])

    ready = [ledger_id for ledger_id in holders if is_free(ledger_id)]
    heapify(ready)
    seen, found = set(ready), []
    while ready:
        ledger_id = heappop(ready)
        found.append(ledger_id)
        for row in holders[ledger_id]:
            (row.popleft if row[0] == ledger_id else row.pop)()
            for edge in {row[0], row[-1]} - seen if row else ():
                if is_free(edge):
                    seen.add(edge)
                    heappush(ready, edge)
    return found


def holders_of(topic_map: TopicMap, ledger_id: int) -> tuple[CommittedSegment, ...]:
    """Return the segments that hold entries of a ledger, in order."""
    first = bisect_left(topic_map.segments, ledger_id, key=lambda one: one.end.ledger_id)
    behind = bisect_right(topic_map.segments, ledger_id, key=lambda one: one.begin.ledger_id)
    return tuple(
        one for one in topic_map.segments[first:behind] if any(part.ledger_id == ledger_id for part in one.slices)
    )


def with_whole(topic_map: TopicMap, whole: CommittedSegment, *, now_ms: int) -> tuple[list[Step], TopicMap]:
    """Return the steps that replace a ledger's slices by its object, and the map afterwards.

    Raises InvalidInput if `whole` is no whole ledger. Raises Conflict if the map does not allow the exchange: the
    ledger was deleted meanwhile, has other entries, or would leave a hole in a segment.
    """
    whole.checked()
    if whole.method is not OffloadMethod.LEDGER_BASED:
        raise InvalidInput(f"segment {whole.segment_id} holds no whole ledger")
    topic, ledger_id = topic_map.topic, whole.begin.ledger_id
    _check(topic_map, whole)
    kept: list[CommittedSegment] = [whole]
    gone: list[CommittedSegment] = []
    for segment in topic_map.segments:
        rest = tuple(part for part in segment.slices if part.ledger_id != ledger_id)
        edges = {segment.slices[0].ledger_id, segment.slices[-1].ledger_id}
        if rest and len(rest) < len(segment.slices) and ledger_id not in edges:
            raise Conflict(f"without ledger {ledger_id}, segment {segment.segment_id} of {topic} would have a hole")
        if rest:
            kept.append(segment if len(rest) == len(segment.slices) else replace(segment, slices=rest))
        else:
            gone.append(segment)
    part = whole.slices[0]
    entries, stored = (part.first_entry_id, part.last_entry_id), topic_map.contexts[ledger_id]
    steps, made = pieces.exchanged(stored, paths.ledger(topic, ledger_id), entries, (ledger_segment(whole, part),))
    assert made is not None  # noqa: S101 - it has the object
    steps += [to_trash(topic, segment, reason=REASON, now_ms=now_ms) for segment in gone[:TRASH_MAX]]
    contexts = {**topic_map.contexts, ledger_id: made}
    after = replace(
        topic_map, segments=tuple(sorted(kept, key=lambda one: one.begin)), contexts=MappingProxyType(contexts)
    )
    return steps, after


def _check(topic_map: TopicMap, whole: CommittedSegment) -> None:
    """Raise Conflict unless streaming segments of the map hold exactly this ledger's entries."""
    topic, ledger_id = topic_map.topic, whole.begin.ledger_id
    holding = holders_of(topic_map, ledger_id)
    if any(one.method is not OffloadMethod.STREAMING for one in holding):
        raise Conflict(f"ledger {ledger_id} of {topic} is whole already")
    parts = [part for one in holding for part in one.slices if part.ledger_id == ledger_id]
    end = topic_map.ends.get(ledger_id)
    if not parts or ledger_id in topic_map.deleted or end is None:
        raise Conflict(f"ledger {ledger_id} of {topic} is not all offloaded, or is deleted")
    held = (parts[0].first_entry_id, parts[-1].last_entry_id + 1, sum(part.entries for part in parts))
    if not held == (0, end.entries, whole.entries) or end.entries != whole.entries:
        raise Conflict(
            f"object {whole.segment_id} has {whole.entries} entries of ledger {ledger_id} of {topic}, which has "
            f"{end.entries}, and of which the map has {held[2]}"
        )


def _first_look(topic_map: TopicMap, ledger_id: int, held: Sequence[_Held], buckets: Collection[str]) -> LedgerState:
    """Return the state of a ledger by itself, without regard to its neighbours."""
    first, part = held[0]
    row = LedgerState(
        ledger_id=ledger_id,
        standing=Standing.CONVERTIBLE,
        why="",
        entries=sum(one.entries for _, one in held),
        payload_bytes=sum(one.payload_bytes for _, one in held),
        segments=len(held),
    )
    if first.method is OffloadMethod.LEDGER_BASED:
        return replace(row, standing=Standing.WHOLE, segment_id=first.segment_id, driver=first.driver)
    standing, why = _obstacle(topic_map, ledger_id, part.first_entry_id)
    elsewhere = {one.bucket for one, _ in held}.difference(buckets)
    if standing is Standing.CONVERTIBLE and elsewhere:
        known = ", ".join(map(repr, sorted(buckets)))
        standing, why = Standing.ELSEWHERE, f"it is in bucket {min(elsewhere)!r}, this daemon works with {known}"
    return replace(row, standing=standing, why=why)


def _obstacle(topic_map: TopicMap, ledger_id: int, first_entry_id: int) -> tuple[Standing, str]:
    """Return why a ledger in segments cannot be converted; CONVERTIBLE if it can."""
    floor = topic_map.floor
    if ledger_id in topic_map.deleted:
        return Standing.DELETED, "it is marked deleted, and is deleted after those before it"
    if first_entry_id and floor is not None and floor.ledger_id == ledger_id:
        return Standing.TRIMMED, f"its entries before {first_entry_id} were deleted by retention"
    if first_entry_id:
        return Standing.LOST, f"its entries before {first_entry_id} are not offloaded"
    if ledger_id in topic_map.ends:
        return Standing.CONVERTIBLE, ""
    lost = next((loss for loss in topic_map.losses if loss.after.ledger_id == ledger_id), None)
    if lost is not None:
        return Standing.LOST, f"entries of it may be lost: {lost}"
    if ledger_id == topic_map.segments[-1].end.ledger_id:
        return Standing.OPEN, "it is not closed, or not offloaded to its end"
    return Standing.UNSURE, "its end is not recorded"


def _pinned(row: LedgerState) -> LedgerState:
    why = "it is in a segment between ledgers that have to stay there"
    return replace(row, standing=Standing.PINNED, why=why)


def counts(rows: Collection[LedgerState]) -> Mapping[Standing, int]:
    """Return the number of ledgers in each state."""
    found = dict.fromkeys(Standing, 0)
    for one in rows:
        found[one.standing] += 1
    return found
