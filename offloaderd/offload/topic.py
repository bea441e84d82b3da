"""One topic under one claim: takes entries from the buffer, one segment after the other, until told to stop.

The order of a segment (architecture section 6): attempt record, multipart upload, parts, seal, complete, index,
manifest, verify, commit. The next segment begins only after the last was committed; one that failed is given up first
and its entries begin the next attempt. One that an earlier owner left behind is gone on with where its record ends.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from offloaderd.errors import Transient, first_of
from offloaderd.metadata.records.attempt import Attempt, AttemptStatus
from offloaderd.model import OfferResult
from offloaderd.offload import recovery
from offloaderd.offload.budget import Backoff, until_answered
from offloaderd.offload.buffer import START, TailingBuffer
from offloaderd.offload.filling import LOOK_S, Filling
from offloaderd.offload.handle import OffloadHandle, SegmentResult
from offloaderd.offload.lag import LagTracker
from offloaderd.offload.open_segment import OpenSegment
from offloaderd.offload.outage import Outage, OutageRules
from offloaderd.offload.record import TopicRecord
from offloaderd.offload.signal import Signal
from offloaderd.offload.status import TopicStatus, describe
from offloaderd.offload.tailer import Tailer
from offloaderd.offload.troubles import Troubles
from offloaderd.offload.uploader import SegmentFailed

if TYPE_CHECKING:
    from offloaderd.ledgers.port import LedgerSource
    from offloaderd.metadata.catalog import TopicMap
    from offloaderd.metadata.port import MetadataStore
    from offloaderd.model import EntryBatch, LedgerInfo, Loss, Position, TopicName
    from offloaderd.offload.commit import AttemptLog
    from offloaderd.offload.pool import BufferPool
    from offloaderd.offload.recovery import LeftBehind
    from offloaderd.offload.roll import RollPolicy
    from offloaderd.offload.segment import SegmentBuilder, SegmentLayout
    from offloaderd.offload.uploader import Uplink

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """What all topics of a daemon work with."""

    metadata: MetadataStore
    source: LedgerSource | None
    uplink: Uplink
    pool: BufferPool
    layout: SegmentLayout
    cluster: str
    driver: dict[str, str]
    outage: OutageRules = field(default_factory=OutageRules)


class TopicOffloader:
    """The owner's side of one topic, from claim to release."""

    def __init__(
        self, shop: Workshop, log: AttemptLog, topic_map: TopicMap, policy: RollPolicy, left: LeftBehind
    ) -> None:
        """Take up a topic where its map ends, with what an earlier owner left behind it."""
        self.claim = log.fence.claim
        self.topic: TopicName = self.claim.topic
        self.policy = policy
        self.segment: OpenSegment | None = None
        self.changed = Signal()
        self.closed_ledgers: dict[int, LedgerInfo] = {}
        self.pushers = 0
        self._shop = shop
        self._clock = shop.uplink.clock
        self._metrics = shop.uplink.metrics
        self.troubles = Troubles(self.topic, self._clock, self.changed.notify)
        self.lag = LagTracker()
        self._log = log
        self.record = TopicRecord(log, topic_map, left.begin, clock=self._clock, metrics=self._metrics)
        self._left = left.attempt
        taken = topic_map.offloaded or START
        if self._left is not None and self._left.parts and shop.source is not None:
            taken = self._left.parts[-1].end
        self._filling = Filling(self, taken, clock=self._clock, metrics=self._metrics)
        self.stopping = False
        self._claimed_s: float | None = self._clock.monotonic()  # until there has been progress
        self._last_result: SegmentResult | None = None
        self._failures, self._last_failure = left.failures  # of the segment that begins at the present position
        self.buffer = TailingBuffer(
            shop.pool, resume=taken, rereadable=shop.source is not None, on_pressure=self._filling.press
        )
        self.outage = Outage(self, shop)
        self.tailer = self._make_tailer(shop.source) if shop.source is not None else None
        self.handle = OffloadHandle(
            self.buffer,
            push_only=shop.source is None,
            closed_ledgers=self.closed_ledgers,
            result=self._next_result,
            metrics=self._metrics,
        )

    @property
    def attempt(self) -> Attempt | None:
        """The open segment's record."""
        return self.segment.attempt if self.segment is not None else self._left

    @property
    def builder(self) -> SegmentBuilder | None:
        """What is in the open segment."""
        return self.segment.builder if self.segment is not None else None

    @property
    def map(self) -> TopicMap:
        """What is committed."""
        return self.record.map

    def _looked(self) -> None:
        """The source was seen: tell whoever waits if that gives something to record."""
        if self.record.end_is_news():
            self.buffer.changed.notify()

    async def _lost(self, loss: Loss) -> None:
        """The source deleted entries before they were offloaded."""
        await self.record.lost(loss)
        self.changed.notify()

    def _make_tailer(self, source: LedgerSource) -> Tailer:
        return Tailer(
            source,
            self.topic,
            self.buffer,
            self._shop.pool,
            self.record.chain,
            needed=lambda: self.taken,
            pushing=lambda: self.pushers > 0,
            may_take=self.outage.may_take,
            looked=self._looked,
            lost=self._lost,
            lag=self.lag,
            troubles=self.troubles,
            clock=self._clock,
            metrics=self._metrics,
        )

    @property
    def offloaded(self) -> Position | None:
        """Newest position that is durable in the bucket and committed."""
        return self.map.offloaded

    @property
    def taken(self) -> Position:
        """Newest entry that is in the open segment or committed; START when there is none."""
        return self._filling.taken

    @property
    def newest(self) -> Position | None:
        """Newest entry that is known to exist and be readable."""
        candidates = [self.lag.newest, self.offloaded, self.buffer.last_offered if self.handle.push_only else None]
        return max((one for one in candidates if one is not None), default=None)

    @property
    def open_segment_age_s(self) -> float:
        """Age of the open segment since its first entry, in seconds; 0 when there is none."""
        return self._clock.monotonic() - self.segment.opened_s if self.segment is not None else 0.0

    def status(self) -> TopicStatus:
        """Describe where the topic stands."""
        return describe(self, now_s=self._clock.monotonic())

    def offer(self, batch: EntryBatch) -> OfferResult:
        """Offer pushed entries (see OffloadHandle)."""
        result = self.handle.offer(batch)
        if result is OfferResult.ACCEPTED:
            self.lag.saw(batch.last, self._clock.monotonic())
        begins = batch.first_entry_id == 0 and result is OfferResult.ACCEPTED
        if self.tailer is not None and (begins or result is OfferResult.FULL):
            self.tailer.nudge()
        return result

    async def request_roll(self) -> Position | None:
        """Ask for everything confirmed so far to be committed soon; returns the position to wait for."""
        target = await self.tailer.refresh() if self.tailer is not None else self.buffer.last_offered
        if target is None or (self.offloaded is not None and target <= self.offloaded):
            return self.offloaded
        self._filling.ask(target)
        if self.tailer is not None:
            self.tailer.nudge()
        return target

    def stop(self) -> None:
        """Seal the open segment, commit it and return from `run`; the source keeps the rest for the next owner.

        What was pushed and accepted without a source to read it from is committed to its end.
        """
        self.stopping = True
        self.buffer.refuse()
        self.buffer.changed.notify()

    async def _next_result(self) -> SegmentResult:
        before = self._last_result
        while self._last_result is before or self._last_result is None:
            await self.changed.wait()
        return self._last_result

    async def run(self) -> None:
        """Offload until stopped. Raises Fenced when the topic was lost, LedgerTorn and CorruptData to stall it."""
        try:
            async with asyncio.TaskGroup() as group:
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
        while (attempt := await self._next_attempt()) is not None:
            try:
                if not await self._one_segment(attempt):
                    return
                backoff.reset()
            except SegmentFailed as error:
                await self._give_up(error)
                await backoff.wait(Transient(str(error)))

    async def _next_attempt(self) -> Attempt | None:
        """Return what an earlier owner left, or a new attempt once there is an entry for it; None when stopping."""
        left = self._left
        if left is not None and left.parts and (self._shop.source is not None or left.whole):
            return left
        if not await self._entries_wait():
            return None
        if self._left is not None:
            return self._left
        return Attempt(
            segment_id=self._clock.uuid(),
            begin=self.buffer.take(self.taken, 1)[0].first,
            assigned_ms=self._clock.wall_ms(),
            epoch=self.claim.epoch,
            status=AttemptStatus.ASSIGNED,
            driver="offloaderd",
            driver_properties=self._shop.driver,
            tries=self._failures,
            last_error=self._last_failure,
            layout=self._shop.layout,
        )

    async def _entries_wait(self) -> bool:
        """Wait for the first entry of the next segment; False when stopping."""
        while not self.may_stop():
            if self.buffer.take(self.taken, 1):
                return True
            if self.record.end_is_news():
                await self.record.note_end()
            elif self._left is None:
                await self.buffer.changed.wait()
            elif self._filling.out_of_reach(self._left.begin):
                await recovery.abandon(self._log, self._left, "the source has lost its first entry", self._metrics)
                self._left = None
            else:
                await self.buffer.changed.wait_at_most(self._clock, LOOK_S)
        return False

    def may_stop(self) -> bool:
        """Say whether stopping now loses nothing that was accepted."""
        left = self.buffer.take(self.taken, 1) or not self.outage.overflow_is_empty
        return self.stopping and not (self.handle.push_only and left)

    async def _one_segment(self, attempt: Attempt) -> bool:
        """Bring an attempt to its commit; False when stopping leaves it to the next owner. Raises SegmentFailed."""
        continued = attempt is self._left
        self.segment = segment = OpenSegment(
            self._shop,
            self._log,
            attempt,
            troubles=self.troubles,
            opened_s=self._opened_s(attempt),
            continued=continued,
        )
        if not continued:
            await self._log.begin(attempt)
            self._metrics.segments.labels(state="assigned").inc()
        if not await self._store(segment):
            return False
        await self.record.commit(await segment.finish(), dict(segment.sealed.ends))
        self._committed(segment)
        return True

    def _opened_s(self, attempt: Attempt) -> float:
        """Since when a segment counts as open; by a wrong clock at most as long as it may be.

        One whose entries come anew counts from now on, since it cannot be sealed where it would be cut otherwise.
        """
        age_s = 0.0 if self.tailer is None else (self._clock.wall_ms() - attempt.assigned_ms) / 1000
        return self._clock.monotonic() - min(max(0.0, age_s), self.policy.segment_age_max_s)

    async def _store(self, segment: OpenSegment) -> bool:
        """Have all parts of a segment stored and recorded; False when stopping leaves it to the next owner."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(segment.progress.run(), name=f"progress of {self.topic}")
                async with asyncio.TaskGroup() as parts:
                    await self._open(segment)
                    complete = await self._filling.fill(segment, parts)
                segment.progress.end()
        except BaseExceptionGroup as errors:
            raise first_of(errors) from None
        return complete

    async def _open(self, segment: OpenSegment) -> None:
        """Have an upload for a segment; one that is gone on with has to begin where the topic does."""
        await segment.open()
        if not segment.continued:
            return
        builder = segment.builder
        begin = builder.begin or self.buffer.take(self.taken, 1)[0].first
        if begin != segment.attempt.begin:
            raise SegmentFailed(f"the segment was to begin at {segment.attempt.begin}, its first entry is {begin}")
        self._filling.taken = max(self.taken, builder.end or self.taken)
        self._metrics.segments_continued.inc()
        log.info(
            "segment.continued",
            topic=str(self.topic),
            segment_id=str(builder.segment_id),
            parts=segment.upload.stored_count,
            entries=builder.entries,
            sealed=segment.attempt.seal is not None,
            epoch=self.claim.epoch,
        )

    def went_on(self) -> None:
        """There was progress since the topic was claimed."""
        if self._claimed_s is not None:
            if self._left is not None:
                self._metrics.recovery_seconds.observe(self._clock.monotonic() - self._claimed_s)
            self._claimed_s = None

    def _committed(self, segment: OpenSegment) -> None:
        """A segment is part of the topic: bring up what depends on it."""
        self.went_on()
        builder, end = segment.builder, segment.builder.range.end
        self.segment = self._left = None
        self._filling.committed(end)
        self.buffer.release(end)
        self._failures, self._last_failure = 0, ""
        now = self._clock.monotonic()
        for sample in self.lag.durable(end):
            self._metrics.time_to_durable_seconds.observe(now - sample.seen_s)
        self._metrics.segments.labels(state="offloaded").inc()
        self._metrics.segment_bytes.observe(builder.object_bytes)
        self._metrics.segment_entries.observe(builder.entries)
        self._last_result = SegmentResult(builder.segment_id, builder.range)
        log.info(
            "segment.committed",
            topic=str(self.topic),
            segment_id=str(builder.segment_id),
            range=str(builder.range),
            entries=builder.entries,
            payload_bytes=builder.payload_bytes,
            object_bytes=builder.object_bytes,
            reason=segment.reason,
            duration_s=round(now - segment.opened_s, 3),
            epoch=self.claim.epoch,
        )
        self.changed.notify()

    async def ledger_infos(self) -> dict[int, LedgerInfo]:
        """What is known of the topic's ledgers, as fresh as the source can say."""
        if self.tailer is None:
            return self.closed_ledgers
        await until_answered(self._clock, self.tailer.refresh, met=lambda error: self.troubles.met(error, "source"))
        return {**self.closed_ledgers, **self.record.chain.ledgers}

    async def _give_up(self, error: SegmentFailed) -> None:
        """The attempt failed: its objects go to the trash, its entries begin the next one."""
        assert self.segment is not None  # noqa: S101 - only an open segment fails
        attempt = self.segment.attempt
        log.error("segment.failed", topic=str(self.topic), segment_id=str(attempt.segment_id), error=str(error))
        self._metrics.segments.labels(state="failed").inc()
        self._metrics.uploads_aborted.labels(reason="failed").inc()
        self.troubles.met(error)
        self._failures, self._last_failure = self._failures + 1, str(error)
        await self._log.give_up(attempt, str(error))
        self.segment = self._left = None
        self._filling.taken = self.offloaded or START
        self.buffer.restart(self.taken)
        if self.tailer is not None:
            self.tailer.nudge()
        self.changed.notify()
