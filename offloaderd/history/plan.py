"""Entries from before a topic was enabled (PIP-76, historical ledgers): who offloads them, when live segments begin.

Small history under `history-first` needs nothing of this: the engine streams a topic from its first entry on, so what
is old comes first by itself. A plan is recorded where that is not the way: `alongside`, or more than the daemon should
do. Its boundary is entry 0 of the newest ledger, so no ledger is split between two writers. Live segments begin there,
at once or, under `history-first`, when history is done; what lies before is written by the daemon beside them
(`writer.py`) or left to a job.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import structlog

from offloaderd.core.aio.signal import race
from offloaderd.core.errors import Closed, Conflict, Fenced, NotFound, OffloaderError, Transient
from offloaderd.core.model import HistoryOrder, LedgerInfo, OffloadMethod, Position
from offloaderd.core.retry import Backoff, until_answered
from offloaderd.history.boundaries import GUESSED_BYTES
from offloaderd.history.owned_topic import OwnedTopic
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
"""Ranges that a daemon writes side by side, of all its topics: live segments need the memory and the line as well."""

_WAITS = "run the backfill job, raise history.daemon_bytes_max, or set the topic's history order to alongside"


class Replanned(Closed):
    """The topic is to be claimed anew, since what is history has to be decided first."""


class Left(NamedTuple):
    """What of a topic's history is not offloaded yet, by its plan."""

    entries: int = 0
    payload_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """The closed ledgers before a boundary that have entries."""

    boundary: int
    infos: Sequence[LedgerInfo]

    @property
    def begin(self) -> Position:
        """The first entry."""
        return Position(self.infos[0].ledger_id, 0)

    @property
    def last(self) -> Position:
        """The last entry."""
        return Position(self.infos[-1].ledger_id, self.infos[-1].entries - 1)

    @property
    def entries(self) -> int:
        """How many there are."""
        return sum(info.entries for info in self.infos)

    @property
    def payload_bytes(self) -> int:
        """How large they are, as far as the source says."""
        return sum(max(info.size_bytes, 0) or info.entries * GUESSED_BYTES for info in self.infos)


def extent_of(infos: Sequence[LedgerInfo], boundary: int | None = None, *, after: int = -1) -> Extent | None:
    """Return what is history behind ledger `after` and before a boundary; None when there is nothing.

    The boundary is by default the newest ledger.
    """
    if not infos:
        return None
    boundary = infos[-1].ledger_id if boundary is None else boundary
    old = [info for info in infos if after < info.ledger_id < boundary and info.closed and info.entries > 0]
    return Extent(boundary=boundary, infos=old) if old else None


def waits(topic_map: TopicMap, policy: RollPolicy) -> bool:
    """Say whether live segments are not to begin yet: PIP-76 has history offloaded first."""
    plan = topic_map.unfinished
    if plan is None or policy.history_order is not HistoryOrder.HISTORY_FIRST:
        return False
    return not topic_map.segments or topic_map.segments[-1].begin < plan.live_begin


def left_of(topic_map: TopicMap) -> Left:
    """Return what of history is neither offloaded nor recorded as lost; as exact as what the source said of it."""
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
    """Plan a topic's history if it has one that does not go by itself; returns the map with the plan.

    A topic that was offloaded from a later ledger on than its source has (its map was rebuilt without what lay before)
    has its older ledgers planned as well. Where brokers have offloaded some of them and they were not adopted, there
    is no plan: they are dealt with one by one. Raises Fenced, Transient when the source of a new topic is away, and
    IdentityRefused when `ledgers` are of another history.
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
    infos = await _ledgers(ledgers, topic_map)
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
    """Say whether a daemon may take back from a job what it would offload by itself; no driver works on it."""
    untouched = plan.worker is Worker.JOB and not plan.ranges and plan.holder_until_ms < now_ms
    return untouched and plan.method is OffloadMethod.STREAMING and plan.payload_bytes <= limit


async def brokers_have(context: OffloadContext, topic_map: TopicMap, extent: Extent, after: int) -> bool:
    """Say whether brokers have offloaded some of what would be planned, or what lies before it. Raises Transient."""
    if context.offloads is None:
        return False
    try:
        found = await context.offloads.offloaded(topic_map.topic)
    except NotFound:
        return False
    return any(after < info.ledger_id < extent.boundary for info in found)


async def _ledgers(ledgers: Listing, topic_map: TopicMap) -> Sequence[LedgerInfo]:
    """Return the source's ledgers; of a topic that is offloaded already none if it does not answer."""
    try:
        return await ledgers()
    except NotFound:
        return ()
    except Transient:
        if not topic_map.segments:
            raise
        return ()


async def _record(context: OffloadContext, attempts: AttemptLog, topic_map: TopicMap, plan: HistoryPlan) -> TopicMap:
    """Write the plan, in place of the one that there is. Raises Fenced, Conflict."""
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
    """The duty towards each topic: have its history offloaded, or follow the job that does it."""

    def __init__(self, context: OffloadContext, daemon_id: Callable[[], str]) -> None:
        self._context = context
        self._daemon_id = daemon_id
        self._clock, self._metrics = context.upload_context.clock, context.upload_context.metrics
        self._turns = asyncio.Semaphore(RANGES_AT_A_TIME)

    async def run(self, offloader: OwnedTopic) -> None:
        """Work until history is done. Raises Fenced; anything else that fails is told and tried again."""
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
        """Raise Replanned once what is history is to be decided anew.

        A topic begins to stream that has not offloaded anything by another method; or it does not stream, and a job
        has planned to offload what its closed ledgers hold.
        """

        def streams() -> bool:
            return offloader.policy.method is OffloadMethod.STREAMING

        if self._context.source is None or streams():
            return
        while not streams():
            await race(offloader.policy_changed.wait(), self._planned_by_job(offloader))
        if not offloader.map.segments and offloader.map.history is None and offloader.attempt is None:
            raise Replanned(f"{offloader.topic} begins to stream: what it holds by now is history")

    async def _planned_by_job(self, offloader: OwnedTopic) -> None:
        """Raise Replanned when a job has planned history; it has ended the claim of whoever owned the topic."""
        path = paths.history_plan(offloader.topic)
        async with aclosing(self._context.metadata.watch(path)) as changes:
            async for _ in changes:
                read = partial(nodes.record, self._context.metadata, path, history_record.decode)
                plan = await until_answered(self._clock, read)
                known = offloader.map.history
                if plan is not None and (known is None or plan.boundary != known.boundary):
                    raise Replanned(f"a job offloads what {offloader.topic} holds before {plan.live_begin}")

    async def _follow(self, offloader: OwnedTopic) -> None:
        """Take in what a job commits until history is done, or another's; it changes the plan with each commit."""
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
