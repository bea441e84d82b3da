"""The conversion of our errors to gRPC statuses and back: for the interceptor of all services, and for clients.

Every error status carries an ErrorDetail in the trailing metadata `offloaderd-error-bin`: `reason` is the error's class
in upper snake case and never changes, `hint` is what to do. The details of google.rpc beside it say the same to clients
that know those. Any other exception is logged with its traceback and becomes INTERNAL, without its text for the client.
"""

import re

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from offloaderd.core import errors
from offloaderd.core.errors import CorruptData, OffloaderError, Transient
from offloaderd.protocol.v1 import common_pb2

DETAIL_KEY = "offloaderd-error-bin"


class CallTooLong(Transient):
    """The call ran for longer than the daemon allows."""


CODES: dict[type[OffloaderError], grpc.StatusCode] = {
    errors.Throttled: grpc.StatusCode.RESOURCE_EXHAUSTED,
    CallTooLong: grpc.StatusCode.DEADLINE_EXCEEDED,
    Transient: grpc.StatusCode.UNAVAILABLE,
    errors.Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    errors.Archived: grpc.StatusCode.FAILED_PRECONDITION,
    errors.Denied: grpc.StatusCode.PERMISSION_DENIED,
    errors.NoSpace: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.EntriesLost: grpc.StatusCode.DATA_LOSS,
    errors.EntriesDeleted: grpc.StatusCode.NOT_FOUND,
    errors.EntriesMissing: grpc.StatusCode.FAILED_PRECONDITION,
    errors.BucketMissing: grpc.StatusCode.FAILED_PRECONDITION,
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    errors.Conflict: grpc.StatusCode.FAILED_PRECONDITION,
    errors.IdentityRefused: grpc.StatusCode.FAILED_PRECONDITION,
    errors.OutOfRange: grpc.StatusCode.OUT_OF_RANGE,
    errors.DomainNotCovered: grpc.StatusCode.FAILED_PRECONDITION,
    errors.InvalidInput: grpc.StatusCode.INVALID_ARGUMENT,
    errors.InvalidConfig: grpc.StatusCode.FAILED_PRECONDITION,
    errors.Closed: grpc.StatusCode.UNAVAILABLE,
    errors.NewerRecord: grpc.StatusCode.FAILED_PRECONDITION,
    CorruptData: grpc.StatusCode.DATA_LOSS,
    errors.Unsound: grpc.StatusCode.DATA_LOSS,
}
"""Codes by class; an error has the code of its nearest ancestor here. NOT_FOUND is never used for what is unknown."""

REASONS = (
    *CODES,
    errors.Expired,
    errors.Fenced,
    errors.MapUnknown,
    errors.LedgerUnknown,
    errors.OutcomeUnknown,
    errors.TopicNotFound,
    errors.TopicUnknown,
)
"""Classes that clients know by their names."""
_CODE_ERRORS: dict[grpc.StatusCode, type[OffloaderError]] = {
    grpc.StatusCode.UNAVAILABLE: Transient,
    grpc.StatusCode.DEADLINE_EXCEEDED: Transient,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.Throttled,
    grpc.StatusCode.PERMISSION_DENIED: errors.Denied,
    grpc.StatusCode.UNAUTHENTICATED: errors.Unauthenticated,
    grpc.StatusCode.NOT_FOUND: errors.NotFound,
    grpc.StatusCode.FAILED_PRECONDITION: errors.Conflict,
    grpc.StatusCode.ABORTED: errors.Conflict,
    grpc.StatusCode.ALREADY_EXISTS: errors.Conflict,
    grpc.StatusCode.OUT_OF_RANGE: errors.OutOfRange,
    grpc.StatusCode.INVALID_ARGUMENT: errors.InvalidInput,
    grpc.StatusCode.CANCELLED: errors.Closed,
}
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")


class RemoteCorruptData(CorruptData):
    """Corrupt data that another daemon found: its message is unchanged, with key and offset in it."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        OffloaderError.__init__(self, message, hint=hint)
        self.key, self.offset, self.expected, self.found = "", 0, "", ""


def reason_of(kind: type[OffloaderError]) -> str:
    """Return the stable name of a class of errors: CORRUPT_DATA for CorruptData."""
    return _HUMP.sub("_", kind.__name__).upper()


_CLASSES = {reason_of(kind): kind for kind in REASONS}


def code_of(error: OffloaderError) -> grpc.StatusCode:
    """Return the status code of an error."""
    return code_of_kind(type(error))


def code_of_kind(kind: type[OffloaderError]) -> grpc.StatusCode:
    """Return the status code of a class of errors."""
    return next((CODES[one] for one in kind.__mro__ if one in CODES), grpc.StatusCode.INTERNAL)


def detail_of(error: OffloaderError) -> common_pb2.ErrorDetail:
    """Return the detail of an error; for a class that clients do not know, with the reason of its nearest ancestor."""
    known = next((kind for kind in type(error).__mro__ if kind in REASONS), OffloaderError)
    return common_pb2.ErrorDetail(reason=reason_of(known), hint=error.hint)


def from_rpc_error(error: aio.AioRpcError) -> OffloaderError:
    """Return the error that a daemon raised, or without a detail the error that the status stands for."""
    message = error.details() or error.code().name
    detail = _detail(error)
    if detail is None:
        kind, hint = _CODE_ERRORS.get(error.code(), OffloaderError), ""
    else:
        kind, hint = _CLASSES.get(detail.reason, _CODE_ERRORS.get(error.code(), OffloaderError)), detail.hint
    if issubclass(kind, CorruptData):
        return RemoteCorruptData(message, hint=hint)
    return kind(message, hint=hint)


def _detail(error: aio.AioRpcError) -> common_pb2.ErrorDetail | None:
    for key, value in error.trailing_metadata() or ():
        if key == DETAIL_KEY and isinstance(value, bytes):
            try:
                return common_pb2.ErrorDetail.FromString(value)
            except DecodeError:
                return None
    return None
