"""The number of executors of a job, and the share of each in the limits; Spark itself is a twin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import pytest

from offloaderd.core.model import START, Position
from offloaderd.daemon.settings import load
from offloaderd.segment.claim.fence import Claim
from offloaderd.spark.jobs.executors import Share, SparkRunner
from offloaderd.spark.jobs.task import Outcome, RewriteTask, Written
from tests.unit.rigs.rig import TOPIC

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CORES = 6
TASK = RewriteTask(claim=Claim(TOPIC, 1, 0, "/driver"), segment_id=UUID(int=1), begin=START, end=Position(1, 2),
                   again=False, whole=True)  # fmt: skip


class Session:
    """A session of six cores: it keeps what is given to executors, and says that all is written."""

    def __init__(self) -> None:
        self.sparkContext = self
        self.defaultParallelism = CORES
        self.given: list[Any] = []

    def parallelize(self, items: list[Any], partitions: int) -> Session:
        """Keep them."""
        assert partitions == len(items)
        self.given += items
        return self

    def mapPartitions(self, _: object) -> Session:  # noqa: N802 - Spark's name
        """Run nothing."""
        return self

    def collect(self) -> list[Written]:
        """Say that it is written."""
        return [Written(outcome=Outcome.READY)]

    def setJobGroup(self, *_: object, **__: object) -> None:  # noqa: N802 - Spark's name
        """Name the job."""

    def cancelJobGroup(self, _: str) -> None:  # noqa: N802 - Spark's name
        """End its jobs."""


@pytest.mark.parametrize(("slots", "executors"), [(0, CORES), (2, 2), (32, 32)])
async def test_a_share_without_slots_takes_all_cores_of_spark(slots: int, executors: int) -> None:
    """As `--parallel` has it by default; the limits are divided by the number that is taken."""
    session = Session()
    settings = load(None, {"OFFLOADERD__OBJECTS__BUCKET": "bucket"})
    share = Share(slots=slots, source_bytes_per_s=6400, upload_bytes_per_s=640)
    with SparkRunner(cast("SparkSession", session), settings, share, name="test") as runner:
        assert runner.slots == executors
        assert (await runner.run(TASK)).outcome is Outcome.READY
    ((_, given, task),) = session.given
    assert (given.slots, task) == (executors, TASK)
    assert given.of_one(settings).bookkeeper.bytes_per_s == 6400 // executors
