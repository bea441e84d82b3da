"""`trash/<uuid>`: a segment whose objects are to be deleted, recorded before the first deletion."""

from dataclasses import dataclass
from uuid import UUID

from offloaderd.format.pb.storage import records_pb2
from offloaderd.metadata.records import codec
from offloaderd.objects.keys import SegmentKeys


@dataclass(frozen=True, slots=True, kw_only=True)
class Trash:
    """A decided deletion; `upload_id` names an unfinished multipart upload, empty when there is none.

    `ledger_id` is that of a ledger in an object of its own, None for a segment of streaming.
    `bucket` and `prefix` say where the objects lie; None, as in records of the first version, is where the daemon that
    reads it keeps its own. `readable`: it was part of the map, so readers may have been sent to it; None for not known.
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
        """Return where the objects lie."""
        return SegmentKeys(prefix, self.segment_id, self.ledger_id)


def encode(value: Trash) -> bytes:
    """Return the node's content."""
    return codec.content(records_pb2.TrashRecord, value)


def decode(data: bytes, *, path: str) -> Trash:
    """Read a node's content; raises CorruptData."""
    record = codec.parse(records_pb2.TrashRecord, data, path)
    return codec.read(Trash, record, segment_id=codec.segment_id(path, record.segment_id))
