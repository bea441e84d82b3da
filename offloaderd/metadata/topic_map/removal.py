"""Removal from a topic's map: ledgers are marked deleted; the oldest segment is removed once all its ledgers are. Pure.

Since only the oldest is removed, exactly the entries up to the floor are deleted. One transaction removes the segment,
raises the floor and puts the objects on the trash list: after a crash a segment is whole, or its deletion is recorded.
Objects of brokers only leave the map, as the broker deletes them. A ledger's context is deleted with its last segment,
mark included; the floor keeps the ledger's end for as long as the floor is in that ledger.
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
from offloaderd.metadata.records import deletion
from offloaderd.metadata.topic_map.map import TopicMap

BATCH_BYTES = 500_000
"""Most bytes of contexts marked in one transaction, of which the store takes 1 MB. A larger context is marked alone."""
MARK_BYTES = 1024
"""Most bytes that a mark adds to a transaction besides the context: the path and the mark."""


def mark_deleted(topic_map: TopicMap, ledger_ids: Iterable[int], *, now_ms: int) -> tuple[list[Step], TopicMap]:
    """Return the steps that mark ledgers of the map deleted unless they are, and the map afterwards."""
    steps: list[Step] = []
    contexts, deleted = dict(topic_map.contexts), dict(topic_map.deleted)
    for ledger_id in sorted(set(ledger_ids) & contexts.keys() - deleted.keys()):
        stored, path = contexts[ledger_id], paths.ledger(topic_map.topic, ledger_id)
        step, contexts[ledger_id] = pieces.with_mark(stored, path, lambda known: replace(known, deleted_ms=now_ms))
        steps.append(step)
        deleted[ledger_id] = now_ms
    return steps, replace(topic_map, contexts=MappingProxyType(contexts), deleted=MappingProxyType(deleted))


def note_source_deleted(topic_map: TopicMap, ledger_ids: Iterable[int]) -> tuple[list[Step], TopicMap]:
    """Return the steps that record that the source has no copy of ledgers (Pulsar's `bookkeeperDeleted`), and the map.

    Pulsar records it before the deletion. Ledgers without entries in the map, or recorded already, need no step.
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
    """Return the steps that record creation times of ledgers, replacing others, and the map afterwards."""
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
    """Yield the ledgers with entries in the map, in batches that one transaction can mark."""
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
    """Whether every ledger with entries in the segment is marked deleted."""
    return all(part.ledger_id in topic_map.deleted for part in segment.slices)


def to_trash(topic: TopicName, segment: CommittedSegment, *, reason: str, now_ms: int) -> Create:
    """Return the step that puts a committed segment on the trash list."""
    trash = deletion.Trash(
        segment_id=segment.segment_id,
        upload_id="",
        reason=reason,
        decided_ms=now_ms,
        bucket=segment.bucket,
        prefix=segment.prefix,
        ledger_id=segment.keys.ledger_id,
        readable=True,
        mirror_bucket=segment.mirror[0] if segment.mirror is not None else None,
        mirror_prefix=segment.mirror[1] if segment.mirror is not None else None,
    )
    return Create(paths.trash_record(topic, segment.segment_id), deletion.encode_trash(trash))


def holds(topic_map: TopicMap, record: deletion.Trash) -> bool:
    """Whether the map has what a trash record names: a segment, or the place of one if only a copy goes."""
    segment = next((one for one in topic_map.segments if one.segment_id == record.segment_id), None)
    if segment is None or not record.of_copy:
        return segment is not None
    return (record.bucket, record.prefix) in {segment.place, segment.mirror}


def without_oldest(
    topic_map: TopicMap, segment: CommittedSegment, *, reason: str, now_ms: int
) -> tuple[list[Step], TopicMap]:
    """Return the steps that move the oldest segment to the trash list, and the map. Raises Conflict for another one."""
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
    risen = deletion.Floor(
        position=segment.end,
        end=ends.get(segment.end.ledger_id) if segment.end.ledger_id not in contexts else None,
        deleted_ms=now_ms,
        segments=(base.segments if base is not None else 0) + 1,
        object_bytes=(base.object_bytes if base is not None else 0) + segment.object_bytes,
        reason=reason,
        unknown=base.unknown if base is not None else b"",
    )
    path, value = paths.floor(topic), deletion.encode_floor(risen)
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
