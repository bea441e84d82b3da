"""Being told of the entry after a silence: long polls instead of polls for ledgers that went quiet.

A long poll is a bell and no more: whatever it brings, or does not bring, the end of the ledger is asked for as always
afterwards. One bookie holds the bell of a ledger whose bookies all have everything; where entries are spread, so many
do that no entry can miss them all.

A bell is hung only at a bookie that has just answered a plain read, and beyond the LAC that it told there: see `v3` for
why. So it rings with the next entry, since that carries a greater LAC: after a silence its writer knows more than it
had told with the entry before. What it cannot ring for is the first entry of an empty ledger, of which bookies know
nothing: that is polled. A bell that rang for nothing, or came back at once (a fenced ledger that nobody closed), is
not hung again for a while.

How late an entry is noticed when a bell fails:

- the connection ends: RETURN_S at most; the bookie hangs (probes of the connection show it): twice
  `request_timeout_s` and that;
- the bookie forgot the bell, or its read thread hangs and the connection does not: `long_poll_s`.

Rules: waits grow from FIRST_S to `long_poll_s` while nothing happens, and each is a little shorter than that by
chance, so that the bells of many topics do not come back in one moment.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum
from typing import Any

import structlog

from offloaderd.bookkeeper.background import Background
from offloaderd.bookkeeper.metadata.ledger import LedgerMetadata
from offloaderd.bookkeeper.ports import Bookies
from offloaderd.bookkeeper.settings import BookkeeperSettings
from offloaderd.core.clock import Clock
from offloaderd.core.errors import Closed, OffloaderError

log = structlog.get_logger(__name__)

FIRST_S = 10.0
"""The first wait of a silence."""
LONGER = 4
"""How many times as long as the one before each next wait is, up to the longest."""
TURNS = 4
"""So many of the longest waits in a row without news, and the end is asked for by a plain read again."""
SPREAD = 0.2
"""The part of a wait that chance decides about."""
RETURN_S = 4.0
"""Topics whose bells broke all at once are polled again within this time, not in one moment."""
REST_POLLS = 20
"""A ledger whose bell was of no use is polled so often before another one is hung."""


class LastAnswer(Enum):
    """How the wait for a bell ended."""

    RUNG = "a bookie says that there is more"
    SILENCE = "nothing happened for as long as was asked for"
    NOTHING = "a bookie answered before the time and has no more"
    BROKEN = "no bookie could be asked"


class LongPolls:
    """Hangs bells, for all topics of a source."""

    def __init__(self, bookies: Bookies, background: Background, *, clock: Clock, options: BookkeeperSettings) -> None:
        self._bookies = bookies
        self._background = background
        self.clock = clock
        self.long_poll_s = options.long_poll_s if options.long_poll_s > options.poll_max_s else 0.0
        """0: no bells; waits that are shorter than the pauses between polls save nothing."""

    def places(self, metadata: LedgerMetadata, last_answer: Mapping[str, int]) -> list[str]:
        """Return the bookies at which to hang the bells of a ledger, none when there are not enough of them.

        `last_answer` has the LAC that each bookie has just told.
        """
        needed = metadata.ensemble_size - metadata.write_quorum + 1
        members = metadata.ensembles[-1].bookies
        able = [each for each in members if last_answer.get(each, -1) >= 0 and self._bookies.long_polls(each)]
        return able[:needed] if self.long_poll_s and len(able) >= needed else []

    def hang(
        self, ledger_id: int, places: Mapping[str, int], wait_s: float, rung: Callable[[], None]
    ) -> "list[LongPoll]":
        """Hang bells at bookies with their LACs; `rung` is called whenever one of them comes back."""
        turns = TURNS if wait_s >= self.long_poll_s else 1
        return [LongPoll(self, bookie_id, ledger_id, lac, wait_s, turns, rung) for bookie_id, lac in places.items()]

    def start(self, long_poll: "LongPoll") -> asyncio.Task[None]:
        """Have a bell hung, once more. Raises Closed."""
        return self._background.start(long_poll.hang(self._bookies), name=f"bell of {long_poll.ledger_id}")


class LongPoll:
    """One long poll after the other at one bookie. There is a task while one is sent, and none while it is out."""

    __slots__ = (
        "_bookie_id",
        "_due_s",
        "_lac",
        "_long_polls",
        "_rung",
        "_turns",
        "_wait_s",
        "_waiting",
        "last_answer",
        "ledger_id",
    )

    def __init__(
        self,
        long_polls: LongPolls,
        bookie_id: str,
        ledger_id: int,
        lac: int,
        wait_s: float,
        turns: int,
        rung: Callable[[], None],
    ) -> None:
        self.ledger_id = ledger_id
        self.last_answer: LastAnswer | None = None
        """How the wait ended, None while it lasts."""
        self._long_polls = long_polls
        self._bookie_id = bookie_id
        self._lac = lac
        self._wait_s = wait_s
        self._turns = turns
        self._rung = rung
        self._due_s = 0.0
        self._waiting: asyncio.Future[Any] = long_polls.start(self)

    async def hang(self, bookies: Bookies) -> None:
        """Send a long poll."""
        clock = self._long_polls.clock
        seconds = self._wait_s - clock.jitter(SPREAD * self._wait_s)
        self._due_s = clock.monotonic() + seconds / 2
        try:
            told = await bookies.newer(self._bookie_id, self.ledger_id, self._lac, seconds=seconds)
        except OffloaderError as error:
            self._broken(error)
        else:
            self._waiting = told
            told.add_done_callback(self._told)

    def take_down(self) -> None:
        """Have it ring no more."""
        self._turns = 0
        self._waiting.cancel()

    def _told(self, told: asyncio.Future[int]) -> None:
        if told.cancelled():
            return
        error = told.exception()
        if not self._turns:
            return
        if error is not None:
            self._broken(error)
        elif told.result() > self._lac:
            self._end(LastAnswer.RUNG)
        elif self._long_polls.clock.monotonic() < self._due_s:
            self._end(LastAnswer.NOTHING)
        elif self._turns > 1:
            self._turns -= 1
            with suppress(Closed):
                self._waiting = self._long_polls.start(self)
        else:
            self._end(LastAnswer.SILENCE)

    def _broken(self, error: BaseException) -> None:
        log.debug("source.long_poll_failed", bookie=self._bookie_id, ledger_id=self.ledger_id, error=str(error))
        self._end(LastAnswer.BROKEN)

    def _end(self, last_answer: LastAnswer) -> None:
        self.last_answer = last_answer
        self._rung()


class Silence:
    """One topic's: whether bells hang, how long the next ones wait, and whether they were of use."""

    __slots__ = ("_hung", "_long_polls", "_polls", "_wait_s")

    def __init__(self, long_polls: LongPolls) -> None:
        self._long_polls = long_polls
        self._hung: list[LongPoll] = []
        self._polls = 0
        self._wait_s = FIRST_S

    @property
    def kept(self) -> bool:
        """Whether bells hang, so that what is known is as good as if it had just been asked for."""
        return bool(self._hung) and not any(long_poll.last_answer for long_poll in self._hung)

    def looked(self, *, moved: bool) -> None:
        """Note what a poll brought: news end the silence."""
        if moved:
            self._wait_s = FIRST_S
            self._polls = 0
        elif self._polls:
            self._polls -= 1

    def hang(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        last_answer: Mapping[str, int],
        rung: Callable[[], None],
        wait_max_s: float,
    ) -> bool:
        """Hang bells for at most `wait_max_s`; False where that is of no use, or cannot be done: go on polling."""
        if self._polls:
            return False
        places = self._long_polls.places(metadata, last_answer)
        if not places:
            return False
        wait_s = min(self._wait_s, self._long_polls.long_poll_s, wait_max_s)
        self._hung = self._long_polls.hang(ledger_id, {each: last_answer[each] for each in places}, wait_s, rung)
        return True

    def take_down(self) -> LastAnswer | None:
        """Have no bells hang any more; returns how the wait ended, None when something else ended it."""
        ended = {long_poll.last_answer for long_poll in self._hung}
        for long_poll in self._hung:
            long_poll.take_down()
        self._hung = []
        last_answer = next((each for each in LastAnswer if each in ended), None)
        if last_answer is LastAnswer.SILENCE:
            self._wait_s = min(LONGER * self._wait_s, self._long_polls.long_poll_s)
        elif last_answer is not None:
            self._polls = REST_POLLS  # unless the poll that follows finds news
        return last_answer
