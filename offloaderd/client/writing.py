"""The calls of the client that write: to the ledger store of a daemon, and as a broker pushes entries (PIP-76).

Both sides send in such a call. It ends with the status of the daemon, also after a failed write. When a write fails
since the call has ended, grpc.aio puts "Internal error from Core" in place of the call's status
(https://github.com/grpc/grpc/issues/36066): before the daemon's own has arrived, which then replaces it, or over it,
so that it is lost. Therefore the first status is kept, and another one is waited for only behind a failed write's.

The caller of `push` does not send: `entries(after)` yields the entries after a position, and is called again with the
newest position of the daemon whenever the stream broke or the topic has moved to another daemon. So nothing is buffered
here, and nothing is sent twice. Flow control is the daemon's: a batch is sent while fewer than `unanswered_max` wait
for their answer, and a daemon without room reads no further.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine, Sequence
from contextlib import aclosing, suppress
from typing import Generic, NamedTuple, TypeVar

import grpc
from grpc import aio

from offloaderd.client.calls import Calls
from offloaderd.client.channel import RESUME_S, NotConsecutive, Resume, Unreachable
from offloaderd.core.aio import Group
from offloaderd.core.clock import Clock
from offloaderd.core.errors import Conflict, InvalidInput, LedgerUnknown, NotFound, OffloaderError, Transient, first_of
from offloaderd.core.model import EntryBatch, OfferResult, Position, TopicName
from offloaderd.protocol.conversion import from_position, to_batch
from offloaderd.protocol.v1 import ledgers_pb2, offload_pb2, offload_pb2_grpc

FAILED_WRITE = (grpc.StatusCode.INTERNAL, "Internal error from Core")
LOOKS, LOOK_S = 200, 0.02
"""Number and interval of polls for the status of the daemon after the last answer: gRPC does not notify of it."""
Sent = TypeVar("Sent")
Received = TypeVar("Received")
Value = TypeVar("Value")


class Exchange(Generic[Sent, Received]):
    """Writes and reads of one call, which has no other reader. The maker of the call cancels it at the end."""

    def __init__(self, call: "aio.StreamStreamCall[Sent, Received]", clock: Clock) -> None:
        self._call = call
        self._clock = clock
        self._answers = aiter(call)
        self._first: aio.AioRpcError | None = None
        call.add_done_callback(self._ended)

    async def write(self, request: Sent) -> bool:
        """Send a request; returns whether it was sent. A call that has ended takes none; `read` raises the reason."""
        try:
            await self._call.write(request)
        except (aio.AioRpcError, asyncio.InvalidStateError):
            return False
        return True

    async def done_writing(self) -> None:
        """End the requests, unless the call has ended."""
        try:
            await self._call.done_writing()
        except aio.InternalError:
            return

    async def read(self) -> Received | None:
        """Return the next answer, None after a successful end. Raises AioRpcError with the status of the daemon."""
        with suppress(StopAsyncIteration, aio.AioRpcError):
            return await anext(self._answers)
        said = await self._said()
        if said.code() is grpc.StatusCode.OK:
            return None
        raise said

    async def run(
        self, sending: Coroutine[object, object, None], take: Callable[[Received], None], *, name: str
    ) -> None:
        """Run a task that sends, and hand on every answer until the daemon ends the call. Raises the first error."""
        try:
            async with Group() as group:
                writer = group.create_task(sending, name=name)
                while (response := await self.read()) is not None:
                    take(response)
                writer.cancel()
        except BaseExceptionGroup as errors:
            raise first_of(errors) from None

    async def _said(self) -> aio.AioRpcError:
        """Return the status of the daemon; that of a failed write if there is no other."""
        status = self._first or await _status(self._call)
        for _ in range(LOOKS):
            if not _of_a_write(status):
                break
            await self._clock.sleep(LOOK_S)
            status = await _status(self._call)
        return status

    def _ended(self, _: object) -> None:
        """Record a status at once: the next step of another task may replace it."""
        if self._first is None or _of_a_write(self._first):
            self._first = _result(_status(self._call))


def _of_a_write(status: aio.AioRpcError) -> bool:
    return (status.code(), status.details()) == FAILED_WRITE


async def _status(call: aio.Call) -> aio.AioRpcError:
    """Return the status of a call, which may be OK; does not wait once it has ended."""
    return aio.AioRpcError(
        await call.code(), await call.initial_metadata(), await call.trailing_metadata(), details=await call.details()
    )


def _result(work: Coroutine[object, None, Value]) -> Value:
    """Return the result of a coroutine that does not wait."""
    try:
        work.send(None)
    except StopIteration as end:
        value: Value = end.value
        return value
    work.close()
    raise RuntimeError("a call that has ended has no status")


UNANSWERED_MAX = 8
Request = offload_pb2.StreamingOffloadRequest
Response = offload_pb2.StreamingOffloadResponse
RESULTS = {
    offload_pb2.OFFER_RESULT_ACCEPTED: OfferResult.ACCEPTED,
    offload_pb2.OFFER_RESULT_FULL: OfferResult.FULL,
    offload_pb2.OFFER_RESULT_NOT_CONSECUTIVE: OfferResult.NOT_CONSECUTIVE,
    offload_pb2.OFFER_RESULT_CLOSED: OfferResult.CLOSED,
}


class LedgerClosed(NamedTuple):
    """The ledger gets no more entries; the next batch begins a later one at entry 0."""

    ledger_id: int
    last_entry_id: int
    closed_ms: int


class Pushed(NamedTuple):
    """The progress of a push: the newest entry that the daemon took, and the newest committed one.

    `result` is the answer to a batch: FULL means that the daemon reads those entries from its ledger source instead.
    None: `offloaded` has advanced.
    """

    result: OfferResult | None
    taken: Position | None
    offloaded: Position | None


class WriteCalls(Calls):
    """Append of LedgerService and StreamingOffload of OffloadService, for DaemonClient to inherit."""

    async def append(
        self,
        topic: TopicName | str,
        batches: AsyncIterable[Sequence[bytes]],
        answered: Callable[[ledgers_pb2.AppendResponse], None],
        *,
        timeout_s: float | None = None,
    ) -> None:
        """Append batches to the daemon's ledger store; `answered` is called for each, in order, once it is durable.

        A batch is sent only after the answer to the previous one, so nothing is in flight behind a refused batch. The
        next batch is prepared meanwhile. What `batches` raises is raised here, and InvalidInput for what is no batch.
        """
        call = self._ledgers.Append(timeout=timeout_s)
        exchange, ours, all_sent = Exchange(call, self._clock), asyncio.Event(), False
        ours.set()

        async def send() -> None:
            """Write all batches; ends when the call has ended, and its reader gets the reason."""
            nonlocal all_sent
            async for payloads in batches:
                if isinstance(payloads, bytes | str):
                    raise InvalidInput(
                        f"a batch is a sequence of entries, not {type(payloads).__name__}",
                        hint='for one entry: [b"entry"]; several batches: [[b"one", b"two"], [b"three"]]',
                    )
                await ours.wait()
                ours.clear()
                if not await exchange.write(ledgers_pb2.AppendRequest(topic=str(topic), payloads=payloads)):
                    return
            all_sent = True
            await exchange.done_writing()

        def take(response: ledgers_pb2.AppendResponse) -> None:
            ours.set()
            answered(response)

        with self._errors(call):
            await exchange.run(send(), take, name=f"append to {topic}")
        if not (all_sent and ours.is_set()):
            raise OffloaderError("the daemon ended the append before everything was acknowledged")

    async def push(
        self,
        topic: TopicName | str,
        entries: Callable[[Position | None], AsyncGenerator[EntryBatch | LedgerClosed, None]],
        told: Callable[[Pushed], None] = lambda _: None,
        *,
        unanswered_max: int = UNANSWERED_MAX,
        resume_s: float | None = RESUME_S,
    ) -> Position | None:
        """Push all that `entries(after)` gives (after None: everything) and return what is offloaded at the end.

        Returns once everything is committed to the bucket. The topic's owner is found; `told` hears of every answer.
        Raises NotConsecutive for entries that do not follow, LedgerUnknown for those that the daemon's
        ledger source does not have, what `entries` raises, and what the daemon raised once
        `resume_s` have passed without an answer. A topic that nobody has is waited for: it moves, or was just enabled.
        """
        resume = Resume(self, self._clock, resume_s)
        while True:
            resume.opening()
            push = _Push(str(topic), told, resume, unanswered_max)
            try:
                await self.learn_peers(str(topic))
                return await self._push_here(push, entries)
            except (NotConsecutive, LedgerUnknown):
                raise
            except Conflict as error:
                if not await self._go_to_owner(topic):
                    raise
                await resume.pause(error)
            except OffloaderError as error:
                # The topic has no owner: it moves, or was just enabled.
                if isinstance(error, NotFound) or type(error) is Transient:
                    await resume.pause(error)
                else:
                    await resume.after(error)

    async def _push_here(
        self, push: "_Push", entries: Callable[[Position | None], AsyncGenerator[EntryBatch | LedgerClosed, None]]
    ) -> Position | None:
        """Push over one stream."""
        stub: offload_pb2_grpc.OffloadServiceAsyncStub = offload_pb2_grpc.OffloadServiceStub(self._channel)
        call = stub.StreamingOffload()
        exchange = Exchange(call, self._clock)
        with self._errors(call):
            after = await push.open(exchange)
            await exchange.run(push.send(exchange, entries(after)), push.take, name=f"push to {push.topic}")
        if not push.complete:
            raise Unreachable(f"the daemon at {self.address} ended the push before everything was answered")
        return push.offloaded

    async def _go_to_owner(self, topic: TopicName | str) -> bool:
        """Move to the daemon that owns a topic, if it answers; returns False if this daemon is the owner."""
        try:
            found = await self.daemons(topic)
        except OffloaderError:
            return False
        owner = next((one for one in found.daemons if one.daemon_id == found.owner), None)
        if owner is not None and owner.asked:
            return False
        if owner is not None:
            with suppress(Unreachable):
                await self._connect_any([owner.address])
        return True


class _Push:
    """One open stream."""

    def __init__(self, topic: str, told: Callable[[Pushed], None], resume: Resume, unanswered_max: int) -> None:
        self.topic = topic
        self.offloaded: Position | None = None
        self.complete = False
        self._told = told
        self._resume = resume
        self._room = asyncio.Semaphore(unanswered_max)
        self._unanswered = 0
        self._taken: Position | None = None
        self._all_sent = False

    async def open(self, exchange: Exchange[Request, Response]) -> Position | None:
        """Name the topic; returns the newest entry that the daemon has."""
        await exchange.write(Request(open=Request.Open(topic=self.topic)))
        answer = await exchange.read()
        if answer is None:
            raise Unreachable("the daemon ended the push before it began")
        opened = answer.opened
        self.offloaded = from_position(opened.offloaded) if opened.HasField("offloaded") else None
        self._taken = from_position(opened.last_offered) if opened.HasField("last_offered") else None
        self._resume.worked()
        return self._taken

    async def send(
        self, exchange: Exchange[Request, Response], items: AsyncGenerator[EntryBatch | LedgerClosed, None]
    ) -> None:
        """Write all items; ends when the call has ended, and its reader gets the reason."""
        async with aclosing(items):
            async for item in items:
                if isinstance(item, EntryBatch):
                    await self._room.acquire()
                    self._unanswered += 1
                if not await exchange.write(_request(item)):
                    return
        self._all_sent = True
        self.complete = not self._unanswered
        await exchange.done_writing()

    def take(self, answer: Response) -> None:
        """Note an answer. When the daemon ends the call, everything is committed."""
        self._resume.worked()
        match answer.WhichOneof("response"):
            case "offered":
                self._answered(answer.offered)
            case "offloaded":
                self.offloaded = from_position(answer.offloaded.position)
                self._told(Pushed(None, self._taken, self.offloaded))

    def _answered(self, offered: offload_pb2.StreamingOffloadResponse.Offered) -> None:
        self._unanswered -= 1
        self._room.release()
        self.complete = self._all_sent and not self._unanswered
        self._taken = from_position(offered.last_offered) if offered.HasField("last_offered") else None
        result = RESULTS.get(offered.result, OfferResult.CLOSED)
        self._told(Pushed(result, self._taken, self.offloaded))
        if result is OfferResult.NOT_CONSECUTIVE:
            raise NotConsecutive(offered.message, hint="push what follows the newest entry that the daemon has")


def _request(item: EntryBatch | LedgerClosed) -> Request:
    if isinstance(item, LedgerClosed):
        return Request(ledger_closed=Request.LedgerClosed(**item._asdict()))
    return Request(batch=to_batch(item))
