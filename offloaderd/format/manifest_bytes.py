"""The bytes of the manifest beside a data object, for verified reads and for a rebuild of the map from the bucket.

FORMAT.md, section 4: a header (magic, version, length, checksum) and a protobuf message. Each manifest passes `check`
when it is written and when it is read: the blocks cover the data object from the preamble to its end without a gap, and
the ledgers are exactly the sums of the blocks. Records of open segments in the metadata store use the same messages for
blocks, losses, ends and totals.

A protobuf parser creates all objects before any can be checked, and an empty block is two bytes: a manifest of empty
blocks takes 85 times its size. `taken_apart` checks each block before the next one is parsed, which bounds the memory
of a manifest whoever wrote it.
"""

import struct
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Literal, TypeAlias

import google_crc32c
from google.protobuf.message import DecodeError

from offloaderd.core.entries import ENTRY_OVERHEAD_BYTES
from offloaderd.core.errors import CorruptData, InvalidInput
from offloaderd.core.model import LedgerEnd, Loss, OffloadMethod, Position
from offloaderd.format.chunks import packed, unpacked
from offloaderd.format.manifest import BlockInfo, Broken, LedgerPart, Past, SegmentManifest
from offloaderd.format.manifest_rules import canonical_uuid, check
from offloaderd.format.parsing import filled, halves, header_fields, parse_message, value_of
from offloaderd.format.pb.storage import manifest_pb2 as pb
from offloaderd.format.pulsar.entry_time import Survey
from offloaderd.format.v2 import BLOCK_HEADER_BYTES, PAD_BYTES_MIN

_Number: TypeAlias = Literal[
    "first_broker_timestamp", "last_broker_timestamp", "first_index", "last_index",
    "time_min", "time_max", "index_max", "first_publish_time",
]  # fmt: skip


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
        chunk_crc32c=unpacked(block.chunks),
    )


def past_to_message(past: Past) -> pb.SegmentPast:
    """Return the message of the totals before a segment."""
    return filled(pb.SegmentPast, past, **halves("since", past.since))


def loss_to_message(loss: Loss) -> pb.SegmentLoss:
    """Return the message of a lost range."""
    return filled(pb.SegmentLoss, loss, **halves("after", loss.after), **halves("before", loss.before))


def end_to_message(ledger_id: int, end: LedgerEnd) -> pb.SegmentLedgerEnd:
    """Return the message of a ledger's end."""
    return filled(pb.SegmentLedgerEnd, end, ledger_id=ledger_id)


def block_from_message(message: pb.SegmentBlock) -> BlockInfo:
    """Read a block. Raises Broken."""
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
        chunks=packed(message.chunk_crc32c),
    )


def _survey_from_message(message: pb.SegmentBlock) -> Survey | None:
    if not message.HasField("untimed"):
        return None
    least, greatest = _optional(message, "time_min"), _optional(message, "time_max")
    return Survey(least, greatest, message.untimed, _optional(message, "index_max"))


def past_from_message(message: pb.SegmentPast) -> Past:
    """Read the totals before a segment."""
    return value_of(Past, message, since=Position(message.since_ledger_id, message.since_entry_id))


def loss_from_message(message: pb.SegmentLoss) -> Loss:
    """Read a lost range."""
    after = Position(message.after_ledger_id, message.after_entry_id)
    before = Position(message.before_ledger_id, message.before_entry_id)
    return value_of(Loss, message, after=after, before=before)


def end_from_message(message: pb.SegmentLedgerEnd) -> tuple[int, LedgerEnd]:
    """Read a ledger's end, with the ledger's id."""
    return message.ledger_id, value_of(LedgerEnd, message)


def _optional(message: pb.SegmentBlock, field: _Number) -> int | None:
    """Return a field's number, None if the field is not set."""
    value: int = getattr(message, field)
    return value if message.HasField(field) else None


def _pairs(entries: Iterable[int], ats: Iterable[int]) -> tuple[tuple[int, int], ...]:
    try:
        return tuple(zip(entries, ats, strict=True))
    except ValueError:
        raise Broken("as many sparse positions as sparse entries", "others") from None


PARSED_BYTES_MAX = 256 * 1024 * 1024
"""Most memory of a decoded manifest: enough for a segment of some 100 GiB in blocks of 1 MiB."""
FIELD_BYTES = 256
BLOCK_BYTES = 512
SPARSE_BYTES = 128
CHUNKS_BYTES = 40
CHUNK_BYTES = 48
"""Approximate memory: of a field that is no block, a block, a sparse position, a block's chunks besides their
checksums; and of a chunk's checksum while its block is parsed."""
BLOCKS_SPARE = 1024
"""Number of blocks that are read beyond those that fit the data: other checks report truncated data."""

FIELDS_LOOKED_AT = 32
"""Fields that are searched for the managed ledger's name, which is the second field in our manifests."""

_BLOCKS = pb.SegmentManifest.BLOCKS_FIELD_NUMBER
_VARINT, _FIXED64, _SIZED, _FIXED32 = 0, 1, 2, 5


def taken_apart(body: memoryview, *, data_bytes: int | None) -> tuple[list[BlockInfo], bytes]:
    """Return the blocks of an encoded SegmentManifest, and its other fields in their encoded form.

    `data_bytes` is the data object's length, None if it is unknown. Raises Broken.
    """
    blocks: list[BlockInfo] = []
    rest = bytearray()
    most = None if data_bytes is None else data_bytes // ENTRY_OVERHEAD_BYTES + BLOCKS_SPARE
    cost = len(body)
    for number, at, begin, end in _fields(body):
        if number != _BLOCKS:
            rest += body[at:end]
            cost += FIELD_BYTES
        else:
            if len(blocks) == most:
                raise Broken(f"at most {most} blocks in {data_bytes} bytes of data", "more")
            block, size_bytes = _block(body[begin:end], len(blocks), PARSED_BYTES_MAX - cost)
            blocks.append(block)
            cost += size_bytes
        if cost > PARSED_BYTES_MAX:
            raise _too_large()
    return blocks, bytes(rest)


def managed_ledger(body: memoryview) -> str:
    """Return the managed ledger's name in a manifest, however damaged the rest is; empty without one. Raises Broken."""
    for number, _, begin, end in islice(_fields(body), FIELDS_LOOKED_AT):
        if number == pb.SegmentManifest.MANAGED_LEDGER_FIELD_NUMBER:
            return bytes(body[begin:end]).decode(errors="replace")
    return ""


def _block(encoded: memoryview, number: int, room: int) -> tuple[BlockInfo, int]:
    """Return a block and its memory in bytes, at most `room`. Raises Broken."""
    try:
        message = pb.SegmentBlock.FromString(bytes(encoded))
    except DecodeError as error:
        raise Broken("a SegmentManifest message", error) from None
    if message.entry_count < 1:
        raise Broken(f"at least one entry in block {number}", message.entry_count)
    sparse, chunks = max(len(message.sparse_entry), len(message.sparse_at)), len(message.chunk_crc32c)
    size_bytes = BLOCK_BYTES + SPARSE_BYTES * sparse
    if size_bytes + CHUNK_BYTES * chunks > room:
        raise _too_large()
    block = block_from_message(message)
    if block.payload_bytes < 0:
        raise Broken(f"length of block {number} of at least {block.length - block.payload_bytes}", block.length)
    return block, size_bytes + (CHUNKS_BYTES + 4 * chunks if chunks else 0)


def _too_large() -> Broken:
    return Broken(f"a manifest that takes at most {PARSED_BYTES_MAX} bytes of memory", "a larger one")


def _fields(body: memoryview) -> Iterator[tuple[int, int, int, int]]:
    """Yield each field's number, its begin, its value's begin, and its end. Raises Broken."""
    at = 0
    while at < len(body):
        tag, begin = _varint(body, at)
        wire = tag & 7
        if wire == _SIZED:
            length, begin = _varint(body, begin)
            end = begin + length
        elif wire == _VARINT:
            _, end = _varint(body, begin)
        elif wire in {_FIXED64, _FIXED32}:
            end = begin + (8 if wire == _FIXED64 else 4)
        else:
            raise Broken("a SegmentManifest message", f"a field of wire type {wire}")
        if end > len(body):
            raise Broken("a SegmentManifest message", "one that was cut short")
        yield tag >> 3, at, begin, end
        at = end


def _varint(body: memoryview, at: int) -> tuple[int, int]:
    """Return the number at an offset, and the offset of its end. Raises Broken."""
    value = shift = 0
    while at < len(body) and shift < 70:
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise Broken("a SegmentManifest message", "a number that does not end")


MAGIC = 0x8F4F464D
VERSION = 1
HEADER = struct.Struct(">IIQ4sI")

_RESERVED = bytes(4)
_CHECKED_BYTES = HEADER.size - 4


def encode(manifest: SegmentManifest) -> bytes:
    """Return the manifest object. Raises InvalidInput for a manifest that contradicts itself."""
    try:
        check(manifest)
        body = _to_message(manifest).SerializeToString(deterministic=True)
    except (Broken, ValueError) as error:
        raise InvalidInput(f"manifest of segment {manifest.segment_id} cannot be stored: {error}") from None
    head = HEADER.pack(MAGIC, VERSION, len(body), _RESERVED, 0)[:_CHECKED_BYTES]
    return b"".join((head, google_crc32c.extend(google_crc32c.value(head), body).to_bytes(4, "big"), body))


def decode(data: bytes | memoryview, *, key: str, data_bytes: int | None = None) -> SegmentManifest:
    """Read a manifest object; `key` names it in errors. Raises CorruptData.

    `data_bytes` is the data object's length from the store, which bounds the number of blocks; None if it is unknown.
    The memory of a manifest is bounded in any case (`taken_apart`).
    """
    data = bytes(data)
    _check_header(data, key)
    try:
        blocks, rest = taken_apart(memoryview(data)[HEADER.size :], data_bytes=data_bytes)
        message = parse_message(pb.SegmentManifest, rest, key=key, at=HEADER.size)
        manifest = _from_message(message, tuple(blocks))
        check(manifest)
    except Broken as error:
        raise CorruptData(key=key, offset=HEADER.size, expected=error.expected, found=error.found) from None
    return manifest


def _check_header(data: bytes, key: str) -> None:
    version, body_bytes, reserved, crc32c = header_fields(
        HEADER, MAGIC, data, header="manifest header", of=" of a manifest", key=key
    )
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
    return filled(
        pb.SegmentManifest,
        manifest,
        blocks=map(block_to_message, manifest.blocks),
        losses=map(loss_to_message, manifest.losses),
        ends=[end_to_message(*pair) for pair in manifest.ends],
        ledger_based=manifest.method is OffloadMethod.LEDGER_BASED,
        past=past_to_message(manifest.past) if manifest.past else None,
    )


def _from_message(message: pb.SegmentManifest, blocks: tuple[BlockInfo, ...]) -> SegmentManifest:
    """Return the manifest of a message. Raises Broken for values that the types cannot express."""
    return value_of(
        SegmentManifest,
        message,
        segment_id=canonical_uuid(message.segment_id),
        ledgers=tuple(value_of(LedgerPart, one) for one in message.ledgers),
        blocks=blocks,
        losses=tuple(map(loss_from_message, message.losses)),
        ends=tuple(map(end_from_message, message.ends)),
        method=OffloadMethod.LEDGER_BASED if message.ledger_based else OffloadMethod.STREAMING,
        past=past_from_message(message.past) if message.HasField("past") else None,
        replaces=tuple(map(canonical_uuid, message.replaces)),
    )
