"""Spill files: entries of push-only topics that wait on a local disk for room in memory, oldest first.

A record holds one offered batch; big endian:

| offset | size | field | meaning |
|---|---|---|---|
| 0 | 4 | magic | `OSPL` |
| 4 | 2 | version | 1 |
| 6 | 2 | reserved | 0 |
| 8 | 8 | ledger_id | ledger of all its entries |
| 16 | 8 | first_entry_id | id of the first; the others follow without a gap |
| 24 | 4 | entry_count | at least 1 |
| 28 | 4 | body_bytes | 4 * entry_count lengths, then the payloads |
| 32 | 4 | crc32c | over the 32 bytes before it and the body |

Spilled entries end with their daemon: they were accepted and never reported durable, so their pusher pushes them again
after a restart. Hence nothing is synced, and the next start deletes files that a crash left, under a lock that shows
whether their owner still runs. The work is done in threads.
"""

import asyncio
import fcntl
import os
import struct
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self

import google_crc32c
import structlog

from offloaderd.core import units as words
from offloaderd.core.aio import Signal, race
from offloaderd.core.clock import Clock
from offloaderd.core.errors import CorruptData, InvalidConfig
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import EntryBatch, OfferResult, Position
from offloaderd.topic.buffer import BufferPool, TailingBuffer

log = structlog.get_logger(__name__)

HEADER = struct.Struct(">4sHHqqIII")
MAGIC, VERSION = b"OSPL", 1
HINT = "make room or raise spill.bytes_max; pushers are held back until then, and nothing is lost"
DAMAGED = "the disk below spill.directory does not return what it was given; the entries are pushed again"
FILE_BYTES = 64 * 1024 * 1024
"""Size of a file, which is deleted once all of it was read back."""
LOCK = "offloaderd-spill.lock"
SUFFIX = ".spill"


def encode(batch: EntryBatch) -> bytes:
    """Return the record of a batch."""
    lengths = list(map(len, batch.payloads))
    body = b"".join([struct.pack(f">{len(lengths)}I", *lengths), *batch.payloads])
    head = HEADER.pack(MAGIC, VERSION, 0, batch.ledger_id, batch.first_entry_id, len(lengths), len(body), 0)[:-4]
    crc = google_crc32c.extend(google_crc32c.value(head), body)
    return head + struct.pack(">I", crc) + body


def decode(data: bytes, at: int, *, where: str, offset: int) -> tuple[EntryBatch, int] | None:
    """Read the record at `at`; return it and the offset of the next, None if the data ends within it.

    Raises CorruptData; `where` and `offset` describe the data in it.
    """
    if len(data) - at < HEADER.size:
        return None
    magic, version, reserved, ledger_id, first_entry_id, count, body_bytes, crc = HEADER.unpack_from(data, at)
    if (magic, version, reserved) != (MAGIC, VERSION, 0):
        found = (magic, version, reserved)
        raise CorruptData(key=where, offset=offset + at, expected=(MAGIC, VERSION, 0), found=found, hint=DAMAGED)
    body, end = at + HEADER.size, at + HEADER.size + body_bytes
    if len(data) < end:
        return None
    actual = google_crc32c.extend(google_crc32c.value(data[at : body - 4]), data[body:end])
    if actual != crc:
        raise CorruptData(key=where, offset=offset + at, expected=crc, found=actual, hint=DAMAGED)
    payloads, start = [], body + 4 * count
    for length in struct.unpack_from(f">{count}I", data, body):
        payloads.append(data[start : start + length])
        start += length
    return EntryBatch(ledger_id, first_entry_id, payloads), end


@dataclass(slots=True)
class _File:
    """One file, with the number of bytes written and read back."""

    path: Path
    file: BinaryIO
    written: int = 0
    taken: int = 0


class SpillArea:
    """The daemon's directory of spill files, and their limit; an async context manager."""

    def __init__(self, directory: Path, bytes_max: int, *, file_bytes: int = FILE_BYTES) -> None:
        self.directory = directory
        self.bytes_max = bytes_max
        self.file_bytes = file_bytes
        self.used_bytes = 0
        self.freed = Signal()
        self.refused = ""
        """Why the last batch was refused; empty if it was taken."""
        self._count = 0
        self._lock: BinaryIO | None = None

    async def __aenter__(self) -> Self:
        """Lock the directory and delete the files of an earlier daemon. Raises InvalidConfig."""
        left = await asyncio.to_thread(self._open)
        if left:
            log.info("spill.discarded", directory=str(self.directory), files=left)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Delete the files and unlock the directory."""
        await asyncio.to_thread(self._close)

    def _open(self) -> int:
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = (self.directory / LOCK).open("ab")
        except OSError as error:
            raise InvalidConfig(f"spill.directory {self.directory}: {error.strerror}", hint="correct it") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            raise InvalidConfig(
                f"spill.directory {self.directory} is in use by another daemon", hint="give each daemon its own"
            ) from error
        self._lock = lock
        return self._clear()

    def _close(self) -> None:
        self._clear()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _clear(self) -> int:
        left = list(self.directory.glob(f"*{SUFFIX}"))
        for path in left:
            _unlink(path)
        return len(left)

    def take(self, wanted: int) -> bool:
        """Book bytes of the limit; False when they are more than is left."""
        if self.used_bytes + wanted > self.bytes_max:
            return False
        self.used_bytes += wanted
        return True

    def note(self, refused: str) -> None:
        """Note why a batch was refused, or (empty) that one was taken; the first refusal is logged."""
        if refused and not self.refused:
            log.warning("spill.refused", directory=str(self.directory), error=refused, hint=HINT)
        self.refused = refused

    def give_back(self, held: int) -> None:
        """Free booked bytes."""
        self.used_bytes -= held
        self.freed.notify()

    def next_path(self) -> Path:
        """Return the name of the next file."""
        self._count += 1
        return self.directory / f"{self._count:08d}{SUFFIX}"


def _unlink(path: Path) -> None:
    """Delete a file; one that the disk keeps is deleted at the next start."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("spill.delete_failed", file=str(path), error=error.strerror or str(error))


class SpillQueue:
    """One topic's spilled batches, first in, first out; used by one task, call after call, and dropped at its end."""

    def __init__(self, area: SpillArea) -> None:
        self._area = area
        self._files: deque[_File] = deque()
        self._threads = threading.Lock()  # a cancelled call leaves its thread running
        self._dropped = False
        self._booked_bytes = 0
        self.unread = 0
        """Batches that were appended and not read back."""

    async def append(self, batch: EntryBatch) -> bool:
        """Write a batch; False if the limit is reached, or the disk is full or fails."""
        size = HEADER.size + 4 * len(batch.payloads) + batch.payload_bytes()
        if not self._area.take(size):
            self._area.note(f"spill.bytes_max ({words.size(self._area.bytes_max)}) is used up")
            return False
        self._booked_bytes += size
        written = False
        try:
            written = await asyncio.to_thread(self._write, batch)
        except OSError as error:
            self._area.note(error.strerror or str(error))
        if written:
            self._area.note("")
            self.unread += 1
        else:
            self._give_back(size)
        return written

    def _write(self, batch: EntryBatch) -> bool:
        with self._threads:
            if self._dropped:
                return False
            if not self._files or self._files[-1].written >= self._area.file_bytes:
                path = self._area.next_path()
                self._files.append(_File(path, path.open("x+b", buffering=0)))
            last = self._files[-1]
            record, done = memoryview(encode(batch)), 0
            while done < len(record):
                done += os.pwrite(last.file.fileno(), record[done:], last.written + done)
            last.written += len(record)  # only once all of it is written: a failed record is overwritten
            return True

    async def take(self, bytes_max: int) -> Sequence[EntryBatch]:
        """Take the oldest batches, about `bytes_max` of them and at least one if there is any. Raises CorruptData."""
        batches, freed = await asyncio.to_thread(self._read, bytes_max)
        self.unread -= len(batches)
        self._give_back(freed)
        return batches

    def _read(self, bytes_max: int) -> tuple[list[EntryBatch], int]:
        with self._threads:
            if self._dropped or not self._files:
                return [], 0
            first = self._files[0]
            try:
                batches, at = self._next_records(first, bytes_max)
            except OSError as error:  # no reason to end the daemon: the topic stalls, as by other bytes
                found = error.strerror or str(error)
                raise CorruptData(
                    key=str(first.path), offset=first.taken, expected="its records", found=found, hint=DAMAGED
                ) from error
            first.taken += at
            freed = 0
            while self._files and self._files[0].taken == self._files[0].written:
                freed += self._delete(self._files.popleft())
            return batches, freed

    def _next_records(self, file: _File, bytes_max: int) -> tuple[list[EntryBatch], int]:
        """Read the records in the next bytes, at least one; returns them and their end. Raises CorruptData, OSError."""
        batches, at = self._records(file, bytes_max)
        if not batches and file.written > file.taken:
            batches, at = self._records(file, size := self._size_of_next(file))
            if not batches:
                raise CorruptData(
                    key=str(file.path), offset=file.taken, expected=f"{size} bytes", found="fewer", hint=DAMAGED
                )
        return batches, at

    def _records(self, file: _File, bytes_max: int) -> tuple[list[EntryBatch], int]:
        """Read the complete records in the next bytes; returns them and their end."""
        data = os.pread(file.file.fileno(), min(bytes_max, file.written - file.taken), file.taken)
        batches, at = [], 0
        while (found := decode(data, at, where=str(file.path), offset=file.taken)) is not None:
            batches.append(found[0])
            at = found[1]
        return batches, at

    def _size_of_next(self, file: _File) -> int:
        """Return the size of the next record by its header. Raises CorruptData if the file does not hold as much."""
        head = os.pread(file.file.fileno(), HEADER.size, file.taken)
        size = HEADER.size + HEADER.unpack(head)[6] if len(head) == HEADER.size else 0
        left = file.written - file.taken
        if not 0 < size <= left:
            raise CorruptData(key=str(file.path), offset=file.taken, expected=f"{left} bytes", found=size, hint=DAMAGED)
        return size

    @staticmethod
    def _delete(file: _File) -> int:
        file.file.close()
        _unlink(file.path)
        return file.written

    def _give_back(self, held: int) -> None:
        self._booked_bytes -= held
        if held:
            self._area.give_back(held)

    async def drop(self) -> None:
        """Delete all files; later calls neither write nor read."""
        self.unread = 0
        await asyncio.to_thread(self._drop)
        self._give_back(self._booked_bytes)

    def _drop(self) -> None:
        with self._threads:
            self._dropped = True
            for file in self._files:
                self._delete(file)
            self._files.clear()


CHUNK_BYTES = 1 << 20
"""Size of one read."""

CHECK_S = 1.0
"""Pause before an offer that waits for disk space is tried again."""


class _Offer(NamedTuple):
    batch: EntryBatch
    answer: asyncio.Future[OfferResult]


class Spill:
    """One topic's overflow."""

    def __init__(
        self, area: SpillArea, buffer: TailingBuffer, pool: BufferPool, *, clock: Clock, metrics: Metrics
    ) -> None:
        self._area = area
        self._buffer = buffer
        self._pool = pool
        self._clock = clock
        self._metrics = metrics
        self._queue = SpillQueue(area)
        self._offers: deque[_Offer] = deque()
        self._back: deque[EntryBatch] = deque()  # read from disk, not yet in the buffer
        self._edge: Position | None = None  # the position that the oldest of them follows
        self._wake = Signal()
        self._over = False
        self.entries = 0
        self.payload_bytes = 0

    @property
    def empty(self) -> bool:
        """Whether no entry is on disk, or on its way there or back."""
        return not (self._queue.unread or self._back or self._offers)

    @property
    def holds_back(self) -> bool:
        """Whether a pusher waits for room."""
        return bool(self._offers)

    async def accept(self, batch: EntryBatch) -> OfferResult:
        """Write a batch for which memory has no room to disk, waiting for room there; never FULL.

        If cancelled, the batch may be written all the same, which `last_offered` shows.
        """
        if self._over or self._buffer.refusing:
            return OfferResult.CLOSED
        offer = _Offer(batch, asyncio.get_running_loop().create_future())
        self._offers.append(offer)
        self._buffer.diverted = True
        self._wake.notify()
        return await offer.answer

    async def run(self) -> None:
        """Write offers to disk and read them back as there is room, until cancelled. Raises CorruptData."""
        try:
            while True:
                if not await self._step():
                    room = self._pool.freed.wait(), self._buffer.demand.wait()
                    await race(self._wake.wait(), *room, self._clock.sleep(CHECK_S))
                elif self.empty:
                    self._buffer.diverted = False
                    self._pool.freed.notify()
                    self._buffer.changed.notify()  # a topic that stops waits for this
                    await self._wake.wait()
        finally:
            self._over = True
            for offer in self._offers:
                if not offer.answer.done():
                    offer.answer.set_result(OfferResult.CLOSED)
            self._offers.clear()
            await self._queue.drop()
            self._account(-self.entries, -self.payload_bytes)

    async def _step(self) -> bool:
        """Do the next step; False if all of them wait for room."""
        wrote = await self._write() if self._offers else False
        if not self._back and self._queue.unread:
            self._back.extend(await self._queue.take(CHUNK_BYTES))
        return self._fill() or wrote or self.empty

    async def _write(self) -> bool:
        """Take the first offer and answer it; False when it has to wait."""
        offer = self._offers[0]
        if offer.answer.cancelled():
            self._offers.popleft()
            return True
        result = self._taken_directly(offer.batch)
        if result is None and await self._queue.append(offer.batch):
            follows = self._buffer.overflow(offer.batch)
            if self.entries == 0:
                self._edge = follows
            self._account(len(offer.batch.payloads), offer.batch.payload_bytes())
            self._metrics.spilled_entries.inc(len(offer.batch.payloads))
            result = OfferResult.ACCEPTED
        if result is None:
            return False
        self._offers.popleft()
        if not offer.answer.done():
            offer.answer.set_result(result)
        return True

    def _taken_directly(self, batch: EntryBatch) -> OfferResult | None:
        """Offer a batch to the buffer if no earlier one is on disk; None when it has to go there."""
        if self._buffer.closed or self._buffer.refusing:
            return OfferResult.CLOSED
        if self._queue.unread or self._back:
            return None if self._buffer.expects(batch) else OfferResult.NOT_CONSECUTIVE
        self._buffer.diverted = False
        result = self._buffer.offer(batch)
        self._buffer.diverted = True
        return None if result is OfferResult.FULL else result

    def _fill(self) -> bool:
        """Move batches that were read back into the buffer; returns whether any had room."""
        moved = False
        while self._back and self._edge is not None and self._buffer.fill(self._back[0], self._edge):
            batch = self._back.popleft()
            self._edge = batch.last
            self._account(-len(batch.payloads), -batch.payload_bytes())
            moved = True
        return moved

    def _account(self, entries: int, payload_bytes: int) -> None:
        self.entries += entries
        self.payload_bytes += payload_bytes
        self._metrics.spill_bytes.set(self._area.used_bytes)
