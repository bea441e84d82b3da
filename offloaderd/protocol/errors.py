"""The conversion of our errors to gRPC statuses and back: for the interceptor of all services, and for clients.

Every error status carries an ErrorDetail in the trailing metadata `offloaderd-error-bin`: `reason` is the error's class
in upper snake case and never changes, `hint` is what to do. Any other exception is logged with its traceback and
becomes INTERNAL, without its text for the client.
"""

import re

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from offloaderd.core.errors import (
    BucketMissing,
    Closed,
    Conflict,
    CorruptData,
    Denied,
    DomainNotCovered,
    EntriesDeleted,
    EntriesLost,
    EntriesMissing,
    Expired,
    Fenced,
    IdentityRefused,
    InvalidConfig,
    InvalidInput,
    LedgerUnknown,
    MapUnknown,
    NewerRecord,
    NoSpace,
    NotFound,
    OffloaderError,
    OutcomeUnknown,
    OutOfRange,
    Throttled,
    TopicNotFound,
    TopicUnknown,
    Transient,
    Unauthenticated,
    Unsound,
)
from offloaderd.protocol.v1 import common_pb2

DETAIL_KEY = "offloaderd-error-bin"


class CallTooLong(Transient):
    """The call ran for longer than the daemon allows."""


CODES: dict[type[OffloaderError], grpc.StatusCode] = {
    Throttled: grpc.StatusCode.RESOURCE_EXHAUSTED,
    CallTooLong: grpc.StatusCode.DEADLINE_EXCEEDED,
    Transient: grpc.StatusCode.UNAVAILABLE,
    Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    Denied: grpc.StatusCode.PERMISSION_DENIED,
    NoSpace: grpc.StatusCode.RESOURCE_EXHAUSTED,
    EntriesLost: grpc.StatusCode.DATA_LOSS,
    EntriesDeleted: grpc.StatusCode.NOT_FOUND,
    EntriesMissing: grpc.StatusCode.FAILED_PRECONDITION,
    BucketMissing: grpc.StatusCode.FAILED_PRECONDITION,
    NotFound: grpc.StatusCode.NOT_FOUND,
    Conflict: grpc.StatusCode.FAILED_PRECONDITION,
    IdentityRefused: grpc.StatusCode.FAILED_PRECONDITION,
    OutOfRange: grpc.StatusCode.OUT_OF_RANGE,
    DomainNotCovered: grpc.StatusCode.FAILED_PRECONDITION,
    InvalidInput: grpc.StatusCode.INVALID_ARGUMENT,
    InvalidConfig: grpc.StatusCode.FAILED_PRECONDITION,
    Closed: grpc.StatusCode.UNAVAILABLE,
    NewerRecord: grpc.StatusCode.FAILED_PRECONDITION,
    CorruptData: grpc.StatusCode.DATA_LOSS,
    Unsound: grpc.StatusCode.DATA_LOSS,
}
"""Codes by class; an error has the code of its nearest ancestor here. NOT_FOUND is never used for what is unknown."""

_REASONS = (*CODES, Expired, Fenced, MapUnknown, LedgerUnknown, OutcomeUnknown, TopicNotFound, TopicUnknown)
_CODE_ERRORS: dict[grpc.StatusCode, type[OffloaderError]] = {
    grpc.StatusCode.UNAVAILABLE: Transient,
    grpc.StatusCode.DEADLINE_EXCEEDED: Transient,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Throttled,
    grpc.StatusCode.PERMISSION_DENIED: Denied,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.FAILED_PRECONDITION: Conflict,
    grpc.StatusCode.ABORTED: Conflict,
    grpc.StatusCode.ALREADY_EXISTS: Conflict,
    grpc.StatusCode.OUT_OF_RANGE: OutOfRange,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidInput,
    grpc.StatusCode.CANCELLED: Closed,
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


_CLASSES = {reason_of(kind): kind for kind in _REASONS}


def code_of(error: OffloaderError) -> grpc.StatusCode:
    """Return the status code of an error."""
    for kind in type(error).__mro__:
        if kind in CODES:
            return CODES[kind]
    return grpc.StatusCode.INTERNAL


def detail_of(error: OffloaderError) -> common_pb2.ErrorDetail:
    """Return the detail of an error; for a class that clients do not know, with the reason of its nearest ancestor."""
    known = next((kind for kind in type(error).__mro__ if kind in _REASONS), OffloaderError)
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
