"""The clients over all services of a daemon: for asyncio, and for programs without an event loop, by a thread.

`run` and `iterate` of the blocking one make any call of DaemonClient; the most common ones have methods there.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from typing import Self, TypeVar, Unpack

from offloaderd.client.channel import CONNECT_S, RESUME_S
from offloaderd.client.reading import AHEAD, Bucket, EntryCalls, ReadAnswer, Wanted
from offloaderd.client.trust import Trust
from offloaderd.client.writing import WriteCalls
from offloaderd.core.errors import Closed
from offloaderd.core.model import Position, TopicName
from offloaderd.core.read_options import Goal
from offloaderd.protocol.v1 import admin_pb2, ledgers_pb2, read_pb2


class DaemonClient(EntryCalls, WriteCalls):
    """Async context manager over a channel to the first of `addresses` (`host:port`) that answers.

    `timeout_s` is the deadline of each call that is not a stream; streams take their own (None: no limit). `trust` is
    TLS, certificate and token. Every method raises what the daemon raised, Unreachable and TimedOut; topics may be
    names or texts as pulsar-admin takes them. Answers are the messages of the API (docs/api.md).

    Calls are made once. Only `read` and `push` know their position and continue after a daemon was lost, at the next
    address or at another daemon of the cluster.
    """


T = TypeVar("T")


class BlockingClient:
    """Context manager over a DaemonClient in a thread. Several threads may use it at a time."""

    def __init__(
        self, *addresses: str, timeout_s: float | None = 30.0, connect_s: float = CONNECT_S, trust: Trust | None = None
    ) -> None:
        self._client = DaemonClient(*addresses, timeout_s=timeout_s, connect_s=connect_s, trust=trust)
        self._thread = threading.Thread(target=self._serve, name="offloaderd-client", daemon=True)
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> Self:
        """Connect; raises what DaemonClient raises."""
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            self._thread.join()
            raise self._error
        return self

    def __exit__(self, *_: object) -> None:
        """End all calls and the thread."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def run(self, call: Callable[[DaemonClient], Coroutine[object, object, T]]) -> T:
        """Make a call and return its answer: `client.run(lambda daemon: daemon.segments("orders"))`."""
        loop = self._loop
        if loop is None:
            raise Closed("the client is not connected", hint="use it in `with`")
        waiting = asyncio.run_coroutine_threadsafe(call(self._client), loop)
        try:
            return waiting.result()
        except BaseException:
            waiting.cancel()
            raise

    def iterate(self, call: Callable[[DaemonClient], AsyncGenerator[T, None]]) -> Iterator[T]:
        """Make a call that streams; leaving the loop early ends it."""
        answers = call(self._client)
        try:
            while True:
                try:
                    yield self.run(lambda _: _awaited(anext(answers)))
                except StopAsyncIteration:
                    return
        finally:
            if self._loop is not None:
                self.run(lambda _: _awaited(answers.aclose()))

    def read(
        self,
        topic: TopicName | str,
        *,
        timeout_s: float | None = None,
        resume_s: float | None = RESUME_S,
        ahead: int = AHEAD,
        direct: AbstractAsyncContextManager[Bucket] | None = None,
        **wanted: Unpack[Wanted],
    ) -> Iterator[ReadAnswer]:
        """Yield a range in batches, as DaemonClient.read does; the next ones are fetched meanwhile.

        `direct` is what `bucket_reads` returns, not entered: the bucket is open for this one read, in the client's
        thread.
        """

        async def answers(daemon: DaemonClient) -> AsyncGenerator[ReadAnswer, None]:
            async with (
                direct or nullcontext() as bucket,
                aclosing(
                    daemon.read(topic, timeout_s=timeout_s, resume_s=resume_s, ahead=ahead, direct=bucket, **wanted)
                ) as found,
            ):
                async for answer in found:
                    yield answer

        return self.iterate(answers)

    def append(self, topic: TopicName | str, batches: Iterable[Sequence[bytes]]) -> list[ledgers_pb2.AppendResponse]:
        """Append batches to the daemon's ledger store; returns the answer to each, once all are durable."""
        answers: list[ledgers_pb2.AppendResponse] = []
        self.run(lambda daemon: daemon.append(topic, _each(batches), answers.append))
        return answers

    def topics(self, prefix: str = "") -> Sequence[admin_pb2.TopicSummary]:
        """Return the topics below `prefix` (tenant or tenant/namespace; empty: all)."""
        return self.run(lambda daemon: daemon.topics(prefix))

    def segments(self, topic: TopicName | str) -> list[admin_pb2.Segment]:
        """Return a topic's segments in order, the open one last."""
        return self.run(lambda daemon: daemon.segments(topic))

    def last_positions(self, topic: TopicName | str) -> read_pb2.LastPositionsResponse:
        """Return the topic's oldest, newest, offloaded and buffered positions."""
        return self.run(lambda daemon: daemon.last_positions(topic))

    def seek(self, topic: TopicName | str, goal: Goal) -> read_pb2.SeekResponse:
        """Return where an entry is, or where the next one may come."""
        return self.run(lambda daemon: daemon.seek(topic, goal))

    def offload(self, topic: TopicName | str, *, to: Position | None = None) -> admin_pb2.OffloadProgress | None:
        """Offload everything, or all up to an entry; returns the last report once it is committed."""
        reports = list(self.iterate(lambda daemon: daemon.offload(topic, wait=True, to=to)))
        return reports[-1] if reports else None

    def _serve(self) -> None:
        """Run the client until it is stopped."""
        try:
            asyncio.run(self._until_stopped())
        except BaseException as error:  # noqa: BLE001 - raised where the client is entered
            self._error = error
        finally:
            self._ready.set()

    async def _until_stopped(self) -> None:
        self._stop = asyncio.Event()
        async with self._client:
            self._loop = asyncio.get_running_loop()
            self._ready.set()
            await self._stop.wait()


async def _awaited(work: Awaitable[T]) -> T:
    return await work


async def _each(batches: Iterable[Sequence[bytes]]) -> AsyncGenerator[Sequence[bytes], None]:
    for batch in batches:
        yield batch
