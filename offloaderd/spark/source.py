"""`spark.read.format("offload")`: committed segments as a table, read from the bucket without any broker or daemon.

    from offloaderd.spark.source import register
    register(spark)
    spark.read.format("offload").option("objects.bucket", "pulsar-offload").load("public/default/orders")

The driver takes a snapshot of what is committed and shares it out; tasks get plain descriptions and open the bucket
themselves, with the keys of the usual AWS chain or of the options, which are in no plan and no log.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from offloaderd.clock import SystemClock
from offloaderd.spark import source_plan, source_snapshot
from offloaderd.spark.source_columns import Columns, checked_schema, full_schema
from offloaderd.spark.source_extents import segment_reader
from offloaderd.spark.source_options import parse
from offloaderd.spark.source_read import iterate, record_batches
from offloaderd.stores import open_objects

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSourceStreamReader, Filter
    from pyspark.sql.types import StructType

    from offloaderd.spark.source_options import SourceOptions
    from offloaderd.spark.source_plan import Share
    from offloaderd.spark.source_wanted import Wanted

FORMAT = "offload"
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Make the format known to a session, and have Spark push filters down to sources in Python."""
    spark.conf.set(PUSHDOWN, "true")
    spark.dataSource.register(SegmentSource)


class SegmentSource(DataSource):
    """The format, by what a query asked for."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Read the options; raises InvalidConfig with every mistake in them."""
        super().__init__(dict(options))
        self._parsed = parse(options)

    @classmethod
    def name(cls) -> str:
        """The word after `format`."""
        return FORMAT

    def schema(self) -> StructType:
        """All columns that these options give."""
        return full_schema(self._parsed)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Read once what is committed now."""
        return SegmentsReader(self._parsed, checked_schema(self._parsed, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Follow what is committed."""
        from offloaderd.spark.stream import SegmentsStream  # noqa: PLC0415 - it builds on this module

        return SegmentsStream(self._parsed, checked_schema(self._parsed, schema))


class Reading:
    """What tasks need to read shares; small, and free of anything that is open."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self._schema = schema

    def rows(self, share: Share | None, wanted: Wanted) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a share; Spark gives None where there is none. Raises BrokenSegment, Transient, Denied."""
        return iterate(self._rows(share or (), wanted))

    async def _rows(self, share: Share, wanted: Wanted) -> AsyncGenerator[pa.RecordBatch, None]:
        columns = Columns(self._schema, messages=self.options.messages)
        async with open_objects(self.options.settings, SystemClock()) as objects, segment_reader(objects) as reader:
            async for batch in record_batches(reader, share, wanted, columns, skips=self.options.skips):
                yield batch


class SegmentsReader(DataSourceReader):
    """One look at what is committed. Pickled into every task."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._reading = Reading(options, schema)
        self._wanted = options.wanted

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Take what filters say of blocks; Spark evaluates all of them again."""
        self._wanted = self._wanted.narrowed(filters)
        return filters

    def partitions(self) -> list[InputPartition]:
        """Take the snapshot, and share it out. Raises NotFound, EntriesLost and what the stores raise."""
        return [InputPartition(share) for share in asyncio.run(self._shares())]

    async def _shares(self) -> list[Share]:
        options = self._reading.options
        async with open_objects(options.settings, SystemClock()) as objects, segment_reader(objects) as reader:
            snapshots = await source_snapshot.take(options, objects)
            return await source_plan.shares(snapshots, options, self._wanted, reader)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one share."""
        return self._reading.rows(partition.value, self._wanted)
