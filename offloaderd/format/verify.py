"""Verification of blocks and indexes against the manifest. Every read of offloaded entries passes through it.

The checksum is compared before the block is decoded. It covers header, entries and padding, and detects every change of
a single bit and every burst of up to 32 bits.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import google_crc32c

from offloaderd.core.entries import ENTRY_HEAD, PAD, FramedEntries, framed_bytes, padding
from offloaderd.core.errors import CorruptData
from offloaderd.core.model import EntryBatch, OffloadMethod
from offloaderd.format import v1, v2
from offloaderd.format.manifest import BlockInfo, SegmentManifest
from offloaderd.format.v1 import LedgerObjectIndex
from offloaderd.format.v2 import SegmentIndex

CHANGED = "the object is not what was committed; restore it, or read from the ledger source"


def check_block(data: bytes, info: BlockInfo, *, key: str) -> None:
    """Check length and checksum of a block. Raises CorruptData."""
    if len(data) != info.length:
        expected = f"a block of {info.length} bytes"
        raise CorruptData(key=key, offset=info.offset, expected=expected, found=f"{len(data)} bytes")
    crc32c = google_crc32c.value(data)
    if crc32c != info.crc32c:
        expected = f"a block with checksum {info.crc32c:08x}"
        raise CorruptData(key=key, offset=info.offset, expected=expected, found=f"{crc32c:08x}")


def decode_verified_block(data: bytes, info: BlockInfo, *, key: str, method: OffloadMethod) -> EntryBatch:
    """Return the entries of a block of the data object `key` after `check_block`. Raises CorruptData.

    `method` selects the object's format. The entries are compared with `info`, which detects another object's manifest.
    """
    check_block(data, info, key=key)
    return _decoded(data, info, key=key, method=method)


class BlockRun(NamedTuple):
    """Neighbouring blocks that one request reads."""

    blocks: Sequence[BlockInfo]
    offset: int
    length: int

    def decoded(self, data: bytes, *, key: str, method: OffloadMethod) -> list[EntryBatch]:
        """Return the entries of each block, as `decode_verified_block`. Raises CorruptData."""
        starts = [(block, block.offset - self.offset) for block in self.blocks]
        return [
            decode_verified_block(data[at : at + block.length], block, key=key, method=method) for block, at in starts
        ]


def runs(blocks: Sequence[BlockInfo], run_bytes: int) -> Iterator[BlockRun]:
    """Yield runs of neighbouring blocks with up to `run_bytes` bytes together, or with one larger block."""
    first = 0
    for end in range(1, len(blocks) + 1):
        offset = blocks[first].offset
        if end == len(blocks) or blocks[end].offset + blocks[end].length - offset > run_bytes:
            yield BlockRun(blocks[first:end], offset, blocks[end - 1].offset + blocks[end - 1].length - offset)
            first = end


def _decoded(data: bytes, info: BlockInfo, *, key: str, method: OffloadMethod) -> EntryBatch:
    """Return the entries of a checked block, and compare them with `info`. Raises CorruptData."""
    if method is OffloadMethod.LEDGER_BASED:
        batch = v1.decode_run(data, info, key=key)
    else:
        batch = v2.decode_block(data, key=key, at=info.offset)
    found = (batch.ledger_id, batch.first_entry_id, len(batch.payloads))
    if found != (info.ledger_id, info.first_entry_id, info.entry_count):
        expected = f"{info.entry_count} entries from {info.ledger_id}:{info.first_entry_id} on"
        raise CorruptData(key=key, offset=info.offset, expected=expected, found=f"{found[2]} from {batch.first}")
    return batch


def framed_block(data: bytes, info: BlockInfo, *, key: str, method: OffloadMethod) -> FramedEntries:
    """Return the stored form of a block's entries after `check_block`, without decoding each. Raises CorruptData.

    Their end follows from the manifest and is compared with the padding. If that is ambiguous, the entries are decoded:
    older manifests do not record all padding, and an entry may end with the same bytes.
    """
    check_block(data, info, key=key)
    end = info.length - info.pad_bytes
    sure = info.payload_bytes >= 0 and data[end:] == padding(info.pad_bytes) and data[end - len(PAD) : end] != PAD
    if not sure:
        batch = _decoded(data, info, key=key, method=method)
        end = info.head_bytes + framed_bytes(batch.payload_bytes(), info.entry_count)
    told = _told_by_header(data, info, key=key, method=method)
    first = (*told, ENTRY_HEAD.unpack_from(data, info.head_bytes)[1])
    if first != (info.ledger_id, info.first_entry_id, info.first_entry_id):
        expected = f"entries from {info.ledger_id}:{info.first_entry_id} on"
        raise CorruptData(
            key=key, offset=info.offset, expected=expected, found=f"{told[0]}:{told[1]}, entry {first[2]}"
        )
    return FramedEntries(
        info.ledger_id,
        info.first_entry_id,
        info.entry_count,
        data,
        start=info.head_bytes,
        end=end,
        key=key,
        at=info.offset,
        places=info.sparse,
    )


def _told_by_header(data: bytes, info: BlockInfo, *, key: str, method: OffloadMethod) -> tuple[int, int]:
    """Return ledger and first entry from the block's header, or from `info` if the header does not have them."""
    if method is OffloadMethod.LEDGER_BASED:
        return info.ledger_id, v1.run_begin(data, info, key=key)
    header = v2.decode_whole_header(data, key=key, at=info.offset)
    return header.ledger_id, header.first_entry_id


def check_index(data: bytes, manifest: SegmentManifest, *, key: str) -> None:
    """Check that an index belongs to this manifest. Raises CorruptData for any other bytes."""
    if len(data) != manifest.index_bytes:
        end = min(len(data), manifest.index_bytes)
        raise differs(key, end, f"{manifest.index_bytes} bytes", f"{len(data)} bytes")
    crc = google_crc32c.value(data)
    if crc != manifest.index_crc32c:
        raise differs(key, 0, f"CRC-32C {manifest.index_crc32c:08x}", f"{crc:08x}")
    if manifest.method is OffloadMethod.LEDGER_BASED:
        _check_ledger_index(v1.decode_index(data, key=key), manifest, key)
    else:
        _check_segment_index(v2.decode_index(data, key=key), manifest, key)


def _check_segment_index(index: SegmentIndex, manifest: SegmentManifest, key: str) -> None:
    if index.data_bytes != manifest.data_bytes:
        raise differs(key, 8, f"a data object of {manifest.data_bytes} bytes", index.data_bytes)
    listed = sorted(
        (entry.part_id, group.ledger_id, entry.first_entry_id, entry.offset)
        for group in index.groups
        for entry in group.entries
    )
    blocks = [
        (number, block.ledger_id, block.first_entry_id, block.offset)
        for number, block in enumerate(manifest.blocks, start=1)
    ]
    if listed != blocks:
        raise differs(key, 24, f"the {len(blocks)} blocks of the manifest", "other blocks")


def _check_ledger_index(index: LedgerObjectIndex, manifest: SegmentManifest, key: str) -> None:
    if index.data_bytes != manifest.data_bytes:
        raise differs(key, 8, f"a data object of {manifest.data_bytes} bytes", index.data_bytes)
    last = manifest.ledgers[0].last_entry_id
    if index.ledger().lastEntryId != last:
        raise differs(key, v1.INDEX_HEADER.size, f"a ledger up to entry {last}", index.ledger().lastEntryId)
    runs = manifest.blocks
    if list(index.entries) not in (v1.index_entries(runs, dense=False), v1.index_entries(runs, dense=True)):
        raise differs(key, 24, "the blocks of the manifest, or all its runs", "others")


def differs(key: str, offset: int, expected: object, found: object) -> CorruptData:
    """Return the error for an object that differs from the committed one."""
    return CorruptData(key=key, offset=offset, expected=expected, found=found, hint=CHANGED)
