"""`attempt`: the one open segment of a topic, recorded before its first byte is sent.

It has all that another owner needs to resume: the segment's begin, its layout, the stored parts with their blocks, and
after the seal all content of the manifest. With the topic's entries these decide every byte, so two owners of the same
upload can only write the same bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from uuid import UUID

from offloaderd.core.model import LedgerEnd, Loss, OffloadMethod, Position
from offloaderd.format import manifest_bytes
from offloaderd.format.manifest import BlockInfo, Broken, LedgerPart, Past
from offloaderd.format.manifest_rules import canonical_uuid
from offloaderd.format.parsing import filled, halves
from offloaderd.format.pb.storage import records_pb2
from offloaderd.format.v1 import LedgerLayout
from offloaderd.format.v2 import SegmentLayout
from offloaderd.metadata.records import codec
from offloaderd.objects.keys import SegmentKeys
from offloaderd.objects.stored_as import StoredAs


class AttemptStatus(StrEnum):
    """Status words of PIP-76."""

    ASSIGNED = "Assigned"
    OFFLOADED = "Offloaded"
    FAILED = "Failed"


_TO_WIRE = {
    AttemptStatus.ASSIGNED: records_pb2.ATTEMPT_STATUS_ASSIGNED,
    AttemptStatus.OFFLOADED: records_pb2.ATTEMPT_STATUS_OFFLOADED,
    AttemptStatus.FAILED: records_pb2.ATTEMPT_STATUS_FAILED,
}
_FROM_WIRE = {number: status for status, number in _TO_WIRE.items()}


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A part in the bucket, as the store confirmed it, with its blocks; made by `stored_part`.

    `encoded` is kept because the record is written again after every few parts.
    """

    etag: str
    size_bytes: int
    blocks: tuple[BlockInfo, ...]
    encoded: bytes = field(repr=False, compare=False)

    @property
    def end(self) -> Position:
        """Position of the part's last entry."""
        return Position(self.blocks[-1].ledger_id, self.blocks[-1].last_entry_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """The decision where a segment ends, and all content of its manifest that is not in its blocks."""

    sealed_ms: int
    epoch: int
    software_version: str
    data_bytes: int
    part_count: int
    ledgers: tuple[LedgerPart, ...]
    losses: tuple[Loss, ...] = ()
    ends: tuple[tuple[int, LedgerEnd], ...] = ()
    past: Past | None = None
    replaces: tuple[UUID, ...] = ()
    joined: bool = False
    """For a job's segment: whether `losses` and `past` are final, as its predecessor in the topic is known."""

    @property
    def end(self) -> Position:
        """Position of the segment's last entry."""
        return Position(self.ledgers[-1].ledger_id, self.ledgers[-1].last_entry_id)

    @property
    def entries(self) -> int:
        """Number of entries."""
        return sum(part.last_entry_id - part.first_entry_id + 1 for part in self.ledgers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A try to write a segment from `begin` on. `upload_id` is empty until the multipart upload exists.

    `parts` are the first ones, without a gap; more may be stored. One without an upload is recorded with the seal, and
    then stored as the object. Records of the first version have no `layout`.
    """

    segment_id: UUID
    begin: Position
    assigned_ms: int
    epoch: int
    status: AttemptStatus
    upload_id: str = ""
    driver: str = ""
    driver_properties: Mapping[str, str] = field(default_factory=dict)
    tries: int = 0
    last_error: str = ""
    layout: SegmentLayout | LedgerLayout | None = None
    parts: tuple[StoredPart, ...] = ()
    seal: Seal | None = None
    storage_class: str = ""
    """Class of its data object; empty is the bucket's own. With `tags`, so that each owner stores in the same way."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Tags of all its objects."""
    created: Mapping[int, int] = field(default_factory=dict)
    """Creation times in milliseconds of the ledgers at `begin` and in `parts`, by id; one that is unknown is absent."""
    proven: bool = field(default=False, compare=False)
    """Whether its objects were read and found complete. Not recorded: each reader of the record checks for itself."""
    unknown: bytes = field(default=b"", repr=False, compare=False)

    @property
    def ledger_id(self) -> int | None:
        """The ledger of a whole-ledger object; None for a streaming segment."""
        return self.begin.ledger_id if isinstance(self.layout, LedgerLayout) else None

    @property
    def bucket(self) -> str:
        """The bucket of its objects, present or future."""
        return self.driver_properties.get("bucket", "")

    @property
    def keys(self) -> SegmentKeys:
        """Keys of its objects, present or future."""
        return SegmentKeys(self.driver_properties.get("prefix", ""), self.segment_id, self.ledger_id)

    @property
    def stored_as(self) -> StoredAs:
        """How its objects are stored."""
        return StoredAs(self.storage_class, self.tags)

    @property
    def end(self) -> Position | None:
        """Position of its last entry; None until that is decided."""
        if self.seal is not None:
            return self.seal.end
        if isinstance(self.layout, LedgerLayout):
            return Position(self.begin.ledger_id, self.layout.entries - 1)
        return None

    @property
    def method(self) -> OffloadMethod:
        """The method by which it is written, which follows from its layout."""
        return OffloadMethod.LEDGER_BASED if isinstance(self.layout, LedgerLayout) else OffloadMethod.STREAMING

    @property
    def whole(self) -> bool:
        """Whether it is sealed and all parts are recorded, so that it can be completed without entries."""
        return self.seal is not None and len(self.parts) == self.seal.part_count

    @property
    def alone_bytes(self) -> int | None:
        """Size of an object of one part, which is recorded with the seal and then put without an upload; else None."""
        return self.seal.data_bytes if self.seal is not None and self.whole and not self.upload_id else None


def stored_part(etag: str, size_bytes: int, blocks: tuple[BlockInfo, ...]) -> StoredPart:
    """Return a stored part. Checksums of chunks are left out, because they are too many for the record."""
    blocks = tuple(replace(block, chunks=b"") for block in blocks)
    message = records_pb2.AttemptPart(
        etag=etag, size_bytes=size_bytes, blocks=map(manifest_bytes.block_to_message, blocks)
    )
    return StoredPart(etag, size_bytes, blocks, message.SerializeToString(deterministic=True))


def encode(value: Attempt) -> bytes:
    """Return the node's content; equal attempts give equal bytes."""
    layout = value.layout
    return codec.content(
        records_pb2.AttemptRecord,
        value,
        **halves("begin", value.begin),
        status=_TO_WIRE[value.status],
        block_bytes=layout.block_bytes if layout else 0,
        part_bytes=layout.part_bytes if layout else 0,
        preamble=isinstance(layout, SegmentLayout) and layout.preamble,
        ledger=layout if isinstance(layout, LedgerLayout) else None,
        parts=[records_pb2.AttemptPart.FromString(part.encoded) for part in value.parts],
        seal=_seal_to_message(value.seal) if value.seal else None,
    )


def decode(data: bytes, *, path: str) -> Attempt:
    """Read a node's content; raises CorruptData."""
    record = codec.parse(records_pb2.AttemptRecord, data, path)
    status = _FROM_WIRE.get(record.status)
    if status is None:
        codec.corrupt(path, "a known status", record.status)
    try:
        parts = tuple(map(_part_from_message, record.parts))
        seal = _seal_from_message(record.seal) if record.HasField("seal") else None
    except Broken as error:
        codec.corrupt(path, error.expected, error.found)
    return codec.read(
        Attempt,
        record,
        segment_id=codec.segment_id(path, record.segment_id),
        begin=codec.position(path, record.begin_ledger_id, record.begin_entry_id),
        status=status,
        driver_properties=dict(record.driver_properties),
        created=dict(record.created),
        tags=dict(record.tags),
        layout=_layout(record),
        parts=parts,
        seal=seal,
    )


def _layout(record: records_pb2.AttemptRecord) -> SegmentLayout | LedgerLayout | None:
    if not (record.block_bytes and record.part_bytes):
        return None
    if record.HasField("ledger"):
        return codec.read(LedgerLayout, record.ledger, block_bytes=record.block_bytes, part_bytes=record.part_bytes)
    return codec.read(SegmentLayout, record)


def _part_from_message(message: records_pb2.AttemptPart) -> StoredPart:
    if not message.blocks:
        raise Broken("parts with at least one block", "one without")
    blocks = tuple(map(manifest_bytes.block_from_message, message.blocks))
    return StoredPart(message.etag, message.size_bytes, blocks, message.SerializeToString(deterministic=True))


def _seal_to_message(seal: Seal) -> records_pb2.AttemptSeal:
    return filled(
        records_pb2.AttemptSeal,
        seal,
        losses=map(manifest_bytes.loss_to_message, seal.losses),
        ends=[manifest_bytes.end_to_message(*pair) for pair in seal.ends],
        past=manifest_bytes.past_to_message(seal.past) if seal.past else None,
    )


def _seal_from_message(message: records_pb2.AttemptSeal) -> Seal:
    if not message.ledgers:
        raise Broken("a seal with at least one ledger", "one without")
    return codec.read(
        Seal,
        message,
        ledgers=tuple(codec.read(LedgerPart, one) for one in message.ledgers),
        losses=tuple(map(manifest_bytes.loss_from_message, message.losses)),
        ends=tuple(map(manifest_bytes.end_from_message, message.ends)),
        past=manifest_bytes.past_from_message(message.past) if message.HasField("past") else None,
        replaces=tuple(map(canonical_uuid, message.replaces)),
    )
