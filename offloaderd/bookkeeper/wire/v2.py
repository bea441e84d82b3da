"""Protocol version 2: fixed binary layouts, here only those of reading. WIRE.md, section 2.

Rules for the connection on top: answers come in any order. A single read has no id of its own, so one connection must
not request the same (ledger, entry) twice at a time. After the first v2 request a connection never uses v3 again. A
bookie before 4.17 closes the connection on a batch read. `feed` yields nothing for a request that the bookie answers by
closing.

No request carries a flag or a key, and no parameter could set one: a fencing read, an addition or recovery cannot be
encoded.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from offloaderd.bookkeeper.wire import protocol
from offloaderd.bookkeeper.wire.protocol import LAST_ENTRY, V2_CODES, AuthToken, BadAnswer, Status
from offloaderd.core import native
from offloaderd.core.errors import InvalidInput
from offloaderd.core.model import ENTRY_ID_MAX, LEDGER_ID_MAX

VERSION: Final = 2
READ_ENTRY: Final = 2
AUTH: Final = 3
BATCH_READ: Final = 7
STORED_ENTRY_BYTES_MIN: Final = 32
"""No stored entry is shorter than its header."""

HEADER = struct.Struct(">BBH")
READ_REQUEST = struct.Struct(">BBHqq")
BATCH_REQUEST = struct.Struct(">BBHqqqiq")
READ_ANSWER = struct.Struct(">BBHiqq")
BATCH_ANSWER = struct.Struct(">BBHiqqq")
BATCH_ENTRY = struct.Struct(">i")

_NO_FLAGS: Final = 0

Key: TypeAlias = tuple[int, int] | int | None
"""Matches answers to requests: (ledger, entry) of a single read, request id of a batch, None for authentication."""


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    """Answer to a single read; the ids are those of the request (entry -1 included), `entry` is empty unless OK."""

    status: Status
    code: int
    ledger_id: int
    entry_id: int
    entry: bytes = field(repr=False)

    @property
    def key(self) -> Key:
        """Equal to `read_key` of the request."""
        return (self.ledger_id, self.entry_id)


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """Answer to a batch read: consecutive entries from `first_entry_id` on, at least one if OK, none otherwise.

    Fewer than requested means nothing. Entries above the LAC come as well: only the request's count bounds them.
    """

    status: Status
    code: int
    ledger_id: int
    first_entry_id: int
    request_id: int
    entries: list[bytes] = field(repr=False)

    @property
    def key(self) -> Key:
        """Equal to the request's id."""
        return self.request_id


@dataclass(frozen=True, slots=True)
class AuthAnswer:
    """One step of an authentication."""

    token: AuthToken

    @property
    def key(self) -> Key:
        """Authentication goes one step at a time."""
        return None


Answer: TypeAlias = ReadAnswer | BatchAnswer | AuthAnswer


class Decoder(protocol.Decoder[Answer]):
    """Takes v2 answers out of a stream of bytes."""

    def __init__(self, *, frame_bytes_max: int = protocol.FRAME_BYTES_MAX) -> None:
        super().__init__(decode, frame_bytes_max=frame_bytes_max)


def read_key(ledger_id: int, entry_id: int) -> Key:
    """Return the key that the answer to a single read will have."""
    return (ledger_id, entry_id)


def encode_read(ledger_id: int, entry_id: int) -> bytes:
    """Return the frame that asks for one entry, or with LAST_ENTRY for the last one; raises InvalidInput."""
    if not (0 <= ledger_id <= LEDGER_ID_MAX and LAST_ENTRY <= entry_id <= ENTRY_ID_MAX):
        raise InvalidInput(f"ledger {ledger_id}, entry {entry_id} cannot be asked for")
    return protocol.frame(READ_REQUEST.pack(VERSION, READ_ENTRY, _NO_FLAGS, ledger_id, entry_id))


def encode_batch_read(
    request_id: int, ledger_id: int, first_entry_id: int, *, count_max: int, bytes_max: int = 1024 * 1024
) -> bytes:
    """Return the frame that asks for entries from `first_entry_id` on, as many as fit; raises InvalidInput.

    `count_max` is mandatory and at least 1: without it the bookie would hand out unconfirmed entries. `bytes_max`
    counts 4 bytes an entry and 36 for the frame; the first entry comes whatever its size.
    """
    if not (0 <= ledger_id <= LEDGER_ID_MAX and 0 <= first_entry_id <= ENTRY_ID_MAX and 0 <= request_id < 2**63):
        raise InvalidInput(f"ledger {ledger_id}, entry {first_entry_id} (request {request_id}) cannot be asked for")
    if count_max < 1 or not 0 <= bytes_max < 2**63:
        raise InvalidInput(f"a batch of at most {count_max} entries and {bytes_max} bytes cannot be asked for")
    count = min(count_max, 2**31 - 1)
    return protocol.frame(
        BATCH_REQUEST.pack(VERSION, BATCH_READ, _NO_FLAGS, ledger_id, first_entry_id, request_id, count, bytes_max)
    )


def encode_auth(token: AuthToken) -> bytes:
    """Return the frame of one step of an authentication; raises InvalidInput."""
    return protocol.frame(HEADER.pack(VERSION, AUTH, _NO_FLAGS) + token.message().SerializeToString())


def decode(message: bytes) -> Answer:
    """Return the answer in a frame without its length; raises BadAnswer. Flags are ignored: bookies send none."""
    if len(message) < HEADER.size:
        raise BadAnswer(f"an answer of {len(message)} bytes is too short for a header")
    version, operation, _ = HEADER.unpack_from(message)
    if version != VERSION:
        raise BadAnswer(f"an answer of protocol version {version}, expected {VERSION}")
    decoder = _DECODERS.get(operation)
    if decoder is None:
        raise BadAnswer(f"an answer to operation {operation}, which was never asked for")
    return decoder(message)


def _decode_read(message: bytes) -> ReadAnswer:
    if len(message) < READ_ANSWER.size:
        raise BadAnswer(f"an answer of {len(message)} bytes to a read, expected {READ_ANSWER.size} or more")
    _, _, _, code, ledger_id, entry_id = READ_ANSWER.unpack_from(message)
    status = V2_CODES.get(code, Status.UNKNOWN)
    entry = message[READ_ANSWER.size :] if status is Status.OK else b""
    return ReadAnswer(status, code, ledger_id, entry_id, entry)


def _decode_batch(message: bytes) -> BatchAnswer:
    if len(message) < BATCH_ANSWER.size:
        raise BadAnswer(f"an answer of {len(message)} bytes to a batch read, expected {BATCH_ANSWER.size} or more")
    _, _, _, code, ledger_id, first_entry_id, request_id = BATCH_ANSWER.unpack_from(message)
    status = V2_CODES.get(code, Status.UNKNOWN)
    entries = _split_batch(message) if status is Status.OK else []
    return BatchAnswer(status, code, ledger_id, first_entry_id, request_id, entries)


def _split_batch(message: bytes) -> list[bytes]:
    compiled = native.batch_entries(message, BATCH_ANSWER.size)
    if compiled is not None:
        return compiled
    unpack = BATCH_ENTRY.unpack_from
    entries: list[bytes] = []
    append = entries.append
    position, end = BATCH_ANSWER.size, len(message)
    while position != end:
        body = position + 4
        if body > end:
            raise BadAnswer(f"{end - position} bytes after the last entry of a batch")
        (size,) = unpack(message, position)
        position = body + size
        if size < STORED_ENTRY_BYTES_MIN or position > end:
            raise BadAnswer(f"an entry of {size} bytes in a batch, expected {STORED_ENTRY_BYTES_MIN} to {end - body}")
        append(message[body:position])
    if not entries:
        raise BadAnswer("a batch that is called good and holds no entry")
    return entries


def _decode_auth(message: bytes) -> AuthAnswer:
    return AuthAnswer(AuthToken.decode(message[HEADER.size :]))


_DECODERS: Final[dict[int, Callable[[bytes], Answer]]] = {
    READ_ENTRY: _decode_read,
    AUTH: _decode_auth,
    BATCH_READ: _decode_batch,
}
