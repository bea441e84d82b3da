"""Reads the embedded ledger store beside the process that has it open, which alone may write it.

SQLite lets others read while one writes, so no lock is taken and nothing is changed; each answer is as new as the
last commit. The store has to lie on the same machine: its log is shared memory.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from offloaderd.errors import CorruptData, Denied, NotFound
from offloaderd.ledgers.database import READERS, Database
from offloaderd.ledgers.plain_metadata import plain_metadata
from offloaderd.model import Confirmed, EntryBatch

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence
    from types import TracebackType
    from typing import Self

    from offloaderd.clock import Clock
    from offloaderd.model import LedgerInfo, TopicName

T = TypeVar("T")

POLL_S = 1.0


class EmbeddedReader:
    """A LedgerSource over a directory that another process may have open; use it as an async context manager.

    Entering raises NotFound when there is no store, CorruptData, Denied, InvalidConfig as the store itself.
    """

    def __init__(self, directory: str | Path, *, clock: Clock) -> None:
        self._clock = clock
        self._database = Database(Path(directory))
        self._threads = ThreadPoolExecutor(READERS, thread_name_prefix="ledgers-read")

    async def __aenter__(self) -> Self:
        """Open the store; see the class."""
        try:
            await self._blocking(self._database.open_for_reading)
        except BaseException:
            self._threads.shutdown(wait=False)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        try:
            await self._blocking(self._database.close)
        finally:
            self._threads.shutdown(wait=False)

    async def topics(self, *, tenant: str | None = None, namespace: str | None = None) -> Sequence[TopicName]:
        """Return the topics in name order; see LedgerSource."""
        stored = await self._blocking(self._database.load)
        return sorted(
            topic
            for topic, _ in stored.topics
            if tenant in {None, topic.tenant} and namespace in {None, topic.namespace}
        )

    async def reserved(self, topic: TopicName) -> str | None:
        """Return None: every topic here is a user's."""
        return None

    async def ledgers(self, topic: TopicName) -> Sequence[LedgerInfo]:
        """Return the topic's ledgers in order. Raises NotFound."""
        stored = await self._blocking(self._database.load)
        for name, infos in stored.topics:
            if name == topic:
                return infos
        raise NotFound(f"no topic {topic} in {self._database.directory}")

    async def identity(self) -> str | None:
        """Return the id that the store's file got when it was made; see LedgerOrigin."""
        return (await self._blocking(self._database.load)).store_id

    async def moved(self, topic: TopicName) -> str | None:
        """Return None: there is no other place for its lists."""
        return None

    async def inspected(self, topic: TopicName, ledger_id: int) -> LedgerInfo:
        """Return a ledger as the store has it; see LedgerOrigin. Raises NotFound."""
        return await self._info(topic, ledger_id)

    async def watch(self, topic: TopicName) -> AsyncGenerator[None, None]:
        """Yield every second: what another process writes is not announced."""
        while True:
            yield
            await self._clock.sleep(POLL_S)

    async def confirmed(self, topic: TopicName, ledger_id: int) -> Confirmed:
        """Return how far the ledger may be read. Raises NotFound."""
        info = await self._info(topic, ledger_id)
        return Confirmed(last_entry_id=info.entries - 1, closed=info.closed)

    async def read(
        self, topic: TopicName, ledger_id: int, first_entry_id: int, last_entry_id: int, *, batch_bytes: int
    ) -> AsyncGenerator[EntryBatch, None]:
        """Yield the range in batches; see LedgerSource. Raises NotFound, CorruptData."""
        at = first_entry_id
        while at <= last_entry_id:
            payloads = await self._blocking(self._database.fetch, ledger_id, at, last_entry_id, batch_bytes)
            if not payloads:
                await self._missing(topic, ledger_id, at)
            yield EntryBatch(ledger_id, at, payloads)
            at += len(payloads)

    async def length_at(self, topic: TopicName, ledger_id: int, entry_id: int) -> int:
        """Return the payload bytes up to and including the entry. Raises NotFound, CorruptData."""
        length = await self._blocking(self._database.length_at, ledger_id, entry_id)
        if length is None:
            await self._missing(topic, ledger_id, entry_id)
            return 0
        return length

    async def described(self, topic: TopicName, ledger_id: int) -> bytes:
        """Return what BookKeeper would say of a closed ledger; see LedgerDescriber. Raises NotFound, InvalidInput."""
        return plain_metadata(await self._info(topic, ledger_id))

    async def delete(self, topic: TopicName, ledger_id: int) -> None:
        """Refuse: the store belongs to the process that has it open."""
        raise Denied(f"ledger {ledger_id} of {topic} is not this process's to delete")

    async def _info(self, topic: TopicName, ledger_id: int) -> LedgerInfo:
        for info in await self.ledgers(topic):
            if info.ledger_id == ledger_id:
                return info
        raise NotFound(f"no ledger {ledger_id} in {topic}")

    async def _missing(self, topic: TopicName, ledger_id: int, entry_id: int) -> None:
        """Raise NotFound for an entry of a ledger that is gone, CorruptData for one that should be there."""
        info = await self._info(topic, ledger_id)
        if entry_id >= info.entries:
            raise NotFound(f"no entry {ledger_id}:{entry_id} in {topic}")
        raise CorruptData(
            key=str(self._database.path),
            offset=0,
            expected=f"entry {ledger_id}:{entry_id} of {topic}",
            found="no row with it",
            hint="restore the directory from a backup",
        )

    async def _blocking(self, function: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)
