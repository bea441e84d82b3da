"""Buckets of a key, as the transform of Apache Iceberg has them: each engine looks for a key in its bucket alone.

The hash is Murmur3 (x86, 32 bits, seed 0) of the key's bytes, without its sign, modulo the number of buckets. Spark's
own `hash` has another seed and another end of the bytes.

pyiceberg finds the partition of a file that it is to add by the least and greatest value in it, which say nothing of a
hash. So the bucket is that of the folder to which Spark has written the file, and pyiceberg finds the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import Column, functions
from pyspark.sql.pandas.functions import arrow_udf

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Transaction
    from pyiceberg.table.metadata import TableMetadata

NO_COLUMN = -1
"""The id of no column."""


def buckets(keys: pa.Array, count: int) -> pa.Array:
    """Return the bucket of each key in bytes; a missing one has none."""
    from pyiceberg.transforms import BucketTransform  # noqa: PLC0415 - optional
    from pyiceberg.types import BinaryType  # noqa: PLC0415

    found = BucketTransform(num_buckets=count).transform(BinaryType())
    return pa.array(map(found, keys.to_pylist()), pa.int32())


def bucket_of(keys: str, count: int) -> Column:
    """Return the bucket of each row by a column of bytes. The machines of Spark's tasks need pyiceberg for it."""

    def found(keys: pa.Array) -> pa.Array:
        return buckets(keys, count)

    made: Column = arrow_udf(found, "int")(functions.col(keys))  # type: ignore[call-overload]
    return made


def bucket_in(file: str) -> int | None:
    """Return the bucket that the folder of a file is named by; the one of rows without a key has none."""
    value = file.rsplit("/", 2)[1].rpartition("=")[2]
    return int(value) if value.isdecimal() else None


def add_files(
    transaction: Transaction,
    io: FileIO,
    files: Sequence[str],
    *,
    at: int,
    buckets: Sequence[int | None],
    moved: Mapping[str, str],
) -> None:
    """Add files as the library does, with their buckets: the partition at the place `at`."""
    from pyiceberg.table import TableProperties  # noqa: PLC0415 - optional
    from pyiceberg.utils.concurrent import ExecutorFactory  # noqa: PLC0415

    metadata = transaction.table_metadata
    if metadata.name_mapping() is None:
        names = metadata.schema().name_mapping.model_dump_json()
        transaction.set_properties({TableProperties.DEFAULT_NAME_MAPPING: names})
    update = transaction.update_snapshot(snapshot_properties={**moved})
    merges = str(metadata.properties.get(TableProperties.MANIFEST_MERGE_ENABLED, "")).lower() == "true"
    with update.merge_append() if merges else update.fast_append() as added:
        described = ExecutorFactory.get_or_create().map(
            lambda file, bucket: _described(metadata, io, file, at, bucket), files, buckets
        )
        for one in described:
            added.append_data_file(one)


def _described(metadata: TableMetadata, io: FileIO, file: str, at: int, bucket: int | None) -> DataFile:
    """Return what the library finds in a file, with its bucket."""
    from pyiceberg.io.pyarrow import parquet_file_to_data_file  # noqa: PLC0415 - optional

    spec = metadata.spec()
    unknown = spec.fields[at].model_copy(update={"source_id": NO_COLUMN})  # of which the library finds no value
    fields = (*spec.fields[:at], unknown, *spec.fields[at + 1 :])
    others = metadata.model_copy(update={"partition_specs": [spec.model_copy(update={"fields": fields})]})
    found = parquet_file_to_data_file(io, others, file)
    found.partition[at] = bucket
    return found
