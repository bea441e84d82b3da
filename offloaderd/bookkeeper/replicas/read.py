"""One search for a sound copy of an entry: what is sought, what bookies said so far, and what that means in the end."""

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from offloaderd.bookkeeper.metadata.ledger import LedgerMetadata
from offloaderd.bookkeeper.wire.entry import ENTRY_HEADER, DigestType, EntryChecker
from offloaderd.bookkeeper.wire.status import NotHere
from offloaderd.core.errors import CorruptData, OffloaderError, Throttled, Transient
from offloaderd.core.model import TopicName

EXPECTED_BYTES = 4096
"""What a first read is taken to bring, for the rate limits, until one has shown it."""


class MissingEntry(CorruptData):
    """A confirmed entry of a ledger that exists is on none of its bookies."""


class UnsoundEntry(CorruptData):
    """Every copy of a confirmed entry fails its check."""


def checker_for(ledger_id: int, metadata: LedgerMetadata) -> EntryChecker:
    """Return what checks a ledger's entries. Metadata of version 1 names no digest: Pulsar's own is taken."""
    return EntryChecker(ledger_id, metadata.digest_type or DigestType.CRC32C, metadata.password)


@dataclass(slots=True)
class LedgerAt:
    """A ledger that is being read: its metadata may be found to have changed on the way."""

    topic: TopicName
    ledger_id: int
    metadata: LedgerMetadata
    checker: EntryChecker
    preferred_bookie: str = ""
    """The bookie that gave the last entries; it has read ahead."""
    expected_bytes: int = EXPECTED_BYTES
    """What the next request will probably bring."""

    def replicas(self, entry_id: int) -> Sequence[str]:
        """Return the bookies of an entry in the order to ask them.

        Where every bookie has every entry it is always the same order, another one for another ledger.
        """
        if self.metadata.striped:
            return self.metadata.replicas(entry_id)
        bookies = self.metadata.ensemble_for(entry_id).bookies
        first = self.ledger_id % len(bookies)
        if self.preferred_bookie in bookies:
            first = bookies.index(self.preferred_bookie)
        return (*bookies[first:], *bookies[:first])


@dataclass(frozen=True, slots=True)
class Found:
    """What one bookie gave: stored entries, at least one, not checked yet."""

    bookie_id: str
    entries: list[bytes] = field(repr=False)
    size_bytes: int


@dataclass(slots=True, eq=False)
class ReplicaRead:
    """One search, for the entry `first_entry_id` and as many after it as come along, `count_max` in all.

    `asked` are the bookies of this round, `failures` what became of those that are through, `copies` what the bad
    ones of them hold; `slow` kept us waiting until a second one was asked.
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
        """The answer, once there is one."""
        done = (task for task in (self.task, self.second) if task is not None and task.done() and not task.cancelled())
        return next((task.result() for task in done if task.result() is not None), None)

    @property
    def running(self) -> list[asyncio.Task[Found | None]]:
        """The passes over the replicas that are not through."""
        return [task for task in (self.task, self.second) if task is not None and not task.done()]

    def refused(self, found: Found, error: CorruptData, entry_id: int) -> "ReplicaRead":
        """Return the hunt that goes on behind what was sound of an answer: one of its entries is bad."""
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

    def begin_round(self) -> None:
        """Forget what bookies said: all of them will be asked again."""
        self.asked, self.failures, self.copies, self.slow = [], {}, {}, []

    def cancel(self) -> None:
        """Let go of what is being asked."""
        for task in self.running:
            task.cancel()


def conclusion(replica_read: ReplicaRead) -> OffloaderError:
    """Return the error that a hunt ends with after its last round."""
    where = f"ledger {replica_read.ledger.ledger_id}, entry {replica_read.first_entry_id}"
    said = "; ".join(f"{bookie_id}: {error}" for bookie_id, error in replica_read.failures.items())
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
    return kind(f"no bookie gave {where} ({said})", hint="the entry is asked for again; see offloadctl doctor")


def _identity(copy: bytes, digest_bytes: int) -> bytes:
    """Return what copies with one content have in common: the LAC in a header, and so the digest, may differ."""
    body_at = ENTRY_HEADER.size + digest_bytes
    return hashlib.sha256(copy[:16] + copy[24 : ENTRY_HEADER.size] + copy[body_at:]).digest()
