"""What both protocols share: return codes, frames and their decoder, and the auth message. Nothing reads a socket.

A frame is 4 bytes of length and that many bytes. A length is checked before its frame is waited for, so a decoder never
holds more than one frame below its cap and the fed bytes that were not iterated over. A frame that breaks the protocol
raises BadAnswer after all good ones before it; from then on every use raises the same error, because no later byte can
be trusted. WIRE.md, section 1.

`failure` returns the error of each code that is not OK; `reaction_to` what a reader does about an error, whether a
bookie answered it or a local check found it. WIRE.md, section 6.

An auth message carries a plugin's name and the plugin's own bytes. A bookie without authentication answers with the
name `AuthDisabledPlugin`: that counts as done. WIRE.md, section 4.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Final, Generic, NamedTuple, Self, TypeVar

from offloaderd.core.errors import CorruptData, Denied, InvalidInput, NotFound, OffloaderError, Throttled, Transient
from offloaderd.format.parsing import parse_message
from offloaderd.format.pb.bookkeeper import protocol_pb2 as pb


class Status(IntEnum):
    """A return code, whichever protocol carried it; the numbers are those of v2."""

    UNKNOWN = -1
    OK = 0
    NO_LEDGER = 1
    NO_ENTRY = 2
    BAD_REQUEST = 100
    IO_ERROR = 101
    UNAUTHORISED = 102
    BAD_VERSION = 103
    FENCED = 104
    READ_ONLY = 105
    TOO_MANY_REQUESTS = 106
    UNKNOWN_LEDGER_STATE = 107


V2_CODES: Final = {int(status): status for status in Status if status is not Status.UNKNOWN}
V3_CODES: Final = {
    0: Status.OK,
    402: Status.NO_LEDGER,
    403: Status.NO_ENTRY,
    404: Status.BAD_REQUEST,
    501: Status.IO_ERROR,
    502: Status.UNAUTHORISED,
    503: Status.BAD_VERSION,
    504: Status.FENCED,
    505: Status.READ_ONLY,
    506: Status.TOO_MANY_REQUESTS,
    507: Status.UNKNOWN_LEDGER_STATE,
}


class BadAnswer(Transient):
    """An answer that breaks the protocol: the connection is useless, a new one or another replica may do."""


class Unsupported(OffloaderError):
    """A request that the bookie does not know (an old bookie, or TLS that is off): send another kind."""


class NotHere(NotFound):
    """This bookie does not hold the entry or the ledger; another replica may, so it proves nothing by itself."""


class Reaction(Enum):
    """What a reader does next."""

    NEXT_REPLICA = "ask the next replica of the entry"
    SLOW_DOWN = "halve the window to this bookie, ask again after a jittered pause, meanwhile the next replica"
    RECONNECT = "close the connection, ask the next replica"
    FALL_BACK = "ask in a way that an older bookie knows"
    STOP = "stop and tell the operator"


class _Failure(NamedTuple):
    text: str
    error: type[OffloaderError] = Transient
    hint: str = ""


_MISSING: Final = _Failure("it does not hold it", NotHere)
_REFUSED: Final = _Failure("it does not know such a request", Unsupported)
_WRITERS_ONLY: Final = _Failure("it gave an answer that only writers get", BadAnswer)
_FAILURES: Final = {
    Status.NO_LEDGER: _MISSING,
    Status.NO_ENTRY: _MISSING,
    Status.BAD_REQUEST: _REFUSED,
    Status.BAD_VERSION: _REFUSED,
    Status.IO_ERROR: _Failure("it failed to read its storage", hint="look at the bookie's log and disks"),
    Status.UNAUTHORISED: _Failure(
        "it wants credentials, or other ones",
        Denied,
        "set bookkeeper.sasl_username and sasl_password, or tls_cert_file, as the bookies' auth plugin wants",
    ),
    Status.FENCED: _WRITERS_ONLY,
    Status.READ_ONLY: _WRITERS_ONLY,
    Status.TOO_MANY_REQUESTS: _Failure("it has too many requests in its queue", Throttled),
    Status.UNKNOWN_LEDGER_STATE: _Failure("it cannot tell what it holds after an unclean restart"),
    Status.UNKNOWN: _Failure("its code is not known to this version"),
}


def failure(status: Status, code: int, *, bookie: str, what: str) -> OffloaderError:
    """Return the error that a code other than OK stands for; `what` names the ledger and entry asked for.

    `code` is the number as it came, for the message. The answer of a fenced or read-only bookie is a BadAnswer, never
    `errors.Fenced`: that one is about this daemon's ownership. Calling it with OK is a BadAnswer as well.
    """
    found = _FAILURES.get(status)
    if found is None:
        return BadAnswer(f"bookie {bookie} contradicted itself in its answer about {what}")
    message = f"bookie {bookie} did not give {what}: {found.text} (code {code}, {status.name})"
    return found.error(message, hint=found.hint)


def reaction_to(error: OffloaderError) -> Reaction:
    """Return what a reader does about an error of reading one entry from one bookie.

    A wrong digest on one replica is no reason to stop: the caller stops when all replicas fail the check.
    """
    match error:
        case Throttled():
            return Reaction.SLOW_DOWN
        case BadAnswer():
            return Reaction.RECONNECT
        case Unsupported():
            return Reaction.FALL_BACK
        case NotHere() | CorruptData() | Transient():
            return Reaction.NEXT_REPLICA
        case _:
            return Reaction.STOP


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
    """Decodes the bytes of one connection; `decode` turns one whole frame into an answer or raises BadAnswer."""

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
