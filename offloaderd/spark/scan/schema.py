"""The columns of rows.

| column | of entries | of messages |
|---|---|---|
| `payload` | the entry as it is stored | the same, in the row of the entry's first message alone |
| `time` | the broker's timestamp, else the producer's publish time | the same |
| `index` | PIP-70's, of the entry's last message | of this message |
| `value` | | as it was sent; by a schema, its type, and null where that is not possible |

A query may name fewer columns (`schema()`), which is cheaper: the others are not decoded.
"""

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

from offloaderd.core.errors import InvalidConfig
from offloaderd.spark.values.schema import ValueSchema
from offloaderd.spark.values.types import kind_of

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


def full_schema(
    *, messages: bool, skips: bool, values: ValueSchema | None = None, transactions: bool = False
) -> StructType:
    """Return all columns of a query with these options. Raises InvalidInput for values without a type in Spark."""
    columns = ENTRY_COLUMNS | (MESSAGE_COLUMNS if messages else {}) | (TRANSACTION_COLUMNS if transactions else {})
    columns |= SKIP_COLUMNS if skips else {}
    columns |= REASON if messages or skips else {}
    columns |= {"value": kind_of(values.newest).spark} if values is not None else {}
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
