"""The record of a topic's history: the source's ledgers before the boundary, and the ranges.

In its chain the boundary is a ledger without entries, so that a loss at the end of history ends there, independent of
live ledgers. A list of ledgers counts only if it reaches the boundary, since trimming deletes from the front.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from offloaderd.core.errors import NotFound, Transient
from offloaderd.core.model import START, LedgerEnd, LedgerInfo, Loss, OffloadMethod, Position, TopicName
from offloaderd.format.manifest import LedgerPart
from offloaderd.history.boundaries import Split
from offloaderd.ledgers.chain import LedgerChain
from offloaderd.metadata import history, paths
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.history import HistoryRanges
from offloaderd.metadata.port import Check, Create, Delete
from offloaderd.metadata.records.attempt import Attempt
from offloaderd.metadata.records.history import RANGES_PER_NODE, HistoryPlan, HistoryRange, RangeState
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.segment.claim.attempt_log import AttemptLog
from offloaderd.segment.claim.topic_record import HistoryGap, TopicRecord, known_ends, losses_before

Ledgers = Callable[[], Awaitable[Sequence[LedgerInfo]]]


class HistoryRecord:
    """The history of one topic under one claim. `begin` is where an earlier owner's unfinished segment begins."""

    def __init__(
        self, record: TopicRecord, plan: HistoryPlan, attempts: AttemptLog, begin: Position | None, *, holder: str
    ) -> None:
        resume = record.map.history_end or START
        self._record = record
        self._attempts = attempts
        self._holder = holder
        self._boundary = plan.boundary
        self.chain = LedgerChain(
            resume,
            end=record.map.ends.get(resume.ledger_id),
            begin=begin if begin is not None or resume != START else Position(plan.first, 0),
            losses=[loss for loss in record.map.losses if loss.before <= plan.live_begin],
        )

    @property
    def map(self) -> TopicMap:
        """The topic's map."""
        return self._record.map

    @property
    def ranges(self) -> HistoryRanges:
        """The ranges of history."""
        return self._record.history_ranges

    @ranges.setter
    def ranges(self, after: HistoryRanges) -> None:
        self._record.history_ranges = after

    @property
    def plan(self) -> HistoryPlan:
        """The recorded plan."""
        plan = self._record.map.history
        assert plan is not None  # noqa: S101 - there is work on a plan only
        return plan

    @property
    def standing(self) -> Position:
        """The newest committed position of history; START if there is none."""
        return self._record.map.history_end or START

    async def refresh(self, ledgers: Ledgers) -> list[LedgerInfo]:
        """Refresh and return the source's ledgers of history. Raises Transient, HistoryGap, and as `ledgers` does."""
        old = await ledgers_of(ledgers, self._record.map.topic, self.plan.last, self._boundary)
        self.chain.update([*old, edge_at(self._boundary)])
        return old

    def known_ends(
        self, parts: Sequence[LedgerPart], infos: Mapping[int, LedgerInfo]
    ) -> tuple[tuple[int, LedgerEnd], ...]:
        """Return how ledgers ended; see TopicRecord."""
        return known_ends(self.chain, self._record.map.history_end, parts, infos)

    def losses_before(self, parts: Sequence[LedgerPart]) -> tuple[Loss, ...]:
        """Return the losses up to the end of the next segment; see TopicRecord."""
        return losses_before(self._record.map, self._record.map.history_end, parts)

    async def lost(self, loss: Loss) -> None:
        """Record a part of history that the source deleted before it was offloaded. Raises Fenced."""
        await self._record.lost(loss)
        self.chain.accept(loss)

    async def load(self) -> None:
        """Read the ranges. Raises NotFound, CorruptData, Transient."""
        self.ranges = await history.load(self._record.fence.store, self._record.map.topic, self.plan.ranges)

    async def store(self, split: Split, segment_bytes: int, method: OffloadMethod = OffloadMethod.STREAMING) -> None:
        """Record the ranges of the rest of history, in place of earlier ones. Raises Fenced."""
        topic, store = self._record.map.topic, self._record.fence.store
        ranges = history.HistoryRanges.split(topic, split.ranges)
        for name in await store.children(paths.history_ranges(topic)):
            await self._settle(Delete(f"{paths.history_ranges(topic)}/{name}"))
        for step in ranges.creations():
            await self._settle(step)
        plan = replace(
            self.plan,
            segment_bytes=segment_bytes,
            method=method,
            ranges=len(split.ranges),
            probes=split.probes,
            split_ms=int(split.seconds * 1000),
            doubtful_ledgers=len(split.doubts),
        )
        await self._record.change_plan(plan)
        self.ranges = ranges

    async def _settle(self, step: Create | Delete) -> None:
        store = self._record.fence.store

        async def recorded() -> bool:
            names = await store.children(paths.history_ranges(self._record.map.topic))
            return (step.path.rpartition("/")[2] in names) is isinstance(step, Create)

        await self._record.fence.settle([step], recorded)

    async def begin(self, attempt: Attempt, attempts: AttemptLog | None = None) -> None:
        """Record an attempt before its first byte, and the holder of its range. Raises Fenced, Conflict.

        `attempts` is its log, if there are several at a time.
        """
        attempts = attempts or self._attempts
        index = self.ranges.at(attempt.begin)
        if index is None:
            await attempts.begin(attempt, [self._unchanged()])
            return
        claimed = replace(
            self.ranges.ranges[index],
            state=RangeState.CLAIMED,
            holder=self._holder,
            epoch=attempt.epoch,
            segment_id=attempt.segment_id,
        )
        steps, after = self.ranges.with_ranges({index: claimed})
        await attempts.begin(attempt, [self._unchanged(), *steps])
        self.ranges = after

    async def commit(
        self,
        segment: CommittedSegment,
        ends: Mapping[int, LedgerEnd],
        attempts: AttemptLog | None = None,
        plan: HistoryPlan | None = None,
    ) -> None:
        """Make a segment part of the topic. Raises Fenced, Conflict, HistoryGap.

        `attempts` is the log of its attempt, if there are several at a time. The plan becomes `plan`, which notifies
        its watchers of the commit.
        """
        steps, after = self.ranges.with_ranges(self._over(segment.end))
        along = steps if plan is not None else [self._unchanged(), *steps]
        await self._record.commit_history(attempts or self._attempts, segment, ends, along, plan)
        self.ranges = after
        last = segment.end.ledger_id
        if last in ends and last not in self.chain.ledgers:
            self.chain.ended(last, ends[last])  # noted by its writer, before the source deleted it
        self.chain.forget_before(segment.end)

    async def give_up(self, attempt: Attempt, reason: str, attempts: AttemptLog | None = None) -> None:
        """Give up a failed attempt and plan its range again. Raises Fenced."""
        changed: dict[int, HistoryRange] = {}
        index = self.ranges.at(attempt.begin)
        if index is not None:
            one = self.ranges.ranges[index]
            back = replace(one, state=RangeState.PLANNED, segment_id=None, tries=one.tries + 1, last_error=reason)
            changed[index] = replace(back, holder="", epoch=0)
        steps, after = self.ranges.with_ranges(changed)
        await (attempts or self._attempts).give_up(attempt, reason, steps)
        self.ranges = after

    async def finish(self, now_ms: int) -> None:
        """Record that all of history is offloaded or lost. Raises Fenced, Conflict, HistoryGap."""
        topic_map, plan = self._record.map, self.plan
        end = topic_map.history_end
        ended = topic_map.ends.get(plan.last.ledger_id)
        whole = end == plan.last and (ended is None or ended.entries == plan.last.entry_id + 1)
        lost = any(loss.after == self.standing and loss.before == plan.live_begin for loss in topic_map.losses)
        if not whole and not lost:
            raise HistoryGap(
                f"history of {topic_map.topic} was to end with {plan.last}, and ends with {end}: nothing more of it is "
                "at the source, and nothing is known to be lost",
                hint="compare offloadctl ledgers list with the topic's ledgers; nothing is given up meanwhile",
            )
        while over := self._over(plan.last):
            steps, after = self.ranges.with_ranges(over)
            await self._record.change_plan(plan, steps)
            self.ranges = after
        await self._record.change_plan(replace(plan, done_ms=max(1, now_ms)))

    def _over(self, end: Position) -> dict[int, HistoryRange]:
        """Return the ranges up to `end` to mark done, as many as fit a commit."""
        over = self.ranges.behind(end)[:RANGES_PER_NODE]
        return {index: replace(self.ranges.ranges[index], state=RangeState.DONE) for index in over}

    def _unchanged(self) -> Check:
        """Return the check that no other process has taken history over."""
        topic_map = self._record.map
        return Check(paths.history_plan(topic_map.topic), topic_map.history_version)


async def ledgers_of(ledgers: Ledgers, topic: TopicName, last: Position, boundary: int) -> list[LedgerInfo]:
    """Return the source's ledgers before the boundary; `last` is the last entry of history.

    Raises Transient for a list that does not reach the boundary, HistoryGap when the last ledger has changed, and as
    `ledgers` does.
    """
    try:
        infos = list(await ledgers())
    except NotFound:
        infos = []
    if not any(info.ledger_id >= boundary for info in infos):
        raise Transient(
            f"the source lists nothing of {topic} from ledger {boundary} on",
            hint="history waits until it does: the topic was deleted, or its list is not whole",
        )
    old = [info for info in infos if info.ledger_id < boundary]
    end = next((info for info in old if info.ledger_id == last.ledger_id), None)
    if end is not None and (not end.closed or end.entries != last.entry_id + 1):
        raise HistoryGap(
            f"ledger {end.ledger_id} of {topic} has {end.entries} entries, and history was planned to end with {last}",
            hint="a closed ledger has changed at its source; nothing behind it is committed",
        )
    return old


def edge_at(boundary: int) -> LedgerInfo:
    """Return the boundary for a chain of history: an open ledger without entries."""
    return LedgerInfo(ledger_id=boundary, closed=False, entries=0, size_bytes=0)
