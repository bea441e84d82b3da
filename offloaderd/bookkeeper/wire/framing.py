"""Frames: a length of 4 bytes and that many bytes, and the decoder that takes them out of any fragmentation.

Used alike by both protocols. Nothing here reads a socket: whoever does feeds what arrived and iterates.

    decoder = v2.Decoder()                       # or v3.Decoder(); one for each connection, never shared
    for answer in decoder.feed(data):            # data: what one read of the socket gave, b"" is harmless
        ...                                      # in the order of arrival, which is not that of the requests

Rules: a length is judged before its frame is waited for, so a decoder never holds more than one frame below its cap
and what was fed but not yet taken. A frame that breaks the protocol raises BadAnswer after all good ones before it have
been taken; from then on every use raises the same error, because no later byte can be trusted. WIRE.md, section 1.
"""

import struct
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from offloaderd.bookkeeper.wire.status import BadAnswer
from offloaderd.core.errors import InvalidInput

FRAME_LENGTH = struct.Struct(">i")
FRAME_BYTES_MAX: Final = 8 * 1024 * 1024
"""What an answer may be at most by default: above bookies' own cap of 5 MiB and a bit (`nettyMaxFrameSizeBytes`)."""
FRAME_BYTES_MIN: Final = 4
"""Both protocols' smallest message: a v2 header; a v3 message with its required fields is longer."""
LAST_ENTRY: Final = -1
"""Instead of an entry id: the last entry that this bookie holds, confirmed or not."""

R = TypeVar("R")


def frame(message: bytes) -> bytes:
    """Return a message with its length before it, ready to be sent."""
    return FRAME_LENGTH.pack(len(message)) + message


class Decoder(Generic[R]):
    """Takes answers out of a stream of bytes; `decode` turns one whole frame into an answer or raises BadAnswer."""

    def __init__(self, decode: Callable[[bytes], R], *, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        if not FRAME_BYTES_MIN <= frame_bytes_max < 2**31:
            raise InvalidInput(f"a cap of {frame_bytes_max} bytes for a frame is out of range")
        self._decode = decode
        self._frame_bytes_max = frame_bytes_max
        self._buffer = bytearray()
        self._taken = 0
        self._failure: BadAnswer | None = None

    @property
    def buffered_bytes(self) -> int:
        """Bytes fed that no answer has been made of yet."""
        return len(self._buffer) - self._taken

    @property
    def mid_frame(self) -> bool:
        """Whether the end of the stream would now cut an answer short."""
        return self.buffered_bytes > 0

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[R]:
        """Take in `data` at once and return an iterator over the answers that are complete.

        Answers that are not iterated over stay for the next call. The iterator raises BadAnswer.
        """
        if self._failure is None:
            self._buffer += data
        return self

    def __iter__(self) -> Iterator[R]:
        """Return itself."""
        return self

    def __next__(self) -> R:
        """Return the next complete answer; raises StopIteration until more is fed, BadAnswer for good."""
        if self._failure is not None:
            raise self._failure
        try:
            message = self._next_frame()
            if message is None:
                raise StopIteration
            return self._decode(message)
        except BadAnswer as error:
            self._failure = error
            self._buffer, self._taken = bytearray(), 0
            raise

    def _next_frame(self) -> bytes | None:
        start = self._taken + FRAME_LENGTH.size
        if start <= len(self._buffer):
            (length,) = FRAME_LENGTH.unpack_from(self._buffer, self._taken)
            if not FRAME_BYTES_MIN <= length <= self._frame_bytes_max:
                raise BadAnswer(
                    f"an answer of {length} bytes was announced, not of {FRAME_BYTES_MIN} to {self._frame_bytes_max}",
                    hint="the port may not be a bookie's, or the cap is below the bookie's nettyMaxFrameSizeBytes",
                )
            end = start + length
            if end <= len(self._buffer):
                self._taken = end
                with memoryview(self._buffer) as view:
                    return bytes(view[start:end])
        del self._buffer[: self._taken]
        self._taken = 0
        return None
