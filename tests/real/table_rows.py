"""Rows of declared tables, as the libraries of Delta Lake and of Iceberg read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog

from offloaderd.tables.declaration import TableFormat
from tests.unit.spark.iceberg_lake import library_threads

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def delta(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a table as Delta Lake's own reader has them, in the order of positions."""
    return _ordered(DeltaTable(str(folder)).to_pyarrow_table().to_pylist())


def iceberg(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return the rows of a table as pyiceberg reads them, in the order of positions."""
    catalog = SqlCatalog("offloaderd", uri=f"sqlite:///{folder}/catalog.db")
    try:
        with library_threads():
            return _ordered(catalog.load_table(name).scan().to_arrow().to_pylist())
    finally:
        catalog.close()


def rows_of(form: TableFormat, folder: Path, name: str, *, namespace: str = "public_default") -> list[dict[str, Any]]:
    """Return the rows of a table in a folder."""
    return delta(folder / name) if form is TableFormat.DELTA else iceberg(folder, f"{namespace}.{name}")


def _ordered(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["_ledger_id"], row["_entry_id"], row["_batch_index"]))
