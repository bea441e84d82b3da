"""The end of a segment: the roll policy of its topic, the view by which is decided, and the stop rules.

The view is frozen; the segment writer and the chooser decide by it. All decisions are pure.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple, TypeVar, cast

from offloaderd.core.model import START, HistoryOrder, LedgerInfo, MirrorRequired, OffloadMethod, Position, RollReason
from offloaderd.ledgers.chain import LedgerChain, Run
from offloaderd.metadata.records.attempt import Attempt
from offloaderd.policy.policies import Effective, place_named
from offloaderd.policy.records import Paused
from offloaderd.segment.builder import SegmentBuilder
from offloaderd.segment.committer import Assignment
from offloaderd.segment.feed import Gap
from offloaderd.segment.states import SegmentState, follow, state_of
from offloaderd.segment.upload import SegmentUpload

N = TypeVar("N", int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class RollPolicy:
    """How to offload, and PIP-76's limits: `maxSizePerOffloadSegmentMbytes`, `maxOffloadSegmentRolloverTimeMinutes`.

    The thresholds are those of closed ledgers (PIP-17): how much BookKeeper keeps, in bytes and in seconds since the
    close; 0 keeps nothing, None is no threshold. The running offloader gets another policy whenever it changes.
    """

    segment_bytes_max: int
    segment_age_max_s: float
    segment_age_min_s: float = 0.0
    method: OffloadMethod = OffloadMethod.STREAMING
    threshold_bytes: int | None = None
    threshold_s: float | None = None
    history_order: HistoryOrder = HistoryOrder.HISTORY_FIRST
    place: tuple[str, str] | None = None
    """Bucket and prefix of new segments; None is the daemon's own place."""
    storage_class: str | None = None
    """Class of new data objects; empty is the bucket's own, None that of the place in the settings."""
    tags: str | None = None
    """Tags of new objects, as the policy has them; None are those of the place in the settings."""
    mirror: tuple[str, str] | None = None
    """Bucket and prefix of the second copy of each segment; None for none."""
    mirror_required: bool = False
    """Whether grants wait for the second copies."""
    paused: Paused | None = None
    """Since when the topic is paused, and by which operator; None if it is not."""

    @classmethod
    def of(cls, effective: Effective) -> "RollPolicy":
        """Return a merged policy, which has every one of these values, for an offloader."""
        values = effective.values
        return cls(
            segment_bytes_max=cast("int", values.segment_bytes_max),
            segment_age_max_s=cast("float", values.segment_age_max_s),
            segment_age_min_s=cast("float", values.segment_age_min_s),
            method=cast("OffloadMethod", values.method),
            threshold_bytes=_limit(values.threshold_bytes),
            threshold_s=_limit(values.threshold_s),
            history_order=cast("HistoryOrder", values.history_order),
            place=(cast("str", values.bucket), cast("str", values.prefix)),
            storage_class=effective.given("storage_class"),
            tags=effective.given("tags"),
            mirror=place_named(cast("str", values.mirror)),
            mirror_required=values.mirror_required is MirrorRequired.YES,
        )

    def held(self, paused: Paused | None, *, push_only: bool) -> "RollPolicy":
        """Return the policy while an operator has paused the topic (`paused`), else this one.

        Under the method `none` the open segment is sealed and none begins. Entries that were pushed to a topic without
        a source exist nowhere else, so they are still offloaded, and no more are taken.
        """
        if paused is None:
            return self
        return replace(self, paused=paused, method=self.method if push_only else OffloadMethod.NONE)

    def decide(
        self, *, payload_bytes: int, age_s: float, full: bool, manual: bool, switch: bool, memory: bool, stopping: bool
    ) -> RollReason | None:
        """Return why a segment that holds entries has to be sealed now, or None.

        `switch`: the next entries go by another method, or not at all. `full`: the object can hold no more parts,
        whatever the limits. The minimum age holds back size alone.
        """
        if stopping:
            return RollReason.SHUTDOWN
        if manual:
            return RollReason.MANUAL
        if switch:
            return RollReason.SWITCH
        if full or (payload_bytes >= self.segment_bytes_max and age_s >= self.segment_age_min_s):
            return RollReason.SIZE
        if age_s >= self.segment_age_max_s:
            return RollReason.AGE
        if memory:
            return RollReason.MEMORY
        return None


def _limit(value: N | None) -> N | None:
    """Return a threshold, None for one that is off."""
    return value if value is not None and value >= 0 else None


class Requested(NamedTuple):
    """Requests to a topic that are open now."""

    stopping: bool = False
    """Whether its owner is to release it; the next owner stores the rest."""
    seal_to: Position | None = None
    """Everything up to this entry is to be committed soon."""
    memory: bool = False
    """Whether memory is short that a commit may free."""


_ANY = RollPolicy(segment_bytes_max=0, segment_age_max_s=0.0)
_NO_LEDGERS = LedgerChain(START, end=None)


class TopicView(NamedTuple):
    """A topic at one moment; the objects that it refers to may change later. Two are made for each entry that comes."""

    requested: Requested
    policy: RollPolicy = _ANY
    chain: LedgerChain = _NO_LEDGERS
    """Known ledgers; read-only here."""
    adoptable: Collection[int] = ()
    """Ledgers that brokers have offloaded and that are to be adopted."""
    whole_ledgers: bool = False
    """Whether a ledger can be offloaded as a whole."""
    more_may_come: bool = False
    """Whether there may be entries behind the cursor that are older than this claim."""
    first: Position | None = None
    """The next entry, if it is in memory."""
    buffer_bytes: int = 0
    """Memory of its entries."""
    may_stop: bool = False
    """Whether a stop is requested and loses nothing that was accepted."""
    cursor: Position = START
    """Newest entry in the open segment, or committed."""
    attempt: Attempt | None = None
    """Record of the open segment, or of the attempt that an earlier owner left."""
    settled: bool = True
    """Whether the state of that attempt in the bucket is known."""
    left_is_lost: bool = False
    """Whether the source has lost the first entry of that attempt."""
    rereadable: bool = True
    """Whether entries can be read again."""
    history_waits: bool = False
    """Whether live segments wait until history is done."""
    offloaded: Position | None = None
    """The offloaded position."""
    whole_before: int | None = None
    """The ledger that the last segment holds whole."""
    end_is_unrecorded: bool = False
    """Whether the end of the ledger at the offloaded position is known and not recorded."""
    to_adopt: LedgerInfo | None = None
    """The next ledger, if it can be adopted."""
    wall_ms: int = 0
    """Wall time."""

    @property
    def goes_by_ledgers(self) -> bool:
        """Whether ledgers are offloaded whole: by the policy, and possible here."""
        return self.policy.method is OffloadMethod.LEDGER_BASED and self.whole_ledgers


Views = Callable[[Position], TopicView]
"""Returns the topic as it is now, for a writer that has taken all entries up to a position."""

NO_VIEW = TopicView(Requested())
"""For a segment that depends on nothing but its entries."""


class SegmentProgress:
    """The state and content of an open segment."""

    def __init__(
        self, recorded: Callable[[], Attempt], builder: SegmentBuilder, upload: SegmentUpload, work: Assignment
    ) -> None:
        self._recorded = recorded
        self._builder = builder
        self._upload = upload
        self.resumed = work.resumed
        """Whether an earlier owner began it."""
        self.opened_s = work.opened_s
        """When it was opened (monotonic)."""
        self.reason = "continued"
        """Why it was sealed."""
        self.state = state_of(work.attempt)
        self.open = True
        """Whether it is neither committed nor given up."""

    def reach(self, state: SegmentState) -> None:
        """Enter another state. A segment whose objects were found finished stays VERIFIED until its commit."""
        if self.state is not SegmentState.VERIFIED or state in {SegmentState.COMMITTED, SegmentState.FAILED}:
            self.state = follow(self.state, state)

    @property
    def attempt(self) -> Attempt:
        """Its record."""
        return self._recorded()

    @property
    def catching_up(self) -> bool:
        """Whether parts that an earlier owner stored are still to be cut again."""
        return self._builder.part_count < self._upload.stored_count

    @property
    def entries(self) -> int:
        """Number of its entries."""
        return self._builder.entries

    @property
    def payload_bytes(self) -> int:
        """Their payload bytes."""
        return self._builder.payload_bytes

    @property
    def begin(self) -> Position | None:
        """Its first entry."""
        return self._builder.begin

    @property
    def end(self) -> Position | None:
        """Its last entry."""
        return self._builder.end

    @property
    def part_count(self) -> int:
        """Number of parts that are cut."""
        return self._builder.part_count

    @property
    def full(self) -> bool:
        """Whether an object or a commit can hold no more."""
        return self._builder.full


class OnGap(Enum):
    """What to do when the source has lost the next entries of a segment that holds some."""

    RECORD = "record the loss and continue behind it"
    END = "end before it"
    FAIL = "give the segment up"


FOREVER_S = 3600.0
"""Longest wait for changes that time alone does not bring."""


class StopRule:
    """When a segment ends. An end that a seal or the length of a whole ledger decides is not subject to it."""

    def limit(self, progress: SegmentProgress, view: TopicView, now_s: float) -> int | None:
        """Return the payload bytes that the segment may hold, None for no limit; called before each batch.

        The entry that reaches the limit is still taken.
        """
        return None

    def decide(self, progress: SegmentProgress, view: TopicView, now_s: float) -> str | None:
        """Return why the segment ends here (a word for log, trace and metrics), None if it goes further."""
        return None

    def next_check_s(self, progress: SegmentProgress, view: TopicView, now_s: float) -> float:
        """Return the seconds after which time alone may change what `decide` returns."""
        return FOREVER_S

    def on_gap(self, gap: Gap) -> OnGap:
        """Return how to treat a loss."""
        return OnGap.FAIL

    def flaw(self, progress: SegmentProgress) -> str:
        """Return why the segment may not end with its present entries; empty if it may, as it may be the last copy."""
        return ""


class LiveStop(StopRule):
    """By the topic's policy, on request, and before entries that go by another method."""

    def limit(self, progress: SegmentProgress, view: TopicView, now_s: float) -> int | None:
        """See StopRule; a segment that is too young for its size takes more."""
        if progress.full or _switches(view, progress.end):
            return progress.payload_bytes
        is_young = now_s - progress.opened_s < view.policy.segment_age_min_s
        return None if is_young else view.policy.segment_bytes_max

    def decide(self, progress: SegmentProgress, view: TopicView, now_s: float) -> str | None:
        """See StopRule.

        While parts of an earlier owner are cut again, only the size ends the segment, so that they are of use.
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
        return reason.value if reason is not None else None

    def next_check_s(self, progress: SegmentProgress, view: TopicView, now_s: float) -> float:
        """See StopRule."""
        age_s = now_s - progress.opened_s
        limits = (view.policy.segment_age_max_s, view.policy.segment_age_min_s)
        return max(0.001, min((limit - age_s for limit in limits if limit > age_s), default=1.0))


def _is_worth_a_commit(progress: SegmentProgress, view: TopicView) -> bool:
    """Return whether a commit now would free at least half of the topic's memory.

    A pusher that is faster than the bucket soon fills the memory after a commit; sealing at once would make segments
    smaller and smaller.
    """
    return 2 * progress.payload_bytes >= view.buffer_bytes or view.first is None


def _switches(view: TopicView, end: Position | None) -> bool:
    """Return whether a streaming segment ends at `end` because entries of another method follow."""
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
class RangeStop(StopRule):
    """At the end of the feed, or at `payload_bytes`; `gap` is how a loss is treated."""

    payload_bytes: int | None
    gap: OnGap

    def limit(self, progress: SegmentProgress, view: TopicView, now_s: float) -> int | None:
        """See StopRule."""
        return progress.payload_bytes if progress.full else self.payload_bytes

    def decide(self, progress: SegmentProgress, view: TopicView, now_s: float) -> str | None:
        """See StopRule."""
        enough = self.payload_bytes is not None and progress.payload_bytes >= self.payload_bytes
        return "size" if enough or progress.full else None

    def on_gap(self, gap: Gap) -> OnGap:
        """See StopRule."""
        return self.gap


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactStop(StopRule):
    """At the end of the feed, which has to have `entries` up to `end`: for a segment that replaces others.

    A full builder is no reason: the goal was chosen so that one commit can write it.
    """

    end: Position
    entries: int

    def flaw(self, progress: SegmentProgress) -> str:
        """See StopRule."""
        if (progress.end, progress.entries) == (self.end, self.entries):
            return ""
        return f"the old objects end with {progress.end}, not with {self.end}"
