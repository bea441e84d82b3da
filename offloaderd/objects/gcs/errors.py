"""Translation of all errors of Google Cloud Storage, google-auth and aiohttp to ours, with a remedy for operators.

Google says why it refused in a `reason` (docs.cloud.google.com/storage/docs/json_api/v1/status-codes), and which right
is missing in the message alone.
"""

import json
import re

import aiohttp
from google.auth import exceptions as auth

from offloaderd.core.errors import BucketMissing, Conflict, Denied, Expired, Throttled, Transient
from offloaderd.objects.failures import Answers, Failure, Request, Verdict, by_code, line, lost, unreachable

HINT_RIGHTS = "allow {right} to these credentials; the role that is needed is in deploy/gcs"
HINT_CREDENTIALS = "set objects.credentials_file, or give this machine or pod a service account"
HINT_EXPIRED = "the credentials are read again at every try; check that the service account and its key still exist"
HINT_SCOPES = "give the machine or node pool the scope devstorage.read_write or cloud-platform"
HINT_BUCKET = "create the bucket, or correct objects.bucket and objects.endpoint"
HINT_BILLING = "enable billing for the project of the bucket"
HINT_HELD = "remove the bucket's retention policy or hold: parts of an upload are deleted once it is completed"
HINT_KMS = "allow the service agent of Cloud Storage to use the bucket's key, and check that the key is enabled"
HINT_NOT_ISSUED = "check the credentials, and this machine's clock: a signed request for a token holds for minutes"
HINT_ISSUER = "check the way to the endpoint that issues tokens for these credentials"

RIGHTS = {
    "ListObjects": "storage.objects.list",
    "GetObject": "storage.objects.get",
    "HeadObject": "storage.objects.get",
    "InsertObject": "storage.objects.create",
    "ComposeObjects": "storage.objects.create",
    "DeleteObject": "storage.objects.delete",
    "CreateBucket": "storage.buckets.create",
    "GetBucket": "storage.buckets.get",
}
"""The right that each request needs first. To replace an object also takes storage.objects.delete, to compose objects
storage.objects.get: the message of a refusal names the one that is missing."""

_MEANINGS = (
    (Verdict(Throttled), "rateLimitExceeded userRateLimitExceeded quotaExceeded dailyLimitExceeded slowDown"),
    (Verdict(Denied, HINT_RIGHTS), "forbidden"),
    (Verdict(Denied, HINT_SCOPES), "insufficientPermissions"),
    (Verdict(Denied, HINT_BILLING), "accountDisabled accessNotConfigured billingNotEnabled"),
    (Verdict(Denied, HINT_HELD), "retentionPolicyNotMet objectUnderActiveHold"),
    (Verdict(Denied, HINT_KMS), "noUseOfTheKey"),
    (Verdict(Denied, HINT_CREDENTIALS), "required"),
    (Verdict(Expired, HINT_EXPIRED), "authError expired"),
    (Verdict(BucketMissing, HINT_BUCKET), "noSuchBucket"),
    (Verdict(Conflict), "conditionNotMet"),
    # Another request changed the same object meanwhile, perhaps a lost one of ours; or bytes were damaged on their way.
    (Verdict(Transient), "changedMeanwhile damaged"),
)
ANSWERS = Answers(by_code(_MEANINGS), RIGHTS, keys=HINT_EXPIRED, right=HINT_RIGHTS)
"""Google's reasons. `noSuchBucket`, `noUseOfTheKey`, `changedMeanwhile` and `damaged` are ours, where Google has one
reason for several things."""

_RIGHT = re.compile(r"\bstorage\.[a-zA-Z]+\.[a-zA-Z]+\b")
_UNREACHABLE = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL)
# A broken connection, or an unreadable answer.
_BROKEN = (aiohttp.ClientError, ConnectionError, ValueError, KeyError, TypeError)
WORDS_MAX = 500
"""Characters of a foreign message that are passed on."""


class Refused(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, body: bytes, location: str = "") -> None:
        self.status = status
        self.reason, self.words = _said(body)
        if location:  # without what follows the path, which may hold a signature
            self.words = f"redirected to {location.partition('?')[0][:WORDS_MAX]}"
        super().__init__(f"{status} {self.reason}: {self.words}")


class NoCredentials(Exception):
    """The credentials cannot be read."""


def failure(error: Exception, request: Request) -> Failure | None:
    """Translate an exception of google-auth, aiohttp, a time-out or a Refused; None for any other."""
    if isinstance(error, Refused):
        return _answered(error, request)
    if isinstance(error, auth.GoogleAuthError):
        return _without_token(error, request)
    if isinstance(error, NoCredentials):
        return Failure(Denied(line(request, f"no access token: {error}"), hint=HINT_CREDENTIALS), "error")
    if isinstance(error, _UNREACHABLE):
        return unreachable(str(error), request)
    if isinstance(error, TimeoutError):
        return lost("no answer in time", request, "timeout")
    if isinstance(error, _BROKEN):
        return lost(f"{type(error).__name__}: {error}", request, "error")
    return None


def _said(body: bytes) -> tuple[str, str]:
    """Return reason and message of an error answer; some are plain text."""
    try:
        error = json.loads(body)["error"]
        inner = error.get("errors") or [{}]
        return str(inner[0].get("reason", "")), str(error.get("message", ""))[:WORDS_MAX]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return "", " ".join(body.decode(errors="replace").split())[:WORDS_MAX]


def _answered(refused: Refused, request: Request) -> Failure:
    """Return the failure for an error answer; its remedy has the right that Google misses."""
    code, words = refused.reason or str(refused.status), refused.words
    if refused.status == 404 and "bucket does not exist" in words:
        code = "noSuchBucket"
    elif refused.status in {400, 403} and "KMS" in words:
        code = "noUseOfTheKey"
    elif refused.status == 409 and request.operation != "CreateBucket":
        code = "changedMeanwhile"
    elif refused.status == 400 and "doesn't match calculated" in words:
        code = "damaged"
    failed = ANSWERS.failure(request, code, words, refused.status)
    if (right := _RIGHT.search(words)) is not None:
        failed.error.hint = failed.error.hint.replace(RIGHTS[request.operation], right.group())
    return failed


def _without_token(error: auth.GoogleAuthError, request: Request) -> Failure:
    """Return the failure of a request that was not sent, as there is no access token."""
    said = line(request, f"no access token: {str(error)[:WORDS_MAX]}")
    if isinstance(error, auth.TransportError) or error.retryable:
        return Failure(Transient(said, hint=HINT_ISSUER), "unreachable")
    hint = HINT_CREDENTIALS if isinstance(error, auth.DefaultCredentialsError) else HINT_NOT_ISSUED
    return Failure(Denied(said, hint=hint), "error")
