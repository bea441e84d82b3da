"""Value types shared by every layer: topics, positions, ledgers, batches of entries, segment ranges.

All are immutable; all numbers are BookKeeper's (ledger and entry ids are signed 64-bit and >= 0).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Self
from urllib.parse import quote_plus, unquote_plus
from uuid import UUID

from offloaderd.core import domains
from offloaderd.core.errors import InvalidInput

LEDGER_ID_MAX = ENTRY_ID_MAX = 2**63 - 1
ENTRY_BYTES_MAX = 5 * 1024 * 1024
"""Pulsar's default `maxMessageSize`; a larger entry is refused at the door."""

DRIVER = "offloaderd"
"""The name under which segments are recorded, and under which brokers know our LedgerOffloader."""

_PART = re.compile(r"[-=:.\w]+")


class Position(NamedTuple):
    """A point in a topic: ordered, comparable, written `ledger:entry`."""

    ledger_id: int
    entry_id: int

    def __str__(self) -> str:
        """`ledger:entry`, as pulsar-admin prints it."""
        return f"{self.ledger_id}:{self.entry_id}"

    @classmethod
    def parse(cls, text: str) -> "Position":
        """Read `ledger:entry`; raises InvalidInput."""
        ledger, colon, entry = text.partition(":")
        if not (colon and ledger.isascii() and ledger.isdecimal() and entry.isascii() and entry.isdecimal()):
            raise InvalidInput(f"not a position: {text!r}", hint="write LEDGER:ENTRY, for instance 12:0")
        return cls(int(ledger), int(entry)).checked()

    def checked(self) -> "Position":
        """Return itself if both numbers are in range; raises InvalidInput."""
        if not (0 <= self.ledger_id <= LEDGER_ID_MAX and 0 <= self.entry_id <= ENTRY_ID_MAX):
            raise InvalidInput(f"position {self} is out of range", hint="ledger and entry ids are 0 to 2^63-1")
        return self


START = Position(-1, -1)
"""What the very first entry of a topic follows."""


def encode_local(name: str) -> str:
    """Return a local name as Java's URLEncoder writes it: a space is `+`, and `*` stays while `~` does not."""
    return quote_plus(name, safe="*").replace("~", "%7E")


def decode_local(encoded: str) -> str:
    """Return the local name that `encode_local` was given. Raises InvalidInput for bytes that are no text."""
    try:
        return unquote_plus(encoded, errors="strict")
    except UnicodeDecodeError:
        raise InvalidInput(f"{encoded!r} is no encoded topic name: its bytes are not UTF-8") from None


TOPIC_CHARS_MAX = 4096
"""Far beyond what a broker's HTTP API takes. A name becomes a path, and ZooKeeper hangs up on requests of 1 MiB."""


@dataclass(frozen=True, slots=True, order=True)
class TopicName:
    """A non-partitioned topic, or one partition of a partitioned one."""

    tenant: str
    namespace: str
    local: str
    domain: str = "persistent"

    @classmethod
    def parse(cls, text: str) -> "TopicName":
        """Read `persistent://tenant/namespace/topic`, `tenant/namespace/topic` or `topic` (in public/default).

        Raises InvalidInput.
        """
        hint = "write persistent://TENANT/NAMESPACE/TOPIC, TENANT/NAMESPACE/TOPIC or TOPIC (in public/default)"
        if len(text) > TOPIC_CHARS_MAX:
            raise InvalidInput(f"a topic name of {len(text)} characters is too long: {TOPIC_CHARS_MAX} is the most")
        scheme, marker, rest = text.partition("://")
        if marker and scheme != "persistent":
            raise domains.refused(text, scheme, hint)
        path = rest if marker else text
        if not marker and "/" not in path:
            path = f"public/default/{path}"
        parts = path.split("/", 2)
        if len(parts) != 3 or not all(parts):
            raise InvalidInput(f"malformed topic name {text!r}", hint=hint)
        tenant, namespace, local = parts
        for what, part in (("tenant", tenant), ("namespace", namespace)):
            if not _PART.fullmatch(part):
                raise InvalidInput(f"malformed {what} {part!r} in topic name {text!r}", hint=hint)
        if any(ord(char) < 32 or ord(char) == 127 or "\ud800" <= char <= "\udfff" for char in local):
            raise InvalidInput(f"control character in topic name {text!r}", hint=hint)
        return cls(tenant, namespace, local)

    @classmethod
    def from_managed_ledger(cls, name: str) -> "TopicName":
        """Read `tenant/namespace/persistent/encoded-local-name`; raises InvalidInput."""
        parts = name.split("/")
        if len(parts) != 4 or not all(parts) or parts[2] != "persistent":
            raise InvalidInput(f"malformed managed-ledger name {name!r}")
        return cls(parts[0], parts[1], decode_local(parts[3]))

    @property
    def managed_ledger(self) -> str:
        """Name of the managed ledger, as Pulsar's brokers write it (TopicName.getPersistenceNamingEncoding)."""
        return f"{self.tenant}/{self.namespace}/{self.domain}/{encode_local(self.local)}"

    def __str__(self) -> str:
        """Full name, with the domain."""
        return f"{self.domain}://{self.tenant}/{self.namespace}/{self.local}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerOffload:
    """A whole ledger that a broker has offloaded itself (PIP-17), by its own word: what its OffloadContext says.

    `driver` and `properties` tell where the objects lie. `source_deleted`: BookKeeper has, or soon will have, no copy.
    """

    object_id: UUID
    driver: str
    properties: Mapping[str, str]
    offloaded_ms: int
    source_deleted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerInfo:
    """What is known of one ledger of a topic.

    `entries` and `size_bytes` (payload) are the whole ledger's once it is closed, before what is known; `closed_at_ms`
    is 0 while it is open. `offloaded` is a broker's own copy. None where not known: `previous`, the one directly before
    it in the keeper's list, readable or not; `created_ms`, by which a number that was given twice shows; `listing`,
    when the list that it is the last of was made, and how often it was changed since.
    """

    ledger_id: int
    closed: bool
    entries: int
    size_bytes: int
    closed_at_ms: int = 0
    offloaded: LedgerOffload | None = None
    previous: int | None = None
    created_ms: int | None = field(default=None, compare=False)
    listing: tuple[int, int] | None = field(default=None, compare=False)


class LedgerEnd(NamedTuple):
    """A closed ledger's number of entries, and the topic's next ledger as far as it is known."""

    entries: int
    next_ledger_id: int | None

    def adds_to(self, known: "LedgerEnd | None") -> bool:
        """Say whether this tells more than what is known: which ledger comes next is not forgotten again."""
        return known is None or (self != known and (self.next_ledger_id is not None or self.entries != known.entries))


class Loss(NamedTuple):
    """Entries that are gone from the source without having been offloaded: between two positions, both kept.

    `entries` is how many are known to have been there; 0 says that nobody can tell whether there were any.
    `noticed_ms` is when it was found out (wall clock).
    """

    after: Position
    before: Position
    entries: int
    noticed_ms: int = 0

    @property
    def certain(self) -> bool:
        """Whether entries are known to be lost; else they may be."""
        return self.entries > 0

    def holds(self, position: Position) -> bool:
        """Whether a position lies in the range."""
        return self.after < position < self.before

    def without(self, there: "Iterable[SegmentRange]") -> "Loss | None":
        """Return what remains of it when entries turned up after all (a broker pushed them); None for nothing."""
        ends = [one.end for one in there if one.begin < self.before and self.after < one.end]
        if not ends:
            return self
        return self._replace(after=max(ends), entries=0) if max(ends) < self.before else None

    def __str__(self) -> str:
        """The range in words."""
        return f"after {self.after} and before {self.before}" if self.after.ledger_id >= 0 else f"before {self.before}"


def lost_up_to(losses: Iterable[Loss], after: Position, limit: Position) -> Position | None:
    """Return up to where everything behind `after` is recorded as lost, `limit` at most; None where nothing is.

    Two losses may meet within one another: that of history's end, and that of the begin of what is live.
    """
    reached: Position | None = None
    for loss in sorted(losses):
        joins = loss.after == after if reached is None else loss.after < reached < loss.before
        if joins and loss.before <= limit:
            reached = loss.before
    return reached


class Edge(StrEnum):
    """By what a source knows how far an open ledger is confirmed; the way decides how stale that can be."""

    EXACT = "exact"
    """The source is the writer, or the ledger is closed: nothing is hidden."""
    NEXT_WRITE = "next write"
    """Only entries carry the LAC: what a quiet writer had in flight shows with its next entry, or at the close."""
    EXPLICIT_LAC = "explicit LAC"
    """The writer tells bookies its LAC at an interval (`bookkeeperExplicitLacIntervalInMills`)."""
    ADMIN = "admin API"
    """The broker was asked for the writer's own `lastConfirmedEntry` when the topic went quiet."""


class Confirmed(NamedTuple):
    """How far a ledger may be read: LAC, -1 for nothing; `hidden` counts what is stored beyond it, confirmed or not."""

    last_entry_id: int
    closed: bool
    edge: Edge = Edge.EXACT
    hidden: int = 0


@dataclass(frozen=True, slots=True)
class EntryBatch:
    """Consecutive entries of one ledger; `payloads[i]` is entry `first_entry_id + i`."""

    ledger_id: int
    first_entry_id: int
    payloads: Sequence[bytes]

    @property
    def count(self) -> int:
        """How many entries there are."""
        return len(self.payloads)

    @property
    def last_entry_id(self) -> int:
        """Id of the last entry; one less than the first when the batch is empty."""
        return self.first_entry_id + len(self.payloads) - 1

    @property
    def first(self) -> Position:
        """Position of the first entry."""
        return Position(self.ledger_id, self.first_entry_id)

    @property
    def last(self) -> Position:
        """Position of the last entry."""
        return Position(self.ledger_id, self.last_entry_id)

    def payload_bytes(self) -> int:
        """Sum of the payload lengths."""
        return sum(map(len, self.payloads))

    def between(self, first_entry_id: int, last_entry_id: int) -> "EntryBatch":
        """Return the part of the batch within [first_entry_id, last_entry_id]; may be empty."""
        low = max(first_entry_id, self.first_entry_id)
        high = min(last_entry_id, self.last_entry_id)
        if low == self.first_entry_id and high == self.last_entry_id:
            return self
        start = low - self.first_entry_id
        return EntryBatch(self.ledger_id, low, self.payloads[start : max(start, high - self.first_entry_id + 1)])


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """What a segment holds: from `begin` to `end`, both inclusive."""

    begin: Position
    end: Position

    def __str__(self) -> str:
        """`begin..end`."""
        return f"{self.begin}..{self.end}"


class OfferResult(StrEnum):
    """Answer of the tailing buffer to an offer (PIP-76, OffloadHandle.offerEntry)."""

    ACCEPTED = "accepted"
    FULL = "full"
    NOT_CONSECUTIVE = "not_consecutive"
    CLOSED = "closed"


class Retained(NamedTuple):
    """What a namespace's retention keeps of a topic once it is acknowledged, in seconds and bytes; None: no limit."""

    seconds: float | None = None
    size_bytes: int | None = None


class RollReason(StrEnum):
    """Why an open segment was sealed."""

    SIZE = "size"
    AGE = "age"
    MANUAL = "manual"
    SWITCH = "switch"
    MEMORY = "memory"
    SHUTDOWN = "shutdown"


class PolicyValue(StrEnum):
    """A value of a policy out of a fixed set."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a policy value. Raises InvalidInput."""
        try:
            return cls(text)
        except ValueError:
            what = re.sub("(?<=[a-z])(?=[A-Z])", " ", cls.__name__).lower()
            raise InvalidInput(f"unknown {what} {text!r}", hint=f"one of {', '.join(cls)}") from None


class HistoryOrder(PolicyValue):
    """When the live edge is offloaded of a topic that has entries from before it was enabled."""

    HISTORY_FIRST = "history-first"
    """After all of them, as PIP-76 has it."""
    ALONGSIDE = "alongside"
    """At once, beside them."""


class TierRetention(StrEnum):
    """How long the tier keeps what was offloaded."""

    KEEP = "keep"
    """For ever: what the broker trims by its retention stays readable here."""
    FOLLOW = "follow"
    """As long as the source's list has the ledger."""
    LIMITED = "limited"
    """Up to an age or a size, and never less than the source has."""


class OutagePolicy(PolicyValue):
    """What becomes of new entries of a topic while the object store is away for long."""

    BLOCK = "block"
    """Nothing is taken: who pushes is held back, and the source is not read."""
    SOURCE = "source"
    """The ledger source keeps them, and they are read there later; a topic without one is blocked."""
    SPILL = "spill"
    """Who has no source writes them to a local disk; a topic with a source leaves them there."""


class OffloadMethod(PolicyValue):
    """How entries reach the bucket: as they come (PIP-76), by closed ledgers (PIP-17), or not at all."""

    STREAMING = "streaming"
    LEDGER_BASED = "ledger-based"
    NONE = "none"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a policy value, also `streaming-based` as Pulsar's unmerged setting had it. Raises InvalidInput."""
        return super().parse("streaming" if text == "streaming-based" else text)
