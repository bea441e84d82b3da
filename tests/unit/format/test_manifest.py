"""The manifest: round trip, header, and each rule for its body."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.core.errors import CorruptData, InvalidInput
from offloaderd.core.model import LedgerEnd, Loss, Position, SegmentRange
from offloaderd.format import manifest_bytes
from offloaderd.format.manifest import Past
from offloaderd.format.pb.storage import manifest_pb2 as pb
from offloaderd.format.pulsar.entry_time import Survey
from tests.unit.format import builders
from tests.unit.format.builders import KEY, sealed

if TYPE_CHECKING:
    from collections.abc import Callable

    from offloaderd.format.manifest import SegmentManifest

VALID = builders.small_segment().manifest
"""Blocks: ledger 7 entries 41 to 43, ledger 7 entry 44, ledger 9 entries 0 and 1."""


def corrupt(data: bytes) -> CorruptData:
    """Return the error that decoding raises."""
    with pytest.raises(CorruptData) as caught:
        manifest_bytes.decode(data, key=KEY)
    assert caught.value.key == KEY
    return caught.value


@given(builders.segments, st.integers(0, 2**64 - 1), st.text(st.characters(codec="utf-8"), max_size=20))
def test_round_trip(segment: builders.Segment, number: int, text: str) -> None:
    """What was written is read back, from a view too, and written again gives the same bytes."""
    described = replace(segment.manifest, epoch=number, assigned_ms=number, cluster=text, software_version=text)
    last = replace(described.blocks[-1], last_index=number, survey=None, first_publish_time=None)
    described = replace(described, blocks=(*described.blocks[:-1], last))
    encoded = manifest_bytes.encode(described)
    assert manifest_bytes.decode(encoded, key=KEY) == described
    assert manifest_bytes.decode(memoryview(encoded), key=KEY) == described
    assert manifest_bytes.encode(manifest_bytes.decode(encoded, key=KEY)) == encoded


@given(builders.segments)
def test_block_at_against_a_plain_search(segment: builders.Segment) -> None:
    """The block found is the last that begins at or before the position, and holds it if any does."""
    blocks = segment.manifest.blocks
    for number, block in enumerate(blocks):
        for entry_id in (block.first_entry_id, block.last_entry_id):
            assert segment.manifest.block_at(Position(block.ledger_id, entry_id)) == number
    last = blocks[-1]
    assert segment.manifest.block_at(Position(last.ledger_id, last.last_entry_id + 5)) == len(blocks) - 1
    assert segment.manifest.block_at(Position(-1, 0)) == -1
    end = Position(last.ledger_id, last.last_entry_id)
    assert segment.manifest.range == SegmentRange(Position(blocks[0].ledger_id, blocks[0].first_entry_id), end)


def test_block_after_a_ledgers_end() -> None:
    """A position after a ledger's last entry gives the ledger's last block, not the next ledger's first."""
    assert VALID.block_at(Position(7, 99)) == 1
    assert VALID.block_at(Position(7, 40)) == -1


@pytest.mark.parametrize(
    ("offset", "kind", "value", "expected"),
    [
        (0, ">I", 0x26A66D32, "magic 8f4f464d of a manifest"),
        (4, ">I", 0, "version 1"),
        (4, ">I", 2, "version 1"),
        (8, ">Q", 2**63, "body length"),
        (8, ">Q", 0, "body length"),
        (16, ">B", 1, "checksum"),
        (20, ">I", 0, "checksum 00000000"),
        (60, ">I", 0, "checksum"),
    ],
)
def test_header_is_checked_in_order(offset: int, kind: str, value: int, expected: str) -> None:
    """A wrong field is named with its place; bytes that the checksum covers show in the checksum."""
    data = bytearray(manifest_bytes.encode(VALID))
    struct.pack_into(kind, data, offset, value)
    error = corrupt(bytes(data))
    assert error.offset == (offset if offset < 16 else 20)
    assert str(error.expected).startswith(expected)


def test_newer_version_is_named() -> None:
    """An operator whose daemon is too old is told so."""
    data = bytearray(manifest_bytes.encode(VALID))
    data[7] = 2
    assert corrupt(bytes(data)).hint
    data[7] = 0
    assert not corrupt(bytes(data)).hint


def test_reserved_bytes_are_zero() -> None:
    """A right checksum does not excuse reserved bytes in use."""
    body = manifest_bytes.encode(VALID)[24:]
    head = struct.pack(">IIQI", 0x8F4F464D, 1, len(body), 5)
    error = corrupt(head + struct.pack(">I", google_crc32c.value(head + body)) + body)
    assert (error.offset, error.expected, error.found) == (16, "4 reserved zeros", "00 00 00 05")


@pytest.mark.parametrize("body", [b"\x0a\x01\xff", b"\x62\xff\xff\xff\xff\x0f", b"\x08" + b"\xff" * 11, b"\x0b" * 99])
def test_body_that_is_no_message(body: bytes) -> None:
    """Text that is no UTF-8, lengths beyond the end, endless numbers and groups are corrupt."""
    error = corrupt(sealed(body))
    assert (error.offset, error.expected) == (24, "a SegmentManifest message")


def test_unknown_fields_are_ignored() -> None:
    """A field that a later version adds does not hide the rest."""
    body = manifest_bytes.encode(VALID)[24:] + b"\xfa\x7f\x01?"
    assert manifest_bytes.decode(sealed(body), key=KEY) == VALID


def block(number: int, **changes: object) -> Callable[[SegmentManifest], SegmentManifest]:
    """Change fields of one block."""
    return lambda valid: replace(
        valid,
        blocks=tuple(
            replace(old, **changes) if at == number else old  # type: ignore[arg-type]
            for at, old in enumerate(valid.blocks)
        ),
    )


def ledger(number: int, **changes: object) -> Callable[[SegmentManifest], SegmentManifest]:
    """Change fields of one ledger."""
    return lambda valid: replace(
        valid,
        ledgers=tuple(
            replace(old, **changes) if at == number else old  # type: ignore[arg-type]
            for at, old in enumerate(valid.ledgers)
        ),
    )


def whole(**changes: object) -> Callable[[SegmentManifest], SegmentManifest]:
    """Change fields of the manifest."""
    return lambda valid: replace(valid, **changes)  # type: ignore[arg-type]


def surveyed(*numbers: int | None, **changes: object) -> Callable[[SegmentManifest], SegmentManifest]:
    """Say of block 0 what its times are, which are all that it says of them unless `changes` say more."""
    nothing = {"first_broker_timestamp": None, "first_index": None}
    return block(0, survey=Survey(*numbers), **{**nothing, **changes})  # type: ignore[arg-type]


def lost(*numbers: int) -> Callable[[SegmentManifest], SegmentManifest]:
    """Record one loss, given by ledger and entry after which and before which it lies."""
    after, before = Position(*numbers[:2]), Position(*numbers[2:])
    return whole(losses=(Loss(after, before, 0),))


# Block 0: length 173 = 128 + 3 * 12 + 5 + 4, its entry 1 at 143; block 1: 145; block 2: 170, its entry 1 at 144.
BROKEN = [
    (whole(managed_ledger="public/default/flights"), "TENANT/NAMESPACE/persistent/TOPIC as managed ledger"),
    (whole(managed_ledger=""), "TENANT/NAMESPACE/persistent/TOPIC as managed ledger"),
    (whole(preamble_bytes=5), "a preamble of 0 or 4 bytes"),
    (whole(preamble_bytes=4), "block 0 at offset 4"),
    (whole(blocks=()), "at least one block"),
    (whole(data_bytes=489), "blocks up to the end of the data object at 489"),
    (whole(index_bytes=115), "an index of at least 116 bytes"),
    (whole(ledgers=()), "one entry for each of the ledgers that the blocks hold, in their order"),
    (whole(ledgers=VALID.ledgers[::-1]), "one entry for each of the ledgers that the blocks hold, in their order"),
    (whole(ledgers=VALID.ledgers * 5), "one entry for each of the ledgers that the blocks hold, in their order"),
    (block(0, ledger_id=-1), "ledger id of block 0 from 0 to 9223372036854775807"),
    (block(0, offset=1), "block 0 at offset 0"),
    (block(1, offset=172), "block 1 at offset 173"),
    (block(1, offset=174), "block 1 at offset 173"),
    (block(0, entry_count=0), "at least one entry in block 0"),
    (block(2, first_entry_id=-1), "entry ids of block 2 from 0 to 9223372036854775807"),
    (
        block(2, first_entry_id=2**63 - 2, entry_count=3, sparse=()),
        "entry ids of block 2 from 0 to 9223372036854775807",
    ),
    (block(2, length=155), "length of block 2 of at least 156"),
    (block(2, length=0), "length of block 2 of at least 156"),
    (block(0, entry_count=4), "length of block 0 of at least 180"),
    (block(1, ledger_id=8, first_entry_id=0), "one entry for each of the ledgers that the blocks hold, in their order"),
    (block(2, ledger_id=6), "block 2 of ledger 7 or a later one"),
    (block(1, first_entry_id=43), "block 1 from entry 44 on"),
    (block(1, first_entry_id=45), "block 1 from entry 44 on"),
    (block(0, sparse=((0, 128),)), "sparse entry of block 0 from 1 to 2"),
    (block(0, sparse=((3, 165),)), "sparse entry of block 0 from 1 to 2"),
    (block(0, sparse=((2, 155), (1, 143))), "sparse entry of block 0 from 3 to 2"),
    (block(0, sparse=((1, 143), (1, 143))), "sparse entry of block 0 from 2 to 2"),
    (block(0, sparse=((1, 139),)), "sparse position of block 0 from 140 to 145"),
    (block(0, sparse=((1, 146),)), "sparse position of block 0 from 140 to 145"),
    (block(0, sparse=((1, 143), (2, 154))), "sparse position of block 0 from 155 to 157"),
    (block(0, sparse=((1, 143), (2, 158))), "sparse position of block 0 from 155 to 157"),
    (ledger(0, first_entry_id=40), "entries 41 to 44 of ledger 7"),
    (ledger(0, last_entry_id=43), "entries 41 to 44 of ledger 7"),
    (ledger(1, ledger_id=8), "one entry for each of the ledgers that the blocks hold, in their order"),
    (ledger(0, payload_bytes=7), "payload of ledger 7 of at most 6 bytes"),
    (ledger(0, ledger_entries=44), "at least 45 entries in the whole of ledger 7"),
    (lost(-1, 0, 7, 40), "a loss that begins at a position, or at the front of the topic"),
    (lost(7, 39, 7, 39), "a loss from 7:39 to a later position, up to 9:1"),
    (lost(7, 44, 9, 2), "a loss from 7:44 to a later position, up to 9:1"),
    (lost(7, 40, 7, -1), "a loss from 7:40 to a later position, up to 9:1"),
    (lost(7, 39, 7, 42), "entries 7:41 to 7:44 not to be lost"),
    (lost(7, 43, 9, 0), "entries 7:41 to 7:44 not to be lost"),
    (lost(7, 44, 9, 1), "entries 9:0 to 9:1 not to be lost"),
    (whole(losses=(Loss(Position(7, 44), Position(9, 0), 1),) * 2), "losses that ascend, the next from 9:0 on"),
    (whole(ends=((10, LedgerEnd(1, None)),)), "the end of a ledger from 0 to 9"),
    (whole(ends=((-1, LedgerEnd(1, None)),)), "the end of a ledger from 0 to 9"),
    (whole(ends=((6, LedgerEnd(1, None)), (6, LedgerEnd(1, None)))), "the end of a ledger from 7 to 9"),
    (whole(ends=((7, LedgerEnd(44, None)),)), "at least 45 entries at the end of ledger 7"),
    (whole(ends=((6, LedgerEnd(-1, None)),)), "at least 0 entries at the end of ledger 6"),
    (whole(ends=((7, LedgerEnd(45, 7)),)), "a ledger behind 7 as the next one"),
    (block(0, first_publish_time=5), "no publish time of block 0, which says nothing of its times"),
    (surveyed(None, None, 4), "at most 3 entries of block 0 without a time"),
    (surveyed(5, 6, 3), "least and greatest time of block 0 if an entry has one"),
    (surveyed(None, None, 2), "least and greatest time of block 0 if an entry has one"),
    (surveyed(5, None, 0), "least and greatest time of block 0 if an entry has one"),
    (surveyed(6, 5, 0), "times of block 0 from 6 to 5"),
    (surveyed(5, 6, 0, first_broker_timestamp=7), "times of block 0 from 5 to 6"),
    (surveyed(5, 6, 0, last_broker_timestamp=4), "times of block 0 from 5 to 6"),
    (surveyed(5, 6, 0, first_publish_time=7), "times of block 0 from 5 to 6"),
    (surveyed(None, None, 3, first_publish_time=7), "no time in block 0, whose entries have none"),
    (surveyed(None, None, 3, last_broker_timestamp=7), "no time in block 0, whose entries have none"),
    (
        surveyed(5, 6, 0, first_publish_time=5, first_broker_timestamp=6),
        "one time of the first entry of block 0",
    ),
    (surveyed(5, 6, 0, 8, last_index=9), "indexes of block 0 up to 8"),
    (surveyed(5, 6, 0, first_index=0), "indexes of block 0 up to None"),
    (whole(past=Past(0, Position(7, 42))), "times before the segment to be known from a position up to 7:41"),
    (whole(past=Past(0, Position(7, -1))), "times before the segment to be known from a position up to 7:41"),
    (whole(past=Past(0, Position(7, 41), 5)), "no time before 7:41, where what is known begins"),
    (whole(past=Past(0, Position(7, 41), None, 5)), "no time before 7:41, where what is known begins"),
]


@pytest.mark.parametrize(("spoil", "expected"), BROKEN)
def test_each_rule_is_kept_by_writer_and_reader(
    spoil: Callable[[SegmentManifest], SegmentManifest], expected: str
) -> None:
    """A manifest that breaks a rule is not written; one that was written all the same is not read."""
    spoilt = spoil(VALID)
    with pytest.raises(InvalidInput) as refused:
        manifest_bytes.encode(spoilt)
    assert f"expected {expected}, found " in str(refused.value)
    error = corrupt(sealed(manifest_bytes._to_message(spoilt).SerializeToString()))
    assert (error.offset, error.expected) == (24, expected)


@pytest.mark.parametrize(
    "spoil",
    [
        whole(epoch=-1),
        whole(assigned_ms=2**64),
        whole(index_crc32c=2**32),
        whole(cluster="\ud800"),
        block(0, crc32c=-1),
        block(0, first_index=-1),
        ledger(0, payload_bytes=-1),
    ],
)
def test_what_the_message_cannot_hold_is_refused(spoil: Callable[[SegmentManifest], SegmentManifest]) -> None:
    """Numbers outside their fields and text that is no Unicode raise InvalidInput."""
    with pytest.raises(InvalidInput):
        manifest_bytes.encode(spoil(VALID))


def respell(text: str) -> bytes:
    """Return a manifest object with another segment id."""
    message = manifest_bytes._to_message(VALID)
    message.segment_id = text
    return sealed(message.SerializeToString())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "11223344-5566-7788-99AA-BBCCDDEEFF00",
        "112233445566778899aabbccddeeff00",
        "{11223344-5566-7788-99aa-bbccddeeff00}",
        "１1223344-5566-7788-99aa-bbccddeeff00",  # noqa: RUF001 - a digit that int() takes
        "g1223344-5566-7788-99aa-bbccddeeff00",
    ],
)
def test_segment_id_has_one_spelling(text: str) -> None:
    """A segment id that is no UUID, or spelt in another way, is corrupt."""
    assert "segment id" in str(corrupt(respell(text)).expected)


LOSSES = (Loss(Position(-1, -1), Position(7, 0), 0), Loss(Position(7, 44), Position(9, 0), 12, 1_700_000_000_000))
ENDS = ((5, LedgerEnd(0, None)), (7, LedgerEnd(45, 8)), (9, LedgerEnd(7, None)))


def test_losses_and_ends_are_kept() -> None:
    """What was lost and how ledgers ended is read back, at the front of a topic and with or without a next ledger."""
    described = replace(VALID, losses=LOSSES, ends=ENDS)
    assert manifest_bytes.decode(manifest_bytes.encode(described), key=KEY) == described


def test_the_end_of_history_and_the_begin_of_what_is_live_may_both_be_lost() -> None:
    """Up to ledger 5, and behind entry 11 of ledger 4: no entry is in both; two losses that share one are refused."""
    history, live = Loss(Position(-1, -1), Position(5, 0), 0), Loss(Position(4, 11), Position(7, 0), 0)
    described = replace(VALID, losses=(history, live))
    assert manifest_bytes.decode(manifest_bytes.encode(described), key=KEY) == described
    for wrong in (
        (history._replace(before=Position(5, 1)), live),
        (live._replace(before=Position(5, 0)), history._replace(before=Position(6, 0))),
    ):
        with pytest.raises(InvalidInput, match="losses that ascend"):
            manifest_bytes.encode(replace(VALID, losses=wrong))


SURVEYS = [
    None,
    Survey(0, 0, 0, 0),
    Survey(5, 2**64 - 1, 2, 2**64 - 1),
    Survey(7, 7, 0),
    Survey(None, None, 3),
    Survey(None, None, 3, 4),
]


@pytest.mark.parametrize("survey", SURVEYS)
@pytest.mark.parametrize("past", [None, Past(0, Position(7, 41)), Past(2**64 - 1, Position(0, 0), 0, 2**64 - 1)])
def test_times_and_the_past_are_kept(survey: Survey | None, past: Past | None) -> None:
    """What a block says of its times, and the segment of what lay before: also that there is none, or none known."""
    described = block(0, survey=survey, first_broker_timestamp=None, first_index=None)(replace(VALID, past=past))
    assert manifest_bytes.decode(manifest_bytes.encode(described), key=KEY) == described


def test_the_time_of_the_first_entry_is_the_brokers_or_the_producers() -> None:
    """Either is recorded, not both; a block may have none."""
    published = block(0, first_publish_time=5, survey=Survey(5, 5), first_broker_timestamp=None, first_index=None)
    assert VALID.blocks[0].first_time == VALID.blocks[0].first_broker_timestamp
    assert manifest_bytes.decode(manifest_bytes.encode(published(VALID)), key=KEY).blocks[0].first_time == 5
    assert block(0, first_broker_timestamp=None)(VALID).blocks[0].first_time is None


def test_without_losses_and_ends_the_bytes_are_those_of_before() -> None:
    """Writers that knew neither, and segments that have neither, give the same manifest."""
    message = manifest_bytes._to_message(replace(VALID, losses=LOSSES, ends=ENDS))
    message.ClearField("losses")
    message.ClearField("ends")
    assert sealed(message.SerializeToString(deterministic=True)) == manifest_bytes.encode(VALID)


def test_a_loss_may_end_at_the_last_entry_of_the_segment() -> None:
    """A loss between two ledgers of a segment, of which the second has only its last entry in it, is a sound one."""
    runs = [builders.Run(7, 0, [b"a"]), builders.Run(9, 4, [b"b"])]
    described = replace(builders.build_segment(runs).manifest, losses=(Loss(Position(7, 0), Position(9, 4), 4),))
    assert manifest_bytes.decode(manifest_bytes.encode(described), key=KEY) == described


def test_sparse_entries_need_their_positions() -> None:
    """Lists of unequal length are corrupt."""
    message = manifest_bytes._to_message(VALID)
    message.blocks[0].sparse_at.append(150)
    assert corrupt(sealed(message.SerializeToString())).expected == "as many sparse positions as sparse entries"


def test_absent_and_zero_broker_metadata_differ() -> None:
    """Index 0 is an index; no index is none."""
    zero, none = block(0, first_index=0)(VALID), block(0, first_index=None)(VALID)
    assert manifest_bytes.decode(manifest_bytes.encode(zero), key=KEY).blocks[0].first_index == 0
    assert manifest_bytes.decode(manifest_bytes.encode(none), key=KEY).blocks[0].first_index is None


def test_empty_body_is_corrupt() -> None:
    """A right header round nothing is no manifest."""
    assert corrupt(sealed(pb.SegmentManifest().SerializeToString())).expected == "a UUID as segment id"
