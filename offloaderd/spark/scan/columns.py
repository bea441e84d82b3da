"""The columns of rows, and Arrow batches of entries or messages with the columns that a query names.

| column | of entries | of messages |
|---|---|---|
| `payload` | the entry as it is stored | the same, in the row of the entry's first message alone |
| `time` | the broker's timestamp, else the producer's publish time | the same |
| `index` | PIP-70's, of the entry's last message | of this message |
| `value` | | as it was sent; by a schema, its type, and null where that is not possible |
| `undecoded` | | with a schema: what was sent, where `value` is null for another reason than that there is none |

A query may name fewer columns (`schema()`), which is cheaper: the others are not decoded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

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

from offloaderd.core.errors import InvalidConfig, InvalidInput
from offloaderd.core.model import EntryBatch, Position, TopicName
from offloaderd.format.pulsar import broker_entry
from offloaderd.format.pulsar.entry_time import read_heads, time_of
from offloaderd.format.pulsar.messages import Message, MessageState, PlainBatch
from offloaderd.format.pulsar.transactions import TransactionState
from offloaderd.spark.scan.share import Condition, Unread
from offloaderd.spark.value_schema import Schema
from offloaderd.spark.values import Decoder, SameVersion, decoder_of

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
UNDECODED: dict[str, DataType] = {"undecoded": BinaryType()}


def full_schema(*, messages: bool, skips: bool, values: Schema | None = None, transactions: bool = False) -> StructType:
    """Return all columns of a query with these options. Raises InvalidInput for values without a type in Spark."""
    columns = ENTRY_COLUMNS | (MESSAGE_COLUMNS if messages else {}) | (TRANSACTION_COLUMNS if transactions else {})
    columns |= SKIP_COLUMNS if skips else {}
    columns |= REASON if messages or skips else {}
    columns |= {"value": values.type} | UNDECODED if values is not None else {}
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def checked_schema(schema: StructType, full: StructType) -> StructType:
    """Return the columns of a query, if they are among the full ones. Raises InvalidConfig with all mistakes."""
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


class Row(NamedTuple):
    """A message, its entry if it is the first there, the entry's time in milliseconds, the transaction's state."""

    message: Message
    payload: bytes | None
    time_ms: int | None
    transaction_state: TransactionState | None = None


class BatchRows(NamedTuple):
    """The messages of an entry in columns, the entry, its time in milliseconds."""

    batch: PlainBatch
    payload: bytes
    time_ms: int | None

    @property
    def messages(self) -> int:
        """Number of messages."""
        return len(self.batch.values)


TIME_MS_MAX = 253_402_300_799_999
"""The end of the year 9999; Spark has no later times, so those of brokers and producers are null."""
LONG_MAX = 2**63 - 1
PLACE_MAX = 2**31 - 1
"""The largest offset in a column of binaries."""

MALFORMED = "malformed"
"""The state of a message whose value does not fit the schema, in a query that skips this condition."""


class BrokenValue(Unread):
    """A value does not fit the query's schema; the error names its position."""


@dataclass(frozen=True, slots=True)
class Skip:
    """Entries that could not be read: the first, their number (None: unknown), and the reason."""

    first: Position
    entries: int | None
    reason: str


class Columns:
    """The batches of one query."""

    def __init__(
        self, schema: StructType, *, values: Schema | None = None, skip: frozenset[Condition] = frozenset()
    ) -> None:
        self._arrow = to_arrow_schema(schema, timezone="UTC")
        self._headed = not {"time", "broker_timestamp", "index"}.isdisjoint(schema.names)
        self._decoder = decoder_of(values) if values is not None and "value" in schema.names else None
        self._malformed = Condition.MALFORMED in skip

    def entries(self, topic: TopicName, batch: EntryBatch, mask: Sequence[bool] | None) -> pa.RecordBatch | None:
        """Return the rows of a batch's entries, or of those that the mask selects; None for no row."""
        ids: Sequence[int] = range(batch.first_entry_id, batch.last_entry_id + 1)
        payloads: Sequence[bytes] = batch.payloads
        if mask is not None:
            ids, payloads = _masked(ids, mask), _masked(payloads, mask)
        if not payloads:
            return None
        makers: dict[str, Callable[[], Any]] = {
            "entry_id": lambda: _longs(ids),
            "payload": lambda: joined(payloads),
        }
        if self._headed:
            makers |= _of_heads(payloads)
        return self._batch(len(payloads), {"topic": str(topic), "ledger_id": batch.ledger_id}, makers)

    def skipped(self, topic: TopicName, skip: Skip) -> pa.RecordBatch:
        """Return the row for entries that were skipped."""
        same = {
            "topic": str(topic),
            "ledger_id": skip.first.ledger_id,
            "entry_id": skip.first.entry_id,
            "skipped": skip.entries,
            "reason": skip.reason,
        }
        return self._batch(1, same, {})

    def messages(self, topic: TopicName, ledger_id: int, rows: Sequence[Row | BatchRows]) -> pa.RecordBatch:
        """Return rows of messages. Raises BrokenValue for a value that does not fit, unless it skips those."""
        makers: dict[str, Callable[[], Any]] = {
            name: partial(_listed, rows, of_row, of_batch) for name, (of_row, of_batch) in _OF_MESSAGES.items()
        }
        if self._decoder is not None:
            makers |= self._decoded(topic, rows, self._decoder)
        count = sum(row.messages if isinstance(row, BatchRows) else 1 for row in rows)
        return self._batch(count, {"topic": str(topic), "ledger_id": ledger_id}, makers)

    def _decoded(
        self, topic: TopicName, rows: Sequence[Row | BatchRows], decoder: Decoder
    ) -> dict[str, Callable[[], Any]]:
        """Return the makers of the columns that depend on values."""
        values, wrong = decoder.array(map(_contents, rows), self._arrow.field("value").type)
        if wrong and not self._malformed:
            at, why = min(wrong.items())
            raise BrokenValue(
                Condition.MALFORMED,
                f"{topic}, message {_place(rows, at)}: its value does not fit the schema: {why}",
                hint="give all versions of the schema (`pulsar-admin schemas get --all-version`) and run it again: a "
                "stream continues from its checkpoint here; skip=malformed leaves such values null and says why",
            )

        def listed(name: str) -> list[Any]:
            return _listed(rows, *_OF_MESSAGES[name])

        def changed(name: str, error: Callable[[int], Any]) -> list[Any]:
            found = listed(name)
            for at in wrong:
                found[at] = error(at)
            return found

        def undecoded() -> list[Any]:
            sent = _listed(rows, _undecoded, _same(_nothing))
            if wrong:
                whole = listed("value")
                for at in wrong:
                    sent[at] = whole[at]
            return sent

        return {
            "value": lambda: values,
            "state": lambda: changed("state", lambda _: MALFORMED),
            "reason": lambda: changed("reason", lambda at: wrong[at]),
            "undecoded": undecoded,
        }

    def _batch(self, count: int, same: dict[str, Any], makers: dict[str, Callable[[], Any]]) -> pa.RecordBatch:
        """Return a batch: columns with one value for all rows, those of makers, and the others as nulls."""
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


def _contents(row: Row | BatchRows) -> SameVersion:
    """Return what is to be decoded of a row, or of the messages of a batch."""
    if isinstance(row, BatchRows):
        return SameVersion(row.batch.values, row.batch.whole.schema_version, row.batch.keys)
    one = row.message
    plain = one.state is MessageState.PLAIN
    content = one.data if plain and not one.tombstone else None
    return SameVersion([content], one.schema_version, [one.key if plain else None])


def _undecoded(row: Row) -> bytes | None:
    """Return what was sent of a message that is not plain."""
    return None if row.message.tombstone or row.message.state is MessageState.PLAIN else row.message.data


def _place(rows: Sequence[Row | BatchRows], at: int) -> str:
    """Return the position of a message by its place among the messages of rows."""
    for row in rows:
        if isinstance(row, BatchRows):
            if at < row.messages:
                return f"{row.batch.whole.position}:{at}"
            at -= row.messages
        elif not at:
            inside = row.message.batch_index
            return f"{row.message.position}" + (f":{inside}" if inside >= 0 else "")
        else:
            at -= 1
    raise IndexError(at)


def _listed(
    rows: Sequence[Row | BatchRows], of_row: Callable[[Row], Any], of_batch: Callable[[BatchRows], list[Any]]
) -> list[Any]:
    """Return one column of rows; those of a plain batch are made together."""
    found: list[Any] = []
    for row in rows:
        if isinstance(row, BatchRows):
            found += of_batch(row)
        else:
            found.append(of_row(row))
    return found


def _same(of: Callable[[BatchRows], Any]) -> Callable[[BatchRows], list[Any]]:
    """Return a maker of the same value for all messages of a batch."""
    return lambda rows: [of(rows)] * rows.messages


def _sent(one: Message, value: Any) -> Any:  # noqa: ANN401 - any column's value
    """Return a producer's value; null for an entry that is no message."""
    return None if one.state is MessageState.RAW else value


def _nothing(_: object) -> None:
    """Return null, for columns that a plain message does not have."""


_OF_MESSAGES: dict[str, tuple[Callable[[Row], Any], Callable[[BatchRows], list[Any]]]] = {
    "entry_id": (lambda row: row.message.position.entry_id, _same(lambda rows: rows.batch.whole.position.entry_id)),
    "payload": (lambda row: row.payload, lambda rows: [rows.payload] + [None] * (rows.messages - 1)),
    "time": (lambda row: _time(row.time_ms), _same(lambda rows: _time(rows.time_ms))),
    "broker_timestamp": (
        lambda row: _time(row.message.broker_ms),
        _same(lambda rows: _time(rows.batch.whole.broker_ms)),
    ),
    "index": (lambda row: _long(row.message.index), lambda rows: list(map(_long, rows.batch.indexes))),
    "batch_index": (
        lambda row: row.message.batch_index if row.message.batch_index >= 0 else None,
        lambda rows: list(range(rows.messages)),
    ),
    "key": (lambda row: row.message.key, lambda rows: rows.batch.keys),
    "properties": (lambda row: tuple(dict(row.message.properties).items()), lambda rows: rows.batch.properties),
    "publish_time": (lambda row: _time(row.message.publish_ms), _same(lambda rows: _time(rows.batch.whole.publish_ms))),
    "event_time": (lambda row: _time(row.message.event_ms), lambda rows: list(map(_time, rows.batch.event_ms))),
    "producer": (lambda row: _sent(row.message, row.message.producer), _same(lambda rows: rows.batch.whole.producer)),
    "sequence_id": (
        lambda row: _sent(row.message, _long(row.message.sequence_id)),
        lambda rows: list(map(_long, rows.batch.sequence_ids)),
    ),
    "value": (lambda row: None if row.message.tombstone else row.message.data, lambda rows: rows.batch.values),
    "state": (lambda row: row.message.state.value, _same(lambda rows: rows.batch.whole.state.value)),
    "chunk_id": (lambda row: row.message.chunk.index if row.message.chunk else None, _same(_nothing)),
    "num_chunks": (lambda row: row.message.chunk.count if row.message.chunk else None, _same(_nothing)),
    "chunk_uuid": (lambda row: row.message.chunk.message if row.message.chunk else None, _same(_nothing)),
    "transaction_id": (lambda row: str(row.message.transaction) if row.message.transaction else None, _same(_nothing)),
    "transaction_state": (lambda row: row.transaction_state, _same(_nothing)),
    "reason": (lambda row: row.message.reason or None, _same(_nothing)),
}
"""The makers of each column, from a message alone, and from all messages of a plain batch."""


def _longs(values: Sequence[int]) -> pa.Array:
    """Return 64-bit numbers without nulls; `pa.array` imports pandas first, half a second of a worker's time."""
    found = np.fromiter(values, np.int64, len(values))
    return pa.Array.from_buffers(pa.int64(), len(found), [None, pa.py_buffer(found)])


def joined(payloads: Sequence[bytes]) -> pa.Array:
    """Return payloads as binaries without nulls, each copied once. Raises InvalidInput for 2 GiB or more."""
    places = np.cumsum([0, *map(len, payloads)], dtype=np.int64)
    if places[-1] > PLACE_MAX:
        raise InvalidInput(
            f"{len(payloads)} payloads with {places[-1]} bytes: a batch for Spark has less than 2 GiB of a column",
            hint="name the columns of the query, without payload",
        )
    buffers = [None, pa.py_buffer(places.astype(np.int32)), pa.py_buffer(b"".join(payloads))]
    return pa.Array.from_buffers(pa.binary(), len(payloads), buffers)


def _masked(values: Sequence[Any], mask: Sequence[bool]) -> list[Any]:
    return [value for value, keep in zip(values, mask, strict=True) if keep]


def _of_heads(payloads: Sequence[bytes]) -> dict[str, Callable[[], Any]]:
    """Return the makers of the columns from brokers' heads, which are read together where all are alike."""
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
