"""BookKeeper's metadata of a ledger that never was in BookKeeper: one copy, no bookie."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offloaderd.errors import InvalidInput
from offloaderd.format.pb.bookkeeper.data_formats_pb2 import LedgerMetadataFormat

if TYPE_CHECKING:
    from offloaderd.model import LedgerInfo


def plain_metadata(info: LedgerInfo) -> bytes:
    """Return a closed ledger's LedgerMetadataFormat for the index of a V1 object.

    Raises InvalidInput for an open ledger.
    """
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
