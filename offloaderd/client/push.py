"""The call of the client that pushes entries as they are written, as a broker does (PIP-76).

The caller does not send: `entries(after)` yields the entries after a position, and is called again with the newest
position of the daemon whenever the stream broke or the topic has moved to another daemon. So nothing is buffered here,
and nothing is sent twice. Flow control is the daemon's: a batch is sent while fewer than `unanswered_max` wait
for their answer, and a daemon without room reads no further.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from typing import NamedTuple

from offloaderd.client.calls import Calls
from offloaderd.client.errors import NotConsecutive, Unreachable
from offloaderd.client.exchange import Exchange
from offloaderd.client.resume import RESUME_S, Resume
from offloaderd.core.aio.groups import Group
from offloaderd.core.errors import Conflict, LedgerUnknown, NotFound, OffloaderError, Transient, first_of
from offloaderd.core.model import EntryBatch, OfferResult, Position, TopicName
from offloaderd.protocol.v1 import common_pb2, offload_pb2, offload_pb2_grpc

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


class PushCalls(Calls):
    """StreamingOffload of OffloadService, for DaemonClient to inherit."""

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
            try:
                async with Group() as group:
                    writer = group.create_task(push.send(exchange, entries(after)), name=f"push to {push.topic}")
                    await push.hear(exchange)
                    writer.cancel()
            except BaseExceptionGroup as errors:
                raise first_of(errors) from None
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
        self.offloaded = _at(opened.offloaded) if opened.HasField("offloaded") else None
        self._taken = _at(opened.last_offered) if opened.HasField("last_offered") else None
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

    async def hear(self, exchange: Exchange[Request, Response]) -> None:
        """Read answers until the daemon ends the call: then everything is committed."""
        while (answer := await exchange.read()) is not None:
            self._resume.worked()
            match answer.WhichOneof("response"):
                case "offered":
                    self._answered(answer.offered)
                case "offloaded":
                    self.offloaded = _at(answer.offloaded.position)
                    self._told(Pushed(None, self._taken, self.offloaded))

    def _answered(self, offered: offload_pb2.StreamingOffloadResponse.Offered) -> None:
        self._unanswered -= 1
        self._room.release()
        self.complete = self._all_sent and not self._unanswered
        self._taken = _at(offered.last_offered) if offered.HasField("last_offered") else None
        result = RESULTS.get(offered.result, OfferResult.CLOSED)
        self._told(Pushed(result, self._taken, self.offloaded))
        if result is OfferResult.NOT_CONSECUTIVE:
            raise NotConsecutive(offered.message, hint="push what follows the newest entry that the daemon has")


def _request(item: EntryBatch | LedgerClosed) -> Request:
    if isinstance(item, LedgerClosed):
        return Request(ledger_closed=Request.LedgerClosed(**item._asdict()))
    return Request(
        batch=common_pb2.EntryBatch(
            ledger_id=item.ledger_id, first_entry_id=item.first_entry_id, payloads=item.payloads
        )
    )


def _at(message: common_pb2.Position) -> Position:
    return Position(message.ledger_id, message.entry_id)
