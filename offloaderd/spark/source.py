"""`spark.read.format("offload")`: committed segments as a table, read from the bucket without any broker or daemon.

With `live=true` the table ends with the newest entry: a daemon is asked for those that no segment has.

    from offloaderd.spark.source import register
    register(spark)
    spark.read.format("offload").option("objects.bucket", "pulsar-offload").load("public/default/orders")

Without register() Spark finds the format by `pyspark_offload`, and pushes no filters down unless
`spark.sql.python.filterPushdown.enabled` is set.

The driver takes a snapshot of the committed segments and makes shares; tasks get plain descriptions and open the bucket
themselves, with the keys of the usual AWS chain or of the options, which are in no plan and no log. Every Python that
Spark starts imports this module, so imports for the planning alone are in functions.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from offloaderd.core.errors import InvalidConfig
from offloaderd.spark.errors import brief

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSourceStreamReader, Filter
    from pyspark.sql.types import StructType

    from offloaderd.spark.scan.options import SourceOptions
    from offloaderd.spark.scan.share import Share


FORMAT = "offload"
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
PUSHING = "pyspark.sql.worker.data_source_pushdown_filters"
"""The module by which Spark plans a query whose filters it pushes down."""


def register(spark: SparkSession) -> None:
    """Register the format with a session, and enable the push-down of filters to sources in Python."""
    spark.conf.set(PUSHDOWN, "true")
    spark.dataSource.register(SegmentSource)


class SegmentSource(DataSource):
    """The format with the options of a query."""

    @brief
    def __init__(self, options: Mapping[str, str]) -> None:
        """Read the options; raises InvalidConfig with every mistake in them."""
        super().__init__(dict(options))
        self._parsed()

    def _parsed(self) -> SourceOptions:
        from offloaderd.daemon.log import quieted  # noqa: PLC0415 - for the driver alone
        from offloaderd.spark.scan.options import parse  # noqa: PLC0415 - as above

        quieted()
        return parse(self.options)

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    @brief
    def schema(self) -> StructType:
        """Return all columns of these options."""
        return self._parsed().columns

    @brief
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of all present segments. Raises InvalidConfig for a begin that only a stream can have."""
        from offloaderd.spark.scan.options import Start  # noqa: PLC0415

        options = self._parsed()
        if options.start is Start.LATEST:
            raise InvalidConfig("start=latest: only for a stream", hint="write start=LEDGER:ENTRY, or start_time")
        # Spark refuses a reader that takes filters where it pushes none down, as it does by default.
        return FilteredReader(options, schema) if PUSHING in sys.modules else SegmentsReader(options, schema)

    @brief
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return a reader that follows new segments. Raises InvalidConfig for live ends, which only a query has."""
        from offloaderd.spark.stream import SegmentsStream  # noqa: PLC0415

        options = self._parsed()
        if options.live is not None:
            raise InvalidConfig(
                "live=true: only for a query (spark.read), a stream has what is committed",
                hint="leave live and address away; the topic's policy says when entries are committed",
            )
        return SegmentsStream(options, schema)


class SegmentsReader(DataSourceReader):
    """Reads the segments committed at one moment."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._wanted = options.query
        self._task = options.task(schema)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the part that tasks need."""
        from offloaderd.spark.scan.read import ShareReader  # noqa: PLC0415 - a session that only looks the format up does not need it

        return ShareReader, (self._task, self._wanted)

    @brief
    def partitions(self) -> list[InputPartition]:
        """Take the snapshot and return its shares. Raises NotFound, HoleInRange, and as the stores do."""
        from offloaderd.spark.scan.plan import plan  # noqa: PLC0415
        from offloaderd.spark.scan.snapshot import HeldStores, Stores  # noqa: PLC0415
        from offloaderd.spark.stream import plan_step  # noqa: PLC0415 - for the driver alone

        options = self._options

        async def shares(stores: Stores) -> list[Share]:
            if options.step is None:
                return await plan(options, self._wanted, stores)
            return await plan_step(options, stores, *options.step)

        with HeldStores(options) as held:
            return [InputPartition(share) for share in held.run(shares)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """See ShareReader."""
        from offloaderd.spark.scan.read import rows  # noqa: PLC0415 - as above

        return rows(self._task, partition.value, self._wanted)


class FilteredReader(SegmentsReader):
    """The reader for a query whose filters Spark pushes down."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Exclude blocks by filters; Spark evaluates all of them again."""
        self._wanted = self._wanted.narrowed(filters)
        return filters
