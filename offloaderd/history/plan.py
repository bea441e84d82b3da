"""The plan of a topic's history (PIP-76, historical ledgers): who offloads it, and when live segments begin.

Small history under `history-first` needs no plan: the engine streams a topic from its first entry on, so old entries
come first by themselves. A plan is recorded under `alongside`, or for more history than the daemon may offload. Its
boundary is entry 0 of the newest ledger, so no ledger is split between two writers. Live segments begin there, at once
or, under `history-first`, after history. The entries before it are written by the daemon beside them (`writer.py`) or
left to a job.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import structlog

from offloaderd.core.aio import race
from offloaderd.core.errors import Closed, Conflict, Fenced, NotFound, OffloaderError, Transient
from offloaderd.core.model import HistoryOrder, LedgerInfo, OffloadMethod, Position
from offloaderd.core.retry import Backoff, until_answered
from offloaderd.history.boundaries import GUESSED_BYTES
from offloaderd.history.segment import OwnedTopic
from offloaderd.history.writer import HistoryWriter
from offloaderd.metadata import nodes, paths
from offloaderd.metadata.history import load
from offloaderd.metadata.port import Create, Replace
from offloaderd.metadata.records import history as history_record
from offloaderd.metadata.records.history import HistoryPlan, Worker
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.segment.claim.attempt_log import AttemptLog
from offloaderd.segment.context import OffloadContext
from offloaderd.segment.resume import LeftBehind
from offloaderd.segment.roll import RollPolicy
from offloaderd.segment.source_check import Listing

log = structlog.get_logger(__name__)

RANGES_AT_A_TIME = 1
"""Ranges that a daemon writes at a time, of all its topics: live segments need memory and bandwidth as well."""

_WAITS = "run the backfill job, raise history.daemon_bytes_max, or set the topic's history order to alongside"


class Replanned(Closed):
    """The topic has to be claimed again, since its history has to be decided first."""


class Undecided(Transient):
    """The source does not say whether a topic has history to plan; what it has in the map is served meanwhile."""


class Left(NamedTuple):
    """The part of a topic's planned history that is not offloaded yet."""

    entries: int = 0
    payload_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """The closed ledgers with entries before a boundary."""

    boundary: int
    infos: Sequence[LedgerInfo]

    @property
    def begin(self) -> Position:
        """First entry."""
        return Position(self.infos[0].ledger_id, 0)

    @property
    def last(self) -> Position:
        """Last entry."""
        return Position(self.infos[-1].ledger_id, self.infos[-1].entries - 1)

    @property
    def entries(self) -> int:
        """Number of entries."""
        return sum(info.entries for info in self.infos)

    @property
    def payload_bytes(self) -> int:
        """Their payload bytes, estimated where the source has no size."""
        return sum(max(info.size_bytes, 0) or info.entries * GUESSED_BYTES for info in self.infos)


def extent_of(infos: Sequence[LedgerInfo], boundary: int | None = None, *, after: int = -1) -> Extent | None:
    """Return the history behind ledger `after` and before a boundary, by default the newest ledger; None for none."""
    if not infos:
        return None
    boundary = infos[-1].ledger_id if boundary is None else boundary
    old = [info for info in infos if after < info.ledger_id < boundary and info.closed and info.entries > 0]
    return Extent(boundary=boundary, infos=old) if old else None


def waits(topic_map: TopicMap, policy: RollPolicy) -> bool:
    """Return whether live segments have to wait for history, as in PIP-76."""
    plan = topic_map.unfinished
    if plan is None or policy.history_order is not HistoryOrder.HISTORY_FIRST:
        return False
    return not topic_map.segments or topic_map.segments[-1].begin < plan.live_begin


def begins_to_stream(topic: OwnedTopic) -> bool:
    """Return whether a topic of which no history was planned streams now, and is to be loaded again before it does."""
    nothing = not topic.map.segments and topic.map.history is None and topic.attempt is None
    return topic.record.history_unplanned and nothing and topic.policy.method is OffloadMethod.STREAMING


def left_of(topic_map: TopicMap) -> Left:
    """Return the part of history that is neither offloaded nor lost; as exact as the source's sizes."""
    plan = topic_map.unfinished
    if plan is None:
        return Left()
    done = [part for one in topic_map.segments for part in one.slices if plan.first <= part.ledger_id < plan.boundary]
    lost = sum(loss.entries for loss in topic_map.losses if loss.before <= plan.live_begin)
    entries = max(0, plan.entries - lost - sum(part.entries for part in done))
    return Left(entries, max(0, plan.payload_bytes - sum(part.payload_bytes for part in done)) if entries else 0)


async def prepare(
    context: OffloadContext,
    attempts: AttemptLog,
    topic_map: TopicMap,
    left: LeftBehind,
    policy: RollPolicy,
    daemon_id: str,
    ledgers: Listing,
) -> TopicMap:
    """Plan a topic's history, unless it needs no plan or has one; return the map with the plan.

    If a topic's map begins with a later ledger than the source (it was rebuilt without the earlier segments), the older
    ledgers are planned as well. There is no plan where brokers have offloaded some of them and these are not adopted:
    each ledger is then handled by itself. Raises Fenced, Transient when the source of a new topic is away, Undecided
    when that of another one is, and IdentityRefused when `ledgers` are of another history.
    """
    limit = context.history_bytes_max
    plan = topic_map.unfinished
    now_ms = context.upload_context.clock.wall_ms()
    if plan is not None and _is_small_and_idle(plan, limit, now_ms):
        return await _record(context, attempts, topic_map, replace(plan, worker=Worker.DAEMON))
    known, adopted = topic_map.segments, topic_map.offloaded
    first = None if all(segment.foreign for segment in known) else known[0].begin
    decided = (
        topic_map.history is not None or topic_map.floor is not None or policy.method is not OffloadMethod.STREAMING
    )
    if context.source is None or decided or (first is None and (left.begin is not None or topic_map.losses)):
        return topic_map
    if first is not None and (first.entry_id or any(loss.before == first for loss in topic_map.losses)):
        return topic_map
    after = adopted.ledger_id if first is None and adopted is not None else -1
    try:
        infos = await ledgers()
    except NotFound:
        return topic_map
    except Transient as error:
        if not topic_map.segments:
            raise
        raise Undecided(f"the source of {topic_map.topic} does not answer: {error.message}") from error
    extent = extent_of(infos, first.ledger_id if first is not None else None, after=after)
    if extent is None or await brokers_have(context, topic_map, extent, after):
        return topic_map
    by_daemon = extent.payload_bytes <= limit
    if first is None and by_daemon and policy.history_order is HistoryOrder.HISTORY_FIRST:
        return topic_map
    return await _record(
        context,
        attempts,
        topic_map,
        HistoryPlan(
            boundary=extent.boundary,
            first=extent.begin.ledger_id,
            last=extent.last,
            order=policy.history_order,
            worker=Worker.DAEMON if by_daemon else Worker.JOB,
            planned_ms=now_ms,
            epoch=attempts.fence.claim.epoch,
            daemon_id=daemon_id,
            entries=extent.entries,
            payload_bytes=extent.payload_bytes,
        ),
    )


def _is_small_and_idle(plan: HistoryPlan, limit: int, now_ms: int) -> bool:
    """Return whether a daemon may take the plan back from a job: it is small, and no driver works on it."""
    untouched = plan.worker is Worker.JOB and not plan.ranges and plan.holder_until_ms < now_ms
    return untouched and plan.method is OffloadMethod.STREAMING and plan.payload_bytes <= limit


async def brokers_have(context: OffloadContext, topic_map: TopicMap, extent: Extent, after: int) -> bool:
    """Return whether brokers have offloaded ledgers that would be planned, or earlier ones. Raises Transient."""
    if context.offloads is None:
        return False
    try:
        found = await context.offloads.offloaded(topic_map.topic)
    except NotFound:
        return False
    return any(after < info.ledger_id < extent.boundary for info in found)


async def _record(context: OffloadContext, attempts: AttemptLog, topic_map: TopicMap, plan: HistoryPlan) -> TopicMap:
    """Write the plan, over an earlier one. Raises Fenced, Conflict."""
    store, topic = attempts.fence.store, topic_map.topic
    path, value = paths.history_plan(topic), history_record.encode(plan)
    known = topic_map.history is not None

    async def ensure_folders() -> None:
        try:
            await store.create(paths.history_ranges(topic), b"")
        except Conflict:
            log.debug("history.folder_exists", topic=str(topic))

    async def recorded() -> bool:
        return (await catalog.load(store, topic)).history == plan

    await until_answered(context.upload_context.clock, ensure_folders)
    step = Replace(path, value, topic_map.history_version) if known else Create(path, value)
    await attempts.fence.settle([step], recorded)
    tell = log.warning if plan.worker is Worker.JOB else log.info
    tell(
        "history.planned",
        topic=str(topic),
        boundary=str(plan.live_begin),
        last=str(plan.last),
        order=str(plan.order),
        worker=str(plan.worker),
        entries=plan.entries,
        payload_bytes=plan.payload_bytes,
        hint=_WAITS if plan.worker is Worker.JOB else "",
    )
    return replace(topic_map, history=plan, history_version=topic_map.history_version + 1 if known else 0)


class History:
    """The duty for each topic to offload its history, or to follow the job that does."""

    def __init__(self, context: OffloadContext, daemon_id: Callable[[], str]) -> None:
        self._context = context
        self._daemon_id = daemon_id
        self._clock, self._metrics = context.upload_context.clock, context.upload_context.metrics
        self._turns = asyncio.Semaphore(RANGES_AT_A_TIME)

    async def run(self, offloader: OwnedTopic) -> None:
        """Work until history is done. Raises Fenced; other errors are logged, and the work is tried again."""
        backoff = Backoff(self._clock)
        while (plan := offloader.map.unfinished) is not None:
            try:
                if plan.worker is Worker.JOB or self._context.source is None:
                    await self._follow(offloader)
                else:
                    holder = self._daemon_id()
                    await HistoryWriter(
                        offloader, self._context, self._context.source, self._turns, holder=holder
                    ).run()
            except Fenced:
                raise
            except OffloaderError as error:
                offloader.record.history_error = error
                log.error(  # noqa: TRY400 - an operator needs the message; a trace of expected errors hides it
                    "history.stalled", topic=str(offloader.topic), error=str(error), error_class=type(error).__name__
                )
                await backoff.wait(error)
                await offloader.record.reload()
        offloader.notify()
        await self._until_replanned(offloader)

    async def _until_replanned(self, offloader: OwnedTopic) -> None:
        """Raise Replanned once the topic's history has to be decided again.

        This is so when a topic that has offloaded nothing by another method begins to stream, or when a job has planned
        to offload the closed ledgers of a topic that does not stream, or when a source that was away at the claim has
        ledgers before all segments.
        """
        if offloader.record.history_undecided:
            await self._until_listed(offloader)

        def streams() -> bool:
            return offloader.policy.method is OffloadMethod.STREAMING

        if self._context.source is None or (streams() and not offloader.record.history_unplanned):
            return
        while not streams():
            await race(offloader.policy_changed.wait(), self._planned_by_job(offloader))
        if begins_to_stream(offloader):
            raise Replanned(f"{offloader.topic} begins to stream: what it holds by now is history")
        offloader.record.history_unplanned = False

    async def _until_listed(self, offloader: OwnedTopic) -> None:
        """Return once the source answers. Raises Replanned if it has ledgers before the first one of the map."""
        source = self._context.source
        assert source is not None  # noqa: S101 - without one there is nothing to decide
        try:
            infos = await until_answered(self._clock, partial(source.ledgers, offloader.topic))
        except NotFound:
            infos = ()
        begin = next((one.begin for one in offloader.map.segments), None)
        if begin is not None and extent_of(infos, begin.ledger_id) is not None:
            raise Replanned(f"{offloader.topic} holds ledgers before {begin}, and its source was away at the claim")

    async def _planned_by_job(self, offloader: OwnedTopic) -> None:
        """Raise Replanned when a job has planned history; the job has ended the topic's claim."""
        path = paths.history_plan(offloader.topic)
        async with aclosing(self._context.metadata.watch(path)) as changes:
            async for _ in changes:
                read = partial(nodes.record, self._context.metadata, path, history_record.decode)
                plan = await until_answered(self._clock, read)
                known = offloader.map.history
                if plan is not None and (known is None or plan.boundary != known.boundary):
                    raise Replanned(f"a job offloads what {offloader.topic} holds before {plan.live_begin}")

    async def _follow(self, offloader: OwnedTopic) -> None:
        """Refresh the map at each commit of a job, which changes the plan, until no history is left to a job."""
        path = paths.history_plan(offloader.topic)
        async with aclosing(self._context.metadata.watch(path)) as changes:
            async for _ in changes:
                await offloader.record.reload()
                offloader.changed.notify()
                plan = offloader.map.unfinished
                if plan is not None:
                    offloader.record.history_ranges = await load(self._context.metadata, offloader.topic, plan.ranges)
                if plan is None or plan.worker is not Worker.JOB:
                    return
