"""Entries as Pulsar's producers make them, taken apart into messages: what a consumer would be given.

    assembly = Assembly(decrypt=keys.decrypt)
    for message in assembly.messages(ledger_id, entry_id, payload): ...

| size | field |
|---|---|
| 2, 4, n | optional: `0e 02`, n, broker entry metadata |
| 2, 4 | optional: `0e 01`, CRC-32C of all that follows |
| 4, n | n, MessageMetadata |
| rest | the content: encrypted by chunk, compressed as a whole, and a batch inside of that |

A batch is one SingleMessageMetadata (with its length before it) and its payload after another. The messages' protobuf
is read field by field, by nothing that the package under test has.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import cramjam
import google_crc32c

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BROKER_ENTRY, CHECKSUM = b"\x0e\x02", b"\x0e\x01"

Fields: TypeAlias = "dict[int, list[int | bytes]]"


class Place(NamedTuple):
    """What a message id says: ledger, entry, and the place in its batch (-1: not in a batch).

    A message in chunks has the place of its last one.
    """

    ledger_id: int
    entry_id: int
    batch_index: int


class Content(NamedTuple):
    """What a consumer sees of a message beside its id."""

    data: bytes
    key: str = ""
    properties: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Metadata:
    """What decoding needs of MessageMetadata; the numbers are its field numbers."""

    fields: Fields

    def number(self, index: int, default: int = 0) -> int:
        """Return an integer."""
        value = self.fields.get(index, [default])[-1]
        assert isinstance(value, int)
        return value

    def blob(self, index: int) -> bytes:
        """Return bytes or text."""
        value = self.fields.get(index, [b""])[-1]
        assert isinstance(value, bytes)
        return value

    def parts(self, index: int) -> list[Metadata]:
        """Return the messages of a repeated field."""
        return [Metadata(read_fields(part)) for part in self.fields.get(index, []) if isinstance(part, bytes)]

    def has(self, index: int) -> bool:
        """Whether a field is there."""
        return index in self.fields


PROPERTIES, KEY, COMPRESSION, UNCOMPRESSED_BYTES, BATCH_COUNT, ENCRYPTION_KEYS = 4, 6, 8, 9, 11, 13
ENCRYPTION_PARAM, UUID, CHUNK_COUNT, CHUNK_ID = 15, 26, 27, 29
"""Fields of MessageMetadata (PulsarApi.proto)."""
ONE_PROPERTIES, ONE_KEY, ONE_BYTES = 1, 2, 3
"""Fields of SingleMessageMetadata."""

Decrypt: TypeAlias = "Callable[[Metadata, bytes], bytes]"


def _no_key(_metadata: Metadata, _content: bytes) -> bytes:
    raise AssertionError("an encrypted message, and no key to read it")


@dataclass(slots=True)
class Assembly:
    """Takes the entries of one topic in their order; holds the chunks of messages that are not whole yet."""

    decrypt: Decrypt = _no_key
    _chunks: defaultdict[bytes, list[bytes]] = field(default_factory=lambda: defaultdict(list))

    def messages(self, ledger_id: int, entry_id: int, payload: bytes) -> Iterator[tuple[Place, Content]]:
        """Yield the messages that an entry completes; checks the producer's checksum on the way."""
        metadata, content = _client_part(payload)
        if metadata.has(ENCRYPTION_KEYS):
            content = self.decrypt(metadata, content)
        if metadata.number(CHUNK_COUNT) > 1:
            chunks = self._chunks[metadata.blob(UUID)]
            assert metadata.number(CHUNK_ID) == len(chunks), "chunks of one message come in their order"
            chunks.append(content)
            if len(chunks) < metadata.number(CHUNK_COUNT):
                return
            content = b"".join(self._chunks.pop(metadata.blob(UUID)))
        content = _decompressed(metadata, content)
        if not metadata.has(BATCH_COUNT):
            yield Place(ledger_id, entry_id, -1), _content(content, metadata, KEY, PROPERTIES)
            return
        at = 0
        for index in range(metadata.number(BATCH_COUNT)):
            one, at = _sized(content, at)
            single = Metadata(read_fields(one))
            data, at = content[at : at + single.number(ONE_BYTES)], at + single.number(ONE_BYTES)
            yield Place(ledger_id, entry_id, index), _content(data, single, ONE_KEY, ONE_PROPERTIES)
        assert at == len(content), "nothing is left behind a batch"


def read_fields(message: bytes) -> Fields:
    """Return the fields of a protobuf message by number; strings and messages as bytes."""
    fields: Fields = defaultdict(list)
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        match tag & 7:
            case 0:
                value, at = _varint(message, at)
                fields[tag >> 3].append(value)
            case 1:
                fields[tag >> 3].append(int.from_bytes(message[at : at + 8], "little"))
                at += 8
            case 2:
                size, at = _varint(message, at)
                fields[tag >> 3].append(message[at : at + size])
                at += size
            case kind:
                raise AssertionError(f"wire type {kind} is not in Pulsar's messages")
    assert at == len(message), "a message ends with its last field"
    return dict(fields)


def _client_part(payload: bytes) -> tuple[Metadata, bytes]:
    """Return what the producer sent, without the broker's own head."""
    if payload.startswith(BROKER_ENTRY):
        _, at = _sized(payload, 2)
        payload = payload[at:]
    if payload.startswith(CHECKSUM):
        assert int.from_bytes(payload[2:6], "big") == google_crc32c.value(payload[6:]), "the producer's checksum"
        payload = payload[6:]
    metadata, at = _sized(payload, 0)
    return Metadata(read_fields(metadata)), payload[at:]


def _decompressed(metadata: Metadata, content: bytes) -> bytes:
    size = metadata.number(UNCOMPRESSED_BYTES)
    match metadata.number(COMPRESSION):
        case 0:
            return content
        case 1:
            out = bytearray(size)
            assert cramjam.lz4.decompress_block_into(content, out, output_len=size) == size
            return bytes(out)
        case 2:
            return zlib.decompressobj().decompress(content)  # a Java producer leaves the stream unfinished
        case 3:
            return bytes(cramjam.zstd.decompress(content))
        case 4:
            return bytes(cramjam.snappy.decompress_raw(content))
        case kind:
            raise AssertionError(f"compression {kind} is not Pulsar's")


def _content(data: bytes, metadata: Metadata, key: int, properties: int) -> Content:
    pairs = ((pair.blob(1).decode(), pair.blob(2).decode()) for pair in metadata.parts(properties))
    return Content(data, metadata.blob(key).decode(), tuple(sorted(pairs)))


def _sized(data: bytes, at: int) -> tuple[bytes, int]:
    """Return what comes after its length of 4 bytes, and where it ends."""
    end = at + 4 + int.from_bytes(data[at : at + 4], "big")
    assert end <= len(data), "a part lies within its whole"
    return data[at + 4 : end], end


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while data[at] > 0x7F:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
    return value | data[at] << shift, at + 1
