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

from collections.abc import Awaitable, Callable, Sequence

import structlog

from offloaderd.bookkeeper.background import Background
from offloaderd.bookkeeper.metadata.ledger import LedgerMetadata
from offloaderd.bookkeeper.ports import Bookies
from offloaderd.bookkeeper.replicas.limits import Limits
from offloaderd.bookkeeper.replicas.read import Found, LedgerAt, ReplicaRead, conclusion
from offloaderd.bookkeeper.settings import BookkeeperSettings
from offloaderd.bookkeeper.wire.status import BadAnswer, Reaction, Unsupported, reaction_to
from offloaderd.core.clock import Clock
from offloaderd.core.errors import Closed, CorruptData, OffloaderError
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.retry import doubled

COOLDOWN_S = 10.0
"""How long a bookie that was too slow is asked last."""


class BookieOrder:
    """Orders bookies for all reads and polls of a source. Failing is the pool's to notice, being slow is ours."""

    def __init__(self, bookies: Bookies, clock: Clock) -> None:
        self._bookies = bookies
        self._clock = clock
        self._slow_until: dict[str, float] = {}

    def order(self, bookie_ids: Sequence[str]) -> list[str]:
        """Return the same bookies, best first."""
        ordered = self._bookies.ordered(bookie_ids)
        return sorted(ordered, key=self.is_slow) if self._slow_until else ordered

    def is_slow(self, bookie_id: str) -> bool:
        """Whether the bookie did not answer in time lately."""
        until = self._slow_until.get(bookie_id)
        if until is None:
            return False
        if until <= self._clock.monotonic():
            del self._slow_until[bookie_id]
            return False
        return True

    def was_slow(self, bookie_id: str) -> None:
        """Ask this bookie last for a while."""
        self._slow_until[bookie_id] = self._clock.monotonic() + COOLDOWN_S


log = structlog.get_logger(__name__)

ROUNDS = 5
"""When no replica gives an entry, all are asked so many times more, after pauses that double."""
PAUSE_MIN_S = 0.5
PAUSE_MAX_S = 8.0


class ReplicaReader:
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
        options: BookkeeperSettings,
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

    def begin(self, ledger: LedgerAt, entry_id: int, *, count_max: int, bytes_max: int) -> ReplicaRead:
        """Start to ask for an entry, and for those after it that the same bookies hold. Raises Closed."""
        replica_read = ReplicaRead(ledger, entry_id, count_max, bytes_max)
        self._start(replica_read)
        return replica_read

    async def result(self, replica_read: ReplicaRead) -> Found:
        """Return what was found; cancelling leaves the hunt as it is.

        Raises NotFound when the ledger was deleted, MissingEntry, UnsoundEntry, Transient, Denied, Closed.
        """
        while (found := replica_read.found) is None:
            if replica_read.fatal is not None:
                raise replica_read.fatal
            if not replica_read.running:
                if replica_read.task is None or replica_read.task.cancelled():
                    raise Closed("the ledger source is closed")
                await self._next_round(replica_read)
                self._start(replica_read)
            await self._some_answer(replica_read)
        for task in replica_read.running:  # the one that lost the race
            task.cancel()
        if found.bookie_id not in replica_read.slow:
            for bookie_id in replica_read.slow:
                self._order.was_slow(bookie_id)
        replica_read.ledger.preferred_bookie = found.bookie_id
        return found

    def refuse(self, replica_read: ReplicaRead, found: Found, error: CorruptData, entry_id: int) -> ReplicaRead:
        """Take one of the found entries as bad: count it, ask for it at the next replica; returns the hunt for it.

        What was found before that entry has been used; what comes after it is asked for again.
        """
        self._metrics.bookie_bad_entries.inc()
        log.warning(
            "bookie.bad_entry",
            bookie=found.bookie_id,
            ledger_id=replica_read.ledger.ledger_id,
            entry_id=entry_id,
            error=str(error),
        )
        again = replica_read.refused(found, error, entry_id)
        self._start(again)
        return again

    def _start(self, replica_read: ReplicaRead) -> None:
        replica_read.second = None
        replica_read.task = self._background.start(
            self._pass(replica_read), name=f"read {replica_read.ledger.ledger_id}:{replica_read.first_entry_id}"
        )

    async def _some_answer(self, replica_read: ReplicaRead) -> None:
        """Wait until a pass is through; when it takes too long, start a second one beside it."""
        running = replica_read.running
        if replica_read.second is not None:
            await self._background.first_of(running, self._options.hedge_s)
            return
        now = self._clock.monotonic()
        patience = self._options.hedge_s - (0 if replica_read.sent_s is None else now - replica_read.sent_s)
        if patience > 0:
            await self._background.first_of(running, patience)
        elif self._candidate(replica_read) is not None:
            self._metrics.bookie_hedged_reads.inc()
            replica_read.slow = [
                bookie_id for bookie_id in replica_read.asked if bookie_id not in replica_read.failures
            ]
            replica_read.second = self._background.start(self._pass(replica_read), name="hedged read")
        else:
            await self._background.first_of(running, self._options.hedge_s)

    def _candidate(self, replica_read: ReplicaRead) -> str | None:
        """Return the bookie to ask next in this round, None when all were asked."""
        ordered = self._order.order(replica_read.ledger.replicas(replica_read.first_entry_id))
        return next((bookie_id for bookie_id in ordered if bookie_id not in replica_read.asked), None)

    async def _pass(self, replica_read: ReplicaRead) -> Found | None:
        """Ask one replica after the other; None when none is left, or the hunt must stop (`fatal`)."""
        try:
            while replica_read.fatal is None and (bookie_id := self._candidate(replica_read)) is not None:
                replica_read.asked.append(bookie_id)
                try:
                    entries = await self._ask(replica_read, bookie_id)
                except Unsupported as error:
                    if not replica_read.singly:
                        replica_read.singly = True
                        replica_read.asked.remove(bookie_id)
                    else:
                        replica_read.failures[bookie_id] = error
                except OffloaderError as error:
                    if reaction_to(error) is Reaction.STOP:
                        raise
                    replica_read.failures[bookie_id] = error
                else:
                    size = sum(map(len, entries))
                    replica_read.ledger.expected_bytes = size
                    return Found(bookie_id, entries, size)
        except OffloaderError as error:
            replica_read.fatal = error
        return None

    async def _ask(self, replica_read: ReplicaRead, bookie_id: str) -> list[bytes]:
        """Send one request when it is its turn."""
        ledger = replica_read.ledger
        turn = self._limits.turn(ledger.topic, min(ledger.expected_bytes, replica_read.bytes_max))
        if turn is not None:
            replica_read.sent_s = None
            await turn.wait()
        replica_read.sent_s = self._clock.monotonic()
        got = 0
        try:
            if replica_read.singly or replica_read.count_max == 1 or not self._bookies.batches(bookie_id):
                entries = [await self._bookies.read(bookie_id, ledger.ledger_id, replica_read.first_entry_id)]
            else:
                entries = await self._bookies.read_batch(
                    bookie_id,
                    ledger.ledger_id,
                    replica_read.first_entry_id,
                    count_max=replica_read.count_max,
                    bytes_max=replica_read.bytes_max,
                )
            got = sum(map(len, entries)) if turn is not None else 0
        finally:
            if turn is not None:
                turn.settle(got)
        if not entries:
            raise BadAnswer(f"bookie {bookie_id} gave a batch without entries")
        return entries[: replica_read.count_max]

    async def _next_round(self, replica_read: ReplicaRead) -> None:
        """Look whether the ledger moved or vanished, and pause; raises what is to be concluded in the end."""
        ledger = replica_read.ledger
        replica_read.round += 1
        log.info(
            "source.entry_not_read",
            ledger_id=ledger.ledger_id,
            entry_id=replica_read.first_entry_id,
            round=replica_read.round,
            failures={bookie_id: str(error) for bookie_id, error in replica_read.failures.items()},
        )
        ledger.metadata = await self._metadata_of(ledger.ledger_id)
        moved = not set(ledger.metadata.replicas(replica_read.first_entry_id)).issubset(replica_read.asked)
        if replica_read.round > ROUNDS and not moved:
            raise conclusion(replica_read)
        if not moved or replica_read.round > 1:
            pause = doubled(PAUSE_MIN_S, PAUSE_MAX_S, replica_read.round)
            await self._clock.sleep(self._clock.jitter(pause))
        replica_read.begin_round()
