"""The ledger store in memory: for tests and simulations; what it acknowledges survives nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from offloaderd.errors import Closed, InvalidInput, NotFound
from offloaderd.ledgers.book import (
    LEDGER_AGE_MAX_S,
    LEDGER_BYTES_MAX,
    LEDGER_ENTRIES_MAX,
    Book,
    Draft,
    Now,
    RollLimits,
    check_payloads,
)
from offloaderd.ledgers.changes import Changes
from offloaderd.ledgers.plain_metadata import plain_metadata
from offloaderd.model import EntryBatch

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Sequence
    from types import TracebackType
    from typing import Self

    from offloaderd.clock import Clock
    from offloaderd.model import Confirmed, LedgerInfo, Position, TopicName


class MemoryLedgers:
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
        self.store_id: str | None = "memory"
        """What tells it from others."""

    async def __aenter__(self) -> Self:
        """Return itself; nothing needs opening."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Refuse everything from now on, and end the watches."""
        self._closed = True
        self._changes.close()

    async def topics(self, *, tenant: str | None = None, namespace: str | None = None) -> Sequence[TopicName]:
        """Return the topics in name order; see LedgerSource."""
        await self._turn()
        return self._book.topics(tenant, namespace)

    async def reserved(self, topic: TopicName) -> str | None:
        """Return None: every topic here is a user's."""
        await self._turn()
        return None

    async def ledgers(self, topic: TopicName) -> Sequence[LedgerInfo]:
        """Return the topic's ledgers in order. Raises NotFound."""
        await self._turn()
        return self._book.ledgers(topic)

    async def listed(self, topic: TopicName) -> Collection[int]:
        """Return the topic's ledgers; see LedgerRegister. Raises NotFound."""
        return [info.ledger_id for info in await self.ledgers(topic)]

    def watch(self, topic: TopicName) -> AsyncGenerator[None, None]:
        """Yield at once and after changes; see LedgerSource."""
        return self._changes.watch(topic)

    async def confirmed(self, topic: TopicName, ledger_id: int) -> Confirmed:
        """Return how far the ledger may be read. Raises NotFound."""
        await self._turn()
        return self._book.confirmed(topic, ledger_id)

    async def read(
        self, topic: TopicName, ledger_id: int, first_entry_id: int, last_entry_id: int, *, batch_bytes: int
    ) -> AsyncGenerator[EntryBatch, None]:
        """Yield the range in batches; see LedgerSource. Raises NotFound, InvalidInput."""
        if batch_bytes < 1:
            raise InvalidInput(f"batch_bytes must be positive, not {batch_bytes}")
        self._book.check_range(topic, ledger_id, first_entry_id, last_entry_id)
        at = first_entry_id
        while at <= last_entry_id:
            await self._turn()
            payloads = self._stored(topic, ledger_id)
            end, size = at, 0
            while end <= last_entry_id and (end == at or size + len(payloads[end]) <= batch_bytes):
                size += len(payloads[end])
                end += 1
            yield EntryBatch(ledger_id, at, payloads[at:end])
            at = end

    async def length_at(self, topic: TopicName, ledger_id: int, entry_id: int) -> int:
        """Return the payload bytes up to and including the entry. Raises NotFound."""
        await self._turn()
        ledger = self._book.ledger(topic, ledger_id)
        if not 0 <= entry_id < ledger.entries:
            raise NotFound(f"no entry {ledger_id}:{entry_id} in {topic}")
        return sum(map(len, self._stored(topic, ledger_id)[: entry_id + 1]))

    async def identity(self) -> str | None:
        """Return the store's own id; see LedgerOrigin."""
        await self._turn()
        return self.store_id

    async def moved(self, topic: TopicName) -> str | None:
        """Return None: there is no other place for its lists."""
        return None

    async def inspected(self, topic: TopicName, ledger_id: int) -> LedgerInfo:
        """Return a ledger as the store has it; see LedgerOrigin. Raises NotFound."""
        await self._turn()
        return self._book.ledger(topic, ledger_id).info()

    async def described(self, topic: TopicName, ledger_id: int) -> bytes:
        """Return what BookKeeper would say of a closed ledger; see LedgerDescriber. Raises NotFound, InvalidInput."""
        found = next((info for info in await self.ledgers(topic) if info.ledger_id == ledger_id), None)
        if found is None:
            raise NotFound(f"{topic} has no ledger {ledger_id}")
        return plain_metadata(found)

    async def delete(self, topic: TopicName, ledger_id: int) -> None:
        """Forget a closed ledger. Raises InvalidInput for an open one."""
        await self._turn()
        draft = Draft(self._book, self._limits)
        if draft.delete(topic, ledger_id):
            self._take_over(draft)

    async def create(self, topic: TopicName) -> None:
        """Make the topic known."""
        await self._turn()
        draft = Draft(self._book, self._limits)
        draft.create(topic)
        self._take_over(draft)

    async def append(self, topic: TopicName, payloads: Sequence[bytes]) -> Position:
        """Append entries; returns the last one's position. Raises InvalidInput."""
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

    def _stored(self, topic: TopicName, ledger_id: int) -> list[bytes]:
        self._book.ledger(topic, ledger_id)
        return self._payloads[ledger_id]

    def _now(self) -> Now:
        return Now(self._clock.wall_ms(), self._clock.monotonic())

    async def _turn(self) -> None:
        await asyncio.sleep(0)  # noqa: TID251 - lets others run, takes no time
        if self._closed:
            raise Closed("the ledger store has been closed")
