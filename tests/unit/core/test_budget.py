"""Bytes in transfer are bounded and handed out in turn; pauses between tries grow and are bounded."""

from __future__ import annotations

import asyncio

import pytest

from offloaderd.core.errors import (
    BucketMissing,
    Denied,
    Expired,
    NoSpace,
    NotFound,
    OffloaderError,
    OutcomeUnknown,
    Throttled,
    Transient,
)
from offloaderd.core.limits import ByteBudget
from offloaderd.core.retry import Backoff, Turn, until_answered
from offloaderd.testing.clock import FakeClock


async def turn() -> None:
    """Let everything that is ready run once."""
    await asyncio.sleep(0)  # noqa: TID251 - gives up the turn, measures no time


class NoJitter:
    """A clock whose jitter is none."""

    def jitter(self, seconds: float) -> float:
        """Return what was given."""
        return seconds


async def test_the_budget_is_never_exceeded_and_waits_in_order() -> None:
    """A large request at the front is not overtaken by small ones behind it."""
    budget, order = ByteBudget(100), []

    async def work(name: str, size: int) -> None:
        await budget.acquire(size)
        order.append(name)
        assert budget.used <= 100

    await budget.acquire(60)
    async with asyncio.TaskGroup() as group:
        group.create_task(work("large", 90))
        await turn()
        group.create_task(work("small", 10))
        await turn()
        assert order == []
        budget.release(60)
    assert order == ["large", "small"]
    assert budget.used == 100


async def test_more_than_all_is_granted_alone() -> None:
    """A part larger than the budget passes when nothing else is on its way."""
    budget = ByteBudget(10)
    await budget.acquire(50)
    assert budget.used == 50
    waiting = asyncio.ensure_future(budget.acquire(1))  # noqa: TID251 - to look at it while it waits
    await turn()
    assert not waiting.done()
    budget.release(50)
    await waiting
    assert budget.used == 1


async def test_one_holder_never_takes_all() -> None:
    """Who holds something gets more only if as much again is left; meanwhile others are not held up behind it."""
    budget = ByteBudget(64)
    await budget.acquire(17, "stuck")
    await budget.acquire(17, "stuck")
    third = asyncio.ensure_future(budget.acquire(17, "stuck"))  # noqa: TID251 - to look at it while it waits
    await turn()
    assert not third.done()
    await budget.acquire(17, "other")
    budget.release(17, "other")
    await budget.acquire(17, "other")
    assert not third.done()
    budget.release(17, "stuck")
    await third
    assert budget.used == 51


async def test_a_holder_with_nothing_may_have_all() -> None:
    """A part larger than half of the budget, or than all of it, is sent alone."""
    budget = ByteBudget(10)
    await budget.acquire(9, "large")
    budget.release(9, "large")
    await budget.acquire(90, "large")
    assert budget.used == 90
    budget.release(90, "large")
    assert budget.used == 0


@pytest.mark.parametrize("granted_first", [False, True])
async def test_a_cancelled_request_keeps_nothing(granted_first: bool) -> None:
    """Cancelled before or just after its turn came, a request leaves the budget as it was."""
    budget = ByteBudget(10)
    await budget.acquire(10)
    waiting = asyncio.ensure_future(budget.acquire(5))  # noqa: TID251 - to cancel it from outside
    behind = asyncio.ensure_future(budget.acquire(7))  # noqa: TID251
    await turn()
    if granted_first:
        budget.release(10)
        waiting.cancel()
    else:
        waiting.cancel()
        budget.release(10)
    await behind
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert budget.used == 7


@pytest.mark.parametrize(
    ("error", "first", "most"),
    [
        (Transient("t"), 0.1, 10.0),
        (OutcomeUnknown("t"), 0.1, 10.0),
        (Throttled("t"), 0.5, 20.0),
        (Expired("e"), 0.2, 15.0),
        (Denied("d"), 1.0, 30.0),
        (NoSpace("n"), 2.0, 30.0),
        (BucketMissing("b"), 5.0, 30.0),
        (NotFound("b"), 1.0, 30.0),
        (OffloaderError("any"), 0.1, 10.0),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_pauses_grow_with_tries_and_by_class_of_error(error: Exception, first: float, most: float) -> None:
    """Each class has its own first pause and its own bound, and begins anew after a success."""
    backoff = Backoff(NoJitter())  # type: ignore[arg-type]
    pauses = [backoff.pause_s(error) for _ in range(40)]
    assert pauses[:2] == [first, first * 2]
    assert pauses == sorted(pauses)
    assert pauses[-1] == most
    assert backoff.tries == 40
    backoff.reset()
    assert backoff.pause_s(error) == first


def test_classes_that_alternate_do_not_share_their_pauses() -> None:
    """A store that throttled for long does not make the first lost connection wait long, nor the other way round."""
    backoff = Backoff(NoJitter())  # type: ignore[arg-type]
    for _ in range(20):
        backoff.pause_s(Throttled("t"))
    assert backoff.pause_s(Transient("t")) == 0.1
    assert backoff.pause_s(Throttled("t")) == 20.0


async def test_asking_goes_on_until_there_is_an_answer() -> None:
    """Only what may pass is tried again, and every failure is told."""
    answers: list[object] = [Transient("away"), Throttled("busy"), "here"]
    errors: list[Transient] = []

    async def ask() -> object:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    clock = FakeClock()
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(until_answered(clock, ask, on_error=errors.append))
        while not asking.done():
            await clock.advance(60)
    assert asking.result() == "here"
    assert list(map(type, errors)) == [Transient, Throttled]
    answers = [Denied("no")]
    with pytest.raises(Denied):
        await until_answered(clock, ask)


async def test_a_pause_frees_the_turn_and_ends_when_there_is_one_again() -> None:
    """Others begin during the pause; the sleeper waits for the end of theirs, however long ago it woke."""
    clock, turns, seen = FakeClock(), asyncio.Semaphore(1), list[str]()
    theirs = asyncio.Event()

    async def waiting() -> None:
        one = Turn(turns, clock)
        async with one:
            await one.sleep(5)
            assert turns.locked()
            seen.append("waiting")

    async def other() -> None:
        async with Turn(turns, clock):
            seen.append("other")
            await theirs.wait()

    async with asyncio.TaskGroup() as group:
        group.create_task(waiting())
        group.create_task(other())
        await clock.settle()
        await clock.advance(60)
        assert seen == ["other"]
        theirs.set()
    assert seen == ["other", "waiting"]
    assert not turns.locked()


async def test_a_turn_that_ends_during_a_pause_is_freed_once() -> None:
    """Else there would be more turns than there are; without a turn, a sleep is a sleep."""
    clock, turns = FakeClock(), asyncio.Semaphore(1)
    one = Turn(turns, clock)

    async def waiting() -> None:
        async with one:
            await one.sleep(5)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(waiting())
        await clock.settle()
        task.cancel()
    async with asyncio.TaskGroup() as group:
        group.create_task(one.sleep(5))
        await clock.advance(5)
    async with turns:
        assert turns.locked()
