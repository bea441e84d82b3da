"""docs/quickstart.md as it stands there, on a real Pulsar standalone: settings, commands, metrics."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pulsar

from offloaderd.standalone.ports import free_ports, http_get
from tests.conformance.metadata_stores import eventually
from tests.integration.processes import CLOCK
from tests.pages import ROOT, blocks
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from tests.real.pulsar import PulsarServer

PAGE = ROOT / "docs/quickstart.md"


def produce(server: PulsarServer, topic: str) -> None:
    """Send what the page has pulsar-client send."""
    client = pulsar.Client(server.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        producer = client.create_producer(f"persistent://public/default/{topic}")
        for _ in range(1000):
            producer.send_async(b"hello", None)
        producer.flush()
    finally:
        client.close()


async def shows(http_port: int, line: str) -> bool:
    """Say whether a line is among the daemon's metrics."""
    status, metrics = await http_get(http_port, "/metrics")
    assert status == 200
    return line in metrics.decode().splitlines()


async def test_a_newcomer_gets_to_a_daemon_that_is_watched(pulsar_server: PulsarServer, tmp_path: Path) -> None:
    """Each block in its order, on these ports; the topic is offloaded, read back, and seen in the metrics."""
    grpc_port, http_port = free_ports(2, CLOCK)
    topic = f"orders-{CLOCK.uuid().hex[:12]}"
    (settings,) = [block.text for block in blocks(PAGE) if block.info == ("toml",)]
    for said, here in (
        ("127.0.0.1:2181", pulsar_server.zookeeper),
        ("http://127.0.0.1:8080", pulsar_server.admin_url),
    ):
        assert said in settings
        settings = settings.replace(said, here)
    (tmp_path / "offloaderd.toml").write_text(settings)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OFFLOADERD__")} | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "OFFLOADERD__DAEMON__CLUSTER": f"c{CLOCK.uuid().hex[:12]}",
        "OFFLOADERD__GRPC__PORT": str(grpc_port),
        "OFFLOADERD__HTTP__PORT": str(http_port),
        "OFFLOADCTL_ADDRESS": f"127.0.0.1:{grpc_port}",
    }

    async def shell(text: str) -> str:
        process = await asyncio.create_subprocess_exec(
            *("bash", "-euo", "pipefail", "-c", text.replace("orders", topic)),
            cwd=tmp_path,
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        assert process.returncode == 0, said.decode()
        return said.decode()

    before, after = [block.text for block in blocks(PAGE) if block.info == ("sh", "beside")]
    (serve,) = [block.text for block in blocks(PAGE) if block.info == ("sh", "server")]
    assert "bookies" in await shell(before)
    log = tmp_path / "log"
    with log.open("wb") as file:
        daemon = await asyncio.create_subprocess_exec(
            *serve.split(), cwd=tmp_path, env=environment, stdout=file, stderr=file
        )
    try:
        async with asyncio.timeout(PATIENCE_S):
            while "daemon.serving" not in log.read_text():
                assert daemon.returncode is None, log.read_text()
                await CLOCK.sleep(0.1)
        await asyncio.to_thread(produce, pulsar_server, topic)
        async with asyncio.timeout(PATIENCE_S):
            while "Offloaded" not in (said := await shell(after)):  # the last messages are hidden for a moment
                await CLOCK.sleep(0.2)
        assert said.count("hello") >= 3
        # Messages that bookies confirmed after the command looked are a matter of the next segment.
        done = f'offloaderd_lag_entries{{topic="persistent://public/default/{topic}"}} 0.0'
        await eventually(lambda: shows(http_port, done))
        status, page = await http_get(http_port, "/status")
        assert (status, topic in page.decode()) == (200, True)
    finally:
        if daemon.returncode is None:
            daemon.terminate()
        await daemon.wait()
    assert daemon.returncode == 0, log.read_text()
