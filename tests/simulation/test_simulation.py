"""The promises hold in every simulated run, and a run can be repeated."""

from __future__ import annotations

import asyncio
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from offloaderd.core.metrics.metrics import Metrics
from tests.simulation import run as simulation
from tests.simulation.loop import Stuck, VirtualLoop
from tests.simulation.world import RealSourceWorld, World
from tests.tiers import SEEDS_AT_ONCE, seeds

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str, hash_seed: str = "random") -> subprocess.CompletedProcess[str]:
    """Run the simulation in a process of its own: it switches the collector of cycles and the log off.

    A run that never ends fails by itself, by virtual time; a limit of real time would fail the slow ones.
    """
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=False,
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test that asks for seeds those of the tier."""
    if {"first", "number"} <= set(metafunc.fixturenames):
        chosen = seeds(metafunc.config.getoption("--tier"))
        ids = [f"seeds {first}-{first + number - 1}" for first, number in chosen]
        metafunc.parametrize(("first", "number"), chosen, ids=ids)


def test_promises_hold_whatever_happens(first: int, number: int) -> None:
    """No seed breaks a promise; in each, something was committed and something went wrong."""
    done = run("--first", str(first), "--seeds", str(number))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_daemons_read_bookkeeper_by_the_real_source() -> None:
    """No promise is broken; there is all that only this source has; runs can be repeated."""
    one, two = (run("--seeds", str(seeds), "--real-source", "--hashes", hash_seed=str(seeds)) for seeds in (16, 3))
    assert one.returncode == 0, f"{one.stdout}\n{one.stderr}"
    assert one.stdout.splitlines()[:3] == two.stdout.splitlines()[:3]
    counted = next(line for line in one.stdout.splitlines() if line.startswith("real ledger source: "))
    for what in (
        "seeds",
        "long polls",
        "answered by a newer LAC",
        "ledgers recovered",
        "fences",
        "grants",
        "woken by it",
    ):
        assert re.search(f"{what} [1-9]", counted), f"no {what}:\n{one.stdout}"
    assert "bookie replaced" in one.stdout


def test_a_share_of_the_seeds_has_the_real_source() -> None:
    """A seed always draws the same one, and both are among as few as run at once."""
    chosen = [simulation.drawn(seed) for seed in range(500)]
    assert chosen == [simulation.drawn(seed) for seed in range(500)]
    assert 100 < chosen.count(RealSourceWorld) < 150
    for first in range(0, 500, SEEDS_AT_ONCE):
        assert set(chosen[first : first + SEEDS_AT_ONCE]) == {World, RealSourceWorld}


def test_a_share_of_the_mirrors_has_a_store_of_its_own() -> None:
    """One that goes away alone, as a bucket of the same service and as another service; and a seed always draws it."""
    drawn = [simulation.options_of(seed) for seed in range(500)]
    assert drawn == [simulation.options_of(seed) for seed in range(500)]
    mirrored = [one for one in drawn if one.mirror]
    assert 100 < len(mirrored) < 150
    for apart in ("", "bucket", "service"):
        assert sum(one.apart == apart for one in mirrored) > 15


def test_a_run_that_is_stopped_ends_its_tasks() -> None:
    """Nothing of a failed run lives on, to end by itself in the next one."""
    worlds: list[World] = []

    class Stopped(World):
        def __init__(self, *args: Any, **rest: Any) -> None:  # noqa: ANN401 - those of a world
            super().__init__(*args, **rest)
            self.loop.in_world(12.0, self.oracle.fail, "run", "stopped by the test")
            worlds.append(self)

    assert simulation.simulate(3, Metrics(), make=Stopped).failure == "run: stopped by the test"
    assert [task for daemon in worlds[0].daemons for task in daemon.tasks()] == []


def test_a_run_that_never_ends_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where somebody waits for what never comes, and it says whether daemons go on meanwhile."""

    class Endless(World):
        async def read_all(self, _topics: object) -> None:
            await asyncio.Event().wait()

    class Deserted(World):
        async def live(self) -> None:
            await super().live()
            await asyncio.Event().wait()

    assert simulation.simulate(3, Metrics(), make=Deserted).failure == "run: everybody waits"
    monkeypatch.setattr(simulation, "ENDS_S", 100.0)
    assert simulation.simulate(3, Metrics(), make=Endless).failure == "run: it has not ended after 100 s"


def test_time_never_stands_still() -> None:
    """A delay below the precision of its numbers moves it; a run that stays at one moment is stuck, timers or not."""
    loop = VirtualLoop()

    async def advance(seconds: float) -> None:
        before = loop.time()
        while loop.time() <= before:
            await asyncio.sleep(seconds)  # noqa: TID251 - the loop's own time

    loop.run_until_complete(advance(16.0))
    loop.run_until_complete(advance(1e-18))
    assert loop.time() == math.nextafter(16.0, 17.0)

    def again() -> None:
        loop.call_at(loop.time(), again)

    again()
    with pytest.raises(Stuck, match="the time stands still at 16"):
        loop.run_forever()
    loop.close()


def test_a_seed_is_a_run() -> None:
    """The same seed gives the same trace, in another process and with another hash of strings."""
    one = run("--first", "0", "--seeds", "6", "--hashes", hash_seed="1")
    two = run("--first", "0", "--seeds", "6", "--hashes", hash_seed="2")
    alone = run("--seed", "4", "--hashes", hash_seed="3")
    hashes = one.stdout.splitlines()[:6]
    assert len({line.split()[1] for line in hashes}) == 6
    assert two.stdout.splitlines()[:6] == hashes
    assert alone.stdout.splitlines()[0] == hashes[4]
