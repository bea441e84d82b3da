"""The topics and ledgers of a store, without payloads: the rules that all stores share, and their reading side.

A `Book` is the durable state. Changes are planned on a `Draft` over it, which several callers may share; the store
makes the draft durable, and the book takes it over afterwards. A failed draft is dropped.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import NamedTuple

from offloaderd.core.errors import CorruptData, InvalidInput, NotFound, OffloaderError
from offloaderd.core.model import ENTRY_BYTES_MAX, Confirmed, EntryBatch, LedgerInfo, Position, TopicName
from offloaderd.format.pb.bookkeeper.data_formats_pb2 import LedgerMetadataFormat

LEDGER_ENTRIES_MAX = 50_000
LEDGER_BYTES_MAX = 2 * 1024 * 1024 * 1024
LEDGER_AGE_MAX_S = 14_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RollLimits:
    """Limits of a ledger: entries, payload bytes, and the age at which the next entry goes into a new one."""

    entries_max: int = LEDGER_ENTRIES_MAX
    bytes_max: int = LEDGER_BYTES_MAX
    age_max_s: float = LEDGER_AGE_MAX_S

    def __post_init__(self) -> None:
        """Raise InvalidInput for limits under which nothing could be written."""
        if self.entries_max < 1 or self.bytes_max < 1 or not self.age_max_s > 0:
            raise InvalidInput(f"ledger limits must be positive: {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """State of one ledger. `opened_s` is of the monotonic clock: a restart starts the age of an open ledger again."""

    ledger_id: int
    opened_s: float
    entries: int = 0
    size_bytes: int = 0
    closed: bool = False
    closed_at_ms: int = 0
    created_ms: int | None = None

    def info(self) -> LedgerInfo:
        """Return the ledger without `opened_s`."""
        return LedgerInfo(
            ledger_id=self.ledger_id,
            closed=self.closed,
            entries=self.entries,
            size_bytes=self.size_bytes,
            closed_at_ms=self.closed_at_ms,
            created_ms=self.created_ms,
        )


class Run(NamedTuple):
    """Consecutive entries of one ledger; `bytes_before` is the ledger's length before them."""

    ledger_id: int
    first_entry_id: int
    bytes_before: int
    payloads: Sequence[bytes]


class Now(NamedTuple):
    """One reading of the clock."""

    wall_ms: int
    monotonic_s: float


class Book:
    """All stored topics and ledgers."""

    def __init__(self) -> None:
        self._topics: dict[TopicName, dict[int, Ledger]] = {}
        self.next_ledger_id = 0

    def restore(self, topic: TopicName, ledgers: Sequence[Ledger]) -> None:
        """Add a stored topic; `ledgers` ascend."""
        self._topics[topic] = {ledger.ledger_id: ledger for ledger in ledgers}

    def topics(self, tenant: str | None = None, namespace: str | None = None) -> list[TopicName]:
        """Return the topics in name order: all, or those of a tenant, or of its namespace."""
        found = [topic for topic in self._topics if tenant in {None, topic.tenant}]
        return sorted((topic for topic in found if namespace in {None, topic.namespace}), key=str)

    def __contains__(self, topic: TopicName) -> bool:
        return topic in self._topics

    def ledgers(self, topic: TopicName) -> list[LedgerInfo]:
        """Return the topic's ledgers in order. Raises NotFound."""
        return [ledger.info() for ledger in self._of(topic).values()]

    def ledger(self, topic: TopicName, ledger_id: int) -> Ledger:
        """Return one ledger. Raises NotFound."""
        found = self._of(topic).get(ledger_id)
        if found is None:
            raise NotFound(f"no ledger {ledger_id} in {topic}", hint="it may have been deleted")
        return found

    def peek(self, topic: TopicName, ledger_id: int) -> Ledger | None:
        """Return one ledger; None without the topic or the ledger."""
        return self._topics.get(topic, {}).get(ledger_id)

    def open_ledger(self, topic: TopicName) -> Ledger | None:
        """Return the topic's open ledger: its last one, unless that is closed."""
        ledgers = self._topics.get(topic)
        last = next(reversed(ledgers.values()), None) if ledgers else None
        return last if last is not None and not last.closed else None

    def check_range(self, topic: TopicName, ledger_id: int, first: int, last: int) -> None:
        """Raise InvalidInput for a range that no ledger can have, NotFound for entries that were not written yet."""
        if first < 0 or last < first:
            raise InvalidInput(f"no range of entries: {first} to {last}")
        if last >= self.ledger(topic, ledger_id).entries:
            raise NotFound(f"no entry {ledger_id}:{last} in {topic}", hint="it has not been written")

    def take_over(self, draft: "Draft") -> None:
        """Take over a stored draft."""
        for topic, changes in draft.changes.items():
            ledgers = self._topics.setdefault(topic, {})
            for ledger_id, ledger in changes.items():
                if ledger is None:
                    ledgers.pop(ledger_id, None)  # it may have come and gone within the draft
                else:
                    ledgers[ledger_id] = ledger
        self.next_ledger_id = draft.next_ledger_id

    def _of(self, topic: TopicName) -> dict[int, Ledger]:
        found = self._topics.get(topic)
        if found is None:
            raise NotFound(f"unknown topic {topic}", hint="it has no entries and was never created")
        return found


@dataclass(slots=True)
class Draft:
    """Planned changes of a book: by topic, the new state of each changed ledger (None: deleted).

    A topic without a ledger is to be created. Each method plans its whole change or raises.
    """

    book: Book
    limits: RollLimits
    changes: dict[TopicName, dict[int, Ledger | None]] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    next_ledger_id: int = field(init=False)

    def __post_init__(self) -> None:
        self.next_ledger_id = self.book.next_ledger_id

    def create(self, topic: TopicName) -> None:
        """Plan a topic; one that exists is no error."""
        if topic not in self.book:
            self.changes.setdefault(topic, {})

    def append(self, topic: TopicName, payloads: Sequence[bytes], now: Now) -> Position:
        """Plan entries (at least one), over as many ledgers as the limits require; return the last one's position."""
        ends = list(accumulate(map(len, payloads)))
        open_ledger = self._open_ledger(topic)
        if open_ledger is not None and now.monotonic_s - open_ledger.opened_s >= self.limits.age_max_s:
            self._close(topic, open_ledger, now)
            open_ledger = None
        taken, last = 0, Position(0, 0)
        while taken < len(payloads):
            ledger = open_ledger or self._new_ledger(now)
            open_ledger = None
            before = ends[taken - 1] if taken else 0
            # The entry that reaches the limit is the last one: a ledger is never cut before its first entry.
            full_at = bisect_left(ends, before + self.limits.bytes_max - ledger.size_bytes, taken) + 1
            end = min(len(payloads), taken + self.limits.entries_max - ledger.entries, max(full_at, taken + 1))
            self.runs.append(Run(ledger.ledger_id, ledger.entries, ledger.size_bytes, payloads[taken:end]))
            grown = replace(
                ledger, entries=ledger.entries + end - taken, size_bytes=ledger.size_bytes + ends[end - 1] - before
            )
            taken, last = end, Position(grown.ledger_id, grown.entries - 1)
            self._put(topic, grown)
            if grown.entries >= self.limits.entries_max or grown.size_bytes >= self.limits.bytes_max:
                self._close(topic, grown, now)
        return last

    def roll(self, topic: TopicName, now: Now) -> None:
        """Plan the end of the open ledger, if there is one. Raises NotFound for an unknown topic."""
        if topic not in self.book and topic not in self.changes:
            raise NotFound(f"unknown topic {topic}", hint="it has no entries and was never created")
        open_ledger = self._open_ledger(topic)
        if open_ledger is not None:
            self._close(topic, open_ledger, now)

    def delete(self, topic: TopicName, ledger_id: int) -> bool:
        """Plan the deletion of a closed ledger; return False for a missing one. Raises InvalidInput for an open one."""
        planned = self.changes.get(topic, {})
        ledger = planned[ledger_id] if ledger_id in planned else self.book.peek(topic, ledger_id)
        if ledger is None:
            return False
        if not ledger.closed:
            raise InvalidInput(f"ledger {ledger_id} of {topic} is open", hint="only a closed ledger can be deleted")
        self.changes.setdefault(topic, {})[ledger_id] = None
        return True

    def _open_ledger(self, topic: TopicName) -> Ledger | None:
        planned = self.changes.get(topic)
        newest = max(planned, default=None) if planned else None
        last = self.book.open_ledger(topic)
        if newest is None or planned is None or (last is not None and newest < last.ledger_id):
            return last
        ledger = planned[newest]
        return ledger if ledger is not None and not ledger.closed else None

    def _new_ledger(self, now: Now) -> Ledger:
        ledger = Ledger(ledger_id=self.next_ledger_id, opened_s=now.monotonic_s, created_ms=now.wall_ms)
        self.next_ledger_id += 1
        return ledger

    def _close(self, topic: TopicName, ledger: Ledger, now: Now) -> None:
        self._put(topic, replace(ledger, closed=True, closed_at_ms=now.wall_ms))

    def _put(self, topic: TopicName, ledger: Ledger) -> None:
        self.changes.setdefault(topic, {})[ledger.ledger_id] = ledger


class BookSource(ABC):
    """The reading side of a store with a book: a LedgerSource without watches, and a LedgerDescriber.

    Each method raises what `_known` raises, and NotFound for a topic or a ledger that is not in the book.
    """

    where: str
    """The place of the store, for messages."""

    @abstractmethod
    async def _known(self, only: tuple[TopicName, int] | None = None) -> Book:
        """Return the present book; with `only`, a topic and a ledger id, all others may be left out. Raises Closed."""

    @abstractmethod
    async def _fetch(
        self, topic: TopicName, ledger_id: int, first_entry_id: int, last_entry_id: int, batch_bytes: int
    ) -> Sequence[bytes]:
        """Return stored entries, one at least, then more while they fit; none if the first is deleted."""

    @abstractmethod
    async def _length_at(self, ledger_id: int, entry_id: int) -> int | None:
        """Return the payload bytes up to and including an entry; None for one that is not stored."""

    @abstractmethod
    async def identity(self) -> str | None:
        """Return the store's own id; see LedgerOrigin."""

    async def moved(self, topic: TopicName) -> str | None:
        """Return None: its lists never move."""
        return None

    async def reserved(self, topic: TopicName) -> str | None:
        """Return None: every topic here is a user's."""
        await self._known()
        return None

    async def topics(self, *, tenant: str | None = None, namespace: str | None = None) -> Sequence[TopicName]:
        """Return the topics in name order; see LedgerSource."""
        return (await self._known()).topics(tenant, namespace)

    async def ledgers(self, topic: TopicName) -> Sequence[LedgerInfo]:
        """Return the topic's ledgers in order."""
        return (await self._known()).ledgers(topic)

    async def inspected(self, topic: TopicName, ledger_id: int) -> LedgerInfo:
        """Return a ledger as the store has it; see LedgerOrigin."""
        return (await self._known((topic, ledger_id))).ledger(topic, ledger_id).info()

    async def described(self, topic: TopicName, ledger_id: int) -> bytes:
        """Return made-up metadata of a closed ledger; see LedgerDescriber. Raises InvalidInput."""
        return plain_metadata(await self.inspected(topic, ledger_id))

    async def confirmed(self, topic: TopicName, ledger_id: int) -> Confirmed:
        """Return how far the ledger may be read."""
        info = await self.inspected(topic, ledger_id)
        return Confirmed(info.entries - 1, info.closed)

    async def read(
        self, topic: TopicName, ledger_id: int, first_entry_id: int, last_entry_id: int, *, batch_bytes: int
    ) -> AsyncGenerator[EntryBatch, None]:
        """Yield the range in batches; see LedgerSource. Raises InvalidInput, CorruptData."""
        if batch_bytes < 1:
            raise InvalidInput(f"batch_bytes must be positive, not {batch_bytes}")
        (await self._known((topic, ledger_id))).check_range(topic, ledger_id, first_entry_id, last_entry_id)
        at = first_entry_id
        while at <= last_entry_id:
            payloads = await self._fetch(topic, ledger_id, at, last_entry_id, batch_bytes)
            if not payloads:
                raise await self._missing(topic, ledger_id, at)
            yield EntryBatch(ledger_id, at, payloads)
            at += len(payloads)

    async def length_at(self, topic: TopicName, ledger_id: int, entry_id: int) -> int:
        """Return the payload bytes up to and including the entry. Raises CorruptData."""
        if not 0 <= entry_id < (await self._known((topic, ledger_id))).ledger(topic, ledger_id).entries:
            raise NotFound(f"no entry {ledger_id}:{entry_id} in {topic}")
        length = await self._length_at(ledger_id, entry_id)
        if length is None:
            raise await self._missing(topic, ledger_id, entry_id)
        return length

    async def _missing(self, topic: TopicName, ledger_id: int, entry_id: int) -> OffloaderError:
        """Return NotFound for a ledger deleted during a read, CorruptData for one without the entry."""
        if (await self._known((topic, ledger_id))).peek(topic, ledger_id) is None:
            return NotFound(f"no ledger {ledger_id} in {topic}", hint="it has been deleted")
        return CorruptData(
            key=f"{self.where}, ledger {ledger_id}",
            offset=0,
            expected=f"entry {entry_id} of {topic}",
            found="no row with it",
            hint="restore the directory from a backup",
        )


def check_payloads(payloads: Sequence[bytes]) -> None:
    """Raise InvalidInput for an append without entries, or with one too large or not of bytes; b"" is legal."""
    if not payloads:
        raise InvalidInput("an append without entries", hint="hand over at least one entry")
    kinds = set(map(type, payloads)) - {bytes}
    if kinds:
        raise InvalidInput(f"payloads must be bytes, not {', '.join(sorted(kind.__name__ for kind in kinds))}")
    largest = max(map(len, payloads))
    if largest > ENTRY_BYTES_MAX:
        raise InvalidInput(
            f"an entry of {largest} bytes is larger than the {ENTRY_BYTES_MAX} bytes that an entry may have",
            hint="split it, or store it elsewhere and append a reference",
        )


def plain_metadata(info: LedgerInfo) -> bytes:
    """Return metadata of a closed ledger that never was in BookKeeper: one copy, no bookie. Raises InvalidInput."""
    if not info.closed or not info.entries:
        raise InvalidInput(f"ledger {info.ledger_id} is open or empty and cannot be offloaded as a whole")
    return LedgerMetadataFormat(
        quorumSize=1,
        ensembleSize=1,
        ackQuorumSize=1,
        length=info.size_bytes,
        lastEntryId=info.entries - 1,
        state=LedgerMetadataFormat.CLOSED,
        digestType=LedgerMetadataFormat.CRC32C,
        ctime=info.closed_at_ms,
    ).SerializeToString(deterministic=True)
