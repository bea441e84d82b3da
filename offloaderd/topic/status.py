"""The status of a topic, as values for calls, metrics and logs; and the task that sets its gauges every few seconds."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import structlog

from offloaderd.core.aio import in_turns
from offloaderd.core.clock import pause_after_pass
from offloaderd.core.errors import OffloaderError, Transient
from offloaderd.core.limits import Bounded
from offloaderd.core.model import Loss, OffloadMethod, Position, TopicName
from offloaderd.history import plan as history
from offloaderd.history.segment import OwnedTopic
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.records.history import RangeState
from offloaderd.metadata.records.identity import Refusal
from offloaderd.metadata.topic_map.unnamed import WHAT_TO_DO, UnnamedPlace, UnnamedPlaces, by_copy, described
from offloaderd.segment.failures import Failure, StoreReach, error_class
from offloaderd.segment.roll import SegmentProgress
from offloaderd.topic.buffer import TailingBuffer
from offloaderd.topic.lag import OldestEntry
from offloaderd.topic.mirror import MirrorProgress, MirrorStatus
from offloaderd.topic.outage import Outage, TopicContext
from offloaderd.topic.tailer import Tailer

log = structlog.get_logger(__name__)

OFFLOADING = "offloading"
"""State of a topic that is offloaded as its policy demands, be it active or idle (`idle.py`)."""


class Described(OwnedTopic, Protocol):
    """The parts of a topic that its status is made from: committed segments, work under way, and failures."""

    buffer: TailingBuffer
    damaged_ledgers: tuple[int, ...]
    mirror: MirrorProgress
    unnamed: UnnamedPlaces
    oldest: OldestEntry
    outage: Outage
    tailer: Tailer | None

    @property
    def reach(self) -> StoreReach:
        """Whether the service answers that the topic stores in."""
        ...

    @property
    def progress(self) -> SegmentProgress | None:
        """Progress of the open segment."""
        ...

    @property
    def taken(self) -> Position:
        """Newest entry that is committed or in the open segment; START when there is none."""
        ...

    @property
    def newest(self) -> Position | None:
        """Newest entry that is known to exist and to be readable."""
        ...

    @property
    def moved(self) -> tuple[int, int]:
        """Entries and payload bytes that went into segments since the claim, without history."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStatus:
    """Status of one topic of this daemon; sizes in payload bytes, ages in seconds.

    `edge` is how the source knows the newest entry (model.Edge), `hidden_entries` the number of entries stored beyond
    it, `looked_age_s` the time since the source last answered. The lag includes the rest of `history`; it is None,
    which is not 0, while it is unknown. `segments` are the committed ones and `segments_committed` their number; an
    idle topic has the number alone. `segment_age_max_s` is None where segments are not sealed by age. The `taken_`
    fields count what went into segments since the claim, without history.
    """

    topic: TopicName
    state: str
    asleep: bool = False
    owner: str = ""
    epoch: int = 0
    confirmed: Position | None = None
    offloaded: Position | None = None
    lag_entries: int | None = None
    lag_bytes: int | None = None
    lag_seconds: float | None = None
    open_segment_id: str = ""
    open_segment_entries: int = 0
    open_segment_bytes: int = 0
    open_segment_age_s: float = 0.0
    open_segment_continued: bool = False
    buffer_bytes: int = 0
    segments: tuple[CommittedSegment, ...] = ()
    segments_committed: int = 0
    segment_age_max_s: float | None = None
    stalled_reason: str = ""
    stalled_class: str = ""
    stalled_since_ms: int = 0
    stalled_s: float = 0.0
    edge: str = ""
    hidden_entries: int = 0
    looked_age_s: float = 0.0
    losses: tuple[Loss, ...] = ()
    outage: str = ""
    unprotected_entries: int = 0
    unprotected_bytes: int = 0
    unprotected_since_ms: int = 0
    unprotected_s: float = 0.0
    spilled_entries: int = 0
    spilled_bytes: int = 0
    history: "HistoryStatus | None" = None
    method: str = ""
    taken_entries: int = 0
    taken_bytes: int = 0
    paused_ms: int = 0
    paused_by: str = ""
    paused_s: float = 0.0
    refusals: tuple[Refusal, ...] = ()
    damaged_ledgers: tuple[int, ...] = ()
    mirror: MirrorStatus | None = None
    unnamed: tuple[UnnamedPlace, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryStatus:
    """The rest of a topic's planned history: its size, who offloads it, and whether live segments wait for it.

    `ranges` counts the ranges of the history by state, as far as they were read.
    """

    boundary: Position
    worker: str
    left_entries: int
    left_bytes: int
    live_waits: bool
    error: str
    ranges: Mapping[RangeState, int]


def history_status(topic: Described) -> HistoryStatus | None:
    """Return the status of a history that is not done, None when there is none."""
    plan, left, error = topic.map.unfinished, history.left_of(topic.map), topic.record.history_error
    if plan is None:
        return None
    return HistoryStatus(
        boundary=plan.live_begin,
        worker=plan.worker.value,
        left_entries=left.entries,
        left_bytes=left.payload_bytes,
        live_waits=history.waits(topic.map, topic.policy),
        error=str(error) if error is not None else "",
        ranges=topic.record.history_ranges.counts(),
    )


def describe(topic: Described, *, owner: str = "", now_s: float, wall_ms: int) -> TopicStatus:
    """Return the status of an offloader. `now_s` (monotonic) and `wall_ms` are the same moment."""
    progress = topic.progress
    paused = topic.policy.paused
    entries, size = lag_of(topic)
    stalled = topic.failure_tracker.stalled or out_of_reach(topic, entries)
    confirmed, tailer, spill = topic.newest, topic.tailer, topic.outage.spill
    unprotected = topic.outage.unprotected(entries, size, newest=confirmed, offloaded=topic.map.offloaded)
    known = is_known(topic, entries)
    return TopicStatus(
        topic=topic.topic,
        state="stalled" if stalled else "paused" if paused else OFFLOADING,
        owner=owner,
        epoch=topic.claim.epoch,
        confirmed=confirmed,
        offloaded=topic.map.offloaded,
        lag_entries=entries if known else None,
        lag_bytes=size if known else None,
        lag_seconds=None if not known else topic.oldest.age_s(now_s, wall_ms) if entries else 0.0,
        open_segment_id=str(progress.attempt.segment_id) if progress else "",
        open_segment_entries=progress.entries if progress else 0,
        open_segment_bytes=progress.payload_bytes if progress else 0,
        open_segment_age_s=now_s - progress.opened_s if progress is not None else 0.0,
        open_segment_continued=progress is not None and progress.resumed,
        buffer_bytes=topic.buffer.used_bytes,
        segments=topic.map.segments,
        segments_committed=len(topic.map.segments),
        segment_age_max_s=topic.policy.segment_age_max_s if topic.policy.method is OffloadMethod.STREAMING else None,
        stalled_reason=str(stalled.error) if stalled else "",
        stalled_class=error_class(stalled.error) if stalled else "",
        stalled_since_ms=stalled.since_ms if stalled else 0,
        stalled_s=now_s - stalled.since_s if stalled else 0.0,
        edge=tailer.edge.edge.value if tailer is not None and tailer.edge is not None else "",
        hidden_entries=tailer.edge.hidden if tailer is not None and tailer.edge is not None else 0,
        looked_age_s=now_s - tailer.refreshed_s if tailer is not None and tailer.refreshed_s is not None else 0.0,
        losses=topic.map.losses,
        outage=str(topic.outage.policy),
        unprotected_entries=unprotected.entries,
        unprotected_bytes=unprotected.payload_bytes,
        unprotected_since_ms=unprotected.since_ms,
        unprotected_s=unprotected.lasts_s,
        spilled_entries=spill.entries if spill is not None else 0,
        spilled_bytes=spill.payload_bytes if spill is not None else 0,
        history=history_status(topic),
        method=topic.policy.method.value,
        taken_entries=topic.moved[0],
        taken_bytes=topic.moved[1],
        paused_ms=paused.since_ms if paused else 0,
        paused_by=paused.by if paused else "",
        paused_s=max(0.0, wall_ms - paused.since_ms) / 1000 if paused else 0.0,
        refusals=topic.identity.refusals,
        damaged_ledgers=topic.damaged_ledgers,
        mirror=topic.mirror.status(topic.map.segments, topic.policy, wall_ms=wall_ms),
        unnamed=topic.unnamed.of(topic.map.segments),
    )


def bare(last: TopicStatus) -> TopicStatus:
    """Return the part of a status that still holds when the topic is not owned any more."""
    return TopicStatus(
        topic=last.topic,
        state="",
        confirmed=last.confirmed,
        offloaded=last.offloaded,
        segments_committed=last.segments_committed,
        method=last.method,
    )


def idle(
    last: TopicStatus,
    error: OffloaderError | None,
    failure: Failure | None = None,
    *,
    refusals: tuple[Refusal, ...] = (),
    now_s: float = 0.0,
) -> TopicStatus:
    """Return the status of a topic that this daemon does not own, or that an error has stopped.

    `last` is its status when its session was lost, if it was owned.
    """
    if error is None:
        return replace(last, state="claiming", refusals=refusals)
    return replace(
        last,
        state="stalled",
        stalled_reason=str(error),
        stalled_class=error_class(error),
        stalled_since_ms=failure.since_ms if failure is not None else 0,
        stalled_s=now_s - failure.since_s if failure is not None else 0.0,
        refusals=refusals,
    )


def out_of_reach(topic: Described, entries: int) -> Failure | None:
    """Return why a topic with entries to store makes no progress, before its own requests have given up.

    Entries of a topic that is paused or not offloaded stay in the source, and do not count.
    """
    known, policy = topic.reach.failure, topic.policy
    nothing = not entries and topic.attempt is None
    if known is None or nothing or policy.method is OffloadMethod.NONE:
        return None
    return replace(known, error=Transient(f"the bucket does not answer: {known.error.message}"))


def is_known(topic: Described, entries: int) -> bool:
    """Return whether `entries` is the known lag; 0 is only if the source answered in full at the last refresh."""
    tailer = topic.tailer
    return tailer is None or tailer.snapshot is not None or (entries > 0 and tailer.refreshed_s is not None)


def lag_of(topic: Described) -> tuple[int, int]:
    """Return the entries and payload bytes that are known to be confirmed and not yet offloaded."""
    if topic.tailer is None:
        progress = topic.progress
        pending = topic.buffer.pending_after(topic.taken)
        taken = (progress.entries, progress.payload_bytes) if progress else (0, 0)
        spill = topic.outage.spill
        spilled = (spill.entries, spill.payload_bytes) if spill is not None else (0, 0)
        return pending[0] + taken[0] + spilled[0], pending[1] + taken[1] + spilled[1]
    offloaded = topic.map.standing
    entries, size = history.left_of(topic.map)
    for ledger_id, info in reversed(topic.tailer.chain.ledgers.items()):
        if offloaded is None or ledger_id > offloaded.ledger_id:
            entries += info.entries
            size += info.size_bytes
            continue
        if ledger_id == offloaded.ledger_id:
            missing = info.entries - offloaded.entry_id - 1
            entries += max(0, missing)
            size += max(0, info.size_bytes - offloaded_bytes(topic, ledger_id)) if missing > 0 else 0
        break
    return entries, size


def offloaded_bytes(topic: Described, ledger_id: int) -> int:
    """Return the committed payload bytes of the newest offloaded ledger."""
    size = 0
    for segment in reversed(topic.map.segments):
        if segment.end.ledger_id < ledger_id:
            break
        size += sum(part.payload_bytes for part in segment.slices if part.ledger_id == ledger_id)
    return size


LOGGED_MAX = 100
"""Unnamed places that the log has named."""
REPORT_S = 5.0
"""Pause between two updates, shorter than any scrape interval; with thousands of active topics it is longer."""


class Reporter:
    """Sets the gauges of all topics from their statuses."""

    def __init__(self, context: TopicContext, statuses: Callable[[], Iterable[TopicStatus]]) -> None:
        self._context = context
        self._statuses = statuses
        self._metrics = context.upload_context.metrics
        self._stalled: dict[TopicName, str] = {}
        self._summed: dict[TopicName, tuple[CommittedSegment, ...]] = {}
        self.stored: dict[TopicName, int] = {}
        """Bytes of the data objects of each topic here, suspended ones included."""
        self.unnamed: dict[TopicName, tuple[UnnamedPlace, ...]] = {}
        """Places that the settings do not name, of the topics here that have any, suspended ones included."""
        self._logged: Bounded[str, bool] = Bounded(LOGGED_MAX)

    async def run(self) -> None:
        """Report until cancelled."""
        clock = self._context.upload_context.clock
        while True:
            begun_s = clock.monotonic()
            await self.report()
            await clock.sleep(pause_after_pass(clock, begun_s, REPORT_S))

    async def report(self) -> None:
        """Set every gauge once."""
        metrics, owned, suspended, paused, open_bytes, oldest_s = self._metrics, 0, 0, 0, 0, 0.0
        ranges: Counter[RangeState] = Counter()
        async for statuses in in_turns(self._statuses()):
            for status in statuses:
                owned += bool(status.epoch)
                suspended += status.asleep
                paused += bool(status.paused_ms)
                open_bytes += status.open_segment_bytes
                oldest_s = max(oldest_s, status.open_segment_age_s)
                if status.history is not None:
                    ranges.update(status.history.ranges)
                if status.asleep and (status.mirror is None or not status.mirror.lag_segments):
                    self._summed.pop(status.topic, None)  # its gauges stay as they were when it was suspended
                else:
                    self.report_topic(status)
        metrics.ownership_topics.set(owned)
        metrics.topics_suspended.set(suspended)
        metrics.topics_paused.set(paused)
        metrics.buffer_bytes.set(self._context.pool.used_bytes)
        metrics.buffer_overdrawn_bytes.set(self._context.pool.overdrawn_bytes)
        metrics.memory_used_bytes.labels(pool="buffer").set(self._context.pool.used_bytes)
        metrics.memory_used_bytes.labels(pool="upload").set(self._context.upload_context.budget.used)
        metrics.pipeline_bytes.labels(stage="assembly").set(open_bytes)
        metrics.oldest_open_segment_seconds.set(oldest_s)
        for state in RangeState:
            metrics.history_ranges.labels(state=state.value).set(ranges[state])

    def report_topic(self, status: TopicStatus) -> None:
        """Set the gauges of one topic."""
        topic = str(status.topic)
        self._report_lag(topic, status)
        self._metrics.source_hidden_entries.labels(topic=topic).set(status.hidden_entries)
        self._metrics.stalled_seconds.labels(topic=topic).set(status.stalled_s)
        self._metrics.paused_seconds.labels(topic=topic).set(status.paused_s)
        self._metrics.unprotected_entries.labels(topic=topic).set(status.unprotected_entries)
        self._metrics.unprotected_bytes.labels(topic=topic).set(status.unprotected_bytes)
        self._metrics.unprotected_seconds.labels(topic=topic).set(status.unprotected_s)
        self._report_history(topic, status.history)
        self._report_stored(status)
        self._report_mirror(topic, status)
        self._report_unnamed(status.topic, status.unnamed)
        before = self._stalled.pop(status.topic, "")
        if before and before != status.stalled_class:
            self._metrics.stalled.remove(topic, before)
        if status.stalled_class:
            self._stalled[status.topic] = status.stalled_class
            self._metrics.stalled.labels(topic=topic, reason=status.stalled_class).set(1)

    def _report_lag(self, topic: str, status: TopicStatus) -> None:
        """Set the lag's gauges; an unknown lag has no series, so that it is not read as 0."""
        metrics = self._metrics
        metrics.lag_unknown.labels(topic=topic).set(1 if status.lag_seconds is None else 0)
        for gauge, value in (
            (metrics.lag_entries, status.lag_entries),
            (metrics.lag_bytes, status.lag_bytes),
            (metrics.lag_seconds, status.lag_seconds),
        ):
            if value is None:
                gauge.remove(topic)
            else:
                gauge.labels(topic=topic).set(value)

    def _report_mirror(self, topic: str, status: TopicStatus) -> None:
        """Set the gauges of a topic's copies; none without a mirror."""
        metrics, mirror = self._metrics, status.mirror
        for gauge, value in (
            (metrics.mirror_lag_entries, mirror.lag_entries if mirror is not None else None),
            (metrics.mirror_lag_bytes, mirror.lag_bytes if mirror is not None else None),
            (metrics.mirror_lag_seconds, mirror.lag_seconds if mirror is not None else None),
            (metrics.mirror_waiting_ledgers, len(mirror.waiting_ledgers) if mirror is not None else None),
        ):
            if value is None:
                gauge.remove(topic)
            else:
                gauge.labels(topic=topic).set(value)

    def _report_stored(self, status: TopicStatus) -> None:
        """Set the gauges of committed segments (sums are made only after a change), and of the age that seals one."""
        metrics, topic = self._metrics, str(status.topic)
        if status.asleep:
            self._summed.pop(status.topic, None)  # its gauges stay; only the sums' source is freed
        elif self._summed.get(status.topic) is not status.segments:
            self._summed[status.topic] = status.segments
            metrics.remote_segments.labels(topic=topic).set(len(status.segments))
            size_bytes = self.stored[status.topic] = sum(segment.object_bytes for segment in status.segments)
            metrics.remote_bytes.labels(topic=topic).set(size_bytes)
        if status.segment_age_max_s is not None:
            metrics.segment_age_max_seconds.labels(topic=topic).set(status.segment_age_max_s)
        else:
            metrics.segment_age_max_seconds.remove(topic)

    def _report_unnamed(self, topic: TopicName, rows: tuple[UnnamedPlace, ...]) -> None:
        """Set the gauges of what lies in unnamed places; most topics have no series. The log names each place once."""
        if rows == self.unnamed.get(topic, ()):
            return
        for copy, counts in by_copy(rows).items():
            for gauge, value in zip(
                (self._metrics.unnamed_place_segments, self._metrics.unnamed_place_bytes), counts, strict=True
            ):
                if rows:
                    gauge.labels(topic=str(topic), copy=copy).set(value)
                else:
                    gauge.remove(str(topic), copy)
        self.unnamed.pop(topic, None)
        if rows:
            self.unnamed[topic] = rows
        for one in rows:
            if str(one) not in self._logged:
                self._logged[str(one)] = True
                told, hint = described({topic: [one]}), WHAT_TO_DO
                log.error("place.not_named", place=str(one), topic=str(topic), found=told[0], hint=hint)

    def _report_history(self, topic: str, history: HistoryStatus | None) -> None:
        """Set the gauges of a topic's remaining history; 0 when there is none, or it is done."""
        metrics = self._metrics
        metrics.history_remaining_entries.labels(topic=topic).set(history.left_entries if history is not None else 0)
        metrics.history_remaining_bytes.labels(topic=topic).set(history.left_bytes if history is not None else 0)
        metrics.history_waiting.labels(topic=topic).set(1 if history is not None and history.live_waits else 0)

    def forget(self, topic: TopicName) -> None:
        """Drop the series of a topic that this daemon no longer works on."""
        self._stalled.pop(topic, None)
        self._summed.pop(topic, None)
        self.stored.pop(topic, None)
        self.unnamed.pop(topic, None)
        self._metrics.drop_topic(str(topic))
