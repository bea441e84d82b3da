"""`offloaderd spark tables run` as a process: killed in the middle of its steps, and how it shares its executors."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from offloaderd.tables import store as stored
from offloaderd.tables.declaration import Declaration, TableFormat
from tests.integration import processes
from tests.integration.command_line import ran, started
from tests.integration.spark.site import CLOCK, Site
from tests.integration.spark.tables import ORDER, TOPIC, order
from tests.patience import PATIENCE_S
from tests.real.table_rows import rows_of
from tests.unit.format.test_pulsar_message import entry
from tests.unit.read.build import PREFIX, Piece

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from tests.integration.command_line import Command
    from tests.servers import S3Server

RUN = ("spark", "tables", "run", "--master", "local[2]")
ROWS = 2
"""Messages of a segment that are rows; one more is a dead letter."""
BEGUN, WRITTEN = "orders/data/*", "orders/data/*/_day=*/*.parquet"
MOMENTS = {
    "a step has begun": (BEGUN,),
    "its rows are written": (WRITTEN,),
    "its dead letters are committed": (
        "orders_dead_letters/_delta_log/*.json",
        "orders_dead_letters/metadata/*.metadata.json",
    ),
    "its rows are committed": ("orders/_delta_log/*.json", "orders/metadata/*.metadata.json"),
    "its state is told": (),
}
"""When the application is killed: files of which there is a new one then; without any, a line on stdout."""


class Run:
    """The application on a site of its own, with a topic that grows by a segment at a time."""

    def __init__(self, directory: Path, zookeeper: str, s3: S3Server, bucket: str) -> None:
        self._site = Site(zookeeper, {"bucket": bucket, **s3._asdict()})
        self.process_site = processes.Site.at(directory, zookeeper, s3, bucket)
        self.process_site.cluster = "test"
        self.process_site.settings["metadata"] = {"root": self._site.root}
        self.process_site.settings["objects"] = {"prefix": PREFIX}
        self.ledgers = 0

    async def declare(self, name: str, folder: Path, form: TableFormat, **more: Any) -> None:  # noqa: ANN401 - fields
        """Declare a table of the topic, which takes an entry a step. `more`: other fields of the declaration."""
        declared = Declaration(
            name=name,
            topics="public/default/orders",
            to=str(folder),
            format=form,
            schema=json.dumps(ORDER),
            interval_s=1.0,
            step_bytes=1,
            **more,
        )
        async with self._site.stores() as (metadata, _):
            await stored.create(metadata, declared)

    async def grow(self, segments: int) -> None:
        """Offload so many segments more."""
        for _ in range(segments):
            first = self.ledgers * ROWS
            held = [order(ORDER, {"id": number, "item": "x"}) for number in range(first, first + ROWS)]
            self.ledgers += 1
            await self._site.commit(TOPIC, [Piece(self.ledgers, 0, [*held, entry(b"\x80")], ROWS + 1)])

    def start(self) -> AbstractAsyncContextManager[Command]:
        """Start the application."""
        return started(self.process_site, "offloaderd", *RUN, "--json", own_session=True)


async def reached(command: Command, folder: Path, patterns: tuple[str, ...]) -> None:
    """Wait for a moment."""
    if not patterns:
        assert command.process.stdout is not None
        assert await command.process.stdout.readline(), command.told()
        return

    def seen() -> set[Path]:
        return {file for one in patterns for file in folder.glob(one)}

    before = seen()
    while not seen() - before:
        assert command.process.returncode is None, command.told()
        await CLOCK.sleep(0.002)


@pytest.mark.parametrize(
    ("form", "moments"),
    [
        pytest.param(TableFormat.ICEBERG, ["its rows are written"], marks=pytest.mark.witness("spark"), id="once"),
        *(pytest.param(form, list(MOMENTS), id=form) for form in TableFormat),
    ],
)
async def test_a_killed_application_goes_on_where_the_table_is(
    tmp_path: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str, form: TableFormat, moments: list[str]
) -> None:
    """Killed with all its processes in one life after the other: each message once, and nothing left of other tries."""
    run = Run(tmp_path, zookeeper, s3_server, s3_bucket)
    lake = tmp_path / "lake"
    folder = lake if form is TableFormat.DELTA else lake / "public_default"
    await run.declare("orders", lake, form)
    for moment in moments:
        await run.grow(1)
        async with run.start() as command, asyncio.timeout(PATIENCE_S):
            await reached(command, folder, MOMENTS[moment])
            await command.kill()
    await run.grow(2)  # the second one deletes what is left of a try of the first
    async with run.start() as command, asyncio.timeout(PATIENCE_S):
        while len(rows := await asyncio.to_thread(rows_of, form, lake, "orders")) < run.ledgers * ROWS:
            assert command.process.returncode is None, command.told()
            await CLOCK.sleep(0.2)
        command.process.terminate()
        code, _ = await command.ended()
        assert code == 0, command.told()
    assert [row["id"] for row in rows] == list(range(run.ledgers * ROWS))
    assert rows == rows_of(form, lake, "orders")
    dead = rows_of(form, lake, "orders_dead_letters")
    assert [row["_ledger_id"] for row in dead] == list(range(1, run.ledgers + 1))
    for table in ("orders", "orders_dead_letters"):
        steps = Counter(one.name.partition("-")[0] for one in (folder / table / "data").iterdir())
        assert {number: count for number, count in steps.items() if count > 1 and number.isdecimal()} == {}


async def test_tables_share_the_executors_fairly(
    tmp_path: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str
) -> None:
    """Spark's own log of events says that its scheduler is the fair one, and that each table's jobs have a pool."""
    run = Run(tmp_path, zookeeper, s3_server, s3_bucket)
    for name in ("one", "two"):
        await run.declare(name, tmp_path / name, TableFormat.DELTA)
    await run.grow(1)
    events = tmp_path / "events"
    events.mkdir()
    given = {"enabled": "true", "dir": events.as_uri(), "compress": "false", "rolling.enabled": "false"}
    conf = [word for name, value in given.items() for word in ("--spark-conf", f"spark.eventLog.{name}={value}")]
    code, _, told = await ran(run.process_site, "offloaderd", *RUN, "--once", *conf)
    assert code == 0, told
    (log,) = events.iterdir()
    said = [json.loads(line) for line in log.read_text().splitlines()]
    (settings,) = (one["Spark Properties"] for one in said if one["Event"] == "SparkListenerEnvironmentUpdate")
    assert settings["spark.scheduler.mode"] == "FAIR"
    jobs = [one["Properties"] for one in said if one["Event"] == "SparkListenerJobStart"]
    assert {one.get("spark.scheduler.pool") for one in jobs} == {"one-orders", "two-orders"}
