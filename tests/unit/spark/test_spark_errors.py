"""What Spark shows of an error: one message, without frames of ours, and found again in what it says itself."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import structlog
from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from offloaderd.core.errors import CorruptData, InvalidConfig, NotFound, OffloaderError
from offloaderd.spark.errors import brief, from_spark, gist
from offloaderd.spark.scan.query import EntryQuery
from offloaderd.spark.scan.read import rows
from offloaderd.spark.source import SegmentSource
from offloaderd.spark.stream import SegmentsStream
from tests.unit.spark.lake import options

if TYPE_CHECKING:
    from collections.abc import Iterator

FRAMES = '  File "/opt/offloaderd/spark/spark_errors.py", line 40, in yielded\n    raise error\n'
TASK = f"""An error occurred while calling o1.collect.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times, most recent \
failure: Lost task 0.3 (TID 9) (host executor driver): org.apache.spark.api.python.PythonException: Traceback:
{FRAMES}offloaderd.spark.scan.share.BrokenSegment: [OFFLOAD_DAMAGE] segment 1 cannot be read (skip=damage)

\tat org.apache.spark.api.python.BasePythonRunner.read(PythonRunner.scala:1097)
Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.failJob(DAGScheduler.scala:1)
Caused by: org.apache.spark.api.python.PythonException: Traceback:
{FRAMES}offloaderd.spark.scan.share.BrokenSegment: [OFFLOAD_DAMAGE] segment 1 cannot be read (skip=damage)
"""
PLAN = f"""[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: Traceback (most recent call last):
{FRAMES}offloaderd.core.errors.InvalidConfig: 2 options are wrong:
  topik: no such option; did you mean topic?
  mode = 'lenient'; allowed: fail, or skip
 SQLSTATE: 38000"""
DISK = """An error occurred while calling o1.parquet.
: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to file:/x. SQLSTATE: 58030
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.taskFailed(QueryExecutionErrors.scala:776)
Caused by: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.write(FileOutputStream.java:349)
"""
HEAP = """An error occurred while calling o42.parquet.
: java.lang.OutOfMemoryError: Java heap space
\tat java.base/java.util.Arrays.copyOf(Arrays.java:3537)
"""
WORKER = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/opt/offloaderd/spark/source_read.py", line 222, in iterate
MemoryError: 16 GiB
"""


def frames(error: BaseException) -> list[str]:
    """Return the files that a traceback goes through."""
    return [Path(one.filename).name for one in traceback.extract_tb(error.__traceback__)]


@brief
def deep() -> None:
    """Fail some calls down, by another error."""
    try:
        int("x")
    except ValueError as error:
        raise NotFound("it is not there", hint="look elsewhere") from error


@brief
def some() -> Iterator[int]:
    """Yield, and fail then."""
    yield 1
    raise CorruptData(key="k", offset=1, expected="a", found="b")


def test_errors_of_ours_have_one_frame_and_no_cause() -> None:
    """So that their message stands first on the page that Spark makes of them; others keep what tells of a fault."""
    with pytest.raises(NotFound, match="look elsewhere") as caught:
        deep()
    assert frames(caught.value) == [Path(__file__).name, "errors.py"]
    assert (caught.value.__cause__, caught.value.__suppress_context__) == (None, True)
    found = some()
    assert next(found) == 1
    with pytest.raises(CorruptData) as corrupt:
        next(found)
    assert frames(corrupt.value) == [Path(__file__).name, "errors.py"]
    with pytest.raises(ValueError, match="invalid literal") as fault:
        brief(lambda: int("x"))()
    assert len(frames(fault.value)) == 3


def test_all_that_spark_calls_is_brief() -> None:
    """Options, columns and planning, of queries and of streams."""
    with pytest.raises(InvalidConfig, match="an option is wrong") as caught:
        SegmentSource({"path": "orders", "objects.bucket": "archive", "mode": "maybe"})
    assert frames(caught.value) == [Path(__file__).name, "errors.py"]
    calls = ("initialOffset", "latestOffset", "reportLatestOffset", "prepareForTriggerAvailableNow", "partitions")
    assert all(hasattr(getattr(SegmentsStream, name), "__wrapped__") for name in calls)
    assert all(hasattr(getattr(SegmentSource, name), "__wrapped__") for name in ("schema", "reader", "streamReader"))


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (TASK, "[OFFLOAD_DAMAGE] segment 1 cannot be read (skip=damage)"),
        (
            PLAN,
            "2 options are wrong:\n  topik: no such option; did you mean topic?\n"
            "  mode = 'lenient'; allowed: fail, or skip",
        ),
        (DISK, "java.io.IOException: No space left on device"),
        (HEAP, "java.lang.OutOfMemoryError: Java heap space"),
        (WORKER, "MemoryError: 16 GiB"),
        ("something else\nand more", "something else"),
        ("", "Spark says nothing"),
    ],
)
def test_the_message_is_found_in_what_spark_says(said: str, message: str) -> None:
    """Ours if there is one, else the innermost cause, and never a page of frames."""
    assert gist(said) == message
    with pytest.raises(OffloaderError) as caught, from_spark("the round failed: "):
        raise Py4JError(said)
    assert caught.value.message == f"the round failed: {message}"


def test_a_task_writes_nothing_into_the_log_of_others(capfd: pytest.CaptureFixture[str]) -> None:
    """What it finds is in the error, or in a row; many may ask for a map, each with a session of its own."""
    before = structlog.get_config()
    structlog.reset_defaults()
    try:
        assert list(rows(options().task(options().columns), (), EntryQuery())) == []
        structlog.get_logger().error("data.corrupt")
    finally:
        structlog.configure(**before)
    assert capfd.readouterr() == ("", "")
