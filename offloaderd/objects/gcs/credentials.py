"""Access tokens for Google Cloud Storage, from google-auth: renewed before they end, and after a refusal.

google-auth finds the credentials: a file of the settings (key of a service account, workload identity federation, a
user's own), else the application default (GOOGLE_APPLICATION_CREDENTIALS, gcloud's file, the metadata server of the
machine or pod). It blocks, so it works in a thread. A token is renewed by one request for all, some minutes before its
end. After a refusal file or chain are read again, but not twice within RENEWAL_S. After a failure all requests of that
time fail alike, without another request for a token.
"""

import asyncio
import json
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import google.auth
import structlog
from google.auth import aws, environment_vars, identity_pool, impersonated_credentials, pluggable
from google.auth import exceptions as auth
from google.auth.transport.requests import Request as AuthRequest
from google.oauth2 import credentials as user
from google.oauth2 import service_account

from offloaderd.core.clock import Clock
from offloaderd.core.errors import InvalidConfig
from offloaderd.objects.gcs.errors import WORDS_MAX, NoCredentials
from offloaderd.objects.settings import ServiceSettings

log = structlog.get_logger(__name__)

SCOPES = ("https://www.googleapis.com/auth/devstorage.read_write",)
RENEWAL_S = 5.0
"""Least time between two readings of the credentials: many simultaneous refusals read them once."""
AHEAD_S = 225.0
"""A token is renewed this long before its end. The metadata server replaces its own no earlier."""


class Credentials(Protocol):
    """What is used of google-auth's credentials."""

    token: str | None
    expiry: datetime | None

    def refresh(self, request: Any) -> None:  # noqa: ANN401 - google-auth's own
        """Fetch a token. Raises GoogleAuthError."""


class Tokens:
    """Lends the present token to one request at a time."""

    def __init__(self, load: Callable[[], Credentials] | None, clock: Clock, timeout_s: float) -> None:
        """Take how to find the credentials, None for none; `timeout_s` limits one request for a token."""
        self._load = load
        self._clock = clock
        self._timeout_s = timeout_s
        self._credentials: Credentials | None = None
        self._token = ""
        self._ends_s = 0.0
        self._tried_s: float | None = None
        self._failure: Exception | None = None
        self._refused = ""
        self._turn = asyncio.Lock()

    async def token(self) -> str:
        """Return a token that holds, "" without credentials. Raises GoogleAuthError, NoCredentials."""
        if self._load is None:
            return ""
        if not self._due():
            return self._token
        async with self._turn:
            if self._due():
                if self._failure is not None and self._is_soon():
                    raise self._failure.with_traceback(None)
                await self._renew()
        return self._token

    def refused(self, token: str) -> None:
        """Have the next request read the credentials again, if the store refused the present token."""
        self._refused = token

    def _due(self) -> bool:
        now = self._clock.monotonic()
        if not self._token or now >= self._ends_s:
            return True
        if self._is_soon():
            return False
        return self._refused == self._token or now >= self._ends_s - AHEAD_S

    def _is_soon(self) -> bool:
        return self._tried_s is not None and self._clock.monotonic() - self._tried_s < RENEWAL_S

    async def _renew(self) -> None:
        """Fetch a token. While the present one holds, a failure of an early renewal is only logged."""
        again = bool(self._refused) and self._refused == self._token
        self._tried_s, self._failure = self._clock.monotonic(), None
        try:
            credentials, token, left_s = await asyncio.to_thread(self._fetched, None if again else self._credentials)
        except (auth.GoogleAuthError, NoCredentials) as error:
            self._credentials = None  # a corrected file, or a role that was added, is found at the next try
            if again or self._clock.monotonic() >= self._ends_s:
                self._token, self._failure = "", error
                self._tried_s = self._clock.monotonic()  # the pause begins when the answer is there
                raise
            log.warning("credentials.unreadable", where="the token endpoint", error=str(error)[:WORDS_MAX])
            return
        self._credentials, self._token, self._ends_s = credentials, token, self._clock.monotonic() + left_s
        if again:
            log.info("credentials.reloaded", where="Google Cloud Storage")

    def _fetched(self, credentials: Credentials | None) -> tuple[Credentials, str, float]:
        """Return credentials, a new token of theirs and how long it holds (in a thread)."""
        session = AuthRequest()
        try:
            if credentials is None:
                assert self._load is not None  # noqa: S101 - checked by `token`
                credentials = self._load()
            credentials.refresh(partial(session, timeout=self._timeout_s))
        except (ValueError, OSError, KeyError, TypeError, AttributeError) as error:  # as google-auth reads a file
            raise NoCredentials(f"{type(error).__name__}: {error}") from error
        finally:
            session.session.close()
        left_s = 3600.0
        if credentials.expiry is not None:
            left_s = (credentials.expiry.replace(tzinfo=UTC) - datetime.now(UTC)).total_seconds()  # noqa: TID251 - as google-auth has reckoned it
        return credentials, credentials.token or "", left_s


def found(options: ServiceSettings) -> Callable[[], Credentials] | None:
    """Return how to find the credentials; None for an endpoint that gets no token.

    An emulator on loopback without TLS gets one from a file alone. Raises InvalidConfig for a way that others can read.
    """
    endpoint = options.endpoint
    if options.sign_payloads:
        raise InvalidConfig(
            f"objects.endpoint {endpoint} has no TLS, and an access token is a password", hint="use https"
        )
    if options.credentials_file is not None:
        return partial(from_file, Path(options.credentials_file))
    if endpoint is not None and endpoint.startswith("http://"):
        return None
    return default


def default() -> Credentials:
    """Return the application default credentials. Raises as `from_file`."""
    named = os.environ.get(environment_vars.CREDENTIALS)
    if named:
        return from_file(Path(named))
    return google.auth.default(scopes=SCOPES)[0]


def from_file(path: Path) -> Credentials:
    """Return the credentials of a file, without a request. Raises GoogleAuthError, OSError, ValueError, NoCredentials.

    google-auth's own function for this asks Google for the project's name, which nobody needs here.
    """
    content = json.loads(path.read_bytes())
    kind = str(content.get("type", "")) if isinstance(content, dict) else ""
    if kind not in KINDS:
        raise NoCredentials(f"{path} is of type {kind!r}, not one of {', '.join(sorted(KINDS))}")
    return KINDS[kind](content, scopes=SCOPES)


def _federated(content: Mapping[str, Any], scopes: Sequence[str]) -> Credentials:
    """Return the credentials of a workload identity federation."""
    kind: Any = identity_pool.Credentials
    if content.get("subject_token_type") == "urn:ietf:params:aws:token-type:aws4_request":
        kind = aws.Credentials
    elif "executable" in content.get("credential_source", {}):
        kind = pluggable.Credentials
    made: Credentials = kind.from_info(content, scopes=scopes)
    return made


KINDS: Mapping[str, Callable[..., Credentials]] = MappingProxyType(
    {
        "service_account": service_account.Credentials.from_service_account_info,
        "external_account": _federated,
        "authorized_user": user.Credentials.from_authorized_user_info,
        "impersonated_service_account": impersonated_credentials.Credentials.from_impersonated_service_account_info,
    }
)
"""How to make credentials of each type of file."""
