"""Reload of the settings while the daemon runs: all of them or none, with a report of each change.

The identity of a daemon, its stores and how they are reached, and sizes of blocks and parts are fixed at the start: a
change would hold for one part of the running work and not for the other. Limits, intervals, grants and log levels are
applied. `LIVE` lists them; docs/settings.md is generated with it. A mistake anywhere refuses the reload with every
mistake, and the settings stay as they are. Changes that need a restart are reported by each reload until the restart.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog

from offloaderd.access.audit import LOGGER, SCHEMA
from offloaderd.core.clock import Clock
from offloaderd.core.errors import Conflict, InvalidConfig, OffloaderError
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.daemon.log import unknown_modules
from offloaderd.daemon.settings.rules import RENAMED, broken_rules
from offloaderd.daemon.settings.sections import Settings, all_settings, section_types, shown, value_of

LIVE = frozenset({
    "access.audit_calls",
    "access.audit_reads",
    "access.calls_per_s", "access.grants", "access.identity_calls_max", "access.identity_readers_max",
    "access.namespace_expressions_max", "access.namespace_topics_max", "access.tenant_namespaces_max",
    "access.token_audience", "access.token_audience_claim", "access.token_claim", "access.token_groups_claim",
    "access.token_issuer", "access.token_jwks", "access.token_jwks_ca_file",
    "access.token_leeway_s", "access.token_public_alg", "access.token_public_alg_previous", "access.token_public_key",
    "access.token_public_key_previous", "access.token_secret_key", "access.token_secret_key_previous",
    "bookkeeper.bytes_per_s", "bookkeeper.requests_per_s", "bookkeeper.topic_bytes_per_s",
    "bookkeeper.topic_requests_per_s", "capture.enabled", "capture.interval_s", "capture.keep", "gc.grace_s",
    "gc.interval_s", "gc.mode", "grants.deletion_lag_s",
    "grants.interval_s", "grants.readback", "grpc.call_s_max", "grpc.calls_max", "grpc.send_s_max", "log.level",
    "log.levels", "memory.buffer_bytes", "memory.upload_bytes", "mirror.bytes_per_s", "mirror.place", "mirror.required",
    "offload.parts_in_flight_max", "offload.segment_age_max_s", "offload.segment_age_min_s",
    "offload.segment_bytes_max", "offload.suspend_after_s",
    "offload.verify", "outage.policy", "placement.grace_s", "placement.handover_s", "placement.handovers_max",
    "placement.impaired_s", "placement.cooldown_s", "placement.settle_s", "read.batch_bytes", "read.priority",
    "read.readers_max", "retention.age_s", "retention.follow_lag_s", "retention.interval_s", "retention.kind",
    "retention.size_bytes", "scrub.bytes_per_s", "scrub.first_after_s", "scrub.interval_s", "shutdown.drain_s",
    "tls.reload_s", "upload.concurrency_max",
})  # fmt: skip
"""Keys of the settings that a running daemon follows; all others need a restart."""


@dataclass(frozen=True, slots=True)
class Change:
    """A changed setting; `old` and `new` as in the settings file, secrets masked."""

    key: str
    old: str
    new: str

    @property
    def needs_restart(self) -> bool:
        """Whether it takes effect with the next start only."""
        return self.key not in LIVE


def changes(old: Settings, new: Settings) -> tuple[Change, ...]:
    """Return every setting whose value differs, in the order of the settings file."""
    found = []
    for setting in all_settings({**old.objects.services, **new.objects.services}):
        before, after = (value_of(one, setting.key) for one in (old, new))
        if before != after:
            found.append(Change(setting.key, shown(setting, before), shown(setting, after)))
    return tuple(found)


def followed(old: Settings, new: Settings) -> Settings:
    """Return the old settings with the new values of those in LIVE.

    Raises InvalidConfig if these break a rule with an old value that only a restart would change.
    """
    sections: dict[str, Any] = {}
    for name, kind in section_types().items():
        before, after = getattr(old, name), getattr(new, name)
        source = {field: after if f"{name}.{field}" in LIVE else before for field in kind.model_fields}
        given = {field for field, one in source.items() if field in one.model_fields_set}
        values = {field: getattr(one, field) for field, one in source.items()}
        sections[name] = kind.model_construct(given, **values)
    merged = Settings(**sections, renamed=new.renamed)
    if broken := broken_rules(merged):
        raise InvalidConfig(
            "\n  ".join(
                ["what takes effect at once does not go with what needs a restart:", *(one.text for one in broken)]
            ),
            hint="restart the daemon to change all of it together",
        )
    return merged


SIGNAL = "SIGHUP"
"""Who reloads by a signal."""

Prepare = Callable[[Settings], Callable[[], None]]
"""Checks new settings and returns a function that applies them. Raises InvalidConfig."""

log = structlog.get_logger(__name__)
audit = structlog.get_logger(LOGGER)


@dataclass(frozen=True, slots=True)
class Reloaded:
    """The changes of a reload."""

    changes: tuple[Change, ...]

    @property
    def live(self) -> tuple[Change, ...]:
        """Changes that take effect at once."""
        return tuple(one for one in self.changes if not one.needs_restart)

    @property
    def waiting(self) -> tuple[Change, ...]:
        """Changes that take effect with the next start."""
        return tuple(one for one in self.changes if one.needs_restart)


class Reloader:
    """Holds the effective settings. `reread` reads them again from their source; None: there is none.

    `pass_on` has the other processes of the host reload after a caller's reload here.
    """

    def __init__(
        self, settings: Settings, reread: Callable[[], Settings] | None, clock: Clock, metrics: Metrics
    ) -> None:
        self.settings = settings
        self._reread = reread
        self._clock = clock
        self._metrics = metrics
        self._prepare: Prepare | None = None
        self.pass_on: Callable[[], None] | None = None
        _warn(settings)
        self._measure(None)

    def connect(self, prepare: Prepare) -> None:
        """Set the function that prepares new settings."""
        self._prepare = prepare

    def reload(self, *, by: str, dry_run: bool = False) -> Reloaded:
        """Read the settings and apply them to the daemon; `by` is the caller, for the audit log.

        Raises InvalidConfig with every mistake, Conflict when the daemon cannot reload; then nothing has changed.
        """
        try:
            found = self._reload(dry_run=dry_run)
        except OffloaderError as error:
            if not dry_run:
                self._metrics.reloads.labels(outcome="refused").inc()
                self._metrics.reload_success.set(0)
            audit.warning("audit.reload", schema=SCHEMA, by=by, dry_run=dry_run, outcome="refused", error=error.message)
            raise
        if self.pass_on is not None and not dry_run and by != SIGNAL:
            self.pass_on()
        outcome = "planned" if dry_run else "done"
        audit.info(
            "audit.reload",
            schema=SCHEMA,
            by=by,
            dry_run=dry_run,
            outcome=outcome,
            changed=[f"{one.key}: {one.old} -> {one.new}" for one in found.live],
            restart=[f"{one.key}: {one.old} -> {one.new}" for one in found.waiting],
        )
        return found

    def on_signal(self) -> None:
        """Reload because of SIGHUP; errors are logged."""
        try:
            found = self.reload(by=SIGNAL)
        except OffloaderError as error:
            log.error("settings.not_reloaded", error=error.message, hint=error.hint)  # noqa: TRY400 - no bug of ours
        else:
            keys = [one.key for one in found.waiting]
            log.info("settings.reloaded", changed=[one.key for one in found.live], restart=keys)

    def _reload(self, *, dry_run: bool) -> Reloaded:
        if self._reread is None:
            hint = "reload works for `offloaderd serve`"
            raise Conflict("this daemon was not started from a settings file", hint=hint)
        if self._prepare is None:
            raise Conflict("the daemon is still starting", hint="try again when /readyz says that it serves")
        wanted = self._reread()
        _warn(wanted)
        settings = followed(self.settings, wanted)
        follow = self._prepare(settings)
        found = Reloaded(changes(self.settings, wanted))
        if not dry_run:
            follow()
            self.settings = settings
            self._measure(found)
        return found

    def _measure(self, found: Reloaded | None) -> None:
        """Set the metrics: the time of the last reload, and how many settings wait for a restart."""
        self._metrics.reload_success.set(1)
        self._metrics.reload_timestamp_seconds.set(self._clock.wall_ms() / 1000)
        self._metrics.reload_waiting_settings.set(len(found.waiting) if found is not None else 0)
        if found is not None:
            self._metrics.reloads.labels(outcome="done").inc()


def _warn(settings: Settings) -> None:
    for line in settings.renamed:
        log.warning("settings.renamed", setting=line, hint=RENAMED)
    for what, hint in unknown_modules(settings.log.levels):
        log.warning("settings.module_unknown", setting=what, hint=hint)
