"""One read: a cursor that moves through the topic, tier by tier.

The buffer comes first, at every step. Else PIP-73's priority decides between the bucket and the ledger source, and when
that tier fails (missing, corrupt, not reachable), the read falls back to the other one. The view of the topic is
refreshed only when it has no next step, so that a long read costs no metadata. A read that follows its topic waits for
changes: one watcher for each followed topic is shared by its followers.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import InitVar, dataclass, field, replace
from functools import partial
from typing import Protocol, TypedDict

import structlog

from offloaderd.core.aio import Tasks
from offloaderd.core.clock import Clock
from offloaderd.core.entries import Entries, FramedEntries
from offloaderd.core.errors import (
    BucketMissing,
    CorruptData,
    Denied,
    EntriesDeleted,
    EntriesLost,
    EntriesMissing,
    NotFound,
    OffloaderError,
    Transient,
)
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import ENTRY_ID_MAX, EntryBatch, Position, TopicName
from offloaderd.core.read_options import ReadPriority, Tier
from offloaderd.core.retry import RetryPolicy, doubled
from offloaderd.ledgers.port import LedgerSource
from offloaderd.read import plan
from offloaderd.read.cache import ReadAhead
from offloaderd.read.plan import Hop, ReadEnd, Run, Step, Stop, TopicView, Why
from offloaderd.read.segments import BlockWindow, FetchAhead, SegmentReader

TICK_S = 1.0
"""Interval of signals for changes without a notification (another daemon's commit)."""

STEPS_AHEAD = 8
"""Steps of a plan that are followed to find what the bucket gives next: the ends of ledgers are such steps."""

log = structlog.get_logger(__name__)


class HotTier(Protocol):
    """The tailing buffers of the topics that this daemon owns. It answers at once, and None if unsure."""

    def read(self, topic: TopicName, first: Position, last: Position | None, max_bytes: int) -> EntryBatch | None:
        """Return entries of one ledger from `first` on (at least one), at most to `last`; None without `first`."""
        ...

    def range(self, topic: TopicName) -> tuple[Position, Position] | None:
        """Return the oldest and newest position held; there may be gaps between."""
        ...

    def next_after(self, topic: TopicName, position: Position) -> Position | None:
        """Return the position held that directly follows `position`, in its ledger or the next; None if unknown."""
        ...

    def changed(self, topic: TopicName) -> Awaitable[object]:
        """Return an awaitable that ends when the buffer may hold more; never, for another daemon's topic."""
        ...


class NoBuffers:
    """The hot tier of a daemon that owns no topic."""

    def read(self, topic: TopicName, first: Position, last: Position | None, max_bytes: int) -> EntryBatch | None:
        """Return None: nothing is held."""
        return None

    def range(self, topic: TopicName) -> tuple[Position, Position] | None:
        """Return None: nothing is held."""
        return None

    def next_after(self, topic: TopicName, position: Position) -> Position | None:
        """Return None: nothing is held."""
        return None

    def changed(self, topic: TopicName) -> Awaitable[object]:
        """Return an awaitable that never ends."""
        return asyncio.Event().wait()


class ChangeSignal:
    """Counts possible changes of one topic."""

    def __init__(self) -> None:
        self.count = 0
        self.followers = 0
        self.tasks: list[asyncio.Task[None]] = []
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Count a change and wake all followers."""
        self.count += 1
        event, self._event = self._event, asyncio.Event()
        event.set()

    async def after(self, seen: int) -> int:
        """Return the count once it is greater than `seen`, a count from before the last view."""
        while self.count <= seen:
            await self._event.wait()
        return self.count


@dataclass(slots=True, eq=False, kw_only=True)
class ChangeSignals:
    """The signals of all followed topics."""

    hot: HotTier
    source: LedgerSource | None
    clock: Clock
    loader: Tasks
    _topics: dict[TopicName, ChangeSignal] = field(default_factory=dict)

    @contextmanager
    def following(self, topic: TopicName) -> Iterator[ChangeSignal]:
        """Give the topic's signal; the watch ends with the last follower. Raises Closed."""
        change_signal = self._topics.get(topic)
        if change_signal is None:
            change_signal = ChangeSignal()
            self._watch(topic, change_signal)
            self._topics[topic] = change_signal
        change_signal.followers += 1
        try:
            yield change_signal
        finally:
            change_signal.followers -= 1
            if not change_signal.followers:
                del self._topics[topic]
                for task in change_signal.tasks:
                    task.cancel()

    def _watch(self, topic: TopicName, change_signal: ChangeSignal) -> None:
        def start(work: Coroutine[None, None, None], what: str) -> None:
            change_signal.tasks.append(self.loader.start(work, name=f"follow {topic}: {what}"))

        start(self._after_each(lambda: self.clock.sleep(TICK_S), change_signal), "tick")
        start(self._after_each(lambda: self.hot.changed(topic), change_signal), "buffer")
        if self.source is not None:
            start(self._watch_source(self.source, topic, change_signal), "source")

    async def _after_each(self, change: Callable[[], Awaitable[object]], change_signal: ChangeSignal) -> None:
        while True:
            await change()
            change_signal.notify()

    async def _watch_source(self, source: LedgerSource, topic: TopicName, change_signal: ChangeSignal) -> None:
        while True:
            try:
                async with aclosing(source.watch(topic)) as changes:
                    async for _ in changes:
                        change_signal.notify()
            except OffloaderError as error:
                log.warning("source.watch_failed", topic=str(topic), error=str(error))
            await self.clock.sleep(TICK_S)


FALL_BACK_ON = (NotFound, CorruptData, Transient, Denied)
POLICY_S = 10.0
"""A read refreshes the topic's read priority at this interval."""
ENDS_MAX = 16
"""Manifests that planning reads for the ends of ledgers, one after the other, before it answers."""
URGENCY = (Transient, CorruptData, Denied)
"""Kinds of errors when every tier fails, the one to raise first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadContext:
    """The context of one read: the tiers, a view of them all (`view`, up to a position), and the priority.

    `source` is None for a daemon that only sees what was pushed and offloaded. `view` raises Transient, `priority`
    TopicNotFound as well.
    """

    hot: HotTier
    source: LedgerSource | None
    segments: SegmentReader
    retry: RetryPolicy
    clock: Clock
    metrics: Metrics
    view: Callable[[TopicName, Position | None], Awaitable[TopicView]]
    priority: Callable[[TopicName], Awaitable[ReadPriority]]


class Wanted(TypedDict, total=False):
    """A range to read of a topic.

    `first` None is the oldest entry; `last` None the newest at the time of the call, or none when following. `priority`
    None is the topic's. `entries_max` 0 is no limit. `onward`: another read will go on behind `last`.
    """

    first: Position | None
    last: Position | None
    follow: bool
    priority: ReadPriority | None
    entries_max: int
    onward: bool


@dataclass(slots=True, eq=False)
class Stream:
    """The state of one read. `change_signal` is None unless the read follows; `framed` as for `TopicReader.read`.

    It reads at most `entries_max` from a tier; entries of the buffer, which cost nothing, may be more.
    """

    context: ReadContext
    topic: TopicName
    change_signal: ChangeSignal | None
    batch_bytes: int
    entries_max: InitVar[int]
    framed: bool
    _left: int = field(init=False)
    _priority: ReadPriority = ReadPriority.TIERED_STORAGE_FIRST
    _policy_s: float | None = None  # the last refresh of the policy; None: the request sets the priority
    _view: TopicView = field(default_factory=TopicView)
    _cursor: Position | None = None
    _behind: Position | None = None  # where the cursor was before it went to another ledger, and read nothing there yet
    _gone: int = -1  # the newest ledger that the cursor went to and came back from
    _ends: int = 0  # manifests read for the ends of ledgers
    _last: Position | None = None
    _bounded: bool = False  # the request sets the end
    _onward: bool = False  # another read goes on behind the end
    _ahead: FetchAhead = field(init=False)
    _failed: dict[object, Position] = field(default_factory=dict)
    _reasons: dict[object, Why] = field(default_factory=dict)
    _failure_tracker: list[tuple[Tier, OffloaderError]] = field(default_factory=list)
    _missing: EntriesMissing | None = None
    _source_tries: int = 0
    _pace: ReadAhead = field(default_factory=ReadAhead)

    def __post_init__(self, entries_max: int) -> None:
        self._left = entries_max or ENTRY_ID_MAX
        self._ahead = FetchAhead(self.context.segments.loader)

    async def begin(self, wanted: Wanted) -> None:
        """Get the view and check the range. Raises what `TopicReader.read` names for that."""
        first, last, priority = wanted.get("first"), wanted.get("last"), wanted.get("priority")
        self._view = await self.context.view(self.topic, last)
        if priority is None or self._view.is_empty():
            configured = await self.context.priority(self.topic)
            if priority is None:
                self._policy_s = self.context.clock.monotonic()
            priority = priority or configured
        self._priority = priority
        follow, self._bounded = self.change_signal is not None, last is not None
        self._onward = wanted.get("onward", False)
        self._cursor, self._last = plan.checked_range(self._view, first, last, follow=follow)

    async def batches(self) -> AsyncGenerator[tuple[Entries, Tier, Why], None]:
        """Yield the entries of the range, with their tier and the reason for it."""
        try:
            while True:
                seen = self.change_signal.count if self.change_signal is not None else 0
                if self._cursor is None and not await self._find_start():
                    if self.change_signal is None:
                        return
                    await self.change_signal.after(seen)
                    continue
                step = await self._next()
                if isinstance(step, EntryBatch):
                    self._advance(step)
                    self.context.metrics.read_requests.labels(source=Tier.BUFFER, outcome="ok").inc()
                    yield step, Tier.BUFFER, Why.CHOSEN
                elif isinstance(step, Run):
                    async with aclosing(self._run(step)) as run:
                        async for batch in run:
                            for piece in split(batch, self.batch_bytes):
                                yield piece, step.tier, self._why(step)
                elif step is Stop.DONE:
                    return
                elif self.change_signal is not None:
                    await self.change_signal.after(seen)
                else:
                    raise Transient(
                        f"entry {self._cursor} of {self.topic} is not readable yet",
                        hint="try again, or follow the topic",
                    )
        finally:
            done = self._last is not None and self._cursor is not None and self._cursor > self._last
            if not (self._onward and done):
                await self._ahead.end()

    async def planned(self, runs_max: int) -> tuple[list[Run], bool]:
        """Return the next runs, unread, at most `runs_max`, and whether the range ends with them.

        They end with a run of the bucket, and where ENDS_MAX manifests were read for the ends of ledgers. The tables of
        what another read goes on with are fetched. Raises what `batches` would raise at the first entry.
        """
        runs: list[Run] = []
        complete = False
        while not complete and len(runs) < runs_max and self._cursor is not None and self._ends < ENDS_MAX:
            try:
                step = await self._next()
            except OffloaderError:
                if runs:
                    break  # the next plan begins there, and raises it
                raise
            if isinstance(step, EntryBatch):
                if not self._view.segments or self._view.segments[-1].end <= step.last:
                    break
                step = self._limited(Run(Tier.BUFFER, step.ledger_id, step.first_entry_id, step.last_entry_id))
            if isinstance(step, Run):
                runs.append(step)
                self._go_behind(Position(step.ledger_id, step.last_entry_id))
                self._left -= step.last_entry_id - step.first_entry_id + 1
                complete = not self._left or (self._last is not None and self._cursor > self._last)
            elif step is Stop.DONE:
                complete = True
            else:
                break
        while runs and runs[-1].segment is None:
            runs.pop()
            complete = False
        if runs and complete and self._onward:
            end = Position(runs[-1].ledger_id, runs[-1].last_entry_id)
            self._ahead.begin(partial(self._fetch_following, end, ENTRY_ID_MAX), None)
        return runs, complete

    async def _next(self) -> EntryBatch | Run | Stop:
        """Return the next entries of the buffer, else the next run or the end, behind the ends of ledgers."""
        while True:
            if (held := self._hot_batch()) is not None:
                return held
            step = await self._step()
            if isinstance(step, Hop):
                self._behind = self._behind or self._cursor
                self._cursor = step.to
            elif isinstance(step, ReadEnd):
                self._ends += 1
                await self._ask_end(step)
            else:
                return step

    async def _find_start(self) -> bool:
        """Set the cursor of a topic without entries to its oldest one; return whether there is one."""
        if self.change_signal is not None:
            await self._refresh()
        if self._view.refused is not None:
            raise self._view.refused
        self._cursor = self._view.oldest()
        return self._cursor is not None

    async def _refresh(self) -> None:
        self._view = replace(await self.context.view(self.topic, self._last), ends=self._view.ends)

    def _hot_batch(self) -> EntryBatch | None:
        if self._cursor is None or (self._last is not None and self._cursor > self._last):
            return None
        return self.context.hot.read(self.topic, self._cursor, self._last, self.batch_bytes)

    def _go_behind(self, last: Position) -> None:
        self._cursor, self._behind = last.next(), None

    def _came_back(self) -> bool:
        """Go back from a ledger that is gone to behind the last entry, once for each; return whether it did.

        Brokers drop an empty ledger when they start again, and what follows then is another one.
        """
        back, cursor = self._behind, self._cursor
        if back is None or cursor is None or self._failure_tracker or cursor.ledger_id <= self._gone:
            return False
        self._gone, self._cursor, self._behind = cursor.ledger_id, back, None
        return True

    def _advance(self, batch: Entries) -> None:
        self._go_behind(batch.last)
        for tier, _ in self._failure_tracker:
            self.context.metrics.read_requests.labels(source=tier, outcome="fallback").inc()
        self._failure_tracker.clear()
        self._source_tries = 0
        self._left -= batch.count

    async def _step(self) -> Step:
        """Return the next step, with a refreshed view before waiting or giving up. Raises the reason to give up."""
        await self._refresh_policy()
        step = self._decide()
        if step is None or step is Stop.WAIT:
            await self._refresh()
            step = self._decide()
        if step is None and self._came_back():
            step = self._decide()
        if step is None:
            for tier, _ in self._failure_tracker:
                self.context.metrics.read_requests.labels(source=tier, outcome="error").inc()
            raise self._worst()
        if self._view.refused is not None and (step is Stop.WAIT or (step is Stop.DONE and not self._bounded)):
            raise self._view.refused
        return self._limited(step) if isinstance(step, Run) else step

    def _limited(self, run: Run) -> Run:
        return replace(run, last_entry_id=min(run.last_entry_id, run.first_entry_id + self._left - 1))

    async def _refresh_policy(self) -> None:
        """Refresh the priority of a long read; one that cannot be read stays."""
        now_s = self.context.clock.monotonic()
        if self._policy_s is None or now_s - self._policy_s < POLICY_S:
            return
        self._policy_s = now_s
        try:
            self._priority = await self.context.priority(self.topic)
        except FALL_BACK_ON as error:
            log.warning("read.policy_unknown", topic=str(self.topic), error=str(error))

    def _decide(self) -> Step | None:
        """Return the next step; None when an entry cannot be read."""
        if self._cursor is None:
            return Stop.WAIT
        self._missing = None
        step: Step | None = None
        try:
            step = plan.next_step(self._view, self._cursor, self._last, priority=self._priority, failed=self._failed)
        except EntriesMissing as error:
            self._missing = error
        if (step is None and not isinstance(self._missing, EntriesLost | EntriesDeleted)) or step is Stop.WAIT:
            following = self._hot_hop(self._cursor)
            if following is not None:
                return Hop(following)
        return step

    def _hot_hop(self, cursor: Position) -> Position | None:
        """Return the buffer's next position in a later ledger, if it knows that nothing is between."""
        if not cursor.entry_id:
            return None
        following = self.context.hot.next_after(self.topic, Position(cursor.ledger_id, cursor.entry_id - 1))
        return following if following is not None and following.ledger_id > cursor.ledger_id else None

    def _worst(self) -> OffloaderError:
        """Return the most useful error for an entry that cannot be read: a tier's, if one was read."""
        if isinstance(self._missing, EntriesDeleted):
            return self._missing
        if self._view.refused is not None and not self._failure_tracker and not isinstance(self._missing, EntriesLost):
            return self._view.refused
        for kind in URGENCY:
            for _, error in self._failure_tracker:
                if isinstance(error, kind):
                    return error
        missing = self._missing or EntriesMissing(f"no entry {self._cursor}")
        error = self._failure_tracker[0][1] if self._failure_tracker else missing
        if isinstance(error, EntriesMissing | BucketMissing):
            return error
        return EntriesMissing(error.message, hint=error.hint)  # a missing object may be damage

    async def _ask_end(self, step: ReadEnd) -> None:
        """Read the end of the ledger from the segment's manifest."""
        end: int | None = None
        try:
            async with self.context.segments.table(self.topic, step.segment) as table:
                part = table.part(step.ledger_id)
                if part is not None and part.closed:
                    end = part.ledger_entries - 1
        except FALL_BACK_ON as error:
            log.warning("read.end_unknown", topic=str(self.topic), ledger_id=step.ledger_id, error=str(error))
        ends = {**self._view.ends, (step.segment.segment_id, step.ledger_id): end}
        self._view = replace(self._view, ends=ends)

    async def _run(self, run: Run) -> AsyncGenerator[Entries, None]:
        """Yield the entries of a run; a failure is noted, and the next step chooses another tier."""
        requests = self.context.metrics.read_requests
        outcome = "cancelled"
        try:
            async with aclosing(self._open(run)) as batches:
                async for batch in batches:
                    self._expect(batch, run)
                    self._advance(batch)
                    yield batch
            if self._cursor is None or self._cursor.entry_id <= run.last_entry_id:
                raise EntriesMissing(f"the {run.tier} tier ended before {run.ledger_id}:{run.last_entry_id}")
            outcome = "ok"
        except FALL_BACK_ON as error:
            outcome = ""
            await self._failed_at(run, error)
        finally:
            if outcome:
                requests.labels(source=run.tier, outcome=outcome).inc()

    def _open(self, run: Run) -> AsyncGenerator[EntryBatch, None] | AsyncGenerator[FramedEntries, None]:
        if run.segment is not None:
            first = Position(run.ledger_id, run.first_entry_id)
            last = Position(run.ledger_id, run.last_entry_id)
            segments, more = self.context.segments, self._left - (run.last_entry_id - run.first_entry_id + 1)
            then = partial(self._ahead.begin, partial(self._fetch_following, last, more)) if more else None
            if self.framed:
                return segments.read_framed(
                    self.topic, run.segment, first, last, self._pace, bytes_max=self.batch_bytes, then=then
                )
            return segments.read(self.topic, run.segment, first, last, self._pace, then=then)
        source = self.context.source
        if source is None:
            raise EntriesMissing("there is no ledger source")
        return source.read(
            self.topic, run.ledger_id, run.first_entry_id, run.last_entry_id, batch_bytes=self.batch_bytes
        )

    async def _fetch_following(self, end: Position, entries_max: int, before: BlockWindow | None) -> None:
        """Fetch the begin of what the bucket gives behind a run, as far as that is known. Raises as reading it does."""
        at, last = end.next(), None if self._onward else self._last
        for _ in range(STEPS_AHEAD):
            step = plan.next_step(self._view, at, last, priority=self._priority, failed=self._failed)
            if isinstance(step, Hop):
                at = step.to
            elif isinstance(step, ReadEnd):
                await self._ask_end(step)
            elif isinstance(step, Run) and step.segment is not None:
                wanted = min(step.last_entry_id, step.first_entry_id + entries_max - 1)
                first, to = Position(step.ledger_id, step.first_entry_id), Position(step.ledger_id, wanted)
                await self.context.segments.fetch_begin(self.topic, step.segment, first, to, before)
                return
            else:
                return

    def _expect(self, batch: Entries, run: Run) -> None:
        """Raise CorruptData for other entries than the next ones."""
        if batch.first != self._cursor or not batch.count or batch.last_entry_id > run.last_entry_id:
            raise CorruptData(
                key=f"ledger {run.ledger_id} ({run.tier})",
                offset=0,
                expected=f"entries {self._cursor} to {run.last_entry_id}",
                found=f"{batch.first} to {batch.last_entry_id}",
            )

    def _why(self, run: Run) -> Why:
        if run.instead_of is not None:
            return self._reasons[run.instead_of]
        if run.preferred:
            return Why.CHOSEN
        if run.tier is Tier.OBJECTS and self._view.source_away:
            return Why.UNAVAILABLE
        return Why.ONLY_HERE

    async def _failed_at(self, run: Run, error: OffloaderError) -> None:
        """Note a failed tier at the cursor; after a transient error of the source pause for another try."""
        context, cursor = self.context, self._cursor or Position(run.ledger_id, run.first_entry_id)
        if run.tier is Tier.SOURCE and isinstance(error, Transient):
            self._source_tries += 1
            retry = context.retry
            if self._source_tries < retry.tries_max:
                pause_s = doubled(retry.pause_s, retry.pause_max_s, self._source_tries)
                await context.clock.sleep(context.clock.jitter(pause_s))
                return
        if run.tier is Tier.SOURCE and isinstance(error, CorruptData):
            context.metrics.checksum_failures.labels(where="read").inc()
        self._failed[run.holder] = cursor
        self._reasons[run.holder] = reason_of(error)
        self._failure_tracker.append((run.tier, error))
        log.warning(
            "read.tier_failed", topic=str(self.topic), tier=run.tier.value, position=str(cursor), error=str(error)
        )


def reason_of(error: OffloaderError) -> Why:
    """Return the reason for a fall back after an error."""
    if isinstance(error, CorruptData):
        return Why.CORRUPT
    return Why.MISSING if isinstance(error, NotFound) else Why.UNAVAILABLE


def split(batch: Entries, batch_bytes: int) -> Iterator[Entries]:
    """Yield a batch in pieces of at most `batch_bytes` of payload, or one entry; framed ones are such pieces."""
    if isinstance(batch, FramedEntries):
        yield batch
        return
    lengths = list(map(len, batch.payloads))
    if len(lengths) <= 1 or sum(lengths) <= batch_bytes:
        yield batch
        return
    start, size = 0, 0
    for at, length in enumerate(lengths):
        if at > start and size + length > batch_bytes:
            yield EntryBatch(batch.ledger_id, batch.first_entry_id + start, batch.payloads[start:at])
            start, size = at, 0
        size += length
    yield EntryBatch(batch.ledger_id, batch.first_entry_id + start, batch.payloads[start:])
