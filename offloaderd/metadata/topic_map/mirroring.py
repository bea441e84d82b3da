"""Copies of segments in a topic's map: which segments lack one, the record of one that was made, the exchange. Pure.

A segment's record names the place of its copy beside its own, so there is no second list: whatever moves or removes the
record takes the copy along.
"""

from dataclasses import replace
from types import MappingProxyType
from uuid import UUID

from offloaderd.core.errors import Conflict
from offloaderd.metadata import paths, pieces
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.port import Create, Step
from offloaderd.metadata.records.context import LedgerSegment
from offloaderd.metadata.records.copy import CopyAttempt
from offloaderd.metadata.records.deletion import Trash, encode_trash
from offloaderd.metadata.topic_map.map import TopicMap, properties_of

Place = tuple[str, str]
"""Bucket and prefix."""


def target(segment: CommittedSegment, own: Place, mirror: Place) -> Place | None:
    """Return where a segment lacks its copy, None if it has one there, or cannot be copied.

    The copy is wanted in the mirror, and of a segment that lies in the mirror in the topic's own place. What a broker
    wrote is not copied: it has no manifest to check a copy by, and its broker deletes it.
    """
    wanted = mirror if segment.place != mirror else own
    return None if segment.foreign or wanted in {segment.place, segment.mirror} else wanted


def with_copy(topic_map: TopicMap, segment_id: UUID, place: Place) -> tuple[list[Step], TopicMap]:
    """Return the steps that record a segment's copy in `place`, and the map afterwards. Raises Conflict without it."""
    segment = next((one for one in topic_map.segments if one.segment_id == segment_id), None)
    if segment is None or segment.place == place:
        raise Conflict(f"segment {segment_id} of {topic_map.topic} has left the map, or lies there itself")
    return _with_places(topic_map, segment, replace(segment, mirror=place))


def exchanged(topic_map: TopicMap, segment_id: UUID, first: Place) -> tuple[list[Step], TopicMap]:
    """Return the steps that make a segment's mirror its first place, if that is `first`, and the map afterwards.

    Without a step for a segment that lies there already, has no copy there, or has left the map.
    """
    segment = next((one for one in topic_map.segments if one.segment_id == segment_id), None)
    if segment is None or segment.mirror != first:
        return [], topic_map
    bucket, prefix = first
    return _with_places(topic_map, segment, replace(segment, bucket=bucket, prefix=prefix, mirror=segment.place))


def without_copy(topic_map: TopicMap, segment_id: UUID, place: Place, *, now_ms: int) -> tuple[list[Step], TopicMap]:
    """Return the steps that move a segment's copy in `place` from its record to the trash list, and the map afterwards.

    Without a step for a segment that has no copy there: its first place is never taken away.
    """
    segment = next((one for one in topic_map.segments if one.segment_id == segment_id), None)
    if segment is None or segment.mirror != place:
        return [], topic_map
    bucket, prefix = place
    trash = Trash(
        segment_id=segment_id,
        upload_id="",
        reason="moved",
        decided_ms=now_ms,
        bucket=bucket,
        prefix=prefix,
        ledger_id=segment.keys.ledger_id,
        readable=True,
        of_copy=True,
    )
    steps, after = _with_places(topic_map, segment, replace(segment, mirror=None))
    return [*steps, Create(trash.path(topic_map.topic), encode_trash(trash))], after


def given_up(copy: CopyAttempt, *, now_ms: int) -> Trash:
    """Return the trash record of a copy that nobody finishes: no reader was ever sent to it."""
    return Trash(
        segment_id=copy.segment_id,
        upload_id=copy.upload_id,
        reason="given up",
        decided_ms=now_ms,
        bucket=copy.bucket,
        prefix=copy.prefix,
        ledger_id=copy.ledger_id,
        readable=False,
        of_copy=True,
    )


def _with_places(topic_map: TopicMap, before: CommittedSegment, after: CommittedSegment) -> tuple[list[Step], TopicMap]:
    """Return the steps that record the places of a segment, and the map afterwards."""
    properties = properties_of(after)

    def changed(one: LedgerSegment) -> LedgerSegment:
        gone = properties_of(before).keys()
        kept = {name: value for name, value in one.properties.items() if name not in gone}
        return replace(one, properties=kept | properties)

    steps: list[Step] = []
    contexts = dict(topic_map.contexts)
    for part in before.slices:
        entries, path = (part.first_entry_id, part.last_entry_id), paths.ledger(topic_map.topic, part.ledger_id)
        written, left = pieces.exchanged(contexts[part.ledger_id], path, entries, changed)
        assert left is not None  # noqa: S101 - it has the segment
        steps += written
        contexts[part.ledger_id] = left
    segments = tuple(after if one is before else one for one in topic_map.segments)
    return steps, replace(topic_map, segments=segments, contexts=MappingProxyType(contexts))
