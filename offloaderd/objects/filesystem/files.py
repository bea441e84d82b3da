"""The files of a FilesystemStore: objects, their metadata, drafts. Blocking; every OSError is translated here."""

import errno
import json
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote, unquote

from offloaderd.core.clock import Clock
from offloaderd.core.errors import BucketMissing, Denied, InvalidInput, NoSpace, NotFound, OffloaderError, Transient
from offloaderd.objects.checks import check_condition, cut_range, md5
from offloaderd.objects.port import ObjectInfo

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

    def get(self, key: str, first: int, length: int | None) -> bytes:
        """Read a range of an object."""
        with translated(self.root, key), self._path(key).open("rb") as file:
            begin, end = cut_range(key, os.fstat(file.fileno()).st_size, first, length)
            file.seek(begin)
            data = file.read(end - begin)
        if len(data) != end - begin:
            raise Transient(f"{key} at {self.root} was cut short while it was read")
        return data

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

    def put(self, key: str, data: memoryview, metadata: dict[str, str], if_etag: str | None) -> ObjectInfo:
        """Store an object; with `if_etag` only in place of that one. Raises Conflict."""
        with translated(self.root, key):
            return self.publish(key, self.draft([data]), md5(data), metadata, if_etag)

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
