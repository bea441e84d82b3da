"""Reads the embedded ledger store beside the process that has it open, which alone may write it.

SQLite lets others read while one writes, so no lock is taken and nothing is changed; each answer is as new as the
last commit. The store has to lie on the same machine: its log is shared memory.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self, TypeVar

from offloaderd.core.clock import Clock
from offloaderd.core.errors import Denied
from offloaderd.core.model import TopicName
from offloaderd.ledgers.book import Book, BookSource
from offloaderd.ledgers.embedded.database import READERS, Database

T = TypeVar("T")

POLL_S = 1.0


class EmbeddedReader(BookSource):
    """A LedgerSource over a directory that another process may have open; use it as an async context manager.

    Entering raises NotFound when there is no store, CorruptData, Denied, InvalidConfig as the store itself.
    """

    def __init__(self, directory: str | Path, *, clock: Clock) -> None:
        self._clock = clock
        self._database = Database(Path(directory))
        self.where = str(self._database.path)
        self._threads = ThreadPoolExecutor(READERS, thread_name_prefix="ledgers-read")

    async def __aenter__(self) -> Self:
        """Open the store; see the class."""
        try:
            await self._blocking(self._database.open_for_reading)
        except BaseException:
            self._threads.shutdown(wait=False)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the file."""
        try:
            await self._blocking(self._database.close)
        finally:
            self._threads.shutdown(wait=False)

    async def identity(self) -> str | None:
        """Return the id that the store's file got when it was made; see LedgerOrigin."""
        return (await self._blocking(self._database.load)).store_id

    async def watch(self, topic: TopicName) -> AsyncGenerator[None, None]:
        """Yield every second: what another process writes is not announced."""
        while True:
            yield
            await self._clock.sleep(POLL_S)

    async def delete(self, topic: TopicName, ledger_id: int) -> None:
        """Refuse: the store belongs to the process that has it open."""
        raise Denied(f"ledger {ledger_id} of {topic} is not this process's to delete")

    async def _known(self) -> Book:
        return (await self._blocking(self._database.load)).book

    async def _fetch(
        self, topic: TopicName, ledger_id: int, first_entry_id: int, last_entry_id: int, batch_bytes: int
    ) -> Sequence[bytes]:
        return await self._blocking(self._database.fetch, ledger_id, first_entry_id, last_entry_id, batch_bytes)

    async def _length_at(self, ledger_id: int, entry_id: int) -> int | None:
        return await self._blocking(self._database.length_at, ledger_id, entry_id)

    async def _blocking(self, function: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)
