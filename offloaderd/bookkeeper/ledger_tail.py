"""The end of an open ledger: its last add confirmed (LAC), as bookies and, if need be, its broker know it.

A LAC is a promise of the writer. Each one holds, whatever its source, so the greatest counts and it never falls. It
comes from the headers of entries (checked by their digest), from bookies that got it explicitly (a bare number, used
only as far as a bookie stores an entry), from the metadata, or from the broker. Entries beyond it may be stored and are
not confirmed: they are counted as hidden. During a recovery of the ledger the LAC stays the same.

One bookie gets the request where every bookie has every entry; all of them when the ledger has just become quiet, and
now and then. Where entries are spread, all get it. Between the polls of a quiet ledger there are long polls.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

import structlog

from offloaderd.bookkeeper.metadata import LedgerMetadata
from offloaderd.bookkeeper.ports import Bookies
from offloaderd.bookkeeper.replicas import BookieOrder, checker_for, first_of
from offloaderd.bookkeeper.settings import BookkeeperSettings
from offloaderd.bookkeeper.wire.entry import Entry, EntryChecker
from offloaderd.bookkeeper.wire.protocol import Reaction, reaction_to
from offloaderd.core.aio import Event, Tasks
from offloaderd.core.clock import Clock
from offloaderd.core.errors import CorruptData, OffloaderError, Transient
from offloaderd.core.limits import Admission
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import Confirmed, Edge, Position, TopicName
from offloaderd.core.retry import doubled

log = structlog.get_logger(__name__)

FRESH_S = 0.05
"""An answer of this age is reused: a poll and the watchers that it wakes share one request."""
ALL_EVERY = 20
"""One of this many polls of a quiet ledger goes to every bookie."""
ALL_AT = 2
"""This many polls without a change make a ledger quiet: then every bookie gets one."""
POLLS_MAX = 64
"""Polls that a bookie has at a time. Others wait: with more than a daemon gets done they would all be late, be sent to
further bookies as well, and make it worse."""
ADMIN_PAUSE_MIN_S, ADMIN_PAUSE_MAX_S = 1.0, 30.0
ADMIN_LOOK_S = 600.0
"""Interval of requests to the broker for a quiet ledger without hidden entries: its writer may use a later one."""


class Broker(Protocol):
    """Access to a topic's broker."""

    async def last_confirmed(self, topic: TopicName) -> Position | None:
        """Return the writer's own last confirmed entry, None when no broker has the topic. Raises Transient, Denied."""
        ...


@dataclass(frozen=True, slots=True)
class _Answer:
    """The answer of a bookie: its last stored entry, verified, and the greatest LAC that it knows."""

    bookie_id: str
    entry: Entry | None
    max_lac: int

    @property
    def stored_id(self) -> int:
        """Id of the last stored entry, -1 for none."""
        return self.entry.entry_id if self.entry is not None else -1


@dataclass(slots=True, eq=False)
class TailAsker:
    """Requests the ends of ledgers from bookies, and from brokers when that is not enough."""

    bookies: Bookies
    order: BookieOrder
    background: Tasks
    broker: Broker | None
    clock: Clock = field(kw_only=True)
    metrics: Metrics = field(kw_only=True)
    options: BookkeeperSettings = field(kw_only=True)
    quiet_s: float = field(kw_only=True)
    _turns: defaultdict[str, Admission] = field(
        init=False, default_factory=lambda: defaultdict(lambda: Admission(POLLS_MAX))
    )
    """By the bookie that gets the request first: one that does not answer keeps no poll of others waiting."""

    async def ask(self, ledger_id: int, metadata: LedgerMetadata, *, every: bool) -> Sequence[_Answer]:
        """Return answers of one bookie of the last ensemble, or of `every`; at least one answer.

        When one is slow or fails, the others get the request. Raises Transient when none answers, Denied.
        """
        checker = checker_for(ledger_id, metadata)
        while True:
            first, rest = self._in_order(ledger_id, metadata, every=every)
            async with self._turns[first[0]].held():  # whoever waits here waits for no bookie
                if self._in_order(ledger_id, metadata, every=every)[0] == first:  # none was found slow meanwhile
                    return await self._answers(first, rest, checker)

    def _in_order(
        self, ledger_id: int, metadata: LedgerMetadata, *, every: bool
    ) -> tuple[Sequence[str], Sequence[str]]:
        """Return the bookies that get the request, and those that get it when these are slow or fail."""
        bookies = metadata.ensembles[-1].bookies
        turn = ledger_id % len(bookies)
        ordered = self.order.order((*bookies[turn:], *bookies[:turn]))
        prompt = [bookie_id for bookie_id in ordered if not self.order.is_slow(bookie_id)] or ordered
        first = prompt if every or metadata.striped else prompt[:1]
        return first, [bookie_id for bookie_id in ordered if bookie_id not in first]

    async def _answers(self, first: Sequence[str], rest: Sequence[str], checker: EntryChecker) -> Sequence[_Answer]:
        """Return the answers of the first bookies, or of one of the rest. Raises Transient, Denied."""
        asked = {self._start(bookie_id, checker): bookie_id for bookie_id in first}
        until = self.clock.monotonic() + self.options.hedge_s
        one_is_enough = len(first) == 1
        try:
            while True:
                running = [task for task in asked if not task.done()]
                answers = [answer for task in asked if task.done() and isinstance(answer := task.result(), _Answer)]
                late = self.clock.monotonic() >= until
                if answers and (one_is_enough or late or not running):
                    break
                if rest and (late or not running):
                    asked |= {self._start(bookie_id, checker): bookie_id for bookie_id in rest}
                    rest, one_is_enough = [], True
                elif not running:
                    raise _no_answer(checker.ledger_id, {other: task.result() for task, other in asked.items()})
                else:
                    patience = until - self.clock.monotonic()
                    seconds = patience if patience > 0 else self.options.hedge_s
                    await first_of(self.background, self.clock, running, seconds)
        finally:
            for task in asked:
                task.cancel()
        if late:
            for task in running:
                self.order.was_slow(asked[task])
        return answers

    def _start(self, bookie_id: str, checker: EntryChecker) -> asyncio.Task[_Answer | OffloaderError]:
        return self.background.start(self._ask_one(bookie_id, checker), name=f"end of ledger {checker.ledger_id}")

    async def _ask_one(self, bookie_id: str, checker: EntryChecker) -> _Answer | OffloaderError:
        try:
            known = await self.bookies.last_known(bookie_id, checker.ledger_id)
            entry = checker.check(known.stored, None) if known.stored is not None else None
        except CorruptData as error:
            self.metrics.bookie_bad_entries.inc()
            log.warning("bookie.bad_entry", bookie=bookie_id, ledger_id=checker.ledger_id, error=str(error))
            return error
        except OffloaderError as error:
            return error
        return _Answer(bookie_id, entry, known.max_lac)


def _no_answer(ledger_id: int, answers: dict[str, _Answer | OffloaderError]) -> OffloaderError:
    """Return why the end of a ledger is unknown, first what an operator has to mend."""
    errors = [error for error in answers.values() if isinstance(error, OffloaderError)]
    stop = next((error for error in errors if reaction_to(error) is Reaction.STOP), None)
    if stop is not None:
        return stop
    reasons = "; ".join(f"{bookie_id}: {error}" for bookie_id, error in answers.items())
    return Transient(f"no bookie answered with the end of ledger {ledger_id} ({reasons})", hint="see offloadctl doctor")


class LedgerTail:
    """The state of the end of one open ledger, shared by all its readers."""

    __slots__ = (
        "_asked_s",
        "_asker",
        "_asking",
        "_broker_asked",
        "_broker_at_s",
        "_last_answer",
        "_moved_s",
        "_quiet_polls",
        "_stored",
        "_suspected",
        "_topic",
        "edge",
        "lac",
        "ledger_id",
        "on_change",
        "overtaken",
        "size_bytes",
    )

    def __init__(self, topic: TopicName, ledger_id: int, asker: TailAsker, *, edge: Edge) -> None:
        self._topic = topic
        self._asker = asker
        self._asking: Event | None = None  # set when the request under way has ended
        self._asked_s: float | None = None
        self._quiet_polls = 0
        self._moved_s = asker.clock.monotonic()
        self._broker_asked = 0
        self._broker_at_s = 0.0
        self._stored = -1
        self._suspected: dict[str, tuple[int, int]] = {}
        self._last_answer: dict[str, int] = {}
        self.on_change: Callable[[], None] | None = None
        """It is called when an `ask` raises the LAC."""
        self.ledger_id = ledger_id
        self.lac = -1
        self.size_bytes = 0
        """Payload bytes up to the LAC; several hidden entries count as equal in size."""
        self.edge = edge
        self.overtaken: tuple[int, float] | None = None
        """The later ledger that the topic's broker named, and when it first did so (monotonic)."""

    @property
    def hidden(self) -> int:
        """Entries that are stored beyond the LAC."""
        return max(0, self._stored - self.lac)

    @property
    def confirmed(self) -> Confirmed:
        """The state now."""
        return Confirmed(self.lac, closed=False, edge=self.edge, hidden=self.hidden)

    @property
    def last_answer(self) -> Mapping[str, int]:
        """The LACs of the last answers, by bookie."""
        return self._last_answer

    @property
    def broker_due_s(self) -> float:
        """Seconds until the next request to the broker for hidden entries; inf when there is none."""
        if not self.hidden or self._asker.broker is None:
            return inf
        return max(0.0, self._broker_at_s - self._asker.clock.monotonic())

    def vouch(self) -> None:
        """Treat the state as of this moment: a long poll would have shown more."""
        self._asked_s = self._asker.clock.monotonic()

    def doubt(self) -> None:
        """Have the next `ask` send requests, however fresh the answer is."""
        self._asked_s = None

    async def ask(self, metadata: LedgerMetadata) -> Confirmed:
        """Return how far the ledger may be read; an answer of FRESH_S is reused. Raises Transient, Denied."""
        while self._asking is not None:
            await self._asking.wait()
        self._asking = asking = Event()
        try:
            now = self._asker.clock.monotonic()
            if self._asked_s is None or now - self._asked_s > FRESH_S:
                before = self.lac
                every = self._quiet_polls == ALL_AT or self._quiet_polls % ALL_EVERY == ALL_EVERY - 1
                self._take(await self._asker.ask(self.ledger_id, metadata, every=every), metadata)
                self._asked_s = self._asker.clock.monotonic()
                self._note(moved=self.lac > before)
                now = self._asker.clock.monotonic()
                if self.hidden or now - max(self._moved_s, self._broker_at_s) >= ADMIN_LOOK_S:
                    await self._ask_broker()
                if self.lac > before and self.on_change is not None:
                    self.on_change()
        finally:
            self._asking = None
            asking.set()
        return self.confirmed

    def frozen(self, metadata: LedgerMetadata) -> Confirmed:
        """Return the state before a recovery of the ledger began; no bookie gets a request.

        A recovery writes entries again with LACs of its own. If it fails half-way, the next one may end lower, so its
        LACs do not count before the ledger is closed.
        """
        self.lac = max(self.lac, metadata.confirmed_at_least)
        return self.confirmed

    def closed(self, last_entry_id: int, path: str) -> None:
        """Check that a closed ledger has all confirmed entries. Raises CorruptData."""
        if last_entry_id < self.lac:
            raise CorruptData(
                key=path,
                offset=0,
                expected=f"a last entry of {self.lac} or more, which was confirmed",
                found=last_entry_id,
                hint="confirmed entries are missing: was the ledger recovered without some of its bookies?",
            )

    def _take(self, answers: Sequence[_Answer], metadata: LedgerMetadata) -> None:
        """Update the state from answers of bookies."""
        self._last_answer = {answer.bookie_id: answer.max_lac for answer in answers}
        self._stored = max(self._stored, *(answer.stored_id for answer in answers))
        self.lac = max(self.lac, metadata.confirmed_at_least)
        for answer in answers:
            by_headers = answer.entry.lac if answer.entry is not None else -1
            self.lac = max(self.lac, min(answer.max_lac, self._stored), by_headers)
            self._detect_explicit(answer, by_headers)
        for entry in (answer.entry for answer in answers if answer.entry is not None):
            beyond = max(0, entry.entry_id - self.lac) * len(entry.payload)
            self.size_bytes = max(self.size_bytes, entry.length - beyond)

    def _detect_explicit(self, answer: _Answer, by_headers: int) -> None:
        """Distinguish an explicit LAC from that of an entry that came between the bookie's two reads, entry and LAC.

        If the bookie's last entry is still the same the next time, there was none in between.
        """
        suspected = self._suspected.pop(answer.bookie_id, None)
        if suspected is not None and suspected[0] == answer.stored_id and suspected[1] > by_headers:
            self.edge = Edge.EXPLICIT_LAC
        if answer.max_lac > by_headers and answer.entry is not None:
            self._suspected[answer.bookie_id] = (answer.stored_id, answer.max_lac)

    def _note(self, *, moved: bool) -> None:
        self._quiet_polls = 0 if moved else self._quiet_polls + 1
        if moved:
            self._moved_s = self._asker.clock.monotonic()
            self._broker_asked, self._broker_at_s = 0, 0.0

    async def _ask_broker(self) -> None:
        """Request the LAC of a quiet writer from the broker, ever more rarely while it does not change."""
        now = self._asker.clock.monotonic()
        if now - self._moved_s < self._asker.quiet_s:
            return
        if self.edge is Edge.EXPLICIT_LAC:
            self.edge = Edge.NEXT_WRITE  # entries stay hidden: the writer sends no explicit LAC any more
        if self._asker.broker is None or now < self._broker_at_s:
            return
        self._broker_asked += 1
        self._broker_at_s = now + doubled(ADMIN_PAUSE_MIN_S, ADMIN_PAUSE_MAX_S, self._broker_asked)
        try:
            position = await self._asker.broker.last_confirmed(self._topic)
        except OffloaderError as error:
            log.debug("source.broker_query_failed", topic=str(self._topic), error=str(error))
            return
        if position is None or position.ledger_id <= self.ledger_id:
            self.overtaken = None
        elif self.overtaken is None:
            self.overtaken = (position.ledger_id, now)
        if position is not None and position.ledger_id == self.ledger_id and position.entry_id > self.lac:
            self.lac = min(position.entry_id, max(self._stored, self.lac))
            self.edge = Edge.ADMIN
            self._note(moved=True)
