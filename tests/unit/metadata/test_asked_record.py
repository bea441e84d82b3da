"""The record of what was asked by hand: it comes back as it was written, and what is none is told."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.core.errors import CorruptData
from offloaderd.core.model import Position
from offloaderd.format.pb.storage import asked_pb2
from offloaderd.metadata.records import orders
from offloaderd.metadata.records.orders import WORDS_MAX, Asked
from tests.unit.metadata.strategies import NAME, TEXT, UINT64, positions

ASKED = st.builds(
    Asked,
    wanted=NAME,
    target=st.none() | positions,
    stood=st.none() | positions,
    asked_ms=UINT64,
    asked_by=TEXT,
    reason=TEXT,
)
GOLDEN = bytes.fromhex("0a0a65766572797468696e67100c18f303200b28e3023080d095ffbc313a0e697076343a312e322e332e343a35")
"""As version 0.1 writes it; added to, never edited."""


@given(ASKED)
def test_a_request_comes_back(value: Asked) -> None:
    """Written and read it is the same."""
    assert orders.decode_asked(orders.encode_asked(value), path="p") == value


def test_long_words_are_cut() -> None:
    """A node stays small, whatever somebody sends."""
    long = "x" * (WORDS_MAX + 1)
    value = Asked(wanted=long, target=None, stood=None, asked_ms=1, asked_by=long, reason=long)
    found = orders.decode_asked(orders.encode_asked(value), path="p")
    assert {len(found.wanted), len(found.asked_by), len(found.reason)} == {WORDS_MAX}


def test_the_bytes_stay_readable() -> None:
    """A record of the first version means what it meant."""
    value = Asked(
        wanted="everything",
        target=Position(12, 499),
        stood=Position(11, 355),
        asked_ms=1_700_000_000_000,
        asked_by="ipv4:1.2.3.4:5",
    )
    assert orders.encode_asked(value) == GOLDEN
    assert orders.decode_asked(GOLDEN, path="p") == value


@pytest.mark.parametrize(
    "record",
    [
        asked_pb2.AskedRecord(),
        asked_pb2.AskedRecord(wanted="everything", ledger_id=1),
        asked_pb2.AskedRecord(wanted="everything", stood_entry_id=1),
        asked_pb2.AskedRecord(wanted="everything", ledger_id=-1, entry_id=0),
        asked_pb2.AskedRecord(wanted="everything", stood_ledger_id=1, stood_entry_id=-1),
    ],
)
def test_what_cannot_be_a_request_is_told(record: asked_pb2.AskedRecord) -> None:
    """Half a position, one out of range, and nothing wanted."""
    with pytest.raises(CorruptData):
        orders.decode_asked(record.SerializeToString(), path="p")


@given(st.binary(max_size=40))
def test_any_bytes_are_a_record_or_corrupt(data: bytes) -> None:
    """Nothing else comes of them."""
    with suppress(CorruptData):
        assert orders.decode_asked(data, path="p").wanted
