"""The ledger store in memory, for tests and simulations; its entries do not outlive the process."""

import asyncio
from collections.abc import AsyncGenerator, Collection, Sequence
from typing import Self

from offloaderd.core.clock import Clock
from offloaderd.core.errors import Closed
from offloaderd.core.model import Position, TopicName
from offloaderd.ledgers.book import (
    LEDGER_AGE_MAX_S,
    LEDGER_BYTES_MAX,
    LEDGER_ENTRIES_MAX,
    Book,
    BookSource,
    Draft,
    Now,
    RollLimits,
    check_payloads,
)
from offloaderd.ledgers.port import Changes


class MemoryLedgers(BookSource):
    """A LedgerStore of dictionaries. Every call gives the loop one turn, as a real store would."""

    def __init__(
        self,
        *,
        clock: Clock,
        ledger_entries_max: int = LEDGER_ENTRIES_MAX,
        ledger_bytes_max: int = LEDGER_BYTES_MAX,
        ledger_age_max_s: float = LEDGER_AGE_MAX_S,
    ) -> None:
        self._clock = clock
        self._limits = RollLimits(
            entries_max=ledger_entries_max, bytes_max=ledger_bytes_max, age_max_s=ledger_age_max_s
        )
        self._book = Book()
        self._changes = Changes()
        self._payloads: dict[int, list[bytes]] = {}
        self._closed = False
        self.where = "memory"
        self.store_id: str | None = "memory"
        """Its id among stores."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Refuse all calls from now on, and end the watches."""
        self._closed = True
        self._changes.close()

    async def listed(self, topic: TopicName) -> Collection[int]:
        """Return the topic's ledgers; see LedgerRegister. Raises NotFound."""
        return [info.ledger_id for info in await self.ledgers(topic)]

    def watch(self, topic: TopicName) -> AsyncGenerator[None, None]:
        """Yield at once and after changes; see LedgerSource."""
        return self._changes.watch(topic)

    async def identity(self) -> str | None:
        """Return the store's own id; see LedgerOrigin."""
        await self._turn()
        return self.store_id

    async def delete(self, topic: TopicName, ledger_id: int) -> None:
        """Delete a closed ledger. Raises InvalidInput for an open one."""
        await self._turn()
        draft = Draft(self._book, self._limits)
        if draft.delete(topic, ledger_id):
            self._take_over(draft)

    async def create(self, topic: TopicName) -> None:
        """Create the topic."""
        await self._turn()
        draft = Draft(self._book, self._limits)
        draft.create(topic)
        self._take_over(draft)

    async def append(self, topic: TopicName, payloads: Sequence[bytes]) -> Position:
        """Append entries; return the last one's position. Raises InvalidInput."""
        check_payloads(payloads)
        await self._turn()
        draft = Draft(self._book, self._limits)
        position = draft.append(topic, payloads, self._now())
        self._take_over(draft)
        return position

    async def roll(self, topic: TopicName) -> None:
        """Close the open ledger. Raises NotFound for an unknown topic."""
        await self._turn()
        draft = Draft(self._book, self._limits)
        draft.roll(topic, self._now())
        self._take_over(draft)

    def _take_over(self, draft: Draft) -> None:
        for run in draft.runs:
            self._payloads.setdefault(run.ledger_id, []).extend(run.payloads)
        self._book.take_over(draft)
        for topic, changes in draft.changes.items():
            for ledger_id, ledger in changes.items():
                if ledger is None:
                    self._payloads.pop(ledger_id, None)
            self._changes.notify(topic)

    async def _known(self, only: tuple[TopicName, int] | None = None) -> Book:
        await self._turn()
        return self._book

    async def _fetch(
        self, topic: TopicName, ledger_id: int, first_entry_id: int, last_entry_id: int, batch_bytes: int
    ) -> Sequence[bytes]:
        await self._turn()
        stored = self._payloads.get(ledger_id, [])
        end, size = first_entry_id, 0
        while end <= last_entry_id and stored and (end == first_entry_id or size + len(stored[end]) <= batch_bytes):
            size += len(stored[end])
            end += 1
        return stored[first_entry_id:end]

    async def _length_at(self, ledger_id: int, entry_id: int) -> int | None:
        return sum(map(len, self._payloads[ledger_id][: entry_id + 1]))

    def _now(self) -> Now:
        return Now(self._clock.wall_ms(), self._clock.monotonic())

    async def _turn(self) -> None:
        await asyncio.sleep(0)  # noqa: TID251 - lets others run, takes no time
        if self._closed:
            raise Closed("the ledger store has been closed")
