"""Pulsar's list of the ledgers of a topic, as its broker keeps it in ZooKeeper. Pure parsing, nothing writes it.

Rules: ledgers follow each other by their ids, and the last one is being written, listed with its id alone. The list
is in any order: a broker that records an offload writes it from a hash table (tryTransformLedgerInfo). The fields of a
roll-over (entries, size, time) reach the node only with the next change of the list, and may be missing for a closed
ledger after a crash: a missing field proves nothing. BookKeeper's metadata decides about state, last entry and length;
this list about the topic's ledgers, and Pulsar's offloads.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final
from uuid import UUID

from offloaderd.core.errors import CorruptData
from offloaderd.core.model import DRIVER, LedgerOffload, Position
from offloaderd.core.names.managed_ledgers import ROOT
from offloaderd.format.parsing import parse_message
from offloaderd.format.pb.pulsar import ml_data_formats_pb2 as pb
from offloaderd.format.pulsar.compression import Compression, Undecodable, decompress

MAGIC = b"\x47\x78"
HEAD_BYTES = 6
CONTENT_BYTES_MAX = 64 * 1024 * 1024
"""A node has 1 MiB unless ZooKeeper is told otherwise; a list of ledgers shrinks to a tenth or so, not to a 64th."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarOffload:
    """A ledger's copy in tiered storage according to the list, by Pulsar itself or by a segment of PIP-76.

    `bookkeeper_deleted`: the broker deleted ledger and node from BookKeeper. `object_id` is of the attempt to write it
    as a whole (PIP-17), `driver` and `properties` name its place, `offloaded_ms` the time of completion.
    """

    complete: bool
    bookkeeper_deleted: bool
    segments: int
    object_id: UUID | None = None
    driver: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    offloaded_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedLedger:
    """One ledger of the list. A field that the list leaves out is None, which does not mean that the ledger is open.

    `size_bytes` counts payload; `closed_at_ms` is the broker's wall clock. `previous` is the ledger before it in the
    list, and so does not count in comparisons. `replaces`: it has all that is still valid of the ledgers before it.
    """

    ledger_id: int
    entries: int | None = None
    size_bytes: int | None = None
    closed_at_ms: int | None = None
    offload: PulsarOffload | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    previous: int | None = field(default=None, compare=False)
    replaces: bool = False

    @property
    def closed(self) -> bool:
        """Whether it is closed according to the list; if not, BookKeeper decides."""
        return self.closed_at_ms is not None

    @property
    def offloaded(self) -> LedgerOffload | None:
        """The whole ledger's copy that its broker has made; None while there is none, or a segment holds its part.

        What the broker has offloaded through our own driver is in our segments, and in no object of its own.
        """
        found = self.offload
        if found is None or not found.complete or found.object_id is None or found.segments or found.driver == DRIVER:
            return None
        return LedgerOffload(
            object_id=found.object_id,
            driver=found.driver,
            properties=found.properties,
            offloaded_ms=found.offloaded_ms,
            source_deleted=found.bookkeeper_deleted,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedLedger:
    """The ledgers of a topic in ascending order. `terminated_at`: nothing comes after this position, ever.

    `listing`: when its node was made (milliseconds), and the node's version.
    """

    ledgers: tuple[ListedLedger, ...] = ()
    terminated_at: Position | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    listing: tuple[int, int] | None = field(default=None, compare=False)


def decode(node: bytes, *, key: str, content_bytes_max: int = CONTENT_BYTES_MAX) -> ManagedLedger:
    """Read the node of a managed ledger; `key` is its path. An empty node is an empty list.

    Raises CorruptData, and InvalidConfig without the library for its compression.
    """
    data, at = content_of(node, key=key, content_bytes_max=content_bytes_max)
    message = parse_message(pb.ManagedLedgerInfo, data, key=key, at=at)
    infos = sorted(message.ledgerInfo, key=lambda info: info.ledgerId)
    for before, after in pairwise(infos):
        if after.ledgerId == before.ledgerId:
            raise CorruptData(key=key, offset=at, expected=f"a ledger id above {before.ledgerId}", found=after.ledgerId)
    previous = [None, *(info.ledgerId for info in infos)]
    ledgers = tuple(_ledger(info, one, key, at) for info, one in zip(infos, previous, strict=False))
    terminated = None
    if message.HasField("terminatedPosition"):
        where = message.terminatedPosition
        if where.ledgerId < -1 or where.entryId < -1:
            found = f"{where.ledgerId}:{where.entryId}"
            raise CorruptData(key=key, offset=at, expected="a terminated position of at least -1:-1", found=found)
        terminated = Position(where.ledgerId, where.entryId)
    return ManagedLedger(ledgers=ledgers, terminated_at=terminated, properties=_properties(message.properties))


def _ledger(info: pb.LedgerInfo, previous: int | None, key: str, at: int) -> ListedLedger:
    numbers = {"ledgerId": info.ledgerId, "entries": info.entries, "size": info.size, "timestamp": info.timestamp}
    for name, number in numbers.items():
        if number < 0:
            expected = f"{name} of ledger {info.ledgerId} to be 0 or more"
            raise CorruptData(key=key, offset=at, expected=expected, found=number)
    offload = None
    if info.HasField("offloadContext"):
        context = info.offloadContext
        offload = PulsarOffload(
            complete=context.complete,
            bookkeeper_deleted=context.bookkeeperDeleted,
            segments=len(context.offloadSegment),
            object_id=_uuid(context.uidMsb, context.uidLsb) if context.HasField("uidMsb") else None,
            driver=context.driverMetadata.name,
            properties=_properties(context.driverMetadata.properties),
            offloaded_ms=max(context.timestamp, 0),
        )
    return ListedLedger(
        ledger_id=info.ledgerId,
        entries=info.entries if info.HasField("entries") else None,
        size_bytes=info.size if info.HasField("size") else None,
        closed_at_ms=info.timestamp or None,
        offload=offload,
        properties=_properties(info.properties),
        previous=previous,
    )


def _uuid(msb: int, lsb: int) -> UUID:
    return UUID(bytes=msb.to_bytes(8, "big", signed=True) + lsb.to_bytes(8, "big", signed=True))


def _properties(pairs: Iterable[pb.KeyValue]) -> dict[str, str]:
    """Return properties as Pulsar does: of two with one key, the last."""
    return {pair.key: pair.value for pair in pairs}


def content_of(node: bytes, *, key: str, content_bytes_max: int = CONTENT_BYTES_MAX) -> tuple[bytes, int]:
    """Return the plain content of a node, and where in the node it begins, compressed or not. Raises CorruptData.

    | offset | size | field |
    |---|---|---|
    | 0 | 2 | magic `47 78`; without it the whole node is the content |
    | 2 | 4 | n, int32 big-endian |
    | 6 | n | ManagedLedgerInfoMetadata: type of compression, bytes of the content |
    | 6+n | rest | content, compressed |

    Memory is limited to the size in the head, and to `content_bytes_max`; the content must have the declared size.
    """
    if not node.startswith(MAGIC):
        return node, 0
    size = int.from_bytes(node[2:HEAD_BYTES], "big", signed=True)
    body_at = HEAD_BYTES + size
    if len(node) < HEAD_BYTES or size < 0 or body_at > len(node):
        room = max(0, len(node) - HEAD_BYTES)
        raise CorruptData(key=key, offset=2, expected=f"a head of at most {room} bytes", found=size)
    head = parse_message(pb.ManagedLedgerInfoMetadata, node[HEAD_BYTES:body_at], key=key, at=HEAD_BYTES)
    declared = head.uncompressedSize
    if not 0 <= declared <= content_bytes_max:
        expected = f"a content of at most {content_bytes_max} bytes"
        raise CorruptData(key=key, offset=HEAD_BYTES, expected=expected, found=declared)
    try:
        data = decompress(Compression(head.compressionType), node[body_at:], declared)
    except Undecodable as error:
        name = pb.CompressionType.Name(head.compressionType)
        expected = f"{declared} bytes compressed by {name}"
        raise CorruptData(key=key, offset=body_at, expected=expected, found=error) from None
    return data, body_at


FLAG: Final = "/pulsar/migration-coordinator/migration"
_HERE: Final = {"NOT_STARTED", "FAILED"}
"""Phases in which the cluster's metadata is in its old place."""


def flag_path(managed_ledgers_root: str) -> str:
    """Return the path of the flag, beside the topics: a cluster may have a path of its own."""
    return managed_ledgers_root.rstrip("/").removesuffix(ROOT) + FLAG


def moved_reason(flag: bytes, *, path: str) -> str | None:
    """Return why lists of ledgers under the flag are not valid; None where they are.

    With this flag a cluster moves its metadata to another store (PIP-454): JSON with a phase (`MigrationPhase`) and the
    URL of the new store. From PREPARATION on brokers write no metadata here, and from COMPLETED on never again: lists
    of ledgers do not change. After FAILED they write as before. A flag that cannot be read counts as a move.
    """
    try:
        found = json.loads(flag)
        phase, target = str(found["phase"]), str(found.get("targetUrl") or "another store")
    except (ValueError, TypeError, KeyError, AttributeError):
        return f"the node {path} says that the cluster moves its metadata, in a way that this release cannot read"
    if phase in _HERE:
        return None
    if phase == "COMPLETED":
        return f"the cluster has moved its metadata to {target}: its lists of ledgers here are out of date ({path})"
    return f"the cluster is moving its metadata to {target} and writes none meanwhile ({path}: {phase})"
