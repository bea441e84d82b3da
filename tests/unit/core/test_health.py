"""Health: three states in one direction, and listeners that hear of changes only."""

from __future__ import annotations

import pytest

from offloaderd.core.errors import Closed
from offloaderd.core.health import Dependency, Health, HealthState, HealthView


def test_states_follow_each_other_once() -> None:
    """Starting, serving, draining; no way back, and draining may begin at once."""
    health = Health()
    assert health.view == HealthView(HealthState.STARTING, "", ())
    health.serving()
    with pytest.raises(Closed, match="is serving and cannot go back to starting"):
        health.starting("again")
    health.draining("SIGTERM")
    with pytest.raises(Closed, match="cannot go back to serving"):
        health.serving()
    early = Health()
    early.draining("crashed")
    assert early.view.state is HealthState.DRAINING


@pytest.mark.parametrize(("step", "ready"), [("starting", False), ("serving", True), ("draining", False)])
def test_only_serving_is_ready(step: str, ready: bool) -> None:
    """Calls are welcome in one state of three."""
    assert HealthView(HealthState(step), "", ()).ready is ready


def test_listeners_hear_the_present_and_each_change() -> None:
    """A listener is called on joining and when something is new, not for the same news again."""
    health, last_answer = Health(), []
    health.up("metadata")
    health.listen(lambda view: last_answer.append((str(view.state), view.why, view.dependencies)))
    up = (Dependency("metadata", up=True),)
    down = (Dependency("metadata", up=False, message="session lost"),)
    health.up("metadata")
    health.down("metadata", "session lost")
    health.down("metadata", "session lost")
    health.starting("waiting")
    health.starting("waiting")
    health.serving()
    assert last_answer == [
        ("starting", "", up),
        ("starting", "", down),
        ("starting", "waiting", down),
        ("serving", "", down),
    ]


def test_the_reason_is_one_line_for_a_person() -> None:
    """State, why, and what is down in name order."""
    health = Health()
    health.starting("waiting for objects")
    health.down("objects", "refused")
    health.down("metadata", "timeout")
    health.up("ledgers")
    assert health.view.reason == "starting: waiting for objects; metadata is down: timeout; objects is down: refused"
