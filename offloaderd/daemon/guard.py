"""Access control of a daemon, made from the settings: certificates, token keys, gate, and their renewal."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from offloaderd.access.certificates import Certificates, TlsFiles, Watched, load_certificates
from offloaderd.access.roles import Grant, Rights
from offloaderd.access.tokens import TokenKey, TokenRules, path_of_key, public_key, secret_key
from offloaderd.api.gate import Authentication, Gate, Limits
from offloaderd.core.clock import Clock
from offloaderd.core.health import Health
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.section import is_loopback
from offloaderd.daemon.settings import Settings
from offloaderd.daemon.settings.share import Process
from offloaderd.daemon.status_page.site import StatusSite

KEY_SETTINGS = tuple(
    f"{name}{age}" for name in ("token_secret_key", "token_public_key", "token_public_alg") for age in ("", "_previous")
)


class Guard:
    """The gate with its certificates and keys; `keep` follows their files. Raises InvalidConfig for unusable files."""

    def __init__(self, settings: Settings, clock: Clock, metrics: Metrics) -> None:
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self.certificates = _certificates(settings)
        self._token_keys = _token_keys(settings)
        self.gate = Gate(metrics, clock, _limits(settings), _authentication(settings, self._token_keys))
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
        same = all(getattr(settings.access, name) == getattr(self._settings.access, name) for name in KEY_SETTINGS)
        token_keys = self._token_keys if same else _token_keys(settings)

        def follow() -> None:
            self._settings, self._token_keys = settings, token_keys
            self.gate.follow(_limits(settings), _authentication(settings, token_keys))
            self._show()

        return follow

    async def keep(self) -> None:
        """Refresh the files periodically, until cancelled."""
        while True:
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
        failing = [one.failing for one in (self.certificates, *self._token_keys) if one is not None]
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


def _authentication(settings: Settings, keys: Sequence[Watched[TokenKey]]) -> Authentication | None:
    access, certificates = settings.access, settings.tls.client_ca_file is not None
    if not certificates and not keys:
        return None
    return Authentication(
        rights=Rights(map(Grant.parse, access.grants)),
        certificates=certificates,
        token_keys=lambda: [key.value for key in keys],
        token_rules=TokenRules(
            claim=access.token_claim,
            audience_claim=access.token_audience_claim,
            audience=access.token_audience or "",
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
    )


def _certificates(settings: Settings) -> Watched[Certificates] | None:
    tls = settings.tls
    if tls.cert_file is None or tls.key_file is None:
        return None
    client_ca = Path(tls.client_ca_file) if tls.client_ca_file is not None else None
    files = TlsFiles(cert=Path(tls.cert_file), key=Path(tls.key_file), client_ca=client_ca)
    return Watched(files.all, lambda: load_certificates(files))


def _token_keys(settings: Settings) -> tuple[Watched[TokenKey], ...]:
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
            keys.append(Watched([path] if path is not None else [], load))
    return tuple(keys)
