"""LedgerService: writes to the daemon's own ledger store. A daemon without one does not serve it.

Appends run one after the other, so answers come in order, and gRPC's flow control holds back a client that sends faster
than the disk writes.
"""

from collections.abc import AsyncIterator

from offloaderd.api.context import Context
from offloaderd.core.model import TopicName
from offloaderd.ledgers.port import LedgerStore
from offloaderd.protocol.conversion import checked_payloads, to_position
from offloaderd.protocol.v1 import ledgers_pb2, ledgers_pb2_grpc


class LedgerService(ledgers_pb2_grpc.LedgerServiceServicer):
    """Appends to a LedgerStore."""

    def __init__(self, store: LedgerStore) -> None:
        self._store = store

    async def Append(
        self, request_iterator: AsyncIterator[ledgers_pb2.AppendRequest], context: Context
    ) -> AsyncIterator[ledgers_pb2.AppendResponse]:
        """Append each request's entries durably and answer it. Raises InvalidInput, NoSpace, Transient.

        After an error nothing of that request is stored; all answered requests are.
        """
        async for request in request_iterator:
            payloads = checked_payloads(request.payloads)
            last = await self._store.append(TopicName.parse(request.topic), payloads)
            yield ledgers_pb2.AppendResponse(last=to_position(last), entry_count=len(payloads))

    async def Roll(self, request: ledgers_pb2.RollRequest, context: Context) -> ledgers_pb2.RollResponse:
        """Close the topic's open ledger. Raises NotFound."""
        await self._store.roll(TopicName.parse(request.topic))
        return ledgers_pb2.RollResponse()
