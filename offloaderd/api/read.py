"""ReadService: entries by range or as they arrive, as stored or as messages; seeks, and last positions.

A client that stops reading holds only its own stream: gRPC takes no further answer until the client makes room, so the
read pauses with what it has fetched ahead, which the block cache bounds. A client that disconnects ends the read.

An answer of ReadMessages holds about 1 MiB of messages. What would exceed the largest answer is not unpacked or joined:
it is sent as it is stored, with the reason, and without its bytes where even those are too large.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from contextlib import ExitStack, aclosing, asynccontextmanager, contextmanager, nullcontext
from dataclasses import KW_ONLY, InitVar, dataclass, field

from offloaderd.api.calls import Context
from offloaderd.api.gate import account_of_caller, share_of_caller
from offloaderd.core.entries import Entries
from offloaderd.core.errors import InvalidInput, Throttled
from offloaderd.core.limits import ByteBudget
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import Position, TopicName
from offloaderd.core.quotas import Account
from offloaderd.core.read_options import Goal, ReadPriority, SeekKind, Tier
from offloaderd.format.parsing import filled
from offloaderd.format.pulsar import broker_entry
from offloaderd.format.pulsar.messages import Joiner, Message, MessageState, decode_entry, unpacked_bytes
from offloaderd.format.pulsar.transactions import TransactionId, TransactionState
from offloaderd.protocol.conversion import TIERS, encoded_read_response, from_position, to_position
from offloaderd.protocol.v1 import common_pb2, read_pb2_grpc
from offloaderd.protocol.v1 import read_pb2 as pb
from offloaderd.read.planned import plan_message
from offloaderd.read.reader import TopicReader
from offloaderd.read.search import Answered
from offloaderd.read.seek import Sought, seek
from offloaderd.read.stream import Wanted
from offloaderd.read.transactions import ConsumerView, KnownOutcomes

UNPACK_BYTES = 64 * 1024 * 1024


BATCH_BYTES_MAX = 16 * 1024 * 1024
"""Payload bytes of one answer; clients accept messages of 32 MiB, and small entries need room for their heads."""
_KINDS = {"time_ms": SeekKind.TIME, "index": SeekKind.INDEX, "sequence": SeekKind.SEQUENCE}
_ANSWERS = {
    Answered.MANIFEST: pb.SEEK_ANSWER_MANIFEST,
    Answered.BLOCK: pb.SEEK_ANSWER_BLOCK,
    Answered.SCAN: pb.SEEK_ANSWER_SCAN,
}


@dataclass(eq=False)
class ReadService(read_pb2_grpc.ReadServiceServicer):
    """Serves reads from a TopicReader, at most `readers_max` at a time, in answers of at most `message_bytes_max`."""

    reader: TopicReader
    readers_max: int
    _: KW_ONLY
    metrics: Metrics
    batch_bytes_max: int = BATCH_BYTES_MAX
    message_bytes_max: int = BATCH_BYTES_MAX
    unpack_bytes: InitVar[int] = UNPACK_BYTES
    _readers: int = field(default=0, init=False)
    _outcomes: KnownOutcomes = field(default_factory=KnownOutcomes, init=False)

    def __post_init__(self, unpack_bytes: int) -> None:
        self.unpacking = Unpacking(unpack_bytes, self.metrics)

    async def Read(  # type: ignore[override] # its answers are serialized already
        self, request: pb.ReadRequest, context: Context
    ) -> AsyncIterator[bytes]:
        """Stream a range. Raises as TopicReader.read, Throttled when there are too many readers."""
        with self.counted():
            framed = request.framed and not request.client_bytes
            async with aclosing(self._entries(request, framed=framed)) as batches:
                async for batch, tier in batches:
                    yield encoded_read_response(
                        broker_entry.without_heads(batch) if request.client_bytes else batch, tier
                    )

    async def ReadMessages(self, request: pb.ReadRequest, context: Context) -> AsyncIterator[pb.ReadMessagesResponse]:
        """Stream a range as messages. Raises as Read; an entry that cannot be unpacked is no error."""
        everything = request.transactions == pb.TRANSACTIONS_ALL
        topic, last_tier = TopicName.parse(request.topic), Tier.OBJECTS
        with self.counted(), ExitStack() as stack:
            view = ConsumerView(self.reader, topic, self._outcomes, follow=request.follow, everything=everything)
            async with view:
                messages = MessageReader(
                    view,
                    everything=everything,
                    message_bytes_max=self.message_bytes_max,
                    unpacking=self.unpacking,
                    holder=share_of_caller(),
                    account=account_of_caller(),
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

    async def PlanRead(self, request: pb.ReadRequest, context: Context) -> pb.PlanReadResponse:
        """Return where the entries of a range are stored. Raises as Read."""
        with self.counted():
            topic = TopicName.parse(request.topic)
            wanted = await self._range(topic, request)
            if wanted is None:
                return pb.PlanReadResponse(complete=True)
            runs, complete = await self.reader.plan(topic, **wanted)
            return plan_message(runs, complete=complete)

    async def _entries(self, request: pb.ReadRequest, *, framed: bool) -> AsyncGenerator[tuple[Entries, Tier], None]:
        """Read the requested entries. Raises InvalidInput, and as TopicReader.read and a seek."""
        if request.batch_bytes > self.batch_bytes_max:
            hint = f"at most {self.batch_bytes_max}, or 0"
            raise InvalidInput(f"batch_bytes of {request.batch_bytes} is too large", hint=hint)
        topic = TopicName.parse(request.topic)
        wanted = await self._range(topic, request)
        if wanted is None:
            return
        reading = self.reader.read(topic, **wanted, batch_bytes=request.batch_bytes, framed=framed)
        async with aclosing(reading) as batches:
            async for batch, tier in batches:
                yield batch, tier

    async def _range(self, topic: TopicName, request: pb.ReadRequest) -> Wanted | None:
        """Return the requested range, None for an empty one. Raises InvalidInput, and as a seek."""
        first = from_position(request.first) if request.HasField("first") else None
        last = from_position(request.last) if request.HasField("last") else None
        if request.HasField("seek"):
            if first is not None:
                raise InvalidInput("a read from a position and from a seek", hint="say one of the two")
            found = await seek(self.reader, topic, _goal_of(request.seek))
            first = found.begin
            beyond = first is not None and last is not None and first > last
            if beyond or (found.hit is None and not request.follow):
                return None
        priority = ReadPriority.parse(request.read_priority) if request.read_priority else None
        return Wanted(
            first=first,
            last=last,
            follow=request.follow,
            priority=priority,
            entries_max=request.entries_max,
        )

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count as a reader. Raises Throttled."""
        if self._readers >= self.readers_max:
            hint = "try again later, or raise read.readers_max"
            raise Throttled(f"{self._readers} reads are open already", hint=hint)
        self._readers += 1
        self.metrics.readers.set(self._readers)
        try:
            yield
        finally:
            self._readers -= 1
            self.metrics.readers.set(self._readers)

    async def LastPositions(self, request: pb.LastPositionsRequest, context: Context) -> pb.LastPositionsResponse:
        """Return the last positions of a topic. Raises TopicNotFound."""
        found = await self.reader.last_positions(TopicName.parse(request.topic))
        return filled(pb.LastPositionsResponse, found)

    async def Seek(self, request: pb.SeekRequest, context: Context) -> pb.SeekResponse:
        """Return the position of a time, a message or an entry. Raises TopicNotFound, InvalidInput, Throttled."""
        with self.counted():
            return _to_response(await seek(self.reader, TopicName.parse(request.topic), _goal_of(request.target)))


def _goal_of(target: pb.SeekTarget) -> Goal:
    """Parse the target of a seek; raises InvalidInput without one."""
    chosen = target.WhichOneof("target")
    if chosen is None:
        raise InvalidInput("a seek without a target", hint="say a time, an index or a sequence number")
    return Goal(_KINDS[chosen], getattr(target, chosen))


def _to_response(found: Sought) -> pb.SeekResponse:
    hit, cost = found.hit, found.cost
    return filled(
        pb.SeekResponse,
        cost,
        answer=_ANSWERS[cost.answered] if hit is not None else pb.SEEK_ANSWER_NOTHING,
        position=found.begin,
        time_ms=hit.time.time_ms if hit is not None else None,
        index=hit.time.message_index if hit is not None else None,
        sequence=hit.sequence if hit is not None else None,
        tier=TIERS[hit.tier] if hit is not None else common_pb2.TIER_UNSPECIFIED,
    )


class Unpacking:
    """The memory of unpacked messages in all reads: two budgets, half of `limit_bytes` each.

    A read that unpacks an entry waits for its turn, and holds nothing that others wait for. Chunks that wait for the
    rest of their message have a budget of their own, since the wait has no known end: without room the read is refused
    and delays no other. A client that takes no answers, or reads chunks without end, holds its memory as long as it
    likes. So one identity gets no more while less than as much remains for others, and at most half of the room for
    chunks; there is no such share without an identity (`holder` None).
    """

    def __init__(self, limit_bytes: int, metrics: Metrics) -> None:
        self._unpacked = ByteBudget(limit_bytes - limit_bytes // 2)
        self._waiting = ByteBudget(limit_bytes // 2)
        self._waiting_of: Counter[str] = Counter()
        metrics.memory_used_bytes.labels(pool="unpack").set_function(lambda: self.used_bytes)

    @property
    def used_bytes(self) -> int:
        """Bytes held now."""
        return self._unpacked.used + self._waiting.used

    @asynccontextmanager
    async def room(
        self, size_bytes: int, holder: str | None = None, account: Account | None = None
    ) -> AsyncIterator[None]:
        """Hold room for unpacked bytes, of the account's quota first; waits for it."""
        quota = account.unpacking(size_bytes) if account is not None else nullcontext()
        async with quota, self._unpacked.held(size_bytes, holder):
            yield

    def wait(
        self, before_bytes: int, now_bytes: int, holder: str | None = None, account: Account | None = None
    ) -> None:
        """Count the bytes that the chunks of one read hold now, and held before. Raises Throttled without room."""
        more_bytes = now_bytes - before_bytes
        if account is not None:
            account.wait_for_rest(more_bytes)
        try:
            self._wait(more_bytes, holder)
        except Throttled:
            if account is not None:
                account.wait_for_rest(-more_bytes)
            raise

    def _wait(self, more_bytes: int, holder: str | None) -> None:
        if more_bytes <= 0:
            self._waiting.release(-more_bytes)
        else:
            self._take(more_bytes, holder)
        if holder is not None and more_bytes:
            self._waiting_of[holder] += more_bytes
            if not self._waiting_of[holder]:
                del self._waiting_of[holder]

    def _take(self, more_bytes: int, holder: str | None) -> None:
        limit_bytes = self._waiting.limit
        if holder is not None and self._waiting_of[holder] + more_bytes > limit_bytes // 2:
            whose, limit_bytes = "this caller may have", limit_bytes // 2
        elif self._waiting.take_now(more_bytes):
            return
        else:
            whose = "there are"
        raise Throttled(
            f"chunks of messages that wait for the rest take all {limit_bytes} bytes {whose}",
            hint="try again later, read without them (as entries), or raise memory.unpack_bytes",
        )


MIB = 1024 * 1024
ANSWER_BYTES = MIB
CLIENT_BYTES_MAX = 32 * MIB
"""Largest answer that clients accept."""
CONTENT_BYTES_MAX = 16 * MIB
"""Largest content of an entry, or of a message in chunks, that is unpacked, if an answer may hold it."""
THREAD_BYTES = 256 * 1024
"""Entries that unpack to less are unpacked at once: that takes less than a millisecond."""
FIELDS_BYTES = MIB
"""Room in an answer for all of a message except its content."""
FRAMING_BYTES = 64
"""Upper bound of an answer's bytes around one message."""

_GIVEN = {*MessageState} - {MessageState.INCOMPLETE}  # a read gives chunks as they come
_STATES = {state: pb.MessageState.Value(f"MESSAGE_STATE_{state.name}") for state in _GIVEN}
_OUTCOMES = {state: pb.TransactionState.Value(f"TRANSACTION_STATE_{state.name}") for state in TransactionState}


class MessageReader:
    """Turns the entries of one read, in order, into answers of at most `message_bytes_max`.

    With `everything` all messages of the view, else without markers and aborted ones.
    """

    def __init__(
        self,
        view: ConsumerView,
        *,
        everything: bool,
        message_bytes_max: int,
        unpacking: Unpacking,
        holder: str | None = None,
        account: Account | None = None,
    ) -> None:
        """`holder` is the identity of the read, for the shares of memory, `account` that of its namespace."""
        self._account = account
        self._unpacking = unpacking
        self._holder = holder
        self._waiting_bytes = 0
        self._view = view
        self._everything = everything
        self._bytes_max = min(message_bytes_max, CLIENT_BYTES_MAX) - FRAMING_BYTES
        self._content_bytes_max = min(CONTENT_BYTES_MAX, self._bytes_max - FIELDS_BYTES)
        self._joiner = Joiner(self._content_bytes_max)

    async def answers(self, batch: Entries, tier: Tier) -> AsyncGenerator[pb.ReadMessagesResponse, None]:
        """Yield the messages that a batch completes; large entries are unpacked in a thread, once there is room.

        What was sent before is paid for first, so that no read waits for the rate of its namespace while it holds
        memory that others need. Raises Throttled without room for chunks that wait.
        """
        await self._paid()
        small: list[tuple[Position, bytes]] = []
        for entry_id, payload in enumerate(batch.payloads, batch.first_entry_id):
            entry = Position(batch.ledger_id, entry_id), payload
            size_bytes = unpacked_bytes(payload, content_bytes_max=self._content_bytes_max)
            if size_bytes < THREAD_BYTES:
                small.append(entry)
                continue
            for answer in self._packed(self._joiner.take(self._messages(small)), tier):
                yield answer
            small.clear()
            await self._paid()
            async with self._unpacking.room(size_bytes, self._holder, self._account):
                found = await asyncio.to_thread(self._decoded, *entry)
                whole = await asyncio.to_thread(list, self._joiner.take(found if self._wanted(found) else ()))
                del found
                for answer in self._packed(whole, tier):
                    yield answer
                del whole
            self._count_waiting()
        for answer in self._packed(self._joiner.take(self._messages(small)), tier):
            yield answer
        self._count_waiting()

    async def _paid(self) -> None:
        if self._account is not None:
            await self._account.may_read()

    def close(self) -> None:
        """Release the memory of waiting chunks."""
        self._unpacking.wait(self._waiting_bytes, 0, self._holder, self._account)
        self._waiting_bytes = 0

    def _count_waiting(self) -> None:
        held_bytes = self._joiner.held_bytes
        self._unpacking.wait(self._waiting_bytes, held_bytes, self._holder, self._account)
        self._waiting_bytes = held_bytes

    def rest(self, tier: Tier) -> Iterator[pb.ReadMessagesResponse]:
        """Yield the chunks whose messages end behind the range, and where an open transaction stops consumers."""
        yield from self._packed(self._joiner.rest(), tier)
        if (held := self._view.held) is not None:
            transaction = _to_transaction(held.transaction, TransactionState.OPEN)
            held_back = pb.HeldBack(position=to_position(held.position), transaction=transaction)
            yield pb.ReadMessagesResponse(held_back=held_back)

    def _messages(self, entries: Iterable[tuple[Position, bytes]]) -> Iterator[Message]:
        for position, payload in entries:
            messages = self._decoded(position, payload)
            if self._wanted(messages):
                yield from messages

    def _decoded(self, position: Position, payload: bytes) -> list[Message]:
        return decode_entry(position, payload, content_bytes_max=self._content_bytes_max)

    def _wanted(self, messages: list[Message]) -> bool:
        return self._everything or self._is_given(messages[0])

    def _is_given(self, first: Message) -> bool:
        """Whether consumers get an entry, by its first message; it is before all open transactions."""
        if first.state is MessageState.MARKER:
            return False
        known = first.transaction
        return known is None or self._view.state(first.position, known) is not TransactionState.ABORTED

    def _packed(self, messages: Iterable[Message], tier: Tier) -> Iterator[pb.ReadMessagesResponse]:
        """Collect messages until an answer is large enough."""
        answer, size = pb.ReadMessagesResponse(), 0
        for message in messages:
            made = self._to_message(message, tier)
            length = made.ByteSize()
            if length > self._bytes_max:
                made = self._without_bytes(made, length)
            if answer.messages and size + length > min(self._bytes_max, ANSWER_BYTES):
                yield answer
                answer, size = pb.ReadMessagesResponse(), 0
            answer.messages.append(made)
            size += length + FRAMING_BYTES
        if answer.messages:
            yield answer

    def _without_bytes(self, message: pb.Message, length: int) -> pb.Message:
        """Return a message that no answer can hold, without its bytes."""
        reason = f"{length} bytes are more than the {self._bytes_max} of an answer (grpc.message_bytes_max)"
        return pb.Message(
            position=message.position,
            batch_index=message.batch_index,
            state=pb.MESSAGE_STATE_RAW,
            tier=message.tier,
            transaction=message.transaction if message.HasField("transaction") else None,
            reason=f"left out: {reason}",
        )

    def _to_message(self, value: Message, tier: Tier) -> pb.Message:
        known = value.transaction
        return pb.Message(
            position=to_position(value.position),
            batch_index=value.batch_index,
            state=_STATES[value.state],
            data=value.data,
            key=value.key,
            ordering_key=value.ordering_key,
            properties=[pb.Property(key=name, value=text) for name, text in value.properties],
            producer=value.producer,
            sequence_id=value.sequence_id,
            publish_ms=value.publish_ms,
            event_ms=value.event_ms,
            broker_ms=value.broker_ms,
            index=value.index,
            tombstone=value.tombstone,
            reason=value.reason,
            tier=TIERS[tier],
            transaction=_to_transaction(known, self._view.state(value.position, known)) if known is not None else None,
        )


def _to_transaction(transaction: TransactionId, state: TransactionState) -> pb.Transaction:
    return pb.Transaction(most_bits=transaction.most_bits, least_bits=transaction.least_bits, state=_OUTCOMES[state])
