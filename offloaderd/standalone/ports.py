"""Loopback ports for child processes: which are free, and small requests to the servers that listen there.

Ports are chosen below the range that the kernel gives to outgoing connections. A port of that range could be taken by
any connection between two starts; one below it stays free, so that the caller may record it and use it again.
"""

import asyncio
import errno
import os
import socket
import sys
from collections import deque
from collections.abc import Iterator, Sequence

from offloaderd.core.clock import Clock
from offloaderd.core.errors import InvalidConfig

LOOPBACK = "127.0.0.1"
PORT_MIN, PORT_MAX = 12_000, 21_999
GRPC_OFFSET = 10_000
"""SeaweedFS takes this port above each of its own for gRPC; PORT_MAX leaves room for it."""
CHOSEN_MAX = 64
"""The last ports of a process that no other one chooses; servers listen on earlier ones, or have ended."""

_chosen: deque[int] = deque()
"""Descriptors of sockets, not sockets: those that are open when the process ends are meant to be."""


def is_free(port: int) -> bool:
    """Return whether a server could listen on this loopback port now. Raises OSError unless it is free or in use."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: closed connections don't count
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            if error.errno in {errno.EADDRINUSE, errno.EACCES}:
                return False
            raise
    return True


def require_free(ports: Sequence[int], server: str) -> None:
    """Raise InvalidConfig naming the first of `ports` that `server` cannot listen on."""
    for port in ports:
        if not is_free(port):
            raise InvalidConfig(
                f"port {port} for {server} is in use",
                hint="is it already running? stop what listens there, or choose another port",
            )


def free_ports(count: int, clock: Clock, *, grpc: bool = False) -> list[int]:
    """Return `count` different free ports, with `grpc` such that each one's gRPC port is free as well.

    Each is chosen once, until its server listens: on Linux not by another process that chooses here at the same time
    either. Elsewhere that is unlikely, as the search starts at a random port. Raises InvalidConfig when there are not
    enough.
    """
    chosen: list[int] = []
    for port in _rotated(clock.uuid().int):
        if is_free(port) and (not grpc or is_free(port + GRPC_OFFSET)) and _choose(port):
            chosen.append(port)
            if len(chosen) == count:
                return chosen
    raise InvalidConfig(f"fewer than {count} free ports between {PORT_MIN} and {PORT_MAX}", hint="stop some servers")


def _choose(port: int) -> bool:
    """Return whether no other process is known to have chosen a port, and hold the name that only one may have."""
    if sys.platform != "linux":
        return True
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as name:
        try:
            name.bind(f"\0offloaderd-port-{port}")
        except OSError as error:
            return error.errno != errno.EADDRINUSE  # where such names are refused, ports are not held
        _chosen.append(name.detach())
    if len(_chosen) > CHOSEN_MAX:
        os.close(_chosen.popleft())
    return True


def _rotated(seed: int) -> Iterator[int]:
    """Yield every port of the range once, from a port that depends on `seed`."""
    width = PORT_MAX - PORT_MIN + 1
    start = seed % width
    return (PORT_MIN + (start + step) % width for step in range(width))


ANSWER_WITHIN_S = 2.0
_ANSWER_BYTES_MAX = 64 * 1024


async def ask(port: int, question: bytes, within_s: float = ANSWER_WITHIN_S) -> bytes:
    """Send `question` and return the answer until the server closes; b"" without an answer."""
    try:
        async with asyncio.timeout(within_s):
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            try:
                writer.write(question)
                return await _read_all(reader)
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return b""


async def http_get(port: int, path: str, within_s: float = ANSWER_WITHIN_S) -> tuple[int, bytes]:
    """GET a path; returns status and body, (0, b"") without an answer."""
    answer = await ask(port, f"GET {path} HTTP/1.0\r\nHost: {LOOPBACK}:{port}\r\n\r\n".encode(), within_s)
    head, _, body = answer.partition(b"\r\n\r\n")
    words = head.split(None, 2)
    if len(words) < 2 or not words[1].isdigit():
        return 0, b""
    return int(words[1]), body


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    answer = bytearray()
    while len(answer) < _ANSWER_BYTES_MAX and (piece := await reader.read(4096)):
        answer += piece
    return bytes(answer)
