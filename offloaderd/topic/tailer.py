"""The tailer: follows a topic in its ledger source and fills the tailing buffer up to the last confirmed entry.

It also reads entries that the buffer declined or evicted and the open segment still needs. It never reads above the
last confirmed entry. While a broker pushes, it leaves the newest entries to the broker for a moment. Entries that the
source deleted before they were offloaded are reported as a loss, and reading continues behind them.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import NamedTuple, Protocol

import structlog

from offloaderd.core.aio import Group, Signal, race
from offloaderd.core.clock import Clock
from offloaderd.core.errors import NotFound, OffloaderError, Transient
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import Confirmed, EntryBatch, LedgerInfo, Loss, Position, TopicName
from offloaderd.core.quotas import Account
from offloaderd.core.retry import Backoff
from offloaderd.history.adoption import Adoption
from offloaderd.ledgers.chain import LedgerChain, Run
from offloaderd.ledgers.port import LedgerSource
from offloaderd.segment.failures import FailureTracker
from offloaderd.segment.roll import TopicView
from offloaderd.segment.source_check import SourceCheck
from offloaderd.topic.buffer import BufferPool, Missing, TailingBuffer
from offloaderd.topic.chooser import due_in_s, wants
from offloaderd.topic.lag import LagTracker, OldestEntry


class SourceReader:
    """One topic's ledger source. Without `check` its list is trusted, without `adoption` it is complete."""

    def __init__(
        self,
        source: LedgerSource,
        topic: TopicName,
        *,
        check: SourceCheck | None = None,
        adoption: Adoption | None = None,
    ) -> None:
        self._source = source
        self._topic = topic
        self._check = check
        self._adoption = adoption

    async def ledgers(self) -> Sequence[LedgerInfo]:
        """Return the source's ledgers. Raises IdentityRefused for ledgers of another history."""
        if self._check is not None:
            return await self._check.ledgers(self._source)
        return await self._source.ledgers(self._topic)

    async def with_copies(self, infos: Sequence[LedgerInfo]) -> list[LedgerInfo]:
        """Return the source's ledgers `infos`, and those of which only brokers' copies exist."""
        return await self._adoption.with_copies(infos) if self._adoption is not None else list(infos)

    async def confirmed(self, ledger_id: int) -> Confirmed:
        """Return the confirmed end of a ledger."""
        return await self._source.confirmed(self._topic, ledger_id)

    def read(self, ledger_id: int, first: int, last: int, *, batch_bytes: int) -> AsyncGenerator[EntryBatch, None]:
        """Read entries from BookKeeper, or from a broker's copy."""
        if self._adoption is not None:
            return self._adoption.read(ledger_id, first, last, batch_bytes=batch_bytes)
        return self._source.read(self._topic, ledger_id, first, last, batch_bytes=batch_bytes)

    def watch(self) -> AsyncGenerator[None, None]:
        """Yield whenever the source may have changed."""
        return self._source.watch(self._topic)


log = structlog.get_logger(__name__)

READ_BYTES = 1 << 20
"""Most bytes of one read; less under a small budget, so that several reads fit in."""
PUSH_PATIENCE_S = 1.0
"""How long a reader waits for a pushing broker to deliver confirmed entries before it reads them itself."""
REFRESH_S = 2.0
"""Pause between two refreshes of the source's end while no entries can be taken."""
SETTLE_S = 2.5
"""How long a request waits for entries that are stored and not confirmed yet: the source queries a topic's broker for
them when its writer has been silent for a second, unless the settings make that longer."""
SETTLE_PAUSE_S = 0.1
HELD_BACK_S = 60.0
"""Longest pause between checks whether held-back entries are due: age decides, and the wall clock may jump."""


class SourceSnapshot(NamedTuple):
    """A topic's source at one refresh: its ledgers as listed, and the end of the open one."""

    infos: tuple[LedgerInfo, ...]
    edge: Confirmed | None


class EntriesMissing(OffloaderError):
    """Entries in the middle of a ledger are missing: the topic stops before them with an error."""


class Gate(Protocol):
    """Decides whether entries may be taken now."""

    async def may_take(self, meanwhile: Callable[[], Awaitable[None]] | None = None) -> None:
        """Return when entries may be taken; until then `meanwhile` is called at intervals."""
        ...


class TailedTopic(Protocol):
    """The topic that is tailed. `pushers` is the number of open pushes, which may bring the next entries."""

    topic: TopicName
    buffer: TailingBuffer
    account: Account
    lag: LagTracker
    failure_tracker: FailureTracker
    pushers: int

    @property
    def oldest(self) -> OldestEntry | None:
        """The age of its oldest entry, if that is used."""
        ...

    @property
    def taken(self) -> Position:
        """Newest entry that is committed or in the open segment; the entries behind it are needed."""
        ...

    @property
    def view(self) -> TopicView:
        """The topic's present state."""
        ...

    @property
    def outage(self) -> Gate:
        """The gate that may stop reading."""
        ...

    def refreshed(self) -> None:
        """Take note that the source was refreshed just now."""
        ...

    async def record_loss(self, loss: Loss) -> None:
        """Record a range that the source deleted before it was offloaded."""
        ...


class Tailer:
    """Reads one topic from its ledger source."""

    def __init__(
        self,
        source: SourceReader,
        topic: TailedTopic,
        chain: LedgerChain,
        pool: BufferPool,
        *,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self.topic = topic.topic
        self._source = source
        self._tailed = topic
        self._buffer = topic.buffer
        self._pool = pool
        self._account = topic.account
        self._lag = topic.lag
        self._failure_tracker = topic.failure_tracker
        self._clock = clock
        self._metrics = metrics
        self._read_bytes = min(READ_BYTES, pool.limit_bytes // 8)
        self._wake = Signal()
        self._dirty = False
        self._waiting_at: tuple[Position, float] | None = None
        self._held_back: Run | Loss | None = None
        self.chain = chain
        self.edge: Confirmed | None = None
        """End of the newest ledger; None while there is no ledger."""
        self.refreshed_s: float | None = None
        """When the end of the newest ledger was last read with success (monotonic)."""
        self.snapshot: SourceSnapshot | None = None
        """The source then; None when it did not answer in full."""
        self._rests = False

    @property
    def resting(self) -> bool:
        """Whether all known changes of the source are dealt with, and no request is open."""
        return self._rests and not self._dirty and self.snapshot is not None

    def nudge(self) -> None:
        """Refresh the source: the segment may need entries that only the source has."""
        self._dirty = True
        self._wake.notify()

    async def woken(self, at_most_s: float) -> None:
        """Return when the source may have changed, or after a while."""
        await self._wake.wait_at_most(self._clock, at_most_s)

    async def run(self) -> None:
        """Keep the buffer filled until cancelled."""
        async with Group() as group:
            group.create_task(self._watch(), name=f"watch {self.topic}")
            backoff = Backoff(self._clock)
            while True:
                await self._tailed.outage.may_take(self._refresh_meanwhile)
                self._dirty = False
                try:
                    await self._catch_up()
                except Transient as error:
                    self._failure_tracker.record(error, "source")
                    await backoff.wait(error)
                    continue
                backoff.reset()
                self._failure_tracker.clear("source")
                if self._dirty:
                    continue
                if self._held_back is not None:
                    due_s = due_in_s(self._tailed.view, self._held_back)
                    await self._wake.wait_at_most(self._clock, min(due_s or HELD_BACK_S, HELD_BACK_S))
                elif self._waiting_at is None:
                    self._rests = True
                    await self._wake.wait()
                    self._rests = False
                else:
                    await self._wake.wait_at_most(self._clock, PUSH_PATIENCE_S)

    async def _watch(self) -> None:
        async with aclosing(self._source.watch()) as changes:
            async for _ in changes:
                self.nudge()

    async def refresh(self) -> Position | None:
        """Refresh the source's ledgers; return the newest confirmed position, None when there is no entry."""
        failure = await self._refresh()
        if failure is not None:
            raise failure
        return self._newest()

    async def settled(self) -> None:
        """Refresh the source until it hides no entries, as it does after a writer fell silent; SETTLE_S at most.

        Raises Transient.
        """
        until_s = self._clock.monotonic() + SETTLE_S
        while True:
            await self.refresh()
            if self.edge is None or not self.edge.hidden or self._clock.monotonic() >= until_s:
                return
            await self._clock.sleep(SETTLE_PAUSE_S)

    async def _refresh(self) -> Transient | None:
        """Refresh the list of ledgers; return why the end of an open one is not known now, if it is not."""
        failure: Transient | None = None
        snapshot: SourceSnapshot | None = None
        infos: list[LedgerInfo] = []
        try:
            infos = list(await self._source.ledgers())
            snapshot = SourceSnapshot(tuple(infos), None)
            if infos and not infos[-1].closed:
                try:
                    self.edge = await self._source.confirmed(infos[-1].ledger_id)
                    snapshot = snapshot._replace(edge=self.edge)
                    infos[-1] = replace(infos[-1], entries=self.edge.last_entry_id + 1, closed=self.edge.closed)
                except Transient as error:
                    failure = error
                    infos[-1] = self._as_known(infos[-1])
            else:
                self.edge = Confirmed(infos[-1].entries - 1, closed=True) if infos else None
            infos = await self._source.with_copies(infos)
        except NotFound:
            if snapshot is None:
                self.chain.deleted()
            else:  # a ledger of this list vanished: what it held by then is not known
                self.chain.update(list(map(self._as_known, infos)))
                self.chain.doubt()
            infos, self.edge, snapshot = [], None, SourceSnapshot((), None)
        except OffloaderError:
            self.snapshot = None
            self.chain.doubt()
            raise
        self.snapshot = snapshot if failure is None else None
        if failure is None:
            self.refreshed_s = self._clock.monotonic()
        self.chain.update(infos)
        if failure is not None or (self.edge is not None and self.edge.hidden):
            self.chain.doubt()
        self._tailed.refreshed()
        newest = self._newest()
        if failure is None:
            self._lag.watch(newest)
        if newest is not None:
            self._lag.saw(newest, self._clock.monotonic())
        return failure

    def _as_known(self, listed: LedgerInfo) -> LedgerInfo:
        """Return a listed ledger with the entries that are known of it already, if these are more."""
        known = self.chain.ledgers.get(listed.ledger_id, listed)
        return replace(listed, entries=max(listed.entries, known.entries))

    async def _refresh_meanwhile(self) -> None:
        """Refresh the source while no entries can be taken: above all then the lag has to be known."""
        if self.refreshed_s is None or self._clock.monotonic() - self.refreshed_s >= REFRESH_S:
            with suppress(Transient):
                await self._refresh()
            await self._date_oldest()

    async def _date_oldest(self) -> None:
        """Read the time of the oldest entry that is not offloaded, if no entry in memory has it."""
        oldest = self._tailed.oldest
        position = oldest.undated if oldest is not None else None
        if oldest is None or position is None:
            return
        try:
            async with aclosing(self._source.read(*position, position.entry_id, batch_bytes=1)) as batches:
                async for batch in batches:
                    oldest.date(position, batch.payloads[0])
        except OffloaderError as error:
            log.debug("topic.age_unknown", topic=str(self.topic), position=str(position), error=str(error))

    def _newest(self) -> Position | None:
        """Return the newest entry that may be read."""
        with_entries = (info for info in reversed(self.chain.ledgers.values()) if info.entries)
        return next((Position(info.ledger_id, info.entries - 1) for info in with_entries), None)

    async def _catch_up(self) -> None:
        failure = await self._refresh()
        await self._date_oldest()
        self._held_back = None
        while True:
            gap = self._buffer.gap(self._tailed.taken)
            if gap.before is None and self._leave_to_pusher(gap.after):
                break
            step = self.chain.next_after(gap.after)
            if step is None:
                self._waiting_at = None
                break
            if not wants(self._tailed.view, step):
                self._held_back = step
                break
            if isinstance(step, Loss):
                await self._report(step, gap)
            elif gap.before == step.first:
                self._buffer.connect(gap)
            elif gap.before is not None and gap.before < step.first:
                await self._came_too_late(gap, gap.before)
            elif not await self._fill(step, gap):
                failure = await self._refresh()
                if step.ledger_id in self.chain.ledgers:
                    raise Transient(f"ledger {step.ledger_id} of {self.topic} is listed and cannot be found")
        if failure is not None:
            raise failure

    async def _report(self, loss: Loss, gap: Missing) -> None:
        """Record a loss and continue behind it; entries pushed behind it may be the first that exist."""
        if gap.before is not None and gap.before < loss.before:
            if gap.before.entry_id:
                self._metrics.source_gaps.inc()
                raise EntriesMissing(
                    f"entries after {gap.after} and before {gap.before} of {self.topic} are not at the source any more",
                    hint="the broker pushed what follows them, and the ledger was deleted while it was written",
                )
            loss = loss._replace(before=gap.before)
        await self._tailed.record_loss(loss)
        if gap.before == loss.before:
            self._buffer.connect(gap)

    async def _came_too_late(self, gap: Missing, pushed: Position) -> None:
        """Deal with entries pushed before the source continues, where a loss was already recorded.

        A whole ledger is stored and makes the loss smaller. The rest of one is added to the loss, since no segment can
        have a gap within a ledger: it would block all later entries for ever.
        """
        if pushed.entry_id == 0:
            await self._report(Loss(gap.after, pushed, 0), gap)
            return
        dropped = self._buffer.forget(gap)
        entries = sum(len(batch.payloads) for batch in dropped)
        if not self.chain.certainly_lost(gap.after):
            self._metrics.source_lost_entries.inc(entries)
        log.error(
            "topic.pushed_entries_dropped",
            topic=str(self.topic),
            range=f"{pushed}..{dropped[-1].last}",
            entries=entries,
            after=str(gap.after),
            hint="the source deleted what was between before it was offloaded, see topic.entries_possibly_lost",
        )

    def _leave_to_pusher(self, edge: Position) -> bool:
        """Return whether a pushing broker still has time to deliver the entries behind `edge`."""
        now = self._clock.monotonic()
        if not self._tailed.pushers:
            self._waiting_at = None
            return False
        if self._waiting_at is None or self._waiting_at[0] != edge:
            self._waiting_at = (edge, now)
        return now - self._waiting_at[1] < PUSH_PATIENCE_S

    async def _fill(self, run: Run, gap: Missing) -> bool:
        """Read a run into the buffer up to the gap's end; return False if its ledger was deleted meanwhile.

        It stops early when the buffer's need has changed.
        """
        last = run.last_entry_id
        if gap.before is not None:
            self._metrics.source_fallback_reads.inc()
            last = min(last, gap.before.entry_id - 1) if gap.before.ledger_id == run.ledger_id else last
        need, follows = self._buffer.need, gap.after
        entries = self._source.read(run.ledger_id, run.first_entry_id, last, batch_bytes=self._read_bytes)
        try:
            async with aclosing(entries) as batches:
                async for batch in batches:
                    await self._tailed.outage.may_take(self._refresh_meanwhile)
                    await self._account.may_write(self._refresh_meanwhile)
                    while self._buffer.need == need and not self._buffer.fill(batch, follows):
                        self._metrics.buffer_rejected_entries.labels(reason="full").inc(len(batch.payloads))
                        room = self._pool.freed.wait(), self._buffer.demand.wait()
                        await race(*room, self._clock.sleep(REFRESH_S))
                        await self._refresh_meanwhile()
                    if self._buffer.need != need:
                        return True
                    self._failure_tracker.clear("source")
                    self._metrics.source_entries.inc(len(batch.payloads))
                    self._metrics.source_bytes.inc(batch.payload_bytes())
                    self._account.wrote(batch.payload_bytes())
                    if gap.before is not None:
                        self._metrics.source_fallback_bytes.inc(batch.payload_bytes())
                    follows = batch.last
        except NotFound as error:
            log.warning("source.ledger_vanished", topic=str(self.topic), ledger_id=run.ledger_id, error=str(error))
            return False
        return True
