"""A rate holds over any stretch of time, and what is remembered has a bound."""

from __future__ import annotations

import asyncio

import pytest

from offloaderd.core.limits import Admission, Bounded, InGroup, TokenBucket
from offloaderd.testing.clock import FakeClock


@pytest.mark.parametrize("per_s", [1, 3, 7, 10, 1000])
async def test_a_second_s_worth_may_go_at_once_and_not_one_more(per_s: int) -> None:
    """Whatever the sums of parts of a second come to; what is refused costs nothing."""
    clock = FakeClock()
    bucket = TokenBucket(per_s, clock)
    await clock.advance(1000.3)
    assert [bucket.take_now(1) for _ in range(per_s + 2)] == [True] * per_s + [False] * 2
    assert not bucket.full
    await clock.advance(1.001)
    assert bucket.full
    assert [bucket.take_now(1) for _ in range(per_s + 1)] == [True] * per_s + [False]


async def test_a_rate_of_0_is_no_limit() -> None:
    """Nothing is counted, and nobody waits."""
    bucket = TokenBucket(0, FakeClock())
    assert [bucket.take(1e12), bucket.take(1), bucket.wait_s] == [0, 0, 0]
    assert bucket.take_now(1e12)
    await bucket.ready()


async def test_what_is_given_back_need_not_be_waited_for() -> None:
    """A wait is as long as what was taken before is to pay for."""
    bucket = TokenBucket(10, FakeClock(), burst_s=0)
    assert [bucket.take(20), bucket.take(10), bucket.wait_s] == [0, 2, 3]
    bucket.take(-10)
    assert bucket.wait_s == 2


def test_what_was_set_longest_ago_is_forgotten() -> None:
    """Setting it again keeps it; reading it does not."""
    known: Bounded[str, int] = Bounded(2)
    known["a"], known["b"] = 1, 2
    known["a"] = 3
    assert known["b"] == 2
    known["c"] = 4
    assert dict(known) == {"a": 3, "c": 4}


async def test_a_group_leaves_a_quarter_to_the_others() -> None:
    """However many holders it has; alone it gets something all the same, and what waits in it holds up nobody else."""
    budget = Admission(8)
    for number in range(3):
        assert budget.take_now(2, InGroup("a", number))
    assert not budget.take_now(2, InGroup("a", 3))
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(budget.acquire(2, InGroup("a", 3)))
        await asyncio.sleep(0)  # noqa: TID251 - it waits
        await budget.acquire(2, InGroup("b", 0))
        assert not waiting.done()
        budget.release(2, InGroup("a", 0))
    budget.release(2, InGroup("b", 0))
    for number in (1, 2, 3):
        budget.release(2, InGroup("a", number))
    assert budget.idle
    assert budget.take_now(9, InGroup("a", 0))
