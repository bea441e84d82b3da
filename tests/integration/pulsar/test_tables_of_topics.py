"""docs/tables.md as it stands there, on a real Pulsar standalone: a topic whose schema changes becomes a table."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pulsar
from pulsar.schema import AvroSchema, Integer, Record, String
from pyiceberg.catalog.sql import SqlCatalog

from offloaderd.standalone.ports import free_ports
from tests.integration.processes import CLOCK
from tests.pages import ROOT, blocks
from tests.patience import PATIENCE_S
from tests.unit.spark.iceberg_lake import library_threads

if TYPE_CHECKING:
    from tests.real.pulsar import PulsarServer

PAGE = ROOT / "docs/tables.md"


def narrow() -> type[Record]:
    """Return the schema of an order."""

    class Order(Record):  # type: ignore[misc]
        id = Integer(required=True)
        item = String()

    return Order


def wide() -> type[Record]:
    """Return that of a later release of the producer."""

    class Order(Record):  # type: ignore[misc]
        id = Integer(required=True)
        item = String()
        note = String(required_default=True)

    return Order


def produce(server: PulsarServer, topic: str, schema: type[Record], numbers: range, **more: str) -> None:
    """Send orders in batches, each with a key."""
    client = pulsar.Client(server.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        producer = client.create_producer(f"persistent://public/default/{topic}", schema=AvroSchema(schema))
        for number in numbers:
            producer.send_async(schema(id=number, item=f"item {number}", **more), None, partition_key=f"k{number % 7}")
        producer.flush()
    finally:
        client.close()


async def test_a_topic_becomes_a_table(pulsar_server: PulsarServer, tmp_path: Path) -> None:
    """Each block in its order; then messages of a wider schema, and the same command adds them, in the new column."""
    grpc_port, http_port = free_ports(2, CLOCK)
    topic = f"orders_{CLOCK.uuid().hex[:12]}"
    (settings,) = [block.text for block in blocks(ROOT / "docs/quickstart.md") if block.info == ("toml",)]
    settings = settings.replace("127.0.0.1:2181", pulsar_server.zookeeper)
    settings = settings.replace("http://127.0.0.1:8080", pulsar_server.admin_url)
    (tmp_path / "offloaderd.toml").write_text(settings)
    (tmp_path / "offloaded").mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OFFLOADERD__")} | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "OFFLOADERD__DAEMON__CLUSTER": f"c{CLOCK.uuid().hex[:12]}",
        "OFFLOADERD__GRPC__PORT": str(grpc_port),
        "OFFLOADERD__HTTP__PORT": str(http_port),
        "OFFLOADCTL_ADDRESS": f"127.0.0.1:{grpc_port}",
    }

    async def ran(*command: str) -> str:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=tmp_path, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        said, _ = await process.communicate()
        assert process.returncode == 0, said.decode()
        return said.decode()

    (shell,) = [block.text.replace("orders", topic) for block in blocks(PAGE) if block.info == ("sh", "tables")]
    (program,) = [block.text.replace("orders", topic) for block in blocks(PAGE) if block.info == ("python", "tables")]
    log = tmp_path / "log"
    with log.open("wb") as file:
        daemon = await asyncio.create_subprocess_exec(
            *("offloaderd", "serve", "--config", "offloaderd.toml"),
            cwd=tmp_path,
            env=environment,
            stdout=file,
            stderr=file,
        )
    try:
        async with asyncio.timeout(PATIENCE_S):
            while "daemon.serving" not in log.read_text():
                assert daemon.returncode is None, log.read_text()
                await CLOCK.sleep(0.1)
        await asyncio.to_thread(produce, pulsar_server, topic, narrow(), range(100))
        said = await ran("bash", "-euo", "pipefail", "-c", shell)
        assert f"{topic}/{topic}: " in said
        assert "item" in await ran(sys.executable, "-c", program)
        await asyncio.to_thread(produce, pulsar_server, topic, wide(), range(100, 150), note="new")
        async with asyncio.timeout(PATIENCE_S):
            while len(rows := table(tmp_path / "lake", topic)) < 150:
                # The last messages are hidden from readers for a moment, until bookies confirm them.
                await ran("offloadctl", "offload", topic, "--wait")
                await ran("offloaderd", "spark", "tables", "run", "--once", "--config", "offloaderd.toml")
    finally:
        if daemon.returncode is None:
            daemon.terminate()
        await daemon.wait()
    assert sorted(row["id"] for row in rows) == list(range(150))
    assert {(row["id"] >= 100, row["note"]) for row in rows} == {(False, None), (True, "new")}
    assert {(row["item"], row["_key"]) for row in rows} == {(f"item {n}", f"k{n % 7}".encode()) for n in range(150)}
    shown = json.loads(await ran("offloadctl", "tables", "show", topic, "-o", "json", "--config", "offloaderd.toml"))
    assert [(one["table"], one["lag_entries"], one["lag_s"]) for one in shown["tables"]] == [(topic, 0, 0)]


def table(folder: Path, topic: str) -> list[dict[str, Any]]:
    """Return the rows of the table."""
    catalog = SqlCatalog("offloaderd", uri=f"sqlite:///{folder}/catalog.db")
    try:
        with library_threads():
            rows: list[dict[str, Any]] = catalog.load_table(f"public_default.{topic}").scan().to_arrow().to_pylist()
    finally:
        catalog.close()
    return rows
