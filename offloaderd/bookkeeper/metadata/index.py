"""A ledger's metadata as Pulsar puts it into the index of a V1 object: BookKeeper's own message, less what is secret.

Source: `OffloadIndexBlockImpl.buildLedgerMetadataFormat` (fields 1 to 7, 9, 10 and 11; never the password or cToken).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from offloaderd.bookkeeper.wire.entry import DigestType
from offloaderd.core.errors import InvalidInput
from offloaderd.format.pb.bookkeeper.data_formats_pb2 import LedgerMetadataFormat

if TYPE_CHECKING:
    from collections.abc import Iterable

    from offloaderd.bookkeeper.metadata.ledger import LedgerMetadata

_TABLE_MIN: Final = 16
_LOAD: Final = 0.75


def index_metadata(ledger: LedgerMetadata, *, node_created_ms: int) -> bytes:
    """Return the `metadata` of an index of a closed ledger, byte for byte as Pulsar's offloader writes it.

    A ledger whose metadata says no creation time has that of its node. Raises InvalidInput for a ledger that is not
    closed.
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
    size = _TABLE_MIN
    while len(given) > size * _LOAD:
        size *= 2
    return sorted(given, key=lambda key: _spread(key) & (size - 1))


def _spread(key: str) -> int:
    """Return `HashMap.hash` of a string: Java's own hash of its UTF-16 units, the upper half mixed into the lower."""
    value = 0
    units = key.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[at : at + 2], "big")) & 0xFFFFFFFF
    return value ^ value >> 16
