"""Return codes of bookies: one table for both protocols, from code to error and reaction.

`failure` returns the error of each code that is not OK; `reaction_to` what a reader does about an error, whether a
bookie answered it or a local check found it. WIRE.md, section 6.
"""

from enum import Enum, IntEnum
from typing import Final, NamedTuple

from offloaderd.core.errors import CorruptData, Denied, NotFound, OffloaderError, Throttled, Transient


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
