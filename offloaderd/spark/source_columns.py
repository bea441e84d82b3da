"""The columns of a row, and entries or messages turned into Arrow batches.

| column | of entries | of messages |
|---|---|---|
| `payload` | the entry as it is stored | the same, in the row of the entry's first message alone |
| `time` | the broker's timestamp, else the producer's publish time | the same |
| `index` | PIP-70's, of the entry's last message | of this message |
| `value` | | as it was sent; by a schema, its type, and null where that cannot be had |

A table may be given fewer columns (`schema()`), which is cheaper: what nobody asked for is not decoded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from offloaderd.errors import InvalidConfig
from offloaderd.format import broker_entry
from offloaderd.format.entry_time import read_heads, time_of
from offloaderd.format.pulsar_message import MessageState
from offloaderd.spark.source_share import Condition, Unread
from offloaderd.spark.value_decode import ValueDecoder
from offloaderd.spark.value_types import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from offloaderd.format.pulsar_message import Message
    from offloaderd.model import EntryBatch, Position, TopicName
    from offloaderd.spark.source_messages import Row
    from offloaderd.spark.value_schema import ValueSchema

TIME_MS_MAX = 253_402_300_799_999
"""The end of the year 9999: what brokers and producers say beyond it is no time for Spark, and left out."""
LONG_MAX = 2**63 - 1

ENTRY_COLUMNS: dict[str, DataType] = {
    "topic": StringType(),
    "ledger_id": LongType(),
    "entry_id": LongType(),
    "payload": BinaryType(),
    "time": TimestampType(),
    "broker_timestamp": TimestampType(),
    "index": LongType(),
}
MESSAGE_COLUMNS: dict[str, DataType] = {
    "batch_index": IntegerType(),
    "key": BinaryType(),
    "properties": MapType(StringType(), StringType()),
    "publish_time": TimestampType(),
    "event_time": TimestampType(),
    "producer": StringType(),
    "sequence_id": LongType(),
    "value": BinaryType(),
    "state": StringType(),
    "chunk_id": IntegerType(),
    "num_chunks": IntegerType(),
    "chunk_uuid": StringType(),
}
TRANSACTION_COLUMNS: dict[str, DataType] = {"transaction_id": StringType(), "transaction_state": StringType()}
SKIP_COLUMNS: dict[str, DataType] = {"skipped": LongType()}
REASON: dict[str, DataType] = {"reason": StringType()}
MALFORMED = "malformed"
"""The state of a message whose value does not fit the schema, where such are not the end of the query."""


class BrokenValue(Unread):
    """A value of the query does not fit the schema that was given; the message names its position."""


def full_schema(
    *, messages: bool, skips: bool, values: ValueSchema | None = None, transactions: bool = False
) -> StructType:
    """Return all columns that a query with these options can have. Raises InvalidInput for a schema Spark has not."""
    columns = ENTRY_COLUMNS | (MESSAGE_COLUMNS if messages else {}) | (TRANSACTION_COLUMNS if transactions else {})
    columns |= SKIP_COLUMNS if skips else {}
    columns |= REASON if messages or skips else {}
    columns |= {"value": kind_of(values.newest).spark} if values is not None else {}
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def checked_schema(schema: StructType, full: StructType) -> StructType:
    """Return the columns that a query gave, if they are among the full ones. Raises InvalidConfig with all mistakes."""
    known = {field.name: field.dataType for field in full}
    mistakes = []
    for field in schema:
        if field.name not in known:
            hint = " without messages=true" if field.name in MESSAGE_COLUMNS else ""
            mistakes.append(f"{field.name}: no such column{hint}; there are {', '.join(known)}")
        elif field.dataType != known[field.name]:
            mistakes.append(f"{field.name}: {known[field.name].simpleString()}, not {field.dataType.simpleString()}")
    if mistakes:
        raise InvalidConfig("\n  ".join(["the schema is wrong:", *mistakes]), hint="docs/spark.md lists the columns")
    return schema


@dataclass(frozen=True, slots=True)
class Skip:
    """Entries that could not be read: from which on, how many (None: nobody knows), and why."""

    first: Position
    entries: int | None
    reason: str


class Columns:
    """Makes the batches of one query."""

    def __init__(
        self, schema: StructType, *, values: ValueSchema | None = None, skip: frozenset[Condition] = frozenset()
    ) -> None:
        self._arrow = to_arrow_schema(schema, timezone="UTC")
        self._headed = not {"time", "broker_timestamp", "index"}.isdisjoint(schema.names)
        self._decoder = ValueDecoder(values) if values is not None and "value" in schema.names else None
        self._malformed = Condition.MALFORMED in skip

    def entries(self, topic: TopicName, batch: EntryBatch, kept: Sequence[bool] | None) -> pa.RecordBatch | None:
        """Return the rows of a batch's entries, of those alone that are `kept`; None for no row."""
        ids: Sequence[int] = range(batch.first_entry_id, batch.last_entry_id + 1)
        payloads: Sequence[bytes] = batch.payloads
        if kept is not None:
            ids, payloads = _kept(ids, kept), _kept(payloads, kept)
        if not payloads:
            return None
        makers: dict[str, Callable[[], Any]] = {
            "entry_id": lambda: np.fromiter(ids, np.int64, len(payloads)),
            "payload": lambda: payloads,
        }
        if self._headed:
            makers |= _of_heads(payloads)
        return self._batch(len(payloads), {"topic": str(topic), "ledger_id": batch.ledger_id}, makers)

    def skipped(self, topic: TopicName, skip: Skip) -> pa.RecordBatch:
        """Return the row that stands for entries that were left out."""
        same = {
            "topic": str(topic),
            "ledger_id": skip.first.ledger_id,
            "entry_id": skip.first.entry_id,
            "skipped": skip.entries,
            "reason": skip.reason,
        }
        return self._batch(1, same, {})

    def messages(self, topic: TopicName, ledger_id: int, rows: Sequence[Row]) -> pa.RecordBatch:
        """Return rows of messages. Raises BrokenValue, unless it skips those."""
        messages = [row.message for row in rows]
        makers: dict[str, Callable[[], Any]] = {
            "entry_id": lambda: [one.position.entry_id for one in messages],
            "payload": lambda: [row.payload for row in rows],
            "time": lambda: [_time(row.time_ms) for row in rows],
            "broker_timestamp": lambda: [_time(one.broker_ms) for one in messages],
            "index": lambda: [_long(one.index) for one in messages],
            "batch_index": lambda: [one.batch_index if one.batch_index >= 0 else None for one in messages],
            "key": lambda: [one.key for one in messages],
            "properties": lambda: [list(dict(one.properties).items()) for one in messages],
            "publish_time": lambda: [_time(one.publish_ms) for one in messages],
            "event_time": lambda: [_time(one.event_ms) for one in messages],
            "producer": lambda: [None if one.state is MessageState.RAW else one.producer for one in messages],
            "sequence_id": lambda: [
                None if one.state is MessageState.RAW else _long(one.sequence_id) for one in messages
            ],
            "value": lambda: [None if one.tombstone else one.data for one in messages],
            "state": lambda: [one.state.value for one in messages],
            "chunk_id": lambda: [one.chunk.index if one.chunk else None for one in messages],
            "num_chunks": lambda: [one.chunk.count if one.chunk else None for one in messages],
            "chunk_uuid": lambda: [one.chunk.message if one.chunk else None for one in messages],
            "transaction_id": lambda: [str(one.transaction) if one.transaction else None for one in messages],
            "transaction_state": lambda: [row.transaction_state for row in rows],
            "reason": lambda: [one.reason or None for one in messages],
        }
        if self._decoder is not None:
            makers |= self._decoded(topic, messages, self._decoder)
        return self._batch(len(rows), {"topic": str(topic), "ledger_id": ledger_id}, makers)

    def _decoded(
        self, topic: TopicName, messages: Sequence[Message], decoder: ValueDecoder
    ) -> dict[str, Callable[[], Any]]:
        """Return what makes the columns that depend on what values hold."""
        plain = [None if one.tombstone or one.state is not MessageState.PLAIN else one for one in messages]
        values, wrong = decoder.array(plain, self._arrow.field("value").type)
        if wrong and not self._malformed:
            at, why = min(wrong.items())
            inside = f":{messages[at].batch_index}" if messages[at].batch_index >= 0 else ""
            raise BrokenValue(
                Condition.MALFORMED,
                f"{topic}, message {messages[at].position}{inside}: its value does not fit the schema: {why}",
                hint="give all versions of the schema (`pulsar-admin schemas get --all-version`) and run it again: a "
                "stream goes on from its checkpoint here; skip=malformed leaves such values null and says why",
            )
        return {
            "value": lambda: values,
            "state": lambda: [MALFORMED if at in wrong else one.state.value for at, one in enumerate(messages)],
            "reason": lambda: [wrong.get(at, one.reason) or None for at, one in enumerate(messages)],
        }

    def _batch(self, count: int, same: dict[str, Any], makers: dict[str, Callable[[], Any]]) -> pa.RecordBatch:
        """Put a batch together: columns with one value for all rows, those that are made, and the others empty."""
        arrays = []
        for field in self._arrow:
            if field.name in makers:
                made = makers[field.name]()
                arrays.append(made if isinstance(made, pa.Array) else pa.array(made, type=field.type))
            elif same.get(field.name) is not None:
                arrays.append(pa.repeat(pa.scalar(same[field.name], type=field.type), count))
            else:
                arrays.append(pa.nulls(count, type=field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._arrow)


def _kept(values: Sequence[Any], kept: Sequence[bool]) -> list[Any]:
    return [value for value, keep in zip(values, kept, strict=True) if keep]


def _of_heads(payloads: Sequence[bytes]) -> dict[str, Callable[[], Any]]:
    """Return what makes the columns that brokers' heads tell, which are read together where all are alike."""
    count = len(payloads)
    together = read_heads(payloads)
    if together is not None and len(together.times) == count and len(together.indexes) in {0, count}:
        times = [_time(one) for one in together.times]
        indexes = [_long(one) for one in together.indexes] or [None] * count
        return {"time": lambda: times, "broker_timestamp": lambda: times, "index": lambda: indexes}
    heads = [broker_entry.read_head(payload) or broker_entry.BrokerEntry() for payload in payloads]
    return {
        "time": lambda: [_time(time_of(payload).time_ms) for payload in payloads],
        "broker_timestamp": lambda: [_time(head.broker_timestamp) for head in heads],
        "index": lambda: [_long(head.index) for head in heads],
    }


def _time(time_ms: int | None) -> int | None:
    """Return microseconds since 1970."""
    return None if time_ms is None or time_ms > TIME_MS_MAX else time_ms * 1000


def _long(number: int | None) -> int | None:
    return None if number is None or number > LONG_MAX else number
