"""Writes the planned history of one topic beside its live segments: range after range, each an attempt of its own.

Each is written by the segment writer from its ledgers (`segment.py`). A range with wrong lengths becomes several
segments, a lost range none. A history that a job has split into whole ledgers, and given back, stays so.
"""

import asyncio
from functools import partial

import structlog

from offloaderd.core.errors import OffloaderError, Transient
from offloaderd.core.model import LedgerInfo, Loss, OffloadMethod, Position
from offloaderd.core.retry import Backoff, Turn, until_answered
from offloaderd.format.v1 import LedgerLayout
from offloaderd.format.v2 import SegmentLayout
from offloaderd.history.boundaries import Splitter, segment_bytes_for
from offloaderd.history.record import HistoryRecord
from offloaderd.history.segment import LedgerReading, MapCommitter, MapFacts, OwnedTopic, layout_of, ledger_feed
from offloaderd.ledgers.port import LedgerSource
from offloaderd.metadata import paths
from offloaderd.metadata.records.attempt import Attempt
from offloaderd.objects.places import Place
from offloaderd.segment.claim.attempt_log import attempt_log
from offloaderd.segment.committer import Assignment
from offloaderd.segment.context import OffloadContext
from offloaderd.segment.feed import ReadAheadFeed
from offloaderd.segment.resume import as_finished, take_over, unrecorded
from offloaderd.segment.roll import OnGap, RangeStop
from offloaderd.segment.upload import SegmentFailed
from offloaderd.segment.writer import SegmentWriter

log = structlog.get_logger(__name__)

PAUSED_S = 5.0
"""Pause between checks of the policy under the method none; a change of the policy wakes at once."""


class HistoryWriter:
    """One owner's work on one topic's history."""

    def __init__(
        self,
        offloader: OwnedTopic,
        context: OffloadContext,
        source: LedgerSource,
        turns: asyncio.Semaphore,
        *,
        holder: str,
    ) -> None:
        upload_context = context.upload_context
        self._offloader = offloader
        self._context = context
        self._source = source
        self._turn = Turn(turns, upload_context.clock)
        self._holder = holder
        self._topic = offloader.topic
        self._clock, self._metrics = upload_context.clock, upload_context.metrics
        self._attempts = attempt_log(context, offloader.claim, paths.history_attempt(offloader.topic), offloader.head)

    async def run(self) -> None:
        """Write until all of history is committed or lost.

        Raises Fenced; and HistoryGap, CorruptData and Conflict, after which a new run is safe.
        """
        record = self._offloader.record
        left = await take_over(self._attempts, record.map.history_end, self._context)
        plan = record.map.history
        assert plan is not None  # noqa: S101 - called with a plan only
        self._history = HistoryRecord(record, plan, self._attempts, left.begin, holder=self._holder)
        committer = MapCommitter(self._history, self._attempts, clock=self._clock, metrics=self._metrics)
        self._writer = SegmentWriter(
            self._context, self._attempts, committer, failure_tracker=self._offloader.failure_tracker
        )
        self._failures = left.failures
        attempt = await self._as_finished(left.attempt)
        infos = await self._refresh()
        if plan.ranges:
            await until_answered(self._clock, self._history.load)
        else:
            await self._split(infos)
        backoff = Backoff(self._clock)
        while True:
            await self._wanted()
            async with self._turn:
                resumed = attempt is not None
                attempt = attempt or await self._next_attempt()
                if attempt is None:
                    break
                failed = await self._one_segment(attempt, resumed=resumed)
            attempt = None
            if failed is not None:
                await backoff.wait(Transient(str(failed)))
        await self._history.finish(self._clock.wall_ms())
        log.info("history.finished", topic=str(self._topic), end=str(plan.last))

    async def _as_finished(self, left: Attempt | None) -> Attempt | None:
        """Compare an earlier owner's attempt with the bucket, and return it. Raises IdentityRefused, Fenced."""
        topic = self._offloader
        if left is None:
            return None
        found = await as_finished(self._context, left, failure_tracker=topic.failure_tracker, identity=topic.identity)
        for loss in unrecorded(topic.map, found):
            await self._history.lost(loss)
        return found

    async def _wanted(self) -> None:
        """Wait while the policy has the method none."""
        while self._offloader.policy.method is OffloadMethod.NONE:
            await self._offloader.policy_changed.wait_at_most(self._clock, PAUSED_S)

    async def _refresh(self) -> list[LedgerInfo]:
        """Refresh the source's ledgers, as soon as it answers. Raises HistoryGap, IdentityRefused."""
        checked = partial(self._offloader.source_check.ledgers, self._source)
        infos = await until_answered(self._turn, lambda: self._history.refresh(checked), on_error=self._failing)
        self._failing(None)
        return infos

    def _failing(self, error: OffloaderError | None) -> None:
        self._offloader.record.history_error = error

    async def _split(self, infos: list[LedgerInfo]) -> None:
        """Find the boundaries between segments and record the ranges."""
        plan = self._history.plan
        segment_bytes = segment_bytes_for(self._offloader.policy.segment_bytes_max, self._context.layout)
        splitter = Splitter(
            self._source, self._topic, segment_bytes=segment_bytes, clock=self._clock, metrics=self._metrics
        )
        begin = Position(plan.first, 0)
        split = await until_answered(
            self._turn, lambda: splitter.split(infos, begin, plan.last), on_error=self._failing
        )
        await self._history.store(split, segment_bytes)
        log.info(
            "history.split",
            topic=str(self._topic),
            ranges=len(split.ranges),
            probes=split.probes,
            boundaries=split.boundaries,
            duration_s=round(split.seconds, 3),
            doubtful_ledgers=len(split.doubts),
        )

    async def _next_attempt(self) -> Attempt | None:
        """Return the next attempt of history, None at its end. Losses before it are recorded."""
        await self._refresh()
        while isinstance(step := self._history.chain.next_after(self._history.standing), Loss):
            await self._history.lost(step)
        if step is None:
            return None
        place = await until_answered(self._turn, self._place, on_error=self._failing)
        layout = await until_answered(self._turn, partial(self._layout, step.first), on_error=self._failing)
        return self._context.attempt(
            step.first, layout, place, epoch=self._offloader.claim.epoch, failures=self._failures
        )

    async def _layout(self, begin: Position) -> LedgerLayout | SegmentLayout:
        info, whole = self._history.chain.ledgers.get(begin.ledger_id), self._history.plan.goes_whole(begin)
        return await layout_of(self._context, self._topic, info, whole=whole, count=bool(self._failures[0]))

    async def _place(self) -> Place:
        return self._context.place_for(self._offloader.policy, self._topic)

    async def _one_segment(self, attempt: Attempt, *, resumed: bool) -> SegmentFailed | None:
        """Write an attempt up to its commit; returns the failure if it was given up."""
        opened_s = self._clock.monotonic()
        work = Assignment(
            attempt=attempt, after=self._history.standing, resumed=resumed, opened_s=opened_s, notes={"history": True}
        )
        gap = OnGap.RECORD if attempt.ledger_id is None else OnGap.FAIL
        plan = self._history.plan
        stop = RangeStop(payload_bytes=plan.segment_bytes + plan.segment_bytes // 4, gap=gap)
        facts = MapFacts(self._history, self._context.pasts)
        try:
            await self._writer.run(work, self._feed(attempt), stop, facts)
        except SegmentFailed as error:
            self._failures = (self._failures[0] + 1, str(error))
            self._failing(error)
            return error
        self._failures = (0, "")
        self._failing(None)
        self._offloader.changed.notify()
        return None

    def _feed(self, attempt: Attempt) -> ReadAheadFeed:
        """Return the feed of an attempt's entries, at most to the end of its range."""
        index = self._history.ranges.at(attempt.parts[-1].end if attempt.parts else attempt.begin)
        planned = self._history.ranges.ranges[index].end if index is not None else self._history.plan.last
        reading = LedgerReading(
            source=self._source,
            topic=self._topic,
            chain=self._history.chain,
            refresh=self._refresh,
            failing=self._failing,
            pace=self._turn,
            metrics=self._metrics,
        )
        return ledger_feed(reading, attempt, planned, layout=self._context.layout, uploads=self._context.upload_context)
