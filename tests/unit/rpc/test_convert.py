"""Conversions that are written by hand: what is framed without protobuf is what protobuf reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.errors import CorruptData
from offloaderd.format.entries import frame
from offloaderd.format.frames import FramedEntries
from offloaderd.model import ENTRY_ID_MAX, EntryBatch
from offloaderd.read.plan import Tier
from offloaderd.rpc.convert import TIERS, decoded_read_response, encoded_read_response, to_batch
from offloaderd.rpc.v1 import common_pb2, read_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

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
    assert decoded_read_response(found.SerializeToString(), where="here") == (batch, TIERS[tier])


@given(
    ledger_id=IDS,
    first_entry_id=st.integers(0, ENTRY_ID_MAX - 10),
    payloads=PAYLOADS.filter(bool),
    tier=st.sampled_from(list(Tier)),
)
def test_frames_go_there_and_back(ledger_id: int, first_entry_id: int, payloads: list[bytes], tier: Tier) -> None:
    """The message is what protobuf reads, and gives the same entries wherever the frames stand in it."""
    frames = b"".join(frame(first_entry_id, payloads))
    data = b"head" + frames + b"tail"
    batch = FramedEntries(ledger_id, first_entry_id, len(payloads), data, 4, 4 + len(frames), "k", 0)
    sent = encoded_read_response(batch, tier)
    message = read_pb2.ReadResponse.FromString(sent)
    ids = common_pb2.EntryBatch(ledger_id=ledger_id, first_entry_id=first_entry_id)
    assert message == read_pb2.ReadResponse(batch=ids, tier=TIERS[tier], entries=len(payloads), frames=frames)
    expected = (EntryBatch(ledger_id, first_entry_id, payloads), TIERS[tier])
    later = b"\x99\x06" + bytes(8) + b"\x9d\x06" + bytes(4) + b"\xa2\x06\x03abc" + b"\x98\x06\x80\x01"  # fields 99, 100
    for one in (sent, message.SerializeToString(), sent + later, later + sent):
        assert decoded_read_response(one, where="here") == expected


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1],
        lambda data: data[:5],
        lambda data: data[:2],
        lambda data: data + b"\x00",
        lambda data: data.replace(b"\x18\x02", b"\x18\x03"),
        lambda data: data.replace(b"\x18\x02", b""),
        lambda data: data[:-20],
    ],
)
def test_what_is_no_answer_is_told(change: Callable[[bytes], bytes]) -> None:
    """Cut or changed bytes are corrupt data, and name who sent them; nothing of them is handed out."""
    frames = b"".join(frame(5, [b"one", b"two"]))
    sent = encoded_read_response(FramedEntries(7, 5, 2, frames, 0, len(frames), "k", 0), Tier.OBJECTS)
    with pytest.raises(CorruptData, match="the daemon"):
        decoded_read_response(change(sent), where="the daemon")
