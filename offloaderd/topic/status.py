"""Where a topic stands, as values for status, metrics and logs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from offloaderd.core.errors import OffloaderError, Transient
from offloaderd.core.model import Loss, OffloadMethod, Position, TopicName
from offloaderd.history import plan as history
from offloaderd.history.owned_topic import OwnedTopic
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.records.history import RangeState
from offloaderd.metadata.records.identity import Refusal
from offloaderd.segment.failures import Failure, error_class
from offloaderd.segment.reachability import StoreReach
from offloaderd.segment.stop import SegmentProgress
from offloaderd.topic.lag.age import OldestEntry
from offloaderd.topic.memory.buffer import TailingBuffer
from offloaderd.topic.outage.outage import Outage
from offloaderd.topic.tailer import Tailer

OFFLOADING = "offloading"
"""State of a topic to which is done what its policy says, be it awake or asleep (`idle.py`)."""


class Described(OwnedTopic, Protocol):
    """What a topic's status is made of: beside what is committed, what is on its way and what hinders it."""

    buffer: TailingBuffer
    damaged_ledgers: tuple[int, ...]
    oldest: OldestEntry
    outage: Outage
    reach: StoreReach
    tailer: Tailer | None

    @property
    def progress(self) -> SegmentProgress | None:
        """How far the open segment is."""
        ...

    @property
    def taken(self) -> Position:
        """Newest entry that is in the open segment or committed; START when there is none."""
        ...

    @property
    def newest(self) -> Position | None:
        """Newest entry that is known to exist and be readable."""
        ...

    @property
    def moved(self) -> tuple[int, int]:
        """How many entries, and bytes of payload, went into segments since the claim; history apart."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStatus:
    """One topic of this daemon; sizes in payload bytes, ages in seconds.

    `edge` is how the source knows the newest entry (model.Edge), `hidden_entries` what is stored beyond it, and
    `looked_age_s` how long ago the source last told. The lag is None where nobody has looked or
    can tell, which is not 0, and has what is left of `history` in it. `segments` are the
    committed ones, `segments_committed` their number: of a topic that sleeps only that is known. `segment_age_max_s` is
    None where segments are not sealed by age. `taken` is what went into segments since the claim, history apart.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryStatus:
    """What is left of a topic's planned history, who offloads it, and whether live segments wait for it.

    `ranges` are how many it was split into, by state, as far as they were looked up.
    """

    boundary: Position
    worker: str
    left_entries: int
    left_bytes: int
    live_waits: bool
    error: str
    ranges: Mapping[RangeState, int]


def history_status(topic: Described) -> HistoryStatus | None:
    """Describe a history that is not done, None when there is none."""
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
    """Describe an offloader at a monotonic time, which is also a wall time."""
    progress = topic.progress
    paused = topic.policy.paused
    entries, size = lag_of(topic)
    stalled = topic.failure_tracker.stalled or out_of_reach(topic, entries)
    confirmed, tailer, spill = topic.newest, topic.tailer, topic.outage.spill
    unprotected = topic.outage.look(entries, size, newest=confirmed, offloaded=topic.map.offloaded)
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
        looked_age_s=now_s - tailer.looked_s if tailer is not None and tailer.looked_s is not None else 0.0,
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
    )


def bare(last: TopicStatus) -> TopicStatus:
    """Return what of a topic's status still holds when it is not owned any more."""
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
    """Describe a topic that this daemon does not own, or stopped working on because of an error.

    `last` is how it was when its session was lost, if it was owned.
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
    """Return why nothing of a topic that has something to be stored moves, before its own requests have given up.

    What waits in the source of a topic that is paused, or of one that is not offloaded, is not to be stored.
    """
    known, policy = topic.reach.failure, topic.policy
    nothing = not entries and topic.attempt is None
    if known is None or nothing or policy.method is OffloadMethod.NONE:
        return None
    return replace(known, error=Transient(f"the bucket does not answer: {known.error.message}"))


def is_known(topic: Described, entries: int) -> bool:
    """Say whether so many entries are a lag: none is one only if the source told all at the last look."""
    tailer = topic.tailer
    return tailer is None or tailer.snapshot is not None or (entries > 0 and tailer.looked_s is not None)


def lag_of(topic: Described) -> tuple[int, int]:
    """Entries and payload bytes that are known to be confirmed and not yet offloaded."""
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
    """Payload bytes of the newest offloaded ledger that are committed."""
    size = 0
    for segment in reversed(topic.map.segments):
        if segment.end.ledger_id < ledger_id:
            break
        size += sum(part.payload_bytes for part in segment.slices if part.ledger_id == ledger_id)
    return size
