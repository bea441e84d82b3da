"""The chain of a topic's ledgers, from one look at the source after the other: what follows a position, what is lost.

Retention deletes ledgers from the front of the list, whether or not they were offloaded. A ledger that vanished is no
loss if it is known to have ended where the offloading stands and what came next is known; a ledger that was seen with
entries behind that is a certain loss; anything else is a possible one. Nothing is ever skipped in silence. What comes
next is the word of whoever keeps the ledgers, where there is one: Pulsar's list has ledgers that cannot be read any
more, and drops empty ones that a broker's crash has left behind. Pure.
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
    """What is known to be gone between two positions."""

    entries: int = 0
    doubt: bool = False

    def gone(self, known: LedgerInfo | None, from_entry_id: int, *, settled: bool) -> None:
        """Count a ledger of which the source has nothing any more; `settled`: nothing more than is known was in it."""
        if known is not None:
            self.entries += max(0, known.entries - from_entry_id)
        self.doubt |= known is None or not (known.closed or settled)


class LedgerChain:
    """What has been seen of the ledgers of one topic.

    `resume` is where the offloading stands and `end` what was recorded of its ledger; `begin` is the entry with which
    an earlier owner went on from there, as far as that is known. `losses` were reported before.
    """

    def __init__(
        self, resume: Position, *, end: LedgerEnd | None, begin: Position | None = None, losses: Iterable[Loss] = ()
    ) -> None:
        self.ledgers: dict[int, LedgerInfo] = {}
        """What the source has now, in order; `entries` of an open ledger are those that may be read."""
        self._known: dict[int, LedgerInfo] = {}  # also those that are gone
        self._next: dict[int, int] = {}  # which ledger directly follows which; START's ledger id stands for the front
        self._accepted = {loss.after: loss for loss in losses}
        self._settled: set[int] = set()  # went with their topic, or empty as the list was changed once: as known
        self._unsure: set[int] = set()  # may have held more than is known of them when they were last seen
        self._unseen: set[int] = set()  # nobody could tell, when they were last listed, whether they had entries
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
        """Take in how a ledger ended that the source may have no more."""
        self._known[ledger_id] = LedgerInfo(ledger_id=ledger_id, closed=True, entries=end.entries, size_bytes=0)
        if end.next_ledger_id is not None:
            self._next[ledger_id] = end.next_ledger_id

    def look(self, ledgers: Sequence[LedgerInfo]) -> None:
        """Take in the list as the source has it now."""
        self._compare(ledgers)
        self._unseen |= self._unsure & self.ledgers.keys()
        if ledgers:  # an open one that is not there any more although its topic is may have got entries meanwhile
            self._unsure |= {one for one, info in self.ledgers.items() if not info.closed} - self._settled
        self.ledgers = {info.ledger_id: info for info in ledgers}
        self._known.update(self.ledgers)
        self._settled -= self.ledgers.keys()
        self._unsure -= self.ledgers.keys()
        self._unseen -= self.ledgers.keys()
        if ledgers:
            if self._deleted_with is not None and self._deleted_with < ledgers[0].ledger_id:
                self._next[self._deleted_with] = ledgers[0].ledger_id
            self._deleted_with = None
            self._next.setdefault(START.ledger_id, ledgers[0].ledger_id)
        before: int | None = None
        for info in ledgers:
            previous = before if info.previous is None else info.previous
            if previous is not None:
                self._join(previous, info.ledger_id)
            before = info.ledger_id

    def doubt(self) -> None:
        """Note that the open ledger may hold more than is known: entries are hidden, or nobody could tell its end."""
        self._unsure |= {one for one, info in self.ledgers.items() if not info.closed}

    def deleted(self) -> None:
        """The topic was deleted, by whoever may: what was known of its ledgers is all that there was to offload.

        Not of those whose end was in doubt before: these stay possible losses.
        """
        self._settled |= self._known.keys() - self._unsure
        self._deleted_with = max(self._known, default=self._deleted_with)
        self.ledgers = {}

    def _compare(self, ledgers: Sequence[LedgerInfo]) -> None:
        """Conclude from two looks at a list what became of ledgers that are in the first one only.

        A list that was made anew is of a topic that was deleted meanwhile. One that was changed once lacks an empty
        ledger because its broker dropped it: what had got entries would have been listed as closed by another change.
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
        """Note that the list has a ledger directly behind another one, which bridges what was empty between them.

        One that was seen with entries, or whose end nobody could tell, stays between when it is not listed any more, so
        that it is told of.
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
        """Drop what lies before the ledger of `position`, which nobody will ask for again."""
        self._settled = {one for one in self._settled if one >= position.ledger_id}
        self._unsure = {one for one in self._unsure if one >= position.ledger_id}
        self._unseen = {one for one in self._unseen if one >= position.ledger_id}
        for memory in (self._known, self._next):
            for ledger_id in [one for one in memory if START.ledger_id < one < position.ledger_id]:
                del memory[ledger_id]
        self._accepted = {after: loss for after, loss in self._accepted.items() if loss.before > position}

    def end_of(self, ledger_id: int) -> LedgerEnd | None:
        """Return how a ledger ended and what follows it, None while it is open or not known."""
        known = self._known.get(ledger_id)
        return LedgerEnd(known.entries, self._next.get(ledger_id)) if known is not None and known.closed else None

    def accept(self, loss: Loss) -> None:
        """Go on behind a loss, which has been reported."""
        self._accepted[loss.after] = loss

    def certainly_lost(self, after: Position) -> bool:
        """Say whether a loss was reported behind a position, with the number of entries that are known to be lost."""
        return after in self._accepted and self._accepted[after].certain

    def next_after(self, position: Position) -> Run | Loss | None:
        """Return the entries that directly follow `position`, the loss that lies between, or None at the edge."""
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
        missing.gone(self._known.get(ledger_id), from_entry_id, settled=ledger_id in self._settled)

    def _holds(self, ledger_id: int) -> bool:
        """Say whether the source has a ledger that has entries, or may get some."""
        info = self.ledgers.get(ledger_id)
        return info is not None and (info.entries > 0 or not info.closed)
