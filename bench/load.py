"""The load: entries of random bytes, pushed as a broker would or appended to the daemon's own ledgers.

A broker is not what is measured, so pushed requests are put together from a part that is serialized once.
"""

from __future__ import annotations

import asyncio
import os
from itertools import cycle
from math import inf
from typing import TYPE_CHECKING, Protocol

from grpc import aio

from bench.site import CLOCK
from offloaderd.core.model import Position
from offloaderd.format.pb.pulsar.messages_pb2 import MessageMetadata
from offloaderd.format.pulsar import broker_entry
from offloaderd.format.pulsar.entry_time import CHECKSUM
from offloaderd.protocol.v1 import common_pb2, offload_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from offloaderd.client import DaemonClient
    from offloaderd.core.model import TopicName

MIB = 1024 * 1024
PUSH_LEDGER = 1
WRITTEN, WRITTEN_MS = 1_000_000, 1_700_000_000_000
"""Index and time of the first message: large, as in a topic that has been written for a while."""
DEADLINE_S = 200.0
"""No call of a benchmark takes this long, unless something is wrong or it is kept up for longer on purpose."""

OFFLOAD_METHOD = "/offloaderd.v1.OffloadService/StreamingOffload"
_BATCH_TAG = bytes([offload_pb2.StreamingOffloadRequest.BATCH_FIELD_NUMBER << 3 | 2])


class Entries:
    """Entries of one size, in batches of `batch_bytes` of payload (or one entry).

    There are as many as fit into `segments` segments of the same number of entries. `distinct` batches have entries
    of their own, which come again behind them: one is pushed out of the processor's cache, many are not in it.
    """

    def __init__(
        self, entry_bytes: int, total_bytes: int, *, segments: int = 1, batch_bytes: int = MIB, distinct: int = 1
    ) -> None:
        self.count = total_bytes // segments // entry_bytes * segments
        self.entry_bytes = entry_bytes
        self.payload_bytes = self.count * entry_bytes
        self.segment_bytes = self.payload_bytes // segments
        self.per_batch = max(1, batch_bytes // entry_bytes)
        self._distinct = [
            [message(entry_bytes, first + number) for number in range(self.per_batch)]
            for first in range(0, distinct * self.per_batch, self.per_batch)
        ]

    def batches(self) -> Iterator[tuple[int, list[bytes]]]:
        """Yield the first entry id and the payloads of each batch."""
        for first, payloads in zip(range(0, self.count, self.per_batch), cycle(self._distinct), strict=False):
            yield first, payloads[: self.count - first]

    def requests(self) -> Iterator[bytes]:
        """Yield each batch as a serialized StreamingOffloadRequest."""
        bodies: dict[tuple[int, bytes], bytes] = {}
        for first, payloads in self.batches():
            body = bodies.get((len(payloads), payloads[0]))
            if body is None:
                body = bodies[len(payloads), payloads[0]] = common_pb2.EntryBatch(payloads=payloads).SerializeToString()
            head = common_pb2.EntryBatch(ledger_id=PUSH_LEDGER, first_entry_id=first).SerializeToString()
            yield b"".join((_BATCH_TAG, varint(len(head) + len(body)), head, body))


def message(entry_bytes: int, number: int) -> bytes:
    """Return an entry as a broker stores one message: its own head (PIP-70), checksum, metadata, random content."""
    metadata = MessageMetadata(producer_name="bench-1-23", sequence_id=number, publish_time=WRITTEN_MS + number)
    said = metadata.SerializeToString()
    body = len(said).to_bytes(4, "big") + said
    head = (
        broker_entry.encode_head(broker_timestamp=WRITTEN_MS + number, index=WRITTEN + number)
        + CHECKSUM
        + bytes(4)
        + body
    )
    return head + os.urandom(max(0, entry_bytes - len(head)))


def varint(value: int) -> bytes:
    """Return a length as protobuf writes it."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


async def push(client: DaemonClient, topic: TopicName, entries: Entries, *, seconds: float = inf) -> int:
    """Push all entries, or those that `seconds` are enough for, until they are committed; returns how many.

    Once the last one has been taken, the open segment is sealed by hand: nothing waits for an age.
    """
    async with aio.insecure_channel(client.address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        opening = offload_pb2.StreamingOffloadRequest.Open(topic=str(topic))
        method: aio.StreamStreamMultiCallable[bytes, offload_pb2.StreamingOffloadResponse] = channel.stream_stream(
            OFFLOAD_METHOD, response_deserializer=offload_pb2.StreamingOffloadResponse.FromString
        )
        deadline_s, until = _limits(seconds)
        call = method(timeout=deadline_s)
        await call.write(offload_pb2.StreamingOffloadRequest(open=opening).SerializeToString())
        offloaded, last = Position(-1, -1), Position(PUSH_LEDGER, -1)
        unanswered = 0
        idle = asyncio.Event()

        async def write() -> None:
            nonlocal unanswered
            for request in entries.requests():
                if CLOCK.monotonic() > until:
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


class Batched(Protocol):
    """Entries that come in batches."""

    def batches(self) -> Iterator[tuple[int, list[bytes]]]:
        """Yield the first entry id and the payloads of each batch."""
        ...


async def append(client: DaemonClient, topic: TopicName, entries: Batched, *, seconds: float = inf) -> int:
    """Append all entries to the daemon's ledgers, or those that `seconds` are enough for; returns how many."""
    deadline_s, until = _limits(seconds)
    answered = 0

    async def batches() -> AsyncIterator[list[bytes]]:
        for _, payloads in entries.batches():
            if CLOCK.monotonic() > until:
                return
            yield payloads

    def note(count: int) -> None:
        nonlocal answered
        answered += count

    await client.append(topic, batches(), lambda answer: note(answer.entry_count), timeout_s=deadline_s)
    return answered


def _limits(seconds: float) -> tuple[float, float]:
    """Return the deadline of a call that brings entries for so long, and until when (monotonic)."""
    return DEADLINE_S + (seconds if seconds < inf else 0.0), CLOCK.monotonic() + seconds
