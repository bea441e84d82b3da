"""What lies in the bucket, segment by segment: the objects and the open uploads that bear a segment's id.

Only keys that `keys.py` makes are looked at; what else lies under the prefix is counted and never touched. Objects of
ledger-based offloads (V1) count as somebody else's: this daemon writes none, Pulsar's own offloader does.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from offloaderd.objects import keys
from offloaderd.objects.keys import ObjectKind

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping
    from uuid import UUID

    from offloaderd.objects.port import MultipartStore, ObjectInfo, ObjectReader, UploadInfo

KINDS = (ObjectKind.DATA, ObjectKind.INDEX, ObjectKind.MANIFEST)
"""The three objects of a segment, in the order in which they are written."""


@dataclass(slots=True)
class StoredSegment:
    """All that was found under one segment's id."""

    segment_id: UUID
    objects: dict[ObjectKind, ObjectInfo] = field(default_factory=dict)
    uploads: list[UploadInfo] = field(default_factory=list)

    @property
    def newest_ms(self) -> int:
        """When the last of it was stored or begun, by the store's clock."""
        times = [info.modified_ms for info in self.objects.values()]
        return max(times + [upload.initiated_ms for upload in self.uploads])

    @property
    def size_bytes(self) -> int:
        """Bytes of all its objects; what uploads hold is not known without asking for each."""
        return sum(info.size_bytes for info in self.objects.values())


@dataclass(slots=True)
class Counts:
    """How much a listing has seen."""

    segments: int = 0
    objects: int = 0
    object_bytes: int = 0
    others: int = 0
    """Objects whose keys are not those of a segment's."""


async def segments(objects: ObjectReader, prefix: str, counts: Counts) -> AsyncGenerator[StoredSegment, None]:
    """Yield every segment that has objects, in the order of ids; one at a time, as keys of one id lie together."""
    current: StoredSegment | None = None
    async with aclosing(objects.list(prefix)) as found:
        async for info in found:
            name = keys.parse(prefix, info.key)
            if name is None or name.kind not in KINDS:
                counts.others += 1
                continue
            counts.objects += 1
            counts.object_bytes += info.size_bytes
            if current is None or current.segment_id != name.object_id:
                if current is not None:
                    yield current
                current = StoredSegment(name.object_id)
                counts.segments += 1
            current.objects[name.kind] = info
    if current is not None:
        yield current


async def uploads(objects: MultipartStore, prefix: str) -> Mapping[UUID, list[UploadInfo]]:
    """Return every open upload of a data object by its segment's id."""
    by_segment: dict[UUID, list[UploadInfo]] = {}
    async with aclosing(objects.list_uploads(prefix)) as found:
        async for upload in found:
            name = keys.parse(prefix, upload.key)
            if name is not None and name.kind is ObjectKind.DATA:
                by_segment.setdefault(name.object_id, []).append(upload)
    return by_segment


def key_of(kind: ObjectKind, prefix: str, segment_id: UUID) -> str:
    """Return the key of one of a segment's three objects."""
    make = {ObjectKind.DATA: keys.data_key, ObjectKind.INDEX: keys.index_key, ObjectKind.MANIFEST: keys.manifest_key}
    return make[kind](prefix, segment_id)
