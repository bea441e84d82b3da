"""The calls of the client that write to the ledger store of a daemon."""

import asyncio
from collections.abc import AsyncIterable, Callable, Sequence

from offloaderd.client.calls import Calls
from offloaderd.client.exchange import Exchange
from offloaderd.core.aio.groups import Group
from offloaderd.core.errors import InvalidInput, OffloaderError, first_of
from offloaderd.core.model import TopicName
from offloaderd.protocol.v1 import ledgers_pb2


class AppendCalls(Calls):
    """Calls of LedgerService, for DaemonClient to inherit."""

    async def append(
        self,
        topic: TopicName | str,
        batches: AsyncIterable[Sequence[bytes]],
        answered: Callable[[ledgers_pb2.AppendResponse], None],
        *,
        timeout_s: float | None = None,
    ) -> None:
        """Append batches to the daemon's ledger store; `answered` is called for each, in order, once it is durable.

        What `batches` raises is raised here, and InvalidInput for what is no batch.
        """
        call = self._ledgers.Append(timeout=timeout_s)
        exchange, turn = Exchange(call, self._clock), Turn()
        with self._errors(call):
            try:
                async with Group() as group:
                    writer = group.create_task(send(exchange, topic, batches, turn), name=f"append to {topic}")
                    while (response := await exchange.read()) is not None:
                        turn.answered()
                        answered(response)
                    writer.cancel()
            except BaseExceptionGroup as errors:
                raise first_of(errors) from None
        if not turn.complete:
            raise OffloaderError("the daemon ended the append before everything was acknowledged")


class Turn:
    """The turns of an append: a batch is sent only after the answer to the previous one.

    So nothing is in flight behind a refused batch. The next batch is prepared meanwhile.
    """

    def __init__(self) -> None:
        self._ours = asyncio.Event()
        self._ours.set()
        self._all_sent = False

    @property
    def complete(self) -> bool:
        """Whether everything was sent and answered."""
        return self._all_sent and self._ours.is_set()

    async def take(self) -> None:
        """Wait until the next batch may be sent."""
        await self._ours.wait()
        self._ours.clear()

    def answered(self) -> None:
        """Record the answer to the batch."""
        self._ours.set()

    def end(self) -> None:
        """Note that nothing more will be sent."""
        self._all_sent = True


async def send(
    exchange: Exchange[ledgers_pb2.AppendRequest, ledgers_pb2.AppendResponse],
    topic: TopicName | str,
    batches: AsyncIterable[Sequence[bytes]],
    turn: Turn,
) -> None:
    """Write all batches; ends when the call has ended, and its reader gets the reason."""
    async for payloads in batches:
        if isinstance(payloads, bytes | str):
            raise InvalidInput(
                f"a batch is a sequence of entries, not {type(payloads).__name__}",
                hint='for one entry: [b"entry"]; several batches: [[b"one", b"two"], [b"three"]]',
            )
        await turn.take()
        if not await exchange.write(ledgers_pb2.AppendRequest(topic=str(topic), payloads=payloads)):
            return
    turn.end()
    await exchange.done_writing()
