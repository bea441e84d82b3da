"""The document of a capture, and the cursors and schemas in it."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.capture.records import (
    Capture,
    Kind,
    changes,
    cursor_of,
    cursor_value,
    decode,
    encode,
    node_of,
    node_value,
    schema_of,
    schema_value,
    text_lines,
)
from offloaderd.core.errors import CorruptData, InvalidInput
from offloaderd.core.model import Position
from offloaderd.format.pb.pulsar import cursors_pb2 as pb
from offloaderd.format.pb.pulsar import schemas_pb2
from offloaderd.format.pb.pulsar.ml_data_formats_pb2 import NestedPositionInfo
from offloaderd.ledgers.pulsar import cursors, schemas
from offloaderd.ledgers.pulsar.cursors import Cursor
from offloaderd.ledgers.pulsar.schemas import Schema

KEY = "captures/one"
CAPTURE = Capture(
    cluster="prod",
    deployment_id="d",
    taken_ms=1_700_000_000_123,
    records={
        (Kind.TENANT, "acme", ""): {"allowedClusters": ["prod"]},
        (Kind.SUBSCRIPTION, "persistent://acme/eu/a b", "größe"): {"mark_delete": "3:4"},
        ("of a later release", "x", ""): [1, None],
    },
    problems=("one node cannot be read",),
)
POSITIONS = st.builds(Position, st.integers(0, 2**63 - 1), st.integers(-1, 2**63 - 1))
WORDS = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3).map(tuple)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
CURSORS = st.builds(
    Cursor,
    mark_delete=POSITIONS,
    acknowledged=st.lists(st.tuples(POSITIONS, POSITIONS), max_size=3).map(tuple),
    batches=st.lists(st.tuples(POSITIONS, WORDS), max_size=2).map(tuple),
    numbers=st.dictionaries(TEXT, st.integers(-(2**63), 2**63 - 1), max_size=2).map(lambda one: tuple(one.items())),
    texts=st.dictionaries(TEXT, TEXT, max_size=2).map(lambda one: tuple(one.items())),
)


def lines(data: bytes) -> list[object]:
    """Return the lines of a document."""
    return [json.loads(line) for line in gzip.decompress(data).splitlines()]


def packed(found: list[object]) -> bytes:
    """Return a document of these lines."""
    return gzip.compress(b"".join(json.dumps(line).encode() + b"\n" for line in found))


def test_a_document_is_read_as_it_was_written() -> None:
    """Records of unknown kinds too; the same capture has the same bytes, whatever the order of its records."""
    data = encode(CAPTURE)
    assert decode(data, key=KEY) == CAPTURE
    assert encode(replace(CAPTURE, records=dict(reversed(list(CAPTURE.records.items()))))) == data
    assert dict(CAPTURE.of(Kind.TENANT)) == {"acme": {"allowedClusters": ["prod"]}}
    assert CAPTURE.about(Kind.SUBSCRIPTION) == {"persistent://acme/eu/a b": {"größe": {"mark_delete": "3:4"}}}


@pytest.mark.parametrize("text", ["a\u2028b\x85c", "\ud800", "gr\u00f6\u00dfe"])
def test_text_of_any_kind_is_one_line(text: str) -> None:
    """Separators of lines in a subscription's name, and half a character, which JSON may have."""
    capture = replace(CAPTURE, records={(Kind.SUBSCRIPTION, "persistent://a/b/c", text): {"texts": {"a": text}}})
    assert decode(encode(capture), key=KEY) == capture
    assert [json.loads(line) for line in text_lines(capture)] == lines(encode(capture))


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_document_that_was_cut_short_is_damaged(cut: int) -> None:
    """Nothing of it is taken for the whole."""
    with pytest.raises(CorruptData, match=KEY):
        decode(encode(CAPTURE)[:-cut], key=KEY)


@pytest.mark.parametrize("lost", range(5))
def test_a_document_without_one_of_its_lines_is_damaged(lost: int) -> None:
    """The last one says how many there are."""
    found = lines(encode(CAPTURE))
    del found[lost]
    with pytest.raises(CorruptData, match=KEY):
        decode(packed(found), key=KEY)


def test_a_document_of_a_later_format_is_refused() -> None:
    """Its records may mean something else."""
    head, *rest = lines(encode(CAPTURE))
    assert isinstance(head, dict)
    with pytest.raises(CorruptData, match="format 1"):
        decode(packed([{**head, "format": 2}, *rest]), key=KEY)


NO_DOCUMENTS = {
    "nothing": b"",
    "no gzip": b"no gzip",
    "no head": gzip.compress(b"[]\n{}"),
    "no line": gzip.compress(b""),
    "nested too deep": gzip.compress(b"[" * 10**6),
    "two documents": encode(CAPTURE) * 2,
}


@pytest.mark.parametrize("data", NO_DOCUMENTS.values(), ids=NO_DOCUMENTS)
def test_what_is_no_document_is_damaged(data: bytes) -> None:
    """Not an error of the program."""
    with pytest.raises(CorruptData):
        decode(data, key=KEY)


def test_changes_are_records_that_differ_appear_or_vanish() -> None:
    """In the order of their keys."""
    tenant, subscription, later = CAPTURE.records
    after = {tenant: {"allowedClusters": []}, later: CAPTURE.records[later], (Kind.TENANT, "new", ""): {}}
    found = changes(CAPTURE, replace(CAPTURE, records=after))
    assert [(one.key, one.before is None, one.after is None) for one in found] == [
        (subscription, False, True),
        (tenant, False, False),
        ((Kind.TENANT, "new", ""), True, False),
    ]


@given(CURSORS)
def test_a_cursor_survives_capture_and_mount(cursor: Cursor) -> None:
    """As a record in JSON, and as the node that brokers read."""
    assert cursor_of(json.loads(json.dumps(cursor_value(cursor)))) == cursor
    node = cursors.decode_node(cursors.encode_node(cursor), path="/cursor")
    assert (node.cursor, node.ledger_id) == (cursor, None)


def test_acknowledged_entries_as_bits_are_ranges() -> None:
    """So with managedLedgerPersistIndividualAckAsLongArray; the highest bit makes a word negative."""
    info = pb.PositionInfo(ledgerId=3, entryId=1)
    info.individualDeletedMessageRanges.add(key=4, values=[0b1101, -(1 << 63), 1])
    found = cursors.decode_entry(info.SerializeToString(), key="9:0", texts=(("a", "b"),))
    at = Position
    assert found.acknowledged == (
        (at(4, -1), at(4, 0)),
        (at(4, 1), at(4, 3)),
        (at(4, 126), at(4, 128)),
    )
    assert (found.mark_delete, found.texts) == (at(3, 1), (("a", "b"),))


def test_acknowledged_entries_as_ranges_count_before_those_as_bits() -> None:
    """A broker writes one form; with both, bits would be of an earlier release (ManagedCursorImpl)."""
    info = pb.PositionInfo(ledgerId=3, entryId=1)
    low, high = NestedPositionInfo(ledgerId=3, entryId=4), NestedPositionInfo(ledgerId=3, entryId=6)
    info.individualDeletedMessages.add(lowerEndpoint=low, upperEndpoint=high)
    info.individualDeletedMessageRanges.add(key=4, values=[1])
    info.batchedEntryDeletionIndexInfo.add(position=high, deleteSet=[5, -1])
    info.properties.add(name="producer", value=7)
    found = cursors.decode_entry(info.SerializeToString(), key="9:0", texts=())
    assert found.acknowledged == ((Position(3, 4), Position(3, 6)),)
    assert (found.batches, found.numbers) == (((Position(3, 6), (5, -1)),), (("producer", 7),))


def test_positions_that_no_cursor_has_are_damage() -> None:
    """A ledger's id of -2, and words for a ledger of -1."""
    info = pb.PositionInfo(ledgerId=3, entryId=1)
    low, high = NestedPositionInfo(ledgerId=-2, entryId=0), NestedPositionInfo(ledgerId=3, entryId=2)
    info.individualDeletedMessages.add(lowerEndpoint=low, upperEndpoint=high)
    with pytest.raises(CorruptData, match="9:0"):
        cursors.decode_entry(info.SerializeToString(), key="9:0", texts=())
    info = pb.PositionInfo(ledgerId=3, entryId=1)
    info.individualDeletedMessageRanges.add(key=-1, values=[1])
    with pytest.raises(CorruptData, match="9:0"):
        cursors.decode_entry(info.SerializeToString(), key="9:0", texts=())


def test_versions_of_a_schema_come_in_order_with_the_newest_once() -> None:
    """The node has the newest version beside the index, and in it."""
    entry = schemas_pb2.IndexEntry
    at = [entry(version=n, position=schemas_pb2.PositionInfo(ledgerId=n + 5, entryId=0), hash=b"h") for n in (2, 0, 1)]
    node = schemas_pb2.SchemaLocator(info=at[0], index=at).SerializeToString()
    assert schemas.decode_versions(node, path="/s") == {n: Position(n + 5, 0) for n in range(3)}
    bad = entry(version=-1, position=schemas_pb2.PositionInfo(ledgerId=1, entryId=0), hash=b"h")
    with pytest.raises(CorruptData):
        schemas.decode_versions(schemas_pb2.SchemaLocator(info=bad).SerializeToString(), path="/s")


def test_a_schema_survives_capture() -> None:
    """Its content is bytes."""
    schema = Schema(type="AVRO", content=b"\xff{}", deleted=False, created_ms=5, properties={"a": "b"})
    assert schema_of(json.loads(json.dumps(schema_value(schema)))) == schema
    info = schemas_pb2.SchemaInfo(schema_id="s", user="u", type=5, schema=b"\xff{}", timestamp=5, deleted=False)
    info.props.add(key="a", value="b")
    entry = schemas_pb2.SchemaEntry(schema_data=info.SerializeToString())
    assert schemas.decode_entry(entry.SerializeToString(), key="1:0") == schema
    info.type = 99
    entry = schemas_pb2.SchemaEntry(schema_data=info.SerializeToString())
    with pytest.raises(CorruptData, match="type of schema"):
        schemas.decode_entry(entry.SerializeToString(), key="1:0")


@pytest.mark.parametrize("value", [None, [], {}, {"mark_delete": 3}, "text", {"content": "%"}])
def test_values_that_are_none_are_refused(value: object) -> None:
    """A capture may have been edited."""
    for read in (cursor_of, schema_of):
        with pytest.raises(InvalidInput):
            read(value)
    if not isinstance(value, str):
        with pytest.raises(InvalidInput):
            node_of(value)
    assert node_of(node_value(b"\x00")) == b"\x00"
