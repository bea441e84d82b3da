"""The bucket against the metadata, and the entries in it, read by a decoder that shares no code with the package.

What is referenced is what the committed maps, the open attempts and the trash name. At rest (every topic offloaded,
trash emptied) each referenced object has to be there and nothing else.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from offloaderd.core.errors import NotFound
from offloaderd.core.model import Position
from offloaderd.metadata import paths
from offloaderd.metadata.records import attempt as attempt_record
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.zookeeper.store import ZooKeeperStore
from offloaderd.objects import keys
from offloaderd.objects.buckets import BucketStore
from offloaderd.objects.opening import bucket_store
from offloaderd.objects.settings import ObjectsSettings
from tests.integration.processes import CLOCK

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from offloaderd.core.model import TopicName
    from offloaderd.metadata.committed import CommittedSegment
    from offloaderd.metadata.port import MetadataStore
    from offloaderd.objects.port import SegmentStore, UploadInfo
    from tests.integration.processes import Site

BLOCK_HEAD = struct.Struct(">Iqqqq")  # magic, header length, block length, first entry, ledger (FORMAT.md, 3.1)
BLOCK_MAGIC = 0x26A66D32
ENTRY_HEAD = struct.Struct(">iq")  # payload length, entry (FORMAT.md, 1.1)


@dataclass(slots=True)
class Audit:
    """What was found: each list is empty at rest. `stored` has the entries of each topic's committed segments."""

    leaked: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    uploads: list[str] = field(default_factory=list)
    trash: list[str] = field(default_factory=list)
    attempts: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    segments: int = 0
    object_bytes: int = 0
    collected: int = 0
    stored: dict[TopicName, dict[Position, bytes]] = field(default_factory=dict)
    floors: dict[TopicName, Position | None] = field(default_factory=dict)

    @property
    def problems(self) -> list[str]:
        """Everything that should not be, in words."""
        lists = {
            "leaked": self.leaked,
            "missing": self.missing,
            "upload left open": self.uploads,
            "trash left": self.trash,
            "attempt left": self.attempts,
            "wrong": self.wrong,
        }
        return [f"{what}: {one}" for what, found in lists.items() for one in found]


def bucket_of(site: Site) -> BucketStore:
    """Return a client of a site's bucket that takes no part in what the daemon does."""
    options = {
        "endpoint": site.endpoint,
        "bucket": site.bucket,
        "access_key": site.access_key,
        "secret_key": site.secret_key,
        **site.settings.get("objects", {}),
    }
    return bucket_store(ObjectsSettings.model_validate(options), CLOCK)


async def stored_keys(store: SegmentStore) -> set[str]:
    """Return the keys of all objects of segments in a bucket: heads and markers stay when their topics are gone."""
    return {known.key async for known in store.list() if not keys.is_beside("", known.key)}


async def parts_stored(site: Site, count: int) -> tuple[UploadInfo, int]:
    """Wait until an open upload has that many parts in the bucket; returns it, and how many bytes they have."""
    async with bucket_of(site) as bucket:
        while True:
            async for upload in bucket.list_uploads():
                parts = await bucket.list_parts(upload.key, upload.upload_id)
                if len(parts) >= count:
                    return upload, sum(part.size_bytes for part in parts)
            await CLOCK.sleep(0.02)


async def audit(site: Site, topics: Sequence[TopicName]) -> Audit:
    """Compare all of a site's bucket with all that its metadata says of these topics."""
    async with bucket_of(site) as store, ZooKeeperStore(site.zookeeper, f"/offloaderd/{site.cluster}") as metadata:
        return await compare(store, metadata, topics)


async def compare(store: SegmentStore, metadata: MetadataStore, topics: Sequence[TopicName]) -> Audit:
    """Compare a bucket with metadata."""
    found = Audit()
    objects = {known.key: known async for known in store.list() if not keys.is_beside("", known.key)}
    referenced: set[str] = set()
    for topic in topics:
        topic_map = await catalog.load(metadata, topic)
        found.segments += len(topic_map.segments)
        stored = found.stored.setdefault(topic, {})
        found.floors[topic] = topic_map.floor
        for segment in topic_map.segments:
            wanted = objects_of(segment.segment_id)
            referenced |= set(wanted)
            found.missing += [key for key in wanted if key not in objects]
            if wanted[0] in objects:
                data = await store.get(wanted[0], 0, objects[wanted[0]].size_bytes)
                found.object_bytes += len(data)
                found.wrong += check_segment(segment, data, stored)
        found.wrong += [
            f"{after.range} follows {before.range}"
            for before, after in pairwise(topic_map.segments)
            if not follows(before.end, after.begin)
        ]
        found.trash += [f"{topic}: {name}" for name in await metadata.children(paths.trash(topic))]
        open_attempt = await attempt_of(metadata, topic)
        if open_attempt is not None:
            found.attempts.append(f"{topic}: {open_attempt}")
            referenced |= set(objects_of(open_attempt))
    found.leaked = sorted(objects.keys() - referenced)
    found.uploads = [f"{upload.key} ({upload.upload_id})" async for upload in store.list_uploads()]
    return found


def objects_of(segment_id: UUID) -> list[str]:
    """Return the keys of a segment's objects, data first."""
    return list(keys.SegmentKeys("", segment_id).all)


async def attempt_of(metadata: MetadataStore, topic: TopicName) -> UUID | None:
    """Return which segment is open, if any."""
    path = paths.attempt(topic)
    try:
        return attempt_record.decode((await metadata.get(path)).value, path=path).segment_id
    except NotFound:
        return None


def follows(before: Position, after: Position) -> bool:
    """Tell whether a segment may begin there: the next entry, or the first of a later ledger."""
    if after.ledger_id == before.ledger_id:
        return after.entry_id == before.entry_id + 1
    return after.ledger_id > before.ledger_id and after.entry_id == 0


def check_segment(segment: CommittedSegment, data: bytes, stored: dict[Position, bytes]) -> list[str]:
    """Add a segment's entries to `stored`; return what contradicts the map."""
    wrong = []
    if len(data) != segment.object_bytes:
        wrong.append(f"{segment.segment_id} has {len(data)} bytes, not {segment.object_bytes}")
    try:
        entries = dict(decode(data))
    except (ValueError, struct.error) as error:
        return [*wrong, f"{segment.segment_id}: {error}"]
    promised = {
        Position(part.ledger_id, entry)
        for part in segment.slices
        for entry in range(part.first_entry_id, part.last_entry_id + 1)
    }
    if promised != entries.keys():
        wrong.append(f"{segment.segment_id} holds {len(entries)} entries, the map says {segment.range}")
    wrong += [f"{position} is in two segments" for position in entries.keys() & stored.keys()]
    stored.update(entries)
    return wrong


def decode(data: bytes) -> list[tuple[Position, bytes]]:
    """Return the entries of a V2 data object without preamble. Raises ValueError and struct.error."""
    found: list[tuple[Position, bytes]] = []
    at = 0
    while at < len(data):
        magic, head, length, first, ledger = BLOCK_HEAD.unpack_from(data, at)
        if magic != BLOCK_MAGIC or head != 128 or length <= head or at + length > len(data):
            raise ValueError(f"no block at byte {at}")
        entry_at, end, number = at + head, at + length, first
        while entry_at + ENTRY_HEAD.size <= end:
            size, entry = ENTRY_HEAD.unpack_from(data, entry_at)
            if size < 0:
                break
            if entry != number:
                raise ValueError(f"entry {entry} at byte {entry_at}, not {number}")
            entry_at += ENTRY_HEAD.size
            found.append((Position(ledger, entry), data[entry_at : entry_at + size]))
            entry_at, number = entry_at + size, number + 1
        at = end
    return found
