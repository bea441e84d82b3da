"""The order in which the workers of pytest-xdist are given tests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from xdist.remote import Producer

from tests.tiers import GroupScheduling

SHORT = [f"tests/unit/core/test_x.py::test_{number}" for number in range(20)]
GROUP = ["tests/integration/spark/test_a.py::test_one", "tests/integration/spark/test_b.py::test_two"]
READING = [
    "tests/test_tidy.py::test_one",
    "tests/unit/test_dependencies.py::test_two",
    "tests/test_tidy.py::test_three",
]
LONG = ["tests/simulation/test_simulation.py::test_seeds", "tests/integration/servers/test_daemon.py::test_three"]


class Worker:
    """A worker that notes what it is told to run."""

    shutting_down = False

    def __init__(self, said: list[int]) -> None:
        self.gateway = SimpleNamespace(id="gw")
        self._said = said

    def send_runtest_some(self, indices: list[int]) -> None:
        """Run more tests."""
        self._said += indices

    def shutdown(self) -> None:
        """End after these."""


def test_what_takes_long_begins_first() -> None:
    """Wherever it was collected: behind the groups, and what was given out before them."""
    names = [*SHORT, *LONG, *GROUP, *READING]
    config: Any = SimpleNamespace(getvalue=lambda _: ["2*popen"], option=SimpleNamespace(loadscopereorder=True))
    scheduling, said = GroupScheduling(config, Producer("test", enabled=False)), list[int]()
    workers = [Worker(said), Worker(said)]
    for worker in workers:
        scheduling.add_node(worker)
        scheduling.add_node_collection(worker, names)
    scheduling.schedule()
    for at in said:  # grows with each test that has ended
        [worker] = [one for one in workers if any(names[at] in unit for unit in scheduling.assigned_work[one].values())]
        scheduling.mark_test_complete(worker, at)
    told = [names[at] for at in said]
    assert sorted(told) == sorted(names)
    assert told[:5] == [*READING, *GROUP]
    assert set(told[5:10]) >= {*LONG}
