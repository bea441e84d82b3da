"""Translation of the errors of Azure's libraries to ours: the service's codes, rights and remedies.

Codes are those of "Blob service error codes" in Azure's REST reference. The service gives many causes the one code
AuthenticationFailed and says the cause in a detail, so some details have a code of ours here.
"""

import re

import aiohttp
from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ServiceRequestError,
    ServiceResponseError,
    ServiceResponseTimeoutError,
)

from offloaderd.core.errors import (
    Archived,
    BucketMissing,
    Conflict,
    Denied,
    Expired,
    InvalidInput,
    NotFound,
    Throttled,
    Transient,
)
from offloaderd.objects.failures import Answers, Failure, Request, Verdict, by_code, line, lost, unreachable

HINT_KEYS = "check objects.azure_account and its key, SAS or connection string"
HINT_RIGHTS = (
    "allow {right} to these credentials, by the role in deploy/azure or in the SAS; where they have it, "
    "let this address through the account's firewall"
)
HINT_SAS = "make a SAS for the service Blob, containers and objects, this address and this protocol"
HINT_EXPIRED = (
    "set a SAS that is valid now in objects.azure_sas, or in objects.credentials_file, which is read again; and check "
    "this machine's clock"
)
HINT_HOST = "check objects.azure_account (the host bears its name) or objects.endpoint, and that it is reached"
HINT_CLOCK = "set this machine's clock: signatures hold for 15 minutes"
HINT_IDENTITY = "give this machine or pod an identity, or set objects.azure_key, azure_sas or azure_connection_string"
HINT_KEY_OFF = "the account takes no keys: remove objects.azure_key and use an identity"
HINT_CONTAINER = "create the container, or correct objects.bucket and objects.azure_account"
HINT_ARCHIVED = (
    "rehydrate it (az storage blob set-tier --tier Hot), which takes hours, and change the life-cycle policy of the "
    "account that archived it"
)
HINT_LOCKED = "a lease, a legal hold or an immutability policy protects the blob: end it, or use another container"

_BLOBS = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs"
RIGHTS = {
    "ListBlobs": f"{_BLOBS}/read (SAS: l)",
    "GetBlob": f"{_BLOBS}/read (SAS: r)",
    "GetBlobProperties": f"{_BLOBS}/read (SAS: r)",
    "GetBlockList": f"{_BLOBS}/read (SAS: r)",
    "PutBlob": f"{_BLOBS}/write (SAS: w)",
    "PutBlock": f"{_BLOBS}/write (SAS: w)",
    "PutBlockList": f"{_BLOBS}/write (SAS: w)",
    "DeleteBlob": f"{_BLOBS}/delete (SAS: d)",
    "CreateContainer": "Microsoft.Storage/storageAccounts/blobServices/containers/write (SAS: c)",
}
"""The right that each request needs, from Azure's "Permissions for calling data operations"."""

_MEANINGS = (
    (Verdict(Throttled), "ServerBusy TooManyRequests OperationNotAllowedDuringThrottling"),
    (Verdict(Denied, HINT_KEYS), "AuthenticationFailed InvalidAuthenticationInfo NoAuthenticationInformation"),
    (Verdict(Denied, HINT_KEYS), "AccountIsDisabled"),
    (Verdict(Denied, HINT_KEY_OFF), "KeyBasedAuthenticationNotPermitted"),
    (Verdict(Denied, HINT_RIGHTS), "AuthorizationFailure AuthorizationPermissionMismatch"),
    (Verdict(Denied, HINT_RIGHTS), "InsufficientAccountPermissions"),
    (Verdict(Denied, HINT_SAS), "AuthorizationProtocolMismatch AuthorizationResourceTypeMismatch"),
    (Verdict(Denied, HINT_SAS), "AuthorizationServiceMismatch AuthorizationSourceIPMismatch"),
    (Verdict(Archived, HINT_ARCHIVED), "BlobArchived BlobBeingRehydrated"),
    (Verdict(Expired, HINT_EXPIRED), "SasOutOfTime"),
    (Verdict(Denied, HINT_CLOCK), "ClockTooFarOff"),
    (Verdict(Denied, HINT_LOCKED), "BlobImmutableDueToPolicy LeaseIdMissing LeaseIdMismatchWithBlobOperation"),
    (Verdict(BucketMissing, HINT_CONTAINER), "ContainerNotFound ContainerBeingDeleted ContainerDisabled"),
    (Verdict(BucketMissing, HINT_CONTAINER), "InvalidResourceName ResourceNotFound"),
    (Verdict(NotFound), "BlobNotFound"),
    (Verdict(InvalidInput), "InvalidBlockList InvalidBlockId InvalidBlobOrBlock BlockCountExceedsLimit InvalidRange"),
    (Verdict(InvalidInput), "InvalidInput InvalidHeaderValue InvalidMetadata MetadataTooLarge RequestBodyTooLarge"),
    (Verdict(Conflict), "ConditionNotMet TargetConditionNotMet BlobAlreadyExists ContainerAlreadyExists"),
    # The bytes were damaged in transit; the same request may well succeed.
    (Verdict(Transient), "Md5Mismatch Crc64Mismatch InternalError OperationTimedOut"),
)
ANSWERS = Answers(by_code(_MEANINGS), RIGHTS, keys=HINT_KEYS, right=HINT_RIGHTS)

_DETAILS = (
    (re.compile(r"not valid in the specified time frame|[Ss]igned expiry|SAS.*expired"), "SasOutOfTime"),
    (re.compile(r"[Dd]ate header"), "ClockTooFarOff"),
    (re.compile(r"failed to authenticate"), "AuthenticationFailed"),
)
"""Causes of AuthenticationFailed."""


def failure(error: Exception, request: Request) -> Failure | None:
    """Translate an exception of Azure's libraries, aiohttp's in a body, or a time-out; None for any other."""
    if isinstance(error, ClientAuthenticationError) and getattr(error, "error_code", None) is None:
        # From azure-identity: the service itself gives every refusal a code.
        return Failure(Denied(line(request, _first(error)), hint=HINT_IDENTITY), "error")
    if isinstance(error, HttpResponseError) and error.status_code:
        return _answered(error, request)
    if isinstance(error, ServiceResponseTimeoutError | TimeoutError):
        return lost("no answer in time", request, "timeout")
    if isinstance(error, ServiceRequestError) and _never_connected(error):
        return unreachable(_first(error), request, hint=HINT_HOST)
    if isinstance(error, ServiceResponseError | AzureError | aiohttp.ClientError | ConnectionError):
        return lost(_first(error), request, "error")
    return None


def _answered(error: HttpResponseError, request: Request) -> Failure:
    """Return the failure for an error answer of the service."""
    status, found = error.status_code or 0, getattr(error, "error_code", None)
    code = str(getattr(found, "value", found) or status)
    details = " ".join(str(told) for told in getattr(error, "additional_info", {}).values())
    words = " ".join((_first(error), details)).strip()
    if code in {"AuthenticationFailed", "AuthorizationFailure", "InvalidAuthenticationInfo"}:
        code = next((cause for pattern, cause in _DETAILS if pattern.search(words)), code)
    return ANSWERS.failure(request, code, words, status)


def _never_connected(error: ServiceRequestError) -> bool:
    """Whether no connection was made, rather than one broken; the library has one exception for both."""
    inner = error.inner_exception
    return type(inner).__name__.startswith("ClientConnector") or "ConnectionTimeout" in type(inner).__name__


def _first(error: Exception) -> str:
    """Return the first line of the library's message, which adds the request's number and the time."""
    return (str(getattr(error, "message", error)) or type(error).__name__).splitlines()[0]
