"""The search for a sound copy of an entry: which bookie is asked when, and what is concluded when none gives it.

    hunt = hunter.begin(ledger, entry_id, count_max=n)   # asks at once, in the background
    found = await hunter.result(hunt)                    # a second bookie is asked when the first one is slow
    hunter.refuse(hunt, error, entry)                    # its digest is wrong: the next replica is asked

Rules, which are BookKeeper's faults as a table:

| what a replica does                        | what we do                                                     |
|--------------------------------------------|----------------------------------------------------------------|
| down, gone, disk trouble, limbo, nonsense  | the next replica at once                                       |
| does not answer for `hedge_s`              | the next replica beside it, the first good answer counts       |
| does not hold the entry, or a bad copy     | the next replica at once                                       |
| has too many requests                      | the next replica; the pause before a new round is its pause    |
| does not know batch reads                  | the same one, entry by entry                                   |
| wants other credentials                    | stop: Denied                                                   |
| all of them failed                         | read the metadata again: deleted ends it, other bookies are    |
|                                            | asked, the same ones again after a pause, `rounds` times       |
| ... and every one says it is not there     | MissingEntry                                                   |
| ... and every copy is bad (or not there)   | UnsoundEntry: copies that agree were written so                |
| ... and anything else                      | Transient                                                      |

An entry is never skipped. A bookie that was slow is asked last for a while.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from offloaderd.core.retry import doubled
from offloaderd.errors import Closed, CorruptData, OffloaderError
from offloaderd.ledgers.bookkeeper.hunt import Found, Hunt, LedgerAt, conclusion
from offloaderd.ledgers.bookkeeper.status import BadAnswer, Reaction, Unsupported, reaction_to

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from offloaderd.clock import Clock
    from offloaderd.ledgers.bookkeeper.background import Background
    from offloaderd.ledgers.bookkeeper.ledger_metadata import LedgerMetadata
    from offloaderd.ledgers.bookkeeper.limits import Limits
    from offloaderd.ledgers.bookkeeper.options import SourceOptions
    from offloaderd.ledgers.bookkeeper.order import BookieOrder
    from offloaderd.ledgers.bookkeeper.ports import Bookies
    from offloaderd.metrics import Metrics

log = structlog.get_logger(__name__)

PAUSE_MAX_S = 8.0


class Hunter:
    """Asks bookies for entries, by the rules above. `metadata_of` reads a ledger's metadata again; raises NotFound."""

    def __init__(
        self,
        bookies: Bookies,
        order: BookieOrder,
        metadata_of: Callable[[int], Awaitable[LedgerMetadata]],
        limits: Limits,
        background: Background,
        *,
        clock: Clock,
        metrics: Metrics,
        options: SourceOptions,
    ) -> None:
        self._bookies = bookies
        self._order = order
        self._metadata_of = metadata_of
        self._limits = limits
        self._background = background
        self._clock = clock
        self._metrics = metrics
        self._options = options

    def by_batch(self, ledger: LedgerAt, entry_id: int) -> bool:
        """Whether reading many entries at once is worth it: each bookie holds all of them, and knows how."""
        if ledger.metadata.striped:
            return False
        return self._bookies.batches(self._order.order(ledger.replicas(entry_id))[0])

    def begin(self, ledger: LedgerAt, entry_id: int, *, count_max: int, bytes_max: int) -> Hunt:
        """Start to ask for an entry, and for those after it that the same bookies hold. Raises Closed."""
        hunt = Hunt(ledger, entry_id, count_max, bytes_max)
        self._start(hunt)
        return hunt

    async def result(self, hunt: Hunt) -> Found:
        """Return what was found; cancelling leaves the hunt as it is.

        Raises NotFound when the ledger was deleted, MissingEntry, UnsoundEntry, Transient, Denied, Closed.
        """
        while (found := hunt.found) is None:
            if hunt.fatal is not None:
                raise hunt.fatal
            if not hunt.running:
                if hunt.task is None or hunt.task.cancelled():
                    raise Closed("the ledger source is closed")
                await self._next_round(hunt)
                self._start(hunt)
            await self._some_answer(hunt)
        for task in hunt.running:  # the one that lost the race
            task.cancel()
        if found.bookie_id not in hunt.slow:
            for bookie_id in hunt.slow:
                self._order.was_slow(bookie_id)
        hunt.ledger.favourite = found.bookie_id
        return found

    def refuse(self, hunt: Hunt, found: Found, error: CorruptData, entry_id: int) -> Hunt:
        """Take one of the found entries as bad: count it, ask for it at the next replica; returns the hunt for it.

        What was found before that entry has been used; what comes after it is asked for again.
        """
        self._metrics.bookie_bad_entries.inc()
        log.warning(
            "bookie.bad_entry",
            bookie=found.bookie_id,
            ledger_id=hunt.ledger.ledger_id,
            entry_id=entry_id,
            error=str(error),
        )
        again = hunt.refused(found, error, entry_id)
        self._start(again)
        return again

    def _start(self, hunt: Hunt) -> None:
        hunt.second = None
        hunt.task = self._background.start(self._pass(hunt), name=f"read {hunt.ledger.ledger_id}:{hunt.first_entry_id}")

    async def _some_answer(self, hunt: Hunt) -> None:
        """Wait until a pass is through; when it takes too long, start a second one beside it."""
        running = hunt.running
        if hunt.second is not None:
            await self._background.first_of(running, self._options.hedge_s)
            return
        now = self._clock.monotonic()
        patience = self._options.hedge_s - (0 if hunt.sent_s is None else now - hunt.sent_s)
        if patience > 0:
            await self._background.first_of(running, patience)
        elif self._candidate(hunt) is not None:
            self._metrics.bookie_hedged_reads.inc()
            hunt.slow = [bookie_id for bookie_id in hunt.asked if bookie_id not in hunt.failures]
            hunt.second = self._background.start(self._pass(hunt), name="hedged read")
        else:
            await self._background.first_of(running, self._options.hedge_s)

    def _candidate(self, hunt: Hunt) -> str | None:
        """Return the bookie to ask next in this round, None when all were asked."""
        ordered = self._order.order(hunt.ledger.replicas(hunt.first_entry_id))
        return next((bookie_id for bookie_id in ordered if bookie_id not in hunt.asked), None)

    async def _pass(self, hunt: Hunt) -> Found | None:
        """Ask one replica after the other; None when none is left, or the hunt must stop (`fatal`)."""
        try:
            while hunt.fatal is None and (bookie_id := self._candidate(hunt)) is not None:
                hunt.asked.append(bookie_id)
                try:
                    entries = await self._ask(hunt, bookie_id)
                except Unsupported as error:
                    if not hunt.singly:
                        hunt.singly = True
                        hunt.asked.remove(bookie_id)
                    else:
                        hunt.failures[bookie_id] = error
                except OffloaderError as error:
                    if reaction_to(error) is Reaction.STOP:
                        raise
                    hunt.failures[bookie_id] = error
                else:
                    size = sum(map(len, entries))
                    hunt.ledger.expected_bytes = size
                    return Found(bookie_id, entries, size)
        except OffloaderError as error:
            hunt.fatal = error
        return None

    async def _ask(self, hunt: Hunt, bookie_id: str) -> list[bytes]:
        """Send one request when it is its turn."""
        ledger = hunt.ledger
        turn = self._limits.turn(ledger.topic, min(ledger.expected_bytes, hunt.bytes_max))
        if turn is not None:
            hunt.sent_s = None
            await turn.wait()
        hunt.sent_s = self._clock.monotonic()
        got = 0
        try:
            if hunt.singly or hunt.count_max == 1 or not self._bookies.batches(bookie_id):
                entries = [await self._bookies.read(bookie_id, ledger.ledger_id, hunt.first_entry_id)]
            else:
                entries = await self._bookies.read_batch(
                    bookie_id,
                    ledger.ledger_id,
                    hunt.first_entry_id,
                    count_max=hunt.count_max,
                    bytes_max=hunt.bytes_max,
                )
            got = sum(map(len, entries)) if turn is not None else 0
        finally:
            if turn is not None:
                turn.settle(got)
        if not entries:
            raise BadAnswer(f"bookie {bookie_id} gave a batch without entries")
        return entries[: hunt.count_max]

    async def _next_round(self, hunt: Hunt) -> None:
        """Look whether the ledger moved or vanished, and pause; raises what is to be concluded in the end."""
        ledger = hunt.ledger
        hunt.round += 1
        log.info(
            "source.entry_not_read",
            ledger_id=ledger.ledger_id,
            entry_id=hunt.first_entry_id,
            round=hunt.round,
            failures={bookie_id: str(error) for bookie_id, error in hunt.failures.items()},
        )
        ledger.metadata = await self._metadata_of(ledger.ledger_id)
        moved = not set(ledger.metadata.replicas(hunt.first_entry_id)).issubset(hunt.asked)
        if hunt.round > self._options.rounds and not moved:
            raise conclusion(hunt)
        if not moved or hunt.round > 1:
            pause = doubled(self._options.pause_min_s, PAUSE_MAX_S, hunt.round)
            await self._clock.sleep(self._clock.jitter(pause))
        hunt.begin_round()
