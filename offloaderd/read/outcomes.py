"""Outcomes of transactions in the entries of a read and, if needed, in those ahead of it."""

from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from typing import NamedTuple

from offloaderd.core.entries import Entries
from offloaderd.core.errors import Throttled
from offloaderd.core.model import Position, TopicName
from offloaderd.format.pulsar.transactions import TransactionLog, mention_of

TRANSACTIONS_MAX = 1_000_000
"""Transactions in memory of one task of a job, some 300 bytes each."""
TOGETHER_MAX = 200_000
"""Transactions in memory of all reads of a daemon: some 60 MB."""
KNOWN_MAX = 100_000
"""Transactions in memory of ended reads, of all topics: some 30 MB."""


class Remembered:
    """The number of transactions in memory of all that share it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0

    def change(self, before: int, now: int) -> None:
        """Replace the number of one of them. Raises Throttled above the limit."""
        if now > before and self._count + now - before > self._most:
            raise Throttled(
                f"more than {self._most} open or aborted transactions would have to be remembered",
                hint="read a range that begins later, or try again when other reads are over",
            )
        self._count += now - before


class Known(NamedTuple):
    """The transactions in the entries of a topic from `origin` to `upto`, both inclusive."""

    origin: Position
    upto: Position
    log: TransactionLog


class KnownOutcomes:
    """Outcomes of ended reads, for reads that begin near their ends and so need no look back."""

    def __init__(self) -> None:
        self.together = Remembered(TOGETHER_MAX)
        """The number of transactions of the present reads."""
        self._topics: OrderedDict[TopicName, Known] = OrderedDict()
        self._size = 0

    def find(self, topic: TopicName, start: Position, first: Position) -> Known | None:
        """Return the outcomes that begin at or before `start` and reach it, for a read that begins at `first`."""
        known = self._topics.get(topic)
        if known is None or known.origin > start or known.upto < start:
            return None
        if known.log.forgotten is not None and known.log.forgotten >= first:
            return None
        return known._replace(log=known.log.copy())

    def keep(self, topic: TopicName, known: Known) -> None:
        """Keep the outcomes of a read, unless more are known; drop those of the topics read longest ago."""
        before = self._topics.pop(topic, None)
        if before is not None and before.upto >= known.upto and before.origin <= known.origin:
            known, before = before, None
        else:
            self._size += len(known.log) + 1 - (len(before.log) + 1 if before is not None else 0)
        self._topics[topic] = known
        while self._size > KNOWN_MAX:
            _, oldest = self._topics.popitem(last=False)
            self._size -= len(oldest.log) + 1


class Outcomes:
    """The transactions of a topic's entries up to a position; `behind` yields the entries from a position on.

    Entries are taken in their order, by the read itself or ahead of it, each once. At the end call `close` and
    `release`, which gives its share of `together` back.
    """

    def __init__(
        self, behind: Callable[[Position], AsyncGenerator[Entries, None]], together: Remembered | None = None
    ) -> None:
        self.log = TransactionLog()
        self._together = together or Remembered(TRANSACTIONS_MAX)
        self._counted = 0
        self._behind = behind
        self._ahead: AsyncGenerator[Entries, None] | None = None
        self._origin: Position | None = None
        self._upto: Position | None = None

    @property
    def known(self) -> Known | None:
        """The known outcomes; None before the first entry."""
        if self._origin is None or self._upto is None:
            return None
        return Known(self._origin, self._upto, self.log)

    def resume(self, known: Known) -> None:
        """Begin with the outcomes of an earlier read. Raises as `take`."""
        self._origin, self._upto, self.log = known
        self._count()

    async def take(self, batch: Entries) -> None:
        """Take entries of the read. Raises Throttled when there are too many transactions."""
        if self._add(batch):
            await self.close()

    async def look_ahead(self) -> bool:
        """Take the next entries; return whether there were any.

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
        """Look ahead until all transactions up to a position have an outcome, or to the last entry."""
        while (opened := self.log.first_open()) is not None and opened.position <= last:
            if not await self.look_ahead():
                return

    async def close(self) -> None:
        """Stop reading ahead."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            await ahead.aclose()

    def release(self) -> None:
        """Give its share of `together` back."""
        self._together.change(self._counted, 0)
        self._counted = 0

    def forget(self) -> None:
        """Forget all outcomes, not the position."""
        self.log, self._origin = TransactionLog(), None
        self._count()

    def _count(self) -> None:
        self._together.change(self._counted, len(self.log))
        self._counted = len(self.log)

    def _add(self, batch: Entries) -> bool:
        """Take the new entries of a batch; return whether there were any."""
        if self._upto is not None and batch.last <= self._upto:
            return False
        for entry_id, payload in enumerate(batch.payloads, batch.first_entry_id):
            if (mention := mention_of(payload)) is not None:
                position = Position(batch.ledger_id, entry_id)
                if self._upto is None or position > self._upto:
                    self.log.take(position, mention)
        self._origin, self._upto = self._origin or batch.first, batch.last
        self._count()
        return True
