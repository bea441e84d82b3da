"""Several buckets in memory, opened together as an S3 service's are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offloaderd.core.errors import BucketMissing
from offloaderd.objects import keys
from offloaderd.testing.memory.objects import MemoryStore

if TYPE_CHECKING:
    from offloaderd.core.clock import Clock


class Buckets(MemoryStore):
    """The first of some buckets; the others are had by `at`."""

    def __init__(self, clock: Clock, name: str, *others: str, part_bytes_min: int = 1) -> None:
        super().__init__(clock, part_bytes_min=part_bytes_min)
        self._all: dict[str, MemoryStore] = {name: self}
        self._all |= {other: MemoryStore(clock, part_bytes_min=part_bytes_min) for other in others}

    def add(self, name: str, store: MemoryStore) -> None:
        """Have another bucket, under this name."""
        self._all[name] = store

    def at(self, bucket: str) -> MemoryStore:  # type: ignore[override]  # of another kind than itself
        """See SegmentStore."""
        try:
            return self._all[bucket]
        except KeyError:
            raise BucketMissing(f"no bucket {bucket!r}") from None

    async def keys(self, bucket: str) -> list[str]:
        """Return the keys of all segments' objects in a bucket."""
        return [info.key async for info in self.at(bucket).list() if keys.HEADS not in info.key]
