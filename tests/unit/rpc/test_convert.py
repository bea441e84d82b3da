"""Conversions that are written by hand: what is framed without protobuf is what protobuf reads."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from offloaderd.model import ENTRY_ID_MAX, EntryBatch
from offloaderd.read.plan import Tier
from offloaderd.rpc.convert import TIERS, encoded_read_response, to_batch
from offloaderd.rpc.v1 import read_pb2

IDS = st.integers(0, ENTRY_ID_MAX)
PAYLOADS = st.lists(
    st.one_of(st.binary(max_size=200), st.sampled_from([0, 127, 128, 16_383, 16_384, 2_097_152]).map(bytes)), max_size=5
)


@given(ledger_id=IDS, first_entry_id=IDS, payloads=PAYLOADS, tier=st.sampled_from(list(Tier)))
def test_a_framed_answer_is_the_serialized_message(
    ledger_id: int, first_entry_id: int, payloads: list[bytes], tier: Tier
) -> None:
    """A read's answer is what protobuf writes, for lengths on both sides of every step of a varint."""
    batch = EntryBatch(ledger_id, first_entry_id, payloads)
    found = read_pb2.ReadResponse.FromString(encoded_read_response(batch, tier))
    assert found == read_pb2.ReadResponse(batch=to_batch(batch), tier=TIERS[tier])
