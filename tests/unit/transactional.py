"""Entries of transactions, as clients and brokers write them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.unit.format.test_pulsar_message import entry

if TYPE_CHECKING:
    from offloaderd.format.transactions import TransactionId


def sent(transaction: TransactionId, content: bytes = b"in it", **fields: Any) -> bytes:  # noqa: ANN401 - what protobuf takes
    """Return a message in a transaction."""
    return entry(content, **_ids(transaction), **fields)


def commit(transaction: TransactionId) -> bytes:
    """Return the marker that commits."""
    return entry(b"", marker_type=21, **_ids(transaction))


def abort(transaction: TransactionId) -> bytes:
    """Return the marker that aborts."""
    return entry(b"", marker_type=22, **_ids(transaction))


def _ids(transaction: TransactionId) -> dict[str, Any]:
    return {"txnid_most_bits": transaction.most_bits, "txnid_least_bits": transaction.least_bits}
