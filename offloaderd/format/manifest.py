"""The manifest beside a V2 object: what a verified read, or a rebuild of the map from the bucket, needs.

FORMAT.md, section 4. A header (magic, version, length, checksum) and a protobuf message. Whatever is written or read
has passed `check`: blocks lie one after the other from the preamble to the end of the data object, and the ledgers
are exactly what the blocks add up to.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import google_crc32c

from offloaderd.errors import CorruptData, InvalidInput
from offloaderd.format.entries import framed_bytes
from offloaderd.format.entry_time import Survey
from offloaderd.format.manifest_rules import Broken, canonical_uuid, check
from offloaderd.format.messages import parse_message
from offloaderd.format.pb.storage import manifest_pb2 as pb
from offloaderd.format.v2 import BLOCK_HEADER_BYTES, PAD_BYTES_MIN
from offloaderd.model import LedgerEnd, Loss, OffloadMethod, Position, SegmentRange

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal, TypeAlias
    from uuid import UUID

    _Number: TypeAlias = Literal[
        "first_broker_timestamp", "last_broker_timestamp", "first_index", "last_index",
        "time_min", "time_max", "index_max", "first_publish_time",
    ]  # fmt: skip

MAGIC = 0x8F4F464D
VERSION = 1
HEADER = struct.Struct(">IIQ4sI")

_RESERVED = bytes(4)
_CHECKED_BYTES = HEADER.size - 4


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockInfo:
    """One block of the data object: its entries, where it lies, and the CRC-32C of all its bytes.

    `sparse` has ascending pairs (entry, at): entry `first_entry_id + entry` begins at byte `at` of the block. The
    timestamps and indexes are PIP-70's of the first and the last entry; `survey` is about the times and indexes of all
    of them, None in manifests of older versions. Of a whole ledger's object (V1) it is a run of entries inside one of
    its much larger blocks, with `head_bytes` only where that begins, `pad_bytes` where it ends.
    """

    ledger_id: int
    first_entry_id: int
    entry_count: int
    offset: int
    length: int
    crc32c: int
    sparse: tuple[tuple[int, int], ...] = ()
    first_broker_timestamp: int | None = None
    last_broker_timestamp: int | None = None
    first_index: int | None = None
    last_index: int | None = None
    survey: Survey | None = None
    first_publish_time: int | None = None
    head_bytes: int = BLOCK_HEADER_BYTES
    pad_bytes: int = PAD_BYTES_MIN

    @property
    def payload_bytes(self) -> int:
        """Bytes of the payloads in it; negative in one that contradicts itself."""
        return self.length - self.head_bytes - self.pad_bytes - framed_bytes(0, self.entry_count)

    @property
    def last_entry_id(self) -> int:
        """Id of the last entry in the block."""
        return self.first_entry_id + self.entry_count - 1

    @property
    def first_time(self) -> int | None:
        """Time of the first entry: the broker's, else the producer's; None for none, or one that nobody looked for."""
        return self.first_publish_time if self.first_broker_timestamp is None else self.first_broker_timestamp


class Past(NamedTuple):
    """What lay before a segment, as far as it was known when it was sealed.

    `entries` of the topic, which is the sequence number of the segment's first. Of all entries from `since` up to the
    segment, `time_max` is the greatest time and `index_max` the greatest index; None for none.
    """

    entries: int
    since: Position
    time_max: int | None = None
    index_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerPart:
    """What a segment holds of one ledger, and what was known of the whole ledger when the segment was sealed."""

    ledger_id: int
    first_entry_id: int
    last_entry_id: int
    payload_bytes: int
    closed: bool
    ledger_entries: int
    ledger_bytes: int
    closed_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentManifest:
    """Everything about one segment; lengths are those of the objects in the bucket.

    `losses` lie directly before the segment or inside it. `ends` are those that were known when it was sealed: of the
    ledger in which the segment before ended, and of its own ledgers. `replaces` are the segments that it was made of.
    """

    segment_id: UUID
    managed_ledger: str
    cluster: str
    epoch: int
    assigned_ms: int
    sealed_ms: int
    data_bytes: int
    preamble_bytes: int
    index_bytes: int
    index_crc32c: int
    ledgers: tuple[LedgerPart, ...]
    blocks: tuple[BlockInfo, ...]
    software_version: str
    losses: tuple[Loss, ...] = ()
    ends: tuple[tuple[int, LedgerEnd], ...] = ()
    method: OffloadMethod = OffloadMethod.STREAMING
    past: Past | None = None
    replaces: tuple[UUID, ...] = ()

    @property
    def range(self) -> SegmentRange:
        """First and last position of the segment."""
        first, last = self.ledgers[0], self.ledgers[-1]
        return SegmentRange(
            Position(first.ledger_id, first.first_entry_id), Position(last.ledger_id, last.last_entry_id)
        )

    def block_at(self, position: Position) -> int:
        """Return the index of the last block that begins at or before `position`; -1 if there is none.

        If the segment holds the position, that block does; after a ledger's last entry it is the ledger's last block.
        """
        return bisect_right(self.blocks, position, key=_begin_of) - 1


def _begin_of(block: BlockInfo) -> Position:
    return Position(block.ledger_id, block.first_entry_id)


def encode(manifest: SegmentManifest) -> bytes:
    """Return the manifest object; raises InvalidInput for a manifest that contradicts itself."""
    try:
        check(manifest)
        body = _to_message(manifest).SerializeToString(deterministic=True)
    except (Broken, ValueError) as error:
        raise InvalidInput(f"manifest of segment {manifest.segment_id} cannot be stored: {error}") from None
    head = HEADER.pack(MAGIC, VERSION, len(body), _RESERVED, 0)[:_CHECKED_BYTES]
    return b"".join((head, google_crc32c.extend(google_crc32c.value(head), body).to_bytes(4, "big"), body))


def decode(data: bytes | memoryview, *, key: str) -> SegmentManifest:
    """Read a manifest object; `key` names it in errors. Raises CorruptData."""
    data = bytes(data)
    _check_header(data, key)
    message = parse_message(pb.SegmentManifest, data[HEADER.size :], key=key, at=HEADER.size)
    try:
        manifest = _from_message(message)
        check(manifest)
    except Broken as error:
        raise CorruptData(key=key, offset=HEADER.size, expected=error.expected, found=error.found) from None
    return manifest


def _check_header(data: bytes, key: str) -> None:
    if len(data) < HEADER.size:
        expected = f"a manifest header of {HEADER.size} bytes"
        raise CorruptData(key=key, offset=0, expected=expected, found=f"{len(data)} bytes")
    magic, version, body_bytes, reserved, crc32c = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise CorruptData(key=key, offset=0, expected=f"magic {MAGIC:08x} of a manifest", found=f"{magic:08x}")
    if version != VERSION:
        hint = "a newer offloaderd may have written it" if version > VERSION else ""
        raise CorruptData(key=key, offset=4, expected=f"version {VERSION}", found=version, hint=hint)
    if body_bytes != len(data) - HEADER.size:
        expected = f"body length {len(data) - HEADER.size}"
        raise CorruptData(key=key, offset=8, expected=expected, found=body_bytes)
    actual = google_crc32c.extend(google_crc32c.value(data[:_CHECKED_BYTES]), data[HEADER.size :])
    if actual != crc32c:
        raise CorruptData(key=key, offset=20, expected=f"checksum {crc32c:08x}", found=f"{actual:08x}")
    if reserved != _RESERVED:
        raise CorruptData(key=key, offset=16, expected="4 reserved zeros", found=reserved.hex(" "))


def _to_message(manifest: SegmentManifest) -> pb.SegmentManifest:
    return pb.SegmentManifest(
        segment_id=str(manifest.segment_id),
        managed_ledger=manifest.managed_ledger,
        cluster=manifest.cluster,
        epoch=manifest.epoch,
        assigned_ms=manifest.assigned_ms,
        sealed_ms=manifest.sealed_ms,
        data_bytes=manifest.data_bytes,
        preamble_bytes=manifest.preamble_bytes,
        index_bytes=manifest.index_bytes,
        index_crc32c=manifest.index_crc32c,
        ledgers=map(part_to_message, manifest.ledgers),
        blocks=map(block_to_message, manifest.blocks),
        software_version=manifest.software_version,
        losses=map(loss_to_message, manifest.losses),
        ends=[end_to_message(*pair) for pair in manifest.ends],
        ledger_based=manifest.method is OffloadMethod.LEDGER_BASED,
        past=past_to_message(manifest.past) if manifest.past else None,
        replaces=map(str, manifest.replaces),
    )


def part_to_message(part: LedgerPart) -> pb.SegmentLedger:
    """Return the message of what a segment holds of one ledger."""
    return pb.SegmentLedger(
        ledger_id=part.ledger_id,
        first_entry_id=part.first_entry_id,
        last_entry_id=part.last_entry_id,
        payload_bytes=part.payload_bytes,
        closed=part.closed,
        ledger_entries=part.ledger_entries,
        ledger_bytes=part.ledger_bytes,
        closed_ms=part.closed_ms,
    )


def block_to_message(block: BlockInfo) -> pb.SegmentBlock:
    """Return the message of a block."""
    return pb.SegmentBlock(
        ledger_id=block.ledger_id,
        first_entry_id=block.first_entry_id,
        entry_count=block.entry_count,
        offset=block.offset,
        length=block.length,
        crc32c=block.crc32c,
        sparse_entry=[entry for entry, _ in block.sparse],
        sparse_at=[at for _, at in block.sparse],
        first_broker_timestamp=block.first_broker_timestamp,
        last_broker_timestamp=block.last_broker_timestamp,
        first_index=block.first_index,
        last_index=block.last_index,
        time_min=block.survey.time_min if block.survey else None,
        time_max=block.survey.time_max if block.survey else None,
        untimed=block.survey.untimed if block.survey else None,
        index_max=block.survey.index_max if block.survey else None,
        first_publish_time=block.first_publish_time,
        head_bytes=None if block.head_bytes == BLOCK_HEADER_BYTES else block.head_bytes,
        pad_bytes=None if block.pad_bytes == PAD_BYTES_MIN else block.pad_bytes,
    )


def past_to_message(past: Past) -> pb.SegmentPast:
    """Return the message of what lay before a segment."""
    return pb.SegmentPast(
        entries=past.entries,
        since_ledger_id=past.since.ledger_id,
        since_entry_id=past.since.entry_id,
        time_max=past.time_max,
        index_max=past.index_max,
    )


def loss_to_message(loss: Loss) -> pb.SegmentLoss:
    """Return the message of a lost range."""
    return pb.SegmentLoss(
        after_ledger_id=loss.after.ledger_id,
        after_entry_id=loss.after.entry_id,
        before_ledger_id=loss.before.ledger_id,
        before_entry_id=loss.before.entry_id,
        entries=loss.entries,
        noticed_ms=loss.noticed_ms,
    )


def end_to_message(ledger_id: int, end: LedgerEnd) -> pb.SegmentLedgerEnd:
    """Return the message of a ledger's end."""
    return pb.SegmentLedgerEnd(ledger_id=ledger_id, entries=end.entries, next_ledger_id=end.next_ledger_id)


def _from_message(message: pb.SegmentManifest) -> SegmentManifest:
    """Return the manifest that a message describes; raises Broken where it cannot even be expressed."""
    return SegmentManifest(
        segment_id=canonical_uuid(message.segment_id),
        managed_ledger=message.managed_ledger,
        cluster=message.cluster,
        epoch=message.epoch,
        assigned_ms=message.assigned_ms,
        sealed_ms=message.sealed_ms,
        data_bytes=message.data_bytes,
        preamble_bytes=message.preamble_bytes,
        index_bytes=message.index_bytes,
        index_crc32c=message.index_crc32c,
        ledgers=tuple(map(part_from_message, message.ledgers)),
        blocks=tuple(map(block_from_message, message.blocks)),
        software_version=message.software_version,
        losses=tuple(map(loss_from_message, message.losses)),
        ends=tuple(map(end_from_message, message.ends)),
        method=OffloadMethod.LEDGER_BASED if message.ledger_based else OffloadMethod.STREAMING,
        past=past_from_message(message.past) if message.HasField("past") else None,
        replaces=tuple(map(canonical_uuid, message.replaces)),
    )


def part_from_message(message: pb.SegmentLedger) -> LedgerPart:
    """Read what a segment holds of one ledger."""
    return LedgerPart(
        ledger_id=message.ledger_id,
        first_entry_id=message.first_entry_id,
        last_entry_id=message.last_entry_id,
        payload_bytes=message.payload_bytes,
        closed=message.closed,
        ledger_entries=message.ledger_entries,
        ledger_bytes=message.ledger_bytes,
        closed_ms=message.closed_ms,
    )


def block_from_message(message: pb.SegmentBlock) -> BlockInfo:
    """Read a block; raises Broken."""
    return BlockInfo(
        ledger_id=message.ledger_id,
        first_entry_id=message.first_entry_id,
        entry_count=message.entry_count,
        offset=message.offset,
        length=message.length,
        crc32c=message.crc32c,
        sparse=_pairs(message.sparse_entry, message.sparse_at),
        first_broker_timestamp=_optional(message, "first_broker_timestamp"),
        last_broker_timestamp=_optional(message, "last_broker_timestamp"),
        first_index=_optional(message, "first_index"),
        last_index=_optional(message, "last_index"),
        survey=_survey_from_message(message),
        first_publish_time=_optional(message, "first_publish_time"),
        head_bytes=message.head_bytes if message.HasField("head_bytes") else BLOCK_HEADER_BYTES,
        pad_bytes=message.pad_bytes if message.HasField("pad_bytes") else PAD_BYTES_MIN,
    )


def _survey_from_message(message: pb.SegmentBlock) -> Survey | None:
    if not message.HasField("untimed"):
        return None
    least, greatest = _optional(message, "time_min"), _optional(message, "time_max")
    return Survey(least, greatest, message.untimed, _optional(message, "index_max"))


def past_from_message(message: pb.SegmentPast) -> Past:
    """Read what lay before a segment."""
    return Past(
        message.entries,
        Position(message.since_ledger_id, message.since_entry_id),
        message.time_max if message.HasField("time_max") else None,
        message.index_max if message.HasField("index_max") else None,
    )


def loss_from_message(message: pb.SegmentLoss) -> Loss:
    """Read a lost range."""
    after = Position(message.after_ledger_id, message.after_entry_id)
    before = Position(message.before_ledger_id, message.before_entry_id)
    return Loss(after, before, message.entries, message.noticed_ms)


def end_from_message(message: pb.SegmentLedgerEnd) -> tuple[int, LedgerEnd]:
    """Read a ledger's end, with the ledger's id."""
    following = message.next_ledger_id if message.HasField("next_ledger_id") else None
    return message.ledger_id, LedgerEnd(message.entries, following)


def _optional(message: pb.SegmentBlock, field: _Number) -> int | None:
    """Return a number if it is there."""
    value: int = getattr(message, field)
    return value if message.HasField(field) else None


def _pairs(entries: Iterable[int], ats: Iterable[int]) -> tuple[tuple[int, int], ...]:
    try:
        return tuple(zip(entries, ats, strict=True))
    except ValueError:
        raise Broken("as many sparse positions as sparse entries", "others") from None
