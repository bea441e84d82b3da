"""The settings: what is allowed, works, and may still not be what somebody wants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offloaderd.config.doubts import doubtful
from offloaderd.doctor.finding import CheckResult, Finding, Verdict, ok, warn

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from offloaderd.config import Settings
    from offloaderd.doctor.case import Case


async def settings_checks(case: Case) -> AsyncGenerator[CheckResult, None]:
    """Judge settings that are valid."""
    yield await case.check("settings", _judged(case.settings))


def invalid(mistakes: Sequence[str]) -> list[CheckResult]:
    """Return a line for each mistake in settings that are not."""
    return [
        CheckResult(name="settings", verdict=Verdict.FAIL, found=mistake, what_to_do="docs/settings.md describes each")
        for mistake in mistakes
    ]


async def _judged(settings: Settings) -> Finding:
    doubts = list(doubtful(settings))
    if doubts:
        return warn("; ".join(found for found, _ in doubts), "; ".join(advice for _, advice in doubts))
    return ok(f"valid: ledgers.kind = {settings.ledgers.kind}, objects.kind = {settings.objects.kind}")
