"""Ranged GETs over aiohttp: what is asked for, and how the answer is read and checked, whatever store it is.

Each byte is copied once, from the socket's buffer to the piece that the caller wants.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from offloaderd.core.errors import Transient
from offloaderd.objects.checks import check_key, check_range, check_whole

if TYPE_CHECKING:
    from aiohttp import ClientResponse, StreamReader

    from offloaderd.objects.request import Call

_ANSWERED = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


@dataclass(frozen=True, slots=True)
class RangedGet:
    """Bytes of an object as ObjectReader asks for them, in pieces of these lengths or as one.

    Raises InvalidInput for an invalid key or range.
    """

    key: str
    first: int
    length: int | None
    lengths: Sequence[int] | None = None

    def __post_init__(self) -> None:
        check_key(self.key)
        check_range(self.key, self.first, self.length)

    @property
    def is_part(self) -> bool:
        """Whether a range is asked for, and not the whole object."""
        return self.first > 0 or self.length is not None

    @property
    def text(self) -> str:
        """The range as HTTP has it, "" for the whole object."""
        last = "" if self.length is None else self.first + self.length - 1
        return f"bytes={self.first}-{last}" if self.is_part else ""

    @property
    def headers(self) -> dict[str, str]:
        """The request's header for the range; none for the whole object."""
        return {"Range": self.text} if self.is_part else {}

    async def read(self, call: Call, answer: ClientResponse, bytes_per_s_min: int) -> Sequence[bytes]:
        """Return the body of a successful answer, under a deadline that has its size.

        Raises CorruptData as `check_whole`, Transient for other bytes than were asked for, and aiohttp's errors.
        """
        call.status = str(answer.status)
        size_bytes = answer.content_length
        if size_bytes is None:
            raise Transient(f"{call}: the answer does not say how long it is")
        call.extend(size_bytes / bytes_per_s_min)
        check_whole(self.key, size_bytes, self.first, self.length)
        if self.is_part:  # before the body is read, which may be all of an object
            check_answered_range(call, answer.headers.get("Content-Range", ""), size_bytes, self.first, self.length)
        pieces = await in_pieces(answer.content, size_bytes, self.lengths or [size_bytes])
        call.bytes_in = sum(map(len, pieces))
        if call.bytes_in != size_bytes:
            raise Transient(f"{call}: {call.bytes_in} bytes came instead of {size_bytes}")
        return pieces


def check_answered_range(call: object, answered: str, size_bytes: int, first: int, length: int | None) -> None:
    """Check that the answer has the requested bytes, cut only by the object's end. Raises Transient."""
    found = _ANSWERED.fullmatch(answered)
    if found is None:
        raise Transient(f"{call}: the server does not say which bytes it sent ({answered!r})")
    begin, last, total = map(int, found.groups())
    end = total if length is None else min(total, first + length)
    if (begin, last + 1, size_bytes) != (first, end, end - first):
        raise Transient(f"{call}: asked for bytes {first} to {end - 1}, got {size_bytes} of {answered!r}")


async def in_pieces(stream: StreamReader, size_bytes: int, lengths: Sequence[int]) -> Sequence[bytes]:
    """Return a body of that size in pieces of these lengths, or shorter ones if it ends earlier.

    Further bytes, which were not requested, are added
    to the last piece. Raises aiohttp's errors.
    """
    stream.set_read_chunk_size(max(1, size_bytes))  # else aiohttp often stops reading from the socket
    pieces: list[bytes] = []
    came: list[bytes | memoryview] = []
    missing = lengths[0]
    async for chunk, _ in stream.iter_chunks():
        rest = memoryview(chunk)
        while len(rest) >= missing and len(pieces) < len(lengths) - 1:
            pieces.append(b"".join((*came, rest[:missing])))
            came, rest, missing = [], rest[missing:], lengths[len(pieces)]
        came.append(rest)
        missing -= len(rest)
    pieces.append(b"".join(came))
    return pieces + [b""] * (len(lengths) - len(pieces))
