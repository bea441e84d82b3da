"""All bookies of a cluster, by id: the only access of this package to them.

Rules: connections are made when needed, one a bookie for v2 (reads and batch reads) and one for v3 (the end of a
ledger), and closed when idle. Only one connection of a protocol is made at a time, and all callers share it. The
address is read again for each, since it may change under one id; while ZooKeeper does not answer, the last one is used.

A bookie is avoided after a connection could not be made, fell silent, broke the protocol or ended without any answer;
each failure in a row doubles the time, an answer ends it. Only the first batch read to a bookie is retried: a bookie
before 4.17 ends the connection on it, and, unlike one that broke down, again on a new one. An answer is checked against
its request; the caller checks the entries.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Self, TypeAlias

import structlog

from offloaderd.bookkeeper.connections.connection import (
    Answer,
    BookieConnection,
    ConnectionLost,
    Key,
    TimedOut,
    Window,
    Wire,
    status_of,
)
from offloaderd.bookkeeper.connections.handshake import Handshake
from offloaderd.bookkeeper.metadata import BookieAddress, is_bookie_id, registration_paths, resolve_address
from offloaderd.bookkeeper.ports import LastKnown, Znodes
from offloaderd.bookkeeper.settings import BookkeeperSettings
from offloaderd.bookkeeper.wire import v2, v3
from offloaderd.bookkeeper.wire.protocol import LAST_ENTRY, BadAnswer, Status, Unsupported, failure
from offloaderd.core.clock import Clock
from offloaderd.core.errors import Closed, CorruptData, InvalidInput, NotFound, OffloaderError, Transient
from offloaderd.core.metrics.families import BOOKIE_OPERATIONS, BOOKIE_OUTCOMES, BOOKIE_TIMED
from offloaderd.core.metrics.metrics import Metrics
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
            window.release()
            raise
        answer = await connection.send(key, request, window)
        self.clear_failures()
        match status_of(answer):
            case Status.TOO_MANY_REQUESTS:
                window.shrink(ticket)
            case Status.OK:
                window.grow()
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

    async def _connection(self, wire: Wire) -> BookieConnection:
        found = self._connections.get(wire)
        if found is not None and not found.closed:
            return found
        async with self._connecting[wire]:
            found = self._connections.get(wire)
            if found is not None and not found.closed:
                return found
            if self._closed:
                raise _closed()
            if self.avoided and self._failure is not None:
                left_s = self._avoided_until - self.clock.monotonic()
                message = f"{self._failure.message}; bookie {self.bookie_id} gets no request for another {left_s:.1f} s"
                raise type(self._failure)(message, hint=self._failure.hint)
            made = self._connections[wire] = await self._connect(wire)
        return made

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
                raise TimedOut(f"the address of bookie {self.bookie_id}: ZooKeeper did not answer in time") from None
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
            return resolve_address(self.bookie_id, content, path=where)
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


BOOKIES_MAX: Final = 1024
"""Bookies in memory, unless more are in use."""

Request: TypeAlias = Callable[[BookieConnection], tuple[Key, bytes]]

_OUTCOMES: Final = {
    Status.OK: "ok",
    Status.NO_LEDGER: "missing",
    Status.NO_ENTRY: "missing",
    Status.TOO_MANY_REQUESTS: "busy",
}


class BookiePool:
    """Implements `ports.Bookies`. Async context manager: leaving it ends all connections; requests raise Closed."""

    def __init__(
        self, znodes: Znodes, *, clock: Clock, metrics: Metrics, options: BookkeeperSettings | None = None
    ) -> None:
        """Read certificates, if there are any; nothing is connected yet. Raises InvalidConfig."""
        self._znodes = znodes
        self._clock = clock
        self._metrics = metrics
        self._options = options or BookkeeperSettings()
        self._handshake = Handshake(self._options, clock=clock)
        self._bookies: dict[str, Bookie] = {}
        self._closed = True
        self._requests = {
            (operation, outcome): metrics.bookie_requests.labels(operation, outcome)
            for operation in BOOKIE_OPERATIONS
            for outcome in BOOKIE_OUTCOMES
        }
        self._seconds = {
            operation: metrics.bookie_request_duration_seconds.labels(operation) for operation in BOOKIE_TIMED
        }

    async def __aenter__(self) -> Self:
        self._closed = False
        self._metrics.bookie_connections.set_function(self._total(lambda bookie: bookie.connection_count))
        self._metrics.bookies_avoided.set_function(self._total(lambda bookie: bookie.avoided))
        self._metrics.bookie_requests_in_flight.set_function(self._total(lambda bookie: bookie.in_flight))
        self._metrics.bookie_long_polls.set_function(self._total(lambda bookie: bookie.long_poll_count))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closed = True
        for bookie in self._bookies.values():
            bookie.close()
        self._bookies.clear()

    def ordered(self, bookie_ids: Sequence[str]) -> list[str]:
        """Return the same bookies in their order, avoided ones last."""
        return sorted(bookie_ids, key=self._avoided)

    def batches(self, bookie_id: str) -> bool:
        """Whether the bookie may know batch reads; False for a while after it refused one."""
        bookie = self._bookies.get(bookie_id)
        return bookie is None or bookie.may_batch

    def long_polls(self, bookie_id: str) -> int:
        """Return how many more long polls the bookie may take; 0 for a while after it refused one."""
        bookie, most = self._bookies.get(bookie_id), self._options.long_polls_in_flight_max
        if bookie is None:
            return most
        return max(0, most - bookie.long_poll_count) if bookie.may_long_poll else 0

    async def read(self, bookie_id: str, ledger_id: int, entry_id: int) -> bytes:
        """Return one entry as it is stored; see `ports.Bookies` for what it raises."""
        if entry_id == LAST_ENTRY:
            raise InvalidInput("the last entry that a bookie holds is no entry to be read: it may be unconfirmed")
        request = v2.read_key(ledger_id, entry_id), v2.encode_read(ledger_id, entry_id)
        bookie = self._bookie(bookie_id)
        answer = await self._ask("read", bookie, Wire.V2, bookie.singles, lambda _: request)
        match answer:
            case v2.ReadAnswer(status=Status.OK, entry=entry):
                return entry
            case v2.ReadAnswer(status=status, code=code):
                raise failure(status, code, bookie=bookie_id, what=f"entry {entry_id} of ledger {ledger_id}")
        raise bookie.distrust(Wire.V2, f"{type(answer).__name__} in answer to a read")

    async def read_batch(
        self, bookie_id: str, ledger_id: int, first_entry_id: int, *, count_max: int, bytes_max: int
    ) -> list[bytes]:
        """Return stored entries from `first_entry_id` on; see `ports.Bookies` for what it raises."""
        bookie = self._bookie(bookie_id)
        what = f"entries from {first_entry_id} of ledger {ledger_id}"
        if not bookie.may_batch:
            raise Unsupported(f"bookie {bookie_id} did not give {what}: it was seen not to know batch reads")

        def request(connection: BookieConnection) -> tuple[Key, bytes]:
            number = connection.new_id()
            return number, v2.encode_batch_read(
                number, ledger_id, first_entry_id, count_max=count_max, bytes_max=bytes_max
            )

        ask = partial(self._ask, "batch", bookie, Wire.V2, bookie.batches, request)
        try:
            answer = await ask()
        except ConnectionLost:
            if bookie.knows_batch:
                raise
            answer = await self._ask_again(bookie, ask)
        match answer:
            case v2.BatchAnswer(status=Status.OK, ledger_id=ledger, first_entry_id=first, entries=entries):
                if (ledger, first) != (ledger_id, first_entry_id) or len(entries) > count_max:
                    got = f"{len(entries)} entries from {first} of ledger {ledger}"
                    raise bookie.distrust(Wire.V2, f"{got} in answer to a request for {count_max} {what}")
                bookie.knows_batch = True
                return entries
            case v2.BatchAnswer(status=status, code=code):
                error = failure(status, code, bookie=bookie_id, what=what)
                if isinstance(error, Unsupported):
                    bookie.lacks_batch()
                raise error
        raise bookie.distrust(Wire.V2, f"{type(answer).__name__} in answer to a batch read")

    async def last_known(self, bookie_id: str, ledger_id: int) -> LastKnown:
        """Return the bookie's end of a ledger; see `ports.Bookies` for what it raises."""
        bookie = self._bookie(bookie_id)

        def request(connection: BookieConnection) -> tuple[Key, bytes]:
            number = connection.new_id()
            return number, v3.encode_read(number, ledger_id, LAST_ENTRY)

        answer = await self._ask("last", bookie, Wire.V3, bookie.singles, request)
        match answer:
            case v3.ReadAnswer(ledger_id=ledger) if ledger != ledger_id:
                raise bookie.distrust(Wire.V3, f"the end of ledger {ledger} in answer to a read of {ledger_id}")
            case v3.ReadAnswer(status=Status.OK | Status.NO_LEDGER | Status.NO_ENTRY, entry=entry, max_lac=lac):
                return LastKnown(entry, -1 if lac is None else max(lac, -1))
            case v3.Refusal(status=Status.NO_LEDGER | Status.NO_ENTRY):
                return LastKnown(None, -1)
            case v3.ReadAnswer(status=status, code=code) | v3.Refusal(status=status, code=code):
                raise failure(status, code, bookie=bookie_id, what=f"the end of ledger {ledger_id}")
        raise bookie.distrust(Wire.V3, f"{type(answer).__name__} in answer to a read")

    async def newer(self, bookie_id: str, ledger_id: int, previous_lac: int, *, seconds: float) -> asyncio.Future[int]:
        """Ask for the bookie's LAC once it is above `previous_lac`, or after `seconds`; see `ports.Bookies`."""
        bookie = self._bookie(bookie_id)
        try:
            answer = await bookie.long_poll(ledger_id, previous_lac, seconds)
        except OffloaderError as error:
            self._count_failed("wait", error)
            raise
        lac: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(partial(self._settle, lac, bookie, ledger_id))
        return lac

    def _settle(
        self, lac: asyncio.Future[int], bookie: Bookie, ledger_id: int, answered: asyncio.Future[Answer]
    ) -> None:
        """Set the result of a long poll, unless its caller has left."""
        error = answered.exception()
        if lac.done():
            return
        if error is not None:
            self._count_failed("wait", error)
            lac.set_exception(error)
            return
        try:
            lac.set_result(self._newer(bookie, ledger_id, answered.result()))
        except Exception as refused:  # noqa: BLE001 - the caller raises it, and would wait for ever without
            lac.set_exception(refused)

    def _newer(self, bookie: Bookie, ledger_id: int, answer: Answer) -> int:
        """Return the LAC that a long poll brought; see `ports.Bookies` for what it raises."""
        bookie.clear_failures()
        self._count("wait", _OUTCOMES.get(status_of(answer), "failed"))
        match answer:
            case v3.ReadAnswer(ledger_id=ledger) if ledger != ledger_id:
                raise bookie.distrust(Wire.V3, f"the LAC of ledger {ledger} in answer to a long poll of {ledger_id}")
            case v3.ReadAnswer(status=Status.OK, max_lac=lac):
                return -1 if lac is None else max(lac, -1)
            case v3.ReadAnswer(status=status, code=code) | v3.Refusal(status=status, code=code):
                if status in {Status.NO_LEDGER, Status.NO_ENTRY}:
                    return -1
                refused = failure(status, code, bookie=bookie.bookie_id, what=f"news of ledger {ledger_id}")
                if isinstance(refused, Unsupported):
                    bookie.lacks_long_polls()
                raise refused
        raise bookie.distrust(Wire.V3, f"{type(answer).__name__} in answer to a long poll")

    async def _ask_again(self, bookie: Bookie, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """Repeat the first batch read, on which the connection ended; an old bookie ends the second one as well."""
        bookie.clear_failures()
        try:
            return await ask()
        except ConnectionLost as error:
            if not bookie.knows_batch:
                bookie.clear_failures()
                bookie.lacks_batch()
                raise Unsupported(
                    f"bookie {bookie.bookie_id} ends the connection when it is asked for a batch",
                    hint="BookKeeper knows batch reads from 4.17 on; without them it is read entry by entry",
                ) from error
            raise

    async def _ask(self, operation: str, bookie: Bookie, wire: Wire, window: Window, request: Request) -> Answer:
        """Send a request, count it and measure its time."""
        sent_at = 0.0

        def timed(connection: BookieConnection) -> tuple[Key, bytes]:
            nonlocal sent_at
            sent_at = self._clock.monotonic()
            return request(connection)

        try:
            answer = await bookie.ask(wire, window, timed)
        except OffloaderError as error:
            self._count_failed(operation, error)
            raise
        self._seconds[operation].observe(self._clock.monotonic() - sent_at)
        self._count(operation, _OUTCOMES.get(status_of(answer), "failed"))
        return answer

    def _count(self, operation: str, outcome: str) -> None:
        self._requests[operation, outcome].inc()

    def _count_failed(self, operation: str, error: BaseException) -> None:
        self._count(operation, "timeout" if isinstance(error, TimedOut) else "failed")

    def _bookie(self, bookie_id: str) -> Bookie:
        """Return the state of a bookie. Raises InvalidInput, Closed."""
        if self._closed:
            raise _closed()
        found = self._bookies.get(bookie_id)
        if found is None:
            if not is_bookie_id(bookie_id):
                raise InvalidInput(f"{bookie_id!r} is no bookie id")
            if len(self._bookies) >= BOOKIES_MAX:
                self._bookies = {name: each for name, each in self._bookies.items() if not each.forgettable}
            found = self._bookies[bookie_id] = Bookie(
                bookie_id,
                self._znodes,
                self._handshake,
                clock=self._clock,
                options=self._options,
                on_bytes=self._metrics.bookie_bytes.inc,
                on_probe=lambda answered: self._count("probe", "ok" if answered else "timeout"),
            )
        return found

    def _avoided(self, bookie_id: str) -> bool:
        bookie = self._bookies.get(bookie_id)
        return bookie is not None and bookie.avoided

    def _total(self, what: Callable[[Bookie], int]) -> Callable[[], int]:
        return lambda: sum(map(what, self._bookies.values()))
