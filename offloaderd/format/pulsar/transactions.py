"""Transactions in a topic's entries, and their outcome as a broker's transaction buffer derives it. Pure.

The metadata of a message in a transaction have the transaction's id. Later the broker appends a marker with the same id
to the same partition, which commits or aborts it. So the outcome on a partition follows from its own entries alone.
`TransactionLog` reads them as Pulsar's TopicTransactionBuffer does in its recovery:

- a message of a transaction that is neither open nor aborted opens it at its position;
- a marker of either kind ends it; an abort is remembered, and later messages of that transaction are aborted too;
- consumers receive nothing from the first message of the first open transaction on, including other messages;
- of earlier entries they receive all but markers and messages of aborted transactions.
"""

from collections import OrderedDict
from enum import StrEnum
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from offloaderd.core.errors import CorruptData
from offloaderd.core.model import Position
from offloaderd.format.pb.pulsar.messages_pb2 import MessageMetadata
from offloaderd.format.pulsar import broker_entry

TXN_COMMIT: Final = 21
TXN_ABORT: Final = 22
"""`marker_type` of the two markers (PulsarMarkers.proto). Markers of other types do not end a transaction."""

ENDED_MAX = 10_000
"""Number of aborted transactions that are remembered after their markers, for late messages."""

_CHECKSUM = b"\x0e\x01"
_CHECKSUM_BYTES = 6
_ID_TAG, _ID_TAG_LONG = b"\xb0\x01", b"\xb0\x81"
"""Begin of the field with the least bits, in its shortest form and in the longer ones, which brokers accept as well; an
entry without either is in no transaction."""
_SEARCHED_BYTES = 4096
"""Longer entries are not searched for the tags, because their metadata are parsed faster."""


class TransactionId(NamedTuple):
    """A transaction's id in its cluster: the coordinator's number, and the transaction's number there."""

    most_bits: int
    least_bits: int

    def __str__(self) -> str:
        return f"({self.most_bits},{self.least_bits})"


class TransactionState(StrEnum):
    """Outcome of a transaction on a partition, as far as its entries show."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    OPEN = "open"
    UNKNOWN = "unknown"  # entries that may have the marker cannot be read


class Mention(NamedTuple):
    """A transaction's id in an entry: `ends` is None for a message, else the outcome in a marker."""

    transaction: TransactionId
    ends: TransactionState | None = None


class OpenTransaction(NamedTuple):
    """A transaction without an outcome, and its first message."""

    transaction: TransactionId
    position: Position


def mention_in(metadata: MessageMetadata) -> Mention | None:
    """Return the transaction in a producer's or marker's metadata."""
    if not (metadata.HasField("txnid_most_bits") and metadata.HasField("txnid_least_bits")):
        return None
    transaction = TransactionId(metadata.txnid_most_bits, metadata.txnid_least_bits)
    ends = {TXN_COMMIT: TransactionState.COMMITTED, TXN_ABORT: TransactionState.ABORTED}
    return Mention(transaction, ends.get(metadata.marker_type) if metadata.HasField("marker_type") else None)


def mention_of(payload: bytes) -> Mention | None:
    """Return the transaction in an entry; None for undecodable entries, never raises."""
    if len(payload) <= _SEARCHED_BYTES and _ID_TAG not in payload and _ID_TAG_LONG not in payload:
        return None
    try:
        payload = broker_entry.without_head(payload)
        begin = (_CHECKSUM_BYTES if payload.startswith(_CHECKSUM) else 0) + 4
        size = int.from_bytes(payload[begin - 4 : begin], "big")
        if not 0 < size <= len(payload) - begin:
            return None
        return mention_in(MessageMetadata.FromString(payload[begin : begin + size]))
    except (CorruptData, DecodeError):
        return None


class TransactionLog:
    """The transactions of a topic's entries, which are taken in order."""

    def __init__(self) -> None:
        self._open: OrderedDict[TransactionId, Position] = OrderedDict()
        self._aborted: OrderedDict[TransactionId, Position] = OrderedDict()
        self.forgotten: Position | None = None
        """The last marker that was forgotten: the state of messages before it is unknown."""

    def __len__(self) -> int:
        return len(self._open) + len(self._aborted)

    def take(self, position: Position, mention: Mention) -> None:
        """Take the transaction in the entry at `position`, which is behind all earlier ones."""
        transaction = mention.transaction
        if mention.ends is None:
            if transaction not in self._aborted:
                self._open.setdefault(transaction, position)
            return
        self._open.pop(transaction, None)
        if mention.ends is TransactionState.ABORTED:
            self._aborted[transaction] = position
            self._aborted.move_to_end(transaction)

    def first_open(self) -> OpenTransaction | None:
        """Return the open transaction that begins first; consumers receive nothing from its position on."""
        for transaction, position in self._open.items():
            return OpenTransaction(transaction, position)
        return None

    def state(self, position: Position, transaction: TransactionId) -> TransactionState:
        """Return the state of a message at `position`, which was taken before."""
        if transaction in self._aborted:
            return TransactionState.ABORTED
        opened = self._open.get(transaction)
        return TransactionState.OPEN if opened is not None and opened <= position else TransactionState.COMMITTED

    def forget(self, before: Position) -> None:
        """Forget aborts with markers before a position, except the newest; all earlier messages were delivered."""
        while len(self._aborted) > ENDED_MAX and next(iter(self._aborted.values())) < before:
            _, self.forgotten = self._aborted.popitem(last=False)

    def copy(self) -> "TransactionLog":
        """Return an independent copy."""
        other = TransactionLog()
        other._open, other._aborted, other.forgotten = self._open.copy(), self._aborted.copy(), self.forgotten
        return other
