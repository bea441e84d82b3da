"""What an owner does next with its topic between two segments: decided by a look at it, without an await.

What an earlier owner left is resumed, or abandoned once the source has lost its first entry. Else ledgers that brokers
have offloaded are adopted, and a segment begins with the next entry as soon as that is to be offloaded.
"""

from typing import NamedTuple

from offloaderd.core.model import LedgerInfo, OffloadMethod, Position
from offloaderd.metadata.records.attempt import Attempt
from offloaderd.segment.view import TopicView
from offloaderd.topic.due import begins, method_at

LOOK_S = 1.0
"""How often to look whether what an earlier owner left has lost its entries, or a ledger has become due."""


class Leave(NamedTuple):
    """Stop, as was asked for; nothing is lost by it."""


class Adopt(NamedTuple):
    """Make a ledger part of the topic that a broker has offloaded."""

    info: LedgerInfo


class Abandon(NamedTuple):
    """Give up what an earlier owner left: the source has lost its first entry."""

    attempt: Attempt


class Resume(NamedTuple):
    """Bring what an earlier owner left to its end."""

    attempt: Attempt


class Begin(NamedTuple):
    """Begin a segment with an entry."""

    first: Position
    method: OffloadMethod


class NoteEnd(NamedTuple):
    """Record how the ledger ended up to which all is offloaded."""


class Wait(NamedTuple):
    """Wait until something changes, for so many seconds at most; `starving`: more memory may be taken meanwhile."""

    seconds: float | None = None
    starving: bool = False


Choice = Leave | Adopt | Abandon | Resume | Begin | NoteEnd | Wait


def choose(view: TopicView) -> Choice:
    """Say what is to be done while no segment is open; `view.attempt` is what an earlier owner left."""
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
    return Wait(LOOK_S if first is not None else None)


def _of_left(left: Attempt, view: TopicView) -> Choice:
    """Say what becomes of an attempt that holds nothing yet, or whose entries have to be pushed again."""
    first = view.first
    if first is not None:
        return Resume(left) if left.parts or first <= left.begin else Abandon(left)
    if view.end_is_unrecorded:
        return NoteEnd()
    return Abandon(left) if view.left_is_lost else Wait(LOOK_S, starving=left.end is not None)
