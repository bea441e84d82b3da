"""What a daemon says to systemd, over a socket as systemd's: started, alive, its state, stopping."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.clock import SystemClock
from offloaderd.core.health import Health
from offloaderd.daemon.daemon import Daemon
from offloaderd.daemon.process import attended
from offloaderd.daemon.settings import Settings
from offloaderd.testing.clock import FakeClock
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    LastAnswer = Callable[[], list[str]]

REAL_TIME = "kazoo's threads"


@pytest.fixture(params=["file", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, LastAnswer]]:
    """Yield the name of a socket for NOTIFY_SOCKET, and what was sent to it since the last call."""
    name = str(tmp_path / "notify") if request.param == "file" else f"@offloaderd-{tmp_path.name}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as listening:
        listening.bind(name.replace("@", "\0"))

        def last_answer() -> list[str]:
            found = []
            while True:
                try:
                    found.append(listening.recv(4096).decode())
                except BlockingIOError:
                    return found

        yield name, last_answer


async def test_systemd_hears_of_start_states_and_stop(systemd: tuple[str, LastAnswer]) -> None:
    """READY at once, the reason of each state in one line, STOPPING with the drain and at the end."""
    name, last_answer = systemd
    health = Health()
    async with attended(health, FakeClock(), {"NOTIFY_SOCKET": name}):
        health.starting("waiting for\nZooKeeper")
        assert last_answer() == ["READY=1", "STATUS=starting", "STATUS=starting: waiting for ZooKeeper"]
        health.serving()
        health.draining("SIGTERM")
        assert last_answer() == ["STATUS=serving", "STOPPING=1\nSTATUS=draining: SIGTERM"]
    assert last_answer() == ["STOPPING=1"]


async def test_the_loop_feeds_the_watchdog(systemd: tuple[str, LastAnswer]) -> None:
    """Twice in the time after which systemd restarts, and no more once the daemon has ended."""
    name, last_answer = systemd
    clock = FakeClock()
    async with attended(Health(), clock, {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "60000000"}):
        await clock.advance(0)
        last_answer()
        await clock.advance(60)
        assert last_answer() == ["WATCHDOG=1"] * 2
    last_answer()
    await clock.advance(60)
    assert last_answer() == []


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": "/nowhere/notify", "WATCHDOG_USEC": "1000"}])
async def test_without_systemd_nothing_is_sent_and_nothing_fails(environ: dict[str, str]) -> None:
    """Neither where no socket is named nor where nobody listens; what the body raises stays what it is."""
    with pytest.raises(LookupError):
        async with attended(Health(), FakeClock(), environ):
            raise LookupError


async def test_a_daemon_that_waits_for_zookeeper_has_started(systemd: tuple[str, LastAnswer], tmp_path: Path) -> None:
    """And says what it waits for."""
    name, last_answer = systemd
    settings = Settings.model_validate({
        "metadata": {"servers": "127.0.0.1:1", "connect_timeout_s": 0.2},
        "objects": {"kind": "filesystem", "directory": str(tmp_path)},
        "grpc": {"port": 0},
        "http": {"port": 0},
    })  # fmt: skip
    daemon = Daemon(settings, environ={"NOTIFY_SOCKET": name})
    said: list[str] = []
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        group.create_task(daemon.run())
        while not any("waiting for ZooKeeper at 127.0.0.1:1" in line for line in said):
            said += last_answer()
            await SystemClock().sleep(0.01)
        daemon.stop("that is all")
    assert said[0] == "READY=1"
    assert last_answer()[-1] == "STOPPING=1"
