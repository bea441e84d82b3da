"""A manifest's message taken apart block by block, so that what it takes in memory is bounded whoever wrote it.

A protobuf parser makes an object of every field before one can be checked, and an empty block is two bytes: a manifest
of empty blocks takes 85 times its size. Here each block is checked before the next is made.
"""

from collections.abc import Iterator
from itertools import islice

from google.protobuf.message import DecodeError

from offloaderd.core.entries import ENTRY_OVERHEAD_BYTES
from offloaderd.format.manifest.parts import block_from_message
from offloaderd.format.pb.storage import manifest_pb2 as pb
from offloaderd.format.values import BlockInfo, Broken

PARSED_BYTES_MAX = 256 * 1024 * 1024
"""Memory that a decoded manifest may take: that of a segment of some 100 GiB in blocks of 1 MiB."""
FIELD_BYTES = 256
BLOCK_BYTES = 512
SPARSE_BYTES = 128
CHUNKS_BYTES = 40
CHUNK_BYTES = 48
"""Memory, about: of a field that is no block, a block, a sparse position, a block's chunks beside their checksums; and
of the checksum of a chunk while its block is read."""
BLOCKS_SPARE = 1024
"""So many blocks more are read than the data has room for: that data was cut is for others to say."""

FIELDS_LOOKED_AT = 32
"""For a name, which is the second field of what is written here."""

_BLOCKS = pb.SegmentManifest.BLOCKS_FIELD_NUMBER
_VARINT, _FIXED64, _SIZED, _FIXED32 = 0, 1, 2, 5


def taken_apart(body: memoryview, *, data_bytes: int | None) -> tuple[list[BlockInfo], bytes]:
    """Return the blocks of an encoded SegmentManifest, and its other fields as they are encoded.

    `data_bytes` is how long its data object is, None where nobody has asked. Raises Broken.
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
    """Return whose a manifest says that it is, whatever else is wrong with it; empty if it does not. Raises Broken."""
    for number, _, begin, end in islice(_fields(body), FIELDS_LOOKED_AT):
        if number == pb.SegmentManifest.MANAGED_LEDGER_FIELD_NUMBER:
            return bytes(body[begin:end]).decode(errors="replace")
    return ""


def _block(encoded: memoryview, number: int, room: int) -> tuple[BlockInfo, int]:
    """Return a block, and what it takes in memory, if there is room for it. Raises Broken."""
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
    """Yield of each field its number, and where it begins, where its value does, and where both end. Raises Broken."""
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
    """Return the number at a place, and where it ends. Raises Broken."""
    value = shift = 0
    while at < len(body) and shift < 70:
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise Broken("a SegmentManifest message", "a number that does not end")
