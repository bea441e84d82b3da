"""Stores that discard data objects, for measurements of what fills them; also for the Python workers of Spark.

Nothing is imported that starts threads: Spark forks its workers from this module (`python -m bench.discarding`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offloaderd.objects import opening
from offloaderd.objects.filesystem import FilesystemStore
from offloaderd.objects.port import ObjectInfo, PartInfo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.core.clock import Clock
    from offloaderd.objects.port import Pieces
    from offloaderd.objects.settings import ServiceSettings


class Discarding:
    """Keeps index and manifest in the store that follows it as a base; of data objects it keeps their size."""

    def __init__(self, *given: Any, **named: Any) -> None:  # noqa: ANN401 - those of the store
        super().__init__(*given, **named)
        self._sizes: dict[str, int] = {}

    async def upload_part(self, key: str, upload_id: str, part_number: int, pieces: Pieces) -> PartInfo:
        """Drop a part."""
        del key, upload_id
        return PartInfo(part_number=part_number, etag="0" * 32, size_bytes=sum(map(len, pieces)))

    async def complete_upload(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> ObjectInfo:
        """Have an object of that size."""
        del upload_id
        self._sizes[key] = sum(part.size_bytes for part in parts)
        return await self.head(key)

    async def head(self, key: str) -> ObjectInfo:
        """Say how large an object is, or would be."""
        if key not in self._sizes:
            return await super().head(key)  # type: ignore[misc,no-any-return] # the store's
        return ObjectInfo(key=key, size_bytes=self._sizes[key], etag="0", modified_ms=0)


class DiscardFiles(Discarding, FilesystemStore):
    """Keeps index and manifest as files; data objects are files of their size without content, for all processes."""

    async def complete_upload(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> ObjectInfo:
        """Have an object of that size."""
        await self.abort_upload(key, upload_id)
        return await self._run(self._publish, key, sum(part.size_bytes for part in parts))

    def _publish(self, key: str, size_bytes: int) -> ObjectInfo:
        draft = self._objects.draft([])
        os.truncate(draft, size_bytes)
        return self._objects.publish(key, draft, "0" * 32, {})


def store(objects: ServiceSettings, clock: Clock, *_: object) -> DiscardFiles:
    """Return the store in the place of the settings'."""
    return DiscardFiles(Path(objects.directory), clock, bucket=objects.own_places[0].bucket, section=objects.section)


def discard() -> None:
    """Have this process, and those that it forks, discard the data objects of a directory."""
    vars(opening).update(_OPEN={**opening._OPEN, "filesystem": store})  # noqa: SLF001 - in the place of the settings'


if __name__ == "__main__":
    from offloaderd.spark import workers

    discard()
    workers.main()
