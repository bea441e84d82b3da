"""gRPC with empty work: a server that takes pushed batches and drops them, and answers reads from memory.

What it costs is what our services cannot do without, whatever happens behind them: the same messages, sent in the same
way by the same client, over the same server options. `python -m bench.empty` serves until its input ends.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
from grpc import aio

from bench.child import Took
from bench.load import DEADLINE_S, MIB, OFFLOAD_METHOD, Entries
from bench.machine import cpu_s, memory_bytes
from bench.site import CLOCK
from offloaderd.api.server import FRAME_BYTES
from offloaderd.core.entries import FramedEntries, frame
from offloaderd.core.read_options import Tier
from offloaderd.protocol.conversion import decoded_read_response, encoded_read_response
from offloaderd.protocol.v1 import common_pb2, offload_pb2, read_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

READ_METHOD = "/offloaderd.v1.ReadService/Read"
OPTIONS = [("grpc.http2.max_frame_size", FRAME_BYTES), ("grpc.enable_http_proxy", 0)]
MESSAGE_BYTES_MAX = ("grpc.max_receive_message_length", 16 * MIB)
_OFFERED = offload_pb2.StreamingOffloadResponse(
    offered=offload_pb2.StreamingOffloadResponse.Offered(result=offload_pb2.OFFER_RESULT_ACCEPTED)
)


async def _taken(
    requests: AsyncIterator[offload_pb2.StreamingOffloadRequest], _: object
) -> AsyncIterator[offload_pb2.StreamingOffloadResponse]:
    """Parse every message, as any service has to, and drop it."""
    async for _request in requests:
        yield _OFFERED


async def _given(request: read_pb2.ReadRequest, _: object) -> AsyncIterator[bytes]:
    """Answer with as many framed entries of a length as are asked for, the same ones in each answer of 1 MiB."""
    entry = bytes(request.first.entry_id)
    payloads = [entry] * max(1, MIB // len(entry))
    frames = b"".join(frame(0, payloads))
    whole = FramedEntries(1, 0, len(payloads), frames, 0, len(frames), "memory", 0)
    for first in range(0, request.entries_max, len(payloads)):
        yield encoded_read_response(whole.between(0, request.entries_max - first - 1), Tier.OBJECTS)


async def serve() -> None:
    """Serve on a port of its own, which it prints, until its input ends."""
    server = aio.server(options=[*OPTIONS, MESSAGE_BYTES_MAX])
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        OFFLOAD_METHOD: grpc.stream_stream_rpc_method_handler(
            _taken,
            offload_pb2.StreamingOffloadRequest.FromString,
            offload_pb2.StreamingOffloadResponse.SerializeToString,
        ),
        READ_METHOD: grpc.unary_stream_rpc_method_handler(_given, read_pb2.ReadRequest.FromString),
    }
    for path, handler in handlers.items():
        _, service, method = path.split("/")
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(None)


class Empty:
    """The running server, and a client of it. Use `empty_server`."""

    def __init__(self, channel: aio.Channel, pid: int) -> None:
        self._channel = channel
        self._pid = pid

    async def push(self, entries: Entries) -> Took:
        """Push all entries, and wait until all are answered; returns what it took the server."""
        method: aio.StreamStreamMultiCallable[bytes, bytes] = self._channel.stream_stream(OFFLOAD_METHOD)
        before, started = cpu_s(self._pid), CLOCK.monotonic()
        call = method(timeout=DEADLINE_S)

        async def write() -> None:
            for request in entries.requests():
                await call.write(request)
            await call.done_writing()

        async with asyncio.TaskGroup() as group:
            group.create_task(write(), name="push to nobody")
            async for _ in call:
                pass
        return self._took(started, before)

    async def read(self, entry_bytes: int, count: int) -> Took:
        """Read as many entries; returns what it took the server."""
        method: aio.UnaryStreamMultiCallable[read_pb2.ReadRequest, bytes] = self._channel.unary_stream(
            READ_METHOD, request_serializer=read_pb2.ReadRequest.SerializeToString
        )
        request = read_pb2.ReadRequest(first=common_pb2.Position(entry_id=entry_bytes), entries_max=count)
        before, started = cpu_s(self._pid), CLOCK.monotonic()
        found = 0
        async for response in method(request, timeout=DEADLINE_S):
            batch, _ = decoded_read_response(response, where="memory")
            found += batch.count
        if found != count:
            raise RuntimeError(f"{found} entries came, not {count}")
        return self._took(started, before)

    def _took(self, started: float, before: float) -> Took:
        return Took(CLOCK.monotonic() - started, cpu_s(self._pid) - before, memory_bytes(self._pid)[1])


@asynccontextmanager
async def empty_server() -> AsyncIterator[Empty]:
    """Run the server as a child."""
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(sys.executable, "-m", "bench.empty", stdin=pipe, stdout=pipe)
    if child.stdin is None or child.stdout is None:
        raise RuntimeError("the child has no pipes")
    try:
        port = int(await child.stdout.readline())
        async with aio.insecure_channel(f"127.0.0.1:{port}", options=[*OPTIONS, MESSAGE_BYTES_MAX]) as channel:
            yield Empty(channel, child.pid)
    finally:
        child.stdin.close()
        await child.wait()


if __name__ == "__main__":
    asyncio.run(serve())
