"""docs/tables.md as it stands there, on a real Pulsar standalone: a topic whose schema changes becomes a table."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pulsar
from pulsar.schema import AvroSchema

from offloaderd.standalone.ports import free_ports
from tests.integration.processes import CLOCK
from tests.pages import ROOT, blocks
from tests.patience import PATIENCE_S
from tests.real.table_rows import iceberg

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.real.pulsar import PulsarServer

PAGE = ROOT / "docs/tables.md"


WIDE = {
    "type": "record",
    "name": "Sale",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "item", "type": "string"},
        {"name": "price", "type": "double"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}
"""The schema of a later release of the page's producer."""


def produce(server: PulsarServer, topic: str, numbers: range) -> None:
    """Send sales of the later release, each with a key, and one without a schema that lacks a field."""
    client = pulsar.Client(server.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        value = BytesIO()
        fastavro.schemaless_writer(value, {**WIDE, "fields": WIDE["fields"][:3]}, {"id": -1, "item": "?", "price": 1.0})
        client.create_producer(f"persistent://public/default/{topic}").send(value.getvalue())
        schema = AvroSchema(None, schema_definition=WIDE)
        producer = client.create_producer(f"persistent://public/default/{topic}", schema=schema)
        for number in numbers:
            sale = {"id": number, "item": f"item {number % 7}", "price": 1.0, "at": 0, "note": "new"}
            producer.send_async(sale, None, partition_key=f"k{number % 7}")
        producer.flush()
    finally:
        client.close()


class Place:
    """Where somebody follows the page, beside a Pulsar."""

    def __init__(self, directory: Path, server: PulsarServer) -> None:
        self.directory = directory
        grpc_port, http_port = free_ports(2, CLOCK)
        (settings,) = [block.text for block in blocks(ROOT / "docs/quickstart.md") if block.info == ("toml",)]
        settings = settings.replace("127.0.0.1:2181", server.zookeeper)
        (directory / "offloaderd.toml").write_text(settings.replace("http://127.0.0.1:8080", server.admin_url))
        (directory / "offloaded").mkdir()
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith("OFFLOADERD__")
        } | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "OFFLOADERD__DAEMON__CLUSTER": f"c{CLOCK.uuid().hex[:12]}",
            "OFFLOADERD__GRPC__PORT": str(grpc_port),
            "OFFLOADERD__HTTP__PORT": str(http_port),
            "OFFLOADCTL_ADDRESS": f"127.0.0.1:{grpc_port}",
        }

    async def ran(self, *command: str) -> str:
        """Run a command to its end; returns what it said."""
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=self.directory,
            env=self.environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        assert process.returncode == 0, said.decode()
        return said.decode()

    @asynccontextmanager
    async def running(self, *command: str) -> AsyncIterator[Callable[[], str]]:
        """Run a command until the context ends; yields what returns its log, and fails once the command has ended."""
        log = self.directory / f"{CLOCK.uuid().hex}.log"
        with log.open("wb") as file:
            process = await asyncio.create_subprocess_exec(
                *command, cwd=self.directory, env=self.environment, stdout=file, stderr=file
            )

        def said() -> str:
            assert process.returncode is None, log.read_text()
            return log.read_text()

        try:
            yield said
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()
        assert process.returncode == 0, log.read_text()

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a table."""
        return iceberg(self.directory / "lake", f"public_default.{table}")


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await CLOCK.sleep(0.2)


async def test_a_topic_becomes_a_table(pulsar_server: PulsarServer, tmp_path: Path) -> None:
    """Each block in its order; the application that runs on takes a wider schema, and dead letters that become rows."""
    place, topic = Place(tmp_path, pulsar_server), f"sales_{CLOCK.uuid().hex[:12]}"

    def page(*info: str) -> list[str]:
        texts = [block.text.replace("sales", topic) for block in blocks(PAGE) if block.info == info]
        return [text.replace("pulsar://127.0.0.1:6650", pulsar_server.service_url) for text in texts]

    (shell,), (keep,), (send, query, replay) = page("sh", "tables"), page("sh", "server"), page("python", "tables")
    async with place.running("offloaderd", "serve", "--config", "offloaderd.toml") as daemon:
        await until(lambda: "daemon.serving" in daemon())
        await place.ran(sys.executable, "-c", send)
        assert f"{topic}/{topic}: " in await place.ran("bash", "-euo", "pipefail", "-c", shell)
        said = await place.ran(sys.executable, "-c", query)
        assert "2.5" in said
        assert "item 6" in said
        async with place.running(*keep.split()) as application:
            await asyncio.to_thread(produce, pulsar_server, topic, range(1000, 1050))
            await until(lambda: application() is not None and len(place.rows(topic)) == 1050)
            for _ in range(2):
                await place.ran(sys.executable, "-c", replay)
            await asyncio.to_thread(produce, pulsar_server, topic, range(1050, 1060))
            await until(lambda: application() is not None and len(place.rows(topic)) == 1061)
    dead, rows = place.rows(f"{topic}_dead_letters"), place.rows(topic)
    assert [row["state"] for row in dead] == ["malformed"] * 2
    (replayed,) = (row for row in rows if row["id"] == -1)
    assert (replayed["item"], replayed["at"], replayed["_entry_id"]) == ("?", None, dead[0]["_entry_id"])
    rows.remove(replayed)
    assert [row["id"] for row in rows] == list(range(1060))
    assert {(row["id"] >= 1000, row["note"], row["_key"] is None) for row in rows} == {
        (False, None, True),
        (True, "new", False),
    }
    assert {(row["item"], row["id"] % 7) for row in rows} == {(f"item {number}", number) for number in range(7)}
    assert {row["at"].year for row in rows if row["id"] >= 1000} == {1970}
    shown = json.loads(
        await place.ran("offloadctl", "tables", "show", topic, "-o", "json", "--config", "offloaderd.toml")
    )
    assert [(one["table"], one["lag_entries"], one["lag_s"]) for one in shown["tables"]] == [(topic, 0, 0)]
