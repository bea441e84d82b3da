"""`trash/<uuid>`: a segment whose objects are to be deleted, recorded before the first deletion."""

from dataclasses import dataclass
from uuid import UUID

from offloaderd.format.pb.storage import records_pb2
from offloaderd.metadata.records import codec
from offloaderd.objects.keys import SegmentKeys


@dataclass(frozen=True, slots=True, kw_only=True)
class Trash:
    """A decided deletion; `upload_id` names an unfinished multipart upload, empty if there is none.

    `ledger_id` is that of a whole-ledger object, None for a streaming segment. `bucket` and `prefix` locate the
    objects; None, as in records of the first version, is the reading daemon's own place. `readable`: it was part of the
    map, so readers may hold its keys; None if unknown.
    """

    segment_id: UUID
    upload_id: str
    reason: str
    decided_ms: int
    bucket: str | None = None
    prefix: str | None = None
    ledger_id: int | None = None
    readable: bool | None = None

    def keys(self, prefix: str) -> SegmentKeys:
        """Return the keys of its objects."""
        return SegmentKeys(prefix, self.segment_id, self.ledger_id)


def encode(value: Trash) -> bytes:
    """Return the node's content."""
    return codec.content(records_pb2.TrashRecord, value)


def decode(data: bytes, *, path: str) -> Trash:
    """Read a node's content; raises CorruptData."""
    record = codec.parse(records_pb2.TrashRecord, data, path)
    return codec.read(Trash, record, segment_id=codec.segment_id(path, record.segment_id))
