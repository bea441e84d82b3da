"""What a read gives: entries taken apart and checked, however the daemon sent them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from offloaderd.protocol.conversion import decoded_read_response

if TYPE_CHECKING:
    from offloaderd.core.model import EntryBatch
    from offloaderd.protocol.v1 import common_pb2


class ReadAnswer(NamedTuple):
    """Consecutive entries of one ledger, and the tier that served them."""

    batch: EntryBatch
    tier: common_pb2.Tier.ValueType


def read_answer(message: bytes, address: str) -> ReadAnswer:
    """Return what a serialized ReadResponse of the daemon at `address` says. Raises CorruptData."""
    return ReadAnswer(*decoded_read_response(message, where=f"an answer of {address}"))
