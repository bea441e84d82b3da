"""The content of a managed ledger's node, taken out of its compression. Pure: bytes in, bytes out.

| offset | size | field |
|---|---|---|
| 0 | 2 | magic `47 78`; without it the whole node is the content |
| 2 | 4 | n, int32 big-endian |
| 6 | n | ManagedLedgerInfoMetadata: type of compression, bytes of the content |
| 6+n | rest | content, compressed |

Rules: no more memory is taken than the head declares, and never more than a cap; what comes out must be as long as
declared. Pulsar never finishes its ZLIB stream, so its end is not looked for.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, NamedTuple

import cramjam

from offloaderd.errors import CorruptData
from offloaderd.format.messages import parse_message
from offloaderd.format.pb.pulsar.ml_data_formats_pb2 import CompressionType, ManagedLedgerInfoMetadata

if TYPE_CHECKING:
    from collections.abc import Callable

MAGIC = b"\x47\x78"
HEAD_BYTES = 6
CONTENT_BYTES_MAX = 64 * 1024 * 1024
"""A node has 1 MiB unless ZooKeeper is told otherwise; a list of ledgers shrinks to a tenth or so, not to a 64th."""


class Content(NamedTuple):
    """The plain content, and where in the node it begins, compressed or not."""

    data: bytes
    offset: int


class _Broken(Exception):
    """The compressed bytes are none, or not as many as declared; the message says which."""


def decompress(node: bytes, *, key: str, content_bytes_max: int = CONTENT_BYTES_MAX) -> Content:
    """Return the content of a node, compressed or not. `key` names the node in errors.

    Raises CorruptData.
    """
    if not node.startswith(MAGIC):
        return Content(node, 0)
    size = int.from_bytes(node[2:HEAD_BYTES], "big", signed=True)
    body_at = HEAD_BYTES + size
    if len(node) < HEAD_BYTES or size < 0 or body_at > len(node):
        room = max(0, len(node) - HEAD_BYTES)
        raise CorruptData(key=key, offset=2, expected=f"a head of at most {room} bytes", found=size)
    head = parse_message(ManagedLedgerInfoMetadata, node[HEAD_BYTES:body_at], key=key, at=HEAD_BYTES)
    declared = head.uncompressedSize
    if not 0 <= declared <= content_bytes_max:
        expected = f"a content of at most {content_bytes_max} bytes"
        raise CorruptData(key=key, offset=HEAD_BYTES, expected=expected, found=declared)
    try:
        data = _METHODS[head.compressionType](node[body_at:], declared)
    except _Broken as error:
        name = CompressionType.Name(head.compressionType)
        expected = f"{declared} bytes compressed by {name}"
        raise CorruptData(key=key, offset=body_at, expected=expected, found=error) from None
    return Content(data, body_at)


def _none(body: bytes, size: int) -> bytes:
    return _sized(body, len(body), size)


def _zlib(body: bytes, size: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(body, size + 1)
    except zlib.error as error:
        raise _Broken(error) from None
    if stream.unused_data:
        raise _Broken(f"{len(stream.unused_data)} bytes behind the end of the stream")
    return _sized(data, len(data), size)


def _lz4(body: bytes, size: int) -> bytes:
    """Decode a raw block; the library fills up with zeros unless it is asked how much it wrote."""
    return _into(size, lambda out: cramjam.lz4.decompress_block_into(body, out, output_len=size))


def _zstd(body: bytes, size: int) -> bytes:
    return _into(size, lambda out: cramjam.zstd.decompress_into(body, out))


def _snappy(body: bytes, size: int) -> bytes:
    return _into(size, lambda out: cramjam.snappy.decompress_raw_into(body, out))


def _into(size: int, method: Callable[[bytearray], int]) -> bytes:
    """Let the library write into a buffer of the declared size: it cannot write more."""
    out = bytearray(size)
    try:
        written = method(out)
    except cramjam.DecompressionError as error:
        raise _Broken(error) from None
    return _sized(bytes(out), written, size)


def _sized(data: bytes, length: int, size: int) -> bytes:
    if length != size:
        raise _Broken(f"{length} bytes" if length < size else f"more than {size} bytes")
    return data


_METHODS: dict[int, Callable[[bytes, int], bytes]] = {
    CompressionType.NONE: _none,
    CompressionType.LZ4: _lz4,
    CompressionType.ZLIB: _zlib,
    CompressionType.ZSTD: _zstd,
    CompressionType.SNAPPY: _snappy,
}
