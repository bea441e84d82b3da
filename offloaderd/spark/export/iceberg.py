"""An export's target: a table of Apache Iceberg, partitioned by a time or a bucket, or not at all.

    LOCATION/data/<number>-<id>/day=2026-11-21/<file>.parquet    the files of a round; they stay there

A round is committed by one snapshot of the table, whose summary has the positions that it changed under
`offloaderd.commit`, so data and positions are always together. The same transaction puts the record of all positions
into the table's properties. A rollback of the table reverts the positions with the data, by the snapshots that it
reverts; other changes of the table (compaction, deletions) do not affect them.

The catalogue may be any of pyiceberg's; a folder has one of its own, a file of SQLite. It decides which of two exports
is first: the other gets an error, and its files are deleted with the next commit, like those of a crash.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import Conflict, InvalidConfig, OffloaderError
from offloaderd.spark.export.buckets import add_files, bucket_in
from offloaderd.spark.export.commit import (
    DELETED,
    DIGITS,
    NO_ALIASES,
    Commit,
    Move,
    Upkeep,
    as_target_error,
    check_written,
    decode,
    decode_move,
    fitted,
    renamed,
    to_join,
)
from offloaderd.spark.export.expiry import ORPHAN_S_MIN, expire, owns_files, snapshot_files, unnamed
from offloaderd.spark.export.iceberg_library import correct
from offloaderd.spark.files import SparkFiles
from offloaderd.spark.session import check_libraries
from offloaderd.tables.layout import KEY, Layout, Partition, bucket_text

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.partitioning import PartitionField
    from pyiceberg.table import FileScanTask, Table, Transaction
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.typedef import Record

COMMIT = "offloaderd.commit"
"""Property of the table: the record of the last commit; of a snapshot: the changes of its commit."""

SEQUENCE = "offloaderd.sequence"
"""Property of the table: sequence number of that commit's snapshot, to distinguish a rollback from an expiry."""

OWN_CATALOG = "catalog.db"
FORGETS = "write.metadata.delete-after-commit.enabled"
"""The property of a table by which a commit deletes the files of its metadata but the newest hundred."""
TIMES = {"year", "month", "day", "hour"}
"""Partitions by a time. One of another column is a user's; the library says whether files can be added to it."""
_OPENING = threading.Lock()
"""Two threads that make the catalogue of a folder at once would both begin with its tables."""
COMMIT_TRIES = 10
"""Tries of a commit while other programs, which are no exports, commit to the same table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergTable:
    """A table by its name (`NAMESPACE.TABLE`): in a folder's own catalogue, or in one of pyiceberg's settings."""

    name: str
    folder: str | None = None
    catalog: str | None = None

    def __str__(self) -> str:
        """Return its name in messages."""
        return f"table {self.name} in {self.folder or f'catalogue {self.catalog}'}"


class TableShape(TypedDict, total=False):
    """What makes a table other than one of all rows; see ExportTable."""

    key: Sequence[str]
    order: Sequence[str]
    aliases: Mapping[str, Sequence[str]]


class ExportTable:
    """A table as a target, from `opened`; see ExportTarget."""

    def __init__(
        self,
        spark: SparkSession,
        where: IcebergTable,
        columns: StructType,
        catalog: Catalog | None,
        *,
        layout: Layout,
        key: Sequence[str] = (),
        order: Sequence[str] = (),
        aliases: Mapping[str, Sequence[str]] = NO_ALIASES,
    ) -> None:
        """`key`: the columns that identify a row, none for all; such a table is made without partitions.

        `order`: with a key, the columns by which a row is newer than another. `aliases`: earlier names of fields, by
        their places in `columns`; a field of the table with one of them gets the name of now before the next round.
        """
        self._spark = spark
        self._where = where
        self._layout, self._key, self._order = layout, tuple(key), tuple(order)
        self._aliases = aliases
        self._columns = self._kept(columns)
        self._named: StructType | None = None
        self._location = ""
        self._catalog = catalog
        self.target = str(where)

    def last(self, source: dict[str, str]) -> Commit:
        """See ExportTarget."""
        table = self._table()
        nothing = Commit(number=0, source=source, positions={})
        return nothing if table is None else self._last_of(table).checked(source, self.target)

    def recover(self, source: dict[str, str]) -> Commit:
        """See ExportTarget."""
        if (table := self._table()) is None:
            self._create(Commit(number=0, source=source, positions={}))
            table = self._loaded()
        last = self._last_of(table).checked(source, self.target)
        self._clear(last, table)
        return last

    def fit(self, columns: StructType, aliases: Mapping[str, Sequence[str]]) -> None:
        """See KeptTable."""
        kept = self._kept(columns)
        self._placed(self._loaded(), kept, aliases)
        self._columns, self._aliases = kept, aliases

    def _kept(self, columns: StructType) -> StructType:
        return StructType([one for one in columns.fields if not self._key or one.name != DELETED])

    def named(self, columns: StructType) -> StructType:
        """See ExportTarget; a user may have renamed columns of the table."""
        table = self._loaded()
        self._named, moves = self._placed(table, self._columns, self._aliases)
        if moves:
            with as_target_error(self.target), table.update_schema() as schema:
                for place, name in moves.items():
                    schema.rename_column(place, name)
            self._named = self._renamed(table, self._columns)
        return self._renamed(table, columns)

    def _renamed(self, table: Table, columns: StructType) -> StructType:
        return self._placed(table, columns, self._aliases)[0]

    def _placed(
        self, table: Table, columns: StructType, aliases: Mapping[str, Sequence[str]]
    ) -> tuple[StructType, dict[str, str]]:
        """Return columns with their names in a table, and the fields that it has by an alias."""
        from pyiceberg.io.pyarrow import schema_to_pyarrow  # noqa: PLC0415 - optional
        from pyiceberg.schema import index_by_name  # noqa: PLC0415 - optional

        before = [index_by_name(one) for _, one in sorted(table.schemas().items())]
        found, moves = renamed(columns, index_by_name(table.schema()), before, aliases)
        there = from_arrow_schema(schema_to_pyarrow(table.schema(), include_field_ids=False))
        return fitted(found, there, promotes=True), moves

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
        kept = files
        files = [f"{staging}/{file}" for file in (self._files.parquet(f"data/{name}") if kept is None else kept)]
        tries = 0
        while not (now := self._last_of(table := self._loaded())).is_same(made):
            if not now.is_same(last):
                raise Conflict(
                    f"another export has committed to {self.target} meanwhile",
                    hint="nothing of this round was added; run one export of a target at a time",
                )
            if tries == COMMIT_TRIES:
                raise Conflict(f"others commit to {self.target} all the time", hint="run it again: nothing was added")
            check_written(made, files)
            self._try(table, last, made, files)
            tries += 1
        self._clear(made, table)
        if self._key:
            self.discard(staging)  # its rows are in other files
        if kept is not None:
            self._files.keep(f"data/{name}", kept)
        return made

    def discard(self, staging: str) -> None:
        """See KeptTable."""
        self._files.delete(f"data/{staging.rpartition('/')[2]}")

    def upkeep(self, keep_s: float) -> Upkeep:
        """See KeptTable; small files of a partition are joined in memory, as the library has no other way."""
        with as_target_error(self.target):
            joined = self._join(self._loaded()) if not self._key else 0
            table, now_ms = self._loaded(), SystemClock().wall_ms()
            before, files = snapshot_files(table), self._files  # where the table was before it is loaded again
            expire(self._loaded(), now_ms - keep_s * 1000)  # reading them took long
            gone = (
                unnamed(table, before, self._loaded, now_ms - max(keep_s, ORPHAN_S_MIN) * 1000)
                if owns_files(table)
                else []
            )
            for name in gone:
                files.delete(name)
        return Upkeep(joined, len(gone))

    def _join(self, table: Table) -> int:
        """Join small files of each partition; return how many."""
        files = [
            (one.file.partition, one, one.file.file_size_in_bytes)
            for one in table.scan().plan_files()
            if one.file.spec_id == table.spec().spec_id
        ]
        joined = 0
        for partition, tasks in to_join(files):
            self._replace_files(table, partition, tasks)
            joined += len(tasks)
        return joined

    def _replace_files(self, table: Table, partition: Record, tasks: Sequence[FileScanTask]) -> None:
        """Replace files of a partition by one with their rows."""
        from pyiceberg.expressions import AlwaysTrue  # noqa: PLC0415 - optional
        from pyiceberg.io.pyarrow import ArrowScan  # noqa: PLC0415

        _try_once(table)
        rows = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue()).to_table(tasks)
        place = "/".join(filter(None, [table.spec().partition_to_path(partition, table.schema()), "part-0.parquet"]))
        path = f"{table.location()}/data/joined-{SystemClock().uuid()}/{place}"
        with table.io.new_output(path).create() as file:
            parquet.write_table(self._sorted(table, rows), file)
        with table.transaction() as transaction:
            with transaction.update_snapshot().overwrite() as replaced:
                for one in tasks:
                    replaced.delete_data_file(one.file)
            at = self._bucket_at(table)
            self._add(table, transaction, [path], [None if at is None else partition[at]], {})

    def _add(
        self,
        table: Table,
        transaction: Transaction,
        files: Sequence[str],
        buckets: Sequence[int | None],
        moved: Mapping[str, str],
    ) -> None:
        """Add files; where the table has buckets, each to its own."""
        if (at := self._bucket_at(table)) is not None:
            add_files(transaction, table.io, files, at=at, buckets=buckets, moved=moved)
        else:
            transaction.add_files([*files], snapshot_properties={**moved}, check_duplicate_files=False)

    def _bucket_at(self, table: Table) -> int | None:
        """Return the place of the buckets of the layout among the table's partitions; None for a layout without."""
        if self._layout.partition is not Partition.BUCKET:
            return None
        return next((at for at, one in enumerate(table.spec().fields) if self._buckets(table, one)), None)

    def _buckets(self, table: Table, field: PartitionField) -> int:
        """Return how many buckets of the messages' key a partition has; 0 for another partition."""
        from pyiceberg.transforms import BucketTransform  # noqa: PLC0415 - optional

        if not isinstance(field.transform, BucketTransform) or KEY not in self._columns.names:
            return 0
        of = table.schema().find_column_name(field.source_id)
        key, _ = self._placed(table, StructType([self._columns[KEY]]), NO_ALIASES)  # others may not fit the table
        return field.transform.num_buckets if of == key.names[0] else 0

    def _sorted(self, table: Table, rows: pa.Table) -> pa.Table:
        """Return rows in the order of the layout."""
        order = [(self._now(table, name), "ascending") for name in self._layout.sort]
        return rows.sort_by(order) if order else rows

    def _set_order(self, table: Table, transaction: Transaction) -> None:
        """Have the table say the order of the layout; without one, whatever order it has is its user's."""
        from pyiceberg.transforms import IdentityTransform  # noqa: PLC0415 - optional

        if not self._layout.sort:
            return
        with transaction.update_sort_order() as order:
            for name in self._layout.sort:
                order.asc(self._now(table, name), IdentityTransform())

    def _try(self, table: Table, last: Commit, made: Commit, files: list[str]) -> None:
        """Commit, unless the table has changed since it was loaded; the caller reads the outcome back."""
        from pyiceberg.exceptions import CommitFailedException  # noqa: PLC0415 - optional

        _try_once(table)
        number = getattr(table.metadata, "last_sequence_number", 0) + 1
        names = self._renamed(table, self._columns)
        if self._named not in {None, names}:
            raise Conflict(
                f"columns of {self.target} were renamed while a round was written",
                hint="run it again: nothing was added",
            )
        try:
            transaction = table.transaction()
            with transaction.update_schema() as schema:
                schema.union_by_name(to_arrow_schema(names, timezone="UTC"))
            self._set_order(table, transaction)
            transaction.set_properties({COMMIT: made.encode(), SEQUENCE: str(number)})
            moved = {COMMIT: made.encode_move(last)}
            if self._key and files:
                self._replace(table, transaction, files, moved)
            else:
                self._add(table, transaction, files, [bucket_in(one) for one in files], moved)
            transaction.commit_transaction()
        except CommitFailedException:
            return
        except Exception as error:
            # Else it was done and the answer lost, or another was first.
            if self._last_of(self._loaded()).is_same(last):
                raise OffloaderError(
                    f"{self.target}: cannot commit: {type(error).__name__} {error}",
                    hint="run it again: a request that was carried out after all is found, nothing is added twice",
                ) from error

    def _replace(self, table: Table, transaction: Transaction, files: list[str], moved: dict[str, str]) -> None:
        """Replace the rows of the keys of a round, or delete them. The round is held in memory."""
        from pyiceberg.table.upsert_util import create_match_filter  # noqa: PLC0415 - optional

        tables = []
        for file in files:
            with table.io.new_input(file).open() as opened:
                tables.append(parquet.read_table(opened))
        found = pa.concat_tables(tables, promote_options="default")
        key = [self._now(table, name) for name in self._key]
        matching = create_match_filter(found, key)
        newer = self._newer(table, matching, found, key)
        if not newer.num_rows:
            transaction.add_files([], snapshot_properties=moved, check_duplicate_files=False)
            return
        if newer.num_rows < found.num_rows:  # the filter takes long to make
            found, matching = newer, create_match_filter(newer, key)
        kept = self._sorted(table, found.filter(pc.invert(found[DELETED])).drop_columns([DELETED]))
        warnings.filterwarnings("ignore", message="Delete operation did not match any records")  # new keys alone
        transaction.delete(matching)
        if kept.num_rows:
            transaction.append(kept, snapshot_properties=moved)
        else:
            transaction.add_files([], snapshot_properties=moved, check_duplicate_files=False)

    def _newer(self, table: Table, matching: BooleanExpression, found: pa.Table, key: Sequence[str]) -> pa.Table:
        """Return the rows of a round without those that the table has a newer row for."""
        order = [self._now(table, name) for name in self._order]
        if not order:
            return found
        there = table.scan(row_filter=matching, selected_fields=(*key, *order)).to_arrow()
        known = dict(zip(_tuples(there, key), _tuples(there, order), strict=True))
        mask = [
            one not in known or _ranked(known[one]) < _ranked(at)
            for one, at in zip(_tuples(found, key), _tuples(found, order), strict=True)
        ]
        return found.filter(pa.array(mask, pa.bool_()))

    def _now(self, table: Table, column: str) -> str:
        """Return the name that a column has in the table now."""
        return self._renamed(table, self._columns).names[self._columns.names.index(column)]

    def _last_of(self, table: Table) -> Commit:
        """Return the last commit in the table's newest snapshot.

        Raises InvalidConfig for a table without any, or with another partition, OffloaderError for one that was rolled
        back too far to find it.
        """
        said = table.properties.get(COMMIT)
        if said is None:
            raise InvalidConfig(f"{self.target} is no export", hint="name another table, or one that is not there yet")
        if not self._key:  # else the library writes the files, by whatever partitions the table has
            self._layout.check(self.target, ",".join(self._partitions(table)) or Partition.NONE)
        newest = decode(said, self.target)
        if (there := next(self._moves(table, table.current_snapshot()), None)) is not None:
            return newest if there.staging == newest.staging else self._earlier_commit(table, newest, there)
        oldest = list(_ancestors(table, table.current_snapshot()))[-1:]
        if oldest and int(table.properties.get(SEQUENCE, 0)) >= (oldest[0].sequence_number or 0):
            raise self._unknown()
        return newest

    def _partitions(self, table: Table) -> list[str]:
        """Return the partitions of a table by a time or by the messages' key, as they are declared."""
        found = []
        for one in table.spec().fields:
            if str(one.transform) in TIMES:
                found.append(str(one.transform))
            elif buckets := self._buckets(table, one):
                found.append(bucket_text(buckets))
        return found

    def _earlier_commit(self, table: Table, newest: Commit, there: Move | Commit) -> Commit:
        """Return the commit of a snapshot, by the newest and the changes between them. Raises OffloaderError."""
        if isinstance(there, Commit):
            return there
        positions = newest.positions
        for left in table.snapshots():
            behind = list(self._moves(table, left))
            if not behind or behind[0].staging != newest.staging:
                continue
            for move in behind:
                if move.staging == there.staging:
                    return there.of(newest.source, positions)
                if isinstance(move, Commit):
                    break
                positions = move.undone(positions)
            break
        raise self._unknown()

    def _moves(self, table: Table, newest: Snapshot | None) -> Iterator[Move | Commit]:
        """Yield the commits of exports in a snapshot and its ancestors, newest first, as far as they are recorded."""
        for one in _ancestors(table, newest):
            if one.summary is not None and COMMIT in one.summary.additional_properties:
                yield decode_move(one.summary.additional_properties[COMMIT], self.target)

    def _unknown(self) -> OffloaderError:
        return OffloaderError(
            f"{self.target} was rolled back, and up to where its snapshot has all is not known any more: those "
            "before it, or those that it was rolled back from, have expired",
            hint="roll forward to the newest snapshot of an export, or export to another table",
        )

    def _clear(self, made: Commit, table: Table) -> None:
        """Delete the files of rounds that were not committed; never those that a snapshot may refer to."""
        if not made.number:
            return
        records = [one.summary.additional_properties.get(COMMIT) for one in table.snapshots() if one.summary]
        kept = {made.staging} | {decode_move(one, self.target).staging for one in records if one is not None}
        files = self._files
        for name in files.names("data"):
            if name.startswith(f"{made.number:0{DIGITS}}-") and name not in kept:
                files.delete(f"data/{name}")

    @property
    def _files(self) -> SparkFiles:
        """The files of the table where it was when it was last loaded."""
        return SparkFiles(self._spark, self._location or self._loaded().location())

    def _table(self) -> Table | None:
        from pyiceberg.exceptions import NoSuchTableError  # noqa: PLC0415 - optional

        if self._catalog is None:
            return None
        with as_target_error(self.target):
            try:
                table = self._catalog.load_table(self._where.name)
            except NoSuchTableError:
                return None
        self._location = table.location()
        return table

    def _loaded(self) -> Table:
        table = self._table()
        if table is None:
            raise OffloaderError(f"{self.target} was dropped meanwhile", hint="run it again to export all of it")
        return table

    def _create(self, nothing: Commit) -> None:
        from pyiceberg.catalog import Catalog  # noqa: PLC0415 - optional
        from pyiceberg.exceptions import TableAlreadyExistsError  # noqa: PLC0415

        properties = {COMMIT: nothing.encode(), SEQUENCE: "0", FORGETS: "true"}
        with _OPENING, as_target_error(self.target):
            self._catalog = self._catalog or _own_catalog(self._where)
            self._catalog.create_namespace_if_not_exists(Catalog.namespace_from(self._where.name))
            try:
                with (
                    self._catalog.create_table_transaction(
                        self._where.name, schema=to_arrow_schema(self._columns, timezone="UTC"), properties=properties
                    ) as transaction,
                    transaction.update_spec() as spec,
                ):
                    if self._layout.name:
                        spec.add_field(self._layout.column, self._layout.transform, self._layout.name)
            except TableAlreadyExistsError:
                return  # another export was first; its commits will show that

    def close(self) -> None:
        """Close the catalogue."""
        if self._catalog is not None:
            self._catalog.close()


def _try_once(table: Table) -> None:
    """Have a table's commits fail when another was first.

    The library would try again on top of the other: entries of an export would be there twice, those of another gone.
    """
    from pyiceberg.table import TableProperties  # noqa: PLC0415 - optional

    once = {**table.metadata.properties, TableProperties.COMMIT_NUM_RETRIES: "0"}
    table.metadata = table.metadata.model_copy(update={"properties": once})


def _tuples(table: pa.Table, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    return list(zip(*(table[name].to_pylist() for name in columns), strict=True))


def _ranked(numbers: Sequence[int | None]) -> tuple[int, ...]:
    """Return numbers to compare; one that is missing is the least."""
    return tuple(-1 if one is None else one for one in numbers)


def _ancestors(table: Table, newest: Snapshot | None) -> Iterator[Snapshot]:
    """Yield a snapshot and its ancestors, as far as they exist."""
    while newest is not None:
        yield newest
        newest = table.snapshot_by_id(newest.parent_snapshot_id) if newest.parent_snapshot_id is not None else None


@contextmanager
def opened(
    spark: SparkSession, where: IcebergTable, columns: StructType, *, layout: Layout, **more: Unpack[TableShape]
) -> Iterator[ExportTable]:
    """Yield a table as a target; it is created with the first commit. `more`: see ExportTable.

    Raises InvalidConfig when pyiceberg or its settings for the catalogue are missing, and for another kind of folder.
    """
    check_libraries("iceberg")
    with _OPENING:
        correct()
        catalog = _catalog(where)
    with closing(ExportTable(spark, where, columns, catalog, layout=layout, **more)) as found:
        yield found


def _catalog(where: IcebergTable) -> Catalog | None:
    """Return the catalogue, None for a folder that has none yet. Raises InvalidConfig."""
    parts = where.name.split(".")
    if len(parts) < 2 or not all(parts):
        raise InvalidConfig(f"{where.name!r} names no table", hint="write NAMESPACE.TABLE")
    if where.catalog is not None:
        from pyiceberg.catalog import load_catalog  # noqa: PLC0415 - optional

        try:
            return load_catalog(where.catalog)
        except Exception as error:
            raise InvalidConfig(
                f"catalogue {where.catalog}: {error}",
                hint="say where it is in .pyiceberg.yaml or by PYICEBERG_CATALOG__NAME__URI, as pyiceberg's pages tell",
            ) from error
    folder = _local(where)
    if (folder / OWN_CATALOG).is_file():
        return _own_catalog(where)
    others = sorted(one.name for one in folder.iterdir()) if folder.is_dir() else []
    if others:
        raise InvalidConfig(f"{folder} holds {others[0]}, and is no export", hint="name an empty folder")
    return None


def _local(where: IcebergTable) -> Path:
    """Return the folder that has its own catalogue. Raises InvalidConfig for one on another machine."""
    folder = (where.folder or "").removeprefix("file://")
    if "://" in folder:
        raise InvalidConfig(
            f"{folder} cannot have a catalogue of its own, which is a file on this machine",
            hint="name a local folder, or a catalogue that others can reach (--catalog)",
        )
    return Path(folder).absolute()


def _own_catalog(where: IcebergTable) -> Catalog:
    from pyiceberg.catalog.sql import SqlCatalog  # noqa: PLC0415 - optional

    folder = _local(where)
    with as_target_error(str(where)):
        folder.mkdir(parents=True, exist_ok=True)
        return SqlCatalog("offloaderd", uri=f"sqlite:///{folder / OWN_CATALOG}", warehouse=folder.as_uri())
