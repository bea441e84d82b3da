"""The chain of a topic's ledgers, from successive lists of the source: what follows a position, and what is lost.

Retention deletes ledgers from the front of the list, whether or not they were offloaded. A missing ledger is no loss if
it ended at the offloaded position and its successor is known; a ledger that had entries behind that is a certain loss;
anything else is a possible one. Nothing is skipped in silence. The successor comes from the authority on the list,
where there is one: Pulsar's list has ledgers that cannot be read any more, and drops empty ones after a broker's crash.
A ledger that replaces those before it follows each of them, whatever was between. Pure.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from offloaderd.core.model import START, LedgerEnd, LedgerInfo, Loss, Position


class Run(NamedTuple):
    """Entries of one ledger that directly follow a position."""

    ledger_id: int
    first_entry_id: int
    last_entry_id: int

    @property
    def first(self) -> Position:
        """Position of the first entry."""
        return Position(self.ledger_id, self.first_entry_id)


@dataclass(slots=True)
class _Missing:
    """The missing entries between two positions."""

    entries: int = 0
    doubt: bool = False


class LedgerChain:
    """The known ledgers of one topic.

    `resume` is the offloaded position, `end` the recorded end of its ledger; `begin` is the next entry that an earlier
    owner found, if known. `losses` were reported before.
    """

    def __init__(
        self, resume: Position, *, end: LedgerEnd | None, begin: Position | None = None, losses: Iterable[Loss] = ()
    ) -> None:
        self.ledgers: dict[int, LedgerInfo] = {}
        """The present list of the source, in order; `entries` of an open ledger are those that may be read."""
        self._known: dict[int, LedgerInfo] = {}  # also deleted ones
        self._next: dict[int, int] = {}  # the direct successor; START's ledger id is the front
        self._accepted = {loss.after: loss for loss in losses}
        self._settled: set[int] = set()  # final as known: deleted with their topic, or dropped as empty
        self._unsure: set[int] = set()  # may have had more entries than are known
        self._unseen: set[int] = set()  # unsure, and so perhaps with entries, in their last list
        self._listing: tuple[int, int] | None = None
        self._deleted_with: int | None = None
        if begin is not None and begin.ledger_id > resume.ledger_id:
            self._next[resume.ledger_id] = begin.ledger_id
            self._known[begin.ledger_id] = LedgerInfo(
                ledger_id=begin.ledger_id, closed=False, entries=begin.entry_id + 1, size_bytes=0
            )
            self._unsure.add(begin.ledger_id)
        if end is not None:
            self.ended(resume.ledger_id, end)

    def ended(self, ledger_id: int, end: LedgerEnd) -> None:
        """Record the end of a ledger that the source may no longer have."""
        self._known[ledger_id] = LedgerInfo(ledger_id=ledger_id, closed=True, entries=end.entries, size_bytes=0)
        if end.next_ledger_id is not None:
            self._next[ledger_id] = end.next_ledger_id

    def update(self, ledgers: Sequence[LedgerInfo]) -> None:
        """Take over the present list of the source."""
        self._compare(ledgers)
        self._unseen |= self._unsure & self.ledgers.keys()
        if ledgers:  # an open one that vanished, but not its topic, may have got entries
            self._unsure |= {one for one, info in self.ledgers.items() if not info.closed} - self._settled
        self.ledgers = {info.ledger_id: info for info in ledgers}
        self._known.update(self.ledgers)
        self._settled -= self.ledgers.keys()
        self._unsure -= self.ledgers.keys()
        self._unseen -= self.ledgers.keys()
        if ledgers:
            if self._deleted_with is not None and self._deleted_with < ledgers[0].ledger_id:
                # A recorded successor that no list had was there too, and may have had entries.
                self._next.setdefault(self._deleted_with, ledgers[0].ledger_id)
            self._deleted_with = None
            self._next.setdefault(START.ledger_id, ledgers[0].ledger_id)
        before: int | None = None
        for info in ledgers:
            if info.replaces:
                earlier = [one for one in {*self._known, *self._next} if one < info.ledger_id]
                self._next |= dict.fromkeys(earlier, info.ledger_id)
            previous = before if info.previous is None else info.previous
            if previous is not None:
                self._join(previous, info.ledger_id)
            before = info.ledger_id

    def doubt(self) -> None:
        """Note that the open ledger may have more entries than are known: hidden ones, or its end is unknown."""
        self._unsure |= {one for one, info in self.ledgers.items() if not info.closed}

    def deleted(self) -> None:
        """Note that the topic was deleted: the known entries of its ledgers are all that there were.

        Ledgers whose end was in doubt before stay possible losses.
        """
        self._settled |= self._known.keys() - self._unsure
        self._deleted_with = max(self._known, default=self._deleted_with)
        self.ledgers = {}

    def _compare(self, ledgers: Sequence[LedgerInfo]) -> None:
        """Settle the ledgers that only the former of two lists has.

        After the node was made again, the topic was deleted in between. After one change of the node, its broker
        dropped an empty ledger: one with entries would have been listed as closed by another change.
        """
        before, now = self._listing, ledgers[-1].listing if ledgers else None
        if now is None:
            return
        self._listing = now
        if before is None:
            return
        if before[0] != now[0]:
            self.deleted()
        elif before[1] + 1 == now[1]:
            there = {info.ledger_id for info in ledgers}
            empty = {one for one, info in self.ledgers.items() if one not in there and not info.entries}
            self._settled |= empty - self._unsure

    def _join(self, previous: int, ledger_id: int) -> None:
        """Note that a ledger directly follows another one in the list, without the empty ones between them.

        One that had entries, or an unknown end, stays between although it is not listed any more, and is reported.
        """
        between = self._next.get(previous)
        while between is not None and between < ledger_id:
            known = self._known.get(between)
            filled = known is not None and (known.entries or between in self._unseen)
            if filled and between not in self.ledgers:
                previous = between
            between = self._next.get(between)
        self._next[previous] = ledger_id

    def forget_before(self, position: Position) -> None:
        """Drop all before the ledger of `position`, which is not needed again."""
        self._settled = {one for one in self._settled if one >= position.ledger_id}
        self._unsure = {one for one in self._unsure if one >= position.ledger_id}
        self._unseen = {one for one in self._unseen if one >= position.ledger_id}
        for memory in (self._known, self._next):
            for ledger_id in [one for one in memory if START.ledger_id < one < position.ledger_id]:
                del memory[ledger_id]
        self._accepted = {after: loss for after, loss in self._accepted.items() if loss.before > position}

    def end_of(self, ledger_id: int) -> LedgerEnd | None:
        """Return a ledger's end and successor; None while it is open or unknown."""
        known = self._known.get(ledger_id)
        return LedgerEnd(known.entries, self._next.get(ledger_id)) if known is not None and known.closed else None

    def accept(self, loss: Loss) -> None:
        """Continue behind a reported loss."""
        self._accepted[loss.after] = loss

    def certainly_lost(self, after: Position) -> bool:
        """Whether a certain loss was reported behind a position."""
        return after in self._accepted and self._accepted[after].certain

    def next_after(self, position: Position) -> Run | Loss | None:
        """Return the entries that directly follow `position`, the loss in between, or None at the edge."""
        missing = _Missing()
        if position in self._accepted:
            following: int | None = self._accepted[position].before.ledger_id
        else:
            info = self.ledgers.get(position.ledger_id)
            if info is not None and position.entry_id + 1 < info.entries:
                return Run(info.ledger_id, position.entry_id + 1, info.entries - 1)
            if info is not None and not info.closed:
                return None
            if info is None and position != START:
                self._count(missing, position.ledger_id, position.entry_id + 1)
            following = self._next.get(position.ledger_id)
        while following is not None and not self._holds(following):
            if following not in self.ledgers:
                self._count(missing, following, 0)
            following = self._next.get(following)
        if following is None:
            behind = (one for one in self.ledgers if one > position.ledger_id and self._holds(one))
            following = next(behind, None)
            if following is None:
                return None
            missing.doubt |= position != START
        if missing.entries or missing.doubt:
            return Loss(position, Position(following, 0), missing.entries)
        entries = self.ledgers[following].entries
        return Run(following, 0, entries - 1) if entries else None

    def _count(self, missing: _Missing, ledger_id: int, from_entry_id: int) -> None:
        """Count a ledger that the source no longer has."""
        known = self._known.get(ledger_id)
        if known is not None:
            missing.entries += max(0, known.entries - from_entry_id)
        missing.doubt |= known is None or not (known.closed or ledger_id in self._settled)

    def _holds(self, ledger_id: int) -> bool:
        """Whether the source has the ledger with entries, or may get some."""
        info = self.ledgers.get(ledger_id)
        return info is not None and (info.entries > 0 or not info.closed)
