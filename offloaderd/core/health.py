"""The daemon's own state, as /readyz, gRPC health and `offloadctl status` report it. No I/O here.

The states are starting, serving and draining, in this order only. The daemon stays ready while a dependency is down:
the other tiers still answer, and nothing is lost during the wait. The dependency is shown with its last error instead.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from offloaderd.core.errors import Closed


class HealthState(StrEnum):
    """Phase of the daemon's life."""

    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"


_ORDER = tuple(HealthState)


@dataclass(frozen=True, slots=True)
class Dependency:
    """A service that the daemon needs (metadata, objects, ledgers); `message` is its error, empty when up.

    `since_ms`: since when it is down (wall clock); 0 if it is up or that is unknown.
    """

    name: str
    up: bool
    message: str = ""
    since_ms: int = 0


@dataclass(frozen=True, slots=True)
class HealthView:
    """The state at one moment, with the dependencies in name order."""

    state: HealthState
    why: str
    dependencies: tuple[Dependency, ...]

    @property
    def ready(self) -> bool:
        """Whether calls are accepted."""
        return self.state is HealthState.SERVING

    @property
    def reason(self) -> str:
        """One line for people: the state, its reason, and the dependencies that are down."""
        down = [
            f"{dependency.name} is down: {dependency.message}" for dependency in self.dependencies if not dependency.up
        ]
        return "; ".join([f"{self.state}: {self.why}" if self.why else str(self.state), *down])


class Health:
    """The daemon's state; set by its owner, reported to listeners."""

    def __init__(self, wall_ms: Callable[[], int] = lambda: 0) -> None:
        self._wall_ms = wall_ms
        self._state = HealthState.STARTING
        self._why = ""
        self._dependencies: dict[str, Dependency] = {}
        self._listeners: list[Callable[[HealthView], None]] = []

    @property
    def view(self) -> HealthView:
        """The present state."""
        dependencies = tuple(self._dependencies[name] for name in sorted(self._dependencies))
        return HealthView(self._state, self._why, dependencies)

    def listen(self, listener: Callable[[HealthView], None]) -> None:
        """Call `listener` now and at each change; it must neither block nor raise."""
        self._listeners.append(listener)
        listener(self.view)

    def starting(self, why: str) -> None:
        """Report the reason for the wait during the start. Raises Closed once serving has begun."""
        self._go(HealthState.STARTING, why)

    def serving(self) -> None:
        """Report that calls are accepted. Raises Closed once draining has begun."""
        self._go(HealthState.SERVING, "")

    def draining(self, why: str) -> None:
        """Report that the daemon stops, with the reason (a signal, a crashed task)."""
        self._go(HealthState.DRAINING, why)

    def up(self, name: str) -> None:
        """Report that a dependency answers."""
        self._set(Dependency(name, up=True))

    def down(self, name: str, message: str) -> None:
        """Report that a dependency does not answer, with its error."""
        known = self._dependencies.get(name)
        since_ms = known.since_ms if known is not None and not known.up else self._wall_ms()
        self._set(Dependency(name, up=False, message=message, since_ms=since_ms))

    def _go(self, state: HealthState, why: str) -> None:
        if _ORDER.index(state) < _ORDER.index(self._state):
            raise Closed(f"the daemon is {self._state} and cannot go back to {state}")
        if (state, why) != (self._state, self._why):
            self._state, self._why = state, why
            self._tell()

    def _set(self, dependency: Dependency) -> None:
        if self._dependencies.get(dependency.name) != dependency:
            self._dependencies[dependency.name] = dependency
            self._tell()

    def _tell(self) -> None:
        view = self.view
        for listener in self._listeners:
            listener(view)
