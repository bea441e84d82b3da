"""Direct reads against reads through the daemon: random topics, faults, ranges, and plans of few runs."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from offloaderd.client.reading import Wanted
from offloaderd.read import reader
from tests.unit.direct.here import Here
from tests.unit.read.test_property import Checked, World, traceless, worlds
from tests.virtual import virtually


async def check(world: World, runs_max: int, ends: tuple[bool, bool]) -> None:
    """Read the range both ways, with and without each of its ends."""
    checked = Checked(world)
    await checked.build()
    wanted = Wanted(
        first=world.first if ends[0] else None,
        last=world.last if ends[1] else None,
        read_priority=world.priority,
        batch_bytes=world.batch_bytes,
        entries_max=world.entries_max,
    )
    here = Here(checked.rig)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "PLANNED_MAX", runs_max)
        async with checked.rig.reader:
            direct, through = await here.direct(wanted), await here.through(wanted)
    # Where two tiers fail, another stream may have tried the other one first, and so name its error.
    assert (direct[0], kind(direct[1])) == (through[0], kind(through[1]))


def kind(error: str) -> str:
    """Return the type of an error, empty without one."""
    return error.partition(":")[0]


@given(worlds(), st.sampled_from([1, 2, 3, 1000]), st.tuples(st.booleans(), st.booleans()))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_direct_read_is_that_of_the_daemon(world: World, runs_max: int, ends: tuple[bool, bool]) -> None:
    """The same entries, then the same end or the same error, whatever is missing or broken."""
    assume(not traceless(world))
    virtually(check(world, runs_max, ends))
