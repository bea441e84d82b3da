"""What pyiceberg gets wrong of Parquet files that it reads, writes and adds, put right for this process.

A reader leaves out files by the least and greatest values of their columns. A row group has none of a column with a
text or bytes beyond 4 KiB, and pyiceberg takes those of the other groups for those of the whole file. So a column of
which a group has none has none in the table.

Where it gives rows the columns of a table, as it reads or writes them, a missing array of records, or a missing map of
them, becomes an empty one. Here it stays missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData
    from pyiceberg.io.pyarrow import DataFileStatistics


def correct() -> None:
    """Put it right, once in a process."""
    from pyiceberg.io import pyarrow as library  # noqa: PLC0415 - optional

    if not hasattr(library.data_file_statistics_from_parquet_metadata, "__wrapped__"):
        columns: Any = library.ArrowProjectionVisitor
        columns.list, columns.map = _keeping_nulls(columns.list), _keeping_nulls(columns.map)
        library.data_file_statistics_from_parquet_metadata = _bounded(
            library.data_file_statistics_from_parquet_metadata
        )


def _bounded(found: Callable[..., DataFileStatistics]) -> Callable[..., DataFileStatistics]:
    """Return the library's summary of a file, without the bounds of columns of which a row group has none."""

    @wraps(found)
    def bounded(
        parquet_metadata: FileMetaData, stats_columns: Mapping[int, Any], parquet_column_mapping: Mapping[str, int]
    ) -> DataFileStatistics:
        made = found(parquet_metadata, stats_columns, parquet_column_mapping)
        for name in _unbounded(parquet_metadata):
            made.column_aggregates.pop(parquet_column_mapping[name], None)
        return made

    return bounded


def _unbounded(file: FileMetaData) -> Iterator[str]:
    """Yield the columns of which a row group has values, and no bounds."""
    for group in range(file.num_row_groups):
        for at in range(file.num_columns):
            column = file.row_group(group).column(at)
            known = column.statistics
            if known is not None and not known.has_min_max and known.null_count != column.num_values:
                yield column.path_in_schema


def _keeping_nulls(made: Callable[..., pa.Array | None]) -> Callable[..., pa.Array | None]:
    """Return the library's method for arrays or maps; what has no value has none in its result."""

    @wraps(made)
    def kept(self: object, kind: object, given: pa.Array | None, *inside: pa.Array | None) -> pa.Array | None:
        found = made(self, kind, given, *inside)
        if found is None or given is None or found.null_count == given.null_count:
            return found
        ends = pa.array(found.offsets.to_numpy(), found.offsets.type)  # Arrow takes no slice beside a mask
        parts = (ends, found.keys, found.items) if isinstance(found, pa.MapArray) else (ends, found.values)
        return type(found).from_arrays(*parts, type=found.type, mask=given.is_null())

    return kept
