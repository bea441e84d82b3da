"""Moves entries from the tailing buffer into the open segment, and decides where it ends.

A segment that was sealed by an earlier owner is given the entries up to that end, as far as they are still there.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from offloaderd.model import OffloadMethod
from offloaderd.offload.chain import Run
from offloaderd.offload.feed import Entries, Lost
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


class Filling:
    """Fills the open segments of one topic, one after the other."""

    def __init__(self, topic: TopicOffloader, *, clock: Clock, metrics: Metrics) -> None:
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
        if end is not None and self._topic.taken < end:
            return False
        if builder is not None and builder.entries:
            return True
        first = self._topic.feed.first()
        if attempt is not None or first is None:
            return first is not None
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
            self._topic.feed.sent(await segment.send(parts, last=not segment.builder.part_ready))
        return True

    async def _take_until_rolled(self, segment: OpenSegment, parts: asyncio.TaskGroup) -> None:
        """Move entries from the buffer into the segment until the policy has it rolled."""
        while not (reason := self._roll_reason(segment)):
            limit = self._topic.policy.segment_bytes_max if self._opened_long_enough() else None
            found = self._topic.feed.take(self._topic.taken, TAKE_BYTES)
            for batch in found.batches if isinstance(found, Entries) else ():
                if segment.builder.full or (limit is not None and segment.builder.payload_bytes >= limit):
                    break
                if segment.builder.entries and self._topic.next.ends_here(self._topic.taken):
                    break
                self._move(batch, segment, limit)
            if isinstance(found, Entries):
                await self._send_full_parts(segment, parts)
            else:
                await self._topic.feed.wait(self._time_left())
        self._metrics.segment_rolls.labels(reason=reason.value).inc()
        segment.reason = reason.value

    async def _take_until(self, end: Position, segment: OpenSegment, parts: asyncio.TaskGroup) -> bool:
        """Move the entries up to where the segment was sealed into it; False when stopping before they come.

        It ends earlier when the source has lost the rest: what is stored already may be the last copy there is.
        """
        while (taken := self._topic.taken) < end:
            if self._topic.stopping and segment.attempt.seal is None:
                return False  # a whole ledger may take long, and the next owner goes on with it
            found = self._topic.feed.take(taken, TAKE_BYTES, end)
            if isinstance(found, Lost):
                if not segment.builder.entries:
                    raise SegmentFailed(f"the segment was sealed at {end}, and none of its entries are left")
                return True
            if not isinstance(found, Entries):
                if self._topic.stopping and self._topic.handle.push_only:
                    return False
                await self._topic.feed.wait(LOOK_S)
                continue
            for batch in found.batches:
                if self._topic.taken == end or batch.first > end:
                    break
                piece = batch.between(batch.first_entry_id, end.entry_id) if batch.last > end else batch
                self._move(piece, segment)
            await self._send_full_parts(segment, parts)
        return True

    def _move(self, batch: EntryBatch, segment: OpenSegment, limit: int | None = None) -> None:
        """Move entries into the segment until it holds `limit` bytes of payload."""
        before = segment.builder.payload_bytes
        moved = segment.add(batch, limit)
        self.entries += len(moved.payloads)
        self.payload_bytes += segment.builder.payload_bytes - before
        self._topic.went_on()

    async def _send_full_parts(self, segment: OpenSegment, parts: asyncio.TaskGroup) -> None:
        while segment.builder.part_ready:
            self._topic.feed.sent(await segment.send(parts))
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
            manual=settled and requested.seal_to is not None and self._topic.taken >= requested.seal_to,
            switch=self._topic.next.ends_here(self._topic.taken),
            memory=requested.memory and self._worth_rolling(builder),
            stopping=self._topic.may_stop(),
        )

    def _catching_up(self, segment: OpenSegment) -> bool:
        """Say whether to wait for entries of parts that an earlier owner stored, so that they are of use."""
        if not segment.catching_up:
            return False
        unseen = self._topic.tailer is not None and self._topic.tailer.looked_s is None
        return unseen or (self._topic.newest is not None and self._topic.newest > self._topic.taken)

    def _worth_rolling(self, builder: SegmentBuilder) -> bool:
        """Say whether a commit now would free at least half of what the buffer holds.

        A pusher that is faster than the bucket fills the buffer soon after every commit; segments that were sealed at
        once would become ever smaller, and the commits ever more.
        """
        return 2 * builder.payload_bytes >= self._buffer.used_bytes or not self._buffer.take(self._topic.taken, 1)
