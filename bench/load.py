"""The load: entries of random bytes, pushed as a broker would or appended to the daemon's own ledgers.

A broker is not what is measured, so pushed requests are put together from a part that is serialized once.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from grpc import aio

from offloaderd.model import Position
from offloaderd.rpc.v1 import common_pb2, offload_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from offloaderd.client import DaemonClient
    from offloaderd.model import TopicName

MIB = 1024 * 1024
PUSH_LEDGER = 1
DEADLINE_S = 200.0
"""No call of a benchmark takes this long, unless something is wrong."""

_METHOD = "/offloaderd.v1.OffloadService/StreamingOffload"
_BATCH_TAG = bytes([offload_pb2.StreamingOffloadRequest.BATCH_FIELD_NUMBER << 3 | 2])


class Entries:
    """Entries of one size, in batches of `batch_bytes` of payload (or one entry).

    There are as many as fit into `segments` segments of the same number of entries.
    """

    def __init__(self, entry_bytes: int, total_bytes: int, *, segments: int = 1, batch_bytes: int = MIB) -> None:
        self.count = total_bytes // segments // entry_bytes * segments
        self.payload_bytes = self.count * entry_bytes
        self.segment_bytes = self.payload_bytes // segments
        self.per_batch = max(1, batch_bytes // entry_bytes)
        content = os.urandom(self.per_batch * entry_bytes)
        self.payloads = [content[at : at + entry_bytes] for at in range(0, len(content), entry_bytes)]

    def batches(self) -> Iterator[tuple[int, list[bytes]]]:
        """Yield the first entry id and the payloads of each batch."""
        for first in range(0, self.count, self.per_batch):
            yield first, self.payloads[: self.count - first]

    def requests(self) -> Iterator[bytes]:
        """Yield each batch as a serialized StreamingOffloadRequest."""
        sizes: dict[int, bytes] = {}
        for first, payloads in self.batches():
            body = sizes.get(len(payloads))
            if body is None:
                body = sizes[len(payloads)] = common_pb2.EntryBatch(payloads=payloads).SerializeToString()
            head = common_pb2.EntryBatch(ledger_id=PUSH_LEDGER, first_entry_id=first).SerializeToString()
            yield b"".join((_BATCH_TAG, varint(len(head) + len(body)), head, body))


def varint(value: int) -> bytes:
    """Return a length as protobuf writes it."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


async def push(
    client: DaemonClient, topic: TopicName, entries: Entries, *, going: Callable[[], bool] = lambda: True
) -> int:
    """Push all entries, or those that there is time for, until they are committed; returns how many.

    Once the last one has been taken, the open segment is sealed by hand: nothing waits for an age.
    """
    async with aio.insecure_channel(client.address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        opening = offload_pb2.StreamingOffloadRequest.Open(topic=str(topic))
        method: aio.StreamStreamMultiCallable[bytes, offload_pb2.StreamingOffloadResponse] = channel.stream_stream(
            _METHOD, response_deserializer=offload_pb2.StreamingOffloadResponse.FromString
        )
        call = method(timeout=DEADLINE_S)
        await call.write(offload_pb2.StreamingOffloadRequest(open=opening).SerializeToString())
        offloaded, last = Position(-1, -1), Position(PUSH_LEDGER, -1)
        unanswered = 0
        idle = asyncio.Event()

        async def write() -> None:
            nonlocal unanswered
            for request in entries.requests():
                if not going():
                    break
                unanswered += 1
                idle.clear()
                await call.write(request)
            await idle.wait()
            await call.done_writing()
            async for _ in client.offload(topic, wait=False, timeout_s=DEADLINE_S):
                pass

        async with asyncio.TaskGroup() as group:
            group.create_task(write(), name=f"push {topic}")
            async for response in call:
                match response.WhichOneof("response"):
                    case "offloaded":
                        position = response.offloaded.position
                        offloaded = Position(position.ledger_id, position.entry_id)
                    case "offered" if response.offered.result != offload_pb2.OFFER_RESULT_ACCEPTED:
                        raise RuntimeError(f"declined: {response.offered.message}")
                    case "offered":
                        position = response.offered.last_offered
                        last = Position(position.ledger_id, position.entry_id)
                        unanswered -= 1
                        if not unanswered:
                            idle.set()
        if offloaded != last:
            raise RuntimeError(f"offloaded to {offloaded}, not to {last}")
        return last.entry_id + 1


async def append(
    client: DaemonClient, topic: TopicName, entries: Entries, *, going: Callable[[], bool] = lambda: True
) -> int:
    """Append all entries to the daemon's ledgers, or those that there is time for; returns how many."""
    answered = 0

    async def batches() -> AsyncIterator[list[bytes]]:
        for _, payloads in entries.batches():
            if not going():
                return
            yield payloads

    def note(count: int) -> None:
        nonlocal answered
        answered += count

    await client.append(topic, batches(), lambda answer: note(answer.entry_count), timeout_s=DEADLINE_S)
    return answered
