"""The daemon's life in this process: a crashed loop, a stop before it serves, what is left afterwards."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from structlog.testing import capture_logs

from offloaderd.core.clock import SystemClock
from offloaderd.daemon import daemon
from offloaderd.daemon.settings import load
from offloaderd.standalone.ports import free_ports
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from offloaderd.daemon.settings import Settings

CLOCK = SystemClock()


def settings(directory: Path, zookeeper: str) -> Settings:
    """Settings over a directory instead of a bucket."""
    grpc_port, http_port = free_ports(2, CLOCK)
    (directory / "objects").mkdir(exist_ok=True)
    values = {
        "DAEMON__ID": "one",
        "DAEMON__CLUSTER": f"c{CLOCK.uuid().hex[:12]}",
        "GRPC__PORT": grpc_port,
        "HTTP__PORT": http_port,
        "METADATA__SERVERS": zookeeper,
        "METADATA__SESSION_TIMEOUT_S": 40,
        "METADATA__CONNECT_TIMEOUT_S": 1,
        "OBJECTS__KIND": "filesystem",
        "OBJECTS__DIRECTORY": directory / "objects",
        "LEDGERS__KIND": "embedded",
        "LEDGERS__DIRECTORY": directory / "ledgers",
    }
    return load(None, {f"OFFLOADERD__{name}": str(value) for name, value in values.items()})


async def test_a_crashed_loop_stops_the_daemon_with_code_1_and_says_why(
    tmp_path: Path, zookeeper: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its siblings are cancelled, everything is closed (no task, no thread left), the log names the error."""
    serving = asyncio.Event()

    async def crash(*_: object) -> None:
        await serving.wait()
        raise RuntimeError("a defect")

    monkeypatch.setattr(daemon, "watch_loop", crash)
    with capture_logs() as logs:
        assert await daemon.run(settings(tmp_path, zookeeper), on_ready=lambda _: serving.set()) == 1
    crashed = next(line for line in logs if line["event"] == "daemon.crashed")
    assert crashed["error"] == "RuntimeError: a defect"


async def test_a_daemon_that_waits_for_its_servers_can_be_stopped(tmp_path: Path) -> None:
    """Told to stop before ZooKeeper was ever there, it ends at once with code 0."""
    never = daemon.Daemon(settings(tmp_path, f"127.0.0.1:{free_ports(1, CLOCK)[0]}"))

    async def stop_soon() -> None:
        while "waiting for ZooKeeper" not in never.health.view.why:
            await CLOCK.sleep(0.02)
        never.stop("test")

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        group.create_task(stop_soon())
        group.create_task(never.run())
    assert never.exit_code == 0


async def test_a_clean_stop_leaves_the_id_free_for_the_next_start(tmp_path: Path, zookeeper: str) -> None:
    """The second run registers without waiting for the first one's session to expire."""
    site = settings(tmp_path, zookeeper)
    for _ in range(2):
        one = daemon.Daemon(site, on_ready=lambda _: one.stop("test"))  # noqa: B023 - called inside this turn
        started = CLOCK.monotonic()
        await one.run()
        assert one.exit_code == 0
        assert CLOCK.monotonic() - started < 30
