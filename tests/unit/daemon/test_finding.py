"""How checks are run: whatever happens in one is its own result, in one line."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import Denied
from offloaderd.daemon.doctor.finding import Finding, Verdict, examined, ok
from offloaderd.testing.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import Awaitable


async def raising(error: BaseException) -> Finding:
    """A check that breaks."""
    raise error


async def endless() -> Finding:
    """A check whose server never answers."""
    await asyncio.Event().wait()
    return ok("never")


@pytest.mark.parametrize(
    ("work", "found", "what_to_do"),
    [
        (raising(Denied("PutObject x: no", hint="allow it")), "PutObject x: no", "allow it"),
        (raising(Denied("first\n  second\n", hint="do\nthis")), "first; second", "do; this"),
        (raising(PermissionError(13, "Permission denied", "/data/x")), "/data/x: Permission denied", ""),
        (raising(TimeoutError()), "no answer within 0.05 s", "look at its load, and at the network between"),
        (endless(), "no answer within 0.05 s", "look at its load, and at the network between"),
        (
            raising(KeyError("x")),
            "the check itself broke: KeyError: 'x'",
            "report it: it is a defect",
        ),
    ],
    ids=["ours", "two lines", "system", "time-out", "silence", "defect"],
)
async def test_every_failure_is_a_line(work: Awaitable[Finding], found: str, what_to_do: str) -> None:
    """Errors of ours bring their hint, silence ends at the deadline, a defect does not end the examination."""
    result = await examined("bucket", work, FakeClock(), 0.05)
    assert (result.name, result.verdict, result.failed) == ("bucket", Verdict.FAIL, True)
    assert (result.found, result.what_to_do) == (found, what_to_do)


async def test_a_check_is_timed() -> None:
    """By the clock that tests own."""
    clock = FakeClock()

    async def slow() -> Finding:
        await clock.sleep(1.5)
        return ok("late")

    async with asyncio.TaskGroup() as group:
        task = group.create_task(examined("x", slow(), clock))
        await clock.advance(2)
    assert (task.result().seconds, task.result().verdict) == (1.5, Verdict.OK)


async def test_cancellation_goes_through() -> None:
    """A client that went away ends the check, it is no finding."""
    with pytest.raises(asyncio.CancelledError):
        await examined("x", raising(asyncio.CancelledError()), FakeClock())
