"""Small objects beside the segments: a header (magic, version, checksum) and a protobuf message."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, TypeVar

import google_crc32c

from offloaderd.core.errors import CorruptData
from offloaderd.format.parsing import parse_message

if TYPE_CHECKING:
    from google.protobuf.message import Message

M = TypeVar("M", bound="Message")

HEADER = struct.Struct(">III")
VERSION = 1


def encode(magic: int, message: Message) -> bytes:
    """Return the object's bytes; equal messages give equal bytes."""
    body = message.SerializeToString(deterministic=True)
    return HEADER.pack(magic, VERSION, google_crc32c.value(body)) + body


def decode(magic: int, kind: type[M], data: bytes, *, key: str) -> M:
    """Read an object; `key` names it in errors. Raises CorruptData."""
    if len(data) < HEADER.size:
        raise CorruptData(key=key, offset=0, expected=f"a header of {HEADER.size} bytes", found=f"{len(data)} bytes")
    found, version, crc32c = HEADER.unpack_from(data)
    if found != magic:
        raise CorruptData(key=key, offset=0, expected=f"magic {magic:08x}", found=f"{found:08x}")
    if version != VERSION:
        hint = "a newer offloaderd may have written it" if version > VERSION else ""
        raise CorruptData(key=key, offset=4, expected=f"version {VERSION}", found=version, hint=hint)
    body = data[HEADER.size :]
    if google_crc32c.value(body) != crc32c:
        raise CorruptData(
            key=key, offset=8, expected=f"checksum {google_crc32c.value(body):08x}", found=f"{crc32c:08x}"
        )
    return parse_message(kind, body, key=key, at=HEADER.size)
