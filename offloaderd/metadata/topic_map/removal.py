"""How segments leave a topic's map: ledgers are marked deleted, and the oldest segment goes when all of its are. Pure.

Rules: segments go from the front alone, so what is deleted is everything up to the floor and nothing else; the floor
rises in the transaction that takes the segment out, and the same transaction puts its objects on the trash list, so a
crash leaves a segment that is whole or one whose deletion is on record. What a broker wrote is the broker's to delete:
it only leaves the map. A ledger's last segment takes its context
along, mark and all; how the ledger ended stays in the floor for as long as the floor stands in it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from offloaderd.core.errors import Conflict
from offloaderd.core.model import TopicName
from offloaderd.metadata import paths, pieces
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.port import Create, Delete, Replace, Step
from offloaderd.metadata.records import floor as floor_record
from offloaderd.metadata.records import trash as trash_record
from offloaderd.metadata.topic_map.map import TopicMap

BATCH_BYTES = 500_000
"""Contexts that are marked in one transaction; the store takes 1 MB. A larger one goes alone."""
MARK_BYTES = 1024
"""What a mark adds to a transaction at most, beside the context: its path, and itself."""


def mark_deleted(topic_map: TopicMap, ledger_ids: Iterable[int], *, now_ms: int) -> tuple[list[Step], TopicMap]:
    """Return the steps that mark ledgers deleted, and the map afterwards.

    A ledger of which the map holds nothing, or that is marked already, needs none.
    """
    steps: list[Step] = []
    contexts, deleted = dict(topic_map.contexts), dict(topic_map.deleted)
    for ledger_id in sorted(set(ledger_ids) & contexts.keys() - deleted.keys()):
        stored, path = contexts[ledger_id], paths.ledger(topic_map.topic, ledger_id)
        step, contexts[ledger_id] = pieces.with_mark(stored, path, lambda known: replace(known, deleted_ms=now_ms))
        steps.append(step)
        deleted[ledger_id] = now_ms
    return steps, replace(topic_map, contexts=MappingProxyType(contexts), deleted=MappingProxyType(deleted))


def note_source_deleted(topic_map: TopicMap, ledger_ids: Iterable[int]) -> tuple[list[Step], TopicMap]:
    """Return the steps that note of ledgers that their source has no copy any more, and the map afterwards.

    Pulsar notes it before it deletes (`bookkeeperDeleted`). One that is noted already, or of which the map holds
    nothing, needs none.
    """
    steps: list[Step] = []
    contexts = dict(topic_map.contexts)
    noted = sorted(set(ledger_ids) & contexts.keys() - topic_map.source_deleted)
    for ledger_id in noted:
        stored, path = contexts[ledger_id], paths.ledger(topic_map.topic, ledger_id)
        step, contexts[ledger_id] = pieces.with_mark(stored, path, lambda known: replace(known, source_deleted=True))
        steps.append(step)
    after = replace(topic_map, contexts=MappingProxyType(contexts))
    return steps, replace(after, source_deleted=topic_map.source_deleted.union(noted))


def note_created(topic_map: TopicMap, created: Mapping[int, int]) -> tuple[list[Step], TopicMap]:
    """Return the steps that note when ledgers were made, in place of what was noted before, and the map afterwards."""
    steps: list[Step] = []
    contexts, known = dict(topic_map.contexts), dict(topic_map.created)
    for ledger_id, created_ms in sorted(created.items()):
        node, path = contexts.get(ledger_id), paths.ledger(topic_map.topic, ledger_id)
        if node is None or known.get(ledger_id) == created_ms:
            continue
        made = partial(replace, created_ms=created_ms)
        step, contexts[ledger_id] = pieces.with_mark(node, path, made)
        steps.append(step)
        known[ledger_id] = created_ms
    return steps, replace(topic_map, contexts=MappingProxyType(contexts), created=MappingProxyType(known))


def batches(topic_map: TopicMap, ledger_ids: Iterable[int]) -> Iterator[list[int]]:
    """Yield those ledgers of which the map holds something, so many at a time that one transaction can mark them."""
    batch: list[int] = []
    size = 0
    for ledger_id in sorted(set(ledger_ids) & topic_map.contexts.keys()):
        more = len(topic_map.contexts[ledger_id].value) + MARK_BYTES
        if batch and size + more > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(ledger_id)
        size += more
    if batch:
        yield batch


def is_marked(topic_map: TopicMap, segment: CommittedSegment) -> bool:
    """Whether every ledger that the segment holds entries of is marked deleted."""
    return all(part.ledger_id in topic_map.deleted for part in segment.slices)


def to_trash(topic: TopicName, segment: CommittedSegment, *, reason: str, now_ms: int) -> Create:
    """Return the step that puts a committed segment on the trash list."""
    trash = trash_record.Trash(
        segment_id=segment.segment_id,
        upload_id="",
        reason=reason,
        decided_ms=now_ms,
        bucket=segment.bucket,
        prefix=segment.prefix,
        ledger_id=segment.keys.ledger_id,
        readable=True,
    )
    return Create(paths.trash_record(topic, segment.segment_id), trash_record.encode(trash))


def without_oldest(
    topic_map: TopicMap, segment: CommittedSegment, *, reason: str, now_ms: int
) -> tuple[list[Step], TopicMap]:
    """Return the steps that put the oldest segment on the trash list instead of in the map, and the map afterwards.

    Raises Conflict when `segment` is not the oldest one.
    """
    if not topic_map.segments or topic_map.segments[0] != segment:
        raise Conflict(f"segment {segment.segment_id} is not the oldest of {topic_map.topic}")
    topic = topic_map.topic
    steps: list[Step] = []
    contexts, ends, deleted = dict(topic_map.contexts), dict(topic_map.ends), dict(topic_map.deleted)
    for part in segment.slices:
        stored, entries = contexts.pop(part.ledger_id), (part.first_entry_id, part.last_entry_id)
        written, left = pieces.exchanged(stored, paths.ledger(topic, part.ledger_id), entries, ())
        steps += written
        if left is not None:
            contexts[part.ledger_id] = left
            continue
        deleted.pop(part.ledger_id, None)
        if part.ledger_id != segment.end.ledger_id:
            ends.pop(part.ledger_id, None)
    base = topic_map.base
    if base is not None and base.position.ledger_id != segment.end.ledger_id:
        ends.pop(base.position.ledger_id, None)
    risen = floor_record.Floor(
        position=segment.end,
        end=ends.get(segment.end.ledger_id) if segment.end.ledger_id not in contexts else None,
        deleted_ms=now_ms,
        segments=(base.segments if base is not None else 0) + 1,
        object_bytes=(base.object_bytes if base is not None else 0) + segment.object_bytes,
        reason=reason,
        unknown=base.unknown if base is not None else b"",
    )
    path, value = paths.floor(topic), floor_record.encode(risen)
    steps.append(Create(path, value) if base is None else Replace(path, value, topic_map.base_version))
    gone = [loss for loss in topic_map.losses if loss.after < segment.end]
    steps += [Delete(topic_map.loss_path(loss)) for loss in gone]
    if not segment.foreign:
        steps.append(to_trash(topic, segment, reason=reason, now_ms=now_ms))
    return steps, replace(
        topic_map,
        segments=topic_map.segments[1:],
        contexts=MappingProxyType(contexts),
        ends=MappingProxyType(ends),
        losses=tuple(loss for loss in topic_map.losses if loss not in gone),
        loss_names=MappingProxyType({one: name for one, name in topic_map.loss_names.items() if one not in gone}),
        deleted=MappingProxyType(deleted),
        source_deleted=topic_map.source_deleted & contexts.keys(),
        created=MappingProxyType({one: at for one, at in topic_map.created.items() if one in contexts}),
        base=risen,
        base_version=topic_map.base_version + 1 if base is not None else 0,
    )
