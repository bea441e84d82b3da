"""The record of a topic: its map, changed by one writer at a time, and the chain of its known ledgers.

Ends of ledgers are recorded as soon as all entries before them are offloaded, and losses as soon as they are noticed,
so that after a restart the owner knows what a deleted ledger means.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from uuid import UUID

import structlog

from offloaderd.core.clock import Clock
from offloaderd.core.errors import Conflict, Fenced, NotFound, OffloaderError
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import START, LedgerEnd, LedgerInfo, Loss, Position, SegmentRange
from offloaderd.core.retry import until_answered
from offloaderd.format.manifest import LedgerPart
from offloaderd.ledgers.chain import LedgerChain
from offloaderd.metadata import paths
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.history import HistoryRanges
from offloaderd.metadata.port import Replace, Step
from offloaderd.metadata.records import history as history_record
from offloaderd.metadata.records.attempt import Attempt
from offloaderd.metadata.records.history import HistoryPlan
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map import mirroring, removal
from offloaderd.metadata.topic_map.map import Edit, TopicMap
from offloaderd.segment.claim.attempt_log import AttemptLog

log = structlog.get_logger(__name__)

CHANGES_MAX = 10
"""Tries of a change while another process changes the map."""


class HistoryGap(OffloaderError):
    """History and the live segments behind it would not be adjacent: nothing is committed."""


class TopicRecord:
    """A topic's map under one claim. `begin` is where an earlier owner's unfinished segment began.

    The chain is that of the live edge; history that is offloaded beside it has one of its own (`history/record.py`).
    """

    def __init__(
        self, attempts: AttemptLog, topic_map: TopicMap, begin: Position | None, *, clock: Clock, metrics: Metrics
    ) -> None:
        resume, plan = topic_map.standing or START, topic_map.history
        end = plan.end if plan is not None and resume == plan.last else topic_map.ends.get(resume.ledger_id)
        self.map = topic_map
        self.chain = LedgerChain(resume, end=end, begin=begin, losses=topic_map.losses)
        self.history_error: OffloaderError | None = None
        """The present failure of offloading history."""
        self.history_undecided = False
        """Whether the source was away when its history was to be planned."""
        self.history_unplanned = False
        """Whether no history was planned because the topic did not stream."""
        self.history_ranges = HistoryRanges(topic_map.topic)
        """The ranges of history, as far as they were read."""
        self.trash_due = False
        """Whether the owner has added to the trash list since that was emptied last; its watch may be late."""
        self.fence = attempts.fence
        self._attempts = attempts
        self._clock = clock
        self._metrics = metrics
        self._writing = asyncio.Lock()  # a writer of nodes has to know their versions

    @property
    def offloaded(self) -> Position | None:
        """Newest position that is durable in the bucket and committed."""
        return self.map.offloaded

    def end_is_unrecorded(self) -> bool:
        """Return whether the end of the ledger at the offloaded position is known and not recorded."""
        return bool(self._end_of_offloaded())

    async def note_end(self) -> None:
        """Record that end, if all before it is offloaded. Raises Fenced."""
        await self._change(lambda known: self._attempts.note_ends(known, self._end_of_offloaded()))

    async def note_closed(self, last: Position) -> None:
        """Record that a ledger ends with the entry at `last`, if it is offloaded up to there. Raises Fenced.

        For a topic without a source: its pusher may report this after that entry, or later ledgers, are committed.
        """
        ends = {last.ledger_id: LedgerEnd(last.entry_id + 1, None)}
        await self._change(lambda known: self._attempts.note_ends(known, ends))

    def known_ends(
        self, parts: Sequence[LedgerPart], infos: Mapping[int, LedgerInfo]
    ) -> tuple[tuple[int, LedgerEnd], ...]:
        """Return the known ends of ledgers: of the one at the offloaded position, and of those in the next segment.

        `parts` is the next segment's part of each ledger, `infos` are the source's ledgers.
        """
        return known_ends(self.chain, self.map.standing, parts, infos)

    def losses_before(self, parts: Sequence[LedgerPart]) -> tuple[Loss, ...]:
        """Return the losses between the offloaded position and the end of the next segment, which holds `parts`.

        No segment of history has a loss at its end, so live segments keep it for a rebuild of the map.
        """
        plan = self.map.history
        tail = [loss for loss in self.map.losses if plan is not None and loss.before == plan.live_begin]
        return (*tail, *losses_before(self.map, self.map.standing, parts))

    async def begin(self, attempt: Attempt) -> None:
        """Record a new attempt. Raises Fenced."""
        await self._attempts.begin(attempt)

    async def give_up(self, attempt: Attempt, why: str) -> None:
        """Put an attempt's objects on the trash list, and end it. Raises Fenced."""
        await self._attempts.give_up(attempt, why)
        self.trash_due = True

    async def commit(self, segment: CommittedSegment, ends: Mapping[int, LedgerEnd]) -> None:
        """Commit a live segment, and record which ledgers ended. Raises Fenced, Conflict.

        Raises HistoryGap when it is not adjacent to history.
        """

        async def committed(known: TopicMap) -> TopicMap:
            self._check_boundary(segment)
            return await self._attempts.commit(known, segment, ends)

        await self._change(committed)
        self.chain.forget_before(segment.end)

    def _check_boundary(self, segment: CommittedSegment) -> None:
        """Raise HistoryGap for a live segment that begins in history, or certainly omits entries behind it."""
        plan, offloaded = self.map.history, self.map.offloaded
        # Not by the segments: retention may have removed the first live one since.
        if plan is None or (offloaded is not None and offloaded >= plan.live_begin):
            return
        boundary = self.chain.end_of(plan.boundary)
        skipped = segment.begin.ledger_id > plan.boundary and boundary is not None and boundary.entries > 0
        told = any(loss.after == plan.last and loss.before == segment.begin for loss in self.map.losses)
        if segment.begin < plan.live_begin or segment.begin.entry_id or (skipped and not told):
            raise HistoryGap(
                f"segment {segment.segment_id} of {self.map.topic} begins with {segment.begin}, and history ends with "
                f"{plan.last} before {plan.live_begin}",
                hint="a defect: nothing is committed; report it with the topic's nodes in the metadata store",
            )

    async def adopt(self, segment: CommittedSegment, end: LedgerEnd) -> None:
        """Commit a ledger that a broker has offloaded itself. Raises Fenced, Conflict, HistoryGap."""

        async def adopted(known: TopicMap) -> TopicMap:
            self._check_boundary(segment)
            return await self._attempts.change(
                known, lambda before: before.with_commit(segment, {segment.end.ledger_id: end})
            )

        await self._change(adopted)
        self.chain.forget_before(segment.end)

    async def commit_history(
        self,
        attempts: AttemptLog,
        segment: CommittedSegment,
        ends: Mapping[int, LedgerEnd],
        along: Sequence[Step],
        plan: HistoryPlan | None = None,
    ) -> None:
        """Commit a segment of history; the steps `along` are part of the same transaction.

        The plan becomes `plan`, if given. Raises Fenced, Conflict, HistoryGap.
        """
        async with self._writing:
            self._check_joint(segment, ends)
            changes = [self._planned(plan)] if plan is not None else []
            after = await attempts.commit(self.map, segment, ends, [*changes, *along])
            if plan is not None:
                after = replace(after, history=plan, history_version=self.map.history_version + 1)
            self.map = after

    def _planned(self, plan: HistoryPlan) -> Replace:
        return Replace(paths.history_plan(self.map.topic), history_record.encode(plan), self.map.history_version)

    def _check_joint(self, segment: CommittedSegment, ends: Mapping[int, LedgerEnd]) -> None:
        """Raise HistoryGap for a segment that is not adjacent to the offloaded part of history, or exceeds its end."""
        plan, before = self.map.history, self.map.history_end
        assert plan is not None  # noqa: S101 - only a plan has segments of history
        _, after = self.map.with_commit(segment, ends)
        if before is None:
            front = any(loss.after == START and loss.before == segment.begin for loss in self.map.losses)
            joined = front or segment.begin == Position(plan.first, 0)
        else:
            joined = after.joined(before, segment.begin)
        last = ends.get(plan.last.ledger_id)
        ended = last is None or last.entries == plan.last.entry_id + 1
        if not joined or not ended or segment.end > plan.last:
            raise HistoryGap(
                f"segment {segment.segment_id} of {self.map.topic} ({segment.range}) does not join on to "
                f"{before or 'the begin'} of a history that ends with {plan.last}",
                hint="a ledger of the source is not as long as it was, or a defect; nothing is committed",
            )

    async def change_plan(self, plan: HistoryPlan, steps: Sequence[Step] = ()) -> None:
        """Record a change of the plan, with other steps in the same transaction. Raises Fenced, Conflict."""
        async with self._writing:
            after = replace(self.map, history=plan, history_version=self.map.history_version + 1)
            written = [self._planned(plan), *steps]
            self.map = await self._attempts.change(self.map, lambda _: (written, after))

    async def exchange(self, attempts: AttemptLog, whole: CommittedSegment) -> None:
        """Replace a ledger's slices of segments by its whole object. Raises Fenced, Conflict."""
        async with self._writing:
            self.map = await attempts.exchange(self.map, whole)

    async def _edit(self, edit: Edit) -> None:
        await self._change(lambda known: self._attempts.change(known, edit))

    async def _change(self, make: Callable[[TopicMap], Awaitable[TopicMap]]) -> None:
        """Replace the map by what `make` returns for it. Raises Fenced, Conflict, NotFound, what `make` raises.

        A job that rewrites segments changes contexts as well: after a conflict the map is read again, and the change
        repeated with it.
        """
        async with self._writing:
            for tries in range(1, CHANGES_MAX + 1):
                before = self.map
                try:
                    self.map = await make(before)
                except Fenced:
                    raise
                except (Conflict, NotFound):
                    self.map = await self._loaded()
                    if self.map == before or tries == CHANGES_MAX:
                        raise
                else:
                    return

    async def _loaded(self) -> TopicMap:
        store, topic = self.fence.store, self.map.topic
        return await until_answered(self._clock, lambda: catalog.load(store, topic))

    async def reload(self) -> None:
        """Read the map again, with another process's commits of history and changes of its plan. Raises CorruptData."""
        async with self._writing:
            self.map = await self._loaded()

    async def lost(self, loss: Loss) -> None:
        """Record, count and log a range that was deleted before it was offloaded. Raises IdentityRefused, Fenced.

        Refused if the metadata went back: the bucket may have entries that the map lacks. One that a manifest has keeps
        the time at which it was noticed.
        """
        await self._attempts.check_head(self.map)
        async with self._writing:
            noticed = loss._replace(noticed_ms=loss.noticed_ms or self._clock.wall_ms())
            self.map = await self._attempts.note_loss(self.map, noticed)
        self.chain.accept(loss)
        self._metrics.source_losses.labels(kind="certain" if loss.certain else "possible").inc()
        self._metrics.source_lost_entries.inc(loss.entries)
        if loss.certain:
            log.error(
                "topic.entries_lost",
                topic=str(self.map.topic),
                range=str(loss),
                entries_at_least=loss.entries,
                hint="the source deleted them before they were offloaded; retain them longer, or find what was late",
            )
        else:
            log.warning(
                "topic.entries_possibly_lost",
                topic=str(self.map.topic),
                range=str(loss),
                reason="a ledger that was open when it was last read, or was never read, is not at the source any more",
                hint="nothing, if the topic was deleted or its ledgers were empty; else as topic.entries_lost",
            )

    async def mark_deleted(self, ledger_ids: Iterable[int]) -> None:
        """Record that ledgers are deleted, as many at a time as fit a transaction. Raises Fenced.

        See `removal.mark_deleted`; ledgers that were marked before an error stay marked.
        """
        now_ms = self._clock.wall_ms()
        for some in removal.batches(self.map, ledger_ids):
            await self._edit(partial(removal.mark_deleted, ledger_ids=some, now_ms=now_ms))

    async def note_source_deleted(self, ledger_ids: Iterable[int]) -> None:
        """Record that the source has deleted ledgers, or is about to. Raises Fenced."""
        for some in removal.batches(self.map, set(ledger_ids) - self.map.source_deleted):
            await self._edit(partial(removal.note_source_deleted, ledger_ids=some))

    async def note_created(self, created: Mapping[int, int]) -> None:
        """Record creation times of ledgers, over recorded ones. Raises Fenced."""
        changed = {one: at for one, at in created.items() if self.map.created.get(one) != at}
        for some in removal.batches(self.map, changed):
            await self._edit(partial(removal.note_created, created={one: changed[one] for one in some}))

    async def remove_oldest(self, segment: CommittedSegment, reason: str) -> bool:
        """Remove the oldest segment from the map and put it on the trash list; False if that was done meanwhile.

        Raises Fenced, Conflict.
        """
        removed = False

        async def without(known: TopicMap) -> TopicMap:
            nonlocal removed
            removed = segment in known.segments[:1] and known.unfinished is None
            edit = partial(removal.without_oldest, segment=segment, reason=reason, now_ms=self._clock.wall_ms())
            return await self._attempts.change(known, edit) if removed else known

        await self._change(without)
        self.trash_due |= removed
        return removed

    async def mirrored(self, segment_id: UUID, place: tuple[str, str], along: Sequence[Step]) -> None:
        """Record the verified copy of a segment, with the steps `along` in the same transaction.

        Raises Fenced; Conflict if the segment has left the map, or `along` do not hold any more; NotFound as `along`.
        """

        def edit(known: TopicMap) -> tuple[list[Step], TopicMap]:
            steps, after = mirroring.with_copy(known, segment_id, place)
            return [*steps, *along], after

        await self._edit(edit)

    async def exchange_places(self, segment_id: UUID, first: tuple[str, str]) -> None:
        """Make a segment's mirror its first place, if that is `first`; else change nothing. Raises Fenced, Conflict."""
        await self._edit(partial(mirroring.exchanged, segment_id=segment_id, first=first))

    async def drop_copy(self, segment_id: UUID, place: tuple[str, str]) -> None:
        """Put a segment's copy in a place on the trash list; nothing if it has none there. Raises Fenced, Conflict."""
        now_ms = self._clock.wall_ms()
        await self._edit(partial(mirroring.without_copy, segment_id=segment_id, place=place, now_ms=now_ms))
        self.trash_due = True

    def trimmed(self) -> list[int]:
        """Return the map's ledgers that the source has trimmed: those before the first that it lists."""
        listed = self.chain.ledgers
        first = min(listed, default=0)
        return [ledger_id for ledger_id in self.map.ends if ledger_id < first and ledger_id in self.map.contexts]

    def _end_of_offloaded(self) -> dict[int, LedgerEnd]:
        offloaded, plan = self.offloaded, self.map.unfinished
        if offloaded is not None and plan is not None and offloaded < plan.live_begin:
            return {}  # the committer of history records it
        end = self.chain.end_of(offloaded.ledger_id) if offloaded is not None else None
        if offloaded is None or end is None or end.entries != offloaded.entry_id + 1:
            return {}
        return {offloaded.ledger_id: end} if end.adds_to(self.map.ends.get(offloaded.ledger_id)) else {}


def known_ends(
    chain: LedgerChain, standing: Position | None, parts: Sequence[LedgerPart], infos: Mapping[int, LedgerInfo]
) -> tuple[tuple[int, LedgerEnd], ...]:
    """Return the known ends of ledgers: of the one at `standing`, and of those in the segment behind it."""
    held = {part.ledger_id: part.last_entry_id + 1 for part in parts}
    before = {standing.ledger_id} if standing is not None else set()
    ends = []
    for ledger_id in sorted(held.keys() | before):
        end, info = chain.end_of(ledger_id), infos.get(ledger_id)
        if end is None and info is not None and info.closed:
            end = LedgerEnd(info.entries, None)
        if end is not None and end.entries >= held.get(ledger_id, 0):
            ends.append((ledger_id, end))
    return tuple(ends)


def losses_before(topic_map: TopicMap, standing: Position | None, parts: Sequence[LedgerPart]) -> tuple[Loss, ...]:
    """Return the losses between `standing` and the end of the segment behind it, which holds `parts`."""
    since, end = standing or START, Position(parts[-1].ledger_id, parts[-1].last_entry_id)
    ranges = [
        SegmentRange(Position(part.ledger_id, part.first_entry_id), Position(part.ledger_id, part.last_entry_id))
        for part in parts
    ]
    left = [loss.without(ranges) for loss in topic_map.losses]
    return tuple(loss for loss in left if loss is not None and since <= loss.after and loss.before <= end)
