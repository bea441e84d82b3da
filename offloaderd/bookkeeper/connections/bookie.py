"""One bookie: its connections, its windows, whether it is avoided, and whether it knows batch reads.

Rules: the address is read again for each connection, since it may change under one id; while ZooKeeper does not answer,
the last one is used. Only one connection of a protocol is made at a time, and all callers share it. A bookie is avoided
after a connection could not be made, fell silent, broke the protocol or ended without any answer; each failure in a row
doubles the time, an answer ends it.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import structlog

from offloaderd.bookkeeper.connections.connection import (
    Answer,
    BookieConnection,
    ConnectionLost,
    Key,
    TimedOut,
    Wire,
    status_of,
)
from offloaderd.bookkeeper.connections.handshake import Handshake
from offloaderd.bookkeeper.connections.window import Window
from offloaderd.bookkeeper.metadata.layout import registration_paths
from offloaderd.bookkeeper.metadata.registration import BookieAddress, resolve
from offloaderd.bookkeeper.ports import Znodes
from offloaderd.bookkeeper.settings import BookkeeperSettings
from offloaderd.bookkeeper.wire import v3
from offloaderd.bookkeeper.wire.status import BadAnswer, Status
from offloaderd.core.clock import Clock
from offloaderd.core.errors import Closed, CorruptData, NotFound, OffloaderError, Transient
from offloaderd.core.retry import doubled

log = structlog.get_logger(__name__)

BATCHES_MAX = 4
"""Batch reads that one bookie has on their way."""
BACKOFF_MIN_S, BACKOFF_MAX_S = 0.2, 30.0
"""How long a failing bookie is avoided: twice as long each time."""
ASK_AGAIN_S = 3600.0
"""How long a bookie that knows no batch reads, or no long polls, gets none."""


@dataclass(slots=True, eq=False)
class Bookie:
    """The state of one bookie; `on_bytes` gets the size of what arrives, `on_probe` whether a probe was answered."""

    bookie_id: str
    znodes: Znodes
    handshake: Handshake
    clock: Clock
    options: BookkeeperSettings
    on_bytes: Callable[[int], None]
    on_probe: Callable[[bool], None]
    singles: Window = field(init=False)
    batches: Window = field(init=False)
    knows_batch: bool = False
    """Whether it has answered a batch read."""
    _connections: dict[Wire, BookieConnection] = field(default_factory=dict)
    _newest: dict[Wire, BookieConnection] = field(default_factory=dict)
    """Connections that are open, and those that are being made."""
    _connecting: dict[Wire, asyncio.Lock] = field(default_factory=lambda: {wire: asyncio.Lock() for wire in Wire})
    _address: BookieAddress | None = None
    _failures: int = 0
    _failure: OffloaderError | None = None
    _avoided_until: float = 0.0
    _no_batch_until: float = 0.0
    _no_long_polls_until: float = 0.0
    _closed: bool = False

    def __post_init__(self) -> None:
        self.singles = Window(self.options.requests_in_flight_max)
        self.batches = Window(BATCHES_MAX)

    @property
    def connection_count(self) -> int:
        """Number of open connections."""
        return sum(not connection.closed for connection in self._connections.values())

    @property
    def in_flight(self) -> int:
        """Number of requests without an answer."""
        return self.singles.used + self.batches.used

    @property
    def avoided(self) -> bool:
        """Whether it gets no connection now."""
        return self._failures > 0 and self.clock.monotonic() < self._avoided_until

    @property
    def may_batch(self) -> bool:
        """Whether it may know batch reads."""
        return self.clock.monotonic() >= self._no_batch_until

    @property
    def long_poll_count(self) -> int:
        """Number of long polls without an answer."""
        return sum(connection.long_poll_count for connection in self._connections.values())

    @property
    def may_long_poll(self) -> bool:
        """Whether it may know long polls."""
        return self.clock.monotonic() >= self._no_long_polls_until

    @property
    def forgettable(self) -> bool:
        """Whether its state has no information."""
        return not self.connection_count and self.singles.idle and self.batches.idle and not self.avoided

    def lacks_batch(self) -> None:
        """Send it no batch read for ASK_AGAIN_S."""
        self._no_batch_until = self.clock.monotonic() + ASK_AGAIN_S
        self.knows_batch = False
        log.info("bookie.batch_reads_unknown", bookie=self.bookie_id, retry_s=ASK_AGAIN_S)

    def lacks_long_polls(self) -> None:
        """Send it no long poll for ASK_AGAIN_S."""
        if self.may_long_poll:
            log.info("bookie.long_polls_unknown", bookie=self.bookie_id, retry_s=ASK_AGAIN_S)
        self._no_long_polls_until = self.clock.monotonic() + ASK_AGAIN_S

    def clear_failures(self) -> None:
        """Forget its failures: they had another cause, or are over."""
        if self._failures:
            log.info("bookie.recovered", bookie=self.bookie_id, failures=self._failures)
        self._failures = 0

    async def ask(self, wire: Wire, window: Window, make: Callable[[BookieConnection], tuple[Key, bytes]]) -> Answer:
        """Send the request that `make` returns, in turn, and return its answer, good or bad.

        Raises TimedOut, ConnectionLost, BadAnswer, Transient, Denied, Closed.
        """
        ticket = await window.enter()
        try:
            connection = await self._connection(wire)
            await connection.writable()
            key, request = make(connection)
        except BaseException:
            window.leave()
            raise
        answer = await connection.send(key, request, window)
        self._adapt(answer, window, ticket)
        return answer

    async def long_poll(self, ledger_id: int, previous_lac: int, seconds: float) -> asyncio.Future[Answer]:
        """Send a long poll for a LAC above `previous_lac` of at most `seconds`; return the future of its answer.

        Takes no slot of a window. Raises Throttled, and what `ask` does; so does the future.
        """
        connection = await self._connection(Wire.V3)
        await connection.writable()
        number = connection.new_id()
        request = v3.encode_long_poll(number, ledger_id, previous_lac=previous_lac, timeout_ms=round(1000 * seconds))
        return connection.send_long_poll(number, request, ledger_id, seconds)

    def distrust(self, wire: Wire, what: str) -> BadAnswer:
        """End a connection with a wrong answer, and return the error to raise."""
        error = BadAnswer(f"bookie {self.bookie_id} sent {what}")
        connection = self._connections.get(wire)
        if connection is not None and not connection.closed:
            connection.end(error)
            self._failed(error)
        return error

    def close(self) -> None:
        """End its connections: pending requests raise Closed."""
        self._closed = True
        for connection in self._newest.values():
            connection.end(_closed())

    def _adapt(self, answer: Answer, window: Window, ticket: int) -> None:
        self.clear_failures()
        match status_of(answer):
            case Status.TOO_MANY_REQUESTS:
                window.shrink(ticket)
            case Status.OK:
                window.grow()

    async def _connection(self, wire: Wire) -> BookieConnection:
        found = self._connections.get(wire)
        if found is not None and not found.closed:
            return found
        async with self._connecting[wire]:
            found = self._connections.get(wire)
            if found is not None and not found.closed:
                return found
            self._raise_if_avoided()
            made = await self._connect(wire)
            self._connections[wire] = made
        return made

    def _raise_if_avoided(self) -> None:
        if self._closed:
            raise _closed()
        if self.avoided and self._failure is not None:
            left_s = self._avoided_until - self.clock.monotonic()
            message = f"{self._failure.message}; bookie {self.bookie_id} gets no request for another {left_s:.1f} s"
            raise type(self._failure)(message, hint=self._failure.hint)

    async def _connect(self, wire: Wire) -> BookieConnection:
        seconds = self.options.connect_timeout_s
        try:
            async with asyncio.timeout(seconds):
                address = await self._look_up()
                made = await self.handshake.connect(self.bookie_id, address, wire, partial(self._new_connection, wire))
        except TimeoutError:
            failure = TimedOut(f"bookie {self.bookie_id} gave no connection within {seconds:g} s")
            self._failed(failure)
            raise failure from None
        except Closed:
            raise
        except OffloaderError as error:
            if self._closed:
                raise _closed() from None
            self._failed(error)
            raise
        self._address = address
        return made

    def _new_connection(self, wire: Wire, first: Wire) -> BookieConnection:
        """Return a connection that will use `wire`, and begins with `first`."""

        def ended(error: OffloaderError) -> None:
            in_use = made in self._connections.values()  # else the handshake failed, which is counted there
            if in_use and (not made.answered or not isinstance(error, ConnectionLost)):
                self._failed(error)

        made = BookieConnection(
            self.bookie_id, first, self.options, on_bytes=self.on_bytes, on_probe=self.on_probe, on_end=ended
        )
        self._newest[wire] = made
        if self._closed:
            made.end(_closed())
        return made

    async def _look_up(self) -> BookieAddress:
        """Return the present, or else the last known address. Raises Transient, Denied, Closed."""
        try:
            async with asyncio.timeout(self.options.connect_timeout_s / 2):
                return await self._registered()
        except TimeoutError:
            if self._address is None:
                raise TimedOut(f"the address of bookie {self.bookie_id}: ZooKeeper did not tell in time") from None
        except Transient:
            if self._address is None:
                raise
        return self._address

    async def _registered(self) -> BookieAddress:
        content, where = None, ""
        for path in registration_paths(self.options.ledgers_root, self.bookie_id):
            with suppress(NotFound):
                content, where = (await self.znodes.get(path)).value, path
                break
        try:
            return resolve(self.bookie_id, content, path=where)
        except (NotFound, CorruptData) as error:
            raise Transient(f"bookie {self.bookie_id} has no address: {error}") from error

    def _failed(self, error: OffloaderError) -> None:
        self._failures += 1
        self._failure = error
        longest = doubled(BACKOFF_MIN_S, BACKOFF_MAX_S, self._failures)
        self._avoided_until = self.clock.monotonic() + self.clock.jitter(longest)
        if self._failures == 1:
            log.warning("bookie.avoided", bookie=self.bookie_id, error=str(error))


def _closed() -> Closed:
    return Closed("the pool of bookies is closed")
