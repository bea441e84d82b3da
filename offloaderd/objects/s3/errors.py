"""Translation of all errors of botocore and aiohttp to ours, with a remedy for operators.

Three questions decide. Did the server answer? Then its error code is looked up in one table, and an unknown code goes
by the HTTP status. Was the request sent at all? If not, it may simply be retried. Was it a write? Then its outcome is
unknown until it is read back after a lost answer, and after 500, 502 and 504, which do not say what was carried out.
"""

import socket
from dataclasses import dataclass
from typing import NamedTuple

import aiohttp
from botocore import exceptions as boto

from offloaderd.core.errors import (
    BucketMissing,
    Conflict,
    Denied,
    Expired,
    InvalidConfig,
    InvalidInput,
    NoSpace,
    NotFound,
    OffloaderError,
    OutcomeUnknown,
    Throttled,
    Transient,
)

HINT_KEYS = "check objects.access_key and objects.secret_key"
HINT_RIGHTS = "allow {right} to these credentials; the policy that is needed is in deploy/s3"
HINT_EXPIRED = "refresh the credentials where they come from (profile, role): they are read again at every try"
HINT_BUCKET = "create the bucket, or correct objects.bucket and objects.endpoint"
HINT_REGION = "set objects.region, or objects.endpoint, to where the bucket is"
HINT_CLOCK = "set this machine's clock: signatures hold for 15 minutes"
HINT_KMS = "check objects.kms_key_id: the key has to be there, be enabled and be for encryption"
HINT_SPACE = "free space or raise the quota on the store"
HINT_ENDPOINT = "check that the server runs and that objects.endpoint is right"
HINT_CREDENTIALS = "set objects.access_key and objects.secret_key, or give this machine a role"

RIGHTS = {
    "ListObjectsV2": "s3:ListBucket",
    "GetObject": "s3:GetObject",
    "HeadObject": "s3:GetObject",
    "PutObject": "s3:PutObject",
    "CreateMultipartUpload": "s3:PutObject",
    "UploadPart": "s3:PutObject",
    "CompleteMultipartUpload": "s3:PutObject",
    "DeleteObjects": "s3:DeleteObject",
    "AbortMultipartUpload": "s3:AbortMultipartUpload",
    "ListParts": "s3:ListMultipartUploadParts",
    "ListMultipartUploads": "s3:ListBucketMultipartUploads",
    "CreateBucket": "s3:CreateBucket",
}
"""The right that each request needs, from AWS's service authorization reference: stores only say that it was denied."""


class _Verdict(NamedTuple):
    """Our error and remedy for an error code."""

    kind: type[OffloaderError]
    hint: str = ""


_MEANINGS = (
    (_Verdict(Throttled), "SlowDown SlowDownRead SlowDownWrite ServiceUnavailable Throttling ThrottlingException"),
    (_Verdict(Throttled), "RequestThrottled TooManyRequests RequestLimitExceeded BandwidthLimitExceeded Busy"),
    (_Verdict(Denied, HINT_KEYS), "InvalidAccessKeyId SignatureDoesNotMatch InvalidToken XAdminUserNotFound"),
    (_Verdict(Denied, HINT_KMS), "KMS.NotFoundException KMS.DisabledException KMS.KMSInvalidStateException"),
    (_Verdict(Denied, HINT_KMS), "KMS.InvalidKeyUsageException kms:KeyNotFound kms:NotAuthorized"),
    (_Verdict(Denied, HINT_RIGHTS), "AccessDenied AllAccessDisabled AccountProblem UnauthorizedAccess"),
    (_Verdict(Expired, HINT_EXPIRED), "ExpiredToken ExpiredTokenException TokenRefreshRequired"),
    (_Verdict(Denied, HINT_REGION), "PermanentRedirect TemporaryRedirect AuthorizationHeaderMalformed"),
    (_Verdict(Denied, HINT_REGION), "IllegalLocationConstraintException"),
    (_Verdict(Denied, HINT_CLOCK), "RequestTimeTooSkewed RequestExpired"),
    (_Verdict(BucketMissing, HINT_BUCKET), "NoSuchBucket InvalidBucketName"),
    (_Verdict(NotFound), "NoSuchKey NoSuchUpload NoSuchVersion NotFound"),
    (
        _Verdict(InvalidInput),
        "InvalidRange InvalidPart InvalidPartOrder InvalidPartNumber EntityTooSmall EntityTooLarge",
    ),
    (_Verdict(InvalidInput), "InvalidArgument InvalidRequest KeyTooLongError MetadataTooLarge MalformedXML"),
    (_Verdict(NoSpace, HINT_SPACE), "QuotaExceeded InsufficientStorage InsufficientCapacity StorageFull NoSpaceLeft"),
    (_Verdict(NoSpace, HINT_SPACE), "XMinioStorageFull XMinioAdminBucketQuotaExceeded"),
    (_Verdict(Conflict), "PreconditionFailed BucketAlreadyExists"),
    # Another request for the same object is in progress, perhaps a lost one of ours: it has to end first.
    (_Verdict(Transient), "OperationAborted ConditionalRequestConflict"),
    # The bytes were damaged or late in transit; the same request may well succeed.
    (_Verdict(Transient), "RequestTimeout IncompleteBody BadDigest XAmzContentChecksumMismatch"),
    (_Verdict(Transient), "XAmzContentSHA256Mismatch InternalError InternalServerError"),
)
VERDICTS = {code: verdict for verdict, codes in _MEANINGS for code in codes.split()}
"""Error codes of S3 and of compatible stores."""

STATUSES = {
    400: _Verdict(InvalidInput),
    401: _Verdict(Denied, HINT_KEYS),
    403: _Verdict(Denied, HINT_RIGHTS),
    404: _Verdict(NotFound),
    408: _Verdict(Transient),
    409: _Verdict(Conflict),
    412: _Verdict(Conflict),
    416: _Verdict(InvalidInput),
    429: _Verdict(Throttled),
    503: _Verdict(Throttled),
    507: _Verdict(NoSpace, HINT_SPACE),
}
"""For answers without a code (HEAD has no body) or with an unknown one."""

_NO_CREDENTIALS = (boto.NoCredentialsError, boto.PartialCredentialsError)
_NOT_REFRESHED = (boto.CredentialRetrievalError, boto.TokenRetrievalError, boto.SSOError)
_NOT_SENT = (boto.ConnectTimeoutError, boto.ProxyConnectionError, boto.SSLError)
# All others: a broken connection, or an unreadable answer.
_BROKEN = (boto.BotoCoreError, aiohttp.ClientError, ConnectionError)
_UNSURE_STATUSES = {500, 502, 504}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request for messages; `write` decides whether a lost answer leaves the outcome unknown."""

    operation: str
    where: str
    write: bool


class Failure(NamedTuple):
    """Our error, and the code for the metrics."""

    error: OffloaderError
    code: str


def failure(error: Exception, request: Request) -> Failure | None:
    """Translate an exception of botocore, aiohttp or a time-out; None for any other."""
    if isinstance(error, boto.ClientError):
        return _answered(error, request)
    if isinstance(error, _NO_CREDENTIALS):
        return Failure(Denied(_line(request, str(error)), hint=HINT_CREDENTIALS), "error")
    if isinstance(error, _NOT_REFRESHED) or _still_expired(error):
        return Failure(Expired(_line(request, str(error)), hint=HINT_EXPIRED), "error")
    if isinstance(error, boto.ParamValidationError):
        return Failure(InvalidInput(_line(request, str(error))), "error")
    if isinstance(error, _NOT_SENT) or _never_connected(error):
        message = _line(request, f"no connection: {_cause(error)}")
        return Failure(Transient(message, hint=HINT_ENDPOINT), "unreachable")
    if isinstance(error, boto.ReadTimeoutError | TimeoutError):
        return _lost("no answer in time", request, "timeout")
    if isinstance(error, _BROKEN):
        return _lost(_cause(error), request, "error")
    return None


def invalid_options(error: Exception, where: str) -> InvalidConfig:
    """Return the error for settings that no client can be made from."""
    return InvalidConfig(f"cannot make an S3 client for {where}: {error}", hint="check objects.endpoint and region")


def is_not_implemented(error: BaseException | None) -> bool:
    """Whether a service does not implement the request."""
    return isinstance(error, boto.ClientError) and error.response["ResponseMetadata"]["HTTPStatusCode"] == 501


def verdict_for(operation: str, code: str, status: int) -> tuple[type[OffloaderError], str]:
    """Return class and hint for an answer's error code and HTTP status."""
    found = VERDICTS.get(code)
    if found is None and code == "400":
        found = _Verdict(Expired, HINT_EXPIRED)  # an answer to HEAD has no reason; nothing else in it can be invalid
    found = found or STATUSES.get(status)
    if found is None:
        found = _Verdict(Transient) if status >= 500 else _Verdict(InvalidInput)
    return found.kind, found.hint.format(right=RIGHTS[operation])


def _answered(error: boto.ClientError, request: Request) -> Failure:
    """Return the failure for an error answer of the server."""
    details = error.response.get("Error", {})
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    code, words = str(details.get("Code", status)), str(details.get("Message", ""))
    kind, hint = verdict_for(request.operation, code, status)
    if kind is Transient and request.write and status in _UNSURE_STATUSES:
        kind = OutcomeUnknown
    said = f"{code}: {words}" if words and words != code else code
    return Failure(kind(_line(request, said), hint=hint), code)


def _never_connected(error: Exception) -> bool:
    """Whether no connection was made, rather than one broken; botocore has one exception for both."""
    if not isinstance(error, boto.EndpointConnectionError):
        return False
    return isinstance(error.kwargs.get("error"), aiohttp.ClientConnectorError | socket.gaierror)


def _still_expired(error: Exception) -> bool:
    """Whether refreshed credentials have expired as well; botocore raises a plain RuntimeError."""
    return type(error) is RuntimeError and "credentials are still expired" in str(error)


def _lost(what: str, request: Request, code: str) -> Failure:
    """Return the failure of a request that was sent and got no complete answer."""
    kind = OutcomeUnknown if request.write else Transient
    return Failure(kind(_line(request, f"the answer was lost: {what}"), hint=HINT_ENDPOINT), code)


def _cause(error: BaseException) -> str:
    """Return the library's own reason without wrappers."""
    inner = getattr(error, "kwargs", {}).get("error") or error
    if isinstance(inner, TimeoutError):
        return "timed out"
    return f"{type(inner).__name__}: {inner}" if str(inner) else type(inner).__name__


def _line(request: Request, what: str) -> str:
    return f"{request.operation} {request.where}: {what}"
