"""`offloaderd standalone`: run everything on one machine, and the walkthrough."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from offloaderd.cli.offloaderd.screen import TerminalScreen
from offloaderd.cli.program import INTERRUPTED
from offloaderd.core.clock import SystemClock
from offloaderd.daemon.memory import limit_arenas, relax_gc
from offloaderd.standalone import state

if TYPE_CHECKING:
    from offloaderd.standalone import dataset
    from offloaderd.standalone.stack import Stack

LOG_NAME = "offloaderd.log"


@click.command()
@click.option(
    "--data",
    metavar="DIR",
    envvar="OFFLOADCTL_STANDALONE",
    type=click.Path(path_type=Path, file_okay=False),
    default=state.DEFAULT_DIRECTORY,
    show_default=True,
    help="Directory of all data; a later start continues with it.",
)
@click.option("--walkthrough", is_flag=True, help="Append a data set, watch it reach S3, read it back, compare; stop.")
@click.option(
    "--input", "source", metavar="PATH", help="Walk through this file (- for standard input), one entry a line."
)
@click.option("--keep", is_flag=True, help="Keep running after the walkthrough.")
@click.option(
    "--config",
    metavar="PATH",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Settings (TOML) for what is not decided here: rolling, memory, log. The environment works as well.",
)
@click.option("--new-ports", is_flag=True, help="Choose other ports than those of the first start.")
def standalone(
    *, data: Path, walkthrough: bool, source: str | None, keep: bool, config: Path | None, new_ports: bool
) -> int:
    """Run ZooKeeper, an S3 server (SeaweedFS), a ledger store and the daemon, all on the loopback interface.

    One process tree, no root, no container; credentials are random and stay in DIR. Ctrl-C completes open segments
    and stops everything; the next start continues with DIR.

    \b
    Examples:
      offloaderd standalone
      offloaderd standalone --walkthrough
      offloaderd standalone --walkthrough --input orders.ndjson --keep
    """
    if (source is not None or keep) and not walkthrough:
        raise click.UsageError("--input and --keep belong to --walkthrough")
    limit_arenas()
    relax_gc()
    from offloaderd.standalone import (  # noqa: PLC0415 - --help need not wait for the daemon's libraries
        dataset,
        runner,
    )
    from offloaderd.standalone.stack import StackOptions  # noqa: PLC0415

    screen = TerminalScreen(data)
    work = None
    if walkthrough:
        chosen = dataset.choose(source)

        async def walkthrough_of(running: Stack) -> None:
            await walk(running, chosen, screen)

        work = walkthrough_of
    with ExitStack() as exits:
        options = StackOptions(directory=data, config=config, new_ports=new_ports)
        screen.starting()
        try:
            return asyncio.run(
                runner.run(
                    options,
                    os.environ,
                    SystemClock(),
                    starting=lambda running: start_log(running, exits, to_file=walkthrough),
                    ready=screen.ready,
                    work=work,
                    keep=keep,
                )
            )
        except runner.Interrupted as stopped:
            click.echo(stopped.message, err=True)
            return INTERRUPTED
        finally:
            screen.close()


async def walk(running: Stack, chosen: dataset.Dataset, screen: TerminalScreen) -> None:
    """Run the walkthrough against the daemon."""
    from offloaderd.client import DaemonClient  # noqa: PLC0415
    from offloaderd.standalone.walkthrough import Walkthrough  # noqa: PLC0415

    async with DaemonClient(running.state.address) as client:
        topic = await Walkthrough(client, chosen, screen, SystemClock()).run()
    screen.how_to_resume(topic)


def start_log(running: Stack, exits: ExitStack, *, to_file: bool) -> None:
    """Write the log of the daemon to a file, if a live table is shown, else to stderr."""
    from offloaderd.daemon.log import log  # noqa: PLC0415

    settings = running.settings.log
    if not to_file:
        log.configure(settings.level, settings.format, sys.stderr)
        return
    path = running.directory / LOG_NAME
    if path.exists():
        path.replace(path.with_suffix(".log.1"))
    log.configure(settings.level, settings.format, exits.enter_context(path.open("w", encoding="utf-8")))
    exits.callback(log.configure)
