"""Access control of a daemon, made from the settings: certificates, token keys, gate, and their renewal."""

import ssl
from collections.abc import Callable, Sequence
from functools import partial
from http import HTTPStatus
from pathlib import Path

import aiohttp

from offloaderd.access.certificates import Certificates, TlsFiles, Watched, load_certificates
from offloaderd.access.jwks import BYTES_MAX, RemoteKeys, is_address, parse
from offloaderd.access.roles import Grant, Rights
from offloaderd.access.tokens import TokenKey, TokenRules, path_of_key, public_key, secret_key
from offloaderd.api.gate import Authentication, Gate, Limits
from offloaderd.core.clock import Clock
from offloaderd.core.errors import InvalidConfig, Transient
from offloaderd.core.health import Health
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.section import is_loopback
from offloaderd.daemon.settings import Settings
from offloaderd.daemon.settings.share import Process
from offloaderd.daemon.status_page.site import StatusSite

PROVIDER_SETTINGS = ("token_jwks", "token_jwks_ca_file")
KEY_SETTINGS = (
    *(
        f"{name}{age}"
        for name in ("token_secret_key", "token_public_key", "token_public_alg")
        for age in ("", "_previous")
    ),
    *PROVIDER_SETTINGS,
)
TokenKeys = tuple[TokenKey, ...]
FETCH_S = 10.0
"""How long the provider of keys may take."""


class Guard:
    """The gate with its certificates and keys; `keep` follows their files. Raises InvalidConfig for unusable files."""

    def __init__(self, settings: Settings, clock: Clock, metrics: Metrics) -> None:
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self.certificates = _certificates(settings)
        self._token_keys = _token_keys(settings)
        self._provider = _provider(settings, clock)
        self.gate = Gate(metrics, clock, _limits(settings), self._authentication())
        self._show()

    def site(self, health: Health, process: Process | None = None) -> StatusSite | None:
        """Return the status page behind the gate, None if it is switched off; of one of several processes without it:
        its parent has let the caller in.
        """
        http = self._settings.http
        if not http.status_page:
            return None
        if process is not None:
            return StatusSite(None, health, private=False, process=(process.number, process.count))
        return StatusSite(self.gate, health, private=self.is_private)

    @property
    def is_private(self) -> bool:
        """Whether only this machine reaches the status page, and without authentication."""
        return is_loopback(self._settings.http.host) and not self._settings.is_authenticated

    def prepare(self, settings: Settings) -> Callable[[], None]:
        """Read the key files of new settings; return the function that applies their grants, limits and token keys.

        Raises InvalidConfig for a key that cannot be used.
        """

        def same(names: Sequence[str]) -> bool:
            return all(getattr(settings.access, name) == getattr(self._settings.access, name) for name in names)

        token_keys = self._token_keys if same(KEY_SETTINGS) else _token_keys(settings)
        provider = self._provider if same(PROVIDER_SETTINGS) else _provider(settings, self._clock)
        if provider is not None and self._provider is not None and provider.address == self._provider.address:
            provider.value = self._provider.value

        def follow() -> None:
            self._settings, self._token_keys, self._provider = settings, token_keys, provider
            self.gate.follow(_limits(settings), self._authentication())
            self._show()

        return follow

    def _authentication(self) -> Authentication | None:
        return _authentication(self._settings, self._token_keys, self._provider)

    async def keep(self) -> None:
        """Refresh the files, and the keys of the provider, periodically, until cancelled."""
        while True:
            if self._provider is not None and await self._provider.refresh():
                self.gate.check_running()
            self._show()
            await self._clock.sleep(self._settings.tls.reload_s)
            self.refresh()

    def refresh(self) -> None:
        """Read the files that have changed."""
        for watched in (self.certificates, *self._token_keys):
            if watched is not None:
                watched.refresh()
        self.gate.check_running()
        self._show()

    def _show(self) -> None:
        grpc, access = self._settings.grpc, self._settings.access
        failing = [one.failing for one in (self.certificates, *self._token_keys, self._provider) if one is not None]
        self._metrics.tls_reload_failing.set(any(failing))
        expires_s = self.certificates.value.expires_s if self.certificates is not None else 0
        self._metrics.tls_expires_timestamp_seconds.set(expires_s)
        for limit, value in (
            ("calls", grpc.calls_max),
            ("calls_per_s", access.calls_per_s),
            ("identity_calls", access.identity_calls_max),
            ("identity_readers", access.identity_readers_max),
            ("namespace_expressions", access.namespace_expressions_max),
            ("namespace_topics", access.namespace_topics_max),
            ("tenant_namespaces", access.tenant_namespaces_max),
            ("call_s", grpc.call_s_max),
            ("send_s", grpc.send_s_max),
            ("message_bytes", grpc.message_bytes_max),
            ("streams_per_connection", grpc.streams_max),
        ):
            self._metrics.grpc_limit.labels(limit=limit).set(value)


def _authentication(
    settings: Settings, keys: Sequence[Watched[TokenKeys]], provider: RemoteKeys | None
) -> Authentication | None:
    access, certificates = settings.access, settings.tls.client_ca_file is not None
    if not certificates and not keys and provider is None:
        return None

    def token_keys() -> list[TokenKey]:
        of_provider = provider.value if provider is not None else ()
        return [*(key for watched in keys for key in watched.value), *of_provider]

    return Authentication(
        rights=Rights(map(Grant.parse, access.grants)),
        certificates=certificates,
        token_keys=token_keys,
        missed=provider.missed if provider is not None else None,
        token_rules=TokenRules(
            claim=access.token_claim,
            audience_claim=access.token_audience_claim,
            audience=access.token_audience or "",
            issuer=access.token_issuer or "",
            groups_claim=access.token_groups_claim or "",
            leeway_s=access.token_leeway_s,
        ),
    )


def _limits(settings: Settings) -> Limits:
    grpc = settings.grpc
    return Limits(
        calls_max=grpc.calls_max,
        calls_per_s=settings.access.calls_per_s,
        identity_calls_max=settings.access.identity_calls_max,
        identity_readers_max=settings.access.identity_readers_max,
        call_s_max=grpc.call_s_max,
        send_s_max=grpc.send_s_max,
        audit_reads=settings.access.audit_reads,
        audit_calls=settings.access.audit_calls,
    )


def _certificates(settings: Settings) -> Watched[Certificates] | None:
    tls = settings.tls
    if tls.cert_file is None or tls.key_file is None:
        return None
    client_ca = Path(tls.client_ca_file) if tls.client_ca_file is not None else None
    files = TlsFiles(cert=Path(tls.cert_file), key=Path(tls.key_file), client_ca=client_ca)
    return Watched(files.all, lambda: load_certificates(files))


def _provider(settings: Settings, clock: Clock) -> RemoteKeys | None:
    """Return the keys at an address, which are not read yet; None without one. Raises InvalidConfig."""
    address, ca_file = settings.access.token_jwks, settings.access.token_jwks_ca_file
    if address is None or not is_address(address):
        return None
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise InvalidConfig(f"access.token_jwks_ca_file: cannot use {ca_file}: {error}", hint="it is PEM") from None

    async def fetch(of: str) -> bytes:
        timeout = aiohttp.ClientTimeout(total=FETCH_S)
        try:
            # A redirection could leave TLS.
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.get(of, ssl=context, allow_redirects=False) as answer,
            ):
                if answer.status != HTTPStatus.OK:
                    raise Transient(f"{of} gives no keys: it answers {answer.status}")
                found = bytearray()
                async for more in answer.content.iter_any():
                    found += more
                    if len(found) > BYTES_MAX:
                        break
                return bytes(found)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:  # ValueError: a host that is no name
            raise Transient(f"{of} gives no keys: {str(error) or 'it takes too long'}") from None

    return RemoteKeys(address, fetch, clock)


def _token_keys(settings: Settings) -> tuple[Watched[TokenKeys], ...]:
    """Return the keys that tokens may be signed with, the current one first. Raises InvalidConfig."""
    access, keys = settings.access, []
    algorithm = access.token_public_alg
    for age, used in (("", algorithm), ("_previous", access.token_public_alg_previous or algorithm)):
        for name in ("token_secret_key", "token_public_key"):
            if (given := getattr(access, name + age)) is None:
                continue
            text, setting = given.get_secret_value(), f"access.{name}{age}"
            load = partial(secret_key, text, setting)
            if name == "token_public_key":
                load = partial(public_key, text, used, setting)
            path = path_of_key(text)
            keys.append(Watched([path] if path is not None else [], partial(_alone, load)))
    if access.token_jwks is not None and not is_address(access.token_jwks):
        path = Path(access.token_jwks.removeprefix("file:").removeprefix("//"))
        keys.append(Watched([path], partial(_of_file, path)))
    return tuple(keys)


def _alone(load: Callable[[], TokenKey]) -> TokenKeys:
    return (load(),)


def _of_file(path: Path) -> TokenKeys:
    """Read the keys of a provider from a file. Raises InvalidConfig."""
    try:
        return parse(path.read_bytes(), str(path))
    except OSError as error:
        raise InvalidConfig(
            f"access.token_jwks: cannot read {path}: {error.strerror}", hint="a file, or https"
        ) from None
