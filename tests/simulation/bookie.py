"""A simulated bookie: that of the unit tests, on the virtual wire, with faults drawn from the seed.

It answers long polls as DbLedgerStorage does: who waits is woken, and forgotten, whenever what is remembered of a
ledger's LAC changes. What it remembers it has from reads of the ledger's end, and forgets when it is started again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.unit.bookkeeper import wire
from tests.unit.bookkeeper.fake_bookie import BUSY, NO_ENTRY, Asked, FakeBookie, Session

if TYPE_CHECKING:
    from tests.simulation.world import World

PORT = 3181
DISK_FAULT = 101
SLOW_S = 3.0
FAILURES = ("busy", "disk fault", "cut", "silent", "spoilt", "missing")
"""What a faulty answer of a bookie is."""


class SimBookie(FakeBookie):
    """A bookie at an address of its own; without `batches` it is of an old release."""

    def __init__(self, world: World, number: int, *, batches: bool) -> None:
        super().__init__()
        self._world = world
        self._rng = world.chance.stream(f"bookie {number}")
        self._host = f"bookie-{number}"
        self._batches = batches
        self._newest: dict[int, int] = {}
        self._lacs: dict[int, int] = {}
        self._remembered: dict[int, int] = {}
        self._polls: dict[int, Asked] = {}
        """Long polls without an answer, by number."""
        self.long_polls = self.answered = self.fences = 0
        """How many long polls have begun, how many of them a newer LAC has ended, how often a ledger was fenced."""
        self._waiting: dict[int, list[int]] = {}
        """Those of them that the next LAC of a ledger wakes."""
        self._fenced: set[int] = set()
        self._waits_for_fenced = world.chance.stream(f"storage of bookie {number}").random() < 0.7
        self._held: list[Asked] | None = None
        self.down = True
        self.start()

    @property
    def bookie_id(self) -> str:
        """Its id, which is its address."""
        return f"{self._host}:{PORT}"

    def start(self) -> None:
        """Take connections."""
        if self.down:
            self.down = False
            self._listening = self._world.loop.network.serve(lambda: Session(self), self._host, PORT)

    def stop(self) -> None:
        """Break down: all connections end, what was remembered is forgotten."""
        if not self.down:
            self.down = True
            self._listening.close()
            for session in self.sessions:
                session.cut()
            self.sessions.clear()
            self._remembered.clear()
            self._waiting.clear()
            self._polls.clear()
            self._held = None

    def freeze(self) -> None:
        """Answer nothing until it is thawed."""
        if self._held is None:
            self._held = []

    def thaw(self) -> None:
        """Answer again, first what has waited."""
        held, self._held = self._held, None
        for asked in held or ():
            self.take(asked)

    # What writers do.

    def store(self, ledger_id: int, entry_id: int, stored: bytes) -> None:
        """Store an entry, and wake who waits for the LAC in it."""
        self.stored[ledger_id, entry_id] = stored
        self._newest[ledger_id] = max(entry_id, self._newest.get(ledger_id, -1))
        self.explicit_lac(ledger_id, int.from_bytes(stored[16:24], "big", signed=True))

    def explicit_lac(self, ledger_id: int, lac: int) -> None:
        """Take note of a LAC."""
        self._lacs[ledger_id] = max(lac, self._lacs.get(ledger_id, -1))
        if ledger_id in self._waiting:
            self._remember(ledger_id)
        elif ledger_id in self._remembered:
            self._remembered[ledger_id] = self._lacs[ledger_id]

    def fence(self, ledger_id: int) -> None:
        """Take no more entries of a ledger. DbLedgerStorage lets wait who waits for some, another storage nobody."""
        self.fences += 1
        if self._waits_for_fenced:
            return
        self._fenced.add(ledger_id)
        for number in self._waiting.pop(ledger_id, []):
            self._tell(number)

    def collect(self, ledger_id: int) -> None:
        """Forget a ledger that was deleted."""
        if self._newest.pop(ledger_id, None) is not None:
            for key in [key for key in self.stored if key[0] == ledger_id]:
                del self.stored[key]

    # What readers ask.

    def take(self, asked: Asked) -> None:
        """Answer a request, or do what is drawn for it."""
        if asked.session.ended:
            return
        if self._held is not None:
            self._held.append(asked)
            return
        faults = self._world.faults
        drawn = faults.draw("bk", self._rng)
        failure = self._rng.choice(FAILURES) if drawn == "error" else drawn
        if failure:
            faults.count(f"bookie {failure}")
        what = f"{asked.operation} {asked.ledger_id}:{asked.entry_id}"
        self._world.trace(self._host, f"{what} !{failure}" if failure else what)
        match failure:
            case "busy":
                asked.refuse(BUSY)
            case "disk fault":
                asked.refuse(DISK_FAULT)
            case "cut":
                asked.session.cut()
            case "silent":
                pass
            case "missing":
                asked.refuse(NO_ENTRY)
            case "slow":
                self._world.loop.in_world(SLOW_S * self._rng.random(), self._answer_late, asked)
            case "spoilt":
                self._answer_spoilt(asked)
            case _:
                self.answer(asked)

    def answer(self, asked: Asked) -> None:
        """Answer a request as a bookie with these entries does."""
        if asked.operation == "batch" and not self._batches:
            asked.session.cut()
        elif asked.operation == "wait":
            self._wait(asked)
        else:
            super().answer(asked)

    def _answer_late(self, asked: Asked) -> None:
        if not asked.session.ended and not self.down:
            self.answer(asked)

    def _answer_spoilt(self, asked: Asked) -> None:
        """Answer with a copy of which one byte is another."""
        at = asked.entry_id if asked.entry_id >= 0 else self._newest.get(asked.ledger_id, -1)
        key = asked.ledger_id, at
        whole = self.stored.get(key)
        if whole is None:
            self.answer(asked)
            return
        spoilt = bytearray(whole)
        spoilt[self._rng.randrange(8)] ^= (
            0x40  # the id of its ledger, which also entries without a digest are checked by
        )
        self.stored[key] = bytes(spoilt)
        self.answer(asked)
        self.stored[key] = whole

    def _answer_v3(self, asked: Asked) -> None:
        at = self._newest.get(asked.ledger_id, -1) if asked.entry_id == -1 else asked.entry_id
        stored = self.stored.get((asked.ledger_id, at))
        if stored is None:
            asked.refuse(self._missing(asked.ledger_id))
            return
        if asked.entry_id == -1:
            self._remember(asked.ledger_id)
        lac = self._lacs.get(asked.ledger_id)
        asked.reply(wire.v3_read(asked.number, asked.ledger_id, asked.entry_id, stored, max_lac=lac))

    def _wait(self, asked: Asked) -> None:
        """Answer a long poll: now, when the LAC changes, or at its end."""
        ledger_id = asked.ledger_id
        if ledger_id not in self._newest:
            asked.refuse(self._missing(ledger_id))
            return
        self.long_polls += 1
        number = self.long_polls
        self._polls[number] = asked
        if ledger_id in self._fenced or self._remembered.get(ledger_id, -1) > asked.previous_lac:
            self._tell(number)
        else:
            self._waiting.setdefault(ledger_id, []).append(number)
            self._world.loop.in_world(asked.timeout_ms / 1000, self._tell, number)

    def _remember(self, ledger_id: int) -> None:
        """Note a LAC; if that is news, all who wait are forgotten, and those woken who waited for it."""
        lac = self._lacs.get(ledger_id, -1)
        if self._remembered.get(ledger_id, -2) < lac:
            self._remembered[ledger_id] = lac
            for number in self._waiting.pop(ledger_id, []):
                if number in self._polls and lac > self._polls[number].previous_lac:
                    self._tell(number)

    def _tell(self, number: int) -> None:
        """Answer a long poll, unless that has been done."""
        asked = self._polls.pop(number, None)
        if asked is not None and not asked.session.ended:
            lac = self._lacs.get(asked.ledger_id, -1)
            self.answered += lac > asked.previous_lac
            asked.reply(wire.v3_read(asked.number, asked.ledger_id, -1, max_lac=lac))
