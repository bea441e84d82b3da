"""Ports are free, ours to keep, and their neighbours for gRPC are free too."""

from __future__ import annotations

import errno
import socket
import sys
from collections import deque
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import InvalidConfig
from offloaderd.standalone import ports
from offloaderd.standalone.ports import GRPC_OFFSET, LOOPBACK, PORT_MAX, PORT_MIN, free_ports, is_free, require_free

if TYPE_CHECKING:
    from collections.abc import Iterator

REAL_TIME = "ports of the machine"


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.create_server((LOOPBACK, free_ports(1, SystemClock())[0])) as server:
        yield server.getsockname()[1]


def test_free_ports() -> None:
    """Ports are different, in the range that no outgoing connection uses, and can be listened on."""
    chosen = free_ports(6, SystemClock(), grpc=True)
    assert len(set(chosen)) == 6
    for port in chosen:
        assert PORT_MIN <= port <= PORT_MAX
        assert PORT_MAX + GRPC_OFFSET < 32768
        for listened in (port, port + GRPC_OFFSET):
            with socket.create_server((LOOPBACK, listened)):
                assert not is_free(listened)


def test_taken_ports_are_passed_over(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A port in use is not chosen, nor one whose gRPC port is."""
    monkeypatch.setattr(ports, "_choose", lambda _: True)  # this process has chosen it
    monkeypatch.setattr(ports, "PORT_MIN", taken)
    monkeypatch.setattr(ports, "PORT_MAX", taken)
    with pytest.raises(InvalidConfig, match="fewer than 1 free ports"):
        free_ports(1, SystemClock())
    monkeypatch.setattr(ports, "PORT_MIN", taken - 1)
    monkeypatch.setattr(ports, "PORT_MAX", taken - 1)
    monkeypatch.setattr(ports, "GRPC_OFFSET", 1)
    with pytest.raises(InvalidConfig, match="fewer than 1 free ports"):
        free_ports(1, SystemClock(), grpc=True)


@pytest.mark.skipif(sys.platform != "linux", reason="processes see each other's choices on Linux alone")
def test_a_port_that_another_process_has_chosen_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until its server listens; a process gives back the choices that are long ago, so that ports do not run out."""
    chosen = free_ports(2, SystemClock())
    monkeypatch.setattr(ports, "PORT_MIN", min(chosen))
    monkeypatch.setattr(ports, "PORT_MAX", min(chosen))
    with pytest.raises(InvalidConfig, match="fewer than 1 free ports"):
        free_ports(1, SystemClock())
    monkeypatch.setattr(ports, "_chosen", deque())
    monkeypatch.setattr(ports, "CHOSEN_MAX", 0)
    monkeypatch.setattr(ports, "PORT_MIN", PORT_MIN)
    monkeypatch.setattr(ports, "PORT_MAX", PORT_MAX)
    (free,) = free_ports(1, SystemClock())
    monkeypatch.setattr(ports, "PORT_MIN", free)
    monkeypatch.setattr(ports, "PORT_MAX", free)
    assert free_ports(1, SystemClock()) == free_ports(1, SystemClock()) == [free]


@pytest.mark.skipif(sys.platform != "linux", reason="as above")
def test_ports_are_chosen_where_names_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox that refuses the names by which processes see each other's choices does not refuse ports."""

    class Refusing(socket.socket):
        def bind(self, address: object) -> None:
            if self.family is socket.AF_UNIX:
                raise PermissionError(errno.EACCES, "denied")
            super().bind(address)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "socket", Refusing)
    assert len(free_ports(2, SystemClock())) == 2


def test_require_free(taken: int) -> None:
    """A port in use is named, with who wants it."""
    with pytest.raises(InvalidConfig, match=f"port {taken} for ZooKeeper is in use"):
        require_free([*free_ports(1, SystemClock()), taken], "ZooKeeper")
    require_free(free_ports(3, SystemClock()), "ZooKeeper")
