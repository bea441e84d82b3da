"""The map of a topic: which segment holds which entry, rebuilt from the ledgers' offload contexts.

Segments are disjoint and ascend, without a gap inside a ledger (P2). A map is immutable: a commit returns the
transaction's steps and the next map, so the owner need not read the store again. `removal.py` deletes segments.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import NamedTuple, Self, TypeAlias
from uuid import UUID

from offloaderd.core.aio import both, each
from offloaderd.core.errors import Conflict, Transient
from offloaderd.core.model import Gap, LedgerEnd, Loss, OffloadMethod, Position, TopicName
from offloaderd.metadata import nodes, paths, pieces
from offloaderd.metadata.committed import CommittedSegment, LedgerSlice
from offloaderd.metadata.pieces import StoredContext
from offloaderd.metadata.port import Create, Delete, MetadataStore, Replace, Step, Versioned
from offloaderd.metadata.records import codec, deletion
from offloaderd.metadata.records import history as history_record
from offloaderd.metadata.records import loss as loss_record
from offloaderd.metadata.records.context import LedgerSegment
from offloaderd.metadata.records.deletion import Floor
from offloaderd.metadata.records.history import HistoryPlan

SNAPSHOT_TRIES = 10
MIRROR_BUCKET, MIRROR_PREFIX = "mirror.bucket", "mirror.prefix"
"""Properties of the driver that locate a segment's copy; Pulsar's readers look at none that they do not know."""

Edit: TypeAlias = "Callable[[TopicMap], tuple[list[Step], TopicMap]]"
"""A pure change of a map: it returns the steps that write it, and the next map."""


@dataclass(frozen=True, slots=True)
class TopicMap:
    """All committed segments of a topic, ascending, and the context nodes they were read from, by ledger id.

    `ends` has the ledgers that are offloaded to their end. `losses` are ranges that the source deleted before they were
    offloaded. `deleted` has the time at which ledgers were marked deleted, `created` their creation time if known.
    `source_deleted` has the ledgers that the source has deleted or is about to delete. `base` is the record of what was
    deleted from the front, `base_version` its node's version. `history` is the plan of a topic whose live segments do
    not wait for history, or whose history a job writes: until it is done, segments may be missing between the last one
    before its boundary and the boundary, and nowhere else.
    """

    topic: TopicName
    segments: tuple[CommittedSegment, ...] = ()
    contexts: Mapping[int, StoredContext] = field(default_factory=dict)
    ends: Mapping[int, LedgerEnd] = field(default_factory=dict)
    losses: tuple[Loss, ...] = ()
    deleted: Mapping[int, int] = field(default_factory=dict)
    source_deleted: frozenset[int] = frozenset()
    created: Mapping[int, int] = field(default_factory=dict)
    base: Floor | None = None
    base_version: int = 0
    history: HistoryPlan | None = None
    history_version: int = 0
    loss_names: Mapping[Loss, str] = field(default_factory=dict)
    """Names of the losses that are not recorded under their usual names."""
    gaps: tuple[Gap, ...] = ()
    """Ascending; only a map that is made of a bucket alone has any."""

    @classmethod
    def build(
        cls,
        topic: TopicName,
        contexts: Mapping[int, StoredContext],
        losses: Mapping[Loss, str] | Iterable[Loss] = (),
        floor: Versioned | None = None,
        plan: Versioned | None = None,
    ) -> Self:
        """Rebuild the map from its nodes. Raises CorruptData if they cannot be one history.

        Losses are given with the names of their nodes, or without names if they are not recorded yet.
        """
        segments: list[CommittedSegment] = []
        seen: set[UUID] = set()
        ends: dict[int, LedgerEnd] = {}
        deleted: dict[int, int] = {}
        source_deleted: set[int] = set()
        created: dict[int, int] = {}
        base = deletion.decode_floor(floor.value, path=paths.floor(topic)) if floor is not None else None
        if base is not None and base.end is not None:
            ends[base.position.ledger_id] = base.end
        for ledger_id in sorted(contexts):
            path = paths.ledger(topic, ledger_id)
            known = pieces.joined(contexts[ledger_id], path)
            if known.end is not None:
                ends[ledger_id] = known.end
            if known.source_deleted:
                source_deleted.add(ledger_id)
            if known.created_ms is not None:
                created[ledger_id] = known.created_ms
            if known.deleted_ms is not None:
                deleted[ledger_id] = known.deleted_ms
            for index, found in enumerate(known.segments):
                if index == 0 and segments and segments[-1].segment_id == found.segment_id:
                    segments[-1] = _continued(segments[-1], ledger_id, found, path)
                    continue
                if found.segment_id in seen:
                    codec.corrupt(path, "segments that are each in one piece", f"{found.segment_id} in two")
                seen.add(found.segment_id)
                segments.append(committed(ledger_id, found))
        if base is not None and segments and segments[0].begin <= base.position:
            codec.corrupt(paths.floor(topic), f"an end before {segments[0].begin}, the oldest entry", base.position)
        return cls(
            topic,
            tuple(segments),
            MappingProxyType(dict(contexts)),
            MappingProxyType(ends),
            tuple(sorted(losses)),
            MappingProxyType(deleted),
            frozenset(source_deleted),
            MappingProxyType(created),
            base,
            floor.version if floor is not None else 0,
            history_record.decode(plan.value, path=paths.history_plan(topic)) if plan is not None else None,
            plan.version if plan is not None else 0,
            loss_record.unusual(losses),
        )

    @property
    def offloaded(self) -> Position | None:
        """The newest position that was ever committed, even if retention has deleted it since. It never falls."""
        return self.segments[-1].end if self.segments else self.floor

    @property
    def standing(self) -> Position | None:
        """The position after which live offloading continues: the later of the offloaded position and history's end."""
        known = (self.offloaded, self.history.last if self.history is not None else None)
        return max((one for one in known if one is not None), default=None)

    @property
    def unfinished(self) -> HistoryPlan | None:
        """The plan of a history that is not yet all offloaded or recorded as lost."""
        return self.history if self.history is not None and not self.history.done_ms else None

    @property
    def history_end(self) -> Position | None:
        """The newest committed position of history; None if there is none."""
        if self.history is None:
            return None
        index = bisect_left(self.segments, self.history.live_begin, key=_begin)
        return self.segments[index - 1].end if index else None

    def awaits(self, position: Position) -> bool:
        """Whether a position of history is neither offloaded nor recorded as lost yet."""
        plan = self.unfinished
        return (
            plan is not None
            and position < plan.live_begin
            and (self.history_end is None or self.history_end < position)
        )

    def joined(self, end: Position, begin: Position) -> bool:
        """Whether the records prove that no entry is between two positions that are neighbours in the map."""
        if any(loss.after == end and loss.before == begin for loss in self.losses):
            return True
        if begin.ledger_id == end.ledger_id:
            return begin.entry_id == end.entry_id + 1
        known = self.ends.get(end.ledger_id)
        return begin.entry_id == 0 and known is not None and known.entries == end.entry_id + 1

    @property
    def floor(self) -> Position | None:
        """End of the range that was offloaded and deleted again; None if there is none."""
        return self.base.position if self.base is not None else None

    def find(self, position: Position) -> CommittedSegment | None:
        """Return the segment that holds the entry at `position`."""
        index = self._ending_at_or_after(position)
        if index < len(self.segments) and self.segments[index].holds(position):
            return self.segments[index]
        return None

    def after(self, position: Position) -> CommittedSegment | None:
        """Return the next segment: the first with entries after `position`, except the one that holds `position`.

        A position without an entry (past the end of a ledger, say) may be between two slices of one segment. Then that
        segment is the next, because of its later slices.
        """
        index = self._ending_at_or_after(position)
        if index < len(self.segments) and self.segments[index].holds(position):
            index += 1
        return self.segments[index] if index < len(self.segments) else None

    def with_commit(
        self, segment: CommittedSegment, ends: Mapping[int, LedgerEnd] = MappingProxyType({})
    ) -> "tuple[list[Step], TopicMap]":
        """Return the steps that write the segment into every ledger it touches, and the map afterwards.

        `ends` names closed ledgers; those that are offloaded to their end by this commit are marked so. Versions
        follow: a replace raises a node's version by one, a new node has 0. Losses shrink by the segment's entries.
        Raises InvalidInput for slices that form no segment, Conflict for one that overlaps another or leaves a gap
        inside a ledger.
        """
        segment.checked()
        if segment.method is OffloadMethod.LEDGER_BASED:
            ends = {segment.end.ledger_id: LedgerEnd(segment.entries, None), **ends}
        if self.floor is not None and segment.begin <= self.floor:
            raise Conflict(f"segment {segment.segment_id} ({segment.range}) begins in what was deleted to {self.floor}")
        index = bisect_left(self.segments, segment.begin, key=_begin)
        before = self.segments[index - 1] if index else None
        following = self.segments[index] if index < len(self.segments) else None
        for other in (before, following):
            if other is not None and other.begin <= segment.end and segment.begin <= other.end:
                raise Conflict(f"segment {segment.segment_id} ({segment.range}) overlaps {other.range} of {self.topic}")
        number = segment.segment_id.int  # comparing uuids takes ten times as long
        if any(known.segment_id.int == number for known in self.segments):
            raise Conflict(f"segment {segment.segment_id} is already part of {self.topic}")
        steps: list[Step] = []
        contexts, created = dict(self.contexts), dict(self.created)
        for part in segment.slices:
            if _leaves_gap(part, before.end if before else self.floor, following.begin if following else None):
                raise Conflict(
                    f"segment {segment.segment_id} would leave a gap in ledger {part.ledger_id} of {self.topic}: it "
                    f"holds entries {part.first_entry_id} to {part.last_entry_id}"
                )
            around = [one for one in (segment, before, following) if one and one.begin.ledger_id == part.ledger_id]
            whole = any(one.method is OffloadMethod.LEDGER_BASED for one in around)
            if whole and part.ledger_id in contexts:
                raise Conflict(f"segment {segment.segment_id} is not all of ledger {part.ledger_id} of {self.topic}")
            stored, added = contexts.get(part.ledger_id), ledger_segment(segment, part)
            path = paths.ledger(self.topic, part.ledger_id)
            written, contexts[part.ledger_id] = pieces.inserted(stored, path, added, created_ms=part.created_ms)
            steps += written
            if part.created_ms is not None:
                created.setdefault(part.ledger_id, part.created_ms)
        segments = (*self.segments[:index], segment, *self.segments[index:])
        losses = [(loss, loss.without(part.range for part in segment.slices)) for loss in self.losses]
        names = dict(self.loss_names)
        for loss, left in losses:
            path = self.loss_path(loss)
            if left != loss:
                steps += [Delete(path), *([Create(path, loss_record.encode(left))] if left else [])]
                if (name := names.pop(loss, None)) is not None and left is not None:
                    names[left] = name
        after = replace(
            self,
            segments=segments,
            contexts=MappingProxyType(contexts),
            created=MappingProxyType(created),
            losses=tuple(left for _, left in losses if left),
            loss_names=MappingProxyType(names),
        )
        ending, after = after.with_ends(ends)
        return [*steps, *ending], after

    def with_ends(self, ends: Mapping[int, LedgerEnd]) -> "tuple[list[Step], TopicMap]":
        """Return the steps that mark the ledgers that are offloaded to their end, and the map afterwards."""
        steps: list[Step] = []
        contexts, known, base, base_version = dict(self.contexts), dict(self.ends), self.base, self.base_version
        for ledger_id, end in ends.items():
            if not end.adds_to(known.get(ledger_id)):
                continue
            stored, path = contexts.get(ledger_id), paths.ledger(self.topic, ledger_id)
            if stored is not None:
                if (ended := pieces.with_end(stored, path, end)) is not None:
                    step, contexts[ledger_id] = ended
                    steps.append(step)
                    known[ledger_id] = end
            elif base is not None and base.position == Position(ledger_id, end.entries - 1):
                base, known[ledger_id] = replace(base, end=end), end
                steps.append(Replace(paths.floor(self.topic), deletion.encode_floor(base), base_version))
                base_version += 1
        after = replace(self, contexts=MappingProxyType(contexts), ends=MappingProxyType(known))
        return steps, replace(after, base=base, base_version=base_version)

    def with_loss(self, loss: Loss) -> "tuple[list[Step], TopicMap]":
        """Return the steps that record a lost range, and the map afterwards; losses that end in it are merged with it.

        If a merged loss begins earlier, it was noticed too early: the entries from its begin to that of `loss` exist.
        """
        since = self.history.last if self.history is not None and loss.after >= self.history.last else None
        within = [one for one in self.losses if loss.after < one.before <= loss.before]
        within = [one for one in within if since is None or one.after >= since]  # losses of history stay apart
        whole = loss._replace(entries=loss.entries + sum(one.entries for one in within if loss.after <= one.after))
        others = [one for one in self.losses if one not in within]
        names = {one: self.loss_names.get(one, loss_record.usual(one)) for one in others}
        names[whole] = loss_record.free(whole, set(names.values()))
        after = replace(self, losses=tuple(sorted(names)), loss_names=loss_record.unusual(names))
        steps: list[Step] = [Delete(self.loss_path(one)) for one in within]
        return [*steps, Create(after.loss_path(whole), loss_record.encode(whole))], after

    def loss_path(self, loss: Loss) -> str:
        """Return the path of a loss's node."""
        return paths.loss(self.topic, self.loss_names.get(loss, loss_record.usual(loss)))

    def in_pieces(self, ledger_id: int) -> "tuple[list[Step], TopicMap]":
        """Return the steps that put a ledger's context in pieces if it is large, and the map afterwards."""
        steps, stored = pieces.in_pieces(self.contexts[ledger_id], paths.ledger(self.topic, ledger_id))
        return steps, replace(self, contexts=MappingProxyType({**self.contexts, ledger_id: stored}))

    def _ending_at_or_after(self, position: Position) -> int:
        return bisect_left(self.segments, position, key=_end)


class _Nodes(NamedTuple):
    """What a map is made of."""

    contexts: dict[int, StoredContext]
    losses: dict[Loss, str]
    floor: Versioned | None
    plan: Versioned | None


async def _nodes(store: MetadataStore, topic: TopicName, known: Mapping[int, StoredContext]) -> _Nodes:
    """Read the nodes of a map once, side by side; `known` are the contexts of the pass before."""
    single = each((paths.floor(topic), paths.history_plan(topic)), partial(nodes.node, store))
    ledgers = both(nodes.contexts(store, topic, known), nodes.losses(store, topic))
    (contexts, losses), (floor, plan) = await both(ledgers, single)
    return _Nodes(contexts, losses, floor, plan)


async def load(store: MetadataStore, topic: TopicName) -> TopicMap:
    """Read a topic's map as of one moment; empty for an unknown topic.

    The nodes are read until two passes agree, so a concurrent commit never shows in part. Raises CorruptData; Transient
    if the map changes faster than it can be read.
    """
    before: _Nodes | None = None
    for _ in range(SNAPSHOT_TRIES):
        found = await _nodes(store, topic, before.contexts if before is not None else {})
        if found == before:
            return TopicMap.build(topic, *found)
        before = found
    raise Transient(f"the segments of {topic} change faster than they can be read")


def committed(ledger_id: int, found: LedgerSegment) -> CommittedSegment:
    """Return a segment with the slice of one ledger, from that ledger's context."""
    mirror_bucket = found.properties.get(MIRROR_BUCKET)
    return CommittedSegment(
        segment_id=found.segment_id,
        slices=(LedgerSlice(ledger_id, found.begin_entry_id, found.end_entry_id, found.payload_bytes),),
        object_bytes=found.object_bytes,
        assigned_ms=found.assigned_ms,
        offloaded_ms=found.offloaded_ms,
        bucket=found.properties.get("bucket", ""),
        prefix=found.properties.get("prefix", ""),
        method=found.method,
        driver=found.driver,
        mirror=None if mirror_bucket is None else (mirror_bucket, found.properties.get(MIRROR_PREFIX, "")),
    )


def ledger_segment(segment: CommittedSegment, part: LedgerSlice) -> LedgerSegment:
    """Return a slice of a segment as it is written to its ledger's context."""
    return LedgerSegment(
        segment_id=segment.segment_id,
        begin_entry_id=part.first_entry_id,
        end_entry_id=part.last_entry_id,
        assigned_ms=segment.assigned_ms,
        offloaded_ms=segment.offloaded_ms,
        object_bytes=segment.object_bytes,
        payload_bytes=part.payload_bytes,
        method=segment.method,
        driver=segment.driver,
        properties=properties_of(segment),
    )


def properties_of(segment: CommittedSegment) -> dict[str, str]:
    """Return the properties of the driver that locate a segment's objects, and those of its copy."""
    properties = {"bucket": segment.bucket, "prefix": segment.prefix}
    if segment.mirror is not None:
        properties |= zip((MIRROR_BUCKET, MIRROR_PREFIX), segment.mirror, strict=True)
    return properties


def _continued(segment: CommittedSegment, ledger_id: int, found: LedgerSegment, path: str) -> CommittedSegment:
    """Add the next ledger's slice to a segment. Raises CorruptData if it does not belong to it."""
    more = committed(ledger_id, found)
    whole = replace(more, slices=(*segment.slices, *more.slices))
    if found.begin_entry_id or replace(whole, slices=segment.slices) != segment:
        codec.corrupt(path, f"segment {segment.segment_id} as in the ledger before, from entry 0", found)
    return whole


def _leaves_gap(part: LedgerSlice, before: Position | None, behind: Position | None) -> bool:
    """Whether entries of the slice's ledger are missing between it and the committed entries before or behind it."""
    begins = before is None or before.ledger_id != part.ledger_id or before.entry_id + 1 == part.first_entry_id
    ends = behind is None or behind.ledger_id != part.ledger_id or part.last_entry_id + 1 == behind.entry_id
    return not (begins and ends)


def _begin(segment: CommittedSegment) -> Position:
    return segment.begin


def _end(segment: CommittedSegment) -> Position:
    return segment.end
