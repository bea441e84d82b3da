"""What is wrong with an export is told before Spark is started."""

from __future__ import annotations

from importlib import metadata
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from offloaderd.core.errors import InvalidConfig, NotFound
from offloaderd.spark.export.export import check, read_of
from offloaderd.spark.export.iceberg import IcebergTable
from offloaderd.spark.scan import snapshot as source_snapshot
from offloaderd.spark.stream import Step
from offloaderd.testing.memory.metadata import MemoryTree

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPTIONS = {"topic": "orders", "objects.bucket": "tests"}


def test_a_wrong_topic_target_or_library_needs_no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each by its own message; nothing is asked of a server for what the options alone say."""
    for options, target, said in (
        ({"mode": "maybe"}, "/archive", "mode = 'maybe'"),
        ({"start": "latest"}, "/archive", "not for an export"),
        ({}, "s3a://bucket/archive", "two exports could commit"),
    ):
        with pytest.raises(InvalidConfig, match=said):
            check({**OPTIONS, **options}, target)
    found = metadata.version
    with monkeypatch.context() as patch:
        patch.setattr(metadata, "version", lambda name: "0.1" if name == "pyiceberg" else found(name))
        with pytest.raises(InvalidConfig, match=r"pyiceberg is 0\.1") as told:
            check(OPTIONS, IcebergTable(name="shop.orders", folder="/lake"))
    assert "offloaderd[iceberg]" in (told.value.hint or "")
    monkeypatch.setattr(source_snapshot, "metadata_store", lambda _: MemoryTree().connect())
    with pytest.raises(NotFound, match="no topic matches public/default/orders"):
        check(OPTIONS, "/archive")


@pytest.mark.parametrize(
    ("step_mib", "given", "task_mib"),
    [(1, {}, 4), (40, {}, 10), (41, {}, 10.25), (4000, {}, 128), (40, {"partition_bytes": "8MiB"}, 8)],
)
def test_a_step_is_cut_for_all_cores(step_mib: int, given: dict[str, str], task_mib: float) -> None:
    """Into a task for each of four, unless these would be very small, or larger than a task may be."""
    options: dict[str, str] = {}
    reader = SimpleNamespace(format=lambda _: SimpleNamespace(options=lambda **all_: options.update(all_)))
    spark = SimpleNamespace(read=reader, sparkContext=SimpleNamespace(defaultParallelism=4))
    step = Step({"a": "1:5", "b": "1:1"}, {"b": "1:1"}, object_bytes=step_mib << 20)
    read_of(cast("SparkSession", spark), {**OPTIONS, **given}, step)
    assert int(options["partition_bytes"]) == task_mib * 2**20
    assert options["offsets"] == '{"start": {}, "end": {"a": "1:5"}}'
    assert options["topic"] == "orders"
