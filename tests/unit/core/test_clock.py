"""Pauses between passes over all topics."""

from __future__ import annotations

import asyncio

import pytest

from offloaderd.core.clock import pause_after_pass
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.daemon.status_page.last_hour import SAMPLE_S, Sampler
from offloaderd.testing.clock import FakeClock


async def test_a_pass_over_all_topics_takes_a_tenth_of_the_loop_at_most() -> None:
    """One that took long is followed by a longer pause; a short one by the pause that was asked for."""
    clock = FakeClock()
    begun_s = clock.monotonic()
    assert pause_after_pass(clock, begun_s, 5.0) == 5.0
    await clock.advance(2.0)
    assert pause_after_pass(clock, begun_s, 5.0) == pytest.approx(18.0)


async def test_a_daemon_of_slow_passes_samples_less_often() -> None:
    """As with thousands of active topics, whose statuses take seconds."""
    slow = [0.5, 3.0, 300.0, 0.5]
    pauses: list[float] = []

    class Clock(FakeClock):
        passed_s = 0.0

        def monotonic(self) -> float:
            return self.passed_s

        async def sleep(self, seconds: float) -> None:
            pauses.append(seconds)
            if not slow:
                raise asyncio.CancelledError

    clock = Clock()

    def statuses() -> list[object]:
        clock.passed_s += slow.pop(0)
        return []

    sampler = Sampler(statuses, Metrics(), clock)  # type: ignore[arg-type] # none is looked at
    with pytest.raises(asyncio.CancelledError):
        await sampler.run()
    assert pauses == [SAMPLE_S, pytest.approx(27.0), 60.0, SAMPLE_S]
