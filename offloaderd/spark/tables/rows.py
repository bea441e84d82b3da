"""The rows of a table, of its dead letters, and the ones that are neither, out of rows of messages.

| column | |
|---|---|
| each field of a value that is a record, else `value` | as the schema says, else bytes |
| of a pair, before that: each field of a key that is a record, else `key` | as the schema says |
| `_topic`, `_partition` | the topic in full; the number of the partition, null without |
| `_ledger_id`, `_entry_id`, `_batch_index` | the position; -1 outside of batches |
| `_time` | the broker's time, else the publish time |
| `_publish_time`, `_event_time`, `_producer`, `_sequence_id`, `_key`, `_properties` | the message's |
| `_deleted` | appended rows: the message has no value |

A message is one row: chunks are in the row of the whole, and what a compaction left out is in none. With a key, an
empty value deletes a row as a missing one does: so Pulsar's compaction and its table views take it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as f
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from offloaderd.core.errors import InvalidInput
from offloaderd.spark.export.commit import DELETED
from offloaderd.spark.scan.columns import MALFORMED
from offloaderd.spark.tables.appending import (
    PARTITION_NUMBER,
    PLAIN,
    STATE,
    UNREADABLE,
    Appending,
    Origin,
    are_null,
    batch_indexes,
    partition_numbers,
)
from offloaderd.spark.value_schema import KeyValueSchema, read_schema
from offloaderd.tables.declaration import COLUMN, Declaration, TableMode
from offloaderd.tables.layout import KEY, TIME, Layout, Partition

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import Column, DataFrame

    from offloaderd.spark.scan.options import SourceOptions
    from offloaderd.spark.value_schema import Schema, ValueSchema

ORDER = ("_ledger_id", "_entry_id", "_batch_index")
"""The order of the messages of a topic, and of their rows in the table."""
VALUE = "value"
_RANK = "_rank"
SYSTEM: dict[str, DataType] = {
    "_topic": StringType(),
    "_partition": IntegerType(),
    "_ledger_id": LongType(),
    "_entry_id": LongType(),
    "_batch_index": IntegerType(),
    TIME: TimestampType(),
    "_publish_time": TimestampType(),
    "_event_time": TimestampType(),
    "_producer": StringType(),
    "_sequence_id": LongType(),
    KEY: BinaryType(),
    "_properties": MapType(StringType(), StringType()),
    DELETED: BooleanType(),
}
DEAD: dict[str, DataType] = {
    **{name: kind for name, kind in SYSTEM.items() if name not in {DELETED, "_properties"}},
    "state": StringType(),
    "reason": StringType(),
    "entries": LongType(),
    "message": BinaryType(),
}
"""Columns of dead letters: `entries` is how many entries a row stands for that are lost, `message` what was sent."""

_READ = (
    *("topic", "ledger_id", "entry_id", "batch_index", "time", "publish_time", "event_time", "producer"),
    *("sequence_id", "key", "properties", "value", "state", "skipped", "reason"),
)
_FROM = {
    "_topic": Origin(("topic",)),
    "_partition": Origin(
        ("topic",), f"CAST(nullif(regexp_extract({{}}, '{PARTITION_NUMBER}', 1), '') AS INT)", partition_numbers
    ),
    "_ledger_id": Origin(("ledger_id",)),
    "_entry_id": Origin(("entry_id",)),
    "_batch_index": Origin(("batch_index",), "coalesce({}, -1)", batch_indexes),
    TIME: Origin(("time",)),
    "_publish_time": Origin(("publish_time",)),
    "_event_time": Origin(("event_time",)),
    "_producer": Origin(("producer",)),
    "_sequence_id": Origin(("sequence_id",)),
    KEY: Origin(("key",)),
    "_properties": Origin(("properties",)),
}
_PLAIN = f"coalesce(state = '{PLAIN}', false)"
_UNREADABLE = f"coalesce(state IN {UNREADABLE}, true)"
_EMPTIED = f"coalesce(state = '{MALFORMED}' AND length(undecoded) = 0, false)"
"""An empty value does not fit most schemas."""


class _Field(NamedTuple):
    """A column of values: its place in a row of the source, and its type."""

    place: tuple[str, ...]
    kind: DataType


@dataclass(frozen=True, slots=True)
class TableRows:
    """The rows of one table. `values`: None for bytes; `key`: the columns of a table with a key."""

    values: Schema | None
    key: Sequence[str] = ()
    layout: Layout = field(default_factory=Layout)

    @property
    def fields(self) -> dict[str, DataType]:
        """The columns of values. Raises InvalidInput for fields that a table cannot have as columns."""
        found = {name: one.kind for name, one in self._fields.items()}
        taken = {*SYSTEM, Layout().name, self.layout.name, _RANK}
        _check_names(StructType([StructField(name, one) for name, one in found.items()]), [*taken], "")
        _check_columns("key", self.key, {**found, KEY: SYSTEM[KEY]})
        system = {name: one for name, one in SYSTEM.items() if name != DELETED or not self.key}
        _check_columns("sort", self.layout.sort, found | system)
        return found

    @property
    def _fields(self) -> dict[str, _Field]:
        """The columns of values with their places in a row of the source; of a pair those of the key come first."""
        if self.values is None:
            return {VALUE: _Field((VALUE,), BinaryType())}
        if not isinstance(self.values, KeyValueSchema):
            return _fields_of(VALUE, (VALUE,), self.values.type)
        found = _fields_of("key", (VALUE, "key"), self.values.key.type)
        for name, one in _fields_of(VALUE, (VALUE, VALUE), self.values.value.type).items():
            if found.setdefault(name, one).kind != one.kind:
                raise InvalidInput(
                    f"{name} is {found[name].kind.simpleString()} in the key and {one.kind.simpleString()} in "
                    "the value: a table has one column of that name"
                )
        return found

    @property
    def aliases(self) -> dict[str, Sequence[str]]:
        """The earlier names of fields, by their places in the columns."""
        if self.values is None:
            return {}
        if not isinstance(self.values, KeyValueSchema):
            return _aliases_of(VALUE, self.values)
        ours = _fields_of("key", (VALUE,), self.values.key.type)  # a column of both has the key's content
        found = _aliases_of(VALUE, self.values.value)
        found = {place: names for place, names in found.items() if place.partition(".")[0] not in ours}
        return found | _aliases_of("key", self.values.key)

    @property
    def columns(self) -> StructType:
        """All columns, with `_deleted`."""
        return StructType([StructField(name, kind) for name, kind in (self.fields | SYSTEM).items()])

    def read(self, source: StructType) -> StructType:
        """Return the columns of the source that are needed."""
        wanted = {*_READ, "undecoded"}
        return StructType([one for one in source.fields if one.name in wanted])

    @property
    def origins(self) -> dict[str, Origin]:
        """What all columns are made of; with a key, `_deleted` is true for an empty value as well."""
        value = (VALUE, VALUE) if isinstance(self.values, KeyValueSchema) else (VALUE,)
        fields = {name: Origin(one.place) for name, one in self._fields.items()}
        return fields | _FROM | {DELETED: Origin(value, "isnull({})", are_null)}

    def of(self, source: DataFrame) -> DataFrame:
        """Return the rows of the table; with a key the last one of each."""
        columns = {name: f.expr(one.text) for name, one in self.origins.items()}
        columns[DELETED] |= self._is_empty()
        rows = source.where(self._is_row()).select(*(one.alias(name) for name, one in columns.items()))
        if not self.key:
            return rows
        from pyspark.sql import Window  # noqa: PLC0415

        newest = Window.partitionBy(*self.key).orderBy(*(f.desc(name) for name in ORDER))
        return rows.withColumn(_RANK, f.row_number().over(newest)).where(f"{_RANK} = 1").drop(_RANK)

    @property
    def is_appended(self) -> bool:
        """Whether a task can write the rows that it finds: none is replaced by another, or goes to another task."""
        return not self.key and self.layout.partition is not Partition.BUCKET

    def appending(self, options: SourceOptions, named: StructType, folder: Path, codec: str) -> Appending:
        """Return the work of tasks that write appended rows. `named`: the columns, as the table has them."""
        names = {STATE} | {one.place[0] for one in self.origins.values()}
        read = StructType([one for one in options.columns.fields if one.name in names])
        return Appending(
            task=options.task(read),
            query=options.query,
            folder=folder,
            origins=self.origins,
            schema=to_arrow_schema(named, timezone="UTC"),
            layout=self.layout,
            codec=codec,
        )

    def apart(self) -> Column:
        """Return the condition of the rows that are neither in the table nor parts of others."""
        return (f.expr(_UNREADABLE) | f.expr(_PLAIN)) & ~self._is_row()

    def dead_letters(self, source: DataFrame) -> DataFrame:
        """Return the rows of dead letters."""
        system = [f.expr(one.text).alias(name) for name, one in _FROM.items() if name in DEAD]
        message = f.col("undecoded") if "undecoded" in source.columns else f.col(VALUE).cast(BinaryType())
        reason = f.coalesce(
            f.col("reason"),
            f.when(f.expr(_PLAIN), f.lit(f"no {', '.join(self.key)}")),
            f.concat(f.lit("it is "), f.col("state")),
        )
        rows = source.where(self.apart())
        return rows.select(
            *system,
            f.coalesce(f.col("state"), f.lit("lost")).alias("state"),
            reason.alias("reason"),
            (f.col("skipped") if "skipped" in source.columns else f.lit(None).cast(LongType())).alias("entries"),
            message.alias("message"),
        )

    def _is_row(self) -> Column:
        return (f.expr(_PLAIN) | self._is_empty()) & self._has_key()

    def _is_empty(self) -> Column:
        """Return whether a message deletes the row of its key by an empty value; of pairs none does."""
        if not self.key or isinstance(self.values, KeyValueSchema):
            return f.lit(False)
        one = self._fields.get(VALUE)
        plain = one is not None and one.place == (VALUE,) and isinstance(one.kind, StringType | BinaryType)
        empty = f.coalesce(f.length(VALUE) == 0, f.lit(False)) if plain else f.lit(False)
        return empty if self.values is None else empty | f.expr(_EMPTIED)

    def _has_key(self) -> Column:
        """Return whether a row has all of its key; a message without a value has only its own, or that of its pair."""
        found, fields = f.lit(True), self._fields
        for name in self.key:
            found = found & f.isnotnull(f.expr((_FROM[KEY] if name == KEY else Origin(fields[name].place)).text))
        return found


def _fields_of(name: str, place: tuple[str, ...], kind: DataType) -> dict[str, _Field]:
    """Return the fields of a record, or the one column of anything else."""
    if not isinstance(kind, StructType):
        return {name: _Field(place, kind)}
    return {one.name: _Field((*place, one.name), one.dataType) for one in kind.fields}


def _aliases_of(name: str, values: ValueSchema) -> dict[str, Sequence[str]]:
    """Return the earlier names of the fields of a record, or of those inside of the one column of anything else."""
    around = "" if isinstance(values.type, StructType) else f"{name}."
    return {around + place: names for place, names in values.aliases.items()}


def _check_names(kind: DataType, taken: Sequence[str], where: str) -> None:
    """Raise InvalidInput for names of fields that no table can have, at any depth."""
    if isinstance(kind, ArrayType):
        _check_names(kind.elementType, (), f"{where}[]")
    elif isinstance(kind, MapType):
        _check_names(kind.valueType, (), f"{where}{{}}")
    elif isinstance(kind, StructType):
        lower = [name.lower() for name in (*kind.names, *taken)]
        wrong = [name for name in kind.names if lower.count(name.lower()) > 1 or not COLUMN.fullmatch(name)]
        if wrong:
            place = f" at {where}" if where else ""
            raise InvalidInput(
                f"fields {', '.join(map(repr, wrong))} of the schema{place}: no table can have columns of these names",
                hint="letters, digits and _; other than by capital letters; and none of the table's own columns",
            )
        for one in kind.fields:
            _check_names(one.dataType, (), f"{where}.{one.name}".lstrip("."))


def _check_columns(what: str, names: Sequence[str], there: Mapping[str, DataType]) -> None:
    """Raise InvalidInput for columns that are not there, or whose values have no order."""
    if missing := [name for name in names if name not in there]:
        raise InvalidInput(f"{what} {', '.join(missing)}: no such column", hint=f"there are {', '.join(there)}")
    if wrong := [name for name in names if isinstance(there[name], StructType | ArrayType | MapType)]:
        raise InvalidInput(f"{what} {', '.join(wrong)}: not by a record, array or map")


def key_of(declared: Declaration) -> Sequence[str]:
    """Return the columns of the key of a declaration's tables; none where every message is a row."""
    return (declared.key or (KEY,)) if declared.mode is TableMode.UPSERT else ()


def check_schema(declared: Declaration) -> None:
    """Raise InvalidInput for a schema in a declaration that lacks a column of its key or order, or fits no table."""
    if declared.schema:
        _ = TableRows(read_schema(declared.schema), key_of(declared), declared.layout).fields


def dead_columns() -> StructType:
    """Return the columns of dead letters."""
    return StructType([StructField(name, kind) for name, kind in DEAD.items()])
