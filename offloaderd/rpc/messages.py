"""Messages out of batches of entries, for ReadMessages; no I/O.

An answer holds about 1 MiB of messages. What would be larger than an answer may be is not unpacked or joined: it comes
as it is stored, with the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from offloaderd.format.pulsar_message import Joiner, MessageState, decode_entry
from offloaderd.model import Position
from offloaderd.rpc.convert import TIERS, to_position
from offloaderd.rpc.v1 import read_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from offloaderd.format.frames import Entries
    from offloaderd.format.pulsar_message import Message
    from offloaderd.read.plan import Tier

ANSWER_BYTES = 1024 * 1024
CONTENT_BYTES_MAX = 16 * 1024 * 1024
"""Greatest content of an entry or of a message in chunks that is unpacked; clients take answers of 32 MiB."""

_STATES = {state: read_pb2.MessageState.Value(f"MESSAGE_STATE_{state.name}") for state in MessageState}


class MessageReader:
    """Turns the entries of one read, in their order, into answers."""

    def __init__(self) -> None:
        self._joiner = Joiner(CONTENT_BYTES_MAX)

    def answers(self, batch: Entries, tier: Tier) -> Iterator[read_pb2.ReadMessagesResponse]:
        """Yield the messages that a batch completes."""
        yield from _packed(self._joiner.take(_messages(batch)), tier)

    def rest(self, tier: Tier) -> Iterator[read_pb2.ReadMessagesResponse]:
        """Yield the chunks whose messages go on behind the range."""
        yield from _packed(self._joiner.rest(), tier)


def _messages(batch: Entries) -> Iterator[Message]:
    for entry_id, payload in enumerate(batch.payloads, batch.first_entry_id):
        yield from decode_entry(Position(batch.ledger_id, entry_id), payload, content_bytes_max=CONTENT_BYTES_MAX)


def _packed(messages: Iterable[Message], tier: Tier) -> Iterator[read_pb2.ReadMessagesResponse]:
    """Put messages together until an answer is large enough."""
    answer, size = read_pb2.ReadMessagesResponse(), 0
    for message in messages:
        answer.messages.append(_to_message(message, tier))
        size += len(message.data) + len(message.key or b"")
        if size >= ANSWER_BYTES:
            yield answer
            answer, size = read_pb2.ReadMessagesResponse(), 0
    if answer.messages:
        yield answer


def _to_message(value: Message, tier: Tier) -> read_pb2.Message:
    return read_pb2.Message(
        position=to_position(value.position),
        batch_index=value.batch_index,
        state=_STATES[value.state],
        data=value.data,
        key=value.key,
        ordering_key=value.ordering_key,
        properties=[read_pb2.Property(key=name, value=text) for name, text in value.properties],
        producer=value.producer,
        sequence_id=value.sequence_id,
        publish_ms=value.publish_ms,
        event_ms=value.event_ms,
        broker_ms=value.broker_ms,
        index=value.index,
        tombstone=value.tombstone,
        reason=value.reason,
        tier=TIERS[tier],
    )
