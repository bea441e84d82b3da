"""Steps of tables that have all rows: Spark's tasks make rows out of Arrow's batches, and write them to Parquet.

No row passes through Java. A task holds rows until they are a row group, by partition, and has few files open:

    STAGING/_day=2026-11-21/<id>.parquet    as Spark's own writer names partitions; without one: STAGING/<id>.parquet

Spark may run a task twice. So each attempt has names of its own, and only the files that the job has returned count:
those of the attempt of each task that Spark took. Whoever commits them deletes the others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import OffloaderError
from offloaderd.format.pulsar.messages import MessageState
from offloaderd.spark.errors import brief
from offloaderd.spark.scan.columns import MALFORMED
from offloaderd.spark.scan.read import rows as read_rows
from offloaderd.tables.layout import NO_VALUE, Layout, Partition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from offloaderd.spark.scan.query import EntryQuery
    from offloaderd.spark.scan.share import Share, Task

STATE = "state"
PLAIN = MessageState.PLAIN.value
"""The state of a message that is a row."""
UNREADABLE = (MALFORMED, *(one.value for one in (MessageState.ENCRYPTED, MessageState.RAW, MessageState.INCOMPLETE)))
"""The states of those that are neither rows nor parts of others; so is a row without a state: entries that are lost."""
PARTITION_NUMBER = "-partition-(0|[1-9][0-9]*)$"
"""The end of the name of a topic that is a partition, with its number; for Python and Java alike."""

HELD_BYTES = 64 * 1024 * 1024
"""Bytes of rows that a task holds, of all partitions together; a row group has no more."""
OPEN_FILES = 4
"""Files that a task has open: of further partitions rows are held, and a file is ended if there are too many rows."""
CODECS = {"uncompressed": "none", "lz4_raw": "lz4"}
"""Spark's names of compressions that Arrow has by another one."""
_UNIT = {Partition.HOUR: 3600, Partition.DAY: 86_400, Partition.MONTH: 86_400}
_TEXT = {Partition.HOUR: "%Y-%m-%d-%H", Partition.DAY: "%Y-%m-%d", Partition.MONTH: "%Y-%m"}


class Origin(NamedTuple):
    """What a column is made of: a column of the source, or a field in it, as it is or as `sql` and `made` have it."""

    place: tuple[str, ...]
    sql: str = "{}"
    made: Callable[[pa.Array], pa.Array] | None = None

    @property
    def text(self) -> str:
        """The expression of Spark."""
        return self.sql.format(".".join(f"`{name}`" for name in self.place))

    def of(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the column of a batch of the source."""
        found, inside = batch.column(self.place[0]), self.place[1:]
        found = pc.struct_field(found, [*inside]) if inside else found
        return found if self.made is None else self.made(found)


def partition_numbers(topics: pa.Array) -> pa.Array:
    """Return the numbers of partitions; null for a topic without."""
    names = topics.dictionary_encode()
    found = [re.search(PARTITION_NUMBER, name) for name in names.dictionary.to_pylist()]
    return pa.array([int(one[1]) if one else None for one in found], pa.int32()).take(names.indices)


def batch_indexes(found: pa.Array) -> pa.Array:
    """Return -1 outside of batches."""
    return pc.fill_null(found, pa.scalar(-1, found.type))


def are_null(found: pa.Array) -> pa.Array:
    """Return whether there is no value."""
    return found.is_null()


class Wrote(NamedTuple):
    """What tasks have written: rows, messages left out, and files by their paths in staging."""

    rows: int
    apart: int
    files: Sequence[str] | None
    """None: all that are there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Appending:
    """The work of each task; Spark calls it with one share.

    `origins`: what columns are made of, by their names in a round, `schema` their names and types in the table.
    `folder`: the staging, which exists: an attempt that outlives its job does not make it again.
    """

    task: Task
    query: EntryQuery
    folder: Path
    origins: Mapping[str, Origin]
    schema: pa.Schema
    layout: Layout
    codec: str = "snappy"

    @brief
    def __call__(self, shares: Iterable[Share]) -> Iterator[Wrote]:
        """Write the rows of shares. Raises OffloaderError for a file that cannot be written, and as the source does."""
        for share in shares:
            yield self.write(self.batches(share))

    def batches(self, share: Share) -> Iterator[pa.RecordBatch]:
        """Yield what the source has of a share. Raises as it does."""
        return read_rows(self.task, share, self.query)

    def write(self, batches: Iterable[pa.RecordBatch]) -> Wrote:
        """Write the rows of batches; an attempt that fails deletes its files. Raises OffloaderError."""
        codec = self.codec.lower()  # Spark takes any case
        files = Files(self.folder, self.schema, self.order, CODECS.get(codec, codec))
        count = apart = 0
        try:
            for batch in batches:
                plain = pc.fill_null(pc.equal(batch.column(STATE), PLAIN), fill_value=False)
                if plain.true_count < len(batch):
                    apart += pc.is_in(batch.column(STATE), value_set=_APART).true_count
                    batch = batch.filter(plain)  # noqa: PLW2901 - the rest is no row
                for folder, rows in self._partitions(batch):
                    files.add(folder, rows)
                count += len(batch)
            files.end()
        except BaseException:
            files.delete()
            raise
        return Wrote(count, apart, files.names)

    @property
    def order(self) -> list[str]:
        """The columns that order the rows of a file, as they are named in the table."""
        return [self.schema.names[list(self.origins).index(name)] for name in self.layout.sort]

    def _partitions(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield the rows of a batch by the folders of their partitions."""
        columns = [one.of(batch) for one in self.origins.values()]
        fitted = [as_type(one, kind) for one, kind in zip(columns, self.schema.types, strict=True)]
        rows = pa.RecordBatch.from_arrays(fitted, schema=self.schema)
        if not self.layout.name:
            yield "", rows
            return
        times = columns[list(self.origins).index(self.layout.column)]
        units = pc.divide(times.view(pa.int64()), _UNIT[self.layout.partition] * 1_000_000)
        texts: dict[str, list[int | None]] = {}
        for unit in units.unique().to_pylist():
            texts.setdefault(self._text(unit), []).append(unit)
        for text, found in texts.items():
            mine = pc.is_in(units, value_set=pa.array(found, pa.int64())) if len(texts) > 1 else None
            yield f"{self.layout.name}={text}", rows if mine is None else rows.filter(mine)

    def _text(self, unit: int | None) -> str:
        """Return the partition of an hour or a day since 1970."""
        if unit is None:
            return NO_VALUE
        at = datetime.fromtimestamp(unit * _UNIT[self.layout.partition], UTC)
        return at.strftime(_TEXT[self.layout.partition])


_APART = pa.array([*UNREADABLE, None], pa.string())


def as_type(found: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return an array as a type whose fields are named otherwise, or are wider: each is at its place."""
    if found.type == kind:
        return found
    missing = found.is_null()
    if pa.types.is_struct(kind):
        fields = [as_type(one, kind.field(at).type) for at, one in enumerate(found.flatten())]
        return pa.StructArray.from_arrays(fields, fields=[*kind], mask=missing)
    if pa.types.is_map(kind):
        keys, items = as_type(found.keys, kind.key_type), as_type(found.items, kind.item_type)
        return pa.MapArray.from_arrays(found.offsets, keys, items, kind, mask=missing)
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(found.offsets, as_type(found.values, kind.value_type), kind, mask=missing)
    return found.cast(kind)


class Files:
    """The files of one attempt; rows are held until there are enough of them. `order`: the columns of a sorted file."""

    def __init__(self, folder: Path, schema: pa.Schema, order: Sequence[str], codec: str) -> None:
        self._folder, self._schema, self._codec = folder, schema, codec
        self._order = [(name, "ascending") for name in order]
        self._held: dict[str, list[pa.RecordBatch]] = {}
        self._bytes: dict[str, int] = {}
        self._open: dict[str, parquet.ParquetWriter] = {}
        self.held_bytes = 0
        self.names: list[str] = []

    def add(self, partition: str, rows: pa.RecordBatch) -> None:
        """Add rows of a partition, the path of its folder. Raises OffloaderError."""
        self._held.setdefault(partition, []).append(rows)
        self._bytes[partition] = self._bytes.get(partition, 0) + rows.nbytes
        self.held_bytes += rows.nbytes
        while self.held_bytes > HELD_BYTES:
            self._write(max(self._bytes, key=lambda one: self._bytes[one]))

    def end(self) -> None:
        """Write what is held, and end all files. Raises OffloaderError."""
        for partition in [*self._held]:
            self._write(partition)
        for partition in [*self._open]:
            self._end(partition)

    def delete(self) -> None:
        """Delete the files."""
        for writer in self._open.values():
            with suppress(OSError, pa.ArrowException):
                writer.close()
        for name in self.names:
            with suppress(OSError):
                (self._folder / name).unlink()

    def _write(self, partition: str) -> None:
        """Write the rows of a partition as a row group; sorted ones are a file, as those that follow are not behind."""
        rows = pa.Table.from_batches(self._held.pop(partition), self._schema)
        self.held_bytes -= self._bytes.pop(partition)
        if self._order:
            rows = rows.sort_by(self._order)
        if not len(rows):
            return
        writer = self._open.pop(partition, None) or self._begun(partition)
        self._open[partition] = writer  # the one that was written to last is the last one
        with self._writing():
            writer.write_table(rows)
        if self._order:
            self._end(partition)

    def _begun(self, partition: str) -> parquet.ParquetWriter:
        while len(self._open) >= OPEN_FILES:
            self._end(next(iter(self._open)))
        folder = self._folder / partition
        name = f"{SystemClock().uuid()}.parquet"
        self.names.append(f"{partition}/{name}" if partition else name)
        with self._writing():
            if partition:
                folder.mkdir(exist_ok=True)
            return parquet.ParquetWriter(
                str(folder / name),
                self._schema,
                compression=self._codec,
                store_schema=False,  # as Spark's files, which say nothing of Arrow's types
                store_decimal_as_integer=True,
                write_page_index=True,
            )

    def _end(self, partition: str) -> None:
        with self._writing():
            self._open.pop(partition).close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            raise OffloaderError(f"{self._folder}: cannot write rows: {error}") from error


def append(spark: SparkSession, work: Appending, shares: Sequence[Share]) -> Wrote:
    """Have tasks write the rows of shares, one each. Raises errors of Spark."""
    if not shares:
        return Wrote(0, 0, ())
    work.folder.mkdir(parents=True, exist_ok=True)
    found: list[Wrote] = spark.sparkContext.parallelize(shares, len(shares)).mapPartitions(work).collect()
    files = [file for one in found for file in one.files or ()]
    return Wrote(sum(one.rows for one in found), sum(one.apart for one in found), files)
