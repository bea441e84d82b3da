"""BookKeeper's nodes in ZooKeeper: paths of ledgers, addresses of bookies, and the metadata of a ledger.

Pulsar's own metadata driver neither writes nor reads LAYOUT: a missing one means hierarchical. Ids of bookies are
opaque since BookKeeper 4.12; older ones, and those of bookies that publish nothing, are host:port. An address may
change under the same id, so resolve it again on every reconnect.

The metadata of a ledger is small (ZooKeeper caps it) and not trusted: all numbers are checked once, here. Unless a
ledger is closed, its last entry and length mean nothing, so they are None. A cached value becomes stale:
re-replication swaps members even of closed ledgers. Never write one back. WIRE.md, sections 7 to 9.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from operator import lt
from sys import intern
from types import MappingProxyType
from typing import Final

from google.protobuf import text_format
from google.protobuf.unknown_fields import UnknownFieldSet

from offloaderd.bookkeeper.wire.entry import DigestType
from offloaderd.core.errors import CorruptData, InvalidConfig, InvalidInput, NotFound
from offloaderd.core.model import LEDGER_ID_MAX
from offloaderd.format.parsing import parse_message
from offloaderd.format.pb.bookkeeper.data_formats_pb2 import LedgerMetadataFormat
from offloaderd.format.pb.bookkeeper.registration_pb2 import BookieServiceInfo

ROOT_DEFAULT: Final = "/ledgers"
SHORT_ID_END: Final = 2**31 - 1
"""Below it, the hierarchical layout uses the short path, from it on the long one."""

_FACTORY = re.compile(r"([\w.$]+):([0-9]{1,9})")


class Layout(StrEnum):
    """The layout of ledgers' paths; the values are the factories' class names without package and ending."""

    HIERARCHICAL = "Hierarchical"
    LEGACY_HIERARCHICAL = "LegacyHierarchical"
    LONG_HIERARCHICAL = "LongHierarchical"
    FLAT = "Flat"

    def path(self, root: str, ledger_id: int) -> str:
        """Return the path of a ledger's node; raises InvalidInput for an id that this layout cannot hold."""
        if not 0 <= ledger_id <= LEDGER_ID_MAX:
            raise InvalidInput(f"ledger id {ledger_id} is out of range")
        cuts: tuple[int, ...]
        if self is Layout.LONG_HIERARCHICAL or (self is Layout.HIERARCHICAL and ledger_id >= SHORT_ID_END):
            digits, cuts = f"{ledger_id:019}", (3, 7, 11, 15)
        elif ledger_id > 9_999_999_999:
            raise InvalidInput(f"ledger id {ledger_id} has more digits than the {self} layout")
        else:
            digits, cuts = f"{ledger_id:010}", () if self is Layout.FLAT else (2, 6)
        parts = [digits[low:high] for low, high in zip((0, *cuts), (*cuts, None), strict=True)]
        parts[-1] = "L" + parts[-1]
        return "/".join((root.rstrip("/"), *parts))


def decode_layout(content: bytes | None, *, path: str) -> Layout:
    """Return the layout that the LAYOUT node names, hierarchical without one.

    Raises CorruptData for what is no layout, InvalidConfig for one whose ledgers are not in ZooKeeper.
    """
    if content is None:
        return Layout.HIERARCHICAL
    version, newline, rest = content.rstrip(b"\n").partition(b"\n")
    named = _FACTORY.fullmatch(rest.decode("ascii", errors="replace"))
    if version != b"2" or not newline or named is None:
        raise CorruptData(key=path, offset=0, expected="2, a line end and FACTORY:VERSION", found=content[:200])
    name = named[1].rpartition(".")[2].removesuffix("LedgerManagerFactory")
    if name == "Pulsar":
        return Layout.HIERARCHICAL
    try:
        return Layout(name)
    except ValueError:
        raise InvalidConfig(
            f"{path} names the ledger manager {named[1]}, whose ledgers cannot be found in ZooKeeper",
            hint=f"offloaderd reads the layouts {', '.join(Layout)}",
        ) from None


def layout_path(root: str) -> str:
    """Return the path of the node that names the layout."""
    return f"{root.rstrip('/')}/LAYOUT"


def instance_path(root: str) -> str:
    """Return the path of the node with the id of this BookKeeper, which changes when it is initialised again."""
    return f"{root.rstrip('/')}/INSTANCEID"


def registration_paths(root: str, bookie_id: str) -> tuple[str, str]:
    """Return the paths of a writable and of a read-only bookie, which serves reads as well; raises InvalidInput.

    The id must have passed `registration.is_bookie_id`.
    """
    if "/" in bookie_id or not bookie_id:
        raise InvalidInput(f"{bookie_id!r} is no bookie id")
    available = f"{root.rstrip('/')}/available"
    return f"{available}/{bookie_id}", f"{available}/readonly/{bookie_id}"


RPC_PROTOCOL: Final = "bookie-rpc"
READONLY: Final = "readonly"
"""A child of `available` that is no bookie but the folder of the read-only ones."""

_ID = re.compile(r"[!-.0-~]+")
_HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+(?:%[\w.-]+)?")
_PORT = re.compile(r"[0-9]{1,5}")


@dataclass(frozen=True, slots=True)
class BookieAddress:
    """The address of a bookie; `tls`: it offers START_TLS there, and may or may not require it."""

    host: str
    port: int
    tls: bool = False

    def __str__(self) -> str:
        """`host:port`, with brackets round an IPv6 host."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def is_bookie_id(text: str) -> bool:
    """Whether this may be a bookie's id, and so part of a path: printable ASCII without a slash.

    A little more than BookKeeper documents, since our rule must not make a ledger unreadable.
    """
    reserved = text.lower() == READONLY or text in {".", ".."}
    return len(text) <= 255 and _ID.fullmatch(text) is not None and not reserved


def parse_legacy_id(bookie_id: str) -> BookieAddress | None:
    """Return the address in an id of the old kind; None if it is opaque. The port is at the right end."""
    host, _, port = bookie_id.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not _HOST.fullmatch(host) or not _PORT.fullmatch(port) or not 0 < int(port) < 65536:
        return None
    return BookieAddress(host, int(port))


def resolve_address(bookie_id: str, content: bytes | None, *, path: str = "") -> BookieAddress:
    """Return the address of a bookie, from its registration node, or (None, or an empty node) from an old id.

    Raises NotFound without any address, CorruptData for an invalid node or address. `path` is for the error.
    """
    where = path or f"the registration of bookie {bookie_id}"
    if content:
        message = parse_message(BookieServiceInfo, content, key=where, at=0)
        found = next((end for end in message.endpoints if end.protocol == RPC_PROTOCOL), None)
        if found is None:
            raise NotFound(f"bookie {bookie_id} publishes no endpoint of protocol {RPC_PROTOCOL} in {where}")
        host = found.host.removeprefix("[").removesuffix("]")
        if not _HOST.fullmatch(host) or not 0 < found.port < 65536:
            raise CorruptData(key=where, offset=0, expected="a host and a port", found=f"{found.host!r}, {found.port}")
        return BookieAddress(host, found.port, "tls" in found.extensions)
    address = parse_legacy_id(bookie_id)
    if address is None:
        raise NotFound(
            f"bookie {bookie_id} is not registered, and its id is no address",
            hint="start the bookie, or replace it with `bookkeeper shell recover`",
        )
    return address


HEAD: Final = b"BookieMetadataFormatVersion\t"
_DIGEST_FIELD: Final = 7


class LedgerState(Enum):
    """Whether a ledger may still grow; the values are BookKeeper's."""

    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


@dataclass(frozen=True, slots=True)
class Ensemble:
    """The bookies that hold the entries from `first_entry_id` on, up to the next ensemble."""

    first_entry_id: int
    bookies: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerMetadata:
    """One ledger's znode as a value; the password is kept out of logs.

    `last_entry_id` (-1: none) and `length_bytes` are None unless it is closed. `digest_type` is None in version 1,
    `ctime_ms` where the writer left it out, as most do; the directory then uses the znode's.
    """

    format_version: int
    state: LedgerState
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    ensembles: tuple[Ensemble, ...]
    last_entry_id: int | None = None
    length_bytes: int | None = None
    digest_type: DigestType | None = None
    password: bytes = field(default=b"", repr=False)
    ctime_ms: int | None = None
    custom: Mapping[str, bytes] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def closed(self) -> bool:
        """Whether the last entry is final and known."""
        return self.state is LedgerState.CLOSED

    @property
    def striped(self) -> bool:
        """Whether each entry is on some bookies of the ensemble only: a batch read from one bookie gets few entries."""
        return self.ensemble_size > self.write_quorum

    @property
    def confirmed_at_least(self) -> int:
        """The last entry that the metadata alone proves confirmed; -1: none. A new ensemble begins above the LAC."""
        return self.ensembles[-1].first_entry_id - 1 if self.last_entry_id is None else self.last_entry_id

    def ensemble_for(self, entry_id: int) -> Ensemble:
        """Return the ensemble that holds an entry; raises InvalidInput below the first one."""
        index = bisect_right(self.ensembles, entry_id, key=lambda ensemble: ensemble.first_entry_id) - 1
        if index < 0 or entry_id < 0:
            raise InvalidInput(f"no ensemble holds entry {entry_id}: they begin at {self.ensembles[0].first_entry_id}")
        return self.ensembles[index]

    def last_entry_of(self, ensemble: Ensemble) -> int | None:
        """Return the last entry that an ensemble can hold; None for the last ensemble of a ledger that is not closed.

        Raises InvalidInput for an ensemble of another ledger.
        """
        if ensemble not in self.ensembles:
            raise InvalidInput(f"{ensemble} is not of this ledger")
        index = self.ensembles.index(ensemble) + 1
        return self.ensembles[index].first_entry_id - 1 if index < len(self.ensembles) else self.last_entry_id

    def replicas(self, entry_id: int) -> tuple[str, ...]:
        """Return the bookies that an entry was written to, the primary first; `ack_quorum` are sure to hold it."""
        bookies = self.ensemble_for(entry_id).bookies
        return tuple(bookies[(entry_id + k) % self.ensemble_size] for k in range(self.write_quorum))


def decode_ledger(content: bytes, *, path: str) -> LedgerMetadata:
    """Return the metadata in a ledger's znode; `path` is for the error. Raises CorruptData."""
    end = content.find(b"\n", 0, len(HEAD) + 12)
    digits = content[len(HEAD) : end]
    if not content.startswith(HEAD) or end < 0 or not digits.isdigit():
        raise CorruptData(key=path, offset=0, expected="a line with a metadata version", found=content[:40])
    match int(digits):
        case 1:
            message = parse_version_1(content[end + 1 :], key=path, at=end + 1)
        case 2:
            message = parse_version_2(content[end + 1 :], key=path, at=end + 1)
        case 3:
            start, length = _varint(content, end + 1, path)
            message = parse_message(LedgerMetadataFormat, content[start : start + length], key=path, at=start)
        case version:
            hint = "written by a newer BookKeeper than this version knows"
            raise CorruptData(key=path, offset=len(HEAD), expected="version 1, 2 or 3", found=version, hint=hint)
    return _checked(message, int(digits), path)


def _varint(content: bytes, at: int, path: str) -> tuple[int, int]:
    """Return start and length of the message; raises CorruptData for a length beyond the content."""
    length = 0
    for index, byte in enumerate(content[at : at + 5]):
        length |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            start = at + index + 1
            if length > len(content) - start:
                expected = f"a message of at most {len(content) - start} bytes"
                raise CorruptData(key=path, offset=at, expected=expected, found=length)
            return start, length
    raise CorruptData(key=path, offset=at, expected="the length of a message", found=content[at : at + 5].hex())


def _checked(message: LedgerMetadataFormat, version: int, path: str) -> LedgerMetadata:
    """Return the message as a value after checking all that readers rely on."""

    def need(holds: bool, expected: str, found: object) -> None:
        if not holds:
            raise CorruptData(key=path, offset=0, expected=expected, found=found)

    size, write = message.ensembleSize, message.quorumSize
    ack = message.ackQuorumSize if message.HasField("ackQuorumSize") else write
    quorums = f"{size}, {write}, {ack}"
    need(size >= write >= ack >= 0 and write >= 1, "ensemble size >= write quorum >= ack quorum", quorums)
    ensembles = tuple(Ensemble(part.firstEntryId, tuple(map(intern, part.ensembleMember))) for part in message.segment)
    need(bool(ensembles), "an ensemble", "none")
    firsts = [ensemble.first_entry_id for ensemble in ensembles]
    need(firsts[0] >= 0 and all(map(lt, firsts, firsts[1:])), "ascending", firsts)
    for ensemble in ensembles:
        need(len(ensemble.bookies) == size, f"{size} bookies in each ensemble", len(ensemble.bookies))
        need(all(map(is_bookie_id, ensemble.bookies)), "bookie ids", ensemble.bookies)
    state = LedgerState(message.state)
    closed = state is LedgerState.CLOSED
    if closed:
        need(message.HasField("lastEntryId") and message.lastEntryId >= -1, "a last entry", message.lastEntryId)
        need(message.length >= 0, "a length that is not negative", message.length)
    if not message.HasField("digestType"):
        unknown = UnknownFieldSet(message)
        foreign = any(unknown[index].field_number == _DIGEST_FIELD for index in range(len(unknown)))
        need(not foreign, "a digest type from 1 to 4", "another one")
    return LedgerMetadata(
        format_version=version,
        state=state,
        ensemble_size=size,
        write_quorum=write,
        ack_quorum=ack,
        ensembles=ensembles,
        last_entry_id=message.lastEntryId if closed else None,
        length_bytes=message.length if closed else None,
        digest_type=DigestType(message.digestType) if message.HasField("digestType") else None,
        password=message.password,
        ctime_ms=message.ctime if message.HasField("ctime") else None,
        custom=MappingProxyType({intern(pair.key): pair.value for pair in message.customMetadata}),
    )


CLOSED: Final = "CLOSED"
IN_RECOVERY_ENTRY: Final = -102
"""In place of the last entry: the ledger is in recovery."""

_NUMBER = re.compile(r"-?[0-9]{1,19}")


def parse_version_2(text: bytes, *, key: str, at: int) -> LedgerMetadataFormat:
    """Read protobuf's text format; unknown fields are ignored. Raises CorruptData."""
    message = LedgerMetadataFormat()
    try:
        text_format.Parse(text.decode("utf-8"), message, allow_unknown_field=True)
        data = message.SerializePartialToString()
    except (text_format.ParseError, ValueError, RecursionError) as error:
        raise CorruptData(key=key, offset=at, expected="ledger metadata as text", found=error) from None
    return parse_message(LedgerMetadataFormat, data, key=key, at=at)


def parse_version_1(text: bytes, *, key: str, at: int) -> LedgerMetadataFormat:
    """Read version 1, without an ack quorum (all have to answer), digest type and password. Raises CorruptData.

    Its lines are write quorum, ensemble size, length, one for each ensemble, and CLOSED unless the ledger is open.
    """
    try:
        lines = text.decode("ascii").rstrip("\n").split("\n")
    except UnicodeDecodeError as error:
        raise CorruptData(key=key, offset=at + error.start, expected="ASCII text", found=error.reason) from None

    def number(word: str) -> int:
        if not _NUMBER.fullmatch(word) or not -(2**63) <= int(word) < 2**63:
            raise CorruptData(key=key, offset=at, expected="a number", found=repr(word[:40]))
        return int(word)

    if len(lines) < 4:
        raise CorruptData(key=key, offset=at, expected="two quorum sizes, a length and an ensemble", found=lines)
    message = LedgerMetadataFormat(length=number(lines[2]), state=LedgerMetadataFormat.OPEN)
    try:
        message.quorumSize, message.ensembleSize = number(lines[0]), number(lines[1])
    except ValueError as error:
        raise CorruptData(key=key, offset=at, expected="sizes of quorum and ensemble", found=error) from None
    for line in lines[3:]:
        first, *bookies = line.split("\t")
        if bookies == [CLOSED]:
            if number(first) == IN_RECOVERY_ENTRY:
                message.state = LedgerMetadataFormat.IN_RECOVERY
            else:
                message.state, message.lastEntryId = LedgerMetadataFormat.CLOSED, number(first)
            break
        message.segment.add(firstEntryId=number(first), ensembleMember=bookies)
    return message


def index_metadata(ledger: LedgerMetadata, *, node_created_ms: int) -> bytes:
    """Return the `metadata` of an index of a closed ledger, byte for byte as Pulsar's offloader writes it.

    Source: `OffloadIndexBlockImpl.buildLedgerMetadataFormat` (fields 1 to 7, 9, 10 and 11; never the password or
    cToken). A ledger whose metadata says no creation time has that of its node. Raises InvalidInput for a ledger that
    is not closed.
    """
    if ledger.last_entry_id is None or ledger.length_bytes is None:
        raise InvalidInput("only a closed ledger has an index of its own", hint="wait until its writer closes it")
    digest = ledger.digest_type or DigestType.CRC32
    message = LedgerMetadataFormat(
        quorumSize=ledger.write_quorum,
        ensembleSize=ledger.ensemble_size,
        ackQuorumSize=ledger.ack_quorum,
        length=ledger.length_bytes,
        lastEntryId=ledger.last_entry_id,
        state=LedgerMetadataFormat.CLOSED,
        digestType=LedgerMetadataFormat.DigestType.ValueType(digest),
        ctime=node_created_ms if ledger.ctime_ms is None else ledger.ctime_ms,
    )
    for ensemble in ledger.ensembles:
        message.segment.add(firstEntryId=ensemble.first_entry_id, ensembleMember=ensemble.bookies)
    for key in hash_map_order(ledger.custom):
        message.customMetadata.add(key=key, value=ledger.custom[key])
    return message.SerializeToString(deterministic=True)


def hash_map_order(keys: Iterable[str]) -> list[str]:
    """Return keys in the order of a Java `HashMap`, in which BookKeeper's client keeps the custom metadata.

    Keys of one bucket stay in the order given (Java makes a tree of a bucket only from eight on).
    """
    given = list(keys)
    size = 16
    while len(given) > 0.75 * size:
        size *= 2
    return sorted(given, key=lambda key: _spread(key) & (size - 1))


def _spread(key: str) -> int:
    """Return `HashMap.hash` of a string: Java's own hash of its UTF-16 units, the upper half mixed into the lower."""
    value = 0
    units = key.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[at : at + 2], "big")) & 0xFFFFFFFF
    return value ^ value >> 16
