"""Protocol version 3: protobuf messages, here only those of reading, authentication and TLS. WIRE.md, section 3.

`encode_read(.., LAST_ENTRY)` gives a bookie's last entry and its `max_lac` in one answer, which is all that tailing
needs; `encode_long_poll` waits for a newer LAC.

Before a long poll, send the same bookie a plain read, and wait beyond the `max_lac` of its answer. DbLedgerStorage
caches LACs and answers long polls when a cached one changes. A LAC that is not cached (after a restart, or ten minutes
without a read) counts as changed when the bookie learns it: if it is not above the awaited one, the bookie drops the
long poll, and answers it at its time-out alone. A plain read fills the cache.

TLS: connect plain, send `encode_start_tls`, wait for its OK with nothing else in flight, do the handshake on the same
socket, then authenticate, then send requests. A connection that will use v2 begins with v3 for this.

The messages have no field for a master key and no flag that fences: `protos/bookkeeper/protocol.proto`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from offloaderd.bookkeeper.wire import protocol
from offloaderd.bookkeeper.wire.protocol import LAST_ENTRY, V3_CODES, AuthToken, BadAnswer, Status
from offloaderd.core.errors import CorruptData, InvalidInput
from offloaderd.core.model import ENTRY_ID_MAX, LEDGER_ID_MAX
from offloaderd.format.parsing import parse_message
from offloaderd.format.pb.bookkeeper import protocol_pb2 as pb

VERSION: Final = 3
TXN_ID_MAX: Final = 2**64 - 1
POLL_MS_MAX: Final = 300_000
"""A bookie drops its cache of a ledger, and long polls on it, after ten minutes: stay well below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """What every answer has: the request's number, and what came of it."""

    txn_id: int
    status: Status
    code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAnswer(_Answer):
    """Answer to a read or a long poll.

    `entry` is what the bookie stores, its digest not yet checked; None if it holds none. `entry_id` is that of the
    request, or the entry's own in a long poll that found one. `max_lac` is the greatest LAC that the bookie knows,
    not covered by any digest.
    """

    ledger_id: int
    entry_id: int
    entry: bytes | None = field(default=None, repr=False)
    max_lac: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthAnswer(_Answer):
    """One step of an authentication."""

    token: AuthToken


class TlsAnswer(_Answer):
    """OK: begin the TLS handshake. Anything else comes as a Refusal."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal(_Answer):
    """An error without the requested message: failed authentication, unknown operation, TLS that is off; never OK."""

    operation: int


Answer: TypeAlias = ReadAnswer | AuthAnswer | TlsAnswer | Refusal


class Decoder(protocol.Decoder[Answer]):
    """Takes v3 answers out of a stream of bytes."""

    def __init__(self, *, frame_bytes_max: int = protocol.FRAME_BYTES_MAX) -> None:
        super().__init__(decode, frame_bytes_max=frame_bytes_max)


def encode_read(txn_id: int, ledger_id: int, entry_id: int) -> bytes:
    """Return the frame that asks for one entry, or with LAST_ENTRY for the last one; raises InvalidInput."""
    _check_ids(ledger_id, entry_id)
    request = _request(txn_id, pb.READ_ENTRY)
    request.readRequest.ledgerId = ledger_id
    request.readRequest.entryId = entry_id
    return protocol.frame(request.SerializeToString())


def encode_long_poll(txn_id: int, ledger_id: int, *, previous_lac: int, timeout_ms: int) -> bytes:
    """Return the frame that waits for a LAC above `previous_lac`, and brings the entry after it if that is there.

    Raises InvalidInput. The bookie answers at the latest after `timeout_ms`.
    """
    _check_ids(ledger_id, previous_lac)
    if not 0 <= timeout_ms <= POLL_MS_MAX:
        raise InvalidInput(f"a long poll of {timeout_ms} ms, expected 0 to {POLL_MS_MAX}")
    request = _request(txn_id, pb.READ_ENTRY)
    read = request.readRequest
    read.ledgerId, read.entryId = ledger_id, LAST_ENTRY
    read.previousLac, read.timeoutMs = previous_lac, timeout_ms
    read.flag = pb.ReadRequest.ENTRY_PIGGYBACK
    return protocol.frame(request.SerializeToString())


def encode_auth(txn_id: int, token: AuthToken) -> bytes:
    """Return the frame of one step of an authentication; raises InvalidInput."""
    request = _request(txn_id, pb.AUTH)
    request.authRequest.CopyFrom(token.message())
    return protocol.frame(request.SerializeToString())


def encode_start_tls(txn_id: int) -> bytes:
    """Return the frame that requests TLS; raises InvalidInput."""
    request = _request(txn_id, pb.START_TLS)
    request.startTlsRequest.SetInParent()
    return protocol.frame(request.SerializeToString())


def _request(txn_id: int, operation: pb.Operation.ValueType) -> pb.Request:
    if not 0 <= txn_id <= TXN_ID_MAX:
        raise InvalidInput(f"transaction id {txn_id} is not an unsigned 64-bit number")
    return pb.Request(header=pb.RequestHeader(version=VERSION, operation=operation, txnId=txn_id))


def _check_ids(ledger_id: int, entry_id: int) -> None:
    if not (0 <= ledger_id <= LEDGER_ID_MAX and LAST_ENTRY <= entry_id <= ENTRY_ID_MAX):
        raise InvalidInput(f"ledger {ledger_id}, entry {entry_id} cannot be asked for")


def decode(message: bytes) -> Answer:
    """Return the answer that a frame without its length holds; raises BadAnswer.

    The outer status counts first, and where it is OK, the inner one: an error may stand in the inner one only.
    """
    try:
        response = parse_message(pb.Response, message, key="a v3 answer", at=0)
    except CorruptData as error:
        raise BadAnswer(error.message) from None
    header = response.header
    if header.version != VERSION:
        raise BadAnswer(f"an answer of protocol version {header.version}, expected {VERSION}")
    known = _DECODERS.get(header.operation)
    answer = known(response) if known is not None else None
    if answer is not None:
        return answer
    status = V3_CODES.get(response.status, Status.UNKNOWN)
    if status is Status.OK:
        raise BadAnswer(f"an answer to operation {header.operation} that is called good and is not there")
    return Refusal(txn_id=header.txnId, status=status, code=response.status, operation=header.operation)


def _outcome(outer: int, inner: int) -> tuple[Status, int]:
    code = inner if V3_CODES.get(outer) is Status.OK else outer
    return V3_CODES.get(code, Status.UNKNOWN), code


def _decode_read(response: pb.Response) -> ReadAnswer | None:
    if not response.HasField("readResponse"):
        return None
    read = response.readResponse
    status, code = _outcome(response.status, read.status)
    return ReadAnswer(
        txn_id=response.header.txnId,
        status=status,
        code=code,
        ledger_id=read.ledgerId,
        entry_id=read.entryId,
        entry=read.body if status is Status.OK and read.HasField("body") else None,
        max_lac=read.maxLac if read.HasField("maxLac") else None,
    )


def _decode_auth(response: pb.Response) -> AuthAnswer | None:
    if not response.HasField("authResponse"):
        return None
    status, code = _outcome(response.status, response.status)
    message = response.authResponse
    token = AuthToken(message.pluginName, message.payload)
    return AuthAnswer(txn_id=response.header.txnId, status=status, code=code, token=token)


def _decode_tls(response: pb.Response) -> TlsAnswer | None:
    """Read the status alone: the message is empty, and a bookie may leave it out."""
    if V3_CODES.get(response.status) is not Status.OK:
        return None
    return TlsAnswer(txn_id=response.header.txnId, status=Status.OK, code=response.status)


_DECODERS: Final[dict[int, Callable[[pb.Response], Answer | None]]] = {
    pb.READ_ENTRY: _decode_read,
    pb.AUTH: _decode_auth,
    pb.START_TLS: _decode_tls,
}
