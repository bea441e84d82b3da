"""Long polls instead of polls for ledgers that went quiet.

A long poll is a signal only: whatever it brings, the end of the ledger is read as always afterwards. One bookie gets
the long poll of a ledger whose bookies all have everything; where entries are spread, so many do that no entry can miss
them all.

A long poll is sent only to a bookie that has just answered a plain read, and beyond the LAC of that answer: see `v3`
for why. So the next entry ends it, since that carries a greater LAC. It does not end for the first entry of an empty
ledger, of which bookies know nothing: that is polled. After one that ended early without a newer LAC, or failed, there
is none for a while. A fence does not end it: who recovers a ledger changes its node first, and that is watched.

How late an entry is noticed when a long poll fails:

- the connection ends: RETURN_S at most; the bookie hangs (probes of the connection show it): twice
  `request_timeout_s` and that;
- the bookie dropped the long poll, or its read thread hangs and the connection does not: `long_poll_s`.

Rules: waits grow from FIRST_S to `long_poll_s` while nothing happens, and each is shorter by a random part, so that
the long polls of many topics do not end at the same moment.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import structlog

from offloaderd.bookkeeper.metadata import LedgerMetadata
from offloaderd.bookkeeper.ports import Bookies
from offloaderd.bookkeeper.settings import BookkeeperSettings
from offloaderd.core.aio import Tasks
from offloaderd.core.clock import Clock
from offloaderd.core.errors import Closed, OffloaderError
from offloaderd.core.retry import doubled

log = structlog.get_logger(__name__)

FIRST_S = 10.0
"""The first wait of a silence."""
LONGER = 4
"""Factor from each wait to the next, up to the longest."""
TURNS = 4
"""Waits of the longest length in a row, before the end is read by a plain read again."""
SPREAD = 0.2
"""The random part of a wait."""
RETURN_S = 4.0
"""Topics whose long polls failed together are polled again at random times within this one."""
REST_S, REST_MAX_S = 40.0, 1280.0
"""Time without long polls of a topic after one that was of no use or failed; it doubles with each of a silence. Not a
number of polls: those of thousands of topics are minutes apart."""


class LastAnswer(Enum):
    """How a long poll ended."""

    NEWER = "a bookie has a newer LAC"
    SILENCE = "no change for the whole wait"
    NOTHING = "a bookie answered before the time and has nothing newer"
    FAILED = "the request failed"


class LongPolls:
    """Sends long polls, for all topics of a source."""

    def __init__(self, bookies: Bookies, background: Tasks, *, clock: Clock, options: BookkeeperSettings) -> None:
        self._bookies = bookies
        self._background = background
        self.clock = clock
        self.long_poll_s = options.long_poll_s if options.long_poll_s > options.poll_max_s else 0.0
        """0: no long polls; waits that are shorter than the pauses between polls save nothing."""
        self._sending: Counter[str] = Counter()
        """Long polls by bookie that it does not count yet: topics are polled in the same moment."""

    def places(self, metadata: LedgerMetadata, last_answer: Mapping[str, int]) -> list[str]:
        """Return the bookies for long polls of a ledger, by their last answers' LACs; none when they are too few."""
        needed = metadata.ensemble_size - metadata.write_quorum + 1
        members = metadata.ensembles[-1].bookies
        answered = [each for each in members if last_answer.get(each, -1) >= 0]
        able = [each for each in answered if self._bookies.long_polls(each) > self._sending[each]]
        return able[:needed] if self.long_poll_s and len(able) >= needed else []

    def begin(
        self, ledger_id: int, places: Mapping[str, int], wait_s: float, on_end: Callable[[], None]
    ) -> "list[LongPoll]":
        """Begin long polls at bookies with their LACs; `on_end` is called when one of them has ended."""
        turns = TURNS if wait_s >= self.long_poll_s else 1
        return [LongPoll(self, bookie_id, ledger_id, lac, wait_s, turns, on_end) for bookie_id, lac in places.items()]

    def start(self, long_poll: "LongPoll") -> asyncio.Task[None]:
        """Start the task that sends one. Raises Closed."""
        sending = self._background.start(long_poll.send(self._bookies), name=f"long poll of {long_poll.ledger_id}")
        self._sending[long_poll.bookie_id] += 1
        sending.add_done_callback(lambda _: self._sending.subtract((long_poll.bookie_id,)))
        return sending


@dataclass(slots=True, eq=False)
class LongPoll:
    """One long poll after the other at one bookie. There is a task while one is sent, and none while it is out."""

    long_polls: LongPolls
    bookie_id: str
    ledger_id: int
    lac: int
    wait_s: float
    turns: int
    on_end: Callable[[], None]
    last_answer: LastAnswer | None = None
    """How the wait ended; None while it lasts."""
    _due_s: float = 0.0
    _waiting: asyncio.Future[Any] = field(init=False)

    def __post_init__(self) -> None:
        self._waiting = self.long_polls.start(self)

    async def send(self, bookies: Bookies) -> None:
        """Send a long poll."""
        clock = self.long_polls.clock
        seconds = self.wait_s - clock.jitter(SPREAD * self.wait_s)
        self._due_s = clock.monotonic() + seconds / 2
        try:
            answer = await bookies.newer(self.bookie_id, self.ledger_id, self.lac, seconds=seconds)
        except OffloaderError as error:
            self._fail(error)
        else:
            self._waiting = answer
            answer.add_done_callback(self._answered)

    def cancel(self) -> None:
        """Cancel it: `on_end` is not called any more."""
        self.turns = 0
        self._waiting.cancel()

    def _answered(self, answer: asyncio.Future[int]) -> None:
        if answer.cancelled():
            return
        error = answer.exception()
        if not self.turns:
            return
        if error is not None:
            self._fail(error)
        elif answer.result() > self.lac:
            self._end(LastAnswer.NEWER)
        elif self.long_polls.clock.monotonic() < self._due_s:
            self._end(LastAnswer.NOTHING)
        elif self.turns > 1:
            self.turns -= 1
            with suppress(Closed):
                self._waiting = self.long_polls.start(self)
        else:
            self._end(LastAnswer.SILENCE)

    def _fail(self, error: BaseException) -> None:
        log.debug("source.long_poll_failed", bookie=self.bookie_id, ledger_id=self.ledger_id, error=str(error))
        self._end(LastAnswer.FAILED)

    def _end(self, last_answer: LastAnswer) -> None:
        self.last_answer = last_answer
        self.on_end()


class Silence:
    """The long polls of one topic: those that are out, how long the next ones wait, and whether they were of use."""

    __slots__ = ("_long_polls", "_out", "_rest_until_s", "_rests", "_wait_s")

    def __init__(self, long_polls: LongPolls) -> None:
        self._long_polls = long_polls
        self._out: list[LongPoll] = []
        self._rests = 0
        self._rest_until_s = 0.0
        self._wait_s = FIRST_S

    @property
    def active(self) -> bool:
        """Whether long polls are out and none has ended, so that the known end is up to date."""
        return bool(self._out) and not any(long_poll.last_answer for long_poll in self._out)

    def polled(self, *, moved: bool) -> None:
        """Note the outcome of a poll: a change ends the silence."""
        if moved:
            self._wait_s = FIRST_S
            self._rests, self._rest_until_s = 0, 0.0

    def begin(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        last_answer: Mapping[str, int],
        on_end: Callable[[], None],
        wait_max_s: float,
    ) -> bool:
        """Begin long polls of at most `wait_max_s`; False where they are of no use or impossible: poll on."""
        resting = self._long_polls.clock.monotonic() < self._rest_until_s
        places = [] if resting else self._long_polls.places(metadata, last_answer)
        if not places:
            return False
        wait_s = min(self._wait_s, self._long_polls.long_poll_s, wait_max_s)
        self._out = self._long_polls.begin(ledger_id, {each: last_answer[each] for each in places}, wait_s, on_end)
        return True

    def cancel(self) -> LastAnswer | None:
        """Cancel all; return how the first of them ended, None when none has."""
        ended = {long_poll.last_answer for long_poll in self._out}
        for long_poll in self._out:
            long_poll.cancel()
        self._out = []
        last_answer = next((each for each in LastAnswer if each in ended), None)
        if last_answer is LastAnswer.SILENCE:
            self._wait_s = min(LONGER * self._wait_s, self._long_polls.long_poll_s)
            self._rests = 0
        elif last_answer is not None:  # the rest ends if the next poll finds a change
            self._rests += 1
            self._rest_until_s = self._long_polls.clock.monotonic() + doubled(REST_S, REST_MAX_S, self._rests)
        return last_answer
