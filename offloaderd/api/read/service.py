"""ReadService: entries by range or as they arrive, seeks, and last positions.

A client that stops reading holds only its own stream: gRPC takes no further answer until the client makes room, so the
read pauses with what it has fetched ahead, which the block cache bounds. A client that disconnects ends the read.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import ExitStack, aclosing, contextmanager

from offloaderd.api.context import Context
from offloaderd.api.gate import share_of_caller
from offloaderd.api.read.messages import UNPACK_BYTES, MessageReader, Unpacking
from offloaderd.core.errors import InvalidInput, Throttled
from offloaderd.core.frames import Entries
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import EntryBatch, TopicName
from offloaderd.core.read_options import Goal, ReadPriority, SeekKind, Tier
from offloaderd.format.parsing import filled
from offloaderd.format.pulsar import broker_entry
from offloaderd.protocol.conversion import TIERS, encoded_read_response, from_position
from offloaderd.protocol.v1 import common_pb2, read_pb2, read_pb2_grpc
from offloaderd.read.consumer import ConsumerView
from offloaderd.read.outcomes import KnownOutcomes
from offloaderd.read.reader import TopicReader
from offloaderd.read.seek.goal import Answered, Sought
from offloaderd.read.seek.seek import seek

BATCH_BYTES_MAX = 16 * 1024 * 1024
"""Payload bytes of one answer; clients accept messages of 32 MiB, and small entries need room for their heads."""
_KINDS = {"time_ms": SeekKind.TIME, "index": SeekKind.INDEX, "sequence": SeekKind.SEQUENCE}
_ANSWERS = {
    Answered.MANIFEST: read_pb2.SEEK_ANSWER_MANIFEST,
    Answered.BLOCK: read_pb2.SEEK_ANSWER_BLOCK,
    Answered.SCAN: read_pb2.SEEK_ANSWER_SCAN,
}


class ReadService(read_pb2_grpc.ReadServiceServicer):
    """Serves reads from a TopicReader, at most `readers_max` at a time, in answers of at most `message_bytes_max`."""

    def __init__(
        self,
        reader: TopicReader,
        readers_max: int,
        *,
        metrics: Metrics,
        batch_bytes_max: int = BATCH_BYTES_MAX,
        message_bytes_max: int = BATCH_BYTES_MAX,
        unpack_bytes: int = UNPACK_BYTES,
    ) -> None:
        self._reader = reader
        self._metrics = metrics
        self.readers_max = readers_max
        self._batch_bytes_max = batch_bytes_max
        self._message_bytes_max = message_bytes_max
        self._readers = 0
        self._known = KnownOutcomes()
        self.unpacking = Unpacking(unpack_bytes, metrics)

    async def Read(  # type: ignore[override] # its answers are serialized already
        self, request: read_pb2.ReadRequest, context: Context
    ) -> AsyncIterator[bytes]:
        """Stream a range. Raises as TopicReader.read, Throttled when there are too many readers."""
        with self.counted():
            framed = request.framed and not request.client_bytes
            async with aclosing(self._entries(request, framed=framed)) as batches:
                async for batch, tier in batches:
                    yield encoded_read_response(_client_bytes(batch) if request.client_bytes else batch, tier)

    async def ReadMessages(
        self, request: read_pb2.ReadRequest, context: Context
    ) -> AsyncIterator[read_pb2.ReadMessagesResponse]:
        """Stream a range as messages. Raises as Read; an entry that cannot be unpacked is no error."""
        everything = request.transactions == read_pb2.TRANSACTIONS_ALL
        topic, last_tier = TopicName.parse(request.topic), Tier.OBJECTS
        with self.counted(), ExitStack() as stack:
            view = ConsumerView(self._reader, topic, self._known, follow=request.follow, everything=everything)
            async with view:
                messages = MessageReader(
                    view,
                    everything=everything,
                    message_bytes_max=self._message_bytes_max,
                    unpacking=self.unpacking,
                    holder=share_of_caller(),
                )
                stack.callback(messages.close)
                async with aclosing(self._entries(request, framed=False)) as batches:
                    async for batch, last_tier in batches:
                        async with aclosing(view.visible(batch)) as parts:
                            async for part in parts:
                                async with aclosing(messages.answers(part, last_tier)) as answers:
                                    async for answer in answers:
                                        yield answer
                        if view.held is not None:
                            break
                for answer in messages.rest(last_tier):
                    yield answer

    async def _entries(
        self, request: read_pb2.ReadRequest, *, framed: bool
    ) -> AsyncGenerator[tuple[Entries, Tier], None]:
        """Read the requested entries. Raises InvalidInput, and as TopicReader.read and a seek."""
        topic = TopicName.parse(request.topic)
        if request.batch_bytes > self._batch_bytes_max:
            raise InvalidInput(
                f"batch_bytes of {request.batch_bytes} is too large", hint=f"at most {self._batch_bytes_max}, or 0"
            )
        first = from_position(request.first) if request.HasField("first") else None
        last = from_position(request.last) if request.HasField("last") else None
        if request.HasField("seek"):
            if first is not None:
                raise InvalidInput("a read from a position and from a seek", hint="say one of the two")
            found = await seek(self._reader, topic, _goal_of(request.seek))
            first = found.begin
            beyond = first is not None and last is not None and first > last
            if beyond or (found.hit is None and not request.follow):
                return
        reading = self._reader.read(
            topic,
            first=first,
            last=last,
            follow=request.follow,
            priority=ReadPriority.parse(request.read_priority) if request.read_priority else None,
            batch_bytes=request.batch_bytes,
            entries_max=request.entries_max,
            framed=framed,
        )
        async with aclosing(reading) as batches:
            async for batch, tier in batches:
                yield batch, tier

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count as a reader. Raises Throttled."""
        if self._readers >= self.readers_max:
            raise Throttled(
                f"{self._readers} reads are open already", hint="try again later, or raise read.readers_max"
            )
        self._readers += 1
        self._metrics.readers.set(self._readers)
        try:
            yield
        finally:
            self._readers -= 1
            self._metrics.readers.set(self._readers)

    async def LastPositions(
        self, request: read_pb2.LastPositionsRequest, context: Context
    ) -> read_pb2.LastPositionsResponse:
        """Return the last positions of a topic. Raises TopicNotFound."""
        found = await self._reader.last_positions(TopicName.parse(request.topic))
        return filled(read_pb2.LastPositionsResponse, found)

    async def Seek(self, request: read_pb2.SeekRequest, context: Context) -> read_pb2.SeekResponse:
        """Return the position of a time, a message or an entry. Raises TopicNotFound, InvalidInput, Throttled."""
        with self.counted():
            return _to_response(await seek(self._reader, TopicName.parse(request.topic), _goal_of(request.target)))


def _client_bytes(batch: Entries) -> EntryBatch:
    """Return the entries without the broker's metadata before them (PIP-70)."""
    payloads = [broker_entry.without_head(payload) for payload in batch.payloads]
    return EntryBatch(batch.ledger_id, batch.first_entry_id, payloads)


def _goal_of(target: read_pb2.SeekTarget) -> Goal:
    """Parse the target of a seek; raises InvalidInput without one."""
    chosen = target.WhichOneof("target")
    if chosen is None:
        raise InvalidInput("a seek without a target", hint="say a time, an index or a sequence number")
    return Goal(_KINDS[chosen], getattr(target, chosen))


def _to_response(found: Sought) -> read_pb2.SeekResponse:
    hit, cost = found.hit, found.cost
    return filled(
        read_pb2.SeekResponse,
        cost,
        answer=_ANSWERS[cost.answered] if hit is not None else read_pb2.SEEK_ANSWER_NOTHING,
        position=found.begin,
        time_ms=hit.time.time_ms if hit is not None else None,
        index=hit.time.message_index if hit is not None else None,
        sequence=hit.sequence if hit is not None else None,
        tier=TIERS[hit.tier] if hit is not None else common_pb2.TIER_UNSPECIFIED,
    )
