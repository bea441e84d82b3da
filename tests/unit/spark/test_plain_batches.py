"""Batches in columns: the same rows as message by message, whatever the bytes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from offloaderd.core.model import Position
from offloaderd.format.pulsar import broker_entry
from offloaderd.format.pulsar.compression import Compression
from offloaderd.format.pulsar.messages import PlainBatch, decode_columns, decode_entry
from offloaderd.spark.scan.columns import BatchRows, Columns, Row, full_schema
from offloaderd.spark.scan.share import Condition
from offloaderd.spark.value_schema import read_schema
from tests.loops import both_loops
from tests.unit.format.test_pulsar_message import COMPRESSED, batch, broken, entry
from tests.unit.read.build import TOPIC

if TYPE_CHECKING:
    import pyarrow as pa

pytestmark = pytest.mark.usefixtures(both_loops.__name__)

AT = Position(7, 3)
COLUMNS = Columns(full_schema(messages=True, skips=True, transactions=True))
SCHEMA = read_schema(json.dumps({"version": 1, "type": "AVRO", "data": json.dumps("int")}))
DECODED = Columns(full_schema(messages=True, skips=True, values=SCHEMA), values=SCHEMA, skip=frozenset(Condition))
HEAD = broker_entry.encode_head(broker_timestamp=1_760_000_000_000, index=2)

FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "partition_key": st.sampled_from(["", "key", "a2V5", "no base64", "schlüssel"]),
        "partition_key_b64_encoded": st.booleans(),
        "null_partition_key": st.booleans(),
        "event_time": st.integers(0, 2**64 - 1),
        "sequence_id": st.integers(0, 2**64 - 1),
        "null_value": st.booleans(),
        "compacted_out": st.booleans(),
        "properties": st.lists(
            st.fixed_dictionaries({"key": st.sampled_from("ab"), "value": st.text(max_size=3)}), max_size=3
        ),
    },
)
BATCHES = st.lists(st.tuples(st.binary(max_size=8), FIELDS), min_size=1, max_size=6)


def in_columns(payload: bytes, columns: Columns = COLUMNS) -> pa.RecordBatch:
    """Return the rows of an entry as they are made where batches come in columns."""
    found = decode_columns(AT, payload, batch_max=100)
    if not isinstance(found, PlainBatch):
        assert found == decode_entry(AT, payload)
        return one_by_one(payload, columns)
    return columns.messages(TOPIC, AT.ledger_id, [BatchRows(found, payload, 5)])


def one_by_one(payload: bytes, columns: Columns = COLUMNS) -> pa.RecordBatch:
    """Return the rows of an entry, a message at a time."""
    messages = decode_entry(AT, payload)
    rows = [Row(one, None if number else payload, 5) for number, one in enumerate(messages)]
    return columns.messages(TOPIC, AT.ledger_id, rows)


@given(messages=BATCHES, method=st.sampled_from(Compression), head=st.sampled_from([b"", HEAD]), data=st.data())
def test_rows_are_the_same(
    messages: list[tuple[bytes, dict[str, Any]]], method: Compression, head: bytes, data: st.DataObject
) -> None:
    """Of sound batches, and of such as have a wrong byte, count or end anywhere."""
    content = batch(*messages)
    fields: dict[str, Any] = {
        "compression": method,
        "uncompressed_size": len(content),
        "num_messages_in_batch": len(messages),
    }
    payload = entry(COMPRESSED[method](content), head=head, checksum=False, **fields)
    assert in_columns(payload).equals(one_by_one(payload))
    hurt = bytearray(payload)
    hurt[data.draw(st.integers(0, len(hurt) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(hurt[: data.draw(st.integers(0, len(hurt)))])
    for one in (bytes(hurt), cut):
        assert in_columns(one).equals(one_by_one(one))
    wrong = entry(content, num_messages_in_batch=data.draw(st.integers(-1, 9)))
    assert in_columns(wrong).equals(one_by_one(wrong))


@given(payload=st.binary(max_size=200))
@example(payload=b"")
def test_any_bytes_have_the_same_rows(payload: bytes) -> None:
    """Nothing that a producer stores is read differently."""
    for one in (payload, entry(payload, num_messages_in_batch=2)):
        assert in_columns(one).equals(one_by_one(one))


def test_a_property_that_is_no_text_counts_though_another_replaces_it() -> None:
    """What a producer wrote twice is taken from the last; the first makes the entry raw all the same."""
    twice = [{"key": "b", "value": "ab"}, {"key": "b", "value": ""}]
    content = batch((b"", {"properties": twice}))
    payload = entry(content, checksum=False, num_messages_in_batch=1).replace(b"ab", b"\x00\x80")
    assert in_columns(payload).equals(one_by_one(payload))


def test_what_is_wrong_is_told_the_same() -> None:
    """Of a batch that is too short for its messages and has a key that is no base64, the former."""
    content = batch((b"", {"partition_key": "key", "partition_key_b64_encoded": True}))
    wrong = entry(content, num_messages_in_batch=77)
    assert in_columns(wrong).equals(one_by_one(wrong))


@pytest.mark.parametrize("reason", broken())
def test_what_cannot_be_taken_apart_has_the_same_rows(reason: str) -> None:
    """The entry and the reason."""
    assert in_columns(broken()[reason]).equals(one_by_one(broken()[reason]))


def test_plain_batches_come_in_columns() -> None:
    """One that is plain, and none that is encrypted, in chunks, in a transaction, a marker, compacted or too large."""
    content = batch((b"one", {"partition_key": "k"}), (b"", {"null_value": True}))

    def plain(content: bytes = content, *, batch_max: int = 9, **fields: Any) -> bool:  # noqa: ANN401 - what protobuf takes
        payload = entry(content, num_messages_in_batch=2, **fields)
        return isinstance(decode_columns(AT, payload, batch_max=batch_max), PlainBatch)

    assert plain()
    assert not plain(batch_max=1)
    assert not plain(encryption_keys=[{"key": "k"}])
    assert not plain(num_chunks_from_msg=2)
    assert not plain(txnid_most_bits=0, txnid_least_bits=1)
    assert not plain(marker_type=1)
    assert not plain(batch((b"one", {}), (b"", {"compacted_out": True})))


@given(messages=BATCHES, version=st.sampled_from([b"", (1).to_bytes(8, "big"), (2).to_bytes(8, "big")]))
@example(messages=[(b"\x02", {}), (b"\x80", {}), (b"", {"null_value": True})], version=b"")
def test_values_by_a_schema(messages: list[tuple[bytes, dict[str, Any]]], version: bytes) -> None:
    """Also what does not fit, and what was written with a version that is not known."""
    whole = entry(batch(*messages), num_messages_in_batch=len(messages), schema_version=version)
    found = in_columns(whole, DECODED)
    assert found.equals(one_by_one(whole, DECODED))
    if int.from_bytes(version, "big") == 2:
        assert found["value"].null_count == len(found)
