"""The open multipart uploads of a FilesystemStore, one folder each. Blocking.

A part's file name has its number and ETag, so one rename stores both. Of two with one number the newer one counts.
"""

import json
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from offloaderd.core.clock import Clock
from offloaderd.core.errors import NotFound
from offloaderd.objects.checks import chosen_parts, combined_etag, md5
from offloaderd.objects.filesystem.files import COPY_BYTES, UPLOAD_FOLDER, ObjectDirectory, sync_folder, translated
from offloaderd.objects.port import ObjectInfo, PartInfo, UploadInfo

_UPLOAD_ID = re.compile(r"[0-9a-f]{32}")
_PART_NAME = re.compile(r"(\d{5})-([0-9a-f]{32})")
_RECORD = "upload.json"


class _Upload(NamedTuple):
    """One open upload."""

    folder: Path
    key: str
    metadata: dict[str, str]
    initiated_ms: int


class UploadDirectory:
    """Uploads under the root of an ObjectDirectory."""

    def __init__(self, objects: ObjectDirectory, clock: Clock, part_bytes_min: int) -> None:
        self._objects = objects
        self._folder = objects.root / UPLOAD_FOLDER
        self._clock = clock
        self._part_bytes_min = part_bytes_min

    def create(self, key: str, metadata: dict[str, str]) -> str:
        """Begin an upload; it exists as soon as its record does."""
        upload_id = self._clock.uuid().hex
        folder = self._folder / upload_id
        record = {"key": key, "metadata": metadata, "initiated_ms": self._clock.wall_ms()}
        with translated(self._objects.root, key):
            draft = self._objects.draft([json.dumps(record, sort_keys=True).encode()])
            self._folder.mkdir(mode=0o700, exist_ok=True)
            folder.mkdir(mode=0o700)
            draft.replace(folder / _RECORD)
            sync_folder(folder)
            sync_folder(self._folder)
        return upload_id

    def add(self, key: str, upload_id: str, part_number: int, pieces: Sequence[memoryview]) -> PartInfo:
        """Store a part, then delete an earlier one with its number."""
        upload = self._upload(key, upload_id)
        etag = md5(*pieces)
        path = upload.folder / f"{part_number:05}-{etag}"
        with translated(self._objects.root, key):
            self._objects.draft(pieces).replace(path)
            sync_folder(upload.folder)
            for other in upload.folder.glob(f"{part_number:05}-*"):
                if other != path:
                    other.unlink(missing_ok=True)
        return PartInfo(part_number=part_number, etag=etag, size_bytes=sum(map(len, pieces)))

    def parts(self, key: str, upload_id: str) -> Sequence[PartInfo]:
        """Return the stored parts in order."""
        return [part for _, part in sorted(self._stored(self._upload(key, upload_id)).items())]

    def complete(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> ObjectInfo:
        """Write the parts to one draft and publish it; deletes the upload."""
        upload = self._upload(key, upload_id)
        chosen = chosen_parts(parts, self._stored(upload), self._part_bytes_min)
        files = [upload.folder / f"{part.part_number:05}-{part.etag}" for part in chosen]
        with translated(self._objects.root, key):
            draft = self._objects.draft(_contents(files))
            info = self._objects.publish(key, draft, combined_etag(chosen), upload.metadata)
            self._drop(upload)
        return info

    def abort(self, key: str, upload_id: str) -> None:
        """Delete an upload; an unknown one is no error."""
        try:
            upload = self._upload(key, upload_id)
        except NotFound:
            return
        with translated(self._objects.root, key):
            self._drop(upload)

    def open_uploads(self, prefix: str) -> Sequence[UploadInfo]:
        """Return the uploads whose key starts with `prefix`, in order of key and age."""
        with translated(self._objects.root):
            folders = list(self._folder.iterdir()) if self._folder.is_dir() else []
            if not self._objects.root.is_dir():
                raise FileNotFoundError
        uploads = [upload for upload in map(_read, folders) if upload is not None and upload.key.startswith(prefix)]
        return [
            UploadInfo(key=upload.key, upload_id=upload.folder.name, initiated_ms=upload.initiated_ms)
            for upload in sorted(uploads, key=lambda upload: (upload.key, upload.initiated_ms, upload.folder.name))
        ]

    def _upload(self, key: str, upload_id: str) -> _Upload:
        """Return the open upload. Raises NotFound."""
        if not self._objects.root.is_dir():
            with translated(self._objects.root):
                raise FileNotFoundError
        upload = _read(self._folder / upload_id) if _UPLOAD_ID.fullmatch(upload_id) else None
        if upload is None or upload.key != key:
            raise NotFound(f"no upload {upload_id} of {key}")
        return upload

    def _stored(self, upload: _Upload) -> dict[int, PartInfo]:
        """Return the stored parts by number."""
        parts: dict[int, PartInfo] = {}
        with translated(self._objects.root, upload.key):
            files = [(path.stat(), path.name) for path in upload.folder.iterdir()]
        for status, name in sorted(files, key=lambda file: file[0].st_mtime_ns):
            found = _PART_NAME.fullmatch(name)
            if found:
                number = int(found[1])
                parts[number] = PartInfo(part_number=number, etag=found[2], size_bytes=status.st_size)
        return parts

    def _drop(self, upload: _Upload) -> None:
        """Delete an upload. The record is first: files that a crash leaves without it are no upload."""
        (upload.folder / _RECORD).unlink(missing_ok=True)
        shutil.rmtree(upload.folder, ignore_errors=True)


def _read(folder: Path) -> _Upload | None:
    """Read an upload's record; None if it is missing or unreadable."""
    try:
        record = json.loads((folder / _RECORD).read_bytes())
        metadata = {str(name): str(value) for name, value in record["metadata"].items()}
        return _Upload(folder, str(record["key"]), metadata, int(record["initiated_ms"]))
    except (OSError, ValueError, KeyError):
        return None


def _contents(files: Iterable[Path]) -> Iterator[bytes]:
    """Yield the bytes of consecutive files in small pieces."""
    for path in files:
        with path.open("rb") as file:
            while piece := file.read(COPY_BYTES):
                yield piece
