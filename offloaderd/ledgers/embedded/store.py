"""The embedded ledger store: a durable one on SQLite, for users without BookKeeper, and its reader.

The loop knows all topics and ledgers (`Book`) and plans every change on it synchronously; one thread of the store
makes planned changes durable, others read rows. Changes that arrive during a commit wait for the next one and share it
(group commit), so many small appends cost few fsyncs. Nothing is visible, to readers or to watchers, before it is
durable.

A ledger closes when the limits are reached by an append; by age, at the first append after it: an idle topic keeps
its ledger open. A restart starts the age again. Deleting makes a ledger invisible at once; its rows are deleted in
small transactions afterwards, and their space is reused (the file does not shrink).

SQLite lets others read while one writes: `EmbeddedReader` takes no lock and changes nothing, and each answer is as new
as the last commit. Its store must be on the same machine: the log is shared memory.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import structlog

from offloaderd.core.clock import Clock
from offloaderd.core.errors import Closed, Denied, OffloaderError
from offloaderd.core.model import Position, TopicName
from offloaderd.ledgers.book import Book, BookSource, Draft, Now, RollLimits, check_payloads
from offloaderd.ledgers.embedded.database import READERS, Database
from offloaderd.ledgers.port import Changes

T = TypeVar("T")

COMMIT_BYTES_MAX = 32 * 1024 * 1024
"""Payload bytes after which a commit takes no further append."""
POLL_S = 1.0

log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class _Change(Generic[T]):
    """A change that waits for its commit: its plan, its weight, and the future of its result."""

    plan: Callable[[Draft], T]
    payload_bytes: int
    done: asyncio.Future[T]

    def succeed(self, result: T) -> None:
        if not self.done.done():  # else its caller was cancelled
            self.done.set_result(result)

    def fail(self, error: BaseException) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class _SqliteSource(BookSource):
    """The reading side of a directory with a store, on threads of its own."""

    def __init__(self, directory: str | Path, *, clock: Clock) -> None:
        self._clock = clock
        self._database = Database(Path(directory))
        self.where = str(self._database.path)
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="ledgers-read")

    async def _fetch(
        self, topic: TopicName, ledger_id: int, first_entry_id: int, last_entry_id: int, batch_bytes: int
    ) -> Sequence[bytes]:
        return await self._blocking(self._database.fetch, ledger_id, first_entry_id, last_entry_id, batch_bytes)

    async def _length_at(self, ledger_id: int, entry_id: int) -> int | None:
        return await self._blocking(self._database.length_at, ledger_id, entry_id)

    async def _blocking(self, function: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._readers, function, *arguments)


class EmbeddedReader(_SqliteSource):
    """A LedgerSource over a directory that another process may have open; use it as an async context manager.

    Entering raises NotFound when there is no store, CorruptData, Denied, InvalidConfig as the store itself.
    """

    async def __aenter__(self) -> Self:
        try:
            await self._blocking(self._database.open_for_reading)
        except BaseException:
            self._readers.shutdown(wait=False)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._blocking(self._database.close)
        finally:
            self._readers.shutdown(wait=False)

    async def identity(self) -> str | None:
        """Return the id in the store's file; see LedgerOrigin."""
        return (await self._blocking(self._database.load))[1]

    async def watch(self, topic: TopicName) -> AsyncGenerator[None, None]:
        """Yield every POLL_S: another process announces no changes."""
        while True:
            yield
            await self._clock.sleep(POLL_S)

    async def delete(self, topic: TopicName, ledger_id: int) -> None:
        """Refuse: the store belongs to the process that has it open."""
        raise Denied(f"ledger {ledger_id} of {topic} is not this process's to delete")

    async def _known(self, only: tuple[TopicName, int] | None = None) -> Book:
        return (await self._blocking(self._database.load, only))[0]


class EmbeddedLedgers(_SqliteSource):
    """A LedgerStore in a directory that belongs to it alone; use it as an async context manager, on one loop.

    Entering raises Conflict when another process has the directory open, CorruptData, Denied, NoSpace or
    InvalidConfig, each naming the directory. Leaving finishes the changes under way; others raise Closed.
    """

    def __init__(self, directory: str | Path, *, clock: Clock, limits: RollLimits | None = None) -> None:
        super().__init__(directory, clock=clock)
        self._limits = limits or RollLimits()
        self._store_id: str | None = None
        self._book = Book()
        self._changes = Changes()
        self._waiting: deque[_Change[Any]] = deque()
        self._writing: asyncio.Future[None] | None = None
        self._sweeping = False
        self._opened = False
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="ledgers-write")

    async def __aenter__(self) -> Self:
        try:
            self._book, self._store_id = await self._written_by(
                self._database.open, str(self._clock.uuid()), self._clock.monotonic()
            )
        except BaseException:
            self._shut_down()
            raise
        self._opened = True
        self._sweep()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._opened = False
        self._changes.close()
        try:
            while self._writing is not None:
                await asyncio.wait((self._writing,))
            await self._written_by(self._database.close)
        finally:
            self._shut_down()

    def watch(self, topic: TopicName) -> AsyncGenerator[None, None]:
        """Yield at once and after changes; see LedgerSource. Raises Closed once the store is closed."""
        return self._changes.watch(topic)

    async def identity(self) -> str | None:
        """Return the id that the store's file got when it was made; see LedgerOrigin."""
        self._check_open()
        return self._store_id

    async def delete(self, topic: TopicName, ledger_id: int) -> None:
        """Delete a closed ledger. Raises InvalidInput for an open one."""
        if await self._change(lambda draft: draft.delete(topic, ledger_id)):
            self._sweep()

    async def create(self, topic: TopicName) -> None:
        """Make the topic known."""
        await self._change(lambda draft: draft.create(topic))

    async def append(self, topic: TopicName, payloads: Sequence[bytes]) -> Position:
        """Append entries; durable when it returns. Raises InvalidInput, NoSpace, Denied, Transient, Closed.

        When the caller is cancelled, its entries are stored whole or not at all.
        """
        check_payloads(payloads)
        return await self._change(
            lambda draft: draft.append(topic, payloads, self._now()), payload_bytes=sum(map(len, payloads))
        )

    async def roll(self, topic: TopicName) -> None:
        """Close the open ledger. Raises NotFound for an unknown topic."""
        await self._change(lambda draft: draft.roll(topic, self._now()))

    async def probe(self) -> None:
        """Check whether entries can be appended. Raises NoSpace, Denied, Transient, Closed."""
        await self._blocking(self._database.check_room)

    async def _change(self, plan: Callable[[Draft], T], *, payload_bytes: int = 0) -> T:
        """Queue a change and return its result when it is durable."""
        self._check_open()
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        change = _Change(plan, payload_bytes, done)
        self._waiting.append(change)
        self._write_next()
        return await done

    def _write_next(self) -> None:
        """Plan what waits and hand it to the writing thread, unless a commit is under way, whose end calls this."""
        while self._waiting and self._writing is None:
            draft = Draft(self._book, self._limits)
            planned: list[tuple[_Change[Any], Any]] = []
            left = COMMIT_BYTES_MAX
            while self._waiting and left > 0:
                change = self._waiting.popleft()
                if change.done.cancelled():
                    continue
                try:
                    planned.append((change, change.plan(draft)))
                except OffloaderError as error:
                    change.fail(error)
                left -= change.payload_bytes
            if not draft.changes:
                for change, result in planned:
                    change.succeed(result)
                continue
            self._writing = self._written_by(self._database.write, draft)
            self._writing.add_done_callback(partial(self._written, draft, planned))

    def _written(self, draft: Draft, planned: list[tuple[_Change[Any], Any]], written: asyncio.Future[None]) -> None:
        """Publish what is durable now, or fail all callers."""
        self._writing = None
        error = Closed("the ledger store has been closed") if written.cancelled() else written.exception()
        if error is None:
            self._book.take_over(draft)
            for change, result in planned:
                change.succeed(result)
            for topic in draft.changes:
                self._changes.notify(topic)
        else:
            for change, _ in planned:
                change.fail(error)
        self._write_next()

    def _sweep(self) -> None:
        """Have the writing thread delete some rows of deleted ledgers, and again until there are none."""
        if self._opened and not self._sweeping:
            self._sweeping = True
            self._written_by(self._database.sweep).add_done_callback(self._swept)

    def _swept(self, swept: asyncio.Future[bool]) -> None:
        self._sweeping = False
        if swept.cancelled():
            return
        error = swept.exception()
        if error is not None:  # tried again at the next delete or start
            log.warning("ledgers.sweep_failed", error=str(error))
        elif swept.result():
            self._sweep()

    async def _blocking(self, function: Callable[..., T], *arguments: object) -> T:
        self._check_open()
        return await super()._blocking(function, *arguments)

    async def _known(self, only: tuple[TopicName, int] | None = None) -> Book:
        self._check_open()
        return self._book

    async def _fetch(
        self, topic: TopicName, ledger_id: int, first_entry_id: int, last_entry_id: int, batch_bytes: int
    ) -> Sequence[bytes]:
        found = await super()._fetch(topic, ledger_id, first_entry_id, last_entry_id, batch_bytes)
        return found if self._book.peek(topic, ledger_id) is not None else []

    def _written_by(self, function: Callable[..., T], *arguments: object) -> asyncio.Future[T]:
        """Call a function on the writing thread."""
        return asyncio.get_running_loop().run_in_executor(self._writer, function, *arguments)

    def _shut_down(self) -> None:
        """End the threads after their work, and close the files."""
        self._readers.shutdown(wait=False, cancel_futures=True)
        self._writer.submit(self._database.close)
        self._writer.shutdown(wait=True)
        self._readers.shutdown(wait=True)

    def _check_open(self) -> None:
        if not self._opened:
            raise Closed("the ledger store is not open")

    def _now(self) -> Now:
        return Now(self._clock.wall_ms(), self._clock.monotonic())
