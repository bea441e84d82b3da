"""The offloader: writes one topic's live segments under one claim, one after the other, until it is stopped.

A segment begins once the one before is committed, or given up: then its entries begin the next attempt. An earlier
owner's attempt is resumed at the end of its record.
"""

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from math import inf

from offloaderd.core.aio import Event, Group, Signal
from offloaderd.core.errors import Conflict, InvalidInput, Transient, first_of
from offloaderd.core.model import START, EntryBatch, LedgerInfo, Loss, OfferResult, OffloadMethod, Position, TopicName
from offloaderd.core.retry import Backoff
from offloaderd.history import plan as history
from offloaderd.history.adoption import Adoption
from offloaderd.metadata.records.attempt import Attempt
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.metadata.topic_map.unnamed import UnnamedPlaces
from offloaderd.segment.claim.attempt_log import AttemptLog
from offloaderd.segment.claim.refusals import TopicIdentity
from offloaderd.segment.claim.topic_record import TopicRecord
from offloaderd.segment.failures import FailureTracker, StoreReach
from offloaderd.segment.resume import LeftBehind
from offloaderd.segment.roll import LiveStop, RollPolicy, SegmentProgress, TopicView
from offloaderd.segment.source_check import SourceCheck
from offloaderd.segment.upload import SegmentFailed
from offloaderd.segment.writer import SegmentWriter
from offloaderd.topic.buffer import TailingBuffer
from offloaderd.topic.chooser import (
    Abandon,
    Adopt,
    Begin,
    Leave,
    NoteEnd,
    Requests,
    Resume,
    Wait,
    choose,
    frees_on_seal,
    reachable,
)
from offloaderd.topic.handle import OffloadHandle, SegmentResult, check_ledger
from offloaderd.topic.lag import LagTracker, OldestEntry
from offloaderd.topic.live_segment import LiveAttempts, LiveCommitter, LiveFacts, TailingFeed
from offloaderd.topic.mirror import MirrorProgress
from offloaderd.topic.outage import Outage, TopicContext
from offloaderd.topic.requests import ByHand
from offloaderd.topic.status import TopicStatus, describe
from offloaderd.topic.tailer import SourceReader, Tailer


class Rest:
    """Whether all duties of an active topic rest, and until when."""

    __slots__ = ("dues", "working")

    def __init__(self) -> None:
        self.working = 0
        """How many duties have something to do, or have not reported that they have nothing."""
        self.dues: list[float] = []
        """When each duty that rests continues (monotonic)."""

    @contextmanager
    def until(self, due_s: float = inf) -> Iterator[None]:
        """Return a context in which the duty that enters it has nothing to do before `due_s` (monotonic)."""
        self.working -= 1
        self.dues.append(due_s)
        try:
            yield
        finally:
            self.working += 1
            self.dues.remove(due_s)

    def begun(self, duty: asyncio.Task[None]) -> None:
        """Count a duty that begins; one that has ended has nothing to do any more."""
        self.working += 1
        duty.add_done_callback(self._ended)

    def _ended(self, _: object) -> None:
        self.working -= 1

    @property
    def due_s(self) -> float | None:
        """When the first duty continues (monotonic), None while one of them works."""
        return None if self.working else min(self.dues, default=inf)


class TopicOffloader:
    """The owner's side of one topic, from claim to release."""

    def __init__(
        self,
        context: TopicContext,
        log: AttemptLog,
        topic_map: TopicMap,
        policy: RollPolicy,
        left: LeftBehind,
        identity: TopicIdentity,
    ) -> None:
        """Begin at the end of the topic's map, with the attempt that an earlier owner left behind it."""
        self.identity, self.claim, self.head = identity, log.fence.claim, log.head
        self.damaged_ledgers: tuple[int, ...] = ()  # as the grants last found them
        self.topic: TopicName = self.claim.topic
        self.changed = Signal()
        self.policy_changed = Signal()
        self.grants_changed = Event()
        self.closed_ledgers: dict[int, LedgerInfo] = {}
        self.pushers = 0
        self.users = 0
        self.rest = Rest()
        self._context = context
        self._clock, self._metrics = context.upload_context.clock, context.upload_context.metrics
        self.failure_tracker = FailureTracker(self.topic, self._clock, self.changed.notify)
        self.lag = LagTracker()
        self.mirror, self.unnamed = MirrorProgress(context.places, self._clock), UnnamedPlaces(context.places.buckets)
        self.record = TopicRecord(log, topic_map, left.begin, clock=self._clock, metrics=self._metrics)
        self.source_check = SourceCheck(
            context.known_source, identity, self.record, lambda: self.taken, lambda: self.attempt, clock=self._clock
        )
        self.attempts = LiveAttempts(context, log, self.record, self.failure_tracker, identity, left)
        self.by_hand = ByHand(self, context)
        taken = topic_map.standing or START
        if left.attempt is not None and left.attempt.parts and left.attempt.upload_id and context.source is not None:
            taken = left.attempt.parts[-1].end
        self._last_result: SegmentResult | None = None
        self.account, again = context.accounts.of(self.topic), context.source is not None
        self.buffer = TailingBuffer(context.pool, resume=taken, rereadable=again, flow=self.account)
        self.feed = TailingFeed(self.buffer, self._clock, resume=taken)
        self.requests = Requests(self.feed.changed, policy)
        pushed = self._oldest_pushed if context.source is None else None
        self.oldest = OldestEntry(self.record, self.buffer, self.lag, pushed=pushed)
        self.outage = Outage(
            context,
            self.topic,
            buffer=self.buffer,
            requests=self.requests,
            failure_tracker=self.failure_tracker,
            changed=self.changed,
        )
        self.adoption = Adoption(context, self.record, self.failure_tracker, identity, lambda: self.feed.position)
        self.tailer: Tailer | None = None
        if context.source is not None:
            reader = SourceReader(context.source, self.topic, check=self.source_check, adoption=self.adoption)
            chain, clock, metrics = self.record.chain, self._clock, self._metrics
            self.tailer = Tailer(reader, self, chain, context.pool, clock=clock, metrics=metrics)
        self.feed.source = self.tailer
        context.pool.hold(self)
        if self.tailer is None:
            self.lag.watch(None)
        committer = LiveCommitter(self.record, log, self.failure_tracker, clock=self._clock, metrics=self._metrics)
        self.writer = SegmentWriter(context, log, committer, failure_tracker=self.failure_tracker, views=self.at)
        self._facts = LiveFacts(self.record, context.pasts, self.tailer, self.closed_ledgers, self.failure_tracker)
        self.handle = OffloadHandle(
            self.buffer,
            push_only=context.source is None,
            closed_ledgers=self.closed_ledgers,
            result=self._next_result,
            ended=self._ledger_ended,
            metrics=self._metrics,
        )

    @property
    def policy(self) -> RollPolicy:
        """The policy in force."""
        return self.requests.policy

    @property
    def stopping(self) -> bool:
        """Whether this owner is to leave the topic."""
        return self.requests.stopping

    @property
    def attempt(self) -> Attempt | None:
        """The open segment's record."""
        return self.progress.attempt if self.progress is not None else self.attempts.left

    @property
    def reach(self) -> StoreReach:
        """Whether the service of the open segment answers, else that of the next one."""
        attempt, (bucket, _) = self.attempt, self.policy.place or (self._context.places.home.bucket, "")
        return self._context.upload_context.service(bucket if attempt is None else attempt.bucket).reach

    @property
    def progress(self) -> SegmentProgress | None:
        """Progress of the open segment."""
        found = self.writer.progress
        return found if found is not None and found.open else None

    @property
    def map(self) -> TopicMap:
        """The committed segments, and what else is recorded of the topic."""
        return self.record.map

    async def record_loss(self, loss: Loss) -> None:
        """See TailedTopic."""
        await self.record.lost(loss)
        self.changed.notify()

    def refreshed(self) -> None:
        """See TailedTopic: wake the loop if there is something to record."""
        if self.record.end_is_unrecorded() or self.adoption.due() is not None:
            self.feed.changed.notify()

    @property
    def offloaded(self) -> Position | None:
        """Newest position that is durable in the bucket and committed."""
        return self.map.offloaded

    @property
    def taken(self) -> Position:
        """Newest entry that is committed or in the open segment; START when there is none."""
        return max(self.feed.position, (self.progress.end if self.progress is not None else None) or START)

    @property
    def moved(self) -> tuple[int, int]:
        """Entries and payload bytes taken into live segments since the claim."""
        return self.writer.moved

    @property
    def newest(self) -> Position | None:
        """Newest entry that is known to exist and to be readable."""
        pushed = self.buffer.last_offered if self.handle.push_only else None
        return max((one for one in (self.lag.newest, self.offloaded, pushed) if one is not None), default=None)

    def status(self) -> TopicStatus:
        """Return the topic's status."""
        return describe(self, now_s=self._clock.monotonic(), wall_ms=self._clock.wall_ms())

    def offer(self, batch: EntryBatch) -> OfferResult:
        """Offer pushed entries (see OffloadHandle); FULL if they do not stream: the source has them."""
        streams = self.policy.method is OffloadMethod.STREAMING and not history.waits(self.map, self.policy)
        if self.tailer is not None and (not streams or self.account.write_behind):
            self.tailer.nudge()
            return OfferResult.FULL
        result = self.handle.offer(batch)
        if result is OfferResult.ACCEPTED:
            self.account.wrote(batch.payload_bytes())
            self.lag.saw(batch.last, self._clock.monotonic())
        begins = batch.first_entry_id == 0 and result is OfferResult.ACCEPTED
        if self.tailer is not None and (begins or result is OfferResult.FULL):
            self.tailer.nudge()
        return result

    async def accept(self, batch: EntryBatch) -> OfferResult:
        """Offer a pushed batch; without a source wait for room and rate, with one return FULL: the source has it.

        Raises LedgerUnknown for entries that the source does not have, Transient when it does not answer.
        """
        await check_ledger(self.tailer, self.buffer, batch, self._clock)
        if self.tailer is None:
            await self.account.may_write()
        while (result := self.offer(batch)) is OfferResult.FULL and self.tailer is None:
            if (kept := await self.outage.overflow(batch)) is not None:
                if kept is OfferResult.ACCEPTED:
                    self.account.wrote(batch.payload_bytes())
                    self.lag.saw(batch.last, self._clock.monotonic())
                return kept
            await self.handle.room()
        return result

    def _oldest_pushed(self) -> Position | None:
        """Return the oldest pushed entry that is not offloaded."""
        return (self.progress.begin if self.progress is not None else None) or self.feed.first()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Return a context in which the topic is not suspended: a caller works with its offloader, however long."""
        self.users += 1
        try:
            yield
        finally:
            self.users -= 1

    def follow(self, policy: RollPolicy) -> None:
        """Take another policy."""
        self.requests.follow(policy)
        accepted, standing = self.buffer.last_offered, self.map.standing
        if policy.paused and self.handle.push_only and accepted and (standing is None or accepted > standing):
            self.requests.seal_to(accepted)
        self.notify()
        self.policy_changed.notify()

    def notify(self) -> None:
        """See OwnedTopic."""
        self.changed.notify()
        self.feed.changed.notify()
        if self.tailer is not None:
            self.tailer.nudge()

    def resting(self) -> AbstractContextManager[None]:
        """See OwnedTopic."""
        return self.rest.until()

    async def request_roll(self, to: Position | None = None) -> Position | None:
        """Request a commit of all confirmed entries, or of those up to a position.

        Returns the position to wait for: the last entry that the method can take, or the offloaded position. Raises
        InvalidInput for a position beyond the newest entry, Conflict for a paused topic or the method none.
        """
        if self.policy.paused:
            who = self.policy.paused.by
            first = "raise the quota" if who and who == self.account.over_stored else "offloadctl topics resume"
            raise Conflict(f"{self.topic} is paused{f' by {who}' if who else ''}", hint=f"{first}, then ask again")
        if self.policy.method is OffloadMethod.NONE:
            raise Conflict(f"the policy of {self.topic} has the method none", hint="set another method first")
        target = await self.tailer.refresh() if self.tailer is not None else self.buffer.last_offered
        if to is not None and (target is None or to > target):
            end = f"the newest entry is {target}" if target is not None else "it has no entries"
            raise InvalidInput(f"position {to} is beyond the end of {self.topic}", hint=end)
        target = reachable(self.view, to or target)
        if target is None or (self.map.standing is not None and target <= self.map.standing):
            return target if target is not None and self.map.awaits(target) else self.offloaded
        self.requests.seal_to(target)
        if self.tailer is not None:
            self.tailer.nudge()
        return target

    def stop(self) -> None:
        """Seal and commit the open segment, then return from `run`; the next owner reads the rest from the source.

        Without a source all accepted entries are committed.
        """
        self.buffer.refuse()
        self.requests.stop()

    def _ledger_ended(self, last: Position) -> None:
        """Seal the last entries of a pushed ledger at once: no more come."""
        if self.map.standing is None or last > self.map.standing:
            self.requests.seal_to(last)

    async def _next_result(self) -> SegmentResult:
        before = self._last_result
        while self._last_result is before or self._last_result is None:
            await self.changed.wait()
        return self._last_result

    async def run(self) -> None:
        """Offload until stopped. Raises Fenced when another daemon owns the topic, EntriesMissing and CorruptData,
        which stall it.
        """
        try:
            async with Group() as group:
                beside = [one for one in (self.tailer, self.outage.spill) if one is not None]
                feeders = [group.create_task(one.run(), name=f"feed {self.topic}") for one in beside]
                await self._offload()
                for feeder in feeders:
                    feeder.cancel()
        except BaseExceptionGroup as errors:
            raise first_of(errors) from None
        finally:
            self.buffer.close()
            self.changed.notify()

    async def _offload(self) -> None:
        backoff = Backoff(self._clock)
        if (left := await self.attempts.settle()) is not None:
            if (left.proven or left.alone_bytes is not None) and left.end is not None:
                self.feed.restart(left.end)
            self.notify()
        while not isinstance(choice := choose(self.view), Leave):
            if not isinstance(choice, Begin | Resume):
                await self._between(choice)
                continue
            try:
                if not await self._one_segment(choice):
                    return
                backoff.reset()
            except SegmentFailed as error:
                self._failed(error)
                await backoff.wait(Transient(str(error)))

    async def _between(self, choice: Adopt | Abandon | NoteEnd | Wait) -> None:
        """Carry out a choice while no segment is open. It contains no await before a wait: see Signal."""
        match choice:
            case Adopt(info):
                self.adopted(await self.adoption.adopt(info))
            case Abandon(attempt):
                await self.attempts.abandon(attempt)
            case NoteEnd():
                await self.record.note_end()
            case Wait(seconds, starving):
                if starving:
                    self.buffer.starve()
                await (self.feed.changed.wait() if seconds is None else self.feed.wait(seconds))

    async def _one_segment(self, choice: Begin | Resume) -> bool:
        """Write an attempt up to its commit; False if stopping leaves it to the next owner. Raises SegmentFailed."""
        if isinstance(choice, Resume):
            attempt = choice.attempt
        else:
            attempt = await self.attempts.assigned(choice, lambda: self.policy)
        work = self.attempts.work(attempt, self.feed.position, self.policy)
        written = await self.writer.run(work, self.feed, LiveStop(), self._facts)
        if written is None:
            return False
        done, now_s = written.described.range, self._clock.monotonic()
        exemplar = self._context.upload_context.traces.exemplar(attempt.segment_id)
        for sample in self.lag.durable(done.end):
            self._metrics.time_to_durable_seconds.observe(now_s - sample.seen_s, exemplar)
        self._last_result = SegmentResult(attempt.segment_id, done)
        self._committed(done.end)
        return True

    def _committed(self, end: Position) -> None:
        """Update what depends on the offloaded position, which is `end` now."""
        self.attempts.committed()
        self.requests.committed(end)
        self.feed.committed(end)
        self.changed.notify()

    def _failed(self, error: SegmentFailed) -> None:
        """Begin again after an attempt was given up."""
        self.attempts.failed(str(error))
        self.feed.restart(self.map.standing or START)
        self.notify()

    def at(self, cursor: Position) -> TopicView:
        """Return the topic's view for a writer that has taken all entries up to `cursor`."""
        seen = self.tailer is None or self.tailer.refreshed_s is not None
        first = self.feed.first(cursor)
        waits = first is not None or not self.outage.overflow_is_empty
        left, last = self.attempts.left, self.map.segments[-1:]
        return TopicView(
            self.requests.now(),
            policy=self.policy,
            chain=self.record.chain,
            adoptable=self.adoption.claimed,
            whole_ledgers=self._context.ledgers is not None,
            more_may_come=not seen or (self.newest is not None and self.newest > cursor),
            first=first,
            buffer_bytes=self.buffer.used_bytes,
            may_stop=self.stopping and not (self.handle.push_only and waits),
            cursor=cursor,
            attempt=self.attempt,
            settled=self.attempts.settled,
            left_is_lost=left is not None and self.feed.out_of_reach(left.begin),
            rereadable=self.feed.rereadable,
            history_waits=history.waits(self.map, self.policy) or history.begins_to_stream(self),
            offloaded=self.offloaded,
            whole_before=last[0].keys.ledger_id if last else None,
            end_is_unrecorded=self.record.end_is_unrecorded(),
            to_adopt=self.adoption.due(),
            wall_ms=self._clock.wall_ms(),
        )

    @property
    def view(self) -> TopicView:
        """The topic's present state."""
        return self.at(self.taken)

    @property
    def frees_on_seal(self) -> bool:
        """See MemoryHolder."""
        return frees_on_seal(self.view, self.progress)

    def adopted(self, end: Position | None) -> None:
        """Continue behind a broker's ledger that was adopted up to `end`; None: it was not."""
        if end is not None:
            self.lag.durable(end)
            self._committed(end)
        self.notify()
