"""An object store in a directory, for tests, for laptops, and for archives on a mounted file system.

    <root>/<escaped key>                         an object: its bytes and nothing else
    <root>/.metadata/<escaped key>@<ns>-<bytes>  its ETag and user metadata (JSON), by the data file's time and size
    <root>/.drafts/<id>                          a file that is being written
    <root>/.uploads/<id>/upload.json, <part>-<etag>   an open multipart upload

A key is escaped to one file name (`/` becomes `%2F`, a leading `.` `%2E`), so no key can leave the root, clash with the
hidden folders, or be a folder where another key is a file. All files are written as drafts, synced, and renamed. The
metadata file is first and belongs to exactly one version of the data file, so after a crash, or in between, readers
find the old object or the new one, never a mixture.

The work is done in threads; the cancellation of a call does not stop it.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Self

from offloaderd.core.clock import Clock, SystemClock
from offloaderd.objects.checks import check_key, check_part_number, check_range, checked_metadata, cut, flat
from offloaderd.objects.filesystem.files import ObjectDirectory
from offloaderd.objects.filesystem.uploads import UploadDirectory
from offloaderd.objects.port import PART_BYTES_MIN, Bytes, ObjectInfo, PartInfo, Pieces, UploadInfo


class FilesystemStore:
    """Implements SegmentStore. `part_bytes_min` may be lower in tests of small parts."""

    def __init__(self, root: Path, clock: Clock | None = None, *, part_bytes_min: int = PART_BYTES_MIN) -> None:
        clock = clock or SystemClock()
        self._objects = ObjectDirectory(root, clock)
        self._uploads = UploadDirectory(self._objects, clock, part_bytes_min)

    async def __aenter__(self) -> Self:
        """Nothing to open."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing to close."""

    def at(self, bucket: str) -> Self:
        """See SegmentStore."""
        return self

    async def check(self) -> None:
        """Write and remove a draft. Raises BucketMissing, Denied and NoSpace with a remedy."""
        await asyncio.to_thread(self._objects.check)

    async def create_bucket(self) -> None:
        """Create the root directory; an existing one is no error."""
        await asyncio.to_thread(self._objects.create)

    async def get(self, key: str, first: int = 0, length: int | None = None) -> bytes:
        """See ObjectReader."""
        check_key(key)
        check_range(key, first, length)
        return await asyncio.to_thread(self._objects.get, key, first, length)

    async def get_pieces(self, key: str, first: int, lengths: Sequence[int]) -> Sequence[bytes]:
        """See ObjectReader."""
        return cut(await self.get(key, first, sum(lengths)), lengths)

    async def head(self, key: str) -> ObjectInfo:
        """See ObjectReader."""
        check_key(key)
        return await asyncio.to_thread(self._objects.head, key)

    async def list(self, prefix: str = "") -> AsyncGenerator[ObjectInfo, None]:
        """See ObjectReader; objects that are stored or deleted meanwhile may be missed."""
        for key in await asyncio.to_thread(self._objects.keys, prefix):
            info = await asyncio.to_thread(self._objects.listed, key)
            if info is not None:
                yield info

    async def put(
        self, key: str, data: Bytes, *, metadata: Mapping[str, str] | None = None, if_etag: str | None = None
    ) -> ObjectInfo:
        """See ObjectStore. Conditions do not exclude another process that replaces the object at the same moment."""
        check_key(key)
        return await asyncio.to_thread(self._objects.put, key, flat(data), checked_metadata(metadata), if_etag)

    async def delete(self, keys: Sequence[str]) -> None:
        """See ObjectStore."""
        for key in keys:
            check_key(key)
        await asyncio.to_thread(self._objects.delete, keys)

    async def create_upload(self, key: str, *, metadata: Mapping[str, str] | None = None) -> str:
        """See MultipartStore."""
        check_key(key)
        return await asyncio.to_thread(self._uploads.create, key, checked_metadata(metadata))

    async def upload_part(self, key: str, upload_id: str, part_number: int, pieces: Pieces) -> PartInfo:
        """See MultipartStore."""
        check_part_number(part_number)
        return await asyncio.to_thread(self._uploads.add, key, upload_id, part_number, [*map(flat, pieces)])

    async def list_parts(self, key: str, upload_id: str) -> Sequence[PartInfo]:
        """See MultipartStore."""
        return await asyncio.to_thread(self._uploads.parts, key, upload_id)

    async def complete_upload(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> ObjectInfo:
        """See MultipartStore."""
        return await asyncio.to_thread(self._uploads.complete, key, upload_id, parts)

    async def abort_upload(self, key: str, upload_id: str) -> None:
        """See MultipartStore."""
        await asyncio.to_thread(self._uploads.abort, key, upload_id)

    async def list_uploads(self, prefix: str = "") -> AsyncGenerator[UploadInfo, None]:
        """See MultipartStore."""
        for upload in await asyncio.to_thread(self._uploads.open_uploads, prefix):
            yield upload
