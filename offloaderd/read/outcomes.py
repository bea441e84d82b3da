"""What became of transactions, found in entries that a read has come to and, where it has to, in those ahead of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offloaderd.errors import Throttled
from offloaderd.format.transactions import TransactionLog, mention_of
from offloaderd.model import Position

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from offloaderd.format.frames import Entries

TRANSACTIONS_MAX = 1_000_000
"""Transactions that one read remembers, some 200 bytes each."""


class Outcomes:
    """The log of a topic's entries up to some position; `behind` reads on from a position, ledgers may end there.

    Entries are taken in their order, by the read itself or ahead of it, each once. Close it when done with it.
    """

    def __init__(self, behind: Callable[[Position], AsyncGenerator[Entries, None]]) -> None:
        self.log = TransactionLog()
        self._behind = behind
        self._ahead: AsyncGenerator[Entries, None] | None = None
        self._upto: Position | None = None

    @property
    def begun(self) -> bool:
        """Whether something was taken."""
        return self._upto is not None

    async def take(self, batch: Entries) -> None:
        """Take entries that the read has come to. Raises Throttled when there are too many transactions."""
        if self._add(batch):
            await self.close()

    async def look_ahead(self) -> bool:
        """Take the next entries behind all that were taken; says whether there were some.

        Raises what `behind` raises, and as `take`.
        """
        if self._ahead is None and self._upto is not None:
            self._ahead = self._behind(Position(self._upto.ledger_id, self._upto.entry_id + 1))
        while self._ahead is not None:
            batch = await anext(self._ahead, None)
            if batch is None:
                await self.close()
            elif self._add(batch):
                return True
        return False

    async def know(self, last: Position) -> None:
        """Look ahead until all transactions that have begun up to a position are over, or there is no further entry."""
        while (opened := self.log.first_open()) is not None and opened.position <= last:
            if not await self.look_ahead():
                return

    async def close(self) -> None:
        """Stop reading ahead."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            await ahead.aclose()

    def forget(self) -> None:
        """Forget what was taken, and go on behind it."""
        self.log = TransactionLog()

    def _add(self, batch: Entries) -> bool:
        """Take what was not taken yet; says whether there was something."""
        if self._upto is not None and batch.last <= self._upto:
            return False
        for entry_id, payload in enumerate(batch.payloads, batch.first_entry_id):
            if (mention := mention_of(payload)) is not None:
                position = Position(batch.ledger_id, entry_id)
                if self._upto is None or position > self._upto:
                    self.log.take(position, mention)
        self._upto = batch.last
        if len(self.log) > TRANSACTIONS_MAX:
            raise Throttled(
                f"there are more than {TRANSACTIONS_MAX} open or aborted transactions up to {self._upto}",
                hint="read a range that begins later",
            )
        return True
