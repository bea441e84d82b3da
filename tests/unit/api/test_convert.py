"""Conversions: messages filled from values, and answers that are framed without protobuf, which it can read."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.core.entries import FramedEntries, frame
from offloaderd.core.errors import CorruptData
from offloaderd.core.model import ENTRY_ID_MAX, EntryBatch, Loss, Position, TopicName
from offloaderd.core.read_options import Tier
from offloaderd.format.parsing import filled
from offloaderd.metadata.records.grant import Grant
from offloaderd.protocol.conversion import TIERS, decoded_read_response, encoded_read_response, to_batch
from offloaderd.protocol.v1 import (
    admin_pb2,
    common_pb2,
    inspect_pb2,
    placement_pb2,
    read_pb2,
    retention_pb2,
    upkeep_pb2,
)
from offloaderd.upkeep.flaws import Flaw, Kind
from offloaderd.upkeep.gc.findings import Summary
from offloaderd.upkeep.retention import LedgerRow
from offloaderd.upkeep.verify.cluster import Between

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


ROW = LedgerRow(
    ledger_id=3,
    state="closed",
    entries=0,
    offloaded_entries=0,
    payload_bytes=7,
    segments=2,
    at_source=None,
    deleted_ms=0,
    grant=Grant(ledger_id=3, verified_ms=5, daemon_id="d"),
)


def test_a_message_has_the_attributes_of_a_value() -> None:
    """Those of the same names, the value in it as well; None is unset, and a 0 of what may be unset is there."""
    found = filled(retention_pb2.Ledger, ROW)
    grant = retention_pb2.Grant(verified_ms=5, daemon_id="d")
    assert found == retention_pb2.Ledger(
        ledger_id=3, state="closed", entries=0, payload_bytes=7, segments=2, grant=grant
    )
    assert found.HasField("entries")
    summary = filled(upkeep_pb2.GcSummary, Summary(applied=True, grace_s=1.5, finds=Counter(orphan=2)))
    assert summary == upkeep_pb2.GcSummary(applied=True, grace_s=1.5, finds={"orphan": 2})


def test_what_is_said_beside_a_value_holds() -> None:
    """Positions become messages, each of several as well, ids and topics text; None hides what the value has."""
    lost = filled(admin_pb2.LostRange, Loss(Position(1, 2), Position(3, 0), 4), after=None)
    assert lost == admin_pb2.LostRange(before=common_pb2.Position(ledger_id=3), entries=4)
    segment_id, topic = UUID(int=7), TopicName.parse("orders")
    one = Between(segments=1, read_bytes=2, flaws=[Flaw(kind=Kind.SIZE, key="k", segment_id=segment_id)])
    (flaw,) = filled(inspect_pb2.VerifyEvent.Between, one, read_bytes=3).flaws
    assert (flaw.kind, flaw.segment_id, flaw.HasField("offset")) == ("size", str(segment_id), False)
    assert filled(placement_pb2.Move, topic=topic, to="b").topic == str(topic)


def test_no_field_is_forgotten() -> None:
    """A field that neither the value nor the caller has is an error, and so is one that the message has not."""
    with pytest.raises(AttributeError, match="grant"):
        filled(retention_pb2.RevokeGrantResponse, ROW.grant)
    with pytest.raises(ValueError, match="granted"):
        filled(retention_pb2.RevokeGrantResponse, ROW, granted=None)
