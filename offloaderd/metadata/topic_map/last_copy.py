"""The check whether a segment that is to be deleted holds the last copy of entries.

Metadata alone never decide the deletion of a finished segment: lost metadata, or those of an old backup, would delete
last copies. So the segment's readable manifest is compared with the map, and the map with the bucket.
"""

from collections.abc import Collection
from functools import partial
from uuid import UUID

from offloaderd.core.errors import CorruptData
from offloaderd.core.model import Position
from offloaderd.format import manifest_bytes
from offloaderd.format.manifest import LedgerPart, SegmentManifest
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.objects.keys import SegmentKeys
from offloaderd.objects.port import ObjectReader, find, present
from offloaderd.objects.whole import read_apart, read_sure


async def last_copy(objects: ObjectReader, topic_map: TopicMap, bucket: str, where: SegmentKeys) -> str:
    """Describe the entries that only a segment outside the map holds; empty if there are none.

    A segment without a readable manifest or without data was never finished, or is being deleted: it holds no last
    copy. Raises BucketMissing, Transient, Denied.
    """
    store = objects.at(bucket)
    described = await present(_described(store, where.manifest))
    if described is None:
        return ""
    if described.managed_ledger != topic_map.topic.managed_ledger:
        return f"it is a finished segment of {described.managed_ledger}"
    missing: set[UUID] = set()
    for holder in topic_map.segments:
        overlaps = holder.begin <= described.range.end and described.range.begin <= holder.end
        if overlaps and not await _whole(objects.at(holder.bucket), holder):
            missing.add(holder.segment_id)
    hole = first_uncovered(described, topic_map, missing)
    if hole is None or await find(store, where.data) is None:
        return ""
    return f"it is finished and holds {hole}, which no other segment holds"


async def _whole(store: ObjectReader, holder: CommittedSegment) -> bool:
    """Whether all objects of a committed segment are there, and its data are as long as they were."""
    data = await find(store, holder.keys.data)
    if data is None or data.size_bytes != holder.object_bytes:
        return False
    others = (holder.keys.index,) if holder.foreign else (holder.keys.index, holder.keys.manifest)
    return None not in [await find(store, key) for key in others]


async def _described(store: ObjectReader, key: str) -> SegmentManifest | None:
    """Return a segment's manifest; None if it is damaged in the store, which two reads with the same bytes prove.

    One read alone may have been damaged in transit. Raises NotFound, Transient, Denied.
    """
    decode = partial(manifest_bytes.decode, key=key)  # without the data's length: truncated data may hold last copies
    try:
        return await read_sure(partial(read_apart, decode), partial(store.get, key, 0))
    except CorruptData:
        return None


def first_uncovered(described: SegmentManifest, topic_map: TopicMap, broken: Collection[UUID]) -> Position | None:
    """Return the first entry of a segment that is in no other sound segment and was not deleted by retention."""
    for part in described.ledgers:
        found = _uncovered_from(part, topic_map, broken)
        if found <= part.last_entry_id:
            return Position(part.ledger_id, found)
    return None


def _uncovered_from(part: LedgerPart, topic_map: TopicMap, broken: Collection[UUID]) -> int:
    """Return the first entry of a ledger's part that is nowhere else; if there is none, the id after its last."""
    entry_id, floor = part.first_entry_id, topic_map.floor
    if floor is not None and floor.ledger_id == part.ledger_id:
        entry_id = max(entry_id, floor.entry_id + 1)
    elif floor is not None and floor.ledger_id > part.ledger_id:
        return part.last_entry_id + 1
    while entry_id <= part.last_entry_id:
        holder = topic_map.find(Position(part.ledger_id, entry_id))
        if holder is None or holder.segment_id in broken:
            return entry_id
        entry_id = next(one.last_entry_id for one in holder.slices if one.ledger_id == part.ledger_id) + 1
    return entry_id


def same_content(one: SegmentManifest, other: SegmentManifest) -> bool:
    """Whether two manifests allow that their segments hold the same entries under the same ids.

    Equal blocks need equal checksums, common edges of blocks equal times and indexes, equal parts equal sizes.
    """
    sizes = {(part.ledger_id, part.first_entry_id, part.last_entry_id): part.payload_bytes for part in other.ledgers}
    for part in one.ledgers:
        known = sizes.get((part.ledger_id, part.first_entry_id, part.last_entry_id), part.payload_bytes)
        if known != part.payload_bytes:
            return False
    begins = {(block.ledger_id, block.first_entry_id): block for block in other.blocks}
    ends = {(block.ledger_id, block.last_entry_id): block for block in other.blocks}
    alike = one.method is other.method
    for block in one.blocks:
        begun = begins.get((block.ledger_id, block.first_entry_id))
        ended = ends.get((block.ledger_id, block.last_entry_id))
        if begun is not None and begun is ended and alike and begun.crc32c != block.crc32c:
            return False
        told = [(begun.first_broker_timestamp, block.first_broker_timestamp)] if begun is not None else []
        told += [(begun.first_index, block.first_index)] if begun is not None else []
        told += [(ended.last_broker_timestamp, block.last_broker_timestamp)] if ended is not None else []
        told += [(ended.last_index, block.last_index)] if ended is not None else []
        if any(None not in pair and pair[0] != pair[1] for pair in told):
            return False
    return True
