"""What became of transactions, found in entries that a read has come to and, where it has to, in those ahead of it."""

from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from typing import NamedTuple

from offloaderd.core.errors import Throttled
from offloaderd.core.frames import Entries
from offloaderd.core.model import Position, TopicName
from offloaderd.format.pulsar.transactions import TransactionLog, mention_of

TRANSACTIONS_MAX = 1_000_000
"""Transactions that a task of a job remembers, some 300 bytes each."""

TOGETHER_MAX = 200_000
"""Transactions that all reads of a daemon remember together: some 60 MB."""

KNOWN_MAX = 100_000
"""Transactions that are remembered from reads that are over, of all topics together: some 30 MB."""


class Remembered:
    """How many transactions are remembered at this moment by all who share this."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0

    def change(self, before: int, now: int) -> None:
        """Count what one of them remembers now, and remembered before. Raises Throttled when that is too much."""
        if now > before and self._count + now - before > self._most:
            raise Throttled(
                f"more than {self._most} open or aborted transactions would have to be remembered",
                hint="read a range that begins later, or try again when other reads are over",
            )
        self._count += now - before


class Known(NamedTuple):
    """What the entries of a topic from `origin` to `upto`, both inclusive, say of transactions."""

    origin: Position
    upto: Position
    log: TransactionLog


class KnownOutcomes:
    """What reads have found out, for those that begin near to where they ended: they need not look back again."""

    def __init__(self) -> None:
        self.together = Remembered(TOGETHER_MAX)
        """What the reads that go on remember."""
        self._topics: OrderedDict[TopicName, Known] = OrderedDict()
        self._size = 0

    def find(self, topic: TopicName, start: Position, first: Position) -> Known | None:
        """Return what is known from `start` or before on, up to there at least, for a read that begins at `first`."""
        known = self._topics.get(topic)
        if known is None or known.origin > start or known.upto < start:
            return None
        if known.log.forgotten is not None and known.log.forgotten >= first:
            return None
        return known._replace(log=known.log.copy())

    def keep(self, topic: TopicName, known: Known) -> None:
        """Remember what a read has found out, unless more is known already; the topics read longest ago give way."""
        before = self._topics.pop(topic, None)
        if before is not None and before.upto >= known.upto and before.origin <= known.origin:
            known, before = before, None
        else:
            self._size += len(known.log) + 1 - (len(before.log) + 1 if before is not None else 0)
        self._topics[topic] = known
        while self._size > KNOWN_MAX:
            _, gone = self._topics.popitem(last=False)
            self._size -= len(gone.log) + 1


class Outcomes:
    """The log of a topic's entries up to some position; `behind` reads on from a position, ledgers may end there.

    Entries are taken in their order, by the read itself or ahead of it, each once. Close it when done with it, and have
    it release what it counted with others, `together`.
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
        """What was found out; None while nothing was taken."""
        if self._origin is None or self._upto is None:
            return None
        return Known(self._origin, self._upto, self.log)

    def resume(self, known: Known) -> None:
        """Begin with what an earlier read has found out. Raises as `take`."""
        self._origin, self._upto, self.log = known
        self._count()

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

    def release(self) -> None:
        """Count nothing any more: what was found out is somebody else's now."""
        self._together.change(self._counted, 0)
        self._counted = 0

    def forget(self) -> None:
        """Forget what was taken, and go on behind it."""
        self.log, self._origin = TransactionLog(), None
        self._count()

    def _count(self) -> None:
        self._together.change(self._counted, len(self.log))
        self._counted = len(self.log)

    def _add(self, batch: Entries) -> bool:
        """Take what was not taken yet; says whether there was something."""
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
