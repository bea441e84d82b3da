"""The parent keeps its processes: it replaces, drains, forces and reloads them, and says how the host is."""

from __future__ import annotations

import asyncio
import signal
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from offloaderd.core.errors import InvalidConfig, OffloaderError
from offloaderd.core.metrics.processes import ProcessMetrics
from offloaderd.processes.parent import (
    DRAIN_MORE_S,
    LIVED_S,
    PAUSE_MAX_S,
    PAUSE_S,
    PROBE_S,
    UNANSWERED_S,
    Parent,
    View,
)
from tests.virtual import LoopClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

DRAIN_S = 25.0
SERVING = {"ready": True, "state": "serving", "reason": "serving", "dependencies": {}}


@dataclass
class FakeChild:
    """A process that serves at once, and ends when a test or a signal says so."""

    number: int
    started_s: float = -1.0
    view: dict[str, Any] | None = field(default_factory=lambda: dict(SERVING))
    signals: list[signal.Signals] = field(default_factory=list)
    drains: bool = True
    stopped: bool = False
    refused: bool = False

    def __post_init__(self) -> None:
        self.code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def start(self) -> None:
        """Note the time."""
        if self.refused:
            raise OffloaderError("no room for it")
        self.started_s = asyncio.get_running_loop().time()

    def send(self, number: signal.Signals) -> None:
        """Note a signal; end by it."""
        if self.code.done():
            return
        self.signals.append(number)
        if number is signal.SIGKILL:
            self.end(-signal.SIGKILL)
        elif number is signal.SIGTERM and self.drains:
            self.end(0)
        elif number is signal.SIGINT:
            self.end(1)

    def end(self, code: int) -> None:
        """End with a code."""
        self.view = None
        self.code.set_result(code)

    async def wait(self) -> int:
        """Return the code."""
        return await asyncio.shield(self.code)

    async def stop(self) -> None:
        """End it."""
        self.stopped = True
        self.send(signal.SIGTERM)


class Host:
    """A parent over fake processes; `made` has all runs of each number."""

    def __init__(self, count: int = 2) -> None:
        self.clock = LoopClock()
        self.metrics = ProcessMetrics()
        self.made: dict[int, list[FakeChild]] = {number: [] for number in range(1, count + 1)}
        self.views: list[dict[str, Any] | None] = []
        self.refused = 0
        self.parent = Parent(
            count, self.make, self.ask, clock=self.clock, metrics=self.metrics, drain_s=lambda: DRAIN_S
        )

    def make(self, number: int) -> FakeChild:
        """Return the next run of a process."""
        child = FakeChild(number)
        if self.views:
            child.view = self.views.pop(0)
        if self.refused:
            self.refused, child.view, child.refused = self.refused - 1, None, True
        self.made[number].append(child)
        return child

    async def ask(self, number: int) -> dict[str, Any] | None:
        """Say what the present run of a process says."""
        return self.made[number][-1].view

    def now(self, number: int) -> FakeChild:
        """Return the present run of a process."""
        return self.made[number][-1]

    def metric(self, name: str, number: int) -> float | None:
        """Return a metric of a process."""
        return self.metrics.registry.get_sample_value(name, {"process": str(number)})


@asynccontextmanager
async def running(host: Host) -> AsyncIterator[asyncio.Task[int]]:
    """Run the parent until the body ends; then it has to end by itself or is cancelled."""
    async with asyncio.TaskGroup() as group:
        run = group.create_task(host.parent.run())
        await host.clock.sleep(2 * PROBE_S)
        yield run
        run.cancel()


async def test_a_process_that_ends_is_started_again_and_the_others_stay() -> None:
    """The host serves meanwhile, and metrics and health name the process that is missing."""
    host = Host()
    async with running(host):
        assert host.parent.health.view.ready
        host.now(1).end(-signal.SIGKILL)
        await host.clock.sleep(PAUSE_S / 2)
        view = host.parent.health.view
        assert (view.ready, view.reason) == (True, "serving: process 1: it is being started")
        assert host.metric("offloaderd_process_up", 1) == 0
        await host.clock.sleep(PAUSE_S + 2 * PROBE_S)
        assert [len(runs) for runs in host.made.values()] == [2, 1]
        assert host.metric("offloaderd_process_up", 1) == 1
        assert host.metric("offloaderd_process_replacements_total", 1) == 1
        assert host.metric("offloaderd_process_replacements_total", 2) == 0
        assert host.parent.health.view.reason == "serving"


async def test_pauses_grow_while_a_process_ends_soon_and_are_short_again_once_it_has_lived() -> None:
    """A defect at the start does not take the machine; a kill once a day is repaired at once."""
    host = Host()
    async with running(host):
        for _ in range(12):
            failed = host.now(1)
            failed.end(1)
            while host.now(1) is failed:
                await host.clock.sleep(PROBE_S / 10)
        starts = [child.started_s for child in host.made[1]]
        pauses = [round(later - earlier, 1) for earlier, later in pairwise(starts[1:])]
        assert pauses == sorted(pauses)
        assert PAUSE_MAX_S <= pauses[-1] < PAUSE_MAX_S + 1
        await host.clock.sleep(LIVED_S + PROBE_S)
        lived = host.now(1)
        lived.end(1)
        await host.clock.sleep(2 * PAUSE_S)
        assert host.now(1) is not lived


async def test_a_process_whose_loop_does_not_turn_is_killed_and_replaced() -> None:
    """Only after a minute: a process may be busy for a while."""
    host = Host()
    async with running(host):
        silent = host.now(2)
        silent.view = None
        await host.clock.sleep(UNANSWERED_S - 3 * PROBE_S)
        assert not silent.signals
        await host.clock.sleep(5 * PROBE_S)
        assert silent.signals == [signal.SIGKILL]
        assert host.now(2) is not silent


async def test_a_parent_that_did_not_run_for_a_while_kills_no_process() -> None:
    """Of a machine that stood still it sees one question without an answer, and much time."""
    host = Host()
    async with running(host):
        ask, asked = host.parent.ask, 0

        async def late(number: int) -> View | None:
            nonlocal asked
            asked += 1
            if asked > 2:
                return await ask(number)
            await host.clock.sleep(2 * UNANSWERED_S)
            return None

        host.parent.ask = late
        await host.clock.sleep(4 * UNANSWERED_S)
        assert asked > 2
        assert [host.made[number][0].signals for number in (1, 2)] == [[], []]


async def test_a_process_that_has_not_answered_yet_is_waited_for() -> None:
    """Its libraries may take minutes on a busy machine."""
    host = Host()
    host.views = [None]
    async with running(host):
        await host.clock.sleep(3 * UNANSWERED_S)
        assert not host.made[1][0].signals
        assert not host.parent.health.view.ready


async def test_one_drain_ends_all_and_a_drain_that_is_incomplete_is_the_hosts_exit_code() -> None:
    """None is started again after it."""
    for codes, expected in (((0, 0), 0), ((0, 1), 1)):
        host = Host()
        async with running(host) as run:
            for child in (host.now(1), host.now(2)):
                child.drains = False
            host.parent.stop("received SIGTERM")
            await host.clock.sleep(PROBE_S)
            assert [host.now(number).signals for number in (1, 2)] == [[signal.SIGTERM]] * 2
            assert host.parent.health.view.reason == "draining: received SIGTERM"
            for number, code in zip((1, 2), codes, strict=True):
                host.now(number).end(code)
            assert await run == expected
        assert [len(runs) for runs in host.made.values()] == [1, 1]


async def test_a_second_signal_ends_all_at_once() -> None:
    """SIGTERM may reach a process from others as well, so SIGINT is the one that counts."""
    host = Host()
    async with running(host) as run:
        for number in (1, 2):
            host.now(number).drains = False
        host.parent.stop("received SIGTERM")
        await host.clock.sleep(1.0)
        host.parent.stop("received SIGTERM")
        assert await run == 1
        assert all(host.now(number).signals == [signal.SIGTERM, signal.SIGINT] for number in (1, 2))


async def test_a_process_that_does_not_end_its_drain_is_ended() -> None:
    """Later than its own limit, which leaves the open segments for the next start."""
    host = Host()
    async with running(host) as run:
        host.now(1).drains = False
        started_s = host.clock.monotonic()
        host.parent.stop("received SIGTERM")
        assert await run == 1
        assert host.clock.monotonic() - started_s == pytest.approx(DRAIN_S + DRAIN_MORE_S, abs=0.1)


async def test_a_process_that_is_ended_before_it_had_work_has_drained() -> None:
    """It has no handler of SIGTERM yet."""
    host = Host()
    host.views = [None, None]
    async with running(host) as run:
        for number in (1, 2):
            host.now(number).drains = False
        host.parent.stop("received SIGTERM")
        await host.clock.sleep(1.0)
        for number in (1, 2):
            host.now(number).end(-signal.SIGTERM)
        assert await run == 0


async def test_a_stop_ends_the_pause_before_the_next_start() -> None:
    """Nothing is started only to be drained."""
    host = Host()
    async with running(host) as run:
        host.now(1).end(1)
        await host.clock.sleep(PAUSE_S / 2)
        host.parent.stop("received SIGTERM")
        assert await run == 0
        assert len(host.made[1]) == 1


async def test_a_process_that_cannot_be_started_for_a_while_is_tried_again() -> None:
    """The machine has no memory or no number for one more process: those that serve go on."""
    host = Host()
    async with running(host):
        host.refused = 3
        host.now(1).end(-signal.SIGKILL)
        with capture_logs() as logs:
            await host.clock.sleep(10.0)
        assert [len(runs) for runs in host.made.values()] == [5, 1]
        assert host.now(1).started_s > 0
        assert host.parent.health.view.reason == "serving"
        assert not host.now(2).signals
        assert [one["error"] for one in logs if one["event"] == "process.not_started"] == ["no room for it"] * 3


async def test_settings_that_can_never_work_end_the_host_with_its_error() -> None:
    """The others are stopped; a process that has served before is tried again, whatever its code."""
    host = Host()
    async with running(host) as run:
        served = host.now(1)
        served.end(2)
        await host.clock.sleep(PAUSE_S + PROBE_S)
        assert host.now(1) is not served
        run.cancel()
    host = Host()
    host.views = [None]

    async def misconfigured() -> None:
        async with running(host):
            host.now(1).end(2)
            await host.clock.sleep(PROBE_S)

    with pytest.raises(BaseExceptionGroup) as raised:
        await misconfigured()
    assert raised.group_contains(InvalidConfig, match="process 1 cannot serve")
    assert host.now(2).stopped


async def test_a_reload_reaches_each_process_once_it_answers() -> None:
    """A process without its handler would be ended by the signal."""
    host = Host()
    host.views = [None]
    async with running(host):
        host.parent.reload()
        await host.clock.sleep(2 * PROBE_S)
        assert [host.now(number).signals for number in (1, 2)] == [[], [signal.SIGHUP]]
        host.now(1).view = dict(SERVING)
        await host.clock.sleep(3 * PROBE_S)
        assert [host.now(number).signals for number in (1, 2)] == [[signal.SIGHUP], [signal.SIGHUP]]


async def test_the_host_is_ready_once_all_have_served_and_while_one_does() -> None:
    """A dependency is down for the host if it is for one process."""
    waiting = {
        "ready": False,
        "reason": "starting: waiting for ZooKeeper",
        "dependencies": {"metadata": {"up": False, "message": "refused"}},
    }
    host = Host()
    host.views = [waiting]
    async with running(host):
        view = host.parent.health.view
        assert not view.ready
        assert view.why == "process 1: starting: waiting for ZooKeeper"
        assert [(one.name, one.up, one.message) for one in view.dependencies] == [
            ("metadata", False, "process 1: refused")
        ]
        host.now(1).view = {**SERVING, "dependencies": {"metadata": {"up": True, "message": ""}}}
        await host.clock.sleep(2 * PROBE_S)
        assert host.parent.health.view.ready
        assert host.parent.health.view.dependencies[0].up
        host.now(1).end(1)
        await host.clock.sleep(PAUSE_S / 2)
        assert host.parent.health.view.ready
        host.now(2).end(1)
        await host.clock.sleep(PAUSE_S / 4)
        assert not host.parent.health.view.ready
