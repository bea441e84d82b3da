"""Reading a range of one ledger: requests that run ahead, answers in order, every entry checked.

Where each bookie holds all entries, one batch is on its way while the one before it is checked and used. Where entries
are spread over bookies, or a bookie is too old for batches, a window of single reads is on its way. The result is the
same: runs of verified entries, without gaps, whose lengths follow each other.

This is the hot path: nothing is awaited and nothing is called for each entry of a batch.
"""

from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import structlog

from offloaderd.bookkeeper.replicas import Found, LedgerAt, ReplicaRead, ReplicaReader
from offloaderd.bookkeeper.settings import BookkeeperSettings
from offloaderd.bookkeeper.wire.entry import BadEntry, EntryRun
from offloaderd.core.clock import Clock
from offloaderd.core.limits import Bounded

log = structlog.get_logger(__name__)

LENGTHS_MAX = 10_000
FIRST_WINDOW = 8
"""Single reads on their way before the size of entries is known."""


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
            self._window = self._fitting(size // len(stored))
            self._check_total(run.lengths[-1])
        return run

    def _reject(self, parts: list[tuple[ReplicaRead, Found]], entry_id: int, error: BadEntry) -> None:
        replica_read, found = next(part for part in reversed(parts) if part[0].first_entry_id <= entry_id)
        again = self.replica_reader.refuse(replica_read, found, error, entry_id)
        self._drop()
        self._replica_reads.append(again)
        self._next = None if again.count_max > 1 else entry_id + 1

    def _fitting(self, entry_bytes: int) -> int:
        """Return how many single reads may be on their way: their answers take no more memory than two batches."""
        room = 2 * self.options.batch_bytes
        return max(2, min(self.options.singles_window, room // max(1, entry_bytes)))

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
