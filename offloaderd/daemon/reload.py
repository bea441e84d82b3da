"""Reload of the settings while the daemon runs: all of them or none, with a report of each change.

A mistake anywhere refuses the reload with every mistake, and the settings stay as they are. Changes that need a restart
are reported by each reload until the restart.
"""

from collections.abc import Callable
from dataclasses import dataclass

import structlog

from offloaderd.core.clock import Clock
from offloaderd.core.errors import Conflict, OffloaderError
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.daemon.log.modules import AUDIT, unknown_modules
from offloaderd.daemon.settings import Settings
from offloaderd.daemon.settings.change import Change, changes, followed
from offloaderd.daemon.settings.rules import RENAMED

Prepare = Callable[[Settings], Callable[[], None]]
"""Checks new settings and returns a function that applies them. Raises InvalidConfig."""

log = structlog.get_logger(__name__)
audit = structlog.get_logger(AUDIT)


@dataclass(frozen=True, slots=True)
class Reloaded:
    """The changes of a reload. With `dry_run` they were not applied."""

    changes: tuple[Change, ...]
    dry_run: bool

    @property
    def live(self) -> tuple[Change, ...]:
        """Changes that take effect at once."""
        return tuple(one for one in self.changes if not one.needs_restart)

    @property
    def waiting(self) -> tuple[Change, ...]:
        """Changes that take effect with the next start."""
        return tuple(one for one in self.changes if one.needs_restart)


class Reloader:
    """Holds the effective settings. `reread` reads them again from their source; None: there is none."""

    def __init__(
        self, settings: Settings, reread: Callable[[], Settings] | None, clock: Clock, metrics: Metrics
    ) -> None:
        self.settings = settings
        self._reread = reread
        self._clock = clock
        self._metrics = metrics
        self._prepare: Prepare | None = None
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
            audit.warning("audit.reload", by=by, dry_run=dry_run, outcome="refused", error=error.message)
            raise
        outcome = "planned" if dry_run else "done"
        audit.info(
            "audit.reload",
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
            found = self.reload(by="SIGHUP")
        except OffloaderError as error:
            log.error("settings.not_reloaded", error=error.message, hint=error.hint)  # noqa: TRY400 - no bug of ours
        else:
            keys = [one.key for one in found.waiting]
            log.info("settings.reloaded", changed=[one.key for one in found.live], restart=keys)

    def _reload(self, *, dry_run: bool) -> Reloaded:
        if self._reread is None:
            raise Conflict(
                "this daemon was not started from a settings file", hint="reload works for `offloaderd serve`"
            )
        if self._prepare is None:
            raise Conflict("the daemon is still starting", hint="try again when /readyz says that it serves")
        wanted = self._reread()
        _warn(wanted)
        settings = followed(self.settings, wanted)
        follow = self._prepare(settings)
        found = Reloaded(changes(self.settings, wanted), dry_run)
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
