"""The way of a request from a process to a service and back, and all that can happen to it there.

A request that has been sent is the world's: it may arrive although its sender gave up waiting, or died, and it may
arrive twice. What the sender hears is a matter of its own.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from offloaderd.core.errors import (
    BucketMissing,
    Denied,
    Expired,
    NoSpace,
    OffloaderError,
    OutcomeUnknown,
    Throttled,
    Transient,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine

    from tests.simulation.loop import Process, VirtualLoop
    from tests.simulation.world import World

T = TypeVar("T")

LATENCY_S = 0.02
TIMEOUT_S = 2.0
LATE_S = 12.0


class Wire:
    """What one process has of one service (`s3` or `bk`). `label` names a request as kill points do.

    `name` tells services of one kind apart.
    """

    def __init__(
        self, world: World, process: Process, service: str, label: Callable[[str], str], *, name: str = ""
    ) -> None:
        self._label = label
        self._world = world
        self._loop = world.loop
        self._process = process
        self._service = service
        self._name = name or service
        self._rng = world.chance.stream(f"{self._name} of {process.name}")

    async def call(self, what: str, act: Callable[[], T], *, write: bool, spoilt: Callable[[], T] | None = None) -> T:
        """Have the service do something; returns its answer. Raises what it raises, and what happens on the way.

        `spoilt` is done instead when nothing else goes wrong.
        """
        trap = self._world.trap
        if trap is None:
            return await self._ask(what, act, write=write, spoilt=spoilt)
        send = partial(self._ask, what, write=write, spoilt=spoilt)
        return await trap.around(self._process, self._label(what), act, send)

    async def _ask(self, what: str, act: Callable[[], T], *, write: bool, spoilt: Callable[[], T] | None = None) -> T:
        """Send a request and wait for its answer; see `call`."""
        world, rng = self._world, self._rng
        if not self._process.alive:
            raise asyncio.CancelledError
        answer: asyncio.Future[T] = self._loop.create_future()
        there = LATENCY_S * (0.1 + rng.random() ** 3)
        back = LATENCY_S * (0.1 + rng.random() ** 3)
        fault = world.faults.draw(self._service, rng)
        if fault == "twice" and not write:
            fault = ""
        if (self._process.name[0], self._name) in world.cuts:
            fault = "cut"
        if fault:
            world.faults.count(f"{self._name} {fault}")
        if "slow" in {fault, world.conditions.get(self._name)}:
            there += rng.random() * 3.0
        job = _Job(self, what, spoilt if spoilt is not None and not fault else act, answer, back, write=write)
        if fault in {"error", "throttled"}:
            error = Throttled("slow down") if fault == "throttled" else Transient(f"{what}: connection refused")
            self._loop.in_world(there + back, job.tell, error)
        elif fault == "cut":
            self._loop.in_world(TIMEOUT_S * (0.2 + rng.random()), job.tell, job.silence())
        elif fault in {"lost", "late"}:
            after = there if fault == "lost" else there + rng.random() * LATE_S
            self._loop.in_world(after, job.act_unheard)
            self._loop.in_world(there + TIMEOUT_S * rng.random() ** 3, job.tell, job.silence())
        else:
            self._loop.in_world(there, job.act_and_answer)
            if fault == "twice":
                self._loop.in_world(there + rng.random() * LATE_S, job.act_unheard)
        try:
            return await answer
        finally:
            job.answer = None

    def condition_error(self, *, write: bool) -> OffloaderError | None:
        """Return what the service answers in its present condition, None when it works."""
        match self._world.conditions.get(self._name):
            case "outage":
                return Transient("503 service unavailable")
            case "full" if write:
                return NoSpace("507 no space")
            case "denied":
                return Denied("403 access denied")
            case "expired":
                return Expired("403 expired token")
            case "bucket missing":
                return BucketMissing("404 no such bucket")
            case "throttling" if self._rng.random() < 0.7:
                return Throttled("503 slow down")
        return None

    def trace(self, what: str) -> None:
        """Note something in the run's trace."""
        self._world.trace(self._process.name, what)

    @property
    def loop(self) -> VirtualLoop:
        """The run's loop."""
        return self._loop


class _Job:
    """One request: carried out when it arrives, answered if the answer arrives."""

    def __init__(
        self, wire: Wire, what: str, act: Callable[[], Any], answer: asyncio.Future[Any], back: float, *, write: bool
    ) -> None:
        self._wire = wire
        self._what = what
        self._act = act
        self._back = back
        self._write = write
        self.answer: asyncio.Future[Any] | None = answer

    def silence(self) -> OffloaderError:
        """Return what the sender makes of no answer."""
        kind = OutcomeUnknown if self._write else Transient
        return kind(f"{self._what}: no answer")

    def act_and_answer(self) -> None:
        """Carry it out and send the answer."""
        result, error = self._carry_out()
        if error is None:
            self._wire.loop.in_world(self._back, self._deliver, result)
        else:
            self._wire.loop.in_world(self._back, self.tell, error)

    def act_unheard(self) -> None:
        """Carry it out for nobody."""
        self._carry_out("unheard ")

    def tell(self, error: OffloaderError) -> None:
        """Answer with an error."""
        if self.answer is not None and not self.answer.done():
            self._wire.trace(f"{self._what} !{type(error).__name__}")
            self.answer.set_exception(error)

    def _deliver(self, result: object) -> None:
        if self.answer is not None and not self.answer.done():
            self.answer.set_result(result)

    def _carry_out(self, how: str = "") -> tuple[Any, OffloaderError | None]:
        error = self._wire.condition_error(write=self._write)
        result = None
        if error is None:
            try:
                result = self._act()
            except OffloaderError as raised:
                error = raised
        self._wire.trace(f"{how}{self._what}{f' !{type(error).__name__}' if error is not None else ''}")
        return result, error


def instantly(work: Coroutine[Any, Any, T]) -> T:
    """Return what a coroutine returns that never waits."""
    try:
        work.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("it waits")


def drained(items: AsyncGenerator[T, None]) -> list[T]:
    """Return what an asynchronous generator yields that never waits."""
    found: list[T] = []
    while True:
        try:
            found.append(instantly(items.__anext__()))
        except StopAsyncIteration:
            return found
