"""Moves entries from the tailing buffer into the open segment, and decides where it ends.

A segment that was sealed by an earlier owner is given the entries up to that end, as far as they are still there.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from offloaderd.model import OffloadMethod
from offloaderd.offload.chain import Run
from offloaderd.offload.uploader import SegmentFailed

if TYPE_CHECKING:
    from offloaderd.clock import Clock
    from offloaderd.metrics import Metrics
    from offloaderd.model import EntryBatch, Position, RollReason
    from offloaderd.offload.buffer import TailingBuffer
    from offloaderd.offload.open_segment import OpenSegment
    from offloaderd.offload.segment import SegmentBuilder
    from offloaderd.offload.topic import TopicOffloader

log = structlog.get_logger(__name__)

TAKE_BYTES = 1 << 20
"""Entries are moved from the buffer into blocks in steps of about this size, so the loop stays responsive."""

LOOK_S = 1.0
"""How often to look whether entries that are waited for have vanished, of a segment that is to be gone on with."""

OVERDRAW_S = 10.0
"""How long a segment may wait for its next entries before another one may exceed the memory in its place."""


class Filling:
    """Fills the open segments of one topic, one after the other."""

    def __init__(self, topic: TopicOffloader, taken: Position, *, clock: Clock, metrics: Metrics) -> None:
        self.taken = taken
        """Newest entry that is in the open segment or committed."""
        self.entries = 0
        """How many entries it has moved."""
        self.payload_bytes = 0
        """Their payload."""
        self._topic = topic
        self._clock = clock
        self._metrics = metrics

    @property
    def _buffer(self) -> TailingBuffer:
        return self._topic.buffer

    def press(self) -> bool:
        """Have it sealed soon, because memory is short; says whether that, or a seal that there is, will free some.

        A segment whose end is decided and that lacks entries frees none before they come, nor does what no segment
        takes yet.
        """
        self._topic.requests.free_memory()
        attempt, builder = self._topic.attempt, self._topic.builder
        end = attempt.end if attempt is not None else None
        if end is not None and self.taken < end:
            return False
        if builder is not None and builder.entries:
            return True
        waiting = self._buffer.take(self.taken, 1)
        if attempt is not None or not waiting:
            return bool(waiting)
        first = waiting[0].first
        return self._topic.next.method_of(Run(*first, first.entry_id)) is OffloadMethod.STREAMING

    async def fill(self, segment: OpenSegment, parts: asyncio.TaskGroup) -> bool:
        """Take entries to the segment's end and send them; False when stopping leaves it to the next owner."""
        end = segment.attempt.end
        if end is None:
            await self._take_until_rolled(segment, parts)
        elif not await self._take_until(end, segment, parts):
            return False
        elif not segment.continued:
            segment.reason = "ledger"
        segment.finish_blocks()
        if not segment.keeps_seal():
            await segment.decide_end(self._topic.record, await self._topic.ledger_infos())
        while segment.builder.pending_bytes:
            self._buffer.mark_cut(await segment.send(parts, last=not segment.builder.part_ready))
        return True

    async def _take_until_rolled(self, segment: OpenSegment, parts: asyncio.TaskGroup) -> None:
        """Move entries from the buffer into the segment until the policy has it rolled."""
        while not (reason := self._roll_reason(segment)):
            limit = self._topic.policy.segment_bytes_max if self._opened_long_enough() else None
            batches = self._buffer.take(self.taken, TAKE_BYTES)
            for batch in batches:
                if segment.builder.full or (limit is not None and segment.builder.payload_bytes >= limit):
                    break
                if segment.builder.entries and self._topic.next.ends_here(self.taken):
                    break
                self._move(batch, segment, limit)
            if batches:
                await self._send_full_parts(segment, parts)
            else:
                await self._buffer.changed.wait_at_most(self._clock, self._time_left())
        self._metrics.segment_rolls.labels(reason=reason.value).inc()
        segment.reason = reason.value

    async def _take_until(self, end: Position, segment: OpenSegment, parts: asyncio.TaskGroup) -> bool:
        """Move the entries up to where the segment was sealed into it; False when stopping before they come.

        It ends earlier when the source has lost the rest: what is stored already may be the last copy there is. While
        it lacks entries it may take more memory than there is, and lets others do so when none come for long.
        """
        came_s = self._clock.monotonic()
        while self.taken < end:
            if self._topic.stopping and segment.attempt.seal is None:
                return False  # a whole ledger may take long, and the next owner goes on with it
            batches = self._buffer.take(self.taken, TAKE_BYTES)
            if (batches and batches[0].first > end) or (not batches and self.out_of_reach(end)):
                if not segment.builder.entries:
                    raise SegmentFailed(f"the segment was sealed at {end}, and none of its entries are left")
                return True
            if not batches:
                if self._topic.stopping and self._topic.handle.push_only:
                    return False
                if self._clock.monotonic() - came_s >= OVERDRAW_S:
                    self._buffer.let_others()
                self._buffer.starve()
                await self._buffer.changed.wait_at_most(self._clock, LOOK_S)
                continue
            came_s = self._clock.monotonic()
            for batch in batches:
                if self.taken == end or batch.first > end:
                    break
                piece = batch.between(batch.first_entry_id, end.entry_id) if batch.last > end else batch
                self._move(piece, segment)
            await self._send_full_parts(segment, parts)
        return True

    def _move(self, batch: EntryBatch, segment: OpenSegment, limit: int | None = None) -> None:
        """Move entries into the segment until it holds `limit` bytes of payload."""
        before = segment.builder.payload_bytes
        moved = segment.add(batch, limit)
        self.taken = moved.last
        self.entries += len(moved.payloads)
        self.payload_bytes += segment.builder.payload_bytes - before
        self._topic.went_on()

    def out_of_reach(self, end: Position) -> bool:
        """Say whether the source lists no ledger any more that has, or may get, what follows up to `end`."""
        tailer, taken = self._topic.tailer, self.taken
        if tailer is None or tailer.looked_s is None:
            return False
        between = [info for info in tailer.chain.ledgers.values() if taken.ledger_id <= info.ledger_id <= end.ledger_id]
        return not any(not info.closed or taken < (info.ledger_id, info.entries - 1) for info in between)

    async def _send_full_parts(self, segment: OpenSegment, parts: asyncio.TaskGroup) -> None:
        while segment.builder.part_ready:
            self._buffer.mark_cut(await segment.send(parts))
        # Sources and clients run between two steps, however full the buffer is.
        await asyncio.sleep(0)  # noqa: TID251 - gives up the turn, measures no time

    def _opened_long_enough(self) -> bool:
        return self._topic.open_segment_age_s >= self._topic.policy.segment_age_min_s

    def _time_left(self) -> float:
        limits = [self._topic.policy.segment_age_max_s, self._topic.policy.segment_age_min_s]
        age = self._topic.open_segment_age_s
        return max(0.001, min((limit - age for limit in limits if limit > age), default=1.0))

    def _roll_reason(self, segment: OpenSegment) -> RollReason | None:
        builder, settled = segment.builder, not self._catching_up(segment)
        if not builder.entries:
            return None
        age_s, requested = self._topic.open_segment_age_s, self._topic.requests.now()
        return self._topic.policy.decide(
            payload_bytes=builder.payload_bytes,
            # A size that is reached ends it in any case: nothing more is taken then, see `_take_until_rolled`.
            age_s=age_s if settled else min(age_s, self._topic.policy.segment_age_min_s),
            full=builder.full,
            manual=settled and requested.seal_to is not None and self.taken >= requested.seal_to,
            switch=self._topic.next.ends_here(self.taken),
            memory=requested.memory and self._worth_rolling(builder),
            stopping=self._topic.may_stop(),
        )

    def _catching_up(self, segment: OpenSegment) -> bool:
        """Say whether to wait for entries of parts that an earlier owner stored, so that they are of use."""
        if not segment.catching_up:
            return False
        unseen = self._topic.tailer is not None and self._topic.tailer.looked_s is None
        return unseen or (self._topic.newest is not None and self._topic.newest > self.taken)

    def _worth_rolling(self, builder: SegmentBuilder) -> bool:
        """Say whether a commit now would free at least half of what the buffer holds.

        A pusher that is faster than the bucket fills the buffer soon after every commit; segments that were sealed at
        once would become ever smaller, and the commits ever more.
        """
        return 2 * builder.payload_bytes >= self._buffer.used_bytes or not self._buffer.take(self.taken, 1)
