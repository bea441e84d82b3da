"""The entries of a topic that its consumers get, by the outcomes of transactions.

The outcome of a transaction is in a marker behind its messages, perhaps in a later ledger or segment. So at a message
without an outcome, the entries ahead are read, from any tier, until the marker; they are read twice. Transactions that
were open before the read began are searched in the `LOOK_BACK_BYTES` before it: only all entries before it would show
them for certain.
"""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Self

import structlog

from offloaderd.core.entries import Entries
from offloaderd.core.errors import CorruptData, NotFound, OutOfRange
from offloaderd.core.model import START, Position, TopicName
from offloaderd.format.pulsar.transactions import OpenTransaction, TransactionId, TransactionState
from offloaderd.metadata.committed import LedgerSlice
from offloaderd.read.outcomes import KnownOutcomes, Outcomes
from offloaderd.read.plan import TopicView
from offloaderd.read.reader import TopicReader

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
        """Yield the parts of a batch, each once its outcomes are known; stop before `held`.

        Raises what reading ahead raises, and Throttled when there are too many transactions.
        """
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
        """Yield the parts of a batch that consumers may get."""
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
            start = Position(known.upto.ledger_id, known.upto.entry_id + 1)
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
