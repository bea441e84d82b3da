"""Every decoder that reads bytes of somebody else: bookies, ZooKeeper, the bucket, brokers' nodes, callers.

A target takes any bytes and may end in one of our own errors only. Its seeds are valid input, from the golden files or
built from the messages themselves, so that the search begins behind the first checks.
"""

from __future__ import annotations

import base64
import importlib
import pkgutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import google_crc32c
from google.protobuf.descriptor import FieldDescriptor

import offloaderd.metadata.records
from offloaderd.access.roles import Grant
from offloaderd.access.tokens import TokenKey, TokenRules, bearer, public_key
from offloaderd.bookkeeper.connections import handshake
from offloaderd.bookkeeper.metadata import decode_ledger, resolve_address
from offloaderd.bookkeeper.wire import v2 as wire_v2
from offloaderd.bookkeeper.wire import v3 as wire_v3
from offloaderd.bookkeeper.wire.entry import DigestType, EntryChecker
from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import OffloaderError
from offloaderd.core.model import Position, TopicName
from offloaderd.core.names import managed_ledgers as pulsar_names
from offloaderd.core.names.patterns import TopicPattern
from offloaderd.format import chunks, manifest_bytes, v1, v2
from offloaderd.format.manifest import SegmentManifest
from offloaderd.format.pb.bookkeeper import data_formats_pb2, protocol_pb2, registration_pb2
from offloaderd.format.pb.pulsar import messages_pb2, ml_data_formats_pb2
from offloaderd.format.pb.storage import (
    asked_pb2,
    history_pb2,
    manifest_pb2,
    records_pb2,
    rollback_pb2,
    verified_pb2,
)
from offloaderd.format.pulsar import broker_entry, transactions
from offloaderd.format.pulsar import messages as pulsar_message
from offloaderd.ledgers.pulsar import managed_ledger as pulsar
from tests.authority import token
from tests.golden import bookkeeper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
SECRET = bytes(range(1, 33))
KEY = base64.b64decode((GOLDEN / "token-public.txt").read_text())
POSITION = Position(1, 2)
DEPTH_MAX = 3
CHUNKED_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Target:
    """What is fed, and with what it begins."""

    decode: Callable[[bytes], object]
    seeds: tuple[bytes, ...] = ()

    def feed(self, data: bytes) -> None:
        """Decode; our own errors are answers, everything else is a finding."""
        try:
            self.decode(data)
        except OffloaderError:
            return


def golden(name: str) -> bytes:
    """Return the bytes of a golden file."""
    return bytes.fromhex((GOLDEN / name).read_text())


def filled(kind: Any, depth: int = 0) -> Any:  # noqa: ANN401 - a message of any kind
    """Return a message with something in every field, so that mutations have all of them to work on."""
    message = kind()
    for field in kind.DESCRIPTOR.fields:
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            if depth < DEPTH_MAX and not field.message_type.GetOptions().map_entry:
                inner = getattr(message, field.name)
                (inner.add() if field.is_repeated else inner).MergeFrom(
                    filled(type(inner.add() if field.is_repeated else inner), depth + 1)
                )
            continue
        value = _sample(field)
        if field.is_repeated:
            getattr(message, field.name).append(value)
        else:
            setattr(message, field.name, value)
    return message


def _sample(field: FieldDescriptor) -> object:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING:
            text = "11223344-5566-7788-99aa-bbccddeeff00"
            return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text
        case FieldDescriptor.CPPTYPE_BOOL:
            return True
        case FieldDescriptor.CPPTYPE_ENUM if field.enum_type is not None:
            return field.enum_type.values[-1].number
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return 1.5
    return 3


def seed(*kinds: Any) -> tuple[bytes, ...]:  # noqa: ANN401
    """Return filled messages as bytes; empty ones too."""
    return (*(filled(kind).SerializePartialToString() for kind in kinds), b"")


def frames(decoder: Callable[[], Any]) -> Callable[[bytes], object]:
    """Feed a stream in two pieces and take every answer."""

    def decode(data: bytes) -> object:
        made, half = decoder(), len(data) // 2
        return [*made.feed(data[:half]), *made.feed(data[half:])]

    return decode


def checked_manifest(body: bytes) -> object:
    """Decode a body behind a header that is right: a checksum would stop every mutation."""
    head = manifest_bytes.HEADER.pack(manifest_bytes.MAGIC, manifest_bytes.VERSION, len(body), bytes(4), 0)[:20]
    checksum = google_crc32c.extend(google_crc32c.value(head), body)
    return manifest_bytes.decode(head + checksum.to_bytes(4, "big") + body, key="k")


def chunked_entries(body: bytes) -> object:
    """Read entries through the chunks of whatever block a manifest's body describes, out of as much of an object."""
    found: list[object] = []
    described = checked_manifest(body)
    assert isinstance(described, SegmentManifest)
    size = described.chunk_bytes
    for block in described.blocks[:8]:
        if not block.chunks or block.length > CHUNKED_BYTES_MAX:
            continue
        for last in {block.first_entry_id, block.last_entry_id}:
            piece = chunks.piece_of(block, size, last, last)
            _, length = chunks.extent(block, size, piece.first_chunk, piece.last_chunk)
            data = (body * (length // len(body) + 1))[:length]
            for decode in (
                partial(chunks.checked_chunk, number=piece.first_chunk),
                partial(chunks.decode_piece, piece=piece),
            ):
                try:
                    found.append(decode(data, block, size, key="k"))
                except OffloaderError as error:
                    found.append(error)
    return found


def checked_entries(data: bytes) -> object:
    """Check stored entries of every kind of digest, one by one and as a run."""
    found: list[object] = []
    for kind in DigestType:
        checker = EntryChecker(1, kind, b"pw")
        found.append(checker.check_run(2, [data[:40], data]))
        for wanted in (None, 2):
            try:
                found.append(checker.check(data, wanted))
            except OffloaderError as error:
                found.append(error)
    return found


def plain_batch(content: bytes) -> object:
    """Take a batch apart by columns, and message by message: both have the same values."""
    metadata = messages_pb2.MessageMetadata(
        producer_name="p", sequence_id=1, publish_time=1, num_messages_in_batch=2
    ).SerializeToString()
    payload = len(metadata).to_bytes(4, "big") + metadata + content
    found = pulsar_message.decode_columns(POSITION, payload, batch_max=2)
    if isinstance(found, pulsar_message.PlainBatch):
        messages = pulsar_message.decode_entry(POSITION, payload)
        columns = (found.values, found.keys, found.sequence_ids, found.event_ms)
        for one, *row in zip(messages, *columns, strict=True):
            assert row == [None if one.tombstone else one.data, one.key, one.sequence_id, one.event_ms]
        assert found.properties == [tuple(dict(one.properties).items()) for one in messages]
    return found


def text_of(decode: Callable[[str], object]) -> Callable[[bytes], object]:
    """Feed text; what is no UTF-8 comes as other characters."""
    return lambda data: decode(data.decode("utf-8", "surrogateescape"))


def key_text(data: bytes) -> object:
    """Read a public key, DER or PEM."""
    return public_key(base64.b64encode(data).decode() or "data:,", "RS256", "s")


def records() -> Iterable[tuple[str, Target]]:
    """Yield a target for each record of ours in ZooKeeper."""
    files = (records_pb2, asked_pb2, history_pb2, rollback_pb2, verified_pb2)
    kinds = [
        getattr(file, name)
        for file in files
        for name in file.DESCRIPTOR.message_types_by_name
        if name.endswith("Record")
    ]
    seeds = (*seed(*kinds), *seed(ml_data_formats_pb2.OffloadContext))
    for found in pkgutil.iter_modules(offloaderd.metadata.records.__path__):
        module = importlib.import_module(f"offloaderd.metadata.records.{found.name}")
        for name in ("decode", "decode_ranges"):
            if (decode := getattr(module, name, None)) is not None:
                yield f"record-{found.name}{name.removeprefix('decode').replace('_', '-')}", Target(_at(decode), seeds)


def _at(decode: Any) -> Callable[[bytes], object]:  # noqa: ANN401
    return lambda data: decode(data, path="/p")


def targets() -> dict[str, Target]:
    """All targets by name."""
    metadata = filled(data_formats_pb2.LedgerMetadataFormat)
    answers = (protocol_pb2.Response,)
    key = TokenKey(SECRET, ("HS256",))
    rules, clock = TokenRules(), SystemClock()
    return {
        "wire-v2": Target(wire_v2.decode, (bytes(40), b"\x02\x02\x00\x00" + bytes(60))),
        "wire-v3": Target(wire_v3.decode, seed(*answers)),
        "frames-v2": Target(frames(wire_v2.Decoder), (b"\x00\x00\x00\x28" + bytes(40),)),
        "frames-v3": Target(frames(wire_v3.Decoder), (b"\x00\x00\x00\x04abcd",)),
        "sasl": Target(
            handshake.parse_challenge, (b'realm="default",nonce="x",qop="auth",charset=utf-8,algorithm=md5-sess',)
        ),
        "entries": Target(checked_entries, (bookkeeper.ENTRY_HMAC,)),
        "ledger-metadata": Target(
            lambda data: decode_ledger(data, path="/p"),
            (
                b"BookieMetadataFormatVersion\t2\n" + str(metadata).encode(),
                b"BookieMetadataFormatVersion\t1\n3\n2\n9\n0\thost:3181\thost:3182\nCLOSED",
                b"BookieMetadataFormatVersion\t3\n" + _delimited(metadata.SerializePartialToString()),
            ),
        ),
        "registration": Target(
            lambda data: resolve_address("x", data, path="/p"),
            (bookkeeper.BOOKIE, *seed(registration_pb2.BookieServiceInfo)),
        ),
        "managed-ledger": Target(
            lambda data: pulsar.decode(data, key="/p", content_bytes_max=1 << 20),
            (*seed(ml_data_formats_pb2.ManagedLedgerInfo), b"\x47\x78\x00\x00\x00\x04\x08\x01\x10\x05abcde"),
        ),
        "topic-path": Target(text_of(pulsar_names.parse_topic_path), (b"/managed-ledgers/a/b/persistent/c%2F..",)),
        "v1-block": Target(lambda data: v1.decode_header(data, key="k", at=0), (golden("v1-data.hex"),)),
        "v1-index": Target(lambda data: v1.decode_index(data, key="k"), (golden("v1-index.hex"),)),
        "v2-block": Target(lambda data: v2.decode_block(data, key="k", at=0), (golden("v2-data.hex"),)),
        "v2-index": Target(lambda data: v2.decode_index(data, key="k"), (golden("v2-index.hex"),)),
        "manifest": Target(
            lambda data: manifest_bytes.decode(data, key="k"), (golden("manifest-1.hex"), golden("manifest-chunks.hex"))
        ),
        "manifest-body": Target(
            checked_manifest,
            (
                golden("manifest-1.hex")[manifest_bytes.HEADER.size :],
                golden("manifest-chunks.hex")[manifest_bytes.HEADER.size :],
                *seed(manifest_pb2.SegmentManifest),
            ),
        ),
        "chunks": Target(chunked_entries, (golden("manifest-chunks.hex")[manifest_bytes.HEADER.size :],)),
        "broker-entry": Target(broker_entry.read_head, (broker_entry.encode_head(broker_timestamp=1, index=2),)),
        "messages": Target(
            lambda data: (
                pulsar_message.decode_entry(POSITION, data, content_bytes_max=1 << 20),
                transactions.mention_of(data),
            ),
            tuple(
                b"\x00\x00\x00" + bytes([len(head)]) + head + b"payload"
                for head in seed(messages_pb2.MessageMetadata)
                if len(head) < 256
            ),
        ),
        "batches": Target(plain_batch, (_two(partition_key="key", event_time=2), _two(null_value=True))),
        "token": Target(text_of(lambda text: bearer(text, [key], rules, clock)), (token(SECRET).encode(),)),
        "public-key": Target(key_text, (KEY,)),
        "grant": Target(text_of(Grant.parse), (b"admin 'alice x' public/default/*", b"read a re:a/b/.*")),
        "topic-name": Target(text_of(TopicName.parse), (b"persistent://a/b/c", b"a/../c")),
        "topic-pattern": Target(text_of(TopicPattern.parse), (b"a/b/*", b"a/*", b"re:a/b/(c|d){1,3}")),
        **dict(records()),
    }


def _two(**fields: Any) -> bytes:  # noqa: ANN401 - what protobuf takes
    """Return the content of a batch of two messages with a property."""
    pair = messages_pb2.MessageProperty(key="a", value="b")
    head = messages_pb2.SingleMessageMetadata(payload_size=3, properties=[pair], **fields).SerializeToString()
    return (len(head).to_bytes(4, "big") + head + b"abc") * 2


def _delimited(message: bytes) -> bytes:
    length, head = len(message), bytearray()
    while length > 0x7F:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([*head, length]) + message
