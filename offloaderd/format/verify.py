"""Blocks read back against the manifest: the one way from stored bytes to entries that may be handed out.

The checksum is compared before anything inside the block is looked at. It covers header, entries and padding, so
every change of a single bit, and every burst of up to 32, is found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import google_crc32c

from offloaderd.errors import CorruptData
from offloaderd.format import v2

if TYPE_CHECKING:
    from offloaderd.format.manifest import BlockInfo
    from offloaderd.model import EntryBatch


def check_block(data: bytes, info: BlockInfo, *, key: str) -> None:
    """Check that `data` is the block that `info` describes, by length and checksum; raises CorruptData."""
    if len(data) != info.length:
        expected = f"a block of {info.length} bytes"
        raise CorruptData(key=key, offset=info.offset, expected=expected, found=f"{len(data)} bytes")
    crc32c = google_crc32c.value(data)
    if crc32c != info.crc32c:
        expected = f"a block with checksum {info.crc32c:08x}"
        raise CorruptData(key=key, offset=info.offset, expected=expected, found=f"{crc32c:08x}")


def decode_verified_block(data: bytes, info: BlockInfo, *, key: str) -> EntryBatch:
    """Return the entries of a block of the data object `key` after `check_block`; raises CorruptData.

    The block also has to hold what `info` says, which finds a manifest that belongs to another object.
    """
    check_block(data, info, key=key)
    batch = v2.decode_block(data, key=key, at=info.offset)
    found = (batch.ledger_id, batch.first_entry_id, len(batch.payloads))
    if found != (info.ledger_id, info.first_entry_id, info.entry_count):
        expected = f"{info.entry_count} entries from {info.ledger_id}:{info.first_entry_id} on"
        raise CorruptData(key=key, offset=info.offset, expected=expected, found=f"{found[2]} from {batch.first}")
    return batch
