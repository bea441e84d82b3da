"""Log levels by module: those of the settings, and those that were raised for a time.

A raised level is reset after its time, so that a forgotten one does not fill a disk. A level holds for all modules
below its module; the nearest one counts.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import structlog

from offloaderd.core.aio import Signal
from offloaderd.core.clock import Clock
from offloaderd.core.errors import InvalidInput
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.daemon.log import checked_level, known_module, parsed_levels, set_levels
from offloaderd.daemon.settings.sections import LogSettings

log = structlog.get_logger(__name__)

SECONDS_MAX = 7 * 86_400.0
"""Longest time for which a level may be raised; permanent levels belong into the settings."""


@dataclass(frozen=True, slots=True)
class ModuleLevel:
    """The level of a module; `left_s` is the remaining time, None for a level of the settings. Module "" is all."""

    module: str
    level: str
    left_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Raised:
    level: str
    until_s: float


class LogLevels:
    """The levels of one process; `keep` resets raised levels. `pass_on` has the other processes of the host raise or
    reset a level as well: its module, the level or "", and the seconds.
    """

    def __init__(self, settings: LogSettings, clock: Clock, metrics: Metrics) -> None:
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self._raised: dict[str, _Raised] = {}
        self._changed = Signal()
        self.pass_on: Callable[[str, str, float], Awaitable[None]] | None = None

    def prepare(self, settings: LogSettings) -> Callable[[], None]:
        """Return a function that applies other settings; raised levels stay."""
        return partial(self._follow, settings)

    def _follow(self, settings: LogSettings) -> None:
        self._settings = settings
        self._apply()

    def raised(self, module: str, level: str, seconds: float) -> ModuleLevel:
        """Raise the level of a module for a time. Raises InvalidInput for an unknown module, level or time."""
        if not 0 < seconds <= SECONDS_MAX:
            raise InvalidInput(
                f"a level can be set for up to {SECONDS_MAX / 86_400:g} days, not {seconds:g} s",
                hint="[log] levels of the settings is for what is to stay",
            )
        name = known_module(module)
        checked_level(name, level)
        self._raised[name] = _Raised(level, self._clock.monotonic() + seconds)
        self._apply()
        self._changed.notify()
        log.warning("log.level_raised", module=name, level=level, seconds=seconds)
        return ModuleLevel(name, level, seconds)

    def fallen(self, module: str) -> None:
        """Reset the level of a module. Raises InvalidInput if it was not raised."""
        name = known_module(module)
        if self._raised.pop(name, None) is None:
            raise InvalidInput(f"no level was set for {name}", hint="`offloadctl log-level` shows what was")
        self._apply()

    def shown(self) -> list[ModuleLevel]:
        """Return the level of all modules, then those of modules with another."""
        now_s = self._clock.monotonic()
        rows = {name: ModuleLevel(name, level) for name, level in parsed_levels(self._settings.levels).items()}
        rows |= {name: ModuleLevel(name, one.level, one.until_s - now_s) for name, one in self._raised.items()}
        return [ModuleLevel("", self._settings.level), *(rows[name] for name in sorted(rows))]

    async def keep(self) -> None:
        """Reset levels after their time, until cancelled; then all of them."""
        try:
            while True:
                now_s = self._clock.monotonic()
                for name in [name for name, one in self._raised.items() if one.until_s <= now_s]:
                    log.warning("log.level_reset", module=name, level=self._raised.pop(name).level)
                    self._apply()
                ends = [one.until_s - now_s for one in self._raised.values()]
                await self._changed.wait_at_most(self._clock, min(ends, default=SECONDS_MAX))
        finally:
            if self._raised:
                self._raised.clear()
                self._apply()

    def _apply(self) -> None:
        raised = {name: one.level for name, one in self._raised.items()}
        set_levels(self._settings.level, {**parsed_levels(self._settings.levels), **raised})
        self._metrics.log_levels_raised.set(len(raised))
