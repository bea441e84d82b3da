"""`spark.readStream.format("offload")`: new segments as they are committed, each entry exactly once.

An offset is, for each topic, the position of the last entry that was handed out; so a restart from a checkpoint goes on
at the next one, and a step that is repeated has the same entries, whichever segments hold them by then. A topic that
comes up later (a new partition) begins at its oldest entry. While history is still being offloaded, the stream waits
for it before it goes on behind it. What is deleted before the stream got to it ends the query, or is counted.
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
from offloaderd.spark.source.admission import Step, advance
from offloaderd.spark.source.offsets import begin, furthest, plan_step, take_snapshots, written

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
        self._looked: list[Snapshot] = []
        self._step = Step({})

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave to tasks what they need."""
        return ShareReader, (self._task, self._options.query)

    @brief
    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Where a new query begins: behind what has been deleted, behind all there is, or where `start` says."""
        latest = self._options.start is Start.LATEST
        offset: Offset = {}
        for snapshot in self._look():
            at = snapshot.end if latest else begin(snapshot, self._options.query)
            if at is not None and at != NOTHING:
                offset[str(snapshot.topic)] = written(snapshot, at)
        return offset

    @brief
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        """How far one step goes: to the newest entry that is wanted, or so many bytes."""
        room = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        query, turn = self._options.query, self._step.turn
        self._step = advance(self._look(), start, query, target=self._target, room=room, turn=turn)
        return self._step.offset

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """What `max_bytes_per_trigger` says."""
        limit = self._options.trigger_bytes
        return ReadAllAvailable() if limit is None else ReadMaxBytes(limit)

    @brief
    def reportLatestOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """The newest entries that are committed, as of the last look, for the query's progress."""
        return furthest(self._looked or self._look(), self._options.query)

    @brief
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Stop at what is committed now."""
        self._target = furthest(self._look(), self._options.query)

    @brief
    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Share out what lies behind `start`, up to `end`. Raises as `plan_step` does.

        What was just looked at for a step serves for its tasks; what a checkpoint repeats is looked at anew.
        """
        seen = self._looked if end == self._step.offset else None
        made = self._held.run(lambda stores: plan_step(self._options, stores, start, end, seen))
        return [InputPartition(share) for share in made]

    def stop(self) -> None:
        """Close what the stream has looked with."""
        self._held.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one share."""
        return rows(self._task, partition.value, self._options.query)

    def _look(self) -> list[Snapshot]:
        self._looked = self._held.run(lambda stores: take_snapshots(self._options, stores, self._known))
        return self._looked
