"""`offloaderd check-config` and `doctor`: check the settings, and from this machine what a daemon with them needs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from offloaderd.cli import show
from offloaderd.cli.program import FAILED, OK, USAGE
from offloaderd.cli.settings import CONFIG
from offloaderd.core.clock import SystemClock
from offloaderd.daemon import log
from offloaderd.daemon.doctor.examination import examine, invalid
from offloaderd.daemon.doctor.finding import CheckResult
from offloaderd.daemon.settings import Report, check
from offloaderd.daemon.settings.rules import doubtful

if TYPE_CHECKING:
    from offloaderd.daemon.doctor.finding import CheckResult


@click.command("check-config")
@CONFIG
@click.option("--connect", is_flag=True, help="Also check ZooKeeper, the bucket and the ports.")
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
def check_config(*, config: Path | None, connect: bool, as_json: bool) -> int:
    """Check the settings; show each effective one and where it comes from, secrets masked.

    All mistakes are reported at once, with exit code 2. With --connect, what cannot be reached gives exit code 1.

    \b
    Examples:
      offloaderd check-config --config offloaderd.toml
      offloaderd check-config --config offloaderd.toml --connect
      offloaderd check-config --config offloaderd.toml --json | jq -r '.mistakes[]'
    """
    report = check(config, os.environ)
    tried: Sequence[CheckResult] = ()
    if connect and report.settings is not None:
        from offloaderd.daemon.doctor.examination import connections  # noqa: PLC0415 - loads every adapter

        tried = asyncio.run(connections(report.settings, SystemClock()))
    if as_json:
        show.document(as_document(report, tried if connect else None))
    else:
        for_people(report, tried)
    if report.settings is None:
        return USAGE
    return OK if not any(one.failed for one in tried) else FAILED


def as_document(report: Report, tried: Sequence[CheckResult] | None) -> dict[str, object]:
    """Return the report as JSON shows it, with `connections` if they were `tried`."""
    found: dict[str, object] = {
        "valid": report.settings is not None,
        "mistakes": list(report.mistakes),
        "warnings": [f"{found}: {advice}" for found, advice in doubts(report)],
        "settings": [{"key": row.key, "value": row.value, "source": row.source} for row in report.rows],
    }
    if tried is not None:
        found["connections"] = [{"name": one.name, "up": not one.failed, "message": message(one)} for one in tried]
    return found


def doubts(report: Report) -> list[tuple[str, str]]:
    """Return valid settings that may be a mistake, each with advice."""
    return list(doubtful(report.settings)) if report.settings is not None else []


def message(one: CheckResult) -> str:
    """Return the problem of a connection, with its hint."""
    return f"{one.found} ({one.what_to_do})" if one.what_to_do else one.found


def for_people(report: Report, tried: Sequence[CheckResult]) -> None:
    """Show the settings, or the mistakes."""
    if report.settings is None:
        count = show.plural(len(report.mistakes), "mistake")
        click.echo(f"error: {count} in the settings", err=True)
        for mistake in report.mistakes:
            click.echo(f"  {mistake}", err=True)
        click.echo("hint: docs/settings.md describes each setting", err=True)
        return
    show.table(["SETTING", "VALUE", "SOURCE"], [(row.key, row.value, row.source) for row in report.rows])
    for found, advice in doubts(report):
        click.echo(f"warning: {found}\nhint: {advice}", err=True)
    if tried:
        click.echo()
        show.table(
            ["CONNECTION", "STATE", "MESSAGE"],
            [(one.name, "DOWN" if one.failed else "up", message(one)) for one in tried],
        )


@click.command()
@CONFIG
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON: one document.")
def doctor(*, config: Path | None, as_json: bool) -> int:
    """Check ZooKeeper, bookies, the admin API of the brokers, the bucket and the clocks; no daemon need run.

    One line a check, with what to do. Probes of its own are written, read and deleted again: a node below
    metadata.root, and objects below <objects.prefix>offloaderd-doctor/. Exit code 1 when anything failed. To see it
    from where a daemon runs: offloadctl doctor.

    \b
    Examples:
      offloaderd doctor --config /etc/offloaderd/offloaderd.toml
      offloaderd doctor --config offloaderd.toml --json | jq -r '.checks[] | select(.verdict != "ok")'
    """
    log.configure("critical")  # the checks report what the libraries would log
    return asyncio.run(_doctor(config, as_json=as_json))


async def _doctor(config: Path | None, *, as_json: bool) -> int:
    async with aclosing(_examination(config)) as results:
        return await show.show_checks(results, as_json=as_json)


async def _examination(config: Path | None) -> AsyncGenerator[CheckResult, None]:
    report = check(config, os.environ)
    if report.settings is None:
        for result in invalid(report.mistakes):
            yield result
        return
    async with aclosing(examine(report.settings, SystemClock())) as results:
        async for result in results:
            yield result
