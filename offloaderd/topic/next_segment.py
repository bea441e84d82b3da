"""What a topic's next segment is: what an earlier owner left, the next entries as they come, or a whole ledger.

Entries go by the method of the topic's policy as it is when their segment begins. Ledger-based offloading (PIP-17)
takes closed ledgers from entry 0, one after the other, once they are due: by the size of the closed ledgers from there
on, by the time since the close (`ManagedLedgerImpl.maybeOffload`), or because somebody asked for what they hold. What
is left of a ledger that was offloaded in part goes by streaming whatever the method says: no object of PIP-17 can hold
it. Under `none` nothing begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from offloaderd.core.byte_budget import until_answered
from offloaderd.core.errors import NotFound
from offloaderd.core.model import OffloadMethod, Position
from offloaderd.history import plan as history
from offloaderd.ledgers.chain import Run
from offloaderd.segment import resume as recovery
from offloaderd.segment.ledger_layout import ledger_layout
from offloaderd.segment.roll_forward import as_finished, unrecorded

if TYPE_CHECKING:
    from offloaderd.core.model import Loss
    from offloaderd.format.layout import LedgerLayout, SegmentLayout
    from offloaderd.metadata.records.attempt import Attempt
    from offloaderd.objects.places import Place
    from offloaderd.segment.claim.attempt_log import AttemptLog
    from offloaderd.segment.context import OffloadContext
    from offloaderd.segment.resume import LeftBehind
    from offloaderd.topic.offloader import TopicOffloader

LOOK_S = 1.0
"""How often to look whether what an earlier owner left has lost its entries, or a ledger has become due."""


class NextSegment:
    """Chooses one topic's segments, one after the other."""

    def __init__(self, topic: TopicOffloader, context: OffloadContext, log: AttemptLog, left: LeftBehind) -> None:
        self.left = left.attempt
        """What an earlier owner left and is still to be gone on with."""
        self._topic = topic
        self._context = context
        self._log = log
        self._clock = context.upload_context.clock
        self._tries, self._last_error = left.failures  # of the segment that begins at the present position
        self._settled = left.attempt is None
        """Whether it is known how far what an earlier owner left is; until then nothing is taken from the source."""

    def failed(self, error: str) -> None:
        """The segment was given up: its entries begin the next one."""
        self.left = None
        self._tries, self._last_error = self._tries + 1, error

    def committed(self) -> None:
        """The segment is part of the topic."""
        self.left = None
        self._tries, self._last_error = 0, ""

    def method_of(self, run: Run) -> OffloadMethod:
        """Say how the entries of a run go, NONE for not now. What an open segment needs is no question of this."""
        policy = self._topic.policy
        if history.waits(self._topic.map, policy):
            return OffloadMethod.NONE
        attempt = self._topic.attempt
        begun = attempt is not None and attempt.begin.ledger_id == run.ledger_id
        if run.first_entry_id == 0 and not begun and run.ledger_id in self._topic.adoption.claimed:
            return OffloadMethod.NONE
        whole = policy.method is OffloadMethod.LEDGER_BASED and run.first_entry_id == 0
        if whole and self._context.ledgers is not None and not self._has_vanished(run.ledger_id):
            return OffloadMethod.LEDGER_BASED if self._is_due(run.ledger_id) else OffloadMethod.NONE
        return OffloadMethod.NONE if policy.method is OffloadMethod.NONE else OffloadMethod.STREAMING

    def wants(self, step: Run | Loss) -> bool:
        """Say whether the source is to be read there, or the loss to be reported, for this segment or the next."""
        if not self._settled:
            return False
        attempt = self._topic.attempt
        end = attempt.end if attempt is not None else None
        if end is not None and (not isinstance(step, Run) or step.first <= end):
            return True
        if isinstance(step, Run):
            return self.method_of(step) is not OffloadMethod.NONE
        topic = self._topic
        return topic.policy.method is not OffloadMethod.NONE and not history.waits(topic.map, topic.policy)

    def reachable(self, target: Position | None) -> Position | None:
        """Return the newest entry, up to `target`, that can be offloaded when it is asked for; None for none.

        Of a ledger that goes as a whole that is its last one.
        """
        taken, chain = self._topic.taken, self._topic.record.chain
        streams = self._topic.policy.method is not OffloadMethod.LEDGER_BASED or self._context.ledgers is None
        if target is None or streams or (target.ledger_id == taken.ledger_id and not self._is_whole(taken)):
            return target
        ends = [
            Position(one.ledger_id, one.entries - 1) for one in chain.ledgers.values() if one.closed and one.entries
        ]
        return max((end for end in ends if end <= target), default=self._topic.offloaded)

    def _is_whole(self, taken: Position) -> bool:
        """Say whether the ledger that holds the entry at `taken` goes, or went, as a whole."""
        attempt = self._topic.attempt
        last = self._topic.map.segments[-1:]
        return (attempt is not None and attempt.ledger_id == taken.ledger_id) or any(
            segment.keys.ledger_id == taken.ledger_id for segment in last
        )

    def _has_vanished(self, ledger_id: int) -> bool:
        """Say whether a ledger was closed and is gone: what has been read of it is all that there is."""
        chain = self._topic.record.chain
        return chain.end_of(ledger_id) is not None and ledger_id not in chain.ledgers

    def _is_due(self, ledger_id: int) -> bool:
        policy, ledgers = self._topic.policy, self._topic.record.chain.ledgers
        info = ledgers.get(ledger_id)
        if info is None or not info.closed:
            return False
        if self._topic.requests.includes(Position(ledger_id, info.entries - 1)):
            return True
        if policy.threshold_s is not None and self._clock.wall_ms() - info.closed_at_ms > policy.threshold_s * 1000:
            return True
        closed = [one.size_bytes for one in ledgers.values() if one.closed and one.ledger_id >= ledger_id]
        return policy.threshold_bytes is not None and (
            sum(closed) > policy.threshold_bytes or not policy.threshold_bytes
        )

    def due_in_s(self, step: Run | Loss) -> float | None:
        """Return how many seconds are left until its age makes a ledger due; None when time alone does not."""
        threshold_s = self._topic.policy.threshold_s
        info = self._topic.record.chain.ledgers.get(step.ledger_id) if isinstance(step, Run) else None
        if info is None or not info.closed or threshold_s is None:
            return None
        left_ms = info.closed_at_ms + threshold_s * 1000 - self._clock.wall_ms()
        return (left_ms + 1) / 1000 if left_ms >= 0 else None

    async def _settle(self, left: Attempt) -> None:
        """Take what an earlier owner left as it is in the bucket. Raises IdentityRefused, Fenced."""
        topic = self._topic
        await self._log.check_head(topic.map, left.segment_id)  # all of what is finished is read: not by old metadata
        self.left = await as_finished(
            self._context, topic.topic, left, failure_tracker=topic.failure_tracker, identity=topic.identity
        )
        for loss in unrecorded(topic.map, self.left):
            await topic.record.lost(loss)
        if self.left.proven and self.left.end is not None:
            topic.feed.restart(self.left.end)
        self._settled = True
        if topic.tailer is not None:
            topic.tailer.nudge()

    async def attempt(self) -> Attempt | None:
        """Return what an earlier owner left, or a new attempt once there is an entry for it; None when stopping.

        Raises IdentityRefused, Fenced.
        """
        if self.left is not None and not self._settled:
            await self._settle(self.left)
        left = self.left
        if left is not None and left.parts and (self._context.source is not None or left.whole):
            return left
        begin = await self._first_entry()
        if begin is None:
            return None
        if self.left is not None:
            return self.left
        layout = await self._layout(begin)
        if layout is None:
            return None
        place = await until_answered(
            self._clock, self._place, met=lambda error: self._topic.failure_tracker.met(error, "place")
        )
        self._topic.failure_tracker.over("place")
        failures = (self._tries, self._last_error)
        return self._context.attempt(begin, layout, place, epoch=self._topic.claim.epoch, failures=failures)

    async def _place(self) -> Place:
        return self._context.place_for(self._topic.policy)

    async def _first_entry(self) -> Position | None:
        """Wait for the first entry of the next segment; None when stopping."""
        topic = self._topic
        while not topic.at(topic.feed.position).may_stop:
            if self._may_adopt() and (info := topic.adoption.due()) is not None:
                topic.adopted(await topic.adoption.adopt(info))
                continue
            first = topic.feed.first()
            if self.left is not None and self._is_behind(self.left, first):
                await self._abandon_left()
                continue
            if first is not None and (self.left is not None or self._begins_with(first)):
                return first
            if topic.record.end_is_a_change():
                await topic.record.note_end()
            elif self.left is not None:
                if topic.feed.out_of_reach(self.left.begin):
                    await self._abandon_left()
                else:
                    if self.left.end is not None:
                        topic.buffer.starve()
                    await topic.buffer.changed.wait_at_most(self._clock, LOOK_S)
            elif first is not None:
                await topic.buffer.changed.wait_at_most(self._clock, LOOK_S)
            else:
                await topic.buffer.changed.wait()
        return None

    def _is_behind(self, left: Attempt, first: Position | None) -> bool:
        """Say whether what comes next lies behind the begin of an attempt that holds nothing: the loss is on record."""
        return first is not None and not left.parts and first > left.begin

    async def _abandon_left(self) -> None:
        assert self.left is not None  # noqa: S101 - only what is there is abandoned
        error = "the source has lost its first entry"
        await recovery.abandon(self._log, self.left, error, self._context.upload_context.metrics)
        self.left = None

    def _may_adopt(self) -> bool:
        """Say whether ledgers may be taken over from brokers now: a segment could begin as well."""
        topic = self._topic
        none = topic.policy.method is OffloadMethod.NONE or history.waits(topic.map, topic.policy)
        return self.left is None and not none

    def _begins_with(self, first: Position) -> bool:
        return self.method_of(Run(*first, first.entry_id)) is not OffloadMethod.NONE

    async def _layout(self, begin: Position) -> SegmentLayout | LedgerLayout | None:
        """Say how a segment that begins there is cut; None when the ledger has vanished from the source meanwhile."""
        info = self._topic.record.chain.ledgers.get(begin.ledger_id)
        if self.method_of(Run(*begin, begin.entry_id)) is not OffloadMethod.LEDGER_BASED or info is None:
            return self._context.layout
        context, topic, again = self._context, self._topic.topic, bool(self._tries)
        try:
            return await self._topic.failure_tracker.until_answered(
                lambda: ledger_layout(context.ledgers, context.source, topic, info, count=again), "source"
            )
        except NotFound:
            return self._context.layout  # it is being deleted: what of it has been read goes as it came
