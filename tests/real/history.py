"""One history of what was offered, acknowledged, reported durable and read of a topic, and what is wrong with it.

One writer offers entries in order; each entry's bytes occur once in the whole history, so an entry that is read is
recognised by them. The checker knows nothing of the engine: it takes no word for granted but what was said to a client.

| word | meaning |
|---|---|
| lost | acknowledged (or reported durable), and not in the last read, or not in the bucket |
| stale | acknowledged before a read began, not in that read, but in a later one; a durable position that falls |
| duplicated | twice in one read |
| reordered | read before an entry that was offered earlier |
| phantom | read, and never offered, or offered and refused |
| changed | one position, two contents |
| gap | positions of a read that do not follow each other |
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from offloaderd.core.model import Position

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class Fate(Enum):
    """What the writer was told about an offer."""

    UNKNOWN = "unknown"
    ACKED = "acknowledged"
    REFUSED = "refused"


class Problem(NamedTuple):
    """One violation: a word of the table above, and where."""

    word: str
    where: str


@dataclass(slots=True, eq=False)
class Offer:
    """Entries offered in one call; until it was answered nobody knows whether they are there."""

    first: int
    payloads: Sequence[bytes]
    fate: Fate = Fate.UNKNOWN
    acked_at: int = 0
    last: Position | None = None


@dataclass(slots=True, eq=False)
class Read:
    """One read from the oldest entry to the newest."""

    began_at: int
    entries: list[tuple[Position, bytes]] = field(default_factory=list)
    whole: bool = False


class History:
    """Everything that the clients of one topic did and saw, in the order in which they did."""

    def __init__(self) -> None:
        self.offers: list[Offer] = []
        self.reads: list[Read] = []
        self.reports: list[Position] = []
        self._now = 0
        self._numbers: dict[bytes, tuple[int, Offer]] = {}

    @property
    def offered(self) -> int:
        """Number of different entries that were offered."""
        return len(self._numbers)

    @property
    def acked(self) -> int:
        """Number of entries that were acknowledged."""
        return sum(len(offer.payloads) for offer in self.offers if offer.fate is Fate.ACKED)

    def offer(self, payloads: Sequence[bytes]) -> Offer:
        """Entries are about to be sent, in a call whose outcome is not known yet. Each of them is new."""
        made = Offer(len(self._numbers), payloads)
        for payload in payloads:
            if payload in self._numbers:
                raise ValueError("an entry of a history is offered once")
            self._numbers[payload] = (len(self._numbers), made)
        self.offers.append(made)
        return made

    def ack(self, offer: Offer, last: Position | None = None) -> None:
        """The writer was told that the offer is safe, and the position of its last entry."""
        self._now += 1
        offer.fate, offer.acked_at, offer.last = Fate.ACKED, self._now, last

    def refuse(self, offer: Offer) -> None:
        """The writer was told that nothing of the offer was taken."""
        offer.fate = Fate.REFUSED

    def durable(self, position: Position) -> None:
        """A client was told that everything up to a position is durable."""
        self.reports.append(position)

    def begin_read(self) -> Read:
        """A reader is about to ask for everything; it fills in what it gets, and says so when that was all."""
        self._now += 1
        read = Read(self._now)
        self.reads.append(read)
        return read

    def end_read(self, read: Read) -> None:
        """A reader got all there was. A read just before with the same entries proves nothing more, and is dropped."""
        read.whole = True
        before = self.reads[-2] if self.reads[-1] is read and len(self.reads) > 1 else None
        if before is not None and before.whole and before.entries == read.entries:
            del self.reads[-2]

    def problems(self, stored: Mapping[Position, bytes] | None = None, floor: Position | None = None) -> list[Problem]:
        """Return what is wrong with the history; `stored` is what lies in the bucket at its end, when known.

        Everything up to `floor` was deleted on purpose: reads may begin behind it.
        """
        found: list[Problem] = []
        contents: dict[Position, bytes] = {}
        for number, read in enumerate(self.reads):
            where = f"read {number}"
            found += _sequence(read, where)
            found += self._known(read.entries, where)
            found += _contents(contents, read.entries, where)
            if read.whole:
                later = [one for one in self.reads[number + 1 :] if one.whole]
                found += self._missing(read, later, where, floor)
        found += self._positions(contents)
        found += [
            Problem("stale", f"reported durable: {after} after {before}")
            for before, after in pairwise(self.reports)
            if after < before
        ]
        if stored is not None:
            entries = sorted(stored.items())
            found += self._known(entries, "the bucket")
            found += _contents(contents, entries, "the bucket")
            found += self._undurable(stored, contents, floor or Position(-1, -1))
        return found

    def _known(self, entries: Iterable[tuple[Position, bytes]], where: str) -> list[Problem]:
        """Every entry was offered, comes once, and behind those that were offered before it."""
        found: list[Problem] = []
        seen: set[int] = set()
        newest = -1
        for position, payload in entries:
            number, offer = self._numbers.get(payload, (-1, None))
            if offer is None or offer.fate is Fate.REFUSED:
                found.append(Problem("phantom", f"{where}, {position}: {payload[:40]!r}"))
            elif number in seen:
                found.append(Problem("duplicated", f"{where}, {position}: entry {number}"))
            elif number < newest:
                found.append(Problem("reordered", f"{where}, {position}: entry {number} after {newest}"))
            seen.add(number)
            newest = max(newest, number)
        return found

    def _missing(self, read: Read, later: Sequence[Read], where: str, floor: Position | None) -> list[Problem]:
        """Every entry that was acknowledged before the read began is in it, or was deleted."""
        deleted = self._deleted_before(read, floor, last=not later)
        there = {payload for _, payload in read.entries}
        after = {payload for one in later for _, payload in one.entries}
        found: list[Problem] = []
        for offer in self.offers:
            if offer.fate is Fate.ACKED and offer.acked_at < read.began_at:
                for number, payload in enumerate(offer.payloads, offer.first):
                    if payload not in there and number >= deleted:
                        found.append(Problem("stale" if payload in after else "lost", f"{where}: entry {number}"))
        return found

    def _deleted_before(self, read: Read, floor: Position | None, *, last: bool) -> int:
        """Return the number of the first entry that may not be missing: a read begins where the floor was by then.

        The last read has to begin right behind the floor.
        """
        if floor is None or not read.entries:
            return 0
        (position, payload) = read.entries[0]
        behind = position == floor._replace(entry_id=floor.entry_id + 1) or (
            position.ledger_id > floor.ledger_id and position.entry_id == 0
        )
        return self._numbers.get(payload, (0, None))[0] if behind or (not last and position <= floor) else 0

    def _positions(self, contents: Mapping[Position, bytes]) -> list[Problem]:
        """What was acknowledged lies where the writer was told."""
        return [
            Problem("changed", f"{offer.last} was acknowledged with another content than was read")
            for offer in self.offers
            if offer.last is not None and contents.get(offer.last, offer.payloads[-1]) != offer.payloads[-1]
        ]

    def _undurable(
        self, stored: Mapping[Position, bytes], contents: Mapping[Position, bytes], floor: Position
    ) -> list[Problem]:
        """All entries from the floor up to the greatest position that was reported durable are in the bucket."""
        if not self.reports:
            return []
        durable = max(self.reports)
        gone = [position for position in sorted(contents) if floor < position <= durable and position not in stored]
        gone += [durable] if durable > floor and durable not in stored else []
        return [Problem("lost", f"{position} was reported durable and is not in the bucket") for position in gone]


def _sequence(read: Read, where: str) -> list[Problem]:
    """Positions follow each other; a ledger is left only for entry 0 of a later one."""
    return [
        Problem("gap", f"{where}: {after} after {before}")
        for (before, _), (after, _) in pairwise(read.entries)
        if after != before._replace(entry_id=before.entry_id + 1)
        and not (after.ledger_id > before.ledger_id and after.entry_id == 0)
    ]


def _contents(known: dict[Position, bytes], entries: Iterable[tuple[Position, bytes]], where: str) -> list[Problem]:
    """A position has one content for ever."""
    return [
        Problem("changed", f"{where}: {position} has two contents")
        for position, payload in entries
        if known.setdefault(position, payload) != payload
    ]
