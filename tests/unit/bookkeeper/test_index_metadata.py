"""What the index of a V1 object says of its ledger is what Pulsar's offloader makes of BookKeeper's metadata."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest

from offloaderd.bookkeeper.metadata import Ensemble, LedgerMetadata, LedgerState, hash_map_order, index_metadata
from offloaderd.bookkeeper.wire.entry import DigestType
from offloaderd.core.errors import InvalidInput
from offloaderd.format.pb.bookkeeper.data_formats_pb2 import LedgerMetadataFormat
from offloaderd.format.v1 import decode_index
from tests.golden.test_worked_examples import golden

CLOSED = LedgerMetadata(
    format_version=3,
    state=LedgerState.CLOSED,
    ensemble_size=1,
    write_quorum=1,
    ack_quorum=1,
    ensembles=(Ensemble(0, ("127.0.0.1:3181",)),),
    last_entry_id=4,
    length_bytes=36,
    digest_type=DigestType.CRC32C,
    password=b"secret",
    ctime_ms=1_700_000_000_000,
    custom=MappingProxyType({"application": b"pulsar"}),
)


def test_bytes_of_pulsar() -> None:
    """The ledger of the worked example gives the bytes that Pulsar's classes wrote; the password is not in them."""
    wanted = decode_index(golden("v1-index"), key="index").metadata
    assert index_metadata(CLOSED, node_created_ms=5) == wanted
    assert b"secret" not in wanted


def test_what_the_metadata_leaves_out() -> None:
    """The node's own time stands in for the ledger's, CRC32 for a digest that version 1 does not store."""
    made = index_metadata(replace(CLOSED, ctime_ms=None, digest_type=None), node_created_ms=77)
    found = LedgerMetadataFormat.FromString(made)
    assert (found.ctime, found.digestType) == (77, LedgerMetadataFormat.CRC32)


def test_open_ledger() -> None:
    """It has no end to be written down."""
    with pytest.raises(InvalidInput, match="closed"):
        index_metadata(replace(CLOSED, last_entry_id=None, length_bytes=None), node_created_ms=5)


def test_order_of_a_java_hash_map() -> None:
    """Known orders: small tables, one just before and one after it has grown, and letters beyond one unit of UTF-16."""
    assert hash_map_order(["application", "component", "pulsar/managed-ledger"]) == ORDER
    assert hash_map_order(["b", "a", "Aa", "BB"]) == ["Aa", "BB", "a", "b"], "Aa and BB have the same hash"
    full = hash_map_order([f"{number}" for number in range(12)])
    assert full == ["0", "11", *(f"{number}" for number in range(1, 11))], "a table of 16 buckets, as full as it gets"
    grown = hash_map_order([f"{number}" for number in range(13)])
    assert grown == ["11", "12", *(f"{number}" for number in range(11))], "a table of 32 buckets"
    assert hash_map_order(["\U0001f600"]) == ["\U0001f600"]


ORDER = ["component", "pulsar/managed-ledger", "application"]
"""As seen in an index that Pulsar 4.0.8 wrote."""
