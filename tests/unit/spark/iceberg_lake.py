"""A folder of tables of Iceberg for tests of exports, without Spark, and what any reader of Iceberg sees of it."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.utils.concurrent import ExecutorFactory
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from offloaderd.spark.export import iceberg as export_iceberg
from offloaderd.spark.export.export import BY_DAY
from offloaderd.spark.export.iceberg import ExportTable, IcebergTable
from offloaderd.spark.scan.columns import full_schema
from offloaderd.tables.layout import Layout, Partition
from tests.unit.spark.local_files import LocalFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

    from offloaderd.spark.export.commit import Commit

SOURCE = {"cluster": "c", "topic": "public/default/orders", "rows": "entries"}
COLUMNS = full_schema(messages=False, skips=False)
SCHEMA = to_arrow_schema(COLUMNS, timezone="UTC")
DAY = datetime(2026, 11, 21, tzinfo=UTC)
KEYED = Layout(partition=Partition.NONE)


@contextmanager
def library_threads() -> Iterator[None]:
    """Have the one pool of threads that pyiceberg keeps to the end of a process for as long as the context lasts."""
    before = ExecutorFactory._instance
    pool = ExecutorFactory.get_or_create()
    try:
        yield
    finally:
        if before is None:
            pool.shutdown()
            ExecutorFactory._instance = None


class Lake:
    """A folder of tables, and what any reader of Iceberg sees of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.where = IcebergTable(folder=str(folder), name="shop.orders")
        self.layout = BY_DAY

    @contextmanager
    def table(self, name: str = "shop.orders") -> Iterator[Table]:
        """Have a table as it is now."""
        catalog = SqlCatalog("offloaderd", uri=f"sqlite:///{self.folder}/catalog.db")
        try:
            yield catalog.load_table(name)
        finally:
            catalog.close()

    @contextmanager
    def target(self) -> Iterator[ExportTable]:
        """Have it as a target."""
        with export_iceberg.opened(cast("SparkSession", None), self.where, COLUMNS, layout=self.layout) as found:
            yield found

    def write(self, staging: str, ledger_id: int, count: int, names: Sequence[str] = COLUMNS.names) -> None:
        """Write what Spark would write of a round: two days, or nothing."""
        for day in range(2 if count else 0):
            folder = Path(staging.removeprefix("file:")) / f"day={(DAY + timedelta(days=day)).date()}"
            folder.mkdir(parents=True)
            rows = [
                {"ledger_id": ledger_id, "entry_id": entry_id, "time": DAY + timedelta(days=day, seconds=entry_id)}
                for entry_id in range(day, count, 2)
            ]
            found = pa.Table.from_pylist(rows, schema=SCHEMA).rename_columns(list(names))
            pq.write_table(found, folder / "part-0.parquet")

    def round(self, ledger_id: int, count: int) -> Commit:
        """Export once more, up to the end of a ledger."""
        with self.target() as target:
            last = target.recover(SOURCE)
            names = target.named(COLUMNS).names
            staging = target.staging(last)
            self.write(staging, ledger_id, count, names)
            return target.commit(last, staging, {"orders": f"{ledger_id}:{count - 1}"}, count)

    def last(self) -> tuple[int, dict[str, str]]:
        """Return number and positions of the last commit."""
        with self.target() as target:
            found = target.last(SOURCE)
        return found.number, found.positions

    def counts(self) -> dict[int, int]:
        """Return how many rows there are of each ledger."""
        with self.table() as table:
            found = table.scan(selected_fields=("ledger_id",)).to_arrow()["ledger_id"].to_pylist()
        return {ledger_id: found.count(ledger_id) for ledger_id in sorted(set(found))}

    def rounds(self) -> list[str]:
        """Return the folders of rounds."""
        return sorted(one.name for one in (self.folder / "shop" / "orders" / "data").iterdir())


def called(names: Mapping[str, str]) -> StructType:
    """Return the columns, some under other names."""
    return StructType([StructField(names.get(one.name, one.name), one.dataType) for one in COLUMNS])


def before(act: Callable[[], Any]) -> Callable[..., None]:
    """Return a commit before whose first try something else happens."""
    attempt, acts = ExportTable._try, [act]

    def tried(*arguments: Any) -> None:  # noqa: ANN401 - whatever it takes
        if acts:
            acts.pop()()
        attempt(*arguments)

    return tried


@contextmanager
def local_lake(folder: Path) -> Iterator[Lake]:
    """Have an empty lake, whose files are read and deleted without Java."""
    with pytest.MonkeyPatch.context() as patch, library_threads():
        patch.setattr(export_iceberg, "SparkFiles", LocalFiles)
        yield Lake(folder)
