"""Lists, ledgers and bookies as brokers of every supported version of Pulsar write them."""

from __future__ import annotations

import pytest

from offloaderd.bookkeeper.metadata import HEAD, BookieAddress, LedgerState, decode_ledger, resolve_address
from offloaderd.bookkeeper.wire.entry import DigestType
from offloaderd.format.pb.bookkeeper.data_formats_pb2 import LedgerMetadataFormat
from offloaderd.format.pb.bookkeeper.registration_pb2 import BookieServiceInfo
from offloaderd.format.pb.pulsar.ml_data_formats_pb2 import ManagedLedgerInfo
from offloaderd.ledgers.pulsar.managed_ledger import decode
from tests.golden.brokers import VERSIONS, Nodes

LENGTH_BYTES = 2
"""Of the varint before these messages."""
CUSTOM = {
    "application": b"pulsar",
    "component": b"managed-ledger",
    "pulsar/managed-ledger": b"public/default/persistent/golden",
}


@pytest.mark.parametrize("nodes", VERSIONS.values(), ids=VERSIONS)
def test_what_a_broker_writes_is_read(nodes: Nodes) -> None:
    """The list of a topic, a closed ledger of five entries, an open one, and where a bookie is."""
    listed = decode(nodes.listed, key="list")
    assert [(one.ledger_id, one.closed, one.entries) for one in listed.ledgers] == [
        (nodes.closed_id, True, 5),
        (nodes.open_id, False, None),
    ]
    assert listed.properties == {"index": "4"}
    closed = decode_ledger(nodes.closed, path="closed")
    assert (closed.state, closed.last_entry_id, closed.length_bytes) == (
        LedgerState.CLOSED,
        4,
        listed.ledgers[0].size_bytes,
    )
    opened = decode_ledger(nodes.opened, path="open")
    assert (opened.state, opened.last_entry_id) == (LedgerState.OPEN, None)
    for ledger in (closed, opened):
        assert (ledger.digest_type, ledger.password, ledger.custom) == (DigestType.CRC32C, b"", CUSTOM)
    assert resolve_address(nodes.bookie_id, nodes.bookie) == BookieAddress("127.0.0.1", nodes.bookie_port)


@pytest.mark.parametrize("nodes", VERSIONS.values(), ids=VERSIONS)
def test_a_broker_writes_no_field_that_we_do_not_know(nodes: Nodes) -> None:
    """What we leave out of a list or ledger would be lost if it were written again, of a bookie it would be unread."""
    skipped = len(HEAD) + len(b"3\n") + LENGTH_BYTES
    for kind, node in (
        (LedgerMetadataFormat, nodes.closed[skipped:]),
        (LedgerMetadataFormat, nodes.opened[skipped:]),
        (ManagedLedgerInfo, nodes.listed),
        (BookieServiceInfo, nodes.bookie),
    ):
        message = kind.FromString(node)
        message.DiscardUnknownFields()
        assert message.ByteSize() == len(node)
