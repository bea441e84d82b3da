"""The daemon's own state, as /readyz, gRPC health and `offloadctl status` report it. No I/O here.

The three states follow each other once and never go back: starting, serving, draining. A dependency that is down
does not make the daemon unready: the other tiers still answer and nothing is lost while it waits; it is shown
instead, with the message of its last error.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from offloaderd.core.errors import Closed


class HealthState(StrEnum):
    """Where the daemon is in its life."""

    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"


_ORDER = tuple(HealthState)


@dataclass(frozen=True, slots=True)
class Dependency:
    """Something the daemon needs (metadata, objects, ledgers); `message` says what is wrong, empty when up.

    `since_ms`: since when it is down (wall clock); 0: it is up, or nobody knows.
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
        """One line for a person: the state, why, and what is down."""
        down = [
            f"{dependency.name} is down: {dependency.message}" for dependency in self.dependencies if not dependency.up
        ]
        return "; ".join([f"{self.state}: {self.why}" if self.why else str(self.state), *down])


class Health:
    """The daemon's state; changed by its owner, shown to listeners."""

    def __init__(self, wall_ms: Callable[[], int] = lambda: 0) -> None:
        """Begin as starting, with no dependency known."""
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
        """Report what the start is waiting for. Raises Closed once serving has begun."""
        self._go(HealthState.STARTING, why)

    def serving(self) -> None:
        """Report that calls are accepted. Raises Closed once draining has begun."""
        self._go(HealthState.SERVING, "")

    def draining(self, why: str) -> None:
        """Report that the daemon stops, and why (a signal, a crashed task)."""
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
