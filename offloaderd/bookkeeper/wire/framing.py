"""What both protocols share: frames (4 bytes of length and that many bytes), their decoder, and the auth message.

Nothing here reads a socket: the caller feeds what arrived and iterates.

    decoder = v2.Decoder()                       # or v3.Decoder(); one for each connection, never shared
    for answer in decoder.feed(data):            # data: what one read of the socket gave, b"" is harmless
        ...                                      # in the order of arrival, which is not that of the requests

Rules: a length is checked before its frame is waited for, so a decoder never holds more than one frame below its cap
and the fed bytes that were not iterated over. A frame that breaks the protocol raises BadAnswer after all good ones
before it; from then on every use raises the same error, because no later byte can be trusted. WIRE.md, section 1.

An auth message carries a plugin's name and the plugin's own bytes. A bookie without authentication answers with the
name `AuthDisabledPlugin`: that counts as done. WIRE.md, section 4.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, Generic, Self, TypeVar

from offloaderd.bookkeeper.wire.status import BadAnswer
from offloaderd.core.errors import CorruptData, InvalidInput
from offloaderd.format.parsing import parse_message
from offloaderd.format.pb.bookkeeper import protocol_pb2 as pb

FRAME_LENGTH = struct.Struct(">i")
FRAME_BYTES_MAX: Final = 8 * 1024 * 1024
"""Longest answer by default: above bookies' own cap of 5 MiB and a bit (`nettyMaxFrameSizeBytes`)."""
FRAME_BYTES_MIN: Final = 4
"""Both protocols' smallest message: a v2 header; a v3 message with its required fields is longer."""
LAST_ENTRY: Final = -1
"""Instead of an entry id: the last entry that this bookie holds, confirmed or not."""
AUTH_DISABLED_PLUGIN: Final = "AuthDisabledPlugin"
SASL_PLUGIN: Final = "sasl"
AUTH_BYTES_MAX: Final = 64 * 1024
"""No token of a known mechanism comes near."""

R = TypeVar("R")


def frame(message: bytes) -> bytes:
    """Return a message with its length before it, ready to be sent."""
    return FRAME_LENGTH.pack(len(message)) + message


class Decoder(Generic[R]):
    """Decodes a stream of bytes; `decode` turns one whole frame into an answer or raises BadAnswer."""

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
        """Bytes fed and not yet decoded."""
        return len(self._buffer) - self._taken

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[R]:
        """Take in `data` at once and return an iterator over the answers that are complete.

        Those not iterated over stay for the next call. The iterator raises BadAnswer.
        """
        if self._failure is None:
            self._buffer += data
        return self

    def __iter__(self) -> Iterator[R]:
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


@dataclass(frozen=True, slots=True)
class AuthToken:
    """One step of an authentication, in either direction; the payload is kept out of logs."""

    plugin: str
    payload: bytes = field(repr=False)

    @property
    def disabled(self) -> bool:
        """Whether the bookie wants no authentication."""
        return self.plugin == AUTH_DISABLED_PLUGIN

    def message(self) -> pb.AuthMessage:
        """Return the auth message; raises InvalidInput for a token without a name or above AUTH_BYTES_MAX."""
        if not self.plugin or len(self.payload) > AUTH_BYTES_MAX:
            raise InvalidInput(f"no auth message can be made for plugin {self.plugin!r} ({len(self.payload)} bytes)")
        return pb.AuthMessage(pluginName=self.plugin, payload=self.payload)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read a bare auth message; raises BadAnswer."""
        try:
            message = parse_message(pb.AuthMessage, data, key="an auth message", at=0)
        except CorruptData as error:
            raise BadAnswer(error.message) from None
        return cls(message.pluginName, message.payload)
