"""An object store in a directory, for tests, for laptops, and for archives on a mounted file system.

    <root>/<escaped key>                         an object: its bytes and nothing else
    <root>/.metadata/<escaped key>@<ns>-<bytes>  its ETag and user metadata (JSON), by the data file's time and size
    <root>/.drafts/<id>                          a file that is being written
    <root>/.uploads/<id>/upload.json, <part>-<etag>   an open multipart upload

A key is escaped to one file name (`/` becomes `%2F`, a leading `.` `%2E`), so no key can leave the root, clash with the
hidden folders, or be a folder where another key is a file. All files are written as drafts, synced, and renamed. The
metadata file is first and belongs to exactly one version of the data file, so after a crash, or in between, readers
find the old object or the new one, never a mixture. A part's file name has its number and ETag, so one rename stores
both. Of two with one number the newer one counts.

The directories block, so FilesystemStore works in threads; the cancellation of a call does not stop it.
"""

import asyncio
import errno
import json
import os
import re
import shutil
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple, ParamSpec, TypeVar
from urllib.parse import quote, unquote

from offloaderd.core.clock import Clock, SystemClock
from offloaderd.core.errors import BucketMissing, Denied, InvalidInput, NoSpace, NotFound, OffloaderError, Transient
from offloaderd.objects.buckets import Buckets, BucketStore
from offloaderd.objects.checks import (
    check_condition,
    check_key,
    check_part_number,
    check_range,
    checked_metadata,
    chosen_parts,
    combined_etag,
    cut_range,
    flat,
    made_of,
)
from offloaderd.objects.failures import hints_in
from offloaderd.objects.port import (
    ANY_PARTS,
    Bytes,
    ObjectInfo,
    PartInfo,
    PartRules,
    Pieces,
    UploadInfo,
    md5,
    pieces_of,
)
from offloaderd.objects.stored_as import PLAIN, StoredAs

P = ParamSpec("P")
T = TypeVar("T")

NAME_BYTES_MAX = 200
"""A file name has at most 255 bytes, and the metadata file's name also has the version."""

METADATA_FOLDER = ".metadata"
DRAFT_FOLDER = ".drafts"
UPLOAD_FOLDER = ".uploads"
COPY_BYTES = 1024 * 1024


class ObjectDirectory:
    """Objects under one root."""

    def __init__(self, root: Path, clock: Clock) -> None:
        self.root = root
        self._clock = clock
        self._publishing = threading.Lock()  # two at once would each delete the other's metadata

    def create(self) -> None:
        """Create the root."""
        with translated(self.root):
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)

    def check(self) -> None:
        """Write and remove a draft."""
        with translated(self.root):
            self.draft([b"probe"]).unlink()

    def get(self, key: str, first: int, length: int | None, lengths: Sequence[int] = ()) -> Sequence[bytes]:
        """Read a range of an object, in pieces of these lengths or as one."""
        with translated(self.root, key), self._path(key).open("rb") as file:
            begin, end = cut_range(key, os.fstat(file.fileno()).st_size, first, length)
            file.seek(begin)
            found = [file.read(one) for one in lengths or (end - begin,)]
        if sum(map(len, found)) != end - begin:
            raise Transient(f"{key} at {self.root} was cut short while it was read")
        return found

    def head(self, key: str) -> ObjectInfo:
        """Describe an object."""
        with translated(self.root, key), self._path(key).open("rb") as file:
            etag, metadata = self._described(key, file)
            status = os.fstat(file.fileno())
        return ObjectInfo(
            key=key,
            size_bytes=status.st_size,
            etag=etag,
            modified_ms=status.st_mtime_ns // 1_000_000,
            metadata=metadata,
        )

    def listed(self, key: str) -> ObjectInfo | None:
        """Describe an object as a listing does; None if it was just deleted."""
        try:
            info = self.head(key)
        except BucketMissing:
            raise
        except NotFound:
            return None
        return ObjectInfo(key=key, size_bytes=info.size_bytes, etag=info.etag, modified_ms=info.modified_ms)

    def keys(self, prefix: str) -> Sequence[str]:
        """Return the keys that start with `prefix`, in order."""
        with translated(self.root):
            names = [entry.name for entry in os.scandir(self.root) if not entry.name.startswith(".")]
        found = [unescaped(name) for name in names]
        return sorted(key for key in found if key.startswith(prefix))

    def put(self, key: str, pieces: Sequence[memoryview], metadata: dict[str, str], if_etag: str | None) -> ObjectInfo:
        """Store an object; with `if_etag` only in place of that one. Raises Conflict."""
        with translated(self.root, key):
            return self.publish(key, self.draft(pieces), md5(*pieces), metadata, if_etag)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects: first the data, so that files left by a crash belong to no object."""
        with translated(self.root):
            for key in keys:
                with self._publishing:
                    self._path(key).unlink(missing_ok=True)
                    for stale in self._metadata_files(key):
                        stale.unlink(missing_ok=True)
            sync_folder(self.root)

    def draft(self, pieces: Iterable[bytes | memoryview]) -> Path:
        """Write a draft and sync it to the disk; a failure leaves none. Raises OSError."""
        folder = self.root / DRAFT_FOLDER
        folder.mkdir(mode=0o700, exist_ok=True)
        path = folder / self._clock.uuid().hex
        try:
            with path.open("xb") as file:
                for piece in pieces:
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return path

    def publish(
        self, key: str, draft: Path, etag: str, metadata: dict[str, str], if_etag: str | None = None
    ) -> ObjectInfo:
        """Make a draft the object of that key. Raises OSError, Conflict."""
        folder = self.root / METADATA_FOLDER
        folder.mkdir(mode=0o700, exist_ok=True)
        status = draft.stat()
        described = folder / _version_name(key, status)
        description = self.draft([json.dumps({"etag": etag, "metadata": metadata}, sort_keys=True).encode()])
        with self._publishing:
            if if_etag is not None and if_etag != (there := self._etag(key)):
                description.unlink()
                draft.unlink()
                check_condition(key, if_etag, there)
            description.replace(described)
            sync_folder(folder)
            draft.replace(self._path(key))
            sync_folder(self.root)
            for stale in self._metadata_files(key):
                if stale != described:
                    stale.unlink(missing_ok=True)
        return ObjectInfo(
            key=key,
            size_bytes=status.st_size,
            etag=etag,
            modified_ms=status.st_mtime_ns // 1_000_000,
            metadata=metadata,
        )

    def _etag(self, key: str) -> str:
        """Return the ETag of an object, "" without one."""
        try:
            with self._path(key).open("rb") as file:
                return self._described(key, file)[0]
        except FileNotFoundError:
            return ""

    def _described(self, key: str, file: BinaryIO) -> tuple[str, dict[str, str]]:
        """Return ETag and metadata of an open object.

        In a copy without the files' times, metadata are found by the content; a file that was added by hand has none.
        """
        status = os.fstat(file.fileno())
        exact = self.root / METADATA_FOLDER / _version_name(key, status)
        try:
            return _description(exact)
        except (OSError, ValueError, KeyError):
            etag = md5(file.read())
        for other in self._metadata_files(key):
            try:
                found = _description(other)
            except (OSError, ValueError, KeyError):
                continue
            if found[0] == etag or ("-" in found[0] and other.name.endswith(f"-{status.st_size}")):
                return found
        return etag, {}

    def _metadata_files(self, key: str) -> list[Path]:
        """Return the metadata files of every version of an object."""
        start = f"{escaped(key)}@"
        try:
            names = os.listdir(self.root / METADATA_FOLDER)  # noqa: PTH208 - names are all that is wanted
        except FileNotFoundError:
            return []
        return [self.root / METADATA_FOLDER / name for name in names if name.startswith(start)]

    def _path(self, key: str) -> Path:
        return self.root / escaped(key)


def escaped(key: str) -> str:
    """Return the file name of a key. Raises InvalidInput when it would be too long."""
    name = quote(key, safe=" !$&'()+,;=[]{}")
    name = f"%2E{name[1:]}" if name.startswith(".") else name
    if len(name.encode()) > NAME_BYTES_MAX:
        raise InvalidInput(f"object key {key!r} is too long for a file name", hint="shorten objects.prefix")
    return name


def unescaped(name: str) -> str:
    """Return the key of a file name."""
    return unquote(name)


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that its names survive a crash of the machine."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def translated(root: Path, key: str = "") -> Iterator[None]:
    """Translate the system's errors for files under `root` to ours."""
    what = f"{key} at {root}" if key else str(root)
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        if not root.is_dir():
            raise BucketMissing(f"no directory {root}", hint="create it, or correct objects.directory") from error
        raise NotFound(f"no object {what}") from error
    except OSError as error:
        raise _error(error, what) from error


def _error(error: OSError, what: str) -> OffloaderError:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return NoSpace(f"{what}: {error.strerror}", hint="free some space")
    if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        return Denied(f"{what}: {error.strerror}", hint="give this user the right to write there")
    return Transient(f"{what}: {error.strerror or error}")


def _version_name(key: str, status: os.stat_result) -> str:
    return f"{escaped(key)}@{status.st_mtime_ns}-{status.st_size}"


def _description(path: Path) -> tuple[str, dict[str, str]]:
    """Read a metadata file. Raises OSError, ValueError, KeyError."""
    content = json.loads(path.read_bytes())
    return str(content["etag"]), {str(name): str(value) for name, value in content["metadata"].items()}


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

    def __init__(self, objects: ObjectDirectory, clock: Clock) -> None:
        self._objects = objects
        self._folder = objects.root / UPLOAD_FOLDER
        self._clock = clock

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
        chosen = chosen_parts(parts, self._stored(upload), ANY_PARTS.bytes_min)
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
    for path in files:
        with path.open("rb") as file:
            while piece := file.read(COPY_BYTES):
                yield piece


class FilesystemStore(Buckets):
    """Implements BucketStore."""

    parts: PartRules = ANY_PARTS
    has_clock = False

    def __init__(self, root: Path, clock: Clock | None = None, *, bucket: str = "", section: str = "objects") -> None:
        """Take the root, and the name of this directory among the buckets of other services."""
        super().__init__(bucket, section)
        clock = clock or SystemClock()
        self._objects = ObjectDirectory(root, clock)
        self._uploads = UploadDirectory(self._objects, clock)

    async def open(self) -> None:
        """See BucketStore: there is nothing to open."""

    async def close(self) -> None:
        """See BucketStore: there is nothing to close."""

    def __str__(self) -> str:
        return f"directory {self._objects.root}"

    def at(self, bucket: str) -> BucketStore:
        """See SegmentStore; a directory that is alone has all buckets."""
        return super().at(bucket) if self._others else self

    async def check(self) -> None:
        """Write and remove a draft. Raises BucketMissing, Denied and NoSpace with a remedy."""
        await self._run(self._objects.check)

    async def create_bucket(self) -> None:
        """Create the root directory; an existing one is no error."""
        await self._run(self._objects.create)

    async def get(self, key: str, first: int = 0, length: int | None = None) -> bytes:
        """See ObjectReader."""
        check_key(key)
        check_range(key, first, length)
        return (await self._run(self._objects.get, key, first, length))[0]

    async def get_pieces(self, key: str, first: int, lengths: Sequence[int]) -> Sequence[bytes]:
        """See ObjectReader."""
        check_key(key)
        check_range(key, first, sum(lengths))
        return await self._run(self._objects.get, key, first, sum(lengths), lengths)

    async def head(self, key: str) -> ObjectInfo:
        """See ObjectReader."""
        check_key(key)
        return await self._run(self._objects.head, key)

    async def list(self, prefix: str = "") -> AsyncGenerator[ObjectInfo, None]:
        """See ObjectReader; objects that are stored or deleted meanwhile may be missed."""
        for key in await self._run(self._objects.keys, prefix):
            info = await self._run(self._objects.listed, key)
            if info is not None:
                yield info

    async def put(
        self,
        key: str,
        data: Bytes | Pieces,
        *,
        metadata: Mapping[str, str] | None = None,
        if_etag: str | None = None,
        stored_as: StoredAs = PLAIN,
    ) -> ObjectInfo:
        """See ObjectStore. Conditions do not exclude another process that replaces the object at the same moment."""
        check_key(key)
        return await self._run(
            self._objects.put, key, [*map(flat, pieces_of(data))], checked_metadata(metadata), if_etag
        )

    async def delete(self, keys: Sequence[str]) -> None:
        """See ObjectStore."""
        for key in keys:
            check_key(key)
        await self._run(self._objects.delete, keys)

    async def create_upload(
        self,
        key: str,
        *,
        metadata: Mapping[str, str] | None = None,
        stored_as: StoredAs = PLAIN,
    ) -> str:
        """See MultipartStore."""
        check_key(key)
        return await self._run(self._uploads.create, key, checked_metadata(metadata))

    async def upload_part(self, key: str, upload_id: str, part_number: int, pieces: Pieces) -> PartInfo:
        """See MultipartStore."""
        check_part_number(self.parts, part_number)
        return await self._run(self._uploads.add, key, upload_id, part_number, [*map(flat, pieces)])

    async def list_parts(self, key: str, upload_id: str) -> Sequence[PartInfo]:
        """See MultipartStore."""
        return await self._run(self._uploads.parts, key, upload_id)

    async def complete_upload(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> ObjectInfo:
        """See MultipartStore."""
        return await self._run(self._uploads.complete, key, upload_id, parts)

    async def made_of(self, stored: ObjectInfo, parts: Sequence[PartInfo]) -> bool | None:
        """See MultipartStore."""
        return made_of(self.parts, stored, parts)

    async def abort_upload(self, key: str, upload_id: str) -> None:
        """See MultipartStore."""
        await self._run(self._uploads.abort, key, upload_id)

    async def list_uploads(self, prefix: str = "") -> AsyncGenerator[UploadInfo, None]:
        """See MultipartStore."""
        for upload in await self._run(self._uploads.open_uploads, prefix):
            yield upload

    async def _run(self, function: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        """Call a function in a thread; its remedies name the settings of this service."""
        with hints_in(self.section):
            return await asyncio.to_thread(function, *given, **named)
