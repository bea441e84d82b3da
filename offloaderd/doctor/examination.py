"""The whole examination: every group of checks, in the order in which they depend on each other."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from offloaderd.doctor.admin import admin_checks
from offloaderd.doctor.bucket import bucket_checks
from offloaderd.doctor.case import Case
from offloaderd.doctor.clocks import clock_checks
from offloaderd.doctor.machine import machine_checks
from offloaderd.doctor.settings import settings_checks
from offloaderd.doctor.zookeeper import zookeeper_checks

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from offloaderd.clock import Clock
    from offloaderd.config import Settings
    from offloaderd.doctor.finding import CheckResult

GROUPS = (settings_checks, machine_checks, zookeeper_checks, admin_checks, bucket_checks, clock_checks)


async def examine(settings: Settings, clock: Clock, *, serving: bool = False) -> AsyncGenerator[CheckResult, None]:
    """Yield each result as it is found. `serving`: the daemon asks about itself."""
    case = Case(settings, clock, serving=serving)
    for group in GROUPS:
        async with aclosing(group(case)) as results:
            async for result in results:
                yield result
