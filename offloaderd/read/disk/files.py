"""The files of the disk cache: one for each range of an object; what is written here is checked when it is read.

A file, big endian:

| offset | size | field | meaning |
|---|---|---|---|
| 0 | 4 | magic | `OCBL` |
| 4 | 2 | version | 1 |
| 6 | 2 | reserved | 0 |
| 8 | 8 | topic | digest of the topic: these three are the file's name as well |
| 16 | 8 | segment | digest of the segment's id |
| 24 | 8 | range | digest of bucket, key, offset and length |
| 32 | 4 | data_bytes | bytes behind the checksums, at least 1 |
| 36 | 4 | head_crc32c | over the 36 bytes before it and the checksums behind it |
| 40 | 4 * n | page_crc32c | of each page of 64 KiB, the last one shorter |

The data follows. A page is checked when it is read, unless the reader checks it against a manifest; a part of a block
costs its pages only. A file that was not written completely, by a crash of the daemon or of the machine, fails a check:
nothing is synced, and a start reads names and sizes alone. A file gets its name once it is complete.

A key has the id of its segment, which is never given again, and so has an adopted ledger's: what a file holds is never
another object's of the same name. By the first two digests all files of a topic or segment are found without a list.

All functions here block, and are called in threads. They raise OSError; `Damaged` for files with other bytes.
"""

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from heapq import merge
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import BinaryIO, NamedTuple
from uuid import UUID

import google_crc32c

HEAD = struct.Struct(">4sHH24sII")
MAGIC, VERSION = b"OCBL", 1
PAGE_BYTES = 64 * 1024
"""The size of a chunk, which has a checksum in the manifest as well."""
DATA_BYTES_MAX = (1 << 32) - 1
SUFFIX = ".block"
UNFINISHED = ".unfinished"
LOCK = "offloaderd-cache.lock"
SORTED_MAX = 10_000

Place = bytes
"""Digests of topic, segment, and bucket, key, offset and length of a range: where its file is, and whose it is."""
Owner = bytes
"""Digests of topic and segment: the begin of a place."""
DIGEST_BYTES = 8
OWNER_BYTES = 2 * DIGEST_BYTES
PLACE_BYTES = 3 * DIGEST_BYTES


class Damaged(Exception):
    """A file does not hold what was written to it."""


class Replaced(OSError):
    """The directory is not the one that was locked: it was removed, or another file system is mounted there."""


class Stored(NamedTuple):
    """A file as a listing shows it."""

    place: Place
    file_bytes: int
    written_ns: int


def topic_digest(managed_ledger: str) -> bytes:
    """Return what the places of a topic begin with."""
    return _digest(managed_ledger)


def owner_of(managed_ledger: str, segment_id: UUID) -> Owner:
    """Return what the places of a topic's segment begin with."""
    return topic_digest(managed_ledger) + _digest(str(segment_id))


def place_of(owner: Owner, bucket: str, key: str, offset: int = 0, length: int = 0) -> Place:
    """Return the place of a range of an object; of a whole object without offset and length."""
    return owner + _digest(f"{bucket}\n{key}\n{offset}\n{length}")


def _digest(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()


def file_bytes(data_bytes: int) -> int:
    """Return the size of the file for a range."""
    return HEAD.size + 4 * _pages(data_bytes) + data_bytes


def _pages(data_bytes: int) -> int:
    return -(-data_bytes // PAGE_BYTES)


def encoded_head(place: Place, data: bytes) -> bytes:
    """Return head and checksums of a range."""
    view = memoryview(data)
    pages = [google_crc32c.value(bytes(view[at : at + PAGE_BYTES])) for at in range(0, len(data), PAGE_BYTES)]
    checksums = struct.pack(f">{len(pages)}I", *pages)
    head = HEAD.pack(MAGIC, VERSION, 0, place, len(data), 0)[:-4]
    return head + struct.pack(">I", google_crc32c.value(head + checksums)) + checksums


def decoded_head(place: Place, data: bytes, size_bytes: int) -> tuple[int, tuple[int, ...]]:
    """Return the length of a file's data, and the checksums of its pages. Raises Damaged."""
    if len(data) < HEAD.size:
        raise Damaged("a head that ends too early")
    magic, version, reserved, named, data_bytes, crc = HEAD.unpack_from(data)
    if (magic, version, reserved, named) != (MAGIC, VERSION, 0, place):
        raise Damaged("a head of something else")
    end = HEAD.size + 4 * _pages(data_bytes)
    if len(data) < end or size_bytes != end + data_bytes:
        raise Damaged(f"{size_bytes} bytes for {data_bytes} of data")
    if google_crc32c.value(data[: HEAD.size - 4] + data[HEAD.size : end]) != crc:
        raise Damaged("a head with another checksum")
    return data_bytes, struct.unpack_from(f">{_pages(data_bytes)}I", data, HEAD.size)


def _oldest_first(stored: Iterator[Stored]) -> list[Stored]:
    """Sort files in pieces: one sort of millions would hold the interpreter, and so the event loop, for long."""
    pieces = iter(lambda: sorted(islice(stored, SORTED_MAX), key=attrgetter("written_ns")), [])
    return list(merge(*pieces, key=attrgetter("written_ns")))


def _private(path: str, flags: int) -> int:
    """Open a file that its owner alone may read, whatever the directory allows; a link is not followed."""
    return os.open(path, flags | os.O_NOFOLLOW, mode=0o600)


@dataclass(slots=True)
class BlockFiles:
    """The files in one directory, under a lock that tells whether their owner still runs."""

    directory: Path
    _lock: BinaryIO | None = None
    _device: int | None = None

    def open(self) -> list[Stored]:
        """Lock the directory, and return its files, the oldest first; unfinished ones are deleted.

        A directory is created only where it was before: below another mount it would fill a disk that nobody meant.
        """
        if self._device is None:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        elif not self.directory.exists() and self.directory.parent.stat().st_dev == self._device:
            self.directory.mkdir(mode=0o700)
        device = self.directory.stat().st_dev
        if device != self._device and self._device is not None:
            raise Replaced(f"{self.directory} is on another file system than before")
        lock = (self.directory / LOCK).open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            raise BlockingIOError(error.errno, "it is in use by another daemon") from error
        self._lock, self._device = lock, device
        try:
            return _oldest_first(self._listed())
        except OSError:
            self.close()  # else the next try would find it in use
            raise

    def _listed(self) -> Iterator[Stored]:
        with os.scandir(self.directory) as found:
            for one in found:
                stem, dot, ending = one.name.partition(".")
                ours = len(stem) == 2 * PLACE_BYTES and set(stem) <= set("0123456789abcdef")
                if not ours or not one.is_file(follow_symlinks=False):
                    continue
                if dot + ending == UNFINISHED:
                    Path(one.path).unlink(missing_ok=True)
                elif dot + ending == SUFFIX:
                    state = one.stat(follow_symlinks=False)
                    yield Stored(bytes.fromhex(stem), state.st_size, state.st_mtime_ns)

    def close(self) -> None:
        """Unlock the directory; its files stay."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def check(self) -> None:
        """Raise Replaced if the directory is not the one that was locked."""
        if self._lock is None:
            raise Replaced("it is closed")
        ours = os.fstat(self._lock.fileno())
        try:
            there = (self.directory / LOCK).stat()
        except FileNotFoundError as error:
            raise Replaced(f"{self.directory} was removed") from error
        if (ours.st_dev, ours.st_ino) != (there.st_dev, there.st_ino):
            raise Replaced(f"{self.directory} was replaced")

    def free_bytes(self) -> int:
        """Return what is free on the file system of the directory. Raises OSError."""
        state = os.statvfs(self.directory)
        return state.f_bavail * state.f_frsize

    def path(self, place: Place) -> Path:
        """Return the file of a place."""
        return self.directory / f"{place.hex()}{SUFFIX}"

    def write(self, place: Place, data: bytes) -> None:
        """Write a range; its file exists completely, or not at all. Raises OSError."""
        unfinished = self.directory / f"{place.hex()}{UNFINISHED}"
        try:
            with open(unfinished, "wb", buffering=0, opener=_private) as file:
                for part in (encoded_head(place, data), data):
                    view = memoryview(part)
                    while view:
                        view = view[file.write(view) :]
            unfinished.rename(self.path(place))
        except OSError:
            with suppress(OSError):
                unfinished.unlink()
            raise

    def read(self, place: Place, first: int, length: int, *, checked: bool = False) -> bytes:
        """Return `length` bytes of a range from its byte `first` on; 0 is all of it. Raises Damaged and OSError.

        `checked`: the caller compares a checksum of these bytes, so those of the pages are not compared as well.
        """
        with self.path(place).open("rb", buffering=0) as file:
            number = file.fileno()
            size_bytes = os.fstat(number).st_size
            begin = os.pread(number, min(size_bytes, 4096), 0)
            if len(begin) >= HEAD.size and (least := file_bytes(HEAD.unpack_from(begin)[4])) == size_bytes:
                head_bytes = least - HEAD.unpack_from(begin)[4]
                begin += os.pread(number, max(0, head_bytes - len(begin)), len(begin))
            data_bytes, checksums = decoded_head(place, begin, size_bytes)
            length = length or data_bytes - first
            if first + length > data_bytes:
                raise Damaged(f"{data_bytes} bytes instead of {first + length}")
            low, high = first // PAGE_BYTES, _pages(first + length)
            start = low * PAGE_BYTES
            head_bytes = size_bytes - data_bytes
            data = os.pread(number, min(high * PAGE_BYTES, data_bytes) - start, head_bytes + start)
        for number, page in enumerate(range(0, 0 if checked else len(data), PAGE_BYTES), low):
            if google_crc32c.value(data[page : page + PAGE_BYTES]) != checksums[number]:
                raise Damaged(f"page {number} with another checksum")
        if len(data) < first - start + length:
            raise Damaged("data that end too early")
        return data if (start, len(data)) == (first, length) else data[first - start : first - start + length]

    def size_bytes(self, place: Place) -> int:
        """Return the size of a file; 0 if it cannot be asked for."""
        try:
            return self.path(place).lstat().st_size
        except OSError:
            return 0

    def delete(self, place: Place) -> None:
        """Delete a file; a missing one is no error."""
        self.path(place).unlink(missing_ok=True)
