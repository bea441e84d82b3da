"""`offloaderd doctor`: check from this machine everything that a daemon with these settings needs."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import click

from offloaderd.cli import views
from offloaderd.cli.options.place import CONFIG
from offloaderd.core.clock import SystemClock
from offloaderd.daemon.doctor.examination import examine, invalid
from offloaderd.daemon.doctor.finding import CheckResult
from offloaderd.daemon.log import log
from offloaderd.daemon.settings import check


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
        return await views.shown(results, as_json=as_json)


async def _examination(config: Path | None) -> AsyncGenerator[CheckResult, None]:
    report = check(config, os.environ)
    if report.settings is None:
        for result in invalid(report.mistakes):
            yield result
        return
    async with aclosing(examine(report.settings, SystemClock())) as results:
        async for result in results:
            yield result
