"""Incremental parser of a manifest's message, which bounds its memory whoever wrote it.

A protobuf parser creates all objects before any can be checked, and an empty block is two bytes: a manifest of empty
blocks takes 85 times its size. Here each block is checked before the next one is parsed.
"""

from collections.abc import Iterator
from itertools import islice

from google.protobuf.message import DecodeError

from offloaderd.core.entries import ENTRY_OVERHEAD_BYTES
from offloaderd.format.manifest.parts import block_from_message
from offloaderd.format.pb.storage import manifest_pb2 as pb
from offloaderd.format.values import BlockInfo, Broken

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
