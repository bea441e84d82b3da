"""Which modules log from which level on: what the settings say, and what was asked for a while.

A level that was asked for falls back by itself, so that nobody fills a disk by forgetting it. A module stands for all
below it, the nearest counts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import structlog

from offloaderd.core.aio.signal import Signal
from offloaderd.core.clock import Clock
from offloaderd.core.errors import InvalidInput
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.daemon.log.log import set_levels
from offloaderd.daemon.log.modules import checked_level, known_module, parsed_levels
from offloaderd.daemon.settings.sections import LogSettings

log = structlog.get_logger(__name__)

SECONDS_MAX = 7 * 86_400.0
"""Longest time for which a level may be asked for; the settings are for what is to stay."""


@dataclass(frozen=True, slots=True)
class ModuleLevel:
    """What one module logs; `left_s` is for how long, None where it is by the settings. Module "" is all."""

    module: str
    level: str
    left_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Raised:
    level: str
    until_s: float


class LogLevels:
    """The levels of one process; `keep` lets those fall back that were asked for."""

    def __init__(self, settings: LogSettings, clock: Clock, metrics: Metrics) -> None:
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self._raised: dict[str, _Raised] = {}
        self._changed = Signal()

    def prepare(self, settings: LogSettings) -> Callable[[], None]:
        """Return what makes other settings hold; what was asked for a while goes on."""
        return partial(self._follow, settings)

    def _follow(self, settings: LogSettings) -> None:
        self._settings = settings
        self._apply()

    def raised(self, module: str, level: str, seconds: float) -> ModuleLevel:
        """Have a module log from `level` on for so long. Raises InvalidInput for what cannot be."""
        if not 0 < seconds <= SECONDS_MAX:
            raise InvalidInput(
                f"a level can be asked for up to {SECONDS_MAX / 86_400:g} days, not {seconds:g} s",
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
        """Take back what was asked for a module. Raises InvalidInput when nothing was."""
        name = known_module(module)
        if self._raised.pop(name, None) is None:
            raise InvalidInput(f"nothing was asked for {name}", hint="`offloadctl log-level` shows what was")
        self._apply()

    def shown(self) -> list[ModuleLevel]:
        """Return the level of all, then of each module that has another."""
        now_s = self._clock.monotonic()
        rows = {name: ModuleLevel(name, level) for name, level in parsed_levels(self._settings.levels).items()}
        rows |= {name: ModuleLevel(name, one.level, one.until_s - now_s) for name, one in self._raised.items()}
        return [ModuleLevel("", self._settings.level), *(rows[name] for name in sorted(rows))]

    async def keep(self) -> None:
        """Let levels fall back when their time is over, until cancelled; then all of them."""
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
