"""The entries of a topic that its consumers get, by the outcomes of transactions.

The outcome of a transaction is in a marker behind its messages, perhaps in a later ledger or segment. So at a message
without an outcome, the entries ahead are read, from any tier, until the marker; they are read twice. Transactions that
were open before the read began are searched in the `LOOK_BACK_BYTES` before it: only all entries before it would show
them for certain.
"""

from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from typing import NamedTuple, Self

import structlog

from offloaderd.core.entries import Entries
from offloaderd.core.errors import CorruptData, NotFound, OutOfRange, Throttled
from offloaderd.core.model import START, Position, TopicName
from offloaderd.format.pulsar.transactions import (
    OpenTransaction,
    TransactionId,
    TransactionLog,
    TransactionState,
    mention_of,
)
from offloaderd.metadata.committed import LedgerSlice
from offloaderd.read.plan import TopicView
from offloaderd.read.reader import TopicReader

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
        """Take the next entries; return whether there were any. Raises as `behind` and `take`."""
        if self._ahead is None and self._upto is not None:
            self._ahead = self._behind(self._upto.next())
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


LOOK_BACK_BYTES = 64 * 1024 * 1024
ENTRY_BYTES = 1024
"""Estimated size of entries whose bytes are not counted."""

log = structlog.get_logger(__name__)


class ConsumerView:
    """The transactions of one read; an async context manager. `held` is set where consumers get nothing more.

    `everything`: nothing is held, and a transaction without an outcome up to the newest entry is open, or unknown when
    entries before that cannot be read.
    """

    def __init__(
        self, reader: TopicReader, topic: TopicName, known: KnownOutcomes, *, follow: bool, everything: bool
    ) -> None:
        self.held: OpenTransaction | None = None
        self._known = known
        self._begun = False
        self._reader = reader
        self._topic = topic
        self._waits = follow and not everything
        self._everything = everything
        self._blind = False
        self._outcomes = Outcomes(self._behind, known.together)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop reading ahead, and keep the known outcomes for the next read."""
        self._outcomes.release()
        await self._outcomes.close()
        if (known := self._outcomes.known) is not None:
            self._known.keep(self._topic, known)

    async def visible(self, batch: Entries) -> AsyncGenerator[Entries, None]:
        """Yield the parts of a batch with known outcomes; stop before `held`. Raises as reading ahead, Throttled."""
        if not self._begun:
            await self._look_back(batch.first)
            self._begun = True
        await self._outcomes.take(batch)
        if self._everything:
            try:
                await self._outcomes.know(batch.last)
            except (NotFound, CorruptData):
                self._blind = True
            yield batch
        else:
            async with aclosing(self._visible(batch)) as parts:
                async for part in parts:
                    yield part
        self._outcomes.log.forget(batch.first)

    def state(self, position: Position, transaction: TransactionId) -> TransactionState:
        """Return the state of a message of a `visible` part."""
        found = self._outcomes.log.state(position, transaction)
        return TransactionState.UNKNOWN if self._blind and found is TransactionState.OPEN else found

    async def _visible(self, batch: Entries) -> AsyncGenerator[Entries, None]:
        rest = batch
        while (opened := self._outcomes.log.first_open()) is not None and opened.position <= rest.last:
            if opened.position > rest.first:
                at = opened.position.entry_id
                yield rest.between(rest.first_entry_id, at - 1)
                rest = rest.between(at, rest.last_entry_id)
            elif not await self._outcomes.look_ahead():
                self.held = opened
                return
        yield rest

    async def _behind(self, first: Position) -> AsyncGenerator[Entries, None]:
        """Yield the topic's entries from a position on; none when it is beyond the newest."""
        try:
            async with aclosing(self._reader.read(self._topic, first=first, follow=self._waits)) as batches:
                async for batch, _ in batches:
                    yield batch
        except OutOfRange:
            return

    async def _look_back(self, first: Position) -> None:
        """Take the entries before the first one of the read. After an error no transaction counts as open."""
        start = look_back_from(await self._reader.view(self._topic), first)
        if start is None:
            return
        if (known := self._known.find(self._topic, start, first)) is not None:
            self._outcomes.resume(known)
            start = known.upto.next()
            if start >= first:
                return
        try:
            async with aclosing(self._reader.read(self._topic, first=start)) as batches:
                async for batch, _ in batches:
                    if batch.first >= first:
                        break
                    before = batch.last_entry_id if batch.ledger_id != first.ledger_id else first.entry_id - 1
                    await self._outcomes.take(batch.between(batch.first_entry_id, before))
                    self._outcomes.log.forget(batch.first)
                    if batch.last >= first:
                        break
        except (NotFound, CorruptData) as error:
            log.warning("read.transactions_before_unknown", topic=str(self._topic), first=str(first), error=str(error))
            self._outcomes.forget()


def look_back_from(view: TopicView, first: Position, bytes_max: int = LOOK_BACK_BYTES) -> Position | None:
    """Return the entry from which about `bytes_max` precede `first`; None when no entry precedes it.

    Nothing before a gap (a loss, or history that is not offloaded) counts.
    """
    gaps = [loss.before for loss in view.losses] + ([view.unfinished[1]] if view.unfinished else [])
    floor = max((one for one in gaps if one <= first), default=START)
    room, start = bytes_max, None
    for ledger_id, low, high, entry_bytes in _runs_before(view, first):
        begin = max(low, floor.entry_id) if ledger_id == floor.ledger_id else low
        if ledger_id < floor.ledger_id or begin > high:
            break
        entries = min(high - begin + 1, -(-room // entry_bytes))
        start = Position(ledger_id, high - entries + 1)
        room -= entries * entry_bytes
        if room <= 0 or start.entry_id > begin:
            break
    return start


def _runs_before(view: TopicView, first: Position) -> Iterator[tuple[int, int, int, int]]:
    """Yield, backwards from `first`, ledgers with the first and last entry that some tier has, and bytes an entry."""
    offloaded = view.segments[-1].end if view.segments else START
    newest = view.segments[-1].slices[-1] if view.segments else None
    beyond = [(one.ledger_id, 0, one.last_entry_id) for one in view.source]
    if view.hot is not None:
        beyond = sorted([*beyond, *(run for run in _buffered(*view.hot) if view.ledger(run[0]) is None)])
    for ledger_id, low, last in reversed(beyond):
        begin = max(low, offloaded.entry_id + 1) if ledger_id == offloaded.ledger_id else low
        high = _below(first, ledger_id, last)
        if ledger_id >= offloaded.ledger_id and begin <= high:
            yield ledger_id, begin, high, entry_bytes_of(newest) if newest else ENTRY_BYTES
    for segment in reversed(view.segments):
        for part in reversed(segment.slices):
            high = _below(first, part.ledger_id, part.last_entry_id)
            if part.first_entry_id <= high:
                yield part.ledger_id, part.first_entry_id, high, entry_bytes_of(part)


def entry_bytes_of(part: LedgerSlice) -> int:
    """Return the average bytes of an entry of a slice, at least 1."""
    return max(1, part.payload_bytes // part.entries)


def _buffered(oldest: Position, newest: Position) -> list[tuple[int, int, int]]:
    """Return runs of entries in the buffer; of several ledgers only the end of the last is known."""
    if oldest.ledger_id == newest.ledger_id:
        return [(oldest.ledger_id, oldest.entry_id, newest.entry_id)]
    return [(oldest.ledger_id, oldest.entry_id, oldest.entry_id), (newest.ledger_id, 0, newest.entry_id)]


def _below(first: Position, ledger_id: int, last: int) -> int:
    """Return the last entry of a ledger before a position; -1 for none."""
    if ledger_id > first.ledger_id:
        return -1
    return min(last, first.entry_id - 1) if ledger_id == first.ledger_id else last
