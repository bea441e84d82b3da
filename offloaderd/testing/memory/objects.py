"""An object store in memory, with S3's rules; for tests and simulations."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from offloaderd.core.clock import Clock
from offloaderd.core.errors import NotFound
from offloaderd.objects.checks import (
    check_condition,
    check_key,
    check_part_number,
    checked_metadata,
    chosen_parts,
    combined_etag,
    cut,
    cut_range,
    made_of,
)
from offloaderd.objects.port import S3_PARTS, Bytes, ObjectInfo, PartInfo, PartRules, Pieces, UploadInfo, md5, pieces_of
from offloaderd.objects.stored_as import PLAIN, StoredAs


@dataclass(slots=True)
class _Upload:
    """One open multipart upload: its parts with their bytes, by number."""

    key: str
    metadata: dict[str, str]
    initiated_ms: int
    stored_as: StoredAs = PLAIN
    parts: dict[int, tuple[PartInfo, bytes]] = field(default_factory=dict)


class MemoryStore:
    """Implements SegmentStore. `part_bytes_min` may be lowered for tests of small parts."""

    def __init__(self, clock: Clock, *, part_bytes_min: int = S3_PARTS.bytes_min) -> None:
        self._clock = clock
        self.parts: PartRules = replace(S3_PARTS, bytes_min=part_bytes_min)
        self._objects: dict[str, tuple[ObjectInfo, bytes]] = {}
        self._uploads: dict[str, _Upload] = {}
        self.stored_as: dict[str, StoredAs] = {}
        """Class and tags of the objects that were given any."""

    def at(self, bucket: str) -> Self:
        """See SegmentStore."""
        return self

    async def check(self) -> None:
        """Do nothing: memory is always usable."""

    async def create_bucket(self) -> None:
        """Do nothing: memory is its own bucket."""

    async def get(self, key: str, first: int = 0, length: int | None = None) -> bytes:
        """See ObjectReader."""
        _, data = self._object(key)
        begin, end = cut_range(key, len(data), first, length)
        return data[begin:end]

    async def get_pieces(self, key: str, first: int, lengths: Sequence[int]) -> Sequence[bytes]:
        """See ObjectReader."""
        _, data = self._object(key)
        begin, _ = cut_range(key, len(data), first, sum(lengths))
        return cut(data, lengths, begin)

    async def head(self, key: str) -> ObjectInfo:
        """See ObjectReader."""
        return self._object(key)[0]

    async def list(self, prefix: str = "") -> AsyncGenerator[ObjectInfo, None]:
        """See ObjectReader; objects stored or deleted meanwhile may be missing."""
        for key in sorted(key for key in self._objects if key.startswith(prefix)):
            if key in self._objects:
                info = self._objects[key][0]
                yield ObjectInfo(key=key, size_bytes=info.size_bytes, etag=info.etag, modified_ms=info.modified_ms)

    async def put(
        self,
        key: str,
        data: Bytes | Pieces,
        *,
        metadata: Mapping[str, str] | None = None,
        if_etag: str | None = None,
        stored_as: StoredAs = PLAIN,
    ) -> ObjectInfo:
        """See ObjectStore."""
        check_key(key)
        there = self._objects.get(key)
        check_condition(key, if_etag, there[0].etag if there is not None else "")
        stored = b"".join(pieces_of(data))
        self._note(key, stored_as)
        return self._store(key, stored, md5(stored), checked_metadata(metadata))

    async def delete(self, keys: Sequence[str]) -> None:
        """See ObjectStore."""
        for key in keys:
            self._objects.pop(key, None)

    async def create_upload(
        self,
        key: str,
        *,
        metadata: Mapping[str, str] | None = None,
        stored_as: StoredAs = PLAIN,
    ) -> str:
        """See MultipartStore."""
        check_key(key)
        upload_id = self._clock.uuid().hex
        self._uploads[upload_id] = _Upload(key, checked_metadata(metadata), self._clock.wall_ms(), stored_as)
        return upload_id

    async def upload_part(self, key: str, upload_id: str, part_number: int, pieces: Pieces) -> PartInfo:
        """See MultipartStore."""
        check_part_number(self.parts, part_number)
        upload = self._upload(key, upload_id)
        stored = b"".join(pieces)
        info = PartInfo(part_number=part_number, etag=md5(stored), size_bytes=len(stored))
        upload.parts[part_number] = (info, stored)
        return info

    async def list_parts(self, key: str, upload_id: str) -> Sequence[PartInfo]:
        """See MultipartStore."""
        return [info for _, (info, _) in sorted(self._upload(key, upload_id).parts.items())]

    async def complete_upload(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> ObjectInfo:
        """See MultipartStore."""
        upload = self._upload(key, upload_id)
        stored = {number: info for number, (info, _) in upload.parts.items()}
        chosen = chosen_parts(parts, stored, self.parts.bytes_min)
        data = b"".join(upload.parts[part.part_number][1] for part in chosen)
        del self._uploads[upload_id]
        self._note(key, upload.stored_as)
        return self._store(key, data, combined_etag(chosen), upload.metadata)

    async def made_of(self, stored: ObjectInfo, parts: Sequence[PartInfo]) -> bool | None:
        """See MultipartStore."""
        return made_of(self.parts, stored, parts)

    async def abort_upload(self, key: str, upload_id: str) -> None:
        """See MultipartStore."""
        upload = self._uploads.get(upload_id)
        if upload is not None and upload.key == key:
            del self._uploads[upload_id]

    async def list_uploads(self, prefix: str = "") -> AsyncGenerator[UploadInfo, None]:
        """See MultipartStore."""
        found = [
            UploadInfo(key=upload.key, upload_id=upload_id, initiated_ms=upload.initiated_ms)
            for upload_id, upload in self._uploads.items()
            if upload.key.startswith(prefix)
        ]
        for info in sorted(found, key=lambda upload: (upload.key, upload.initiated_ms, upload.upload_id)):
            yield info

    def _object(self, key: str) -> tuple[ObjectInfo, bytes]:
        check_key(key)
        try:
            return self._objects[key]
        except KeyError:
            raise NotFound(f"no object {key}") from None

    def _upload(self, key: str, upload_id: str) -> _Upload:
        upload = self._uploads.get(upload_id)
        if upload is None or upload.key != key:
            raise NotFound(f"no upload {upload_id} of {key}")
        return upload

    def _note(self, key: str, stored_as: StoredAs) -> None:
        self.stored_as.pop(key, None)
        if stored_as != PLAIN:
            self.stored_as[key] = stored_as

    def _store(self, key: str, data: bytes, etag: str, metadata: dict[str, str]) -> ObjectInfo:
        info = ObjectInfo(
            key=key, size_bytes=len(data), etag=etag, modified_ms=self._clock.wall_ms(), metadata=metadata
        )
        self._objects[key] = (info, data)
        return info
