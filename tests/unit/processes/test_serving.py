"""What the parent holds before it starts a process: the port of all, and a directory of its own."""

from __future__ import annotations

import socket
import tempfile
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import InvalidConfig
from offloaderd.daemon.settings import Settings, load
from offloaderd.processes.serving import directory_of_sockets, reserved
from offloaderd.standalone.ports import free_ports

if TYPE_CHECKING:
    from pathlib import Path

REAL_TIME = "ports"


def host(port: int, process_port: int = 0) -> Settings:
    """Return the settings of two processes."""
    values = {
        "DAEMON__PROCESSES": 2,
        "GRPC__PORT": port,
        "GRPC__PROCESS_PORT": process_port,
        "OBJECTS__BUCKET": "pulsar",
    }
    return load(None, {f"OFFLOADERD__{name}": str(value) for name, value in values.items()})


def listening(port: int, *, shares: bool) -> socket.socket:
    """Return a socket that listens."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(shares))
    try:
        made.bind(("127.0.0.1", port))
        made.listen()
    except OSError:
        made.close()
        raise
    return made


def test_the_common_port_is_the_processes_also_while_none_lives() -> None:
    """Any free one is chosen once, for all; another program cannot take it in between."""
    with reserved(host(0)) as port:
        with pytest.raises(OSError, match="in use"):
            listening(port, shares=False)
        with listening(port, shares=True) as one, listening(port, shares=True) as two, socket.socket() as client:
            client.connect(("127.0.0.1", port))
            one.setblocking(False)
            two.setblocking(False)
            reached = []
            for each in (one, two):
                try:
                    connection, _ = each.accept()
                except BlockingIOError:
                    continue
                connection.close()
                reached.append(each)
            assert len(reached) == 1


@pytest.mark.parametrize("is_own", [False, True])
def test_a_port_in_use_is_a_mistake_even_where_it_could_be_shared(is_own: bool) -> None:
    """A second host with the same ports would get a part of the calls."""
    first = free_ports(1, SystemClock())[0]
    with listening(first, shares=True):
        settings = host(0, first - 1) if is_own else host(first)
        with pytest.raises(InvalidConfig, match=f"127.0.0.1:{first} for gRPC"), reserved(settings):
            pass


def test_the_directory_of_the_sockets_is_this_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And gone afterwards; where none can be made, the mistake names the variable."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with directory_of_sockets() as found:
        assert found.parent == tmp_path
        assert found.stat().st_mode & 0o777 == 0o700
    assert not found.exists()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(InvalidConfig, match="sockets"), directory_of_sockets():
        pass
