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
- the bookie forgot the bell, or its read thread hangs and the connection does not: `quiet_poll_s`.

Rules: waits grow from FIRST_S to `quiet_poll_s` while nothing happens, and each is a little shorter than that by
chance, so that the bells of many topics do not come back in one moment.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

import structlog

from offloaderd.errors import OffloaderError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from offloaderd.clock import Clock
    from offloaderd.ledgers.bookkeeper.background import Background
    from offloaderd.ledgers.bookkeeper.ledger_metadata import LedgerMetadata
    from offloaderd.ledgers.bookkeeper.options import SourceOptions
    from offloaderd.ledgers.bookkeeper.ports import Bookies

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


class Heard(Enum):
    """How the wait for a bell ended."""

    RUNG = "a bookie says that there is more"
    SILENCE = "nothing happened for as long as was asked for"
    NOTHING = "a bookie answered before the time and has no more"
    BROKEN = "no bookie could be asked"


class Bells:
    """Hangs bells, for all topics of a source."""

    def __init__(self, bookies: Bookies, background: Background, *, clock: Clock, options: SourceOptions) -> None:
        self._bookies = bookies
        self._background = background
        self._clock = clock
        self.quiet_poll_s = options.quiet_poll_s if options.quiet_poll_s > options.poll_max_s else 0.0
        """0: no bells; waits that are shorter than the pauses between polls save nothing."""

    def places(self, metadata: LedgerMetadata, heard: Mapping[str, int]) -> list[str]:
        """Return the bookies at which to hang the bells of a ledger, none when there are not enough of them.

        `heard` has the LAC that each bookie has just told.
        """
        needed = metadata.ensemble_size - metadata.write_quorum + 1
        members = metadata.ensembles[-1].bookies
        able = [each for each in members if heard.get(each, -1) >= 0 and self._bookies.long_polls(each)]
        return able[:needed] if self.quiet_poll_s and len(able) >= needed else []

    def hang(
        self, ledger_id: int, places: Mapping[str, int], wait_s: float, rung: Callable[[], None]
    ) -> list[asyncio.Task[Heard]]:
        """Hang bells at bookies with their LACs; `rung` is called when the first of them comes back."""
        tasks = []
        for bookie_id, lac in places.items():
            task = self._background.start(self._listen(bookie_id, ledger_id, lac, wait_s), name=f"bell of {ledger_id}")
            task.add_done_callback(lambda ended: None if ended.cancelled() else rung())
            tasks.append(task)
        return tasks

    async def _listen(self, bookie_id: str, ledger_id: int, lac: int, wait_s: float) -> Heard:
        for _ in range(TURNS if wait_s >= self.quiet_poll_s else 1):
            seconds = wait_s - self._clock.jitter(SPREAD * wait_s)
            begun = self._clock.monotonic()
            try:
                told = await self._bookies.newer(bookie_id, ledger_id, lac, seconds=seconds)
            except OffloaderError as error:
                log.debug("source.bell_broken", bookie=bookie_id, ledger_id=ledger_id, error=str(error))
                return Heard.BROKEN
            if told > lac:
                return Heard.RUNG
            if self._clock.monotonic() - begun < seconds / 2:
                return Heard.NOTHING
        return Heard.SILENCE


class Silence:
    """One topic's: whether bells hang, how long the next ones wait, and whether they were of use."""

    __slots__ = ("_bells", "_hung", "_polls", "_wait_s")

    def __init__(self, bells: Bells) -> None:
        self._bells = bells
        self._hung: list[asyncio.Task[Heard]] = []
        self._polls = 0
        self._wait_s = FIRST_S

    @property
    def kept(self) -> bool:
        """Whether bells hang, so that what is known is as good as if it had just been asked for."""
        return bool(self._hung) and not any(task.done() for task in self._hung)

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
        heard: Mapping[str, int],
        rung: Callable[[], None],
        wait_max_s: float,
    ) -> bool:
        """Hang bells for at most `wait_max_s`; False where that is of no use, or cannot be done: go on polling."""
        if self._polls:
            return False
        places = self._bells.places(metadata, heard)
        if not places:
            return False
        wait_s = min(self._wait_s, self._bells.quiet_poll_s, wait_max_s)
        self._hung = self._bells.hang(ledger_id, {each: heard[each] for each in places}, wait_s, rung)
        return True

    def take_down(self) -> Heard | None:
        """Have no bells hang any more; returns how the wait ended, None when something else ended it."""
        ended = {task.result() for task in self._hung if task.done() and not task.cancelled()}
        for task in self._hung:
            task.cancel()
        self._hung = []
        heard = next((each for each in Heard if each in ended), None)
        if heard is Heard.SILENCE:
            self._wait_s = min(LONGER * self._wait_s, self._bells.quiet_poll_s)
        elif heard is not None:
            self._polls = REST_POLLS  # unless the poll that follows finds news
        return heard
