"""The part of the client that reads."""

from collections.abc import AsyncGenerator
from typing import Unpack

from grpc import aio

from offloaderd.client.calls import Calls
from offloaderd.client.reading import Ahead, ReadAnswer, Reading, Wanted, read_answer, read_request
from offloaderd.client.resume import RESUME_S, Resume
from offloaderd.core.model import TopicName
from offloaderd.core.read_options import Transactions
from offloaderd.protocol.v1 import common_pb2, read_pb2

READ_METHOD = "/offloaderd.v1.ReadService/Read"
AHEAD = 4
"""Answers that a read fetches before they are asked for; the daemon makes them 1 MiB unless told otherwise."""

_TRANSACTIONS = {
    Transactions.COMMITTED: read_pb2.TRANSACTIONS_COMMITTED,
    Transactions.ALL: read_pb2.TRANSACTIONS_ALL,
}


class EntryCalls(Calls):
    """Calls of ReadService, for DaemonClient to inherit."""

    async def read(
        self,
        topic: TopicName | str,
        *,
        timeout_s: float | None = None,
        resume_s: float | None = RESUME_S,
        ahead: int = AHEAD,
        **wanted: Unpack[Wanted],
    ) -> AsyncGenerator[ReadAnswer, None]:
        """Yield the entries of a range in batches, each with the tier that served it; each entry once, in order.

        A stream that breaks is opened again behind the last entry, here or at another daemon, until `resume_s` have
        passed without an entry (0: never; None: no limit). Up to `ahead` answers are fetched before they are asked
        for. Leaving the loop early ends the stream.
        """
        if resume_s != 0:
            await self.learn_peers(str(topic))
        reading = Reading(
            read_request(topic, wanted, framed=True),
            attempt=self._read_once,
            newest=(lambda: self._newest(topic)) if resume_s != 0 else None,
            resume=Resume(self, self._clock, resume_s),
            clock=self._clock,
            timeout_s=timeout_s,
        )
        fetched = Ahead(ahead)
        async with self._beside(fetched.fill(reading.answers()), name=f"read {topic}"):
            while (answer := await fetched.take()) is not None:
                yield answer

    async def read_messages(
        self,
        topic: TopicName | str,
        *,
        timeout_s: float | None = None,
        transactions: Transactions = Transactions.COMMITTED,
        **wanted: Unpack[Wanted],
    ) -> AsyncGenerator[read_pb2.ReadMessagesResponse, None]:
        """Yield the messages in the entries of a range. It is not resumed: a message may span several entries.

        Those that a consumer is given now, unless all are asked for: the last answer has `held_back` where that ends
        before the range does. Daemons that know nothing of transactions give all, and say of none what became of it.
        """
        request = read_request(topic, wanted)
        request.transactions = _TRANSACTIONS[transactions]
        call = self._reads.ReadMessages(request, timeout=timeout_s)
        with self._errors(call):
            async for response in call:
                yield response

    async def _read_once(
        self, request: read_pb2.ReadRequest, timeout_s: float | None
    ) -> AsyncGenerator[ReadAnswer, None]:
        """Yield what one stream gives. Answers come as bytes: of frames they are copied once only, entry by entry."""
        method: aio.UnaryStreamMultiCallable[read_pb2.ReadRequest, bytes] = self._channel.unary_stream(
            READ_METHOD, request_serializer=read_pb2.ReadRequest.SerializeToString
        )
        address, call = self.address, method(request, timeout=timeout_s)
        with self._errors(call):
            async for message in call:
                yield read_answer(message, address)

    async def _newest(self, topic: TopicName | str) -> common_pb2.Position | None:
        """Return the newest entry that can be read now."""
        found = await self.last_positions(topic)
        return found.confirmed if found.HasField("confirmed") else None
