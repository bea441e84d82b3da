"""One socket to one bookie with one protocol: requests go out at once, answers come back by key in any order.

Rules:

- Requests of one turn of the loop leave in one packet.
- A request has a slot of a window from before it is sent until it is answered, timed out or lost with the connection;
  `send` takes the caller's slot over. A cancelled caller does not free it: the bookie still works on the request.
- Single reads of v2 have no number: two callers of the same one share one request.
- After `request_timeout_s` callers get TimedOut. The answer may come late and is dropped then.
- Thousands of long polls may be out at a time: they take no slot of a window, and no answer for a while is normal. So
  while some are out and nothing has come for `request_timeout_s`, one plain read is sent as a probe: without an answer,
  all of them end with TimedOut.
- The connection ends, with an error for all callers, on bytes that break the protocol, on answers without a request,
  after SILENCES_MAX requests in a row without one byte from the bookie, and, without an error, when it was unused for
  `IDLE_S`. It never comes back.
"""

import asyncio
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from enum import Enum
from operator import attrgetter
from typing import Final, TypeAlias, cast

from offloaderd.bookkeeper.settings import BookkeeperSettings
from offloaderd.bookkeeper.wire import v2, v3
from offloaderd.bookkeeper.wire.protocol import FRAME_BYTES_MAX, LAST_ENTRY, BadAnswer, Status
from offloaderd.core.errors import Denied, InvalidInput, OffloaderError, Throttled, Transient
from offloaderd.core.limits import Admission

SILENCES_MAX: Final = 3
"""Requests in a row without a byte from the bookie, after which the connection ends."""
LATE_MAX: Final = 1024
"""Answers beyond their deadline, above which the connection ends: a new one is the better start."""
TLS_HINT: Final = "compare bookkeeper.tls* with the bookies' tlsProvider, certificates and tlsClientAuthentication"

Answer: TypeAlias = v2.Answer | v3.Answer
Key: TypeAlias = v2.Key
IDLE_S = 300.0
"""A connection that was unused for this long is closed."""


class Window(Admission):
    """Slots of one bookie for one kind of request: between 1 and `slots_max`, halved at the answer "too many requests".

    Requests that were in flight when it halved are refused for the same reason: they do not halve it again. `release`
    a slot at the end of its request.
    """

    def __init__(self, slots_max: int) -> None:
        if slots_max < 1:
            raise InvalidInput(f"a window of {slots_max} requests lets none through")
        super().__init__(slots_max)
        self._slots_max = slots_max
        self._slots = float(slots_max)
        self._last_ticket = 0
        self._shrunk_at = 0

    async def enter(self) -> int:
        """Take a slot, waiting for it in turn; returns a ticket for `shrink`. Cancelled, it takes none."""
        await self.acquire()
        self._last_ticket += 1
        return self._last_ticket

    def grow(self) -> None:
        """Widen it by one slot for every window of good answers."""
        if self._slots < self._slots_max:
            self._resize(min(self._slots_max, self._slots + 1 / self._slots))

    def shrink(self, ticket: int) -> None:
        """Halve it, once for all that were in flight together."""
        if ticket > self._shrunk_at:
            self._resize(max(1.0, self._slots / 2))
            self._shrunk_at = self._last_ticket

    def _resize(self, slots: float) -> None:
        self._slots = slots
        self.follow(int(slots))


class TimedOut(Transient):
    """A bookie did not answer in time."""


class ConnectionLost(Transient):
    """The connection ended before the answer came."""


def status_of(answer: Answer) -> Status:
    """Return the status of an answer; a step of an authentication in v2 has none and is OK."""
    return Status.OK if isinstance(answer, v2.AuthAnswer) else answer.status


class Wire(Enum):
    """The protocols: one connection speaks one of them."""

    V2 = 2
    V3 = 3


_DECODERS: Final[dict[Wire, type[v2.Decoder | v3.Decoder]]] = {Wire.V2: v2.Decoder, Wire.V3: v3.Decoder}
_KEYS: Final[dict[Wire, Callable[[Answer], Key]]] = {Wire.V2: attrgetter("key"), Wire.V3: attrgetter("txn_id")}


@dataclass(slots=True)
class _Request:
    """A request without an answer; none, one or several callers wait for it."""

    deadline: float
    window: Window | None
    waiters: list[asyncio.Future[Answer]] = field(default_factory=list)


@dataclass(slots=True)
class _LongPoll:
    """A long poll that is out; the bookie will answer it even when no caller waits any more."""

    ledger_id: int
    deadline: float
    waiter: asyncio.Future[Answer]


@dataclass(eq=False)
class BookieConnection(asyncio.Protocol):
    """A connection once it is made.

    `on_bytes` gets the size of what arrives, `on_probe` whether a probe was answered, `on_end` the error of an end that
    this side did not cause.
    """

    bookie: str
    wire: InitVar[Wire]
    options: BookkeeperSettings
    on_bytes: Callable[[int], None] = field(kw_only=True)
    on_probe: Callable[[bool], None] = field(kw_only=True)
    on_end: Callable[[OffloaderError], None] = field(kw_only=True)
    answered: bool = False
    """Whether an answer has come since the last step of the handshake."""
    _transport: asyncio.Transport | None = None
    _encrypted: bool = False
    _failure: OffloaderError | None = None
    _requests: dict[Key, _Request] = field(default_factory=dict)
    """In the order of their deadlines, since all have the same time."""
    _long_polls: dict[Key, _LongPoll] = field(default_factory=dict)
    _late: Counter[Key] = field(default_factory=Counter)
    _probing: bool = False
    _outgoing: list[bytes] = field(default_factory=list)
    _silences: int = 0
    _last_id: int = 0
    _timer: asyncio.TimerHandle | None = None
    _writable: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self, wire: Wire) -> None:
        self._loop = asyncio.get_running_loop()
        self._used_at = self._last_answer_at = self._loop.time()
        self.speak(wire)

    def speak(self, wire: Wire) -> None:
        """Use a protocol from now on, with nothing in flight: after a handshake, which is always in v3."""
        self.answered = False
        self._decoder = _DECODERS[wire](frame_bytes_max=FRAME_BYTES_MAX)
        self._key_of = _KEYS[wire]

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._failure is not None

    @property
    def long_poll_count(self) -> int:
        """How many long polls the bookie has not answered."""
        return len(self._long_polls)

    @property
    def transport(self) -> asyncio.Transport:
        """The socket, plain or encrypted. Raises ConnectionLost."""
        if self._transport is None:
            raise ConnectionLost(f"bookie {self.bookie}: not connected")
        return self._transport

    def resume(self, encrypted: asyncio.Transport, start: Key) -> None:
        """Use the encrypted side of the same socket. The request `start` may be answered once more."""
        self._transport = encrypted
        self._encrypted = True
        self._late[start] += 1
        self.answered = False

    def new_id(self) -> int:
        """Return the next number for a request that has one."""
        self._last_id += 1
        return self._last_id

    async def writable(self) -> None:
        """Return when the socket takes requests again, or is closed."""
        if not self._writable.is_set():
            await self._writable.wait()

    def send(self, key: Key, request: bytes, window: Window | None) -> asyncio.Future[Answer]:
        """Send a request, which takes the caller's slot, and return the future of its answer, good or bad.

        The future raises TimedOut, ConnectionLost, BadAnswer, or Closed when we close. So does `send` itself.
        """
        if self._failure is not None:
            _leave(window)
            raise _again(self._failure)
        self._used_at = self._loop.time()
        waiter: asyncio.Future[Answer] = self._loop.create_future()
        asked = self._requests.get(key)
        if asked is not None:
            _leave(window)
        else:
            asked = self._requests[key] = _Request(self._used_at + self.options.request_timeout_s, window)
            self._post(request)
            self._wake_at(asked.deadline)
        asked.waiters.append(waiter)
        return waiter

    def send_long_poll(self, key: Key, request: bytes, ledger_id: int, seconds: float) -> asyncio.Future[Answer]:
        """Send a request that the bookie may answer after `seconds`; returns the future of its answer.

        Raises Throttled when too many are out, and what `send` does; so does the future.
        """
        if self._failure is not None:
            raise _again(self._failure)
        if len(self._long_polls) >= self.options.long_polls_in_flight_max:
            raise Throttled(
                f"bookie {self.bookie} has {len(self._long_polls)} long polls to answer, which is the limit"
            )
        now = self._used_at = self._loop.time()
        waiter: asyncio.Future[Answer] = self._loop.create_future()
        patience_s = self.options.request_timeout_s
        self._long_polls[key] = _LongPoll(ledger_id, now + seconds + patience_s, waiter)
        self._post(request)
        self._wake_at(now + patience_s)
        return waiter

    def _post(self, request: bytes) -> None:
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(request)

    def _flush(self) -> None:
        requests, self._outgoing = self._outgoing, []
        if self._failure is None:
            self.transport.write(b"".join(requests))

    def end(self, error: OffloaderError) -> None:
        """Close it: all callers get this error. A second call has no effect."""
        if self._failure is not None:
            return
        self._failure = error
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        self._writable.set()
        requests, self._requests = self._requests, {}
        for request in requests.values():
            _fail(request, error)
        self._end_long_polls(error)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the socket over, unless it came too late."""
        self._transport = cast("asyncio.Transport", transport)
        if self._failure is not None:
            self._transport.abort()
            return
        self._writable.set()
        self._wake_at(self._used_at + IDLE_S)

    def pause_writing(self) -> None:
        """Hold new requests back."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Resume new requests."""
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        """Hand answers to their callers."""
        self._silences = 0
        self._last_answer_at = self._loop.time()
        self.on_bytes(len(data))
        try:
            for answer in self._decoder.feed(data):
                self._settle(answer)
        except BadAnswer as error:
            self._fail(BadAnswer(f"bookie {self.bookie}: {error.message}", hint=error.hint))

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail all callers."""
        reason = f": {exc}" if exc is not None else ""
        hint = TLS_HINT if self._encrypted and not self.answered else ""
        # TLS 1.3 shows a refusal only after the handshake.
        error = Denied if isinstance(exc, ssl.SSLError) and not self.answered else ConnectionLost
        self._fail(error(f"bookie {self.bookie} ended the connection{reason}", hint=hint))

    def _settle(self, answer: Answer) -> None:
        key = self._key_of(answer)
        request = self._requests.pop(key, None)
        if request is not None:
            self.answered = True
            _leave(request.window)
            for waiter in request.waiters:
                if not waiter.done():
                    waiter.set_result(answer)
        elif (long_poll := self._long_polls.pop(key, None)) is not None:
            self.answered = True
            if not long_poll.waiter.done():
                long_poll.waiter.set_result(answer)
        elif key in self._late:
            self._late[key] -= 1
            if not self._late[key]:
                del self._late[key]
        else:
            raise BadAnswer(f"an answer that nobody asked for ({type(answer).__name__}, {key})")

    def _wake_at(self, when: float) -> None:
        """Check the deadlines at `when` or before; one timer serves all of them."""
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._requests:
            key, request = next(iter(self._requests.items()))
            if request.deadline > now:
                self._wake_at(request.deadline)
                break
            self._give_up(key)
            if self._failure is not None:
                return
        if self._long_polls:
            self._check_long_polls(now)
        if self._requests or self._long_polls:
            return
        idle_at = self._used_at + IDLE_S
        if idle_at <= now:
            self.end(ConnectionLost(f"bookie {self.bookie}: the connection was closed after it had not been used"))
        else:
            self._wake_at(idle_at)

    def _check_long_polls(self, now: float) -> None:
        """Probe a silent bookie, and fail long polls after their deadline."""
        for key in [key for key, long_poll in self._long_polls.items() if long_poll.deadline <= now]:
            self._late[key] += 1
            long_poll = self._long_polls.pop(key)
            if not long_poll.waiter.done():
                long_poll.waiter.set_exception(TimedOut(f"bookie {self.bookie} left a long poll without an answer"))
        patience_s = self.options.request_timeout_s
        if self._last_answer_at + patience_s <= now and not self._probing and self._long_polls:
            self._probing = True
            number = self.new_id()
            oldest = next(iter(self._long_polls.values()))
            probe = self.send(number, v3.encode_read(number, oldest.ledger_id, LAST_ENTRY), None)
            probe.add_done_callback(self._probed)
        self._wake_at(max(self._last_answer_at, now) + patience_s)

    def _probed(self, probe: asyncio.Future[Answer]) -> None:
        self._probing = False
        error = probe.exception()
        self.on_probe(error is None)
        if isinstance(error, TimedOut):
            self._end_long_polls(error)

    def _end_long_polls(self, error: OffloaderError) -> None:
        """Fail all long polls; the bookie may answer them all the same."""
        for long_poll in self._long_polls.values():
            if not long_poll.waiter.done():
                long_poll.waiter.set_exception(_again(error))

    def _give_up(self, key: Key) -> None:
        request = self._requests.pop(key)
        self._late[key] += 1
        self._silences += 1
        seconds = self.options.request_timeout_s
        _fail(request, TimedOut(f"bookie {self.bookie} did not answer within {seconds:g} s"))
        if self._silences >= SILENCES_MAX:
            self._fail(TimedOut(f"bookie {self.bookie} is silent: {self._silences} requests of {seconds:g} s each"))
        elif len(self._late) > LATE_MAX:
            self._fail(TimedOut(f"bookie {self.bookie} left {len(self._late)} requests without an answer"))

    def _fail(self, error: OffloaderError) -> None:
        if self._failure is None:
            self.end(error)
            self.on_end(error)


def _leave(window: Window | None) -> None:
    if window is not None:
        window.release()


def _fail(request: _Request, error: OffloaderError) -> None:
    _leave(request.window)
    for waiter in request.waiters:
        if not waiter.done():
            waiter.set_exception(_again(error))


def _again(error: OffloaderError) -> OffloaderError:
    """Return an equal error: each caller raises one of its own, with its own trace."""
    return type(error)(error.message, hint=error.hint)
