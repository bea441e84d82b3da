"""Checks of the objects of a ledger that a broker has offloaded itself (PIP-17, V1)."""

from offloaderd.core.errors import CorruptData
from offloaderd.core.model import LedgerInfo
from offloaderd.format.v1 import BlockScan, LedgerObjectIndex, block_spans, decode_index
from offloaderd.objects import keys
from offloaderd.objects.port import ObjectInfo, ObjectReader

PIECE_BYTES = 1 << 20
MANAGED_LEDGER = "pulsar/managed-ledger"
"""Key of BookKeeper's custom metadata with the name of the ledger's topic (LedgerMetadataUtils)."""


async def verified_index(
    objects: ObjectReader,
    where: keys.SegmentKeys,
    *,
    managed_ledger: str,
    info: LedgerInfo | None = None,
    named: bool = False,
) -> tuple[LedgerObjectIndex, int]:
    """Check the objects of a ledger; return its index and the length of the data object.

    `info` is the broker's record of the ledger, None if no broker can be asked. Objects of Pulsar before 2.2 do not
    name their topic: they need only be in Pulsar's list of ledgers, unless `named` requires the name. Reads the last
    block. Raises NotFound for a missing object, CorruptData for another format, ledger or length, Transient and Denied.
    """
    data = await objects.head(where.data)
    _check_metadata(await objects.head(where.index), managed_ledger)
    _check_metadata(data, managed_ledger)
    index = decode_index(await objects.get(where.index), key=where.index)
    ledger = index.ledger()
    if index.data_bytes != data.size_bytes:
        raise _differs(where.data, data.size_bytes, f"an object of {index.data_bytes} bytes", f"{data.size_bytes}")
    if info is not None and ledger.lastEntryId != info.entries - 1:
        raise _differs(where.index, 32, f"a ledger up to entry {info.entries - 1}", ledger.lastEntryId)
    if info is not None and info.size_bytes and ledger.length != info.size_bytes:
        raise _differs(where.index, 32, f"a ledger of {info.size_bytes} bytes", ledger.length)
    names = {pair.key: pair.value for pair in ledger.customMetadata}
    if names.get(MANAGED_LEDGER, managed_ledger.encode()) != managed_ledger.encode():
        raise _differs(where.index, 32, f"a ledger of {managed_ledger}", names[MANAGED_LEDGER])
    if named and MANAGED_LEDGER not in names and keys.MANAGED_LEDGER_KEY not in data.metadata:
        raise _differs(where.data, 0, f"a ledger that names {managed_ledger} as its topic", "one that names none")
    await _check_last_block(objects, where, index)
    return index, data.size_bytes


def _check_metadata(found: ObjectInfo, managed_ledger: str) -> None:
    """Check the metadata as Pulsar's readers do, and that the object names no other topic. Raises CorruptData."""
    version = found.metadata.get(keys.FORMAT_VERSION_KEY)
    if version != keys.FORMAT_VERSION:
        expected = f"user metadata {keys.FORMAT_VERSION_KEY} of {keys.FORMAT_VERSION}"
        raise _differs(found.key, 0, expected, "none" if version is None else version)
    name = found.metadata.get(keys.MANAGED_LEDGER_KEY, managed_ledger)
    if name != managed_ledger:
        raise _differs(found.key, 0, f"a ledger of {managed_ledger}", name)


async def _check_last_block(objects: ObjectReader, where: keys.SegmentKeys, index: LedgerObjectIndex) -> None:
    """Read from the last index entry to the end, which has to be that of the ledger's last entry."""
    assert where.ledger_id is not None  # noqa: S101 - the object of a ledger
    span, last = block_spans(index)[-1], index.entries[-1]
    inside = last.first_entry_id > span.first_entry_id
    at = last.offset + index.header_bytes
    first = last.first_entry_id if inside else None
    scan = BlockScan(span, ledger_id=where.ledger_id, key=where.data, entry_id=first, at=at)
    while not scan.done:
        scan.feed(await objects.get(where.data, scan.wanted_at, min(PIECE_BYTES, span.end - scan.wanted_at)))


def _differs(key: str, offset: int, expected: object, found: object) -> CorruptData:
    hint = "the object is not what the broker's metadata says; keep it, and look who wrote it"
    return CorruptData(key=key, offset=offset, expected=expected, found=found, hint=hint)
