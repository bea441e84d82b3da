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
    doubts = list(doubtful(report.settings)) if report.settings is not None else []
    messages = [f"{one.found} ({one.what_to_do})" if one.what_to_do else one.found for one in tried]
    stores = [(one.name, not one.failed, text) for one, text in zip(tried, messages, strict=True)]
    if as_json:
        document: dict[str, object] = {
            "valid": report.settings is not None,
            "mistakes": list(report.mistakes),
            "warnings": [f"{found}: {advice}" for found, advice in doubts],
            "settings": [{"key": row.key, "value": row.value, "source": row.source} for row in report.rows],
        }
        if connect:
            document["connections"] = [{"name": name, "up": up, "message": text} for name, up, text in stores]
        show.document(document)
    else:
        _for_people(report, doubts, stores)
    if report.settings is None:
        return USAGE
    return OK if not any(one.failed for one in tried) else FAILED


def _for_people(report: Report, doubts: Sequence[tuple[str, str]], stores: Sequence[tuple[str, bool, str]]) -> None:
    """Show the settings, doubtful ones with advice, and connections; or the mistakes."""
    if report.settings is None:
        count = show.plural(len(report.mistakes), "mistake")
        click.echo(f"error: {count} in the settings", err=True)
        for mistake in report.mistakes:
            click.echo(f"  {mistake}", err=True)
        click.echo("hint: docs/settings.md describes each setting", err=True)
        return
    show.table(["SETTING", "VALUE", "SOURCE"], [(row.key, row.value, row.source) for row in report.rows])
    for found, advice in doubts:
        click.echo(f"warning: {found}\nhint: {advice}", err=True)
    if stores:
        click.echo()
        rows = [(name, "up" if up else "DOWN", text) for name, up, text in stores]
        show.table(["CONNECTION", "STATE", "MESSAGE"], rows)
    given = sum(row.source != "default" for row in report.rows)
    click.echo(f"the settings are valid: {given} given, {len(report.rows) - given} by default")


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
    return asyncio.run(show.show_checks(_examination(config), show.document if as_json else None))


async def _examination(config: Path | None) -> AsyncGenerator[CheckResult, None]:
    from offloaderd.daemon.doctor.examination import examine, invalid  # noqa: PLC0415 - loads every adapter

    report = check(config, os.environ)
    if report.settings is None:
        for result in invalid(report.mistakes):
            yield result
        return
    async with aclosing(examine(report.settings, SystemClock())) as results:
        async for result in results:
            yield result
