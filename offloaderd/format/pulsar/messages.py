"""The messages in an entry, as consumers receive them. Pure.

| size | field |
|---|---|
| 2, 4, n | optional: `0E 02`, n, broker entry metadata (PIP-70) |
| 2, 4 | optional: `0E 01`, CRC-32C of all that follows |
| 4, n | n, MessageMetadata |
| rest | the content: a message or a batch, then compressed, then encrypted as a whole |

A batch has for each message the length of its SingleMessageMetadata, the SingleMessageMetadata, and the message. An
entry that cannot be decoded is no error, as producers may store any bytes: it is returned as one message with the
entry's bytes and the reason. `Joiner` joins the chunks of a message, in the order of the topic.
"""

import base64
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain

import google_crc32c
from google.protobuf.message import DecodeError

from offloaderd.core import native
from offloaderd.core.errors import CorruptData
from offloaderd.core.model import Position
from offloaderd.format.parsing import parse_message
from offloaderd.format.pb.pulsar import messages_pb2 as pb
from offloaderd.format.pulsar import broker_entry
from offloaderd.format.pulsar.compression import Compression, Undecodable, decompress
from offloaderd.format.pulsar.transactions import TransactionId, mention_in

CHECKSUM = b"\x0e\x01"
_CHECKSUM_BYTES = 6
CONTENT_BYTES_MAX = 128 * 1024 * 1024
"""Content with a larger stated size is left compressed: brokers accept 5 MiB by default."""

MESSAGE_BYTES = 256
"""Approximate memory of a message of a batch besides its data."""


class MessageState(StrEnum):
    """The meaning of a message's `data`."""

    PLAIN = "plain"
    ENCRYPTED = "encrypted"  # the content of the whole entry, as it was sent
    CHUNK = "chunk"  # a part of a message whose other parts are missing
    INCOMPLETE = "incomplete"  # the last part of one that cannot be joined, where the others were searched for
    MARKER = "marker"  # a broker's internal message; consumers never receive it
    COMPACTED = "compacted"  # a message of a batch that compaction has removed
    RAW = "raw"  # the whole entry, as it could not be decoded


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Part `index` of `count` of a message in chunks; the message was compressed before it was cut."""

    message: str
    index: int
    count: int
    compression: Compression
    content_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message. `batch_index` is -1 outside of batches; times are milliseconds, None if absent.

    `key` is bytes, since keys may be binary. `schema_version` is the version that the producer's broker gave the data's
    schema. `index` is None if unknown. `reason` says why `data` is not a message's.
    """

    position: Position
    batch_index: int = -1
    state: MessageState = MessageState.PLAIN
    data: bytes = b""
    key: bytes | None = None
    ordering_key: bytes = b""
    properties: tuple[tuple[str, str], ...] = ()
    producer: str = ""
    sequence_id: int = 0
    publish_ms: int | None = None
    event_ms: int | None = None
    broker_ms: int | None = None
    index: int | None = None
    schema_version: bytes = b""
    tombstone: bool = False
    chunk: Chunk | None = None
    transaction: TransactionId | None = None
    reason: str = ""


@dataclass(slots=True)
class PlainBatch:
    """A plain batch by columns with one value per message (None: tombstone); `whole` has the common fields."""

    whole: Message
    values: list[bytes | None]
    keys: list[bytes | None]
    properties: list[tuple[tuple[str, str], ...]]
    sequence_ids: list[int]
    event_ms: list[int | None]
    indexes: list[int | None]


def decode_entry(position: Position, payload: bytes, *, content_bytes_max: int = CONTENT_BYTES_MAX) -> list[Message]:
    """Return the messages of an entry in order, or one message with the reason why it cannot be decoded."""
    found = decode_columns(position, payload, content_bytes_max=content_bytes_max, batch_max=0)
    assert not isinstance(found, PlainBatch)  # noqa: S101 - `batch_max` is 0
    return found


def decode_columns(
    position: Position, payload: bytes, *, content_bytes_max: int = CONTENT_BYTES_MAX, batch_max: int
) -> list[Message] | PlainBatch:
    """Return the messages of an entry as `decode_entry` does, or by columns.

    Only plain batches (no transaction) of at most `batch_max` messages are returned by columns.
    """
    whole = Message(position=position, state=MessageState.RAW, data=payload)
    if (head := broker_entry.read_head(payload)) is not None:
        whole = replace(whole, broker_ms=head.broker_timestamp, index=head.index)
    try:
        metadata, content = _client_part(broker_entry.without_head(payload))
        if (mention := mention_in(metadata)) is not None:
            whole = replace(whole, transaction=mention.transaction)
        if 0 < metadata.num_messages_in_batch <= batch_max and mention is None:
            batch = _plain_batch(whole, metadata, content, content_bytes_max)
            if batch is not None:
                return batch
        return _messages(whole, metadata, content, content_bytes_max)
    except (CorruptData, Undecodable) as error:
        return [replace(whole, reason=str(error))]


def unpacked_bytes(payload: bytes, *, content_bytes_max: int = CONTENT_BYTES_MAX) -> int:
    """Return the memory of an entry's messages besides the entry's own bytes, as stated in the producer's metadata.

    The last chunk of a message counts the whole message; 0 if nothing is unpacked.
    """
    try:
        metadata, _ = _client_part(broker_entry.without_head(payload))
    except (CorruptData, Undecodable):
        return 0
    size = metadata.uncompressed_size if metadata.compression else 0
    waits = metadata.chunk_id < metadata.num_chunks_from_msg - 1
    if metadata.encryption_keys or waits or size > content_bytes_max:
        return 0
    batch = metadata.num_messages_in_batch if metadata.HasField("num_messages_in_batch") else 0
    return size + MESSAGE_BYTES * max(0, min(batch, content_bytes_max // MESSAGE_BYTES))


def message_count(payload: bytes) -> int:
    """Return the number of messages of an entry, as its producer's metadata state it; nothing is unpacked.

    A message in chunks counts with its last one, a broker's marker not at all, and any other bytes are one message.
    """
    try:
        metadata, _ = _client_part(broker_entry.without_head(payload))
    except (CorruptData, Undecodable):
        return 1
    if metadata.HasField("marker_type") or metadata.chunk_id < metadata.num_chunks_from_msg - 1:
        return 0
    return max(1, metadata.num_messages_in_batch)


def _client_part(payload: bytes) -> tuple[pb.MessageMetadata, bytes]:
    """Return the producer's metadata and content. Raises Undecodable, CorruptData."""
    if payload.startswith(CHECKSUM):
        stored = int.from_bytes(payload[2:_CHECKSUM_BYTES], "big")
        payload = payload[_CHECKSUM_BYTES:]
        if google_crc32c.value(payload) != stored:
            raise Undecodable("the producer's checksum does not fit its bytes")
    metadata, at = _sized(payload, 0)
    return parse_message(pb.MessageMetadata, metadata, key="entry", at=0), payload[at:]


def _messages(whole: Message, metadata: pb.MessageMetadata, content: bytes, content_bytes_max: int) -> list[Message]:
    """Return the messages of an entry's content. Raises Undecodable, CorruptData."""
    one = replace(
        whole,
        state=MessageState.PLAIN,
        data=content,
        key=_key(metadata),
        ordering_key=metadata.ordering_key,
        properties=tuple((pair.key, pair.value) for pair in metadata.properties),
        producer=metadata.producer_name,
        sequence_id=metadata.sequence_id,
        publish_ms=metadata.publish_time,
        event_ms=metadata.event_time or None,
        schema_version=metadata.schema_version,
        tombstone=metadata.null_value,
    )
    if metadata.HasField("marker_type"):
        return [replace(one, state=MessageState.MARKER, reason=f"a broker's marker of type {metadata.marker_type}")]
    if metadata.num_chunks_from_msg > 1:
        chunk = Chunk(
            message=metadata.uuid,
            index=metadata.chunk_id,
            count=metadata.num_chunks_from_msg,
            compression=_compression(metadata),
            content_bytes=metadata.uncompressed_size,
        )
        one = replace(one, chunk=chunk)
    if metadata.encryption_keys:
        names = ", ".join(sorted(key.key for key in metadata.encryption_keys))
        return [replace(one, state=MessageState.ENCRYPTED, reason=f"encrypted for {names}")]
    if one.chunk is not None:
        return [replace(one, state=MessageState.CHUNK, reason=f"chunk {one.chunk.index + 1} of {one.chunk.count}")]
    count = metadata.num_messages_in_batch if metadata.HasField("num_messages_in_batch") else 0
    if count * MESSAGE_BYTES > content_bytes_max:
        raise Undecodable(f"a batch of {count} messages is more than {content_bytes_max // MESSAGE_BYTES}")
    content = _inflated(_compression(metadata), content, metadata.uncompressed_size, content_bytes_max)
    if not metadata.HasField("num_messages_in_batch"):
        return [replace(one, data=content)]
    return list(_unpacked(one, metadata.num_messages_in_batch, content))


def _unpacked(one: Message, count: int, content: bytes) -> Iterator[Message]:
    """Yield the messages of a batch; `one` has their common fields."""
    if not 0 < count <= len(content) // 4:
        raise Undecodable(f"a batch of {count} messages cannot be in {len(content)} bytes")
    at = 0
    for number in range(count):
        head, at = _sized(content, at)
        single = parse_message(pb.SingleMessageMetadata, head, key="batch", at=at)
        end = at + single.payload_size
        if not at <= end <= len(content):
            raise Undecodable(f"message {number} of a batch claims {single.payload_size} bytes of {len(content) - at}")
        # The first message has the sequence id of the batch.
        yield replace(
            one,
            batch_index=number,
            state=MessageState.COMPACTED if single.compacted_out else MessageState.PLAIN,
            data=content[at:end],
            key=_key(single),
            ordering_key=single.ordering_key,
            properties=tuple((pair.key, pair.value) for pair in single.properties),
            sequence_id=single.sequence_id if single.HasField("sequence_id") else one.sequence_id + number,
            event_ms=single.event_time or None,
            index=_index(one, count, number),
            tombstone=single.null_value,
            reason="removed by compaction" if single.compacted_out else "",
        )
        at = end
    if at != len(content):
        raise Undecodable(f"{len(content) - at} bytes are left behind a batch of {count} messages")


def _plain_batch(
    whole: Message, metadata: pb.MessageMetadata, content: bytes, content_bytes_max: int
) -> PlainBatch | None:
    """Return a batch by columns; None for an entry that `_messages` has to decode, or to report as damaged."""
    if not metadata.HasField("num_messages_in_batch") or metadata.HasField("marker_type") or metadata.encryption_keys:
        return None
    count = metadata.num_messages_in_batch
    if metadata.num_chunks_from_msg > 1 or count * MESSAGE_BYTES > content_bytes_max:
        return None
    try:
        content = _inflated(_compression(metadata), content, metadata.uncompressed_size, content_bytes_max)
    except Undecodable:
        return None
    columns = native.batch_columns(content, count, metadata.sequence_id)
    if columns is None and (columns := _batch_columns(content, count, metadata.sequence_id)) is None:
        return None
    whole = replace(
        whole,
        state=MessageState.PLAIN,
        producer=metadata.producer_name,
        publish_ms=metadata.publish_time,
        schema_version=metadata.schema_version,
    )
    last = whole.index
    indexes = [None if last is None or last < before else last - before for before in range(count - 1, -1, -1)]
    return PlainBatch(whole, *columns, indexes)


def _batch_columns(content: bytes, count: int, sequence_id: int) -> native.BatchColumns | None:
    """Return the columns of a batch's messages; None for content that is not that of a plain batch."""
    at, size = 0, len(content)
    columns: native.BatchColumns = ([], [], [], [], [])
    values, keys, properties, sequence_ids, event_ms = columns
    parse = pb.SingleMessageMetadata.FromString
    try:
        for number in range(count):
            begin = at + 4
            head_end = begin + int.from_bytes(content[at:begin], "big", signed=True)
            if not begin <= head_end <= size:
                return None
            single = parse(content[begin:head_end])
            at = head_end + single.payload_size
            if not head_end <= at <= size or single.compacted_out or not single.IsInitialized():
                return None
            pairs = [(one.key, one.value) for one in single.properties]
            texts = (single.partition_key, *chain.from_iterable(pairs)) if pairs else (single.partition_key,)
            if not all(isinstance(text, str) for text in texts):
                return None
            values.append(None if single.null_value else content[head_end:at])
            keys.append(_key(single))
            properties.append(tuple(dict(pairs).items()))
            sequence_ids.append(single.sequence_id if single.HasField("sequence_id") else sequence_id + number)
            event_ms.append(single.event_time or None)
    except (DecodeError, Undecodable):
        return None
    return columns if at == size else None


def _index(one: Message, count: int, number: int) -> int | None:
    """Return the broker's index of a message in a batch, None if it has none.

    The entry's index is that of its last message: the broker adds the batch's count to the index before. For an entry
    of its transaction buffer it adds 1 whatever the count (TopicTransactionBuffer passes none), so the messages of such
    a batch have no indexes of their own.
    """
    if one.index is None or (one.transaction is not None and count > 1):
        return None
    index = one.index - (count - 1 - number)
    return index if index >= 0 else None


def _compression(metadata: pb.MessageMetadata) -> Compression:
    try:
        return Compression(metadata.compression)
    except ValueError:
        raise Undecodable(f"compression {metadata.compression} is none of Pulsar's") from None


def _inflated(method: Compression, content: bytes, size: int, content_bytes_max: int) -> bytes:
    if method is Compression.NONE:
        return content
    if size > content_bytes_max:
        raise Undecodable(f"{size} bytes of content are more than {content_bytes_max}")
    try:
        return decompress(method, content, size)
    except Undecodable as error:
        raise Undecodable(f"{size} bytes compressed by {method.name}: found {error}") from None


def _key(metadata: pb.MessageMetadata | pb.SingleMessageMetadata) -> bytes | None:
    if metadata.null_partition_key or not metadata.HasField("partition_key"):
        return None
    if not metadata.partition_key_b64_encoded:
        return metadata.partition_key.encode()
    try:
        return base64.b64decode(metadata.partition_key, validate=True)
    except ValueError as error:  # binascii.Error is a ValueError; characters beyond ASCII raise ValueError
        raise Undecodable(f"the key is no base64: {error}") from None


def _sized(data: bytes, at: int) -> tuple[bytes, int]:
    """Return the bytes behind their length, and the offset of their end. Raises Undecodable."""
    begin = at + 4
    size = int.from_bytes(data[at:begin], "big", signed=True)
    if begin > len(data) or not 0 <= size <= len(data) - begin:
        raise Undecodable(f"a length of {size} at byte {at} of {len(data)}")
    return data[begin : begin + size], begin + size


class Joiner:
    """Joins the chunks of messages. Takes the messages of one topic in their order; holds at most `bytes_max`.

    If a chunk is missing or the memory is used up, the chunks are returned as they are. One that came before, as
    producers send it again after a lost connection, is passed over, as consumers do.
    """

    def __init__(self, bytes_max: int = CONTENT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._waiting: OrderedDict[str, list[Message]] = OrderedDict()
        self._held_bytes = 0

    @property
    def held_bytes(self) -> int:
        """Bytes of the chunks that wait for others."""
        return self._held_bytes

    def take(self, messages: Iterable[Message]) -> Iterator[Message]:
        """Yield all messages that are complete; a message in chunks takes the place of its last chunk."""
        for message in messages:
            chunk = message.chunk
            if chunk is None or message.state is not MessageState.CHUNK:
                yield message
                continue
            if chunk.content_bytes > self._bytes_max:
                why = f"the whole of {chunk.content_bytes} bytes is more than the {self._bytes_max} that are joined"
                yield replace(message, reason=f"{message.reason}: {why}")
                continue
            if 0 < chunk.index < len(self._waiting.get(chunk.message, ())):
                yield replace(message, reason=f"{message.reason}: it was sent before")
                continue
            if chunk.index == 0 or chunk.index != len(self._waiting.get(chunk.message, ())):
                yield from self._given_up(chunk.message, "the chunks after it are missing")
            if chunk.index and chunk.message not in self._waiting:
                yield replace(message, reason=f"{message.reason}: those before it are missing")
                continue
            self._waiting.setdefault(chunk.message, []).append(message)
            self._held_bytes += len(message.data)
            while self._held_bytes > self._bytes_max:
                yield from self._given_up(next(iter(self._waiting)), "there is no room to wait for the others")
            if chunk.index == chunk.count - 1 and chunk.message in self._waiting:
                yield self._joined(chunk)

    def rest(self) -> Iterator[Message]:
        """Yield the chunks that still wait for others."""
        for name in list(self._waiting):
            yield from self._given_up(name, "the chunks after it are not in the range")

    def _popped(self, name: str) -> list[Message]:
        chunks = self._waiting.pop(name, [])
        self._held_bytes -= sum(len(one.data) for one in chunks)
        return chunks

    def _given_up(self, name: str, why: str) -> Iterator[Message]:
        for one in self._popped(name):
            yield replace(one, reason=f"{one.reason}: {why}")

    def _joined(self, last: Chunk) -> Message:
        chunks = self._popped(last.message)
        whole = replace(chunks[-1], data=b"".join(one.data for one in chunks), chunk=None)
        try:
            data = _inflated(last.compression, whole.data, last.content_bytes, self._bytes_max)
        except Undecodable as error:
            return replace(whole, state=MessageState.RAW, reason=str(error))
        return replace(whole, state=MessageState.PLAIN, data=data, reason="")
