"""Reading the settings again while the daemon runs: all of them or none, and a word on each that changed.

What is wrong anywhere refuses the whole, with every mistake, and what held goes on holding. What needs a restart is
named each time until there was one.
"""

from collections.abc import Callable
from dataclasses import dataclass

import structlog

from offloaderd.core.clock import Clock
from offloaderd.core.errors import Conflict, OffloaderError
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.daemon.log.modules import AUDIT
from offloaderd.daemon.settings import Settings
from offloaderd.daemon.settings.change import Change, changes, followed
from offloaderd.daemon.settings.rules import RENAMED

Prepare = Callable[[Settings], Callable[[], None]]
"""Looks at new settings, raises InvalidConfig, or returns what makes them hold."""

log = structlog.get_logger(__name__)
audit = structlog.get_logger(AUDIT)


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What a reload found. With `dry_run` nothing was changed."""

    changes: tuple[Change, ...]
    dry_run: bool

    @property
    def live(self) -> tuple[Change, ...]:
        """What takes effect at once."""
        return tuple(one for one in self.changes if not one.needs_restart)

    @property
    def waiting(self) -> tuple[Change, ...]:
        """What takes effect with the next start."""
        return tuple(one for one in self.changes if one.needs_restart)


class Reloader:
    """Keeps the settings that hold. `reread` reads them where they come from; None: they cannot be read again."""

    def __init__(
        self, settings: Settings, reread: Callable[[], Settings] | None, clock: Clock, metrics: Metrics
    ) -> None:
        self.settings = settings
        self._reread = reread
        self._clock = clock
        self._metrics = metrics
        self._prepare: Prepare | None = None
        _warn(settings)
        self._tell(None)

    def connect(self, prepare: Prepare) -> None:
        """Say who follows the settings from now on."""
        self._prepare = prepare

    def reload(self, *, by: str, dry_run: bool = False) -> Reloaded:
        """Read the settings and have the daemon follow them; `by` is who asked, for the audit log.

        Raises InvalidConfig with every mistake, Conflict when the daemon cannot follow anything; nothing has changed
        then.
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
        """Reload because of SIGHUP: there is nobody to raise to."""
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
            self._tell(found)
        return found

    def _tell(self, found: Reloaded | None) -> None:
        """Show when the settings were read for the last time, and how many of them wait for a restart."""
        self._metrics.reload_success.set(1)
        self._metrics.reload_timestamp_seconds.set(self._clock.wall_ms() / 1000)
        self._metrics.reload_waiting_settings.set(len(found.waiting) if found is not None else 0)
        if found is not None:
            self._metrics.reloads.labels(outcome="done").inc()


def _warn(settings: Settings) -> None:
    for line in settings.renamed:
        log.warning("settings.renamed", setting=line, hint=RENAMED)
