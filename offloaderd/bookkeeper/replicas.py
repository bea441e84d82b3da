"""Reading entries from replicas: the search for a sound copy of each, and ranges of one ledger.

Rules, which are BookKeeper's faults as a table:

| what a replica does                        | what the reader does                                           |
|--------------------------------------------|----------------------------------------------------------------|
| down, deleted, disk fault, limbo, nonsense | the next replica at once                                       |
| does not answer for `hedge_s`              | the next replica beside it, the first good answer counts       |
| does not hold the entry, or a bad copy     | the next replica at once                                       |
| has too many requests                      | the next replica; the pause before a new round is its pause    |
| does not know batch reads                  | the same one, entry by entry                                   |
| wants other credentials                    | stop: Denied                                                   |
| all of them failed                         | read the metadata again: a deletion ends it, new bookies get   |
|                                            | requests, the same ones again after a pause, `ROUNDS` times    |
| ... and no one holds it                    | MissingEntry                                                   |
| ... and every copy is bad (or missing)     | UnsoundEntry: copies that agree were written so                |
| ... and anything else                      | Transient                                                      |

An entry is never skipped. A slow bookie comes last for a while.

A range is read by requests that run ahead, with answers in order and every entry checked. Where each bookie holds all
entries, one batch is on its way while the one before it is checked and used. Where entries are spread over bookies, or
a bookie is too old for batches, a window of single reads is on its way. The result is the same: runs of verified
entries, without gaps, whose lengths follow each other. This is the hot path: nothing is awaited and nothing is called
for each entry of a batch.
"""

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from offloaderd.bookkeeper.metadata import LedgerMetadata
from offloaderd.bookkeeper.ports import Bookies
from offloaderd.bookkeeper.rate_limits import Limits
from offloaderd.bookkeeper.settings import BookkeeperSettings
from offloaderd.bookkeeper.wire.entry import ENTRY_HEADER, BadEntry, DigestType, EntryChecker, EntryRun
from offloaderd.bookkeeper.wire.protocol import BadAnswer, NotHere, Reaction, Unsupported, reaction_to
from offloaderd.core.aio import Tasks
from offloaderd.core.clock import Clock
from offloaderd.core.errors import Closed, CorruptData, OffloaderError, Throttled, Transient
from offloaderd.core.limits import Bounded
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import TopicName
from offloaderd.core.retry import doubled

log = structlog.get_logger(__name__)

COOLDOWN_S = 10.0
"""A bookie that was too slow comes last for this long."""
ROUNDS = 5
"""Rounds over all replicas after the first, with pauses that double, when none gives an entry."""
PAUSE_MIN_S = 0.5
PAUSE_MAX_S = 8.0
EXPECTED_BYTES = 4096
"""Estimate of a first read's answer for the rate limits."""
LENGTHS_MAX = 10_000
FIRST_WINDOW = 8
"""Single reads on their way before the size of entries is known."""


class MissingEntry(CorruptData):
    """No bookie of an existing ledger holds a confirmed entry."""


class UnsoundEntry(CorruptData):
    """Every copy of a confirmed entry fails its check."""


def checker_for(ledger_id: int, metadata: LedgerMetadata) -> EntryChecker:
    """Return the checker of a ledger's entries. Metadata of version 1 names no digest: Pulsar's default is used."""
    return EntryChecker(ledger_id, metadata.digest_type or DigestType.CRC32C, metadata.password)


@dataclass(slots=True)
class LedgerAt:
    """A ledger that is being read; its metadata may change meanwhile."""

    topic: TopicName
    ledger_id: int
    metadata: LedgerMetadata
    checker: EntryChecker
    preferred_bookie: str = ""
    """The bookie that gave the last entries: it has read ahead."""
    expected_bytes: int = EXPECTED_BYTES
    """Estimate of the next answer."""

    def replicas(self, entry_id: int) -> Sequence[str]:
        """Return the bookies of an entry in the order of requests: a fixed one for each ledger that is not striped."""
        if self.metadata.striped:
            return self.metadata.replicas(entry_id)
        bookies = self.metadata.ensemble_for(entry_id).bookies
        first = self.ledger_id % len(bookies)
        if self.preferred_bookie in bookies:
            first = bookies.index(self.preferred_bookie)
        return (*bookies[first:], *bookies[:first])


@dataclass(frozen=True, slots=True)
class Found:
    """The answer of one bookie: stored entries, at least one, not checked yet."""

    bookie_id: str
    entries: list[bytes] = field(repr=False)
    size_bytes: int


@dataclass(slots=True, eq=False)
class ReplicaRead:
    """One search, for the entry `first_entry_id` and those after it in the same answer, `count_max` in all.

    `asked` are the bookies of this round, `failures` their errors, `copies` the identities of bad copies. `slow` are
    those that did not answer until a second one got a request.
    """

    ledger: LedgerAt
    first_entry_id: int
    count_max: int
    bytes_max: int
    singly: bool = False
    asked: list[str] = field(default_factory=list)
    failures: dict[str, OffloaderError] = field(default_factory=dict)
    copies: dict[str, bytes] = field(default_factory=dict)
    slow: list[str] = field(default_factory=list)
    round: int = 0
    sent_s: float | None = None
    fatal: OffloaderError | None = None
    task: asyncio.Task[Found | None] | None = None
    second: asyncio.Task[Found | None] | None = None

    @property
    def found(self) -> Found | None:
        """The answer; None while there is none."""
        done = (task for task in (self.task, self.second) if task is not None and task.done() and not task.cancelled())
        return next((task.result() for task in done if task.result() is not None), None)

    @property
    def running(self) -> list[asyncio.Task[Found | None]]:
        """The passes over the replicas that have not ended."""
        return [task for task in (self.task, self.second) if task is not None and not task.done()]

    def refused(self, found: Found, error: CorruptData, entry_id: int) -> "ReplicaRead":
        """Return the search that resumes at a bad entry of an answer."""
        again = ReplicaRead(self.ledger, entry_id, self.count_max - (entry_id - self.first_entry_id), self.bytes_max)
        again.singly = self.singly
        if entry_id == self.first_entry_id:
            again.round, again.failures, again.copies = self.round, self.failures, self.copies
        again.failures[found.bookie_id] = error
        again.copies[found.bookie_id] = _identity(
            found.entries[entry_id - self.first_entry_id], self.ledger.checker.digest_type.size_bytes
        )
        again.asked = list(again.failures)
        return again

    def cancel(self) -> None:
        """Cancel all requests."""
        for task in self.running:
            task.cancel()


def conclusion(replica_read: ReplicaRead) -> OffloaderError:
    """Return the error of a search after its last round."""
    where = f"ledger {replica_read.ledger.ledger_id}, entry {replica_read.first_entry_id}"
    answers = "; ".join(f"{bookie_id}: {error}" for bookie_id, error in replica_read.failures.items())
    errors = replica_read.failures.values()
    if all(isinstance(error, NotHere) for error in errors):
        return MissingEntry(
            key=where,
            offset=0,
            expected=f"a copy on {', '.join(replica_read.failures)}",
            found="none",
            hint="data is missing in BookKeeper: look for the bookie that held it, `bookkeeper shell ledgermetadata`",
        )
    if all(isinstance(error, NotHere | CorruptData) for error in errors):
        copies = set(replica_read.copies.values())
        agree = "all copies agree, so it was written so" if len(copies) == 1 else "the copies differ"
        bad = next(error for error in errors if isinstance(error, CorruptData))
        return UnsoundEntry(
            key=where,
            offset=bad.offset,
            expected=bad.expected,
            found=f"{bad.found} ({agree}; {len(replica_read.copies)} of {len(replica_read.failures)} bookies hold one)",
            hint="no replica is sound: see docs/bookkeeper.md; the entry is not skipped",
        )
    kind = Throttled if all(isinstance(error, Throttled) for error in errors) else Transient
    return kind(f"no bookie gave {where} ({answers})", hint="the entry is asked for again; see offloadctl doctor")


def _identity(copy: bytes, digest_bytes: int) -> bytes:
    """Return a hash that copies with one content share: the LAC in a header, and so the digest, may differ."""
    body_at = ENTRY_HEADER.size + digest_bytes
    return hashlib.sha256(copy[:16] + copy[24 : ENTRY_HEADER.size] + copy[body_at:]).digest()


async def first_of(background: Tasks, clock: Clock, tasks: Iterable[asyncio.Task[Any]], seconds: float) -> None:
    """Return when one of the tasks has ended, or after `seconds`; it cancels none of them."""
    timer = background.start(clock.sleep(seconds), name="timer")
    try:
        await asyncio.wait({*tasks, timer}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        timer.cancel()


class BookieOrder:
    """Orders bookies for all reads and polls of a source: the pool knows which fail, this class which are slow."""

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
        """Put this bookie last for a while."""
        self._slow_until[bookie_id] = self._clock.monotonic() + COOLDOWN_S


@dataclass(slots=True, eq=False)
class ReplicaReader:
    """Reads entries by the rules of this module. `metadata_of` reads a ledger's metadata again; raises NotFound."""

    bookies: Bookies
    order: BookieOrder
    metadata_of: Callable[[int], Awaitable[LedgerMetadata]]
    limits: Limits
    background: Tasks
    clock: Clock = field(kw_only=True)
    metrics: Metrics = field(kw_only=True)
    options: BookkeeperSettings = field(kw_only=True)

    def by_batch(self, ledger: LedgerAt, entry_id: int) -> bool:
        """Whether batch reads pay: each bookie holds all entries, and the first may know batch reads."""
        if ledger.metadata.striped:
            return False
        return self.bookies.batches(self.order.order(ledger.replicas(entry_id))[0])

    def begin(self, ledger: LedgerAt, entry_id: int, *, count_max: int, bytes_max: int) -> ReplicaRead:
        """Begin to read an entry, and those after it that the same bookies hold. Raises Closed."""
        replica_read = ReplicaRead(ledger, entry_id, count_max, bytes_max)
        self._start(replica_read)
        return replica_read

    async def result(self, replica_read: ReplicaRead) -> Found:
        """Return what was found; cancelling leaves the search as it is.

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
                self.order.was_slow(bookie_id)
        replica_read.ledger.preferred_bookie = found.bookie_id
        return found

    def refuse(self, replica_read: ReplicaRead, found: Found, error: CorruptData, entry_id: int) -> ReplicaRead:
        """Count one of the found entries as bad; return the search that reads it, and those after it, elsewhere."""
        self.metrics.bookie_bad_entries.inc()
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
        replica_read.task = self.background.start(
            self._pass(replica_read), name=f"read {replica_read.ledger.ledger_id}:{replica_read.first_entry_id}"
        )

    async def _some_answer(self, replica_read: ReplicaRead) -> None:
        """Wait until a pass ends; when it takes too long, start a second one beside it."""
        patience = self.options.hedge_s
        if replica_read.second is None and replica_read.sent_s is not None:
            patience -= self.clock.monotonic() - replica_read.sent_s
        if patience <= 0 and self._candidate(replica_read) is not None:
            self.metrics.bookie_hedged_reads.inc()
            replica_read.slow = [one for one in replica_read.asked if one not in replica_read.failures]
            replica_read.second = self.background.start(self._pass(replica_read), name="hedged read")
            return
        patience = patience if patience > 0 else self.options.hedge_s
        await first_of(self.background, self.clock, replica_read.running, patience)

    def _candidate(self, replica_read: ReplicaRead) -> str | None:
        ordered = self.order.order(replica_read.ledger.replicas(replica_read.first_entry_id))
        return next((bookie_id for bookie_id in ordered if bookie_id not in replica_read.asked), None)

    async def _pass(self, replica_read: ReplicaRead) -> Found | None:
        """Read from one replica after the other; None after the last, or when the search must stop (`fatal`)."""
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
        ledger = replica_read.ledger
        turn = self.limits.turn(ledger.topic, min(ledger.expected_bytes, replica_read.bytes_max))
        if turn is not None:
            replica_read.sent_s = None
            await turn.wait()
        replica_read.sent_s = self.clock.monotonic()
        got = 0
        try:
            if replica_read.singly or replica_read.count_max == 1 or not self.bookies.batches(bookie_id):
                entries = [await self.bookies.read(bookie_id, ledger.ledger_id, replica_read.first_entry_id)]
            else:
                entries = await self.bookies.read_batch(
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
        return entries

    async def _next_round(self, replica_read: ReplicaRead) -> None:
        """Read the metadata again and pause; raises the error of the search after the last round."""
        ledger = replica_read.ledger
        replica_read.round += 1
        log.info(
            "source.entry_not_read",
            ledger_id=ledger.ledger_id,
            entry_id=replica_read.first_entry_id,
            round=replica_read.round,
            failures={bookie_id: str(error) for bookie_id, error in replica_read.failures.items()},
        )
        ledger.metadata = await self.metadata_of(ledger.ledger_id)
        moved = not set(ledger.metadata.replicas(replica_read.first_entry_id)).issubset(replica_read.asked)
        if replica_read.round > ROUNDS and not moved:
            raise conclusion(replica_read)
        if not moved or replica_read.round > 1:
            pause = doubled(PAUSE_MIN_S, PAUSE_MAX_S, replica_read.round)
            await self.clock.sleep(self.clock.jitter(pause))
        replica_read.asked, replica_read.failures, replica_read.copies, replica_read.slow = [], {}, {}, []


class Lengths:
    """The ends of the last reads of ledgers, by which the lengths of the next ones are checked."""

    def __init__(self) -> None:
        self._ends: Bounded[int, tuple[int, int]] = Bounded(LENGTHS_MAX)

    def before(self, ledger_id: int, entry_id: int) -> int | None:
        """Return the ledger's bytes before an entry; None if unknown."""
        if entry_id == 0:
            return 0
        last, length = self._ends.get(ledger_id, (-1, 0))
        return length if last == entry_id - 1 else None

    def ended(self, ledger_id: int, entry_id: int, length: int) -> None:
        """Remember the length up to and including an entry, for the ledgers read last."""
        self._ends[ledger_id] = (entry_id, length)


@dataclass(slots=True, eq=False)
class RangeRead:
    """One read of the entries from `at` to `last`, which must be confirmed; `at` moves on."""

    replica_reader: ReplicaReader
    ledger: LedgerAt
    at: int
    last: int
    batch_bytes: int = field(kw_only=True)
    lengths: Lengths = field(kw_only=True)
    clock: Clock = field(kw_only=True)
    options: BookkeeperSettings = field(kw_only=True)
    _replica_reads: deque[ReplicaRead] = field(default_factory=deque)
    _next: int | None = None
    """The next entry to request; None while a batch is on its way, whose end is not known."""
    _window: int = field(init=False)

    def __post_init__(self) -> None:
        self._window = min(FIRST_WINDOW, self.options.singles_window)

    async def runs(self) -> AsyncGenerator[EntryRun, None]:
        """Yield the range as verified runs of about `batch_bytes`. Raises as `ReplicaReader.result`, and BadLength."""
        try:
            while self.at <= self.last:
                if not self._replica_reads:
                    self._next = self.at
                self._request_ahead()
                found = await self.replica_reader.result(self._replica_reads[0])
                if self._next is None and len(self._replica_reads) == 1:
                    self._next = self.at + len(found.entries)
                    self._request_ahead()
                    await self.clock.sleep(0)  # let the next request go out while this answer is checked
                run = self._take()
                if run.payloads:
                    yield run
        finally:
            self._drop()

    def _request_ahead(self) -> None:
        """Send as many requests as batches, or single reads, allow."""
        while self._next is not None and self._next <= self.last:
            if self.replica_reader.by_batch(self.ledger, self._next):
                if len(self._replica_reads) > 1:
                    return
                count = self._end_for(self._next) - self._next + 1
                bytes_max = min(self.batch_bytes, self.options.batch_bytes)
                begun = self.replica_reader.begin(self.ledger, self._next, count_max=count, bytes_max=bytes_max)
                self._next = None if count > 1 else self._next + 1
            else:
                if len(self._replica_reads) >= self._window:
                    return
                expected = self.ledger.expected_bytes
                begun = self.replica_reader.begin(self.ledger, self._next, count_max=1, bytes_max=expected)
                self._next += 1
            self._replica_reads.append(begun)

    def _end_for(self, entry_id: int) -> int:
        """Return the last entry of one batch from `entry_id` on: those after it may be on other bookies."""
        metadata = self.ledger.metadata
        end = metadata.last_entry_of(metadata.ensemble_for(entry_id))
        return self.last if end is None else max(entry_id, min(self.last, end))

    def _take(self) -> EntryRun:
        """Check the next answers, up to a batch, and move on; a bad copy is read elsewhere."""
        parts: list[tuple[ReplicaRead, Found]] = []
        stored: list[bytes] = []
        size = 0
        for replica_read in self._replica_reads:
            found = replica_read.found
            if found is None or replica_read.first_entry_id != self.at + len(stored):
                break
            if parts and size + found.size_bytes > self.batch_bytes:
                break
            parts.append((replica_read, found))
            stored += found.entries
            size += found.size_bytes
        run = self.ledger.checker.check_run(self.at, stored)
        run.check_lengths(self.lengths.before(self.ledger.ledger_id, self.at))
        good = len(run.payloads)
        if run.error is None:
            for _ in parts:
                self._replica_reads.popleft()
        else:
            self._reject(parts, self.at + good, run.error)
        if good:
            self.at += good
            self.lengths.ended(self.ledger.ledger_id, self.at - 1, run.lengths[-1])
            fitting = 2 * self.options.batch_bytes // max(1, size // len(stored))  # they take the memory of two batches
            self._window = max(2, min(self.options.singles_window, fitting))
            self._check_total(run.lengths[-1])
        return run

    def _reject(self, parts: list[tuple[ReplicaRead, Found]], entry_id: int, error: BadEntry) -> None:
        replica_read, found = next(part for part in reversed(parts) if part[0].first_entry_id <= entry_id)
        again = self.replica_reader.refuse(replica_read, found, error, entry_id)
        self._drop()
        self._replica_reads.append(again)
        self._next = None if again.count_max > 1 else entry_id + 1

    def _check_total(self, length: int) -> None:
        """Compare the length of a closed ledger with its metadata, which may be wrong after a recovery."""
        metadata = self.ledger.metadata
        if self.at - 1 == metadata.last_entry_id and metadata.length_bytes not in {None, length}:
            log.warning(
                "source.ledger_length_differs",
                ledger_id=self.ledger.ledger_id,
                by_entry=length,
                by_metadata=metadata.length_bytes,
            )

    def _drop(self) -> None:
        for replica_read in self._replica_reads:
            replica_read.cancel()
        self._replica_reads.clear()
