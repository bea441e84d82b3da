"""OffloadContext: Pulsar's field numbers, signed uuid halves, derivable begins, foreign fields."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.core.errors import CorruptData
from offloaderd.format.pb.pulsar.ml_data_formats_pb2 import OffloadContext, OffloadDriverMetadata, OffloadSegment
from offloaderd.metadata.records import context
from offloaderd.metadata.records.context import LedgerContext, LedgerSegment
from tests.unit.metadata.strategies import ledger_contexts

PATH = "/topics/t/n/persistent/x/ledgers/7"
FIRST = UUID("11223344-5566-7788-99aa-bbccddeeff00")
SECOND = UUID("f1223344-5566-7788-19aa-bbccddeeff00")


def _segment(segment_id: UUID, begin: int, end: int) -> LedgerSegment:
    return LedgerSegment(
        segment_id=segment_id,
        begin_entry_id=begin,
        end_entry_id=end,
        assigned_ms=1000,
        offloaded_ms=2000,
        object_bytes=300,
        payload_bytes=30,
        properties={"bucket": "b", "prefix": "p/"},
    )


@given(ledger_contexts())
def test_a_context_reads_back(value: LedgerContext) -> None:
    """Every field of every segment survives, and a rewrite gives the same bytes."""
    data = context.encode(value)
    found = context.decode(data, path=PATH)
    assert found == value
    assert context.encode(found) == data


@given(st.uuids())
def test_a_uuid_is_two_signed_halves(segment_id: UUID) -> None:
    """Both halves fit Java's long, and together they are the uuid again."""
    msb, lsb = context.split_uuid(segment_id)
    assert -(2**63) <= min(msb, lsb) <= max(msb, lsb) < 2**63
    assert context.join_uuid(msb, lsb) == segment_id
    assert (msb << 64 | lsb & (2**64 - 1)) & (2**128 - 1) == segment_id.int


def test_the_halves_are_those_of_java() -> None:
    """java.util.UUID gives these numbers for the uuid of the worked example."""
    assert context.split_uuid(FIRST) == (0x1122334455667788, 0x99AABBCCDDEEFF00 - 2**64)


def test_the_fields_are_where_pulsar_has_them() -> None:
    """Bytes by hand, with the field numbers of Pulsar's code."""
    value = LedgerContext(segments=(_segment(FIRST, 0, 4),))
    driver = b"\x0a\x0aoffloaderd"
    driver += b"\x12\x0b\x0a\x06bucket\x12\x01b" + b"\x12\x0c\x0a\x06prefix\x12\x02p/"
    segment = b"\x08" + _varint(0x1122334455667788) + b"\x10" + _varint(0x99AABBCCDDEEFF00)
    segment += b"\x18\x01" + b"\x20\xe8\x07" + b"\x28\xd0\x0f" + b"\x30\x04"
    segment += b"\x3a" + bytes([len(driver)]) + driver
    segment += b"\xc8\x3e\xac\x02" + b"\xd0\x3e\x1e"
    assert context.encode(value) == b"\x18\x00" + b"\x3a" + bytes([len(segment)]) + segment


def _varint(value: int) -> bytes:
    """Seven bits a byte, low ones first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def test_a_begin_is_written_only_where_it_does_not_follow() -> None:
    """Neither entry 0 nor the successor of the segment before is written down; anything else is."""
    for begin, written in ((0, False), (5, True)):
        value = LedgerContext(segments=(_segment(FIRST, begin, 9), _segment(SECOND, 10, 12)))
        message = OffloadContext.FromString(context.encode(value))
        assert message.offloadSegment[0].HasField("beginEntryId") is written
        assert not message.offloadSegment[1].HasField("beginEntryId")


def test_streaming_leaves_the_context_itself_incomplete() -> None:
    """`complete` and the uid fields of the context speak of PIP-17 and stay false and unset; segments are complete."""
    message = OffloadContext.FromString(context.encode(LedgerContext(segments=(_segment(FIRST, 0, 1),))))
    assert not message.complete
    assert not message.HasField("uidMsb")
    assert not message.HasField("uidLsb")
    assert message.offloadSegment[0].complete
    assert message.offloadSegment[0].driverMetadata.name == "offloaderd"


FOREIGN = b"\xfa\x7f\x03new" + b"\xf0\x7f\x2a"  # fields 2047 (bytes) and 2046 (varint), which nobody knows


def _foreign_context() -> bytes:
    """A context as a newer writer might leave it: a foreign field at every level."""
    data = context.encode(LedgerContext(segments=(_segment(FIRST, 3, 9),)))
    message = OffloadContext.FromString(data + FOREIGN)
    segment = message.offloadSegment[0]
    segment.MergeFromString(FOREIGN)
    segment.driverMetadata.MergeFromString(FOREIGN)
    message.bookkeeperDeleted = True
    message.timestamp = 77
    return message.SerializeToString(deterministic=True)


def test_unknown_fields_survive_a_rewrite() -> None:
    """Adding a segment and changing another keeps what we do not know: context, segment and driver metadata."""
    value = context.decode(_foreign_context(), path=PATH)
    changed = replace(value.segments[0], object_bytes=301)
    written = context.encode(replace(value, segments=(changed, _segment(SECOND, 10, 12))))
    message = OffloadContext.FromString(written)
    assert message.bookkeeperDeleted
    assert message.timestamp == 77
    assert message.offloadSegment[0].dataObjectLength == 301
    assert len(message.offloadSegment) == 2
    assert written.count(FOREIGN[:6]) == written.count(FOREIGN[6:]) == 3


def test_a_context_written_unchanged_keeps_its_bytes() -> None:
    """Decode and encode alone lose nothing, foreign fields included."""
    data = _foreign_context()
    assert OffloadContext.FromString(context.encode(context.decode(data, path=PATH))) == OffloadContext.FromString(data)


def test_changed_driver_properties_replace_the_old_ones() -> None:
    """A segment whose objects have moved names the new place only."""
    value = context.decode(context.encode(LedgerContext(segments=(_segment(FIRST, 0, 1),))), path=PATH)
    moved = replace(value.segments[0], properties={"bucket": "c"})
    found = context.decode(context.encode(replace(value, segments=(moved,))), path=PATH)
    assert found.segments[0].properties == {"bucket": "c"}


def _message(*segments: dict[str, int]) -> bytes:
    message = OffloadContext()
    for number, fields in enumerate(segments):
        complete = {"uidMsb": 1, "uidLsb": number, "complete": 1, **fields}
        message.offloadSegment.append(OffloadSegment(**{key: value for key, value in complete.items() if value != -99}))  # type: ignore[arg-type]
    return message.SerializeToString()


@pytest.mark.parametrize(
    "data",
    [
        _message({"endEntryId": -1}),
        _message({"endEntryId": -99}),
        _message({"endEntryId": 5, "uidMsb": -99}),
        _message({"endEntryId": 5, "uidLsb": -99}),
        _message({"endEntryId": 5, "complete": 0}),
        _message({"endEntryId": 5, "beginEntryId": 6}),
        _message({"endEntryId": 5, "beginEntryId": -2}),
        _message({"endEntryId": 5, "payloadBytes": -2}),
        _message({"endEntryId": 5, "assignedTimestamp": -2}),
        _message({"endEntryId": 5}, {"endEntryId": 5}),
        _message({"endEntryId": 5}, {"endEntryId": 4}),
        _message({"endEntryId": 5}, {"endEntryId": 9, "beginEntryId": 7}),
        _message({"endEntryId": 5}, {"endEntryId": 9, "beginEntryId": 5}),
        OffloadContext(complete=True, uidMsb=1, uidLsb=2).SerializeToString(),
        b"\x0a",
    ],
)
def test_an_impossible_context_is_corrupt(data: bytes) -> None:
    """Gaps, overlaps, reversed or unfinished segments and contexts of the other method raise CorruptData."""
    with pytest.raises(CorruptData, match=PATH):
        context.decode(data, path=PATH)


def test_a_begin_that_says_the_obvious_is_accepted() -> None:
    """A writer may put down a begin that follows anyway."""
    data = _message({"endEntryId": 5, "beginEntryId": 0}, {"endEntryId": 9, "beginEntryId": 6})
    assert [one.begin_entry_id for one in context.decode(data, path=PATH).segments] == [0, 6]


@pytest.mark.parametrize(("begin", "end"), [(11, 12), (9, 12), (10, 9)])
def test_a_gap_is_never_written(begin: int, end: int) -> None:
    """Encoding refuses what decoding would call corrupt."""
    with pytest.raises(ValueError, match="does not continue"):
        context.encode(LedgerContext(segments=(_segment(FIRST, 0, 9), _segment(SECOND, begin, end))))


def test_a_driver_without_its_name_is_corrupt() -> None:
    """Protobuf reads a message that lacks a required field, and fails only when it is written again."""
    data = OffloadContext(driverMetadata=OffloadDriverMetadata()).SerializePartialToString()
    with pytest.raises(CorruptData, match="expected all required fields of OffloadContext"):
        context.decode(data, path="/p")
