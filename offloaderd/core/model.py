"""Value types shared by every layer: topics, positions, ledgers, batches of entries, segment ranges, policy values.

All are immutable. Ledger and entry ids are BookKeeper's: signed 64-bit numbers >= 0.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Self
from urllib.parse import quote_plus, unquote_plus
from uuid import UUID

from offloaderd.core.errors import DomainNotCovered, InvalidInput

LEDGER_ID_MAX = ENTRY_ID_MAX = 2**63 - 1
ENTRY_BYTES_MAX = 5 * 1024 * 1024
"""Pulsar's default `maxMessageSize`; a larger entry is refused when it is pushed."""

DRIVER = "offloaderd"
"""The driver name in records of segments; brokers know our LedgerOffloader by the same name."""

LOG_LEVELS = ("debug", "info", "warning", "error")
"""The levels of a daemon's log, here for the client as well."""

_PART = re.compile(r"[-=:.\w]+")


class Position(NamedTuple):
    """Ledger id and entry id of an entry: ordered, written `ledger:entry`."""

    ledger_id: int
    entry_id: int

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"

    @classmethod
    def parse(cls, text: str) -> "Position":
        """Read `ledger:entry`; raises InvalidInput."""
        ledger, colon, entry = text.partition(":")
        if not (colon and ledger.isascii() and ledger.isdecimal() and entry.isascii() and entry.isdecimal()):
            raise InvalidInput(f"not a position: {text!r}", hint="write LEDGER:ENTRY, for instance 12:0")
        return cls(int(ledger), int(entry)).checked()

    def next(self) -> "Position":
        """Return the position of the entry after it in its ledger."""
        return Position(self.ledger_id, self.entry_id + 1)

    def checked(self) -> "Position":
        """Return itself if both numbers are in range; raises InvalidInput."""
        if not (0 <= self.ledger_id <= LEDGER_ID_MAX and 0 <= self.entry_id <= ENTRY_ID_MAX):
            raise InvalidInput(f"position {self} is out of range", hint="ledger and entry ids are 0 to 2^63-1")
        return self


START = Position(-1, -1)
"""The position before the first entry of a topic."""


def encode_local(name: str) -> str:
    """Encode a topic's local name as Java's URLEncoder does: a space becomes `+`, `*` stays, `~` is encoded."""
    return quote_plus(name, safe="*").replace("~", "%7E")


def decode_local(encoded: str) -> str:
    """Decode a name that `encode_local` has encoded. Raises InvalidInput if its bytes are not UTF-8."""
    try:
        return unquote_plus(encoded, errors="strict")
    except UnicodeDecodeError:
        raise InvalidInput(f"{encoded!r} is no encoded topic name: its bytes are not UTF-8") from None


DOMAIN = "persistent"
DOMAINS_NOT_COVERED = ("segment",)
"""Domains with ledgers that are not offloaded (PIP-460), reported by name, so that their topics are not believed to be
safe. Other names in the place of a domain are no domains: in Pulsar's first version tenants contained clusters."""
DOMAINS_HINT = (
    "its entries stay with its broker and BookKeeper, and nothing here deletes them; offload it with Pulsar's own "
    "driver, or let its namespace go without"
)
TOPIC_CHARS_MAX = 4096
"""Longest topic name; brokers take far less. It becomes a path, and ZooKeeper disconnects on requests of 1 MiB."""


@dataclass(frozen=True, slots=True, order=True)
class TopicName:
    """Name of a non-partitioned topic, or of one partition of a partitioned topic."""

    tenant: str
    namespace: str
    local: str
    domain: str = DOMAIN

    @classmethod
    def parse(cls, text: str) -> "TopicName":
        """Read `[persistent://]tenant/namespace/topic`, or `topic` in public/default. Raises InvalidInput."""
        hint = "write persistent://TENANT/NAMESPACE/TOPIC, TENANT/NAMESPACE/TOPIC or TOPIC (in public/default)"
        if len(text) > TOPIC_CHARS_MAX:
            raise InvalidInput(f"a topic name of {len(text)} characters is too long: {TOPIC_CHARS_MAX} is the most")
        scheme, marker, rest = text.partition("://")
        if marker and scheme != DOMAIN:
            what = f"topic {text!r}: only persistent topics are stored, not {scheme!r}"
            if scheme in DOMAINS_NOT_COVERED:
                raise DomainNotCovered(what, hint=DOMAINS_HINT)
            raise InvalidInput(what, hint=hint)
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
        if len(parts) != 4 or not all(parts) or parts[2] != DOMAIN:
            raise InvalidInput(f"malformed managed-ledger name {name!r}")
        return cls(parts[0], parts[1], decode_local(parts[3]))

    @property
    def managed_ledger(self) -> str:
        """Name of the managed ledger, as Pulsar's brokers encode it (TopicName.getPersistenceNamingEncoding)."""
        return f"{self.tenant}/{self.namespace}/{self.domain}/{encode_local(self.local)}"

    def __str__(self) -> str:
        return f"{self.domain}://{self.tenant}/{self.namespace}/{self.local}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerOffload:
    """The OffloadContext of a ledger that a broker itself has offloaded as a whole (PIP-17).

    `driver` and `properties` locate the objects. `source_deleted`: BookKeeper has no copy, or will soon have none.
    """

    object_id: UUID
    driver: str
    properties: Mapping[str, str]
    offloaded_ms: int
    source_deleted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerInfo:
    """Metadata of one ledger of a topic.

    `entries` and `size_bytes` (payload) are final once the ledger is closed; `closed_at_ms` is 0 while it is open.
    `offloaded` is a broker's own copy. Others are None if unknown: `previous` is the ledger directly before it in the
    source's list, readable or not; `created_ms` shows whether an id was given to a second ledger; `listing`, on the
    list's last ledger alone, is the list's creation time and its number of changes. A ledger that `replaces` those
    before it has all that is still valid of them, so none of them is missing.
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
    replaces: bool = False


class LedgerEnd(NamedTuple):
    """Number of entries of a closed ledger, and the topic's next ledger (None if unknown)."""

    entries: int
    next_ledger_id: int | None

    def adds_to(self, known: "LedgerEnd | None") -> bool:
        """Whether this end adds to the known one. A known next ledger is never replaced by an unknown one."""
        return known is None or (self != known and (self.next_ledger_id is not None or self.entries != known.entries))


class Loss(NamedTuple):
    """Entries between two existing positions that the source deleted before they were offloaded.

    `entries` is their known number; 0 means that there may have been none. It was noticed at `noticed_ms` (wall clock).
    """

    after: Position
    before: Position
    entries: int
    noticed_ms: int = 0

    @property
    def certain(self) -> bool:
        """Whether entries are known to be lost; if not, a loss is only possible."""
        return self.entries > 0

    def holds(self, position: Position) -> bool:
        """Whether a position is inside the lost range."""
        return self.after < position < self.before

    def without(self, there: "Iterable[SegmentRange]") -> "Loss | None":
        """Return what is left of the loss after entries of it arrived (a broker pushed them), None for nothing."""
        ends = [one.end for one in there if one.begin < self.before and self.after < one.end]
        if not ends:
            return self
        return self._replace(after=max(ends), entries=0) if max(ends) < self.before else None

    def __str__(self) -> str:
        return between(self.after if self.after.ledger_id >= 0 else None, self.before)


class Gap(NamedTuple):
    """Entries that no readable segment holds: after a position, and before another (None: how many is unknown).

    Only a map that is made of a bucket alone has any (`upkeep/bucket_map.py`): what is committed has none.
    """

    after: Position
    before: Position | None
    why: str

    def holds(self, position: Position) -> bool:
        """Whether a position is inside the gap."""
        return self.after < position and (self.before is None or position < self.before)

    def __str__(self) -> str:
        return between(self.after if self.after.ledger_id >= 0 else None, self.before)


def between(after: Position | str | None, before: Position | str | None) -> str:
    """Return two exclusive bounds as text; None for no bound."""
    end = f"before {before}" if before is not None else "up to the end"
    return f"after {after} and {end}" if after is not None else end


def lost_up_to(losses: Iterable[Loss], after: Position, limit: Position) -> Position | None:
    """Return the end of the recorded losses that directly follow `after`, at most `limit`; None if there is none.

    Losses may overlap: one at the end of history, and one at the begin of the live part.
    """
    reached: Position | None = None
    for loss in sorted(losses):
        joins = loss.after == after if reached is None else loss.after < reached < loss.before
        if joins and loss.before <= limit:
            reached = loss.before
    return reached


class Edge(StrEnum):
    """How a source learns the LAC of an open ledger, which decides how stale that can be."""

    EXACT = "exact"
    """The source is the writer, or the ledger is closed: no confirmed entry is missing."""
    NEXT_WRITE = "next write"
    """Only entries carry the LAC: a quiet writer's last entries show with its next entry, or at the close."""
    EXPLICIT_LAC = "explicit LAC"
    """The writer sends its LAC to bookies at an interval (`bookkeeperExplicitLacIntervalInMills`)."""
    ADMIN = "admin API"
    """When the topic became quiet, the broker reported the writer's own `lastConfirmedEntry`."""


class Confirmed(NamedTuple):
    """LAC of a ledger, -1 for no entry. `hidden` counts the entries stored behind it, confirmed or not."""

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
        """Number of entries."""
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
        """Return the batch cut to the entries in [first_entry_id, last_entry_id]; may be empty."""
        low = max(first_entry_id, self.first_entry_id)
        high = min(last_entry_id, self.last_entry_id)
        if low == self.first_entry_id and high == self.last_entry_id:
            return self
        start = low - self.first_entry_id
        return EntryBatch(self.ledger_id, low, self.payloads[start : max(start, high - self.first_entry_id + 1)])


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """Range of a segment's entries: `begin` to `end`, both inclusive."""

    begin: Position
    end: Position

    def __str__(self) -> str:
        return f"{self.begin}..{self.end}"


class OfferResult(StrEnum):
    """Answer of the tailing buffer to an offer (PIP-76, OffloadHandle.offerEntry)."""

    ACCEPTED = "accepted"
    FULL = "full"
    NOT_CONSECUTIVE = "not_consecutive"
    CLOSED = "closed"


class Retained(NamedTuple):
    """Limits of a namespace's retention on acknowledged entries, in seconds and bytes; None: no limit."""

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
    """A policy value from a fixed set."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a value. Raises InvalidInput."""
        try:
            return cls(text)
        except ValueError:
            what = re.sub("(?<=[a-z])(?=[A-Z])", " ", cls.__name__).lower()
            raise InvalidInput(f"unknown {what} {text!r}", hint=f"one of {', '.join(cls)}") from None


class HistoryOrder(PolicyValue):
    """Order of history and live entries for a topic that had entries before it was enabled."""

    HISTORY_FIRST = "history-first"
    """Live entries after all of history, as in PIP-76."""
    ALONGSIDE = "alongside"
    """Live entries at once, while history is offloaded."""


class TierRetention(StrEnum):
    """How long the tier keeps offloaded entries."""

    KEEP = "keep"
    """For ever: entries that the broker's retention deletes stay readable here."""
    FOLLOW = "follow"
    """As long as the ledger is in the source's list."""
    LIMITED = "limited"
    """Up to an age or a size, and at least as long as the source has them."""


class OutagePolicy(PolicyValue):
    """How a topic treats new entries during a long outage of the object store."""

    BLOCK = "block"
    """None are accepted: pushes are held back, and the source is not read."""
    SOURCE = "source"
    """The ledger source keeps them, and they are read from there later; a topic without a source is blocked."""
    SPILL = "spill"
    """A topic without a source writes them to a local disk; a topic with a source leaves them there."""


class MirrorRequired(PolicyValue):
    """Whether the source may delete a ledger before every segment of it has its copy in the mirror."""

    NO = "no"
    YES = "yes"


class OffloadMethod(PolicyValue):
    """How entries are offloaded: as they arrive (PIP-76), by closed ledgers (PIP-17), or not at all."""

    STREAMING = "streaming"
    LEDGER_BASED = "ledger-based"
    NONE = "none"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a value, also `streaming-based` from Pulsar's unmerged setting. Raises InvalidInput."""
        return super().parse("streaming" if text == "streaming-based" else text)


class RefusalKind(StrEnum):
    """A mismatch for which a topic is refused."""

    METADATA_WENT_BACK = "metadata-went-back"
    """The bucket has segments of this topic that are newer than the metadata."""
    OTHER_DEPLOYMENT = "other-deployment"
    """Another deployment writes this topic under the same prefix."""
    HEAD_UNREADABLE = "head-unreadable"
    """The topic's head in the bucket is damaged, so either of the two above is possible."""
    OTHER_SOURCE = "other-source"
    """The ledger source differs from the one that the ledgers were offloaded from."""
    UNKNOWN_SOURCE = "unknown-source"
    """No source is on record, and the list of this one has no offloaded ledger."""
    LIST_BEHIND = "list-behind"
    """The newest ledger of the source's list is older than the committed ones."""
    LEDGER_REPLACED = "ledger-replaced"
    """A ledger with a known id was created at another time."""
    LEDGER_SHORTER = "ledger-shorter"
    """A closed ledger has fewer entries than are committed."""
    UNKNOWN_PLACE = "unknown-place"
    """A ledger that only the tier has is not in its bucket, and nothing shows that the bucket is the brokers' one."""
