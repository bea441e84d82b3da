"""Listing of the bucket by segment: the objects and open uploads with a segment's id in their key.

Only keys that `objects/keys.py` makes count; other objects under the prefix are counted and never touched. A ledger's
object (V1) without a manifest beside it may be a broker's, which its labels tell.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from uuid import UUID

from offloaderd.objects import keys
from offloaderd.objects.keys import ObjectKind, SegmentKeys
from offloaderd.objects.port import ObjectInfo, ObjectReader, SegmentStore, UploadInfo

BATCH = 256
"""Segments that are read side by side between two reports of progress."""
KINDS = (ObjectKind.DATA, ObjectKind.INDEX, ObjectKind.MANIFEST)
"""The three objects of a segment, in the order of their writing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A bucket and prefix with the objects of one cluster; `broker_driver`: Pulsar's own for such a store.

    Objects of brokers do not name their driver.
    """

    cluster: str
    bucket: str
    prefix: str
    broker_driver: str = "aws-s3"


@dataclass(slots=True)
class StoredSegment:
    """All objects and uploads of one segment's id in a bucket."""

    bucket: str
    keys: SegmentKeys
    objects: dict[ObjectKind, ObjectInfo] = field(default_factory=dict)
    uploads: list[UploadInfo] = field(default_factory=list)

    @property
    def place(self) -> tuple[str, str]:
        """Bucket and prefix."""
        return self.bucket, self.keys.prefix

    @property
    def segment_id(self) -> UUID:
        """The segment's id."""
        return self.keys.segment_id

    @property
    def may_be_brokers(self) -> bool:
        """Whether a broker may have written it, by its keys alone: brokers write no manifest."""
        return self.keys.ledger_id is not None and not self.objects.keys() & {ObjectKind.MANIFEST, ObjectKind.DRAFT}

    @property
    def described_by(self) -> ObjectInfo | None:
        """Its manifest, or the draft of one that was never committed."""
        return self.objects.get(ObjectKind.MANIFEST) or self.objects.get(ObjectKind.DRAFT)

    @property
    def newest_ms(self) -> int:
        """When its newest object was stored, or its newest upload begun, by the store's clock."""
        times = [info.modified_ms for info in self.objects.values()]
        return max(times + [upload.initiated_ms for upload in self.uploads])

    @property
    def size_bytes(self) -> int:
        """Bytes of all its objects, without uploads."""
        return sum(info.size_bytes for info in self.objects.values())


@dataclass(slots=True)
class Counts:
    """Totals of a listing."""

    segments: int = 0
    objects: int = 0
    object_bytes: int = 0
    others: int = 0
    """Objects whose keys are not a segment's."""


async def segments(
    objects: ObjectReader, site: Site, counts: Counts, *, with_brokers: bool = False
) -> AsyncGenerator[StoredSegment, None]:
    """Yield every segment with objects, one at a time, by id; those that may be a broker's only `with_brokers`."""
    current: StoredSegment | None = None
    prefix = site.prefix
    async with aclosing(objects.at(site.bucket).list(prefix)) as found:
        async for info in found:
            name = keys.parse(prefix, info.key)
            if name is None:
                counts.others += not keys.is_beside(prefix, info.key)
                continue
            where = SegmentKeys(prefix, name.object_id, name.ledger_id)
            if current is None or current.keys != where:
                if current is not None and _counted(current, counts, with_brokers=with_brokers):
                    yield current
                current = StoredSegment(site.bucket, where)
            current.objects[name.kind] = info
    if current is not None and _counted(current, counts, with_brokers=with_brokers):
        yield current


async def batches(
    objects: ObjectReader, site: Site, counts: Counts, *, with_brokers: bool = False
) -> AsyncGenerator[list[StoredSegment], None]:
    """Yield what `segments` does in lists of BATCH; the last may be shorter, or empty."""
    batch: list[StoredSegment] = []
    async with aclosing(segments(objects, site, counts, with_brokers=with_brokers)) as found:
        async for one in found:
            batch.append(one)
            if len(batch) == BATCH:
                yield batch
                batch = []
    yield batch


def _counted(found: StoredSegment, counts: Counts, *, with_brokers: bool) -> bool:
    """Count a segment; False if it is to be left out."""
    if found.may_be_brokers and not with_brokers:
        counts.others += len(found.objects)
        return False
    counts.segments += 1
    counts.objects += len(found.objects)
    counts.object_bytes += found.size_bytes
    return True


async def store_now_ms(store: SegmentStore, key: str) -> int:
    """Return the time of a store's clock, by the object `key`, which is written and deleted."""
    info = await store.put(key, b"")
    now_ms = info.modified_ms or (await store.head(key)).modified_ms
    await store.delete([key])
    return now_ms


async def uploads(objects: SegmentStore, site: Site) -> dict[SegmentKeys, list[UploadInfo]]:
    """Return every open upload of a data object by its segment; that of a whole ledger may be a broker's."""
    by_segment: dict[SegmentKeys, list[UploadInfo]] = {}
    prefix = site.prefix
    async with aclosing(objects.at(site.bucket).list_uploads(prefix)) as found:
        async for upload in found:
            name = keys.parse(prefix, upload.key)
            if name is not None and name.kind is ObjectKind.DATA:
                where = SegmentKeys(prefix, name.object_id, name.ledger_id)
                by_segment.setdefault(where, []).append(upload)
    return by_segment
