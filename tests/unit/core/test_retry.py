"""How long a reader is patient with the store."""

from __future__ import annotations

import pytest

from offloaderd.core.errors import Transient
from offloaderd.core.retry import RetryPolicy, retried
from tests.unit.read.build import FastClock


class CountedClock(FastClock):
    """A clock on which time passes by pauses alone."""

    def monotonic(self) -> float:
        """Return the sum of all pauses."""
        return sum(self.pauses)


@pytest.mark.parametrize(("answers_after_s", "tries"), [(0.0, 5), (8.0, 2), (20.0, 1)])
async def test_a_store_that_fails_slowly_is_given_up_before_the_callers_deadline(
    answers_after_s: float, tries: int
) -> None:
    """The error then names the object; a deadline would say nothing of it."""
    clock, asked = CountedClock(), 0

    async def ask() -> None:
        nonlocal asked
        asked += 1
        await clock.sleep(answers_after_s)
        raise Transient("get key: 503")

    with pytest.raises(Transient, match="get key: 503"):
        await retried(ask, clock=clock, policy=RetryPolicy())
    assert asked == tries
