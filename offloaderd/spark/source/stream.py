"""`spark.readStream.format("offload")`: new segments as they are committed, each entry exactly once.

An offset is, for each topic, the position of the last entry that was read; so a restart from a checkpoint continues at
the next one, and a repeated step has the same entries, whichever segments have them by then. A later topic (a new
partition) begins at its oldest entry. The stream waits for history that is still being offloaded. Entries that were
deleted before the stream has read them end the query, or are counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from offloaderd.read.outcomes import KnownOutcomes
from offloaderd.spark.errors import brief
from offloaderd.spark.scan.options import SourceOptions, Start
from offloaderd.spark.scan.positions import NOTHING, Offset
from offloaderd.spark.scan.read import ShareReader, rows
from offloaderd.spark.scan.snapshot import Snapshot
from offloaderd.spark.scan.stores import HeldStores
from offloaderd.spark.source.offsets import Step, advance, begin, furthest, plan_step, take_snapshots, written

if TYPE_CHECKING:
    import pyarrow as pa


class SegmentsStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the topics of a query."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._task = options.task(schema, step=True)
        self._target: Offset | None = None
        self._held = HeldStores(options)
        self._known = KnownOutcomes()
        self._snapshots: list[Snapshot] = []
        self._step = Step({})

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the part that tasks need."""
        return ShareReader, (self._task, self._options.query)

    @brief
    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Return the begin of a new query: behind the floor, behind all entries, or by the option `start`."""
        latest = self._options.start is Start.LATEST
        offset: Offset = {}
        for snapshot in self._refreshed():
            at = snapshot.end if latest else begin(snapshot, self._options.query)
            if at is not None and at != NOTHING:
                offset[str(snapshot.topic)] = written(snapshot, at)
        return offset

    @brief
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        """Return the end of a step: the newest entry of the query, or the limit of bytes."""
        room = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        query, turn = self._options.query, self._step.turn
        self._step = advance(self._refreshed(), start, query, target=self._target, room=room, turn=turn)
        return self._step.offset

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit of the option `max_bytes_per_trigger`."""
        limit = self._options.trigger_bytes
        return ReadAllAvailable() if limit is None else ReadMaxBytes(limit)

    @brief
    def reportLatestOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Return the newest committed entries of the last snapshots, for the query's progress."""
        return furthest(self._snapshots or self._refreshed(), self._options.query)

    @brief
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Stop at the entries committed now."""
        self._target = furthest(self._refreshed(), self._options.query)

    @brief
    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Return the shares behind `start`, up to `end`. Raises as `plan_step` does.

        A new step is planned by its own snapshots, a step that a checkpoint repeats by new ones.
        """
        known = self._snapshots if end == self._step.offset else None
        made = self._held.run(lambda stores: plan_step(self._options, stores, start, end, known))
        return [InputPartition(share) for share in made]

    def stop(self) -> None:
        """Close the stores of the stream."""
        self._held.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """See ShareReader."""
        return rows(self._task, partition.value, self._options.query)

    def _refreshed(self) -> list[Snapshot]:
        self._snapshots = self._held.run(lambda stores: take_snapshots(self._options, stores, self._known))
        return self._snapshots
