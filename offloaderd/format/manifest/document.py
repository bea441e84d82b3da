"""The manifest beside a data object, for verified reads and for a rebuild of the map from the bucket.

FORMAT.md, section 4: a header (magic, version, length, checksum) and a protobuf message. Each manifest passes `check`
when it is written and when it is read: the blocks cover the data object from the preamble to its end without a gap, and
the ledgers are exactly the sums of the blocks.
"""

import struct

import google_crc32c

from offloaderd.core.errors import CorruptData, InvalidInput
from offloaderd.core.model import OffloadMethod
from offloaderd.format.manifest import parts as manifest_parts
from offloaderd.format.manifest.rules import canonical_uuid, check
from offloaderd.format.manifest.wire import taken_apart
from offloaderd.format.parsing import filled, parse_message, value_of
from offloaderd.format.pb.storage import manifest_pb2 as pb
from offloaderd.format.values import BlockInfo, Broken, LedgerPart, SegmentManifest

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
    The memory of a manifest is bounded in any case (`wire.py`).
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
    return filled(
        pb.SegmentManifest,
        manifest,
        blocks=map(manifest_parts.block_to_message, manifest.blocks),
        losses=map(manifest_parts.loss_to_message, manifest.losses),
        ends=[manifest_parts.end_to_message(*pair) for pair in manifest.ends],
        ledger_based=manifest.method is OffloadMethod.LEDGER_BASED,
        past=manifest_parts.past_to_message(manifest.past) if manifest.past else None,
    )


def _from_message(message: pb.SegmentManifest, blocks: tuple[BlockInfo, ...]) -> SegmentManifest:
    """Return the manifest of a message. Raises Broken for values that the types cannot express."""
    return value_of(
        SegmentManifest,
        message,
        segment_id=canonical_uuid(message.segment_id),
        ledgers=tuple(value_of(LedgerPart, one) for one in message.ledgers),
        blocks=blocks,
        losses=tuple(map(manifest_parts.loss_from_message, message.losses)),
        ends=tuple(map(manifest_parts.end_from_message, message.ends)),
        method=OffloadMethod.LEDGER_BASED if message.ledger_based else OffloadMethod.STREAMING,
        past=manifest_parts.past_from_message(message.past) if message.HasField("past") else None,
        replaces=tuple(map(canonical_uuid, message.replaces)),
    )
