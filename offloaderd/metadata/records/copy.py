"""`mirror`: the one copy of a committed segment that its topic's owner makes in another place.

It is recorded before the copy's first byte, so the collector of garbage never takes an unfinished copy for garbage, and
the next owner resumes it. The transaction that adds the finished copy to the topic map deletes it.

A copy has the keys of an earlier one in the same place, which may be garbage by now. So a collection that deletes
objects of a segment in the map holds this node meanwhile: then no copy begins, and a late deletion meets none.
"""

from dataclasses import dataclass, field
from uuid import UUID

from offloaderd.core.limits import Bounded
from offloaderd.core.model import TopicName
from offloaderd.format.pb.storage import records_pb2
from offloaderd.metadata.records import codec

REMOVAL_S = 600.0
"""How long a collection may take to delete an earlier copy; then it counts as broken off. Requests time out before."""
REMEMBERED_MAX = 10_000
"""Topics of which a daemon remembers since when it has seen a removal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyAttempt:
    """A copy of a segment to a bucket and prefix; `upload_id` is empty until the multipart upload exists.

    `part_bytes` and the blocks of the manifest decide the parts, so each owner cuts the same ones. `removing`: nothing
    is copied, a collection of garbage deletes what lies there. `ledger_id` is that of a whole-ledger object.
    """

    segment_id: UUID
    bucket: str
    prefix: str
    part_bytes: int
    begun_ms: int
    upload_id: str = ""
    removing: bool = False
    ledger_id: int | None = None
    unknown: bytes = field(default=b"", repr=False, compare=False)

    @property
    def place(self) -> tuple[str, str]:
        """Bucket and prefix of the copy."""
        return self.bucket, self.prefix


class SeenRemovals:
    """Since when a daemon has seen the removal of a copy of each topic: wall clocks may differ.

    It outlives the suspension of a topic, which may be shorter and more often than a removal is waited for. A removal
    counts as broken off `after_s`; at once if it is this daemon's own, and none of its requests is on its way any more.
    """

    def __init__(self, after_s: float = REMOVAL_S) -> None:
        self._after_s = after_s
        self._seen: Bounded[TopicName, tuple[CopyAttempt, float]] = Bounded(REMEMBERED_MAX)
        self._answered: Bounded[TopicName, CopyAttempt] = Bounded(REMEMBERED_MAX)

    def answered(self, topic: TopicName, removal: CopyAttempt) -> None:
        """Note that every request of an own removal was answered, or none was made; its record may be left."""
        self._answered[topic] = removal

    def broke_off(self, topic: TopicName, removal: CopyAttempt, now_s: float) -> bool:
        """Whether nobody carries a removal out any more, at a monotonic time; each call notes that it was seen."""
        if self._answered.get(topic) == removal:
            return True
        known = self._seen.get(topic)
        if known is None or known[0] != removal:
            known = self._seen[topic] = removal, now_s
        return now_s - known[1] >= self._after_s


def encode(value: CopyAttempt) -> bytes:
    """Return the node's content."""
    return codec.content(records_pb2.CopyRecord, value)


def decode(data: bytes, *, path: str) -> CopyAttempt:
    """Read a node's content; raises CorruptData."""
    record = codec.parse(records_pb2.CopyRecord, data, path)
    if not record.part_bytes:
        codec.corrupt(path, "a size of parts", record.part_bytes)
    return codec.read(CopyAttempt, record, segment_id=codec.segment_id(path, record.segment_id))
