"""How an examination is shown, by both commands: each result as it is found, then the sum, and an exit code."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import click

from offloaderd.cli import show
from offloaderd.cli.program import FAILED, OK
from offloaderd.protocol.message_json import picked

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from offloaderd.daemon.doctor.finding import CheckResult
    from offloaderd.protocol.v1 import doctor_pb2

    Result = CheckResult | doctor_pb2.CheckResult

NAME_WIDTH = 26
STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}
NOUNS = (("ok", "ok", "ok"), ("warn", "warning", "warnings"), ("fail", "failed", "failed"), ("skipped",) * 3)


async def shown(results: AsyncGenerator[Result, None], *, as_json: bool) -> int:
    """Show an examination; returns the exit code: 1 when anything failed."""
    seen: list[Result] = []
    async for result in results:
        seen.append(result)
        if not as_json:
            click.echo(line(result))
    failed = any(result.verdict == "fail" for result in seen)
    if as_json:
        show.document({"passed": not failed, "checks": [document(result) for result in seen]})
    else:
        click.echo()
        click.echo(summary(seen))
    return FAILED if failed else OK


def line(result: Result) -> str:
    """Return a result in one line, what to do at its end."""
    verdict = f"{result.verdict.upper() if result.verdict == 'fail' else result.verdict:<8}"
    todo = f" -> {result.what_to_do}" if result.what_to_do else ""
    return f"{click.style(verdict, STYLES.get(result.verdict))} {result.name:<{NAME_WIDTH}} {result.found}{todo}"


def summary(results: Sequence[Result]) -> str:
    """Return how many of each, in one line."""
    counts = Counter(result.verdict for result in results)
    parts = [f"{counts[kind]} {one if counts[kind] == 1 else many}" for kind, one, many in NOUNS if counts[kind]]
    return f"{', '.join(parts)} in {show.age(sum(result.seconds for result in results))}"


def document(result: Result) -> dict[str, object]:
    """Return a result as JSON shows it."""
    return picked(result, "name", "verdict", "found", "what_to_do", "seconds", kept=("found",))
