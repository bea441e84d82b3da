"""Where a segment ends, and what a loss in its way means: pure, values in, values out."""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from offloaderd.core.model import OffloadMethod, Position
from offloaderd.ledgers.chain import Run
from offloaderd.metadata.records.attempt import Attempt
from offloaderd.segment.builders.builder import SegmentBuilder
from offloaderd.segment.committer import Assignment
from offloaderd.segment.feed import Gap
from offloaderd.segment.progress import Progress
from offloaderd.segment.states import SegmentState, follow, state_of
from offloaderd.segment.upload import SegmentUpload
from offloaderd.segment.view import TopicView


class SegmentProgress:
    """What an open segment has become so far."""

    def __init__(self, record: Progress, builder: SegmentBuilder, upload: SegmentUpload, work: Assignment) -> None:
        self._record = record
        self._builder = builder
        self._upload = upload
        self.resumed = work.resumed
        """Whether an earlier owner began it."""
        self.opened_s = work.opened_s
        """Since when it is open, by the monotonic clock."""
        self.reason = "continued"
        """Why it was sealed."""
        self.state = state_of(work.attempt)
        self.open = True
        """Whether it is neither a part of its topic nor given up yet."""

    def reach(self, state: SegmentState) -> None:
        """Go on to another state. One whose objects were found finished is verified already, and is so again."""
        if self.state is not SegmentState.VERIFIED or state in {SegmentState.COMMITTED, SegmentState.FAILED}:
            self.state = follow(self.state, state)

    @property
    def attempt(self) -> Attempt:
        """Its record."""
        return self._record.attempt

    @property
    def catching_up(self) -> bool:
        """Whether an earlier owner stored parts that are not cut again yet."""
        return self._builder.part_count < self._upload.stored_count

    @property
    def entries(self) -> int:
        """How many entries it holds."""
        return self._builder.entries

    @property
    def payload_bytes(self) -> int:
        """Their payload."""
        return self._builder.payload_bytes

    @property
    def begin(self) -> Position | None:
        """The first of them."""
        return self._builder.begin

    @property
    def end(self) -> Position | None:
        """The last of them."""
        return self._builder.end

    @property
    def part_count(self) -> int:
        """How many parts of it are cut."""
        return self._builder.part_count

    @property
    def full(self) -> bool:
        """Whether no object, or no commit, takes more."""
        return self._builder.full


class Limit(NamedTuple):
    """How much a segment takes; asked before each batch."""

    payload_bytes: int | None = None
    """How much it is to hold: the entry that reaches it is still taken."""


class Stop(NamedTuple):
    """A segment has enough."""

    reason: str
    """A word for log, trace and metrics."""


class OnGap(Enum):
    """What to do when the source has lost what comes next of a segment that holds entries."""

    RECORD = "record the loss and go on behind it"
    END = "end before it"
    FAIL = "give the segment up"


class StopRule(Protocol):
    """When a segment ends. What is decided already, by a seal or a whole ledger's length, is no question of it."""

    def limit(self, progress: SegmentProgress, view: TopicView, now_s: float) -> Limit:
        """Return how much of the next batch is taken."""
        ...

    def decide(self, progress: SegmentProgress, view: TopicView, now_s: float) -> Stop | None:
        """Say whether, and why, the segment ends here; asked once before each look at the feed."""
        ...

    def next_check_s(self, progress: SegmentProgress, view: TopicView, now_s: float) -> float:
        """Return after how many seconds time alone may have `decide` say something else."""
        ...

    def on_gap(self, gap: Gap) -> OnGap:
        """Say what a loss means."""
        ...

    def flaw(self, progress: SegmentProgress) -> str:
        """Say why a segment may not end with what it holds; empty: it may, although more was to come."""
        ...


FOREVER_S = 3600.0
"""How long to wait at most for what is told by other means than time."""


class LiveStop:
    """As the topic's policy has it, once somebody wants it, or before what is offloaded in another way."""

    def limit(self, progress: SegmentProgress, view: TopicView, now_s: float) -> Limit:
        """See StopRule; a segment that is too young for its size takes more."""
        if progress.full or _switches(view, progress.end):
            return Limit(progress.payload_bytes)
        is_young = now_s - progress.opened_s < view.policy.segment_age_min_s
        return Limit(None if is_young else view.policy.segment_bytes_max)

    def decide(self, progress: SegmentProgress, view: TopicView, now_s: float) -> Stop | None:
        """See StopRule.

        Entries of parts that an earlier owner stored are waited for, so that these are of use; only a size that is
        reached ends the segment in any case, as nothing more is taken then.
        """
        end, requested, policy = progress.end, view.requested, view.policy
        if end is None:
            return None
        settled = not (progress.catching_up and view.more_may_come)
        age_s = now_s - progress.opened_s
        reason = policy.decide(
            payload_bytes=progress.payload_bytes,
            age_s=age_s if settled else min(age_s, policy.segment_age_min_s),
            full=progress.full,
            manual=settled and requested.seal_to is not None and end >= requested.seal_to,
            switch=_switches(view, end),
            memory=requested.memory and _is_worth_a_commit(progress, view),
            stopping=view.may_stop,
        )
        return Stop(reason.value) if reason is not None else None

    def next_check_s(self, progress: SegmentProgress, view: TopicView, now_s: float) -> float:
        """See StopRule."""
        age_s = now_s - progress.opened_s
        limits = (view.policy.segment_age_max_s, view.policy.segment_age_min_s)
        return max(0.001, min((limit - age_s for limit in limits if limit > age_s), default=1.0))

    def on_gap(self, gap: Gap) -> OnGap:
        """See StopRule; losses are recorded before anybody sees what follows them."""
        return OnGap.FAIL

    def flaw(self, progress: SegmentProgress) -> str:
        """See StopRule: what is stored of it may be the last copy there is."""
        return ""


def _is_worth_a_commit(progress: SegmentProgress, view: TopicView) -> bool:
    """Say whether a commit now would free at least half of what the topic holds in memory.

    A pusher that is faster than the bucket fills the memory soon after every commit; segments that were sealed at once
    would become ever smaller, and the commits ever more.
    """
    return 2 * progress.payload_bytes >= view.buffer_bytes or view.first is None


def _switches(view: TopicView, end: Position | None) -> bool:
    """Say whether a segment of streaming has to end with the entry at `end`, as another method follows it."""
    if end is None:
        return False
    step = view.chain.next_after(end) if view.adoptable else None
    if isinstance(step, Run) and step.first_entry_id == 0 and step.ledger_id in view.adoptable:
        return True
    if not view.goes_by_ledgers:
        return view.policy.method is OffloadMethod.NONE
    ledger = view.chain.end_of(end.ledger_id)
    return ledger is not None and ledger.entries == end.entry_id + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeStop:
    """To the end of what the feed has, or once it holds so many bytes; `gap` is what a loss means."""

    payload_bytes: int | None
    gap: OnGap

    def limit(self, progress: SegmentProgress, view: TopicView, now_s: float) -> Limit:
        """See StopRule."""
        return Limit(progress.payload_bytes if progress.full else self.payload_bytes)

    def decide(self, progress: SegmentProgress, view: TopicView, now_s: float) -> Stop | None:
        """See StopRule."""
        enough = self.payload_bytes is not None and progress.payload_bytes >= self.payload_bytes
        return Stop("size") if enough or progress.full else None

    def next_check_s(self, progress: SegmentProgress, view: TopicView, now_s: float) -> float:
        """See StopRule."""
        return FOREVER_S

    def on_gap(self, gap: Gap) -> OnGap:
        """See StopRule."""
        return self.gap

    def flaw(self, progress: SegmentProgress) -> str:
        """See StopRule: what is stored of it may be the last copy there is."""
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactStop:
    """With all that the feed has, which has to be so many entries up to `end`: a segment that replaces others."""

    end: Position
    entries: int

    def limit(self, progress: SegmentProgress, view: TopicView, now_s: float) -> Limit:
        """See StopRule."""
        return Limit()

    def decide(self, progress: SegmentProgress, view: TopicView, now_s: float) -> Stop | None:
        """See StopRule; that it is full is no reason: the goal was cut so that one commit can write it."""
        return None

    def next_check_s(self, progress: SegmentProgress, view: TopicView, now_s: float) -> float:
        """See StopRule."""
        return FOREVER_S

    def on_gap(self, gap: Gap) -> OnGap:
        """See StopRule."""
        return OnGap.FAIL

    def flaw(self, progress: SegmentProgress) -> str:
        """See StopRule."""
        if (progress.end, progress.entries) == (self.end, self.entries):
            return ""
        return f"the old objects end with {progress.end}, not with {self.end}"
