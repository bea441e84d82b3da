"""The parent of several processes: starts them, replaces those that end, passes signals on, and ends last.

A process is a daemon of its own; the parent stores nothing and serves no entry. It asks each process once a second how
it is, by its Unix socket, and kills one that answered before and has not for UNANSWERED_S: its loop does not turn. A
process that ends is started again after a pause that grows from PAUSE_S to PAUSE_MAX_S, and is short again once it has
lived for LIVED_S.

The first SIGTERM or SIGINT drains all processes, the second one ends them at once. SIGHUP has them read the settings
again: each gets it once it answers, as a process that is still starting would be ended by it.
"""

import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Protocol

import structlog

from offloaderd.core.aio import Event, Group, race
from offloaderd.core.clock import Clock
from offloaderd.core.errors import InvalidConfig, OffloaderError
from offloaderd.core.health import Health, HealthState
from offloaderd.core.metrics.processes import ProcessMetrics
from offloaderd.core.retry import doubled

PROBE_S = 1.0
"""How often a process is asked how it is."""

UNANSWERED_S = 60.0
"""How long a process that has answered may be silent."""

UNANSWERED_MIN = 10
"""How many questions in a row have no answer by then: where the parent itself did not run, time alone says nothing."""

PAUSE_S, PAUSE_MAX_S = 0.5, 30.0
LIVED_S = 60.0
DRAIN_MORE_S = 30.0
"""How much longer than its drain a process may take to end."""

FORCED_S = 5.0
"""How long a process may take to end at once."""

NOT_STARTED = 1
"""Code of a process that could not be started, as of one that failed."""

MISCONFIGURED = 2
"""Exit code of a process whose settings cannot work."""

log = structlog.get_logger(__name__)

View = Mapping[str, Any]
"""What /readyz of a process says."""


class Child(Protocol):
    """A process that can be started once."""

    def start(self) -> None:
        """Start it. Raises OffloaderError."""

    def send(self, number: signal.Signals) -> None:
        """Send a signal; does nothing once it has ended."""

    async def wait(self) -> int:
        """Return its exit code at its end, minus the number of the signal that ended it."""
        ...

    async def stop(self) -> None:
        """End it; when this is cancelled, at once."""


@dataclass(eq=False)
class Place:
    """The place of one process: its present run and what is known of it. `view` is empty while it does not answer."""

    number: int
    child: Child | None = None
    view: View = field(default_factory=dict)
    answered_s: float | None = None
    has_served: bool = False
    is_behind: bool = False
    exit_code: int = 0

    @property
    def is_ready(self) -> bool:
        """Whether it serves."""
        return bool(self.view.get("ready"))

    @property
    def reason(self) -> str:
        """How it is, in one line."""
        return str(self.view.get("reason") or "it is being started")


class HostHealth(Health):
    """The health of a host: unlike that of a daemon it is starting again while no process serves."""

    def show(self, state: HealthState, why: str) -> None:
        """Set the state with its reason."""
        if (state, why) != (self._state, self._why):
            self._state, self._why = state, why
            self._tell()


@dataclass(eq=False)
class Parent:
    """Keeps processes 1 to `count`; `make` returns a process that is not started, `ask` what its /readyz says."""

    count: int
    make: Callable[[int], Child]
    ask: Callable[[int], Awaitable[View | None]]
    _: KW_ONLY
    clock: Clock
    metrics: ProcessMetrics
    drain_s: Callable[[], float]
    health: HostHealth = field(default_factory=HostHealth)
    stopping: Event = field(default_factory=Event, init=False)
    _forced: Event = field(default_factory=Event, init=False)

    def __post_init__(self) -> None:
        self.places = [Place(number) for number in range(1, self.count + 1)]
        for place in self.places:
            self.metrics.process_up.labels(process=str(place.number)).set(0)
            self.metrics.process_replacements.labels(process=str(place.number))

    def stop(self, why: str) -> None:
        """Drain all processes; a second call ends them at once."""
        if self.stopping.is_set():
            self._forced.set()
            return
        self.stopping.set()
        self.health.show(HealthState.DRAINING, why)

    def reload(self) -> None:
        """Have all processes read the settings again."""
        for place in self.places:
            place.is_behind = True

    async def run(self) -> int:
        """Keep the processes until all have drained; returns 0, or 1 if one of them did not drain completely.

        Raises InvalidConfig if one can never serve.
        """
        async with Group() as group:
            ending = group.create_task(self._end(), name="end of processes")
            async with Group() as kept:
                for place in self.places:
                    kept.create_task(self._keep(place), name=f"process {place.number}")
            ending.cancel()
        return max(place.exit_code for place in self.places)

    async def _keep(self, place: Place) -> None:
        """Start a process again and again, until the end."""
        failures = 0
        while not self.stopping.is_set():
            started_s = self.clock.monotonic()
            code = await self._run(place)
            lived_s = self.clock.monotonic() - started_s
            if self.stopping.is_set():
                place.exit_code = _outcome(code, started=place.answered_s is not None)
                return
            if code == MISCONFIGURED and not place.has_served:
                raise InvalidConfig(
                    f"process {place.number} cannot serve with these settings", hint="its error is in the lines above"
                )
            failures = 1 if lived_s >= LIVED_S else failures + 1
            pause_s = doubled(PAUSE_S, PAUSE_MAX_S, failures)
            self.metrics.process_replacements.labels(process=str(place.number)).inc()
            log.error(
                "process.ended",
                process=place.number,
                how=how_ended(code),
                lived_s=round(lived_s, 1),
                pause_s=pause_s,
                hint="it is started again and takes its topics up; nothing that was confirmed is lost",
            )
            await race(self.stopping.wait(), self.clock.sleep(pause_s))

    async def _run(self, place: Place) -> int:
        """Run a process once; returns its exit code, NOT_STARTED if the machine has no room for it."""
        place.answered_s, place.is_behind = None, False
        child = self.make(place.number)
        try:
            child.start()
        except OffloaderError as error:
            log.error("process.not_started", process=place.number, error=str(error))  # noqa: TRY400 - no bug of ours
            return NOT_STARTED
        place.child = child
        try:
            if self.stopping.is_set():
                child.send(signal.SIGTERM)
            async with Group() as group:
                asking = group.create_task(self._watch(place, child), name=f"watch of process {place.number}")
                code = await child.wait()
                asking.cancel()
        finally:
            place.child = None
            self._show(place, {})
            await child.stop()
        return code

    async def _watch(self, place: Place, child: Child) -> None:
        """Ask a process how it is until cancelled; kill it when its loop does not turn."""
        unanswered = 0
        while True:
            view = await self.ask(place.number)
            now_s, unanswered = self.clock.monotonic(), 0 if view is not None else unanswered + 1
            if view is not None:
                place.answered_s = now_s
                if place.is_behind:
                    place.is_behind = False
                    child.send(signal.SIGHUP)
            silent_s = 0.0 if place.answered_s is None else now_s - place.answered_s
            if silent_s >= UNANSWERED_S and unanswered >= UNANSWERED_MIN:
                log.error("process.unresponsive", process=place.number, silent_s=round(silent_s))
                child.send(signal.SIGKILL)
            self._show(place, view or {})
            await self.clock.sleep(PROBE_S)

    def _show(self, place: Place, view: View) -> None:
        """Report a process, and from all of them the host: it serves once all have, and while one of them does."""
        place.view = view
        place.has_served |= place.is_ready
        self.metrics.process_up.labels(process=str(place.number)).set(place.is_ready)
        down: dict[str, str] = {}
        for one in self.places:
            for name, dependency in one.view.get("dependencies", {}).items():
                down.setdefault(name, "")
                if not dependency["up"]:
                    down[name] = down[name] or f"process {one.number}: {dependency['message']}"
        for name, message in down.items():
            if message:
                self.health.down(name, message)
            else:
                self.health.up(name)
        if self.stopping.is_set():
            return
        late = [one for one in self.places if not one.is_ready]
        why = "; ".join(f"process {one.number}: {one.reason}" for one in late)
        serves = len(late) < self.count and all(one.has_served for one in self.places)
        self.health.show(HealthState.SERVING if serves else HealthState.STARTING, why)

    async def _end(self) -> None:
        """End all processes once this is requested: by a drain, at once, by force."""
        await self.stopping.wait()
        self._send(signal.SIGTERM)
        await self._forced.wait_at_most(self.clock, self.drain_s() + DRAIN_MORE_S)
        self._send(signal.SIGINT)
        await self.clock.sleep(FORCED_S)
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        for place in self.places:
            if place.child is not None:
                place.child.send(number)


def how_ended(code: int) -> str:
    """Return how a process ended, in words."""
    return f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"


def _outcome(code: int, *, started: bool) -> int:
    """Return the exit code that counts: before its first answer a process has no handler of SIGTERM, and no work."""
    return 0 if code == 0 or (code == -signal.SIGTERM and not started) else 1
