"""Entries taken apart into messages: as producers make them, and as nobody should."""

from __future__ import annotations

import base64
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import cramjam
import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.core.model import Position
from offloaderd.format.pb.pulsar import messages_pb2 as pb
from offloaderd.format.pulsar import broker_entry
from offloaderd.format.pulsar.compression import Compression
from offloaderd.format.pulsar.messages import Joiner, Message, MessageState, decode_entry, message_count

if TYPE_CHECKING:
    from collections.abc import Callable

AT = Position(7, 3)
COMPRESSED: dict[Compression, Callable[[bytes], bytes]] = {
    Compression.NONE: lambda data: data,
    Compression.LZ4: lambda data: bytes(cramjam.lz4.compress_block(data, store_size=False)),
    Compression.ZLIB: zlib.compress,
    Compression.ZSTD: lambda data: bytes(cramjam.zstd.compress(data)),
    Compression.SNAPPY: lambda data: bytes(cramjam.snappy.compress_raw(data)),
}


def sized(data: bytes) -> bytes:
    """Return bytes behind their length."""
    return len(data).to_bytes(4, "big", signed=True) + data


def entry(content: bytes, *, checksum: bool = True, head: bytes = b"", **fields: Any) -> bytes:  # noqa: ANN401 - what protobuf takes
    """Return an entry as a producer sends it, with `head` from the broker."""
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=5, publish_time=1000, **fields)
    client = sized(metadata.SerializeToString()) + content
    if checksum:
        client = b"\x0e\x01" + google_crc32c.value(client).to_bytes(4, "big") + client
    return head + client


def batch(*messages: tuple[bytes, dict[str, Any]]) -> bytes:
    """Return the content of a batch."""
    return b"".join(
        sized(pb.SingleMessageMetadata(payload_size=len(data), **fields).SerializeToString()) + data
        for data, fields in messages
    )


def only(payload: bytes) -> Message:
    """Return the one message of an entry."""
    (message,) = decode_entry(AT, payload)
    return message


@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("head", [b"", broker_entry.encode_head(broker_timestamp=99, index=12)])
@pytest.mark.parametrize("method", list(Compression))
def test_a_message_alone(method: Compression, head: bytes, *, checksum: bool) -> None:
    """Every compression, with and without the checksum and the broker's head."""
    data = b"order " * 100
    message = only(
        entry(
            COMPRESSED[method](data),
            checksum=checksum,
            head=head,
            compression=method,
            uncompressed_size=len(data),
            partition_key="k",
            event_time=17,
            properties=[pb.MessageProperty(key="a", value="1")],
        )
    )
    assert message == Message(
        position=AT,
        data=data,
        key=b"k",
        properties=(("a", "1"),),
        producer="p",
        sequence_id=5,
        publish_ms=1000,
        event_ms=17,
        broker_ms=99 if head else None,
        index=12 if head else None,
    )


def test_a_batch_is_unpacked() -> None:
    """Each message has its own key, times and properties; index and sequence are counted through the batch."""
    content = batch(
        (b"one", {"partition_key": base64.b64encode(b"\xff\x00").decode(), "partition_key_b64_encoded": True}),
        (b"", {"null_value": True, "event_time": 3, "sequence_id": 40}),
        (b"gone", {"compacted_out": True}),
    )
    head = broker_entry.encode_head(broker_timestamp=99, index=12)
    found = decode_entry(AT, entry(content, head=head, num_messages_in_batch=3))
    assert [(one.batch_index, one.data, one.key, one.index, one.sequence_id) for one in found] == [
        (0, b"one", b"\xff\x00", 10, 5),
        (1, b"", None, 11, 40),
        (2, b"gone", None, 12, 7),
    ]
    assert [one.state for one in found] == [MessageState.PLAIN, MessageState.PLAIN, MessageState.COMPACTED]
    assert (found[1].tombstone, found[1].event_ms, found[0].event_ms) == (True, 3, None)


def test_a_batch_of_one_has_an_index() -> None:
    """A batch is told by its count being there at all, not by its being more than one."""
    assert only(entry(batch((b"x", {})), num_messages_in_batch=1)).batch_index == 0
    assert only(entry(b"x")).batch_index == -1


def test_encrypted_messages_and_markers_are_left_alone() -> None:
    """Their bytes come as they are, and the message says why."""
    secret = only(entry(b"\x01\x02", encryption_keys=[pb.EncryptionKey(key="mine")], num_messages_in_batch=2))
    assert (secret.state, secret.data, secret.reason) == (MessageState.ENCRYPTED, b"\x01\x02", "encrypted for mine")
    marker = only(entry(b"", marker_type=21))
    assert marker.state is MessageState.MARKER


def broken() -> dict[str, bytes]:
    """Entries that are none, by what is wrong with them."""
    good = entry(b"data")
    return {
        "checksum": good[:-1] + b"!",
        "length": b"\x7f\xff\xff\xff",
        "MessageMetadata": sized(b"\xff\xff") + b"x",
        "required": sized(b"") + b"x",
        "byte 0 of 0": b"",
        "of 2": entry(b"\0\0", num_messages_in_batch=1, checksum=False)[:2],
        "a batch of 9 messages": entry(b"1234", num_messages_in_batch=9),
        "a batch of -1 messages": entry(b"1234", num_messages_in_batch=-1),
        "claims 50 bytes": entry(sized(pb.SingleMessageMetadata(payload_size=50).SerializeToString()) + b"x" * 9,
                                 num_messages_in_batch=1),
        "left behind": entry(batch((b"x", {})) + b"more", num_messages_in_batch=1),
        "compressed by LZ4": entry(b"\xff\xff\xff", compression=1, uncompressed_size=10),
        "compressed by ZLIB": entry(zlib.compress(b"12345"), compression=2, uncompressed_size=4),
        "compression 9": entry(b"x", compression=9),
        "are more than": entry(b"x", compression=3, uncompressed_size=2**31),
        "no base64": entry(b"x", partition_key="*", partition_key_b64_encoded=True),
        "no base64: string": entry(b"x", partition_key="schlüssel", partition_key_b64_encoded=True),
    }  # fmt: skip


@pytest.mark.parametrize("reason", broken())
def test_what_cannot_be_taken_apart_comes_as_it_is(reason: str) -> None:
    """The entry's bytes and a reason; never an error, never half of a batch."""
    message = only(broken()[reason])
    assert (message.state, message.data) == (MessageState.RAW, broken()[reason])
    assert reason in message.reason


@given(payload=st.binary(max_size=300), cut=st.integers(0, 400))
def test_any_bytes_give_messages_or_a_reason(payload: bytes, cut: int) -> None:
    """Nothing that a producer stores makes decoding fail."""
    for data in (payload, entry(payload, num_messages_in_batch=2)[:cut], entry(payload, compression=4)[:cut]):
        for message in decode_entry(AT, data):
            assert message.state is not MessageState.RAW or message.reason


def chunks_of(
    data: bytes,
    count: int,
    *,
    name: str = "one",
    method: Compression = Compression.NONE,
    **fields: Any,  # noqa: ANN401
) -> list[bytes]:
    """Return the entries of a message that was compressed and then cut."""
    content = COMPRESSED[method](data)
    size = -(-len(content) // count)
    return [
        entry(
            content[number * size : (number + 1) * size],
            uuid=name, chunk_id=number, num_chunks_from_msg=count, total_chunk_msg_size=len(content),
            compression=method, uncompressed_size=len(data), **fields,
        )
        for number in range(count)
    ]  # fmt: skip


def chunks(name: str, data: bytes, count: int, method: Compression = Compression.NONE) -> list[Message]:
    """Return the same as messages."""
    entries = chunks_of(data, count, name=name, method=method)
    return [one for number, payload in enumerate(entries) for one in decode_entry(Position(7, number), payload)]


@pytest.mark.parametrize("method", [Compression.NONE, Compression.ZSTD])
def test_chunks_are_joined_at_the_last(method: Compression) -> None:
    """Chunks of two messages that come mixed give two messages, each where its last chunk is."""
    one, two = chunks("one", b"abc" * 50, 3, method), chunks("two", b"xyz" * 70, 2, method)
    joiner = Joiner()
    found = list(joiner.take([one[0], two[0], one[1], two[1], one[2]]))
    assert [(message.data, message.position.entry_id) for message in found] == [(b"xyz" * 70, 1), (b"abc" * 50, 2)]
    assert all(message.state is MessageState.PLAIN and message.chunk is None for message in found)
    assert list(joiner.rest()) == []


def test_chunks_without_their_message_say_what_is_missing() -> None:
    """A read that begins or ends inside of a message, and a producer that began again, give the chunks as they are."""
    parts = chunks("one", b"0123456789", 3)
    joiner = Joiner()
    assert [message.reason for message in joiner.take(parts[1:2])] == ["chunk 2 of 3: those before it are missing"]
    found = list(joiner.take([parts[0], parts[0], parts[1], parts[2]]))
    assert [(message.state, message.data) for message in found] == [
        (MessageState.CHUNK, b"0123"),
        (MessageState.PLAIN, b"0123456789"),
    ]
    assert list(joiner.take(parts[:2])) == []
    assert [message.data for message in joiner.rest()] == [b"0123", b"4567"]
    assert list(joiner.rest()) == []


def test_a_chunk_that_was_sent_again_is_passed_over() -> None:
    """A producer sends what was not confirmed once more, from any chunk on; consumers get the message."""
    parts = chunks("one", b"0123456789", 3)
    joiner = Joiner()
    again, whole, *late = joiner.take([parts[0], parts[1], parts[1], parts[2], parts[1], parts[2]])
    assert again.reason == "chunk 2 of 3: it was sent before"
    assert (whole.state, whole.data) == (MessageState.PLAIN, b"0123456789")
    assert [one.state for one in late] == [MessageState.CHUNK] * 2
    assert (joiner.held_bytes, list(joiner.rest())) == (0, [])


def test_waiting_chunks_are_bounded() -> None:
    """The oldest message that is not whole gives way; what is given out again is what came in."""
    joiner = Joiner(bytes_max=12)
    first, second = chunks("one", b"0123456789ab", 3), chunks("two", b"abcdefghij", 2)
    found = list(joiner.take([first[0], first[1], second[0]]))
    assert [message.data for message in found] == [b"0123", b"4567"]
    assert "no room" in found[0].reason
    assert [message.data for message in joiner.take([second[1]])] == [b"abcdefghij"]


def test_a_message_in_chunks_that_is_too_large_is_not_joined() -> None:
    """Neither one that says so nor one that does not: its chunks come as they are, and what follows is joined."""
    joiner = Joiner(bytes_max=12)
    large, silent, small = chunks("one", bytes(13), 2), chunks("two", bytes(14), 2), chunks("three", b"abcdef", 2)
    silent = [replace(one, chunk=replace(one.chunk, content_bytes=0)) for one in silent if one.chunk is not None]
    found = list(joiner.take([*large, *silent, *small]))
    assert [(one.state, len(one.data)) for one in found] == [
        *[(MessageState.CHUNK, size) for size in (7, 6, 7, 7)],
        (MessageState.PLAIN, 6),
    ]
    assert "the whole of 13 bytes is more than the 12 that are joined" in found[1].reason
    assert list(joiner.rest()) == []


def test_messages_of_a_transactional_batch_have_no_index() -> None:
    """A broker counts an entry that its transaction buffer appends as one: several messages have no numbers then."""
    head = broker_entry.encode_head(broker_timestamp=99, index=0)
    ids: dict[str, Any] = {"txnid_most_bits": 1, "txnid_least_bits": 7}
    content = batch((b"one", {}), (b"two", {}))
    found = decode_entry(AT, entry(content, head=head, num_messages_in_batch=2, **ids))
    assert [(one.index, one.transaction) for one in found] == [(None, (1, 7)), (None, (1, 7))]
    assert only(entry(batch((b"x", {})), head=head, num_messages_in_batch=1, **ids)).index == 0
    assert [one.index for one in decode_entry(AT, entry(content, head=head, num_messages_in_batch=2))] == [None, 0]


def test_an_entry_that_cannot_be_unpacked_keeps_its_transaction() -> None:
    """So that what was aborted is not given out as raw bytes."""
    bad = only(entry(b"x", compression=9, txnid_most_bits=1, txnid_least_bits=7))
    assert (bad.state, bad.transaction) == (MessageState.RAW, (1, 7))


def test_a_joined_message_that_does_not_decompress_is_raw() -> None:
    """The bytes of all chunks, and the reason."""
    parts = chunks("one", b"abc" * 50, 2, Compression.ZSTD)
    bad = [parts[0], Message(**{name: getattr(parts[1], name) for name in Message.__slots__} | {"data": b"???"})]
    (message,) = Joiner().take(bad)
    assert message.state is MessageState.RAW
    assert "ZSTD" in message.reason


def test_messages_are_counted_as_their_producers_state() -> None:
    """A batch has many, a message in chunks is one with its last chunk, a marker is none, other bytes are one."""
    two = entry(batch((b"a", {}), (b"b", {})), num_messages_in_batch=2)
    chunks = [entry(b"c", num_chunks_from_msg=3, chunk_id=number) for number in range(3)]
    others = [entry(b"d"), entry(b"", marker_type=10), b"anything", entry(b"e", num_messages_in_batch=-1)]
    assert list(map(message_count, [two, *chunks, *others])) == [2, 0, 0, 1, 1, 0, 1, 1]
