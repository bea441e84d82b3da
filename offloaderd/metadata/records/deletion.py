"""`floor`, `trash/<segment id>`: end of a topic's deleted oldest segments; a segment whose objects are to be deleted.

`trash/<segment id>.<place>` is the same for one copy: its segment stays in the map without it, or nobody finishes it.

The floor keeps the offloaded position from falling. It only rises, in the transaction that removes a segment from the
map. It keeps the end of its ledger, because the ledger's context is deleted with the ledger's last segment. A trash
record is written before the first deletion.
"""

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from offloaderd.core.model import LedgerEnd, Position, TopicName
from offloaderd.format.parsing import halves
from offloaderd.format.pb.storage import records_pb2
from offloaderd.metadata import paths
from offloaderd.metadata.records import codec
from offloaderd.objects.keys import SegmentKeys


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """End of the last segment that was deleted; `end` is its ledger's end, if the ledger was offloaded to its end.

    `segments` and `object_bytes` count all deletions; time and reason are those of the last one.
    """

    position: Position
    end: LedgerEnd | None
    deleted_ms: int
    segments: int
    object_bytes: int
    reason: str
    unknown: bytes = field(default=b"", repr=False, compare=False)


def encode_floor(value: Floor) -> bytes:
    """Return the node's content."""
    return codec.content(
        records_pb2.FloorRecord,
        value,
        **halves("", value.position),
        ledger_entries=value.end.entries if value.end is not None else None,
        next_ledger_id=value.end.next_ledger_id if value.end is not None else None,
    )


def decode_floor(data: bytes, *, path: str) -> Floor:
    """Read a node's content; raises CorruptData."""
    record = codec.parse(records_pb2.FloorRecord, data, path)
    position = codec.position(path, record.ledger_id, record.entry_id)
    end: LedgerEnd | None = None
    if record.HasField("ledger_entries"):
        following = record.next_ledger_id if record.HasField("next_ledger_id") else None
        end = LedgerEnd(record.ledger_entries, following)
        if end.entries <= position.entry_id or (following is not None and following <= position.ledger_id):
            codec.corrupt(path, f"a ledger that ends at {position} or later, and a later one behind it", end)
    elif record.HasField("next_ledger_id"):
        codec.corrupt(path, "the entries of a ledger that has a successor", "none")
    return codec.read(Floor, record, position=position, end=end)


FORMAT_COPY: Final = 1
"""Format of the trash record of a copy: earlier releases would take it for that of the segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trash:
    """A decided deletion; `upload_id` names an unfinished multipart upload, empty if there is none.

    `ledger_id` is that of a whole-ledger object, None for a streaming segment. `bucket` and `prefix` locate the
    objects; None, as in records of the first version, is the reading daemon's own place. `mirror_bucket` and
    `mirror_prefix` locate its copy, None without one. `readable`: it was part of the map, so readers may hold its keys;
    None if unknown. `of_copy`: only what lies in this place goes, whether or not the map has the segment elsewhere.
    """

    segment_id: UUID
    upload_id: str
    reason: str
    decided_ms: int
    bucket: str | None = None
    prefix: str | None = None
    ledger_id: int | None = None
    readable: bool | None = None
    mirror_bucket: str | None = None
    mirror_prefix: str | None = None
    of_copy: bool = False

    def path(self, topic: TopicName) -> str:
        """Return its node."""
        if not self.of_copy:
            return paths.trash_record(topic, self.segment_id)
        return paths.trash_copy(topic, self.segment_id, (self.bucket or "", self.prefix or ""))

    def keys(self, prefix: str) -> SegmentKeys:
        """Return the keys of its objects."""
        return SegmentKeys(prefix, self.segment_id, self.ledger_id)

    def places(self, home: tuple[str, str]) -> tuple[tuple[str, str], ...]:
        """Return bucket and prefix of its objects, and of its copy; `home` is the reading daemon's own place."""
        bucket = home[0] if self.bucket is None else self.bucket
        prefix = home[1] if self.prefix is None else self.prefix
        copy = () if self.mirror_bucket is None else ((self.mirror_bucket, self.mirror_prefix or ""),)
        return (bucket, prefix), *copy


def encode_trash(value: Trash) -> bytes:
    """Return the node's content."""
    return codec.content(records_pb2.TrashRecord, value, format=FORMAT_COPY if value.of_copy else codec.FORMAT)


def decode_trash(data: bytes, *, path: str) -> Trash:
    """Read a node's content; raises CorruptData."""
    record = codec.parse(records_pb2.TrashRecord, data, path, known=FORMAT_COPY)
    if record.of_copy is not (record.format == FORMAT_COPY):
        codec.corrupt(path, f"format {FORMAT_COPY} for a copy, and only then", record.format)
    return codec.read(Trash, record, segment_id=codec.segment_id(path, record.segment_id))
