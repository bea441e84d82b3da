"""Translation of all errors of botocore and aiohttp to ours: S3's codes, rights and remedies."""

import socket

import aiohttp
from botocore import exceptions as boto
from botocore.parsers import ResponseParserError

from offloaderd.core.errors import (
    Archived,
    BucketMissing,
    Conflict,
    Denied,
    Expired,
    InvalidConfig,
    InvalidInput,
    NoSpace,
    NotFound,
    Throttled,
    Transient,
)
from offloaderd.objects.failures import (
    HINT_SPACE,
    Answers,
    Failure,
    Request,
    Verdict,
    by_code,
    line,
    lost,
    unreachable,
)

HINT_KEYS = "check objects.access_key and objects.secret_key"
HINT_RIGHTS = "allow {right} to these credentials; the policy that is needed is in deploy/s3"
HINT_EXPIRED = "refresh the credentials where they come from (profile, role): they are read again at every try"
HINT_BUCKET = "create the bucket, or correct objects.bucket and objects.endpoint"
HINT_REGION = "set objects.region, or objects.endpoint, to where the bucket is"
HINT_CLOCK = "set this machine's clock: signatures hold for 15 minutes"
HINT_KMS = "check objects.kms_key_id: the key has to be there, be enabled and be for encryption"
HINT_CLASS = "have the policy, or objects.storage_class, name a class that this service has; empty: the bucket's own"
HINT_ARCHIVED = (
    "restore it (aws s3api restore-object), then copy it over itself in a class that is read at once; offloadctl "
    "doctor names the life-cycle rule that archives"
)
HINT_ANSWER = "check that objects.endpoint is an S3 service, and what a proxy on the way changes of its answers"
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
    "GetBucketLifecycleConfiguration": "s3:GetLifecycleConfiguration",
    "GetBucketVersioning": "s3:GetBucketVersioning",
    "CreateBucket": "s3:CreateBucket",
}
"""The right that each request needs, from AWS's service authorization reference: stores only say that it was denied."""


_MEANINGS = (
    (Verdict(Throttled), "SlowDown SlowDownRead SlowDownWrite ServiceUnavailable Throttling ThrottlingException"),
    (Verdict(Throttled), "RequestThrottled TooManyRequests RequestLimitExceeded BandwidthLimitExceeded Busy"),
    (Verdict(Denied, HINT_KEYS), "InvalidAccessKeyId SignatureDoesNotMatch InvalidToken XAdminUserNotFound"),
    (Verdict(Denied, HINT_KMS), "KMS.NotFoundException KMS.DisabledException KMS.KMSInvalidStateException"),
    (Verdict(Denied, HINT_KMS), "KMS.InvalidKeyUsageException kms:KeyNotFound kms:NotAuthorized"),
    (Verdict(Denied, HINT_RIGHTS), "AccessDenied AllAccessDisabled AccountProblem UnauthorizedAccess"),
    (Verdict(Archived, HINT_ARCHIVED), "InvalidObjectState"),
    # An answer to HEAD has no reason but its status; nothing else than the token in it can be invalid.
    (Verdict(Expired, HINT_EXPIRED), "ExpiredToken ExpiredTokenException TokenRefreshRequired 400"),
    (Verdict(Denied, HINT_REGION), "PermanentRedirect TemporaryRedirect AuthorizationHeaderMalformed"),
    (Verdict(Denied, HINT_REGION), "IllegalLocationConstraintException"),
    (Verdict(Denied, HINT_CLOCK), "RequestTimeTooSkewed RequestExpired"),
    (Verdict(BucketMissing, HINT_BUCKET), "NoSuchBucket InvalidBucketName"),
    (Verdict(NotFound), "NoSuchKey NoSuchUpload NoSuchVersion NotFound"),
    (
        Verdict(InvalidInput),
        "InvalidRange InvalidPart InvalidPartOrder InvalidPartNumber EntityTooSmall EntityTooLarge",
    ),
    (Verdict(InvalidInput, HINT_CLASS), "InvalidStorageClass"),
    (Verdict(InvalidInput), "InvalidTag InvalidArgument InvalidRequest KeyTooLongError MetadataTooLarge MalformedXML"),
    (Verdict(NoSpace, HINT_SPACE), "QuotaExceeded InsufficientStorage InsufficientCapacity StorageFull NoSpaceLeft"),
    (Verdict(NoSpace, HINT_SPACE), "XMinioStorageFull XMinioAdminBucketQuotaExceeded"),
    (Verdict(Conflict), "PreconditionFailed BucketAlreadyExists"),
    # Another request for the same object is in progress, perhaps a lost one of ours: it has to end first.
    (Verdict(Transient), "OperationAborted ConditionalRequestConflict"),
    # The bytes were damaged or late in transit; the same request may well succeed.
    (Verdict(Transient), "RequestTimeout IncompleteBody BadDigest XAmzContentChecksumMismatch"),
    (Verdict(Transient), "XAmzContentSHA256Mismatch InternalError InternalServerError"),
)
ANSWERS = Answers(by_code(_MEANINGS), RIGHTS, keys=HINT_KEYS, right=HINT_RIGHTS)
"""Error codes of S3 and of compatible stores."""

_NO_CREDENTIALS = (boto.NoCredentialsError, boto.PartialCredentialsError)
_NOT_REFRESHED = (boto.CredentialRetrievalError, boto.TokenRetrievalError, boto.SSOError)
_NOT_SENT = (boto.ConnectTimeoutError, boto.ProxyConnectionError, boto.SSLError)
# All others: a broken connection, or an unreadable answer.
_BROKEN = (boto.BotoCoreError, ResponseParserError, aiohttp.ClientError, ConnectionError)


def failure(error: Exception, request: Request) -> Failure | None:
    """Translate an exception of botocore, aiohttp or a time-out; None for any other."""
    if isinstance(error, boto.ClientError):
        return _answered(error, request)
    if isinstance(error, _NO_CREDENTIALS):
        return Failure(Denied(line(request, str(error)), hint=HINT_CREDENTIALS), "error")
    if isinstance(error, _NOT_REFRESHED) or _still_expired(error):
        return Failure(Expired(line(request, str(error)), hint=HINT_EXPIRED), "error")
    if isinstance(error, boto.ParamValidationError):
        return Failure(InvalidInput(line(request, str(error))), "error")
    if isinstance(error, _NOT_SENT) or _never_connected(error):
        return unreachable(_cause(error), request)
    if isinstance(error, boto.ReadTimeoutError | TimeoutError):
        return lost("no answer in time", request, "timeout")
    if isinstance(error, _BROKEN):
        return lost(_cause(error), request, "error")
    return None


def invalid_options(error: Exception, where: str) -> InvalidConfig:
    """Return the error for settings that no client can be made from."""
    return InvalidConfig(f"cannot make an S3 client for {where}: {error}", hint="check objects.endpoint and region")


def is_not_implemented(error: BaseException | None) -> bool:
    """Whether a service does not implement the request."""
    return isinstance(error, boto.ClientError) and error.response["ResponseMetadata"]["HTTPStatusCode"] == 501


_ELSEWHERE = {"AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException", "301", "307"}


def is_elsewhere(error: BaseException | None) -> bool:
    """Whether a refusal says that the bucket is in another region, which botocore looks up at its own requests.

    One of HEAD has no words, and may say so by its status.
    """
    if not isinstance(error, boto.ClientError):
        return False
    code = error.response.get("Error", {}).get("Code")
    return code in _ELSEWHERE or (code == "400" and error.operation_name == "HeadObject")


def _answered(error: boto.ClientError, request: Request) -> Failure:
    """Return the failure for an error answer of the server."""
    details = error.response.get("Error", {})
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    code, words = str(details.get("Code", status)), str(details.get("Message", ""))
    return ANSWERS.failure(request, code, words, status)


def _never_connected(error: Exception) -> bool:
    """Whether no connection was made, rather than one broken; botocore has one exception for both."""
    if not isinstance(error, boto.EndpointConnectionError):
        return False
    return isinstance(error.kwargs.get("error"), aiohttp.ClientConnectorError | socket.gaierror)


def _still_expired(error: Exception) -> bool:
    """Whether refreshed credentials have expired as well; botocore raises a plain RuntimeError."""
    return type(error) is RuntimeError and "credentials are still expired" in str(error)


def _cause(error: BaseException) -> str:
    """Return the library's own reason without wrappers."""
    inner = getattr(error, "kwargs", {}).get("error") or error
    if isinstance(inner, TimeoutError):
        return "timed out"
    return f"{type(inner).__name__}: {inner}" if str(inner) else type(inner).__name__
