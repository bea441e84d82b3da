"""PIP-70 heads, and entries that have none."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from offloaderd.core.errors import InvalidInput
from offloaderd.format.pulsar.broker_entry import BrokerEntry, encode_head, read_head

UINT64 = st.none() | st.integers(0, 2**64 - 1)


@given(UINT64, UINT64, st.binary(max_size=20))
def test_round_trip(broker_timestamp: int | None, index: int | None, client: bytes) -> None:
    """What the broker noted is found, whatever the client's bytes are."""
    head = encode_head(broker_timestamp=broker_timestamp, index=index)
    assert read_head(head + client) == BrokerEntry(broker_timestamp, index)


@given(st.binary(max_size=40) | st.binary(max_size=40).map(b"\x0e\x02".__add__))
@example(b"")
@example(b"\x0e")
@example(b"\x0e\x02\0\0\0")
@example(b"\x0e\x02\0\0\0\0")
def test_any_payload_is_taken(payload: bytes) -> None:
    """Reading never fails, and finds nothing where the magic is missing."""
    found = read_head(payload)
    assert found is None or payload[:2] == b"\x0e\x02"


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x0e\x02",
        b"\x0e\x01\x01\x02\x03\x04\0\0\0\0",
        b"\x0e\x02\xff\xff\xff\xff\x08\x01",
        b"\x0e\x02\x7f\xff\xff\xff\x08\x01",
        b"\x0e\x02\0\0\0\x03\x08\x01",
        b"\x0e\x02\0\0\0\x02\x08\xff",
    ],
)
def test_what_is_no_head(payload: bytes) -> None:
    """Wrong magic, lengths beyond the entry, and no message are the client's own bytes."""
    assert read_head(payload) is None


@pytest.mark.parametrize("value", [-1, 2**64])
def test_numbers_outside_their_field_are_refused(value: int) -> None:
    """What is no uint64 raises InvalidInput."""
    with pytest.raises(InvalidInput):
        encode_head(index=value)
