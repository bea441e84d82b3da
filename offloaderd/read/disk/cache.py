"""The disk cache of a daemon: ranges of objects that readers fetched, on a local disk, for all of them.

Rules:
- It is never an error for a reader. What cannot be read, is damaged, or takes too long counts as missing, and the
  reader fetches it. What cannot be written is dropped. A directory that is not there, is used by another daemon, or was
  removed is opened again from time to time; the reason is in `state`.
- A range that is being fetched is fetched once: others wait for it (`Flight`). Waiting, they hold no range themselves.
  If that fails, one of them fetches it again, and the others wait for that and fail with it.
- An entry is dropped for damage alone. Where the process lacks files or memory for a read, the entry stays.
- What a topic has on the disk can be found and dropped (`drop`): a file that cannot be deleted still takes room.
- The event loop does no I/O. One thread writes and deletes, in the order of the decisions, so the files never exceed
  the budget; a few threads read. Ranges that wait to be written have a limit, beyond which nothing is admitted.
- A start takes over the files of the last one by their names and sizes. Nothing is synced: files are checked when read.
- On a full disk, or one with less free than it has to leave, the budget becomes smaller, and grows back later: the
  cache leaves room for others.
"""

import asyncio
import errno
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

import structlog

from offloaderd.core.aio import Event, Signal, Tasks
from offloaderd.core.clock import Clock
from offloaderd.core.errors import OffloaderError
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.read.disk.files import OWNER_BYTES, BlockFiles, Damaged, Owner, Place, Replaced, file_bytes
from offloaderd.read.disk.table import DiskTable, Resident
from offloaderd.read.disk.work import Applied, Part, Write, applied_batch, is_damage, reason_of, tried

R = TypeVar("R")

log = structlog.get_logger(__name__)

READERS = 2
"""Threads that read."""
READS_MAX = 64
"""Reads that run or wait for a thread; with more, a disk is slower than the store."""
READ_S = 5.0
"""Longest read. The disk is not asked for `RETRY_S` after one that takes longer."""
RETRY_S = 30.0
"""Pause after a failed write, and between tries to open the directory."""
WAITING_BYTES_MAX = 32 * 1024 * 1024
"""Ranges with reserved room that are being fetched, or wait to be written. They count against the cache in memory, and
are a quarter of it at most."""
BATCH_BYTES = 4 * 1024 * 1024
"""Ranges that are written by one call of the thread."""
BATCHES = 2
"""Calls that the thread has: it does not wait for the event loop between two."""
SQUEEZE_BYTES = 64 * 1024 * 1024
"""Room that the cache leaves on a full disk."""
RESTORE_S = 600.0
"""How long the budget stays smaller after that."""
CLOSE_S = 2.0
"""How long the end waits for what is queued."""
JOINS_MAX = 2
"""Fetches of others that one reader waits for, if the first one fails."""
SLICE = 5_000
"""Ranges that are dropped between two turns of the event loop."""


class Wanted(NamedTuple):
    """A range, and where it may be: the file of its own place, or from byte `first` of that of a block around it.

    `checked` as for `BlockFiles.read`.
    """

    place: Place
    data_bytes: int
    around: Place | None = None
    first: int = 0
    checked: bool = False


class Flight:
    """A range that is being fetched; ends by `DiskCache.keep` or `DiskCache.abandon`."""

    __slots__ = ("data", "data_bytes", "done", "error", "place", "room")

    def __init__(self, place: Place, data_bytes: int, room: Resident | None) -> None:
        self.place = place
        self.data_bytes = data_bytes
        self.room = room
        self.data: bytes | None = None
        self.error: OffloaderError | None = None
        self.done = Event()


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskOptions:
    """Directory, budget in bytes, memory for what waits to be written, and the price of a GET, 0 if unknown.

    `free_bytes` is what its file system has to have left.
    """

    directory: Path
    limit_bytes: int
    free_bytes: int = 0
    waiting_bytes: int = WAITING_BYTES_MAX
    get_price: float = 0.0


class Dropped(NamedTuple):
    """Ranges that were dropped, or would be, the bytes of their files, and how many of them could not be deleted."""

    ranges: int
    size_bytes: int
    left: int = 0


class DiskCache:
    """Ranges by place; an async context manager. It opens its directory in the background."""

    def __init__(
        self, options: DiskOptions, *, clock: Clock, metrics: Metrics, files: BlockFiles | None = None
    ) -> None:
        self.options = options
        self.state = "opening"
        """`open`, or why it is not used."""
        self.table = DiskTable(options.limit_bytes)
        self.changed = Signal()
        """Notified when the state changes, and when a range has been written."""
        self._files = files or BlockFiles(options.directory)
        self._clock = clock
        self._metrics = metrics
        self._tasks = Tasks("the disk cache")
        self._reader = ThreadPoolExecutor(READERS, thread_name_prefix="cache-read")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="cache-write")
        self._flights: dict[Place, Flight] = {}
        self._queue: deque[Write] = deque()
        self._writing: dict[Place, bytes] = {}
        self._waiting_bytes = 0
        self._is_writing = False
        self._running: deque[tuple[list[Write], asyncio.Future[Applied]]] = deque()
        self._deleting: set[Place] = set()
        self._queued = Signal()
        self._reads = 0
        self._no_reads_until_s = self._no_writes_until_s = self._squeezed_until_s = 0.0
        self._hits, self._misses, self._joins = (
            metrics.cache_requests.labels(cache="disk", result=result) for result in ("hit", "miss", "joined")
        )
        metrics.cache_limit_bytes.labels(cache="disk").set(options.limit_bytes)

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._tasks.start(self._run(), name="disk cache")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write what is queued, and unlock the directory; a disk that takes long for it is not waited for."""
        try:
            async with asyncio.timeout(CLOSE_S):
                while self.is_open and (self._queue or self._is_writing):
                    await self.changed.wait()
        except TimeoutError:
            log.warning("disk_cache.slow", directory=str(self.options.directory), seconds=CLOSE_S)
        await self._tasks.__aexit__(kind, error, trace)
        self._shut("closed")
        closing = self._in(self._writer, self._files.close)  # behind what the thread still does
        await asyncio.wait([closing], timeout=CLOSE_S)
        self._writer.shutdown(wait=False)
        self._reader.shutdown(wait=False, cancel_futures=True)

    @property
    def is_open(self) -> bool:
        """Whether ranges are looked up."""
        return self.state == "open"

    @property
    def is_writable(self) -> bool:
        """Whether anything is admitted at all; not for a while after a write has failed."""
        return self.is_open and self._clock.monotonic() >= self._no_writes_until_s

    @property
    def waiting_bytes(self) -> int:
        """Bytes in memory with room on the disk, not written yet."""
        return self._waiting_bytes

    def holds(self, place: Place) -> bool:
        """Whether a range is on the disk, or on its way there; counts as no request."""
        return place in self.table

    async def get(self, wanted: Sequence[Wanted]) -> list[bytes | None]:
        """Return the ranges, None for those that are to be fetched. Waits for ranges that others fetch.

        Raises the error of a fetch that failed for others, once it was tried again.
        """
        found: list[bytes | None] = [None] * len(wanted)
        if not self.is_open:
            return found
        joins: Counter[int] = Counter()
        await self._join(wanted, found, joins)
        reads: dict[int, Part] = {}
        for number, one in enumerate(wanted):
            if found[number] is not None:
                continue
            if (data := self._writing.get(one.place)) is not None:
                self.table.find(one.place)
                found[number] = data
            elif one.around is not None and one.around in self.table and self.table.find(one.around):
                reads[number] = Part(one.around, one.first, one.data_bytes, one.checked)
            elif self.table.find(one.place):
                reads[number] = Part(one.place, 0, one.data_bytes, one.checked)
        for number, data in zip(reads, await self._read([*reads.values()]), strict=True):
            found[number] = data
        hits = sum(data is not None for number, data in enumerate(found) if not joins[number])
        await self._join(wanted, found, joins)  # without a pause before the caller begins to fetch what is missing
        joined = sum(data is not None for number, data in enumerate(found) if joins[number])
        self._hits.inc(hits)
        self._joins.inc(joined)
        self._misses.inc(sum(data is None for data in found))
        return found

    async def _join(self, wanted: Sequence[Wanted], found: list[bytes | None], joins: Counter[int]) -> None:
        """Wait for those that others fetch, each `JOINS_MAX` times at most. Raises the error of the last fetch."""
        while flights := {
            number: flight
            for number, one in enumerate(wanted)
            if found[number] is None and joins[number] < JOINS_MAX and (flight := self._flights.get(one.place))
        }:
            for number, flight in flights.items():
                await flight.done.wait()
                joins[number] += 1
                found[number] = flight.data
                if flight.error is not None and joins[number] == JOINS_MAX:
                    raise flight.error.with_traceback(None)

    async def _read(self, parts: Sequence[Part]) -> Sequence[bytes | None]:
        """Read parts of files. What is damaged or missing is forgotten."""
        nothing = [None] * len(parts)
        if not parts or self._reads >= READS_MAX or self._clock.monotonic() < self._no_reads_until_s:
            return nothing
        self._reads += 1
        work = self._in(self._reader, lambda: [tried(self._files, part) for part in parts])
        work.add_done_callback(self._read_ended)
        try:
            async with asyncio.timeout(READ_S):
                answers = await asyncio.shield(work)
        except TimeoutError:
            self._no_reads_until_s = self._clock.monotonic() + RETRY_S
            self._failed("slow", "disk_cache.slow", seconds=READ_S)
            return nothing
        found: list[bytes | None] = []
        for (place, *_), answer in zip(parts, answers, strict=True):
            if isinstance(answer, bytes):
                self._metrics.disk_cache_read_bytes.inc(len(answer))
                found.append(answer)
                continue
            found.append(None)
            if not is_damage(answer):
                self._failed("read", "disk_cache.read_failed", file=place.hex(), error=str(answer))
            elif self._forget(place):  # else it was replaced meanwhile
                kind = "damaged" if isinstance(answer, Damaged) else "missing"
                kind = kind if isinstance(answer, Damaged | FileNotFoundError) else "read"
                self._failed(kind, "disk_cache.entry_dropped", file=place.hex(), error=str(answer))
                self._delete([place], "stale")
        return found

    def _read_ended(self, _: asyncio.Future[list[bytes | Exception]]) -> None:
        self._reads -= 1

    def begin(self, place: Place, data_bytes: int, *, wanted: bool = False) -> Flight:
        """Begin to fetch a range, with room reserved for it if it is admitted; `wanted` as for `DiskTable.reserve`."""
        size = file_bytes(data_bytes)
        admitted = place not in self.table and self._admits(data_bytes) and self._reserve(place, size, wanted)
        flight = Flight(place, data_bytes, self.table.resident(place) if admitted else None)
        if admitted:
            self._waiting_bytes += data_bytes
        self._flights.setdefault(place, flight)
        return flight

    def _admits(self, data_bytes: int) -> bool:
        """Whether anything is admitted now."""
        if not self.is_writable:
            self._metrics.disk_cache_declined.labels(cause="off").inc()
            return False
        if self._waiting_bytes + data_bytes > self.options.waiting_bytes:
            self._metrics.disk_cache_declined.labels(cause="writes").inc()
            return False
        if self.table.limit_bytes < self.options.limit_bytes and self._clock.monotonic() >= self._squeezed_until_s:
            self._limit(self.options.limit_bytes)
        return True

    def _reserve(self, place: Place, size: int, wanted: bool) -> bool:
        victims = self.table.reserve(place, size, wanted=wanted)
        if victims is None:
            self._metrics.disk_cache_declined.labels(cause="once").inc()
            return False
        self._delete(victims, "size")
        return True

    def keep(self, flight: Flight, data: bytes) -> None:
        """End a flight with its checked bytes; they are written if they have room."""
        if flight.done.is_set():
            return
        if not self._has_room(flight) or len(data) != flight.data_bytes:
            self._end(flight, data)
            return
        flight.room = None  # it is the file's now
        self._writing[flight.place] = data
        self._enqueue(Write(flight.place, data))
        self._end(flight, data)

    def abandon(self, flight: Flight, error: OffloaderError | None = None) -> None:
        """End a flight without bytes, unless it has ended; its room is free again. `error`: why it failed."""
        if not flight.done.is_set():
            flight.error = error
            self._end(flight, None)

    def _end(self, flight: Flight, data: bytes | None) -> None:
        if flight.room is not None:
            if self._has_room(flight):
                self.table.remove(flight.place)
            self._waiting_bytes -= flight.data_bytes
            flight.room = None
        flight.data = data
        flight.done.set()
        if self._flights.get(flight.place) is flight:
            del self._flights[flight.place]
        self._account()

    def _has_room(self, flight: Flight) -> bool:
        """Whether a flight's room is still its own: a damaged range is forgotten, a lost directory as a whole."""
        return flight.room is not None and self.table.resident(flight.place) is flight.room

    def _forget(self, place: Place) -> bool:
        """Forget a range, on the disk or on its way there; whether it was there. Its file is still to be deleted."""
        self._writing.pop(place, None)
        return self.table.remove(place)

    def put(self, place: Place, data: bytes) -> None:
        """Keep a whole small object, under the same rules."""
        if data and place not in self.table:
            self.keep(self.begin(place, len(data)), data)

    def discard(self, place: Place) -> None:
        """Forget a range whose bytes are not those of the object."""
        if self._forget(place):
            self._failed("damaged", "disk_cache.entry_dropped", file=place.hex(), error="not what the object holds")
            self._delete([place], "stale")

    async def owners(self) -> set[Owner]:
        """Return whose ranges are on the disk, or on their way there."""
        places = self.table.places
        return await self._in(self._reader, lambda: {place[:OWNER_BYTES] for place in places})

    async def drop(self, chosen: Callable[[Place], bool], *, cause: str, dry_run: bool = False) -> Dropped:
        """Drop the ranges that a pure function chooses, also those on their way, and wait until their files are gone.

        It is called in a thread. Ranges that are read again are kept again.
        """
        places = self.table.places
        mine = await self._in(self._reader, lambda: [place for place in places if chosen(place)])
        count = size_bytes = 0
        for first in range(0, len(mine), SLICE):
            group = mine[first : first + SLICE]
            held = [(place, one.file_bytes) for place in group if (one := self.table.resident(place)) is not None]
            count, size_bytes = count + len(held), size_bytes + sum(size for _, size in held)
            if not dry_run:
                for place, _ in held:
                    self._forget(place)
                self._delete([place for place, _ in held], cause)
            await asyncio.sleep(0)  # noqa: TID251 - yields to the loop between slices, takes no time
        if dry_run:
            return Dropped(count, size_bytes)
        wanted = frozenset(mine)
        while self.is_open and not self._deleting.isdisjoint(wanted):
            await self.changed.wait()
        return Dropped(count, size_bytes, sum(place in self.table for place in mine))

    def saved(self, gets: int) -> None:
        """Count GETs that were not sent."""
        self._metrics.disk_cache_gets_saved.inc(gets)
        self._metrics.disk_cache_money_saved.inc(gets * self.options.get_price)

    async def room(self) -> None:
        """Wait until half of what may wait to be written is free, or the cache is not open."""
        while self.is_open and self._waiting_bytes > self.options.waiting_bytes // 2:
            await self.changed.wait_at_most(self._clock, 1.0)

    def _delete(self, places: Sequence[Place], cause: str) -> None:
        self._metrics.cache_evictions.labels(cache="disk", cause=cause).inc(len(places))
        for place in places:
            self._enqueue(Write(place, None))
        self._account()

    def _enqueue(self, write: Write) -> None:
        self._queue.append(write)
        if write.data is None:
            self._deleting.add(write.place)
        self._queued.notify()

    def _limit(self, limit_bytes: int) -> None:
        self._delete(self.table.shrink(limit_bytes), "size")
        self._metrics.cache_limit_bytes.labels(cache="disk").set(limit_bytes)

    def _account(self) -> None:
        self._metrics.cache_bytes.labels(cache="disk").set(self.table.used_bytes)

    def _failed(self, cause: str, event: str, **details: object) -> None:
        self._metrics.disk_cache_failures.labels(cause=cause).inc()
        log.warning(event, directory=str(self.options.directory), **details)

    def _in(self, executor: ThreadPoolExecutor, function: Callable[[], R]) -> asyncio.Future[R]:
        return asyncio.get_running_loop().run_in_executor(executor, function)

    async def _run(self) -> None:
        """Open the directory and write to it, again and again, until cancelled."""
        while True:
            table = DiskTable(self.table.limit_bytes)
            try:
                over = await self._in(self._writer, lambda: table.fill(self._files.open()))  # noqa: B023 - awaited here
            except OSError as error:
                self._shut(reason_of(error))
            else:
                await self._opened(table, over)
                await self._write()
                await self._in(self._writer, self._files.close)
            await self._clock.sleep(RETRY_S)

    async def _opened(self, table: DiskTable, over: Sequence[Place]) -> None:
        """Use what was found; there may be millions of files, and more of them than the budget has room for."""
        self.table = table
        self.state = "open"
        for first in range(0, len(over), SLICE):
            self._delete(over[first : first + SLICE], "size")
            await asyncio.sleep(0)  # noqa: TID251 - yields to the loop between slices, takes no time
        self._account()
        log.info("disk_cache.opened", directory=str(self.options.directory), files=len(self.table))
        self._metrics.disk_cache_open.set(1)
        self.changed.notify()

    def _shut(self, reason: str) -> None:
        """Forget the files, which stay where they are; flights end by themselves, without room."""
        if reason not in {"closed", self.state}:
            self._failed("directory", "disk_cache.off", error=reason)
        self.state = reason
        self.table = DiskTable(self.table.limit_bytes)
        for writes in (self._queue, *(batch for batch, _ in self._running)):
            self._waiting_bytes -= sum(len(write.data or b"") for write in writes)
        self._queue.clear()
        self._writing.clear()
        self._deleting.clear()
        self._metrics.disk_cache_open.set(0)
        self._account()
        self.changed.notify()

    async def _write(self) -> None:
        """Write and delete what is queued, until the directory is lost. The thread has its next batch beside this."""
        running = self._running
        while True:
            while self._queue and len(running) < BATCHES:
                batch = self._batch()
                work = self._in(self._writer, partial(applied_batch, self._files, batch, self.options.free_bytes))
                running.append((batch, work))
            self._is_writing = bool(running)
            if not running:
                await self._queued.wait()
                continue
            batch, work = running[0]
            applied = await work
            if isinstance(applied.failure, Replaced):
                self._shut(reason_of(applied.failure))
                running.clear()
                self._is_writing = False
                return
            running.popleft()
            self._is_writing = bool(running)
            self._deleted(batch, applied)
            self._wrote(batch, applied.failure)

    def _batch(self) -> list[Write]:
        batch: list[Write] = []
        size = 0
        while self._queue and size < BATCH_BYTES:
            write = self._queue.popleft()
            size += len(write.data or b"") + 4096
            batch.append(write)
        return batch

    def _deleted(self, batch: Sequence[Write], applied: Applied) -> None:
        """Note which files are gone; those that are not still take their room."""
        self._deleting.difference_update(write.place for write in batch if write.data is None)
        for place, size_bytes in applied.undeleted:
            if size_bytes:
                self.table.put_back(place, size_bytes)
        if applied.error is not None:
            files = [place.hex() for place, _ in applied.undeleted[:3]]
            self._metrics.disk_cache_failures.labels(cause="delete").inc(len(applied.undeleted) - 1)
            self._failed("delete", "disk_cache.delete_failed", error=reason_of(applied.error), files=files)

    def _wrote(self, batch: Sequence[Write], failure: OSError | None) -> None:
        if failure is not None:  # what else is queued would fail as well
            batch = [*batch, *self._queue]
            self._queue.clear()
        for write in batch:
            if write.data is None:
                continue
            self._waiting_bytes -= len(write.data)
            if self._writing.get(write.place) is not write.data:
                continue  # forgotten meanwhile: its file is deleted next
            del self._writing[write.place]
            if failure is None:
                self.table.written(write.place)
                self._metrics.disk_cache_written_bytes.inc(len(write.data))
            else:
                self.table.remove(write.place)
        if failure is not None:  # deletions that were queued, and files of the batch that may be complete
            for place in dict.fromkeys(write.place for write in batch):
                self._enqueue(Write(place, None))
        if failure is not None:
            now_s = self._clock.monotonic()
            self._no_writes_until_s = now_s + RETRY_S
            self._failed("write", "disk_cache.write_failed", error=reason_of(failure))
            if failure.errno in {errno.ENOSPC, errno.EDQUOT}:
                self._squeezed_until_s = now_s + RESTORE_S
                self._limit(max(0, self.table.used_bytes - SQUEEZE_BYTES))
        self._account()
        self.changed.notify()
