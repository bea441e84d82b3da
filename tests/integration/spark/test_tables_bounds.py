"""What a step of a table takes of a long history, and what the application holds of it: no more than its step size."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from math import ceil
from typing import TYPE_CHECKING, Any

import pytest
from pyarrow import parquet
from pyiceberg.catalog.sql import SqlCatalog

from offloaderd.metadata.topic_map import map as catalog
from offloaderd.spark.stream import Step
from offloaderd.spark.tables.writer import TableWriter
from offloaderd.tables.declaration import TableMode
from tests.integration.spark.tables import ORDER, TOPIC, declare, order, run
from tests.unit.read.build import Piece

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from offloaderd.metadata.committed import CommittedSegment
    from offloaderd.spark.export.commit import Commit
    from tests.integration.spark.site import Site

pytestmark = pytest.mark.usefixtures("pools")

SEGMENTS, ROWS = 9, 50
SEGMENTS_A_STEP = 2
KEYS = 120


def history(site: Site) -> Sequence[CommittedSegment]:
    """Offload a topic of many segments; return them."""

    async def offloaded() -> Sequence[CommittedSegment]:
        for number in range(SEGMENTS):
            ids = range(number * ROWS, (number + 1) * ROWS)
            rows = [order(ORDER, {"id": one % KEYS, "item": f"x{one:06}"}) for one in ids]
            await site.commit(TOPIC, [Piece(number + 1, 0, rows, ROWS)])
        async with site.stores() as (metadata, _):
            return (await catalog.load(metadata, TOPIC)).segments

    return asyncio.run(offloaded())


@pytest.mark.parametrize("mode", TableMode)
def test_a_step_takes_and_holds_no_more_than_its_size(
    spark: SparkSession, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: TableMode
) -> None:
    """However long the history is. An append holds no row in the application, an upsert in Iceberg those of a step."""
    segments = history(site)
    least_bytes, entry_bytes = (found(one.object_bytes for one in segments) / ROWS for found in (min, max))
    step_bytes = int(SEGMENTS_A_STEP * ROWS * entry_bytes)
    rows_max = step_bytes / least_bytes + 1
    taken: list[int] = []
    held = Counter[int]()
    read_table, write = parquet.read_table, TableWriter._written

    def wrote(*given: Any, **more: Any) -> Commit:  # noqa: ANN401 - whatever it takes
        (step,) = [one for one in given if isinstance(one, Step)]
        taken.append(step.object_bytes)
        return write(*given, **more)

    def read(*given: Any, **more: Any) -> pa.Table:  # noqa: ANN401 - whatever it takes
        found = read_table(*given, **more)
        held[len(taken)] += found.num_rows
        return found

    monkeypatch.setattr(TableWriter, "_written", wrote)
    monkeypatch.setattr(parquet, "read_table", read)
    upserts = {"mode": mode, "key": ("id",)} if mode is TableMode.UPSERT else {}
    declare(site, to=str(tmp_path), schema=json.dumps(ORDER), step_bytes=step_bytes, **upserts)
    sound, (state,) = run(spark, site)
    assert (sound, state.lag_entries) == (True, 0)
    total_bytes = sum(one.object_bytes for one in segments)
    assert max(taken) <= step_bytes + entry_bytes
    assert len(taken) == ceil(total_bytes / step_bytes)
    found = SqlCatalog("offloaderd", uri=f"sqlite:///{tmp_path}/catalog.db")
    try:
        table = found.load_table("public_default.orders")
        summaries = [one.summary for one in table.snapshots()]
        rows = table.scan().to_arrow()["item"].to_pylist()
    finally:
        found.close()
    if mode is TableMode.APPEND:
        added = [int(one["added-records"] or 0) for one in summaries if one is not None]
        assert len(added) == len(taken)
        assert max(added) <= rows_max
        assert (dict(held), len(rows)) == ({}, SEGMENTS * ROWS)
    else:
        assert len(held) == len(taken)
        assert max(held.values()) <= rows_max
        assert sorted(rows) == [f"x{one:06}" for one in range(SEGMENTS * ROWS - KEYS, SEGMENTS * ROWS)]
