"""A target that is a table of Delta Lake in a folder, appended to or updated by key.

    FOLDER/data/<number>-<id>/_day=2026-11-21/<file>.parquet   the files of a round; with a key until they are merged

Without a partition they are in the round's folder itself. The partition is a column of the table: `_day` is a date,
`_hour` a text as 2026-11-21-13, `_month` one as 2026-11.

The positions are application transactions of the format (`txn` actions): the ledger and the entry up to which all of a
topic is in the table, and the number of the commit. They come with the data in one commit, stay in checkpoints, and
make the library refuse the second of two writers that began from the same number. A restored table keeps them, although
its data are older; so a table that was restored to before the last commit is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as arrow
import pyarrow.fs
from pyarrow import parquet
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DateType, StringType, StructField, StructType

from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import Conflict, InvalidConfig, OffloaderError
from offloaderd.spark.export.commit import (
    DELETED,
    DIGITS,
    Commit,
    Upkeep,
    as_target_error,
    check_written,
    first_line,
    fitted,
    to_join,
)
from offloaderd.spark.files import SparkFiles
from offloaderd.spark.scan.query import parsed
from offloaderd.spark.session import check_libraries
from offloaderd.tables.layout import NO_VALUE, Layout, Partition

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable
    from deltalake.transaction import AddAction, RemoveAction

OURS = "offloaderd"
SOURCE = f"{OURS}.source"
"""Property of the table: what it is made of."""
STAGING = f"{OURS}.staging"
"""In the information of a commit: the name of its round."""
NUMBER, APART = f"{OURS}.number", f"{OURS}.apart"
ABSENT = -1
COMMITS_SEEN = 50
"""Commits that are looked at for our last one at first; behind more of others, such as compactions, all are."""
COMMIT_TRIES = 15
"""Tries of a commit while others, which are no writers of ours, commit to the same table."""


class DeltaTarget:
    """A table in a folder; see ExportTarget. `key`: the columns that identify a row, none for a table of all rows."""

    def __init__(
        self,
        spark: SparkSession,
        folder: str,
        columns: StructType,
        topics: Iterable[str],
        *,
        layout: Layout,
        order: Sequence[str] = (),
        key: Sequence[str] = (),
    ) -> None:
        """Name the table of these topics. `order`: with a key, the columns by which a row is newer than another."""
        check_libraries("delta")
        self._files = SparkFiles(spark, folder)
        self._columns = columns
        self._topics = sorted(topics)
        self._layout, self._key, self._order = layout, tuple(key), tuple(order)
        self.target = f"table in {folder}"

    def last(self, source: dict[str, str]) -> Commit:
        """See ExportTarget; positions are those of the target's topics."""
        table = self._table()
        return Commit(number=0, source=source, positions={}) if table is None else self._last_of(table, source)

    def recover(self, source: dict[str, str]) -> Commit:
        """See ExportTarget."""
        if self._table() is None:
            self._create(source)
        table = self._loaded()
        last = self._last_of(table, source)
        if committed := self._staging_of(table):  # files of the next number may be those of a running writer
            for name in self._files.names("data"):
                if name.startswith(f"{last.number:0{DIGITS}}-") and name != committed:
                    self._files.delete(f"data/{name}")
        return last

    def fit(self, columns: StructType, aliases: Mapping[str, Sequence[str]]) -> None:
        """See KeptTable; a field that was renamed is a new column."""
        del aliases
        fitted(columns, self._schema(self._loaded()))
        self._columns = columns

    def named(self, columns: StructType) -> StructType:
        """See ExportTarget; a column of a wider type keeps it."""
        return fitted(columns, self._schema(self._loaded()))

    def staging(self, last: Commit) -> str:
        """See ExportTarget."""
        return self._files.url(f"data/{last.next_name()}")

    def commit(
        self,
        last: Commit,
        staging: str,
        positions: dict[str, str],
        rows: int,
        apart: int | None = None,
        files: Sequence[str] | None = None,
    ) -> Commit:
        """See KeptTable."""
        name = staging.rpartition("/")[2]
        made = last.following(name, positions, rows, apart)
        table = self._loaded()
        self._last_of(table, last.source)
        kept = files
        files = self._files.parquet(f"data/{name}") if kept is None else kept
        with as_target_error(self.target):
            self._evolve(table)
        if (self._version(table, NUMBER) or 0) != last.number:  # adding columns has moved it to the newest version
            raise self._second()
        check_written(made, files)
        try:
            if self._key and files:
                self._merge(table, staging, files, made)
            if not self._key or self._staging_of(table) != name:
                # The library commits no merge that changes no row.
                self._append(table, name, [] if self._key else files, made)
        except Exception as error:
            table = self._loaded()
            if self._staging_of(table) != name:  # else it was done, and the answer lost
                if (self._version(table, NUMBER) or 0) != last.number:
                    raise self._second() from error
                raise OffloaderError(
                    f"{self.target}: cannot commit: {first_line(error)}",
                    hint="run it again: nothing of this round was added",
                ) from error
        if self._key:
            self._files.delete(f"data/{name}")  # the merge has written its rows to other files
        if kept is not None:
            self._files.keep(f"data/{name}", kept)
        return made

    def upkeep(self, keep_s: float) -> Upkeep:
        """See KeptTable."""
        table = self._loaded()
        with as_target_error(self.target):
            # The library puts the rows of one file behind those of another.
            joined = self._join(table) if self._layout.sort else table.optimize.compact()["numFilesRemoved"]
            table = self._loaded()
            deleted = table.vacuum(retention_hours=ceil(keep_s / 3600), dry_run=False, enforce_retention_duration=False)
        return Upkeep(joined, len(deleted))

    def _join(self, table: DeltaTable) -> int:
        """Join small files of each partition, in the order of the layout; return how many."""
        data = table.to_pyarrow_dataset()  # which refuses what it cannot read, as deletion vectors
        fragments = {one.path: one for one in data.get_fragments()}
        files = [
            (tuple(one[f"partition.{name}"] for name in self._partitions), one, one["size_bytes"])
            for one in pa.table(table.get_add_actions(flatten=True)).to_pylist()
        ]
        joined = 0
        for values, taken in to_join(files):
            found = [fragments[one["path"]] for one in taken]
            rows = arrow.FileSystemDataset(found, data.schema, data.format, data.filesystem).to_table()
            texts = [None if one is None else str(one) for one in values]
            self._replace_files(table, dict(zip(self._partitions, texts, strict=True)), taken, rows)
            joined += len(taken)
        return joined

    def _replace_files(
        self, table: DeltaTable, partition: dict[str, str | None], files: Sequence[dict[str, Any]], rows: pa.Table
    ) -> None:
        """Replace files of a partition by one with their rows."""
        from deltalake.transaction import RemoveAction  # noqa: PLC0415 - optional

        folder = f"data/joined-{SystemClock().uuid()}"
        for name, text in partition.items():
            folder += f"/{name}={NO_VALUE if text is None else text}"
        self._files.make(folder)
        path = f"{folder}/part-0.parquet"
        kept = rows.sort_by([(name, "ascending") for name in self._layout.sort]).drop_columns([*partition])
        target, place = _local(self._files.url(path))
        with target.open_output_stream(place) as file:
            parquet.write_table(kept, file)
        now_ms = SystemClock().wall_ms()
        gone = [RemoveAction(one["path"], False, now_ms, one["size_bytes"], partition) for one in files]
        added = self._added(path, partition, now_ms, data_change=False)
        table.create_write_transaction([added, *gone], "append", table.schema(), self._partitions)

    def discard(self, staging: str) -> None:
        """See KeptTable."""
        self._files.delete(f"data/{staging.rpartition('/')[2]}")

    def _second(self) -> Conflict:
        return Conflict(
            f"another writer has committed to {self.target} meanwhile",
            hint="nothing of this round was added; run one writer of a table at a time",
        )

    def _append(self, table: DeltaTable, name: str, files: Sequence[str], made: Commit) -> None:
        now_ms = SystemClock().wall_ms()
        added: list[AddAction | RemoveAction] = [
            self._added(f"data/{name}/{file}", self._partition_of(file), now_ms, data_change=True) for file in files
        ]
        table.create_write_transaction(
            added, "append", table.schema(), self._partitions, commit_properties=self._properties(made)
        )

    def _merge(self, table: DeltaTable, staging: str, files: Sequence[str], made: Commit) -> None:
        """Apply the rows of a round, of which each key has one."""
        folder, path = _local(staging)
        there = pa.schema(table.schema().to_arrow())  # a field that the round lacks is null
        rows = arrow.dataset(
            [f"{path}/{file}" for file in files],
            schema=there.append(pa.field(DELETED, pa.bool_())),
            filesystem=folder,
            format="parquet",
            partitioning=arrow.partitioning(pa.schema([there.field(name) for name in self._partitions]), flavor="hive"),
            partition_base_dir=path,
        )
        same = " AND ".join(f'target."{name}" = round."{name}"' for name in self._key)
        newer = _is_newer(self._order)
        values = {f'"{name}"': f'round."{name}"' for name in there.names}
        (
            table.merge(
                source=rows.scanner().to_reader(),
                predicate=same,
                source_alias="round",
                target_alias="target",
                commit_properties=self._properties(made),
            )
            .when_matched_delete(f'round."{DELETED}" AND {newer}')
            .when_matched_update(values, newer)
            .when_not_matched_insert(values, f'NOT round."{DELETED}"')
            .execute()
        )

    def _partition_of(self, file: str) -> dict[str, str | None]:
        """Return the partition of a file of a round."""
        value = unquote(file.partition("/")[0].partition("=")[2])
        return dict.fromkeys(self._partitions, None if value == NO_VALUE else value)

    def _properties(self, made: Commit) -> CommitProperties:
        from deltalake import CommitProperties, Transaction  # noqa: PLC0415 - optional

        numbers = {NUMBER: made.number, APART: made.apart}
        for topic, text in made.positions.items():
            at, created_ms = parsed(text)
            numbers |= {_of(topic, "ledger"): at.ledger_id, _of(topic, "entry"): at.entry_id}
            numbers |= {_of(topic, "created"): ABSENT if created_ms is None else created_ms}
        transactions = [Transaction(name, number) for name, number in numbers.items()]
        return CommitProperties(
            custom_metadata={STAGING: made.staging}, app_transactions=transactions, max_commit_retries=COMMIT_TRIES
        )

    def _last_of(self, table: DeltaTable, source: Mapping[str, str]) -> Commit:
        """Return the last commit.

        Raises InvalidConfig for a table of another source or with another partition, OffloaderError for a restored one.
        """
        known = json.loads(table.metadata().configuration.get(SOURCE, "null"))
        if known is None:
            raise InvalidConfig(f"{self.target} was not made by offloaderd", hint="name another folder")
        if known != source:
            said = ", ".join(f"{name} {value}" for name, value in known.items())
            raise InvalidConfig(f"{self.target} is made of something else: {said}", hint="name another folder")
        there = ",".join(table.metadata().partition_columns)
        self._layout.check(self.target, there.removeprefix("_") or Partition.NONE)
        if self._is_restored(table):
            raise OffloaderError(
                f"{self.target} was restored to an older version, and how far it reaches is not known any more",
                hint="restore the version of the last commit of offloaderd, or make the table anew in another folder",
            )
        positions = {topic: at for topic in self._topics if (at := self._position(table, topic)) is not None}
        number, apart = self._version(table, NUMBER), self._version(table, APART)
        return Commit(number=number or 0, source=dict(source), positions=positions, apart=apart or 0)

    def _is_restored(self, table: DeltaTable) -> bool:
        """Return whether a table has the data of a version before our last commit."""
        newest, commits = self._last_commits(table)
        at = table.version()
        while at > newest:
            restored = next((one for one in commits if one["version"] <= at and one["operation"] == "RESTORE"), None)
            if restored is None or restored["version"] < newest:
                return False
            target = str(restored.get("operationParameters", {}).get("version", ""))
            if not target.isdecimal():  # restored to a time
                return True
            at = int(target)
        return at < newest

    def _last_commits(self, table: DeltaTable) -> tuple[int, list[dict[str, Any]]]:
        """Return the version of our last commit, -1 for none that is known, and the commits since, newest first."""
        for limit in (COMMITS_SEEN, None):
            commits = table.history(limit)
            newest = next((one["version"] for one in commits if STAGING in one), None)
            if newest is not None:
                return int(newest), commits
        return -1, []

    def _position(self, table: DeltaTable, topic: str) -> str | None:
        ledger_id, entry_id = self._version(table, _of(topic, "ledger")), self._version(table, _of(topic, "entry"))
        if ledger_id is None or entry_id is None:
            return None
        created_ms = self._version(table, _of(topic, "created"))
        return f"{ledger_id}:{entry_id}" + (f"@{created_ms}" if created_ms not in {None, ABSENT} else "")

    def _version(self, table: DeltaTable, name: str) -> int | None:
        found: int | None = table.transaction_version(name)
        return found

    def _staging_of(self, table: DeltaTable) -> str:
        """Return the name of the last round; empty for none that is known."""
        return next((str(one[STAGING]) for one in self._last_commits(table)[1] if STAGING in one), "")

    def _evolve(self, table: DeltaTable) -> None:
        """Add the columns and fields that the table lacks, in a commit without rows."""
        from deltalake import write_deltalake  # noqa: PLC0415 - optional

        wanted = self._arrow(fitted(self._columns, self._schema(table)))
        there = set(_places(pa.schema(table.schema().to_arrow())))
        if not set(_places(wanted)) <= there:
            write_deltalake(table, wanted.empty_table(), mode="append", schema_mode="merge")
            table.update_incremental()

    def _create(self, source: Mapping[str, str]) -> None:
        from deltalake import DeltaTable  # noqa: PLC0415
        from deltalake.exceptions import DeltaError  # noqa: PLC0415

        if others := [name for name in self._files.names("") if not name.startswith((".", "_"))]:
            raise InvalidConfig(f"{self.target}: the folder holds {others[0]}", hint="name an empty folder")
        with as_target_error(self.target):
            try:
                DeltaTable.create(
                    self._files.root,
                    schema=self._arrow(self._columns),
                    mode="error",
                    partition_by=self._partitions,
                    configuration={SOURCE: json.dumps(source)},
                    raise_if_key_not_exists=False,
                )
            except DeltaError:
                if self._table() is None:
                    raise

    @property
    def _partitions(self) -> list[str]:
        return [self._layout.name] if self._layout.name else []

    def _arrow(self, columns: StructType) -> pa.Schema:
        kept = [one for one in columns.fields if one.name != DELETED or not self._key]
        kind = DateType() if self._layout.partition is Partition.DAY else StringType()
        partitions = [StructField(name, kind) for name in self._partitions]
        return to_arrow_schema(StructType([*kept, *partitions]), timezone="UTC")

    def _schema(self, table: DeltaTable) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415

        return from_arrow_schema(pa.schema(table.schema().to_arrow()))

    def _added(self, path: str, partition: Mapping[str, str | None], now_ms: int, *, data_change: bool) -> AddAction:
        """Return the action that adds a file; readers know from it how many rows there are."""
        from deltalake.transaction import AddAction  # noqa: PLC0415 - optional

        files, place = _local(self._files.url(path))
        with files.open_input_file(place) as opened:
            size, rows = opened.size(), parquet.ParquetFile(opened).metadata.num_rows
        return AddAction(
            path=path,
            size=size,
            partition_values=partition,
            modification_time=now_ms,
            data_change=data_change,
            stats=json.dumps({"numRecords": rows}),
        )

    def _table(self) -> DeltaTable | None:
        from deltalake import DeltaTable  # noqa: PLC0415 - optional
        from deltalake.exceptions import TableNotFoundError  # noqa: PLC0415

        with as_target_error(self.target):
            try:
                return DeltaTable(self._files.root)
            except TableNotFoundError:
                return None

    def _loaded(self) -> DeltaTable:
        table = self._table()
        if table is None:
            raise OffloaderError(f"{self.target} was deleted meanwhile", hint="run it again to write all of it")
        return table


def _local(url: str) -> tuple[pa.fs.FileSystem, str]:
    """Return a folder of this machine, and the path in it."""
    return pa.fs.LocalFileSystem(), unquote(url.removeprefix("file:")).replace("///", "/", 1)


def _of(topic: str, what: str) -> str:
    """Return the id of the application transaction with a number of a topic."""
    return f"{OURS}.{what}:{topic}"


def _is_newer(order: Sequence[str]) -> str:
    """Return the condition that a row of the round is newer than that of the table; a null is the least number."""
    texts = []
    for at, name in enumerate(order):
        same = [f"{_number('round', one)} = {_number('target', one)}" for one in order[:at]]
        texts.append(" AND ".join([*same, f"{_number('round', name)} > {_number('target', name)}"]))
    return "(" + " OR ".join(f"({text})" for text in texts) + ")" if texts else "TRUE"


def _number(side: str, name: str) -> str:
    return f'COALESCE({side}."{name}", -1)'


def _places(schema: pa.Schema | pa.StructType, before: str = "") -> Iterator[str]:
    """Yield the place of each column and field."""
    for one in schema:
        yield before + one.name
        inner = one.type
        while pa.types.is_list(inner) or pa.types.is_large_list(inner) or pa.types.is_map(inner):
            inner = inner.item_type if pa.types.is_map(inner) else inner.value_type
        if pa.types.is_struct(inner):
            yield from _places(inner, f"{before}{one.name}.")
