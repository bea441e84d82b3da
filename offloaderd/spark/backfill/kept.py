"""Segments of a job that are whole in the bucket and wait for their commit: they are there, whatever the source has.

The source may delete a ledger once an executor has written it and before its turn comes. Then the ledgers' chain sees a
gap that reaches over the segment; what is lost ends where the segment begins, and nothing is if that is what follows.
"""

from offloaderd.core.model import START, Loss, Position
from offloaderd.history.record import HistoryRecord
from offloaderd.ledgers.chain import Run
from offloaderd.metadata.records.attempt import Attempt


class Kept:
    """The whole segments of one topic's job, over the chain of its ledgers."""

    def __init__(self, history: HistoryRecord) -> None:
        self._history = history
        self._attempts: dict[Position, Attempt] = {}

    def add(self, attempt: Attempt) -> None:
        """Take in a segment that is whole, and sealed."""
        self._attempts[attempt.begin] = attempt

    def drop(self, attempt: Attempt) -> None:
        """Forget one that is committed or given up."""
        self._attempts.pop(attempt.begin, None)

    def next_after(self, position: Position) -> Run | Loss | None:
        """Return what follows a position, by the source or by what is whole; None at the end of history."""
        step = self._history.next_after(position)
        held = min((one for one in self._attempts if one > position), default=None)
        if held is None or (isinstance(step, Run) and step.first <= held):
            return step
        told = any(one.after == position and one.holds(held) for one in self._history.map.losses)
        if told or (isinstance(step, Loss) and step.before <= held):
            return step
        attempt = self._attempts[held]
        if self._joins(position, attempt):
            last = attempt.end.entry_id if attempt.end is not None else held.entry_id
            return Run(held.ledger_id, held.entry_id, last)
        losses = attempt.seal.losses if attempt.seal is not None else ()
        known = next((one for one in losses if (one.after, one.before) == (position, held)), None)
        return known or Loss(position, held, self._between(position, held))

    def _joins(self, position: Position, attempt: Attempt) -> bool:
        """Whether it is on record that nothing lies between a position and a segment."""
        begin, known = attempt.begin, self._history.map
        if any((one.after, one.before) == (position, begin) for one in known.losses):
            return True
        if position == START:
            return begin == Position(self._history.plan.first, 0)
        if begin.ledger_id == position.ledger_id:
            return begin.entry_id == position.entry_id + 1
        if not known.joined(position, begin):
            return False
        index = self._history.ranges.at(position)
        ranges = self._history.ranges.ranges
        split = index is not None and ranges[index].end == position
        follows = split and index is not None and index + 1 < len(ranges) and ranges[index + 1].begin == begin
        return follows or known.ends[position.ledger_id].next_ledger_id == begin.ledger_id

    def _between(self, position: Position, begin: Position) -> int:
        """Return how many entries are known to have been between two positions: those of one ledger."""
        return begin.entry_id - position.entry_id - 1 if begin.ledger_id == position.ledger_id else begin.entry_id
