"""One topic under one claim: takes entries from the buffer, one segment after the other, until told to stop.

The order of a segment (architecture section 6): attempt record, multipart upload, parts, complete, index, manifest,
verify, commit. The next segment begins only after the last was committed; one that failed is given up first and its
entries begin the next attempt.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import structlog

from offloaderd.errors import Transient, first_of
from offloaderd.metadata.records.attempt import Attempt, AttemptStatus
from offloaderd.model import OfferResult
from offloaderd.offload.budget import Backoff, until_answered
from offloaderd.offload.buffer import START, TailingBuffer
from offloaderd.offload.commit import AttemptLog
from offloaderd.offload.handle import OffloadHandle, SegmentResult
from offloaderd.offload.lag import LagTracker
from offloaderd.offload.outage import Outage, OutageRules
from offloaderd.offload.record import TopicRecord
from offloaderd.offload.sealing import Sealer
from offloaderd.offload.segment import SegmentBuilder
from offloaderd.offload.signal import Signal
from offloaderd.offload.status import TopicStatus, describe
from offloaderd.offload.tailer import Tailer
from offloaderd.offload.troubles import Troubles
from offloaderd.offload.uploader import SegmentFailed, SegmentUpload

if TYPE_CHECKING:
    from offloaderd.ledgers.port import LedgerSource
    from offloaderd.metadata.catalog import TopicMap
    from offloaderd.metadata.port import MetadataStore
    from offloaderd.model import EntryBatch, LedgerInfo, Loss, Position, RollReason, TopicName
    from offloaderd.offload.buffer import BufferPool
    from offloaderd.offload.commit import Claim
    from offloaderd.offload.roll import RollPolicy
    from offloaderd.offload.segment import SegmentLayout
    from offloaderd.offload.uploader import Uplink

log = structlog.get_logger(__name__)

TAKE_BYTES = 1 << 20
"""Entries are moved from the buffer into blocks in steps of about this size, so the loop stays responsive."""


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
        self, shop: Workshop, claim: Claim, topic_map: TopicMap, policy: RollPolicy, *, begin: Position | None = None
    ) -> None:
        """Take up a topic where its map ends; `begin` is where an earlier owner's unfinished segment began."""
        self.topic: TopicName = claim.topic
        self.claim = claim
        self.policy = policy
        self.attempt: Attempt | None = None
        self.builder: SegmentBuilder | None = None
        self.changed = Signal()
        self.closed_ledgers: dict[int, LedgerInfo] = {}
        self.pushers = 0
        self._shop = shop
        self._clock = shop.uplink.clock
        self._metrics = shop.uplink.metrics
        self.troubles = Troubles(self.topic, self._clock, self.changed.notify)
        self.lag = LagTracker()
        self._log = AttemptLog(shop.metadata, claim, clock=self._clock, metrics=self._metrics)
        self.record = TopicRecord(self._log, topic_map, begin, clock=self._clock, metrics=self._metrics)
        self._taken = topic_map.offloaded or START
        self._roll_to: Position | None = None
        self._pressed = False
        self._stopping = False
        self._opened_s = 0.0
        self._last_result: SegmentResult | None = None
        self._failures, self._last_failure = 0, ""  # of the segment that begins at the present position
        self.buffer = TailingBuffer(
            shop.pool, resume=self._taken, rereadable=shop.source is not None, on_pressure=self._press
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
            needed=lambda: self._taken,
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
        return self._taken

    @property
    def newest(self) -> Position | None:
        """Newest entry that is known to exist and be readable."""
        candidates = [self.lag.newest, self.offloaded, self.buffer.last_offered if self.handle.push_only else None]
        return max((one for one in candidates if one is not None), default=None)

    @property
    def open_segment_age_s(self) -> float:
        """Age of the open segment since its first entry, in seconds; 0 when there is none."""
        return self._clock.monotonic() - self._opened_s if self.builder is not None else 0.0

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
        self._roll_to = max(target, self._roll_to or target)
        if self.tailer is not None:
            self.tailer.nudge()
        self.buffer.changed.notify()
        return target

    def stop(self) -> None:
        """Seal the open segment, commit it and return from `run`; the source keeps the rest for the next owner.

        What was pushed and accepted without a source to read it from is committed to its end.
        """
        self._stopping = True
        self.buffer.refuse()
        self.buffer.changed.notify()

    def _press(self) -> None:
        self._pressed = True
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
        while await self._entries_wait():
            try:
                await self._one_segment()
                backoff.reset()
            except SegmentFailed as error:
                await self._give_up(error)
                await backoff.wait(Transient(str(error)))

    async def _entries_wait(self) -> bool:
        """Wait for the first entry of the next segment; False when stopping."""
        while not self._may_stop():
            if self.buffer.take(self._taken, 1):
                return True
            if self.record.end_is_news():
                await self.record.note_end()
            else:
                await self.buffer.changed.wait()
        return False

    def _may_stop(self) -> bool:
        """Say whether stopping now loses nothing that was accepted."""
        left = self.buffer.take(self._taken, 1) or not self.outage.overflow_is_empty
        return self._stopping and not (self.handle.push_only and left)

    async def _one_segment(self) -> None:
        begin = self.buffer.take(self._taken, 1)[0].first
        attempt = Attempt(
            segment_id=self._clock.uuid(),
            begin=begin,
            assigned_ms=self._clock.wall_ms(),
            epoch=self.claim.epoch,
            status=AttemptStatus.ASSIGNED,
            driver="offloaderd",
            driver_properties=self._shop.driver,
            tries=self._failures,
            last_error=self._last_failure,
        )
        await self._log.begin(attempt)
        self._metrics.segments.labels(state="assigned").inc()
        self.attempt = attempt
        self._opened_s = self._clock.monotonic()
        upload = SegmentUpload(
            self._shop.uplink, attempt.segment_id, troubles=self.troubles, cluster=self._shop.cluster
        )
        self.attempt = replace(attempt, upload_id=await upload.open())
        await self._log.update(self.attempt)
        builder = SegmentBuilder(attempt.segment_id, self._shop.layout, assigned_ms=attempt.assigned_ms)
        self.builder = builder
        try:
            reason = await self._send_parts(builder, upload)
            await self._commit(builder, upload, reason)
        finally:
            self.builder = None

    async def _send_parts(self, builder: SegmentBuilder, upload: SegmentUpload) -> RollReason:
        try:
            async with asyncio.TaskGroup() as parts:
                reason = await self._fill(builder, upload, parts)
                self._metrics.segment_rolls.labels(reason=reason.value).inc()
                builder.finish_blocks()
                while builder.pending_bytes:
                    await self._send(builder, upload, parts, last=not builder.part_ready)
        except BaseExceptionGroup as errors:
            raise first_of(errors) from None
        return reason

    async def _fill(self, builder: SegmentBuilder, upload: SegmentUpload, parts: asyncio.TaskGroup) -> RollReason:
        """Move entries from the buffer into the segment until the policy has it rolled."""
        while True:
            if reason := self._roll_reason(builder):
                return reason
            batches = self.buffer.take(self._taken, TAKE_BYTES)
            limit = self.policy.segment_bytes_max if self._opened_long_enough() else None
            for batch in batches:
                if limit is not None and builder.payload_bytes >= limit:
                    break
                took = builder.add(batch, limit)
                self._taken = took.last
            while builder.part_ready:
                await self._send(builder, upload, parts, last=False)
            if batches:
                # Sources and clients run between two steps, however full the buffer is.
                await asyncio.sleep(0)  # noqa: TID251 - gives up the turn, measures no time
            else:
                await self.buffer.changed.wait_at_most(self._clock, self._time_left())

    def _opened_long_enough(self) -> bool:
        return self.open_segment_age_s >= self.policy.segment_age_min_s

    def _time_left(self) -> float:
        limits = [self.policy.segment_age_max_s, self.policy.segment_age_min_s]
        age = self.open_segment_age_s
        return max(0.001, min((limit - age for limit in limits if limit > age), default=1.0))

    def _roll_reason(self, builder: SegmentBuilder) -> RollReason | None:
        if not builder.entries:
            return None
        return self.policy.decide(
            payload_bytes=builder.payload_bytes,
            age_s=self.open_segment_age_s,
            full=builder.full,
            manual=self._roll_to is not None and self._taken >= self._roll_to,
            memory=self._pressed and self._worth_rolling(builder),
            stopping=self._may_stop(),
        )

    def _worth_rolling(self, builder: SegmentBuilder) -> bool:
        """Say whether a commit now would free at least half of what the buffer holds.

        A pusher that is faster than the bucket fills the buffer soon after every commit; segments that were sealed at
        once would become ever smaller, and the commits ever more.
        """
        return 2 * builder.payload_bytes >= self.buffer.used_bytes or not self.buffer.take(self._taken, 1)

    async def _send(
        self, builder: SegmentBuilder, upload: SegmentUpload, parts: asyncio.TaskGroup, *, last: bool
    ) -> None:
        reserved = builder.pending_bytes
        await upload.reserve(reserved)
        part = builder.cut_part(last=last)
        parts.create_task(upload.send(part, reserved), name=f"part {part.part_number} of {self.topic}")
        self.buffer.mark_cut(part.end)

    async def _commit(self, builder: SegmentBuilder, upload: SegmentUpload, reason: RollReason) -> None:
        assert self.attempt is not None  # noqa: S101 - set when the segment was begun
        sealer = Sealer(self._shop, self.topic, self.claim, upload)
        infos = await self._ledger_infos()
        committed = await sealer.seal(builder, infos)
        await self.record.commit(committed, infos)
        self.attempt = None
        end = builder.range.end
        self._roll_to = None if self._roll_to is not None and self._roll_to <= end else self._roll_to
        self.buffer.release(end)
        self._pressed = False
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
            reason=reason.value,
            duration_s=round(now - self._opened_s, 3),
            epoch=self.claim.epoch,
        )
        self.changed.notify()

    async def _ledger_infos(self) -> dict[int, LedgerInfo]:
        """What is known of the topic's ledgers, as fresh as the source can say."""
        if self.tailer is None:
            return self.closed_ledgers
        await until_answered(self._clock, self.tailer.refresh, met=lambda error: self.troubles.met(error, "source"))
        return {**self.closed_ledgers, **self.record.chain.ledgers}

    async def _give_up(self, error: SegmentFailed) -> None:
        """The attempt failed: its objects go to the trash, its entries begin the next one."""
        assert self.attempt is not None  # noqa: S101 - only an open segment fails
        log.error("segment.failed", topic=str(self.topic), segment_id=str(self.attempt.segment_id), error=str(error))
        self._metrics.segments.labels(state="failed").inc()
        self._metrics.uploads_aborted.labels(reason="failed").inc()
        self.troubles.met(error)
        self._failures, self._last_failure = self._failures + 1, str(error)
        await self._log.give_up(self.attempt, str(error))
        self.attempt = None
        self._taken = self.offloaded or START
        self.buffer.restart(self._taken)
        if self.tailer is not None:
            self.tailer.nudge()
        self.changed.notify()
