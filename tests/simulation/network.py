"""A virtual wire: connections between tasks of one loop, with all that a kernel and a line do to bytes on their way.

A connection is a pair of transports. What one writes reaches the other after a delay, in order; it waits where the
other one reads no more, and while the line is cut. Whoever has written more than HIGH_BYTES that have not arrived is
paused. A process that is stopped gets its bytes when it goes on; one that is killed has all its connections reset.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import Context, copy_context
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.simulation.loop import Process, VirtualLoop

HIGH_BYTES, LOW_BYTES = 64 * 1024, 16 * 1024
LATENCY_S = 0.001
CUT_LOOK_S = 0.1
"""How often a cut line is tried again."""
PORTS_FROM = 20_000


class _Mark(Enum):
    """What reaches the other side beside bytes."""

    END = "nothing more is written"
    RESET = "the connection is gone"


class Line:
    """What happens on the way between a process and a server; by default it is short, sound and never cut."""

    def delay(self, process: Process | None) -> float:
        """Return the seconds that a packet takes."""
        return LATENCY_S

    def is_cut(self, process: Process | None) -> bool:
        """Say whether nothing passes at present."""
        return False

    def breaks(self, process: Process | None) -> bool:
        """Say whether the connection is reset in place of the packet."""
        return False


class Network:
    """The servers of one loop, by host and port, and all connections to them."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.line = Line()
        self._loop = loop
        self._servers: dict[tuple[str, int], Server] = {}
        self._next_port = PORTS_FROM
        self._sockets: list[Socket] = []

    def serve(self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> Server:
        """Take connections, at any free port for 0. Raises OSError for one that is taken."""
        if not port:
            self._next_port += 1
            port = self._next_port
        if (host, port) in self._servers:
            raise OSError(f"address already in use: {host}:{port}")
        server = self._servers[host, port] = Server(self, factory, host, port)
        return server

    def forget(self, server: Server) -> None:
        """Take no more connections for a server."""
        if self._servers.get((server.host, server.port)) is server:
            del self._servers[server.host, server.port]

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, process: Process | None
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Connect a process to a server. Raises ConnectionRefusedError without one."""
        await asyncio.sleep(self.line.delay(process))  # noqa: TID251 - the loop's own time
        while self.line.is_cut(process):
            await asyncio.sleep(CUT_LOOK_S)  # noqa: TID251 - the loop's own time
        server = self._servers.get((host, port))
        if server is None:
            raise ConnectionRefusedError(f"connection refused: {host}:{port}")
        protocol = factory()
        self._next_port += 1
        near = Socket(self, process, protocol, copy_context(), (host, port))
        far = Socket(self, process, server.factory(), server.context, ("client", self._next_port))
        near.peer, far.peer = far, near
        self._sockets = [one for one in self._sockets if not one.lost]
        self._sockets += [near, far]
        self._loop.call_soon(far.protocol.connection_made, far, context=far.context)
        protocol.connection_made(near)
        return near, protocol

    def killed(self, process: Process) -> None:
        """Reset all connections of a process, as the kernel does when it has died."""
        for socket in self._sockets:
            if socket.process is process and socket.is_near:
                socket.vanish()

    @property
    def loop(self) -> VirtualLoop:
        """The loop that it belongs to."""
        return self._loop


class Server:
    """One listening server."""

    def __init__(self, network: Network, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> None:
        self.factory = factory
        self.host, self.port = host, port
        self.context = copy_context()
        self._network = network

    @property
    def sockets(self) -> Sequence[Server]:
        """Itself: it has the one method that is asked of a socket."""
        return (self,)

    def getsockname(self) -> tuple[str, int]:
        """Return host and port."""
        return self.host, self.port

    def close(self) -> None:
        """Take no more connections; those that there are stay."""
        self._network.forget(self)


class Socket(asyncio.Transport):
    """One side of a connection; `process` is the one that has connected, on both sides of it."""

    _start_tls_compatible = True  # what asyncio asks of a transport before TLS begins on it

    def __init__(
        self,
        network: Network,
        process: Process | None,
        protocol: asyncio.BaseProtocol,
        context: Context,
        address: tuple[str, int],
    ) -> None:
        super().__init__()
        self.process, self.protocol, self.context = process, protocol, context
        self.is_near = address[0] != "client"
        self.peer: Socket
        self.lost = False
        self._network = network
        self._loop = network.loop
        self._address = address
        self._inbox: deque[tuple[float, bytes | _Mark]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._reading = True
        self._closing = self._ended = self._full = False
        self._on_its_way = 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 - asyncio's signature
        """Return the address of the other side."""
        return self._address if name == "peername" else default

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol."""
        return self.protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Hand what comes to another protocol."""
        self.protocol = protocol

    def is_closing(self) -> bool:
        """Whether nothing can be written any more."""
        return self._closing

    def is_reading(self) -> bool:
        """Whether what comes is handed on."""
        return self._reading

    def pause_reading(self) -> None:
        """Leave in the line what comes."""
        self._reading = False

    def resume_reading(self) -> None:
        """Hand on what comes."""
        self._reading = True
        self._look()

    def get_write_buffer_size(self) -> int:
        """Return how many bytes have not arrived."""
        return self._on_its_way

    def can_write_eof(self) -> bool:
        """One direction can be closed alone."""
        return True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes."""
        if self._closing or self._ended or not data:
            return
        if self._network.line.breaks(self.process):
            self.vanish()
            self.peer.vanish()
            return
        self._on_its_way += len(data)
        self.peer.put(bytes(data))
        if self._on_its_way > HIGH_BYTES and not self._full:
            self._full = True
            self.protocol.pause_writing()

    def write_eof(self) -> None:
        """Send nothing more; what the other side sends still comes."""
        if not self._ended and not self._closing:
            self._ended = True
            self.peer.put(_Mark.END)

    def close(self) -> None:
        """Send what was written and close."""
        if not self._closing:
            self.write_eof()
            self._lose(None)

    def abort(self) -> None:
        """Close at once, by a reset."""
        if not self._closing:
            self.peer.put(_Mark.RESET)
            self._lose(None)

    def _force_close(self, _: BaseException | None) -> None:
        """Be closed at once by asyncio's TLS."""
        self.abort()

    def vanish(self) -> None:
        """Be reset by nobody of the two."""
        if not self._closing:
            self.peer.put(_Mark.RESET)
            self._lose(ConnectionResetError("connection reset by peer"))

    def put(self, what: bytes | _Mark) -> None:
        """Take what the other side has sent on its way."""
        if self._closing:
            return
        last = self._inbox[-1][0] if self._inbox else 0.0
        self._inbox.append((max(last, self._loop.time() + self._network.line.delay(self.process)), what))
        self._look()

    def _look(self) -> None:
        if self._timer is None and self._inbox and not self._closing and self._reading:
            self._timer = self._loop.call_at(self._inbox[0][0], self._arrive, context=self.context)

    def _arrive(self) -> None:
        """Hand on all that has arrived by now."""
        self._timer = None
        if self._closing or not self._reading:
            return
        now = self._loop.time()
        if self._network.line.is_cut(self.process):
            self._timer = self._loop.call_at(now + CUT_LOOK_S, self._arrive, context=self.context)
            return
        data, mark = bytearray(), None
        while self._inbox and self._inbox[0][0] <= now and mark is None:
            _, what = self._inbox.popleft()
            if isinstance(what, _Mark):
                mark = what
            else:
                data += what
        if data:
            self.peer.arrived(len(data))
            self._hand_on(bytes(data))
        if mark is _Mark.RESET:
            self._lose(ConnectionResetError("connection reset by peer"))
        elif mark is _Mark.END and not self._closing:
            assert isinstance(self.protocol, (asyncio.Protocol, asyncio.BufferedProtocol))
            if not self.protocol.eof_received():
                self.close()
        self._look()

    def _hand_on(self, data: bytes) -> None:
        while data and isinstance(self.protocol, asyncio.BufferedProtocol):  # TLS
            buffer = memoryview(self.protocol.get_buffer(len(data)))
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            self.protocol.buffer_updated(size)
            data = data[size:]
        if data:
            assert isinstance(self.protocol, asyncio.Protocol)
            self.protocol.data_received(data)

    def arrived(self, size: int) -> None:
        """Note that the other side has got bytes."""
        self._on_its_way -= size
        if self._full and self._on_its_way <= LOW_BYTES and not self._closing:
            self._full = False
            self._loop.call_soon(self.protocol.resume_writing, context=self.context)

    def _lose(self, error: Exception | None) -> None:
        self._closing = self.lost = True
        self._inbox.clear()
        if self._timer is not None:
            self._timer.cancel()
        self._loop.call_soon(self.protocol.connection_lost, error, context=self.context)
