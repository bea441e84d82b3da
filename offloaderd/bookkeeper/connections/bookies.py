"""All bookies of a cluster, by id: the only access of this package to them.

    async with BookiePool(znodes, clock=clock, metrics=metrics, options=BookkeeperSettings()) as bookies:
        entry = await bookies.read(bookie_id, ledger_id, entry_id)

Rules: connections are made when needed, one a bookie for v2 (reads and batch reads) and one for v3 (the end of a
ledger), and closed when idle. Only the first batch read to a bookie is retried: a bookie before 4.17 ends the
connection on it, and, unlike one that broke down, again on a new one. An answer is checked against its request; the
caller checks the entries.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Self, TypeAlias

from offloaderd.bookkeeper.connections.bookie import Bookie
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
from offloaderd.bookkeeper.metadata.registration import is_bookie_id
from offloaderd.bookkeeper.ports import LastKnown, Znodes
from offloaderd.bookkeeper.settings import BookkeeperSettings
from offloaderd.bookkeeper.wire import v2, v3
from offloaderd.bookkeeper.wire.framing import LAST_ENTRY
from offloaderd.bookkeeper.wire.status import Status, Unsupported, failure
from offloaderd.core.clock import Clock
from offloaderd.core.errors import Closed, InvalidInput, OffloaderError
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.metrics.values import BOOKIE_OPERATIONS, BOOKIE_OUTCOMES, BOOKIE_TIMED

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

    def long_polls(self, bookie_id: str) -> bool:
        """Whether the bookie may know long polls; False for a while after it refused one."""
        bookie = self._bookies.get(bookie_id)
        return bookie is None or bookie.may_long_poll

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

        try:
            answer = await self._ask_batch(bookie, request)
        except ConnectionLost:
            if bookie.knows_batch:
                raise
            answer = await self._ask_batch_again(bookie, request)
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

    async def _ask_batch(self, bookie: Bookie, request: Request) -> Answer:
        return await self._ask("batch", bookie, Wire.V2, bookie.batches, request)

    async def _ask_batch_again(self, bookie: Bookie, request: Request) -> Answer:
        """Repeat the first batch read, on which the connection ended; an old bookie ends the second one as well."""
        bookie.clear_failures()
        try:
            return await self._ask_batch(bookie, request)
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
            raise Closed("the pool of bookies is closed")
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
