"""A simulated daemon dies at every kill point that real ones die at: nothing is lost, and nothing is left."""

from __future__ import annotations

import pytest
import structlog

from offloaderd.core.metrics.metrics import Metrics
from tests.real.points import HISTORIES
from tests.simulation.kill_points import KillWorld
from tests.simulation.run import again, simulate
from tests.tiers import SEEDS_OF_KILL_POINTS

POINTS = [f"{history}/{point}" for history, points in HISTORIES.items() for point in points]
METRICS = Metrics()
CRITICAL = 50


@pytest.fixture(autouse=True)
def no_log() -> None:
    """Leave out what daemons log: it is most of the time."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(CRITICAL))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each point the seeds of the tier, other ones than the point before it."""
    if {"point", "seeds"} <= set(metafunc.fixturenames):
        count = SEEDS_OF_KILL_POINTS[metafunc.config.getoption("--tier")]
        rows = [(point, range(at, at + count)) for at, point in enumerate(POINTS)] if count else []
        metafunc.parametrize(("point", "seeds"), rows, ids=[point for point, _ in rows])


def test_a_daemon_that_dies_loses_and_leaves_nothing(point: str, seeds: range) -> None:
    """The daemon reaches the point, and the next one leaves the stores as if nobody had died."""
    world = KillWorld.at(*point.split("/"))
    failures = {again(seed, point): simulate(seed, METRICS, make=world).failure for seed in seeds}
    assert not {command: failure for command, failure in failures.items() if failure}


def test_a_run_whose_point_is_not_reached_fails() -> None:
    """A point that nobody reaches proves nothing."""
    report = simulate(1, METRICS, make=KillWorld.at("first life", "commit:midway:9"))
    assert report.failure == "run: the kill point commit:midway:9 was never reached"
