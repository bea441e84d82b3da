"""The chooser: what an owner does with its topic between two segments, and by which method.

It is pure and decides by a view of the topic; `Requests` collects the open requests in that view.

The attempt of an earlier owner is resumed, or abandoned once the source has lost its first entry. Else ledgers that
brokers have offloaded are adopted, and a segment begins with the next entry as soon as that is to be offloaded.

Entries go by the method of the topic's policy when their segment begins. Ledger-based offloading (PIP-17) takes closed
ledgers from entry 0, one after the other, once they are due: by the size of the closed ledgers from there on, by the
time since the close (`ManagedLedgerImpl.maybeOffload`), or by request. The rest of a ledger that was offloaded in part
is streamed under every method: no object of PIP-17 can hold it. Under `none` no segment begins.
"""

from typing import NamedTuple

from offloaderd.core.aio import Signal
from offloaderd.core.model import LedgerInfo, Loss, OffloadMethod, Position
from offloaderd.ledgers.chain import Run
from offloaderd.metadata.records.attempt import Attempt
from offloaderd.segment.roll import Requested, RollPolicy, SegmentProgress, TopicView


def begins(view: TopicView) -> bool:
    """Return whether live segments may begin."""
    return view.policy.method is not OffloadMethod.NONE and not view.history_waits


def method_of(view: TopicView, run: Run) -> OffloadMethod:
    """Return the method for the entries of a run, NONE for not now; does not apply to an open segment's entries."""
    attempt = view.attempt
    begun = attempt is not None and attempt.begin.ledger_id == run.ledger_id
    adopted = run.first_entry_id == 0 and not begun and run.ledger_id in view.adoptable
    if adopted or not begins(view):
        return OffloadMethod.NONE
    whole = view.goes_by_ledgers and run.first_entry_id == 0 and not _has_vanished(view, run.ledger_id)
    if whole:
        return OffloadMethod.LEDGER_BASED if _is_due(view, run.ledger_id) else OffloadMethod.NONE
    return OffloadMethod.STREAMING


def method_at(view: TopicView, first: Position) -> OffloadMethod:
    """Return the method of a segment that begins with an entry."""
    return method_of(view, Run(*first, first.entry_id))


def wants(view: TopicView, step: Run | Loss) -> bool:
    """Return whether to read a run, or record a loss, for this segment or the next."""
    if not view.settled:
        return False
    end = view.attempt.end if view.attempt is not None else None
    if end is not None and (not isinstance(step, Run) or step.first <= end):
        return True
    return method_of(view, step) is not OffloadMethod.NONE if isinstance(step, Run) else begins(view)


def reachable(view: TopicView, target: Position | None) -> Position | None:
    """Return the newest entry up to `target` that a request can offload, None for none; of a whole ledger the last."""
    taken = view.cursor
    if target is None or not view.goes_by_ledgers or (target.ledger_id == taken.ledger_id and not _is_whole(view)):
        return target
    ledgers = view.chain.ledgers.values()
    ends = [Position(one.ledger_id, one.entries - 1) for one in ledgers if one.closed and one.entries]
    return max((end for end in ends if end <= target), default=view.offloaded)


def _is_whole(view: TopicView) -> bool:
    """Return whether the ledger at the cursor is, or was, offloaded whole."""
    going = view.attempt.ledger_id if view.attempt is not None else None
    return view.cursor.ledger_id in {going, view.whole_before}


def _has_vanished(view: TopicView, ledger_id: int) -> bool:
    """Return whether a ledger was closed and is deleted: no more of it can be read."""
    return view.chain.end_of(ledger_id) is not None and ledger_id not in view.chain.ledgers


def _is_due(view: TopicView, ledger_id: int) -> bool:
    policy, ledgers, asked = view.policy, view.chain.ledgers, view.requested.seal_to
    info = ledgers.get(ledger_id)
    if info is None or not info.closed:
        return False
    if asked is not None and Position(ledger_id, info.entries - 1) <= asked:
        return True
    if policy.threshold_s is not None and view.wall_ms - info.closed_at_ms > policy.threshold_s * 1000:
        return True
    closed = [one.size_bytes for one in ledgers.values() if one.closed and one.ledger_id >= ledger_id]
    return policy.threshold_bytes is not None and (sum(closed) > policy.threshold_bytes or not policy.threshold_bytes)


def due_in_s(view: TopicView, step: Run | Loss) -> float | None:
    """Return the seconds until its age makes a ledger due, None if time alone does not."""
    threshold_s = view.policy.threshold_s
    info = view.chain.ledgers.get(step.ledger_id) if isinstance(step, Run) else None
    if info is None or not info.closed or threshold_s is None:
        return None
    left_ms = info.closed_at_ms + threshold_s * 1000 - view.wall_ms
    return (left_ms + 1) / 1000 if left_ms >= 0 else None


def frees_on_seal(view: TopicView, progress: SegmentProgress | None) -> bool:
    """Return whether sealing the open segment, whose `progress` it is, or the next one soon frees memory.

    Not while entries up to a decided end are missing, nor for entries that no segment takes yet.
    """
    end = view.attempt.end if view.attempt is not None else None
    if end is not None and view.cursor < end:
        return False
    if progress is not None and progress.entries:
        return True
    if view.attempt is not None or view.first is None:
        return view.first is not None
    return method_at(view, view.first) is OffloadMethod.STREAMING


CHECK_S = 1.0
"""Pause between checks whether the source lost a left attempt's entries, or a ledger became due."""


class Leave(NamedTuple):
    """Stop as requested; nothing accepted is lost."""


class Adopt(NamedTuple):
    """Adopt a ledger that a broker has offloaded."""

    info: LedgerInfo


class Abandon(NamedTuple):
    """Give up the attempt of an earlier owner: the source has lost its first entry."""

    attempt: Attempt


class Resume(NamedTuple):
    """Resume the attempt of an earlier owner."""

    attempt: Attempt


class Begin(NamedTuple):
    """Begin a segment with an entry."""

    first: Position
    method: OffloadMethod


class NoteEnd(NamedTuple):
    """Record the end of the ledger at the offloaded position."""


class Wait(NamedTuple):
    """Wait for a change, at most `seconds`; `starving`: the memory may be overdrawn meanwhile."""

    seconds: float | None = None
    starving: bool = False


Choice = Leave | Adopt | Abandon | Resume | Begin | NoteEnd | Wait


def choose(view: TopicView) -> Choice:
    """Return what to do while no segment is open; `view.attempt` is an earlier owner's attempt."""
    left, first = view.attempt, view.first
    if left is not None and left.parts and (view.rereadable or left.whole):
        return Resume(left)
    if view.may_stop:
        return Leave()
    if left is not None:
        return _of_left(left, view)
    if begins(view) and view.to_adopt is not None:
        return Adopt(view.to_adopt)
    if first is not None and (method := method_at(view, first)) is not OffloadMethod.NONE:
        return Begin(first, method)
    if view.end_is_unrecorded:
        return NoteEnd()
    return Wait(CHECK_S if first is not None or view.adoptable else None)  # one that was refused is tried again


def _of_left(left: Attempt, view: TopicView) -> Choice:
    """Return what to do with an attempt that holds no entries yet, or whose entries are pushed again."""
    first = view.first
    if first is not None:
        return Resume(left) if left.parts or first <= left.begin else Abandon(left)
    if view.end_is_unrecorded:
        return NoteEnd()
    return Abandon(left) if view.left_is_lost else Wait(CHECK_S, starving=left.end is not None)


class Requests:
    """The open requests to one topic, which its loop and segment writer read at each step; `changed` wakes the loop.

    A request is a state, not a message, so a repeated one counts once.
    """

    def __init__(self, changed: Signal, policy: RollPolicy) -> None:
        self.policy = policy
        """The policy in force."""
        self.stopping = False
        """Whether the owner is to release the topic."""
        self._seal_to: Position | None = None
        self._memory = False
        self._changed = changed

    def follow(self, policy: RollPolicy) -> None:
        """Take another policy."""
        self.policy = policy
        self._changed.notify()

    def stop(self) -> None:
        """Request that the open segment is sealed and the topic released."""
        self.stopping = True
        self._changed.notify()

    def seal_to(self, target: Position) -> None:
        """Request a seal as soon as the segment holds the entry at `target`."""
        self._seal_to = max(target, self._seal_to or target)
        self._changed.notify()

    def free_memory(self) -> None:
        """Request a seal soon, because memory is short."""
        if not self._memory:
            self._memory = True
            self._changed.notify()

    def committed(self, end: Position) -> None:
        """Drop the requests that a commit up to `end` fulfils."""
        if self._seal_to is not None and self._seal_to <= end:
            self._seal_to = None
        self._memory = False

    def now(self) -> Requested:
        """Return the requests to the open segment."""
        return Requested(self.stopping, self._seal_to, self._memory)
