"""State of each ledger of a topic, from source, map and grants. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from offloaderd.core.model import LedgerInfo
from offloaderd.metadata.committed import CommittedSegment, LedgerSlice
from offloaderd.metadata.records.grant import Grant
from offloaderd.metadata.topic_map import removal
from offloaderd.metadata.topic_map.map import TopicMap


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRow:
    """One ledger. `entries` None: unknown; `at_source` None: no source, or no answer from it."""

    ledger_id: int
    state: str
    entries: int | None
    offloaded_entries: int
    payload_bytes: int
    segments: int
    at_source: bool | None
    deleted_ms: int
    grant: Grant | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionPlan:
    """Effect of marking ledgers deleted: segments to remove, and unmarked ledgers that keep others waiting."""

    segments: tuple[CommittedSegment, ...]
    waits_for: tuple[int, ...]


def ledger_rows(
    topic_map: TopicMap, source: Sequence[LedgerInfo] | None, grants: Mapping[int, Grant]
) -> list[LedgerRow]:
    """Return every ledger of the source or the map, by id."""
    at_source = {info.ledger_id: info for info in source or ()}
    parts_of: dict[int, list[LedgerSlice]] = {}
    for segment in topic_map.segments:
        for part in segment.slices:
            parts_of.setdefault(part.ledger_id, []).append(part)
    found = []
    for ledger_id in sorted(topic_map.contexts.keys() | at_source.keys()):
        info, end = at_source.get(ledger_id), topic_map.ends.get(ledger_id)
        parts = parts_of.get(ledger_id, [])
        found.append(
            LedgerRow(
                ledger_id=ledger_id,
                state=_state(topic_map, ledger_id, info, grants.get(ledger_id)),
                entries=info.entries if info is not None else end.entries if end is not None else None,
                offloaded_entries=sum(part.entries for part in parts),
                payload_bytes=sum(part.payload_bytes for part in parts),
                segments=len(parts),
                at_source=None if source is None else info is not None,
                deleted_ms=topic_map.deleted.get(ledger_id, 0),
                grant=grants.get(ledger_id),
            )
        )
    return found


def _state(topic_map: TopicMap, ledger_id: int, info: LedgerInfo | None, grant: Grant | None) -> str:
    if ledger_id in topic_map.deleted:
        return "deleted"
    if grant is not None and (grant.revoked_ms or grant.in_force):
        return "revoked" if grant.revoked_ms else "granted"
    if ledger_id in topic_map.ends and ledger_id in topic_map.contexts:
        return "offloaded"
    if info is None:
        # a later ledger has been offloaded, so this one cannot grow
        return "closed" if topic_map.segments and topic_map.segments[-1].end.ledger_id > ledger_id else "open"
    return "closed" if info.closed else "open"


def deletion_plan(topic_map: TopicMap, ledger_ids: Iterable[int]) -> DeletionPlan:
    """Return the effect of marking these ledgers as well."""
    if topic_map.unfinished is not None:
        return DeletionPlan(segments=(), waits_for=())  # nothing is removed until history is done
    _, marked = removal.mark_deleted(topic_map, ledger_ids, now_ms=0)
    going: list[CommittedSegment] = []
    for segment in marked.segments:
        if not removal.is_marked(marked, segment):
            waiting = {part.ledger_id for other in marked.segments[len(going) :] for part in other.slices}
            held = bool(waiting & marked.deleted.keys())
            keeping = [part.ledger_id for part in segment.slices if part.ledger_id not in marked.deleted]
            return DeletionPlan(segments=tuple(going), waits_for=tuple(keeping) if held else ())
        going.append(segment)
    return DeletionPlan(segments=tuple(going), waits_for=())
