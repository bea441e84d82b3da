"""The content of a managed ledger's node, taken out of its compression. Pure: bytes in, bytes out.

| offset | size | field |
|---|---|---|
| 0 | 2 | magic `47 78`; without it the whole node is the content |
| 2 | 4 | n, int32 big-endian |
| 6 | n | ManagedLedgerInfoMetadata: type of compression, bytes of the content |
| 6+n | rest | content, compressed |

Rules: no more memory is taken than the head declares, and never more than a cap; what comes out must be as long as
declared.
"""

from __future__ import annotations

from typing import NamedTuple

from offloaderd.core.errors import CorruptData
from offloaderd.format.parsing import parse_message
from offloaderd.format.pb.pulsar.ml_data_formats_pb2 import CompressionType, ManagedLedgerInfoMetadata
from offloaderd.format.pulsar.compression import Compression, Undecodable, decompress

MAGIC = b"\x47\x78"
HEAD_BYTES = 6
CONTENT_BYTES_MAX = 64 * 1024 * 1024
"""A node has 1 MiB unless ZooKeeper is told otherwise; a list of ledgers shrinks to a tenth or so, not to a 64th."""


class Content(NamedTuple):
    """The plain content, and where in the node it begins, compressed or not."""

    data: bytes
    offset: int


def content_of(node: bytes, *, key: str, content_bytes_max: int = CONTENT_BYTES_MAX) -> Content:
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
        data = decompress(Compression(head.compressionType), node[body_at:], declared)
    except Undecodable as error:
        name = CompressionType.Name(head.compressionType)
        expected = f"{declared} bytes compressed by {name}"
        raise CorruptData(key=key, offset=body_at, expected=expected, found=error) from None
    return Content(data, body_at)
