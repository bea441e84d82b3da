"""One seed from its beginning to its end, and what became of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.simulation.chance import Chance, Faults
from tests.simulation.loop import Stuck
from tests.simulation.options import Options
from tests.simulation.oracle import Violation
from tests.simulation.world import RealSourceWorld, World

if TYPE_CHECKING:
    from offloaderd.core.metrics.metrics import Metrics

REAL_SOURCE = 0.25
"""The share of seeds whose daemons have the real ledger source."""

ENDS_S = 3600.0
"""By the loop's time; what has not ended then waits for something that never comes. Runs take a minute or two."""


@dataclass(slots=True)
class Report:
    """What became of one run."""

    seed: int
    failure: str = ""
    trace_hash: str = ""
    virtual_s: float = 0.0
    steps: int = 0
    commits: int = 0
    removed: int = 0
    history: int = 0
    granted: int = 0
    entries: int = 0
    reads: int = 0
    kept: int = 0
    fired: Counter[str] = field(default_factory=Counter)
    real_source: Counter[str] = field(default_factory=Counter)
    """What happened where daemons have the real ledger source; nothing where they have a simulated one."""
    tail: list[str] = field(default_factory=list)


def again(seed: int, point: str | None = None, *, real_source: bool = False) -> str:
    """Return the command that repeats a seed, and prints all that happens in it."""
    kind = f" --point {point!r}" if point else " --real-source" if real_source else ""
    return f"python -m tests.simulation --seed {seed}{kind} --verbose"


def drawn(seed: int) -> type[World]:
    """Return the world of a seed."""
    return RealSourceWorld if Chance(seed).stream("ledger source").random() < REAL_SOURCE else World


def options_of(seed: int) -> Options:
    """Return what a seed draws, but for pushes, which need some ledger sources."""
    chance = Chance(seed)
    return Options.draw(chance.stream("options"), readback=Faults(chance).rotten)


def simulate(seed: int, metrics: Metrics, *, verbose: bool = False, make: type[World] | None = None) -> Report:
    """Run one seed, in another world than the one that it draws if that is given, and say what became of it."""
    woken = metrics.topic_wakes.labels(cause="source")._value
    woken_before = woken.get()
    world = (make or drawn(seed))(seed, metrics, verbose=verbose)
    report = Report(seed)
    loop = world.loop
    asyncio.set_event_loop(loop)
    life = loop.create_task(world.live())

    def over(_: asyncio.Task[None]) -> None:
        loop.stop()

    life.add_done_callback(over)
    loop.in_world(ENDS_S, _too_late, world)
    try:
        loop.run_forever()
        if life.done():
            life.result()
        elif world.oracle.broken is None:
            report.failure = "the loop was stopped"
    except Stuck as error:
        report.failure = f"stuck: {error}"
    except Violation as error:
        report.failure = str(error)
    except Exception as error:
        report.failure = f"{type(error).__name__}: {error}"
        if verbose:
            raise
    if world.oracle.broken is not None:
        report.failure = str(world.oracle.broken)
    elif not report.failure and loop.fault is not None:
        report.failure = f"nobody caught {loop.fault!r}"
    report.trace_hash = world.trace_hash()
    report.virtual_s, report.steps = loop.time(), loop.steps
    report.commits, report.entries, report.reads = world.oracle.commits, world.oracle.entries, world.oracle.reads
    report.kept, report.granted, report.removed = world.oracle.kept, world.oracle.grants, world.oracle.removed
    if world.cluster is not None:
        told = {"seeds": 1, "topics woken by it": int(woken.get() - woken_before), "grants": report.granted}
        report.real_source = Counter(told) + world.cluster.counts
    report.history = world.oracle.history
    report.fired = world.faults.fired
    report.tail = list(world.tail)
    ledgers = [one for topic in world.topics for one in world.ledgers.topics[topic]]
    left = any(one.entries and not one.deleted for one in ledgers)  # else brokers deleted what was not to be offloaded
    if not report.failure and not report.commits and left and not report.fired.get("disable topic"):
        report.failure = "no segment was committed"
    if not report.failure and not report.fired:
        report.failure = "no fault fired"
    life.remove_done_callback(over)  # or the end of a run that was stopped would stop its burial
    _bury(world, life)
    return report


def _too_late(world: World) -> None:
    """Fail a run, and say whether anything went on but the timer of this, which alone hides that from the loop."""
    goes_on = world.loop.ready or not all(timer.cancelled() for _, _, timer in world.loop._timers)
    world.oracle.fail("run", f"it has not ended after {ENDS_S:g} s" if goes_on else "everybody waits")


def _bury(world: World, life: asyncio.Task[None]) -> None:
    """End what is left of a run, so that nothing of it lives on in the next."""
    loop = world.loop
    world.faults.on = False
    daemons = [*world.daemons, *([world.second] if world.second is not None else [])]
    for daemon in daemons:
        daemon.crash()
        daemon.reap()
    life.cancel()
    loop.call_later(60.0, loop.stop)
    left = [task for daemon in daemons for task in daemon.tasks()] + [life]

    async def ended() -> None:
        await asyncio.wait(left)
        loop.stop()

    ending = loop.create_task(ended())
    with suppress(Stuck):
        loop.run_forever()
    ending.cancel()
    loop.run_until_complete(asyncio.wait([ending]))
    asyncio.set_event_loop(None)
    loop.close()
