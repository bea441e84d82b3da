"""Errors of calls: those that the daemon raised, and those of the transport."""

import grpc
from grpc import aio

from offloaderd.core.errors import Conflict, InvalidInput, OffloaderError, Transient
from offloaderd.protocol.errors import DETAIL_KEY, from_rpc_error

LATE = "allow more with --timeout SECONDS; `offloadctl status` shows whether something does not answer"
_CUT_OFF = ("RST_STREAM", "Stream removed", "Internal error from Core")
"""Texts of gRPC for a broken call without the code UNAVAILABLE; the last one is that of a failed write."""


class Unreachable(Transient):
    """No daemon answers at the address, or at any of them."""


class TimedOut(Transient):
    """The call's deadline passed before its result was there."""


class NotConsecutive(Conflict):
    """Entries were pushed that do not follow what the daemon has; the message names both positions."""


def translated(error: aio.AioRpcError, address: str) -> OffloaderError:
    """Return the error of a failed call as one of ours.

    Errors of the daemon carry its detail; UNAVAILABLE without it comes from the transport: no daemon answers.
    """
    code = error.code()
    if any(key == DETAIL_KEY for key, _ in error.trailing_metadata() or ()):
        return from_rpc_error(error)
    if code is grpc.StatusCode.UNAVAILABLE:
        return Unreachable(f"lost the daemon at {address}: {error.details()}", hint="it may be restarting; try again")
    said = error.details() or ""
    if code in {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN} and any(word in said for word in _CUT_OFF):
        return Unreachable(f"lost the daemon at {address}: {said}", hint="it may be restarting; try again")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in said:
        return InvalidInput(f"a message is too large: {said}", hint="raise message_bytes_max, or ask for less at once")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return TimedOut("no result before the deadline", hint=LATE)
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return InvalidInput(
            f"the daemon at {address} does not offer this call",
            hint="it may be an older release; appending needs an embedded ledger store, as standalone has",
        )
    return from_rpc_error(error)
