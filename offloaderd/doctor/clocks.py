"""This machine's clock beside those of the servers that were talked to.

Only here are wall-clock times subtracted from each other: how far apart clocks are is the question. A server's time
is known to lie between the moments before and after its answer, no closer, and coarser where it tells full seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from offloaderd.doctor.finding import CheckResult, Finding, Reading, fail, ok, warn

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from offloaderd.doctor.case import Case

SKEW_WARN_MS = 2_000
SKEW_FAIL_MS = 300_000
"""Well before the 15 minutes after which S3 refuses signatures."""


async def clock_checks(case: Case) -> AsyncGenerator[CheckResult, None]:
    """Judge every clock that was read on the way."""
    for name, reading in case.readings.items():
        yield await case.check(f"clock of {name}", _judged(name, reading))


async def _judged(name: str, reading: Reading) -> Finding:
    return judge(name, reading)


def judge(name: str, reading: Reading) -> Finding:
    """Say what a server's clock means for us."""
    skew_ms = reading.skew_ms
    if abs(skew_ms) <= SKEW_WARN_MS:
        return ok(f"agrees with ours to {max(1.0, abs(skew_ms) / 1000):.0f} s")
    found = f"{abs(skew_ms) / 1000:.1f} s {'ahead of' if skew_ms > 0 else 'behind'} ours"
    if abs(skew_ms) <= SKEW_FAIL_MS:
        return warn(found, f"let NTP set this machine and {name}: ages and times in segments are off by as much")
    return fail(found, f"let NTP set this machine and {name}: S3 refuses signatures that are 15 minutes off")
