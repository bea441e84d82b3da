"""The least and greatest values of a file that is added to a table of Apache Iceberg.

A reader leaves out files by them. A row group of Parquet has none of a column with a text or bytes beyond 4 KiB, and
pyiceberg takes those of the other groups of the file for those of all its rows. So a column of which a group has none
has none in the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData
    from pyiceberg.io.pyarrow import DataFileStatistics


def check_bounds() -> None:
    """Have the library leave out the bounds of such columns, wherever it adds files or writes them."""
    from pyiceberg.io import pyarrow as library  # noqa: PLC0415 - optional

    found = library.data_file_statistics_from_parquet_metadata
    if hasattr(found, "__wrapped__"):
        return

    @wraps(found)
    def checked(
        parquet_metadata: FileMetaData,
        stats_columns: Mapping[int, Any],
        parquet_column_mapping: Mapping[str, int],
    ) -> DataFileStatistics:
        made = found(parquet_metadata, {**stats_columns}, {**parquet_column_mapping})
        for name in _unbounded(parquet_metadata):
            made.column_aggregates.pop(parquet_column_mapping[name], None)
        return made

    library.data_file_statistics_from_parquet_metadata = checked


def _unbounded(file: FileMetaData) -> Iterator[str]:
    """Yield the columns of which a row group has values, and no bounds."""
    for group in range(file.num_row_groups):
        for at in range(file.num_columns):
            column = file.row_group(group).column(at)
            known = column.statistics
            if known is not None and not known.has_min_max and known.null_count != column.num_values:
                yield column.path_in_schema
