"""`offloaderd standalone`: run everything on one machine, and the walkthrough, with a live table on a terminal."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from offloaderd.cli import show
from offloaderd.cli.program import INTERRUPTED
from offloaderd.core.clock import SystemClock
from offloaderd.core.model import TopicName
from offloaderd.daemon.process import limit_arenas, relax_gc
from offloaderd.standalone import state

if TYPE_CHECKING:
    from offloaderd.protocol.v1 import admin_pb2
    from offloaderd.standalone import dataset
    from offloaderd.standalone.stack import Stack
    from offloaderd.standalone.walkthrough import Comparison, Progress


LINE_EVERY_S = 2.0
"""Pause between two progress lines without a terminal."""
TIERS = {"objects": "S3", "buffer": "the daemon's buffer", "source": "the ledger store"}


class TerminalScreen:
    """Shows steps, progress and results on stdout."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._console = show.console()
        self._clock = SystemClock()
        self._live: Live | None = None
        self._last_line_s = 0.0
        self._last: Progress | None = None

    def say(self, text: str = "") -> None:
        """Write a line; a live table ends above it."""
        self.close()
        self._console.print(text, soft_wrap=True)
        self._console.file.flush()

    def close(self) -> None:
        """End a live table; its last state stays on the screen."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def starting(self) -> None:
        """Show that the servers are being started."""
        self.say(f"starting ZooKeeper and SeaweedFS over {self._directory} ...")

    def ready(self, running: Stack) -> None:
        """Show the addresses of everything that runs."""
        here = running.state
        self.say("again, over existing data" if running.restarted else "first start: chose ports and credentials")
        for name, value in (
            ("daemon (gRPC)", here.address),
            ("metrics, health", f"{here.http}/metrics"),
            ("ZooKeeper", running.settings.metadata.servers),
            ("S3 (SeaweedFS)", f"{here.s3_endpoint}, bucket {here.bucket}"),
            ("credentials", f"{running.directory / state.FILE_NAME} (only you may read it)"),
        ):
            self.say(f"  {name:<16} {value}")
        self.say(f"\noffloadctl --standalone {shlex.quote(str(self._directory))} status    Ctrl-C drains and stops")

    def appending(self, title: str, topic: TopicName) -> None:
        """See Screen."""
        self.say(f"\nappending {title}")
        self.say(f"to {topic}, over gRPC, in segments of 16 MiB")

    def progress(self, now: Progress) -> None:
        """Show the progress: a live table on a terminal, else a line every few seconds."""
        self._last = now
        self._refresh(_flow_table(now), flow_line(now))

    def offloading(self, skipped: int) -> None:
        """See Screen."""
        if skipped:
            self.say(f"{show.plural(skipped, 'empty line')} skipped")
        self.say("all appended; offloading what is still open by hand (offloadctl offload --wait)")

    def stored(self, segments: Sequence[admin_pb2.Segment]) -> None:
        """See Screen."""
        if self._last is not None and not self._console.is_terminal:
            self.say(flow_line(self._last))
        self.say("\nstored in S3 and committed in ZooKeeper:")
        self.close()
        self._console.file.write(show.SEGMENTS.rendered(segments))
        index, manifest = "<data object>-index", "<data object>-manifest"
        self.say(f"each with {index} (PIP-76) and {manifest} (checksums)")
        self.say("\nreading it back over gRPC")

    def reading(self, entries: int, total: int) -> None:
        """See Screen."""
        text = f"read {show.number(entries)} of {show.number(total)} entries"
        self._refresh(text, text)

    def compared(self, comparison: Comparison) -> None:
        """See Screen."""
        sent, received = comparison.sent, comparison.received
        rows = [
            ("in", show.number(sent.entries), show.number(sent.payload_bytes), sent.hexdigest()),
            ("out", show.number(received.entries), show.number(received.payload_bytes), received.hexdigest()),
        ]
        self.close()
        self._console.file.write(show.rendered(("", ">ENTRIES", ">BYTES", "SHA-256"), rows))
        served = ", ".join(f"{TIERS.get(tier, tier)} {show.number(count)}" for tier, count in comparison.tiers.items())
        rate = show.rate(received.payload_bytes, comparison.seconds)
        self.say(f"served by: {served or 'nobody'}; in {show.age(comparison.seconds)}, {rate}")
        differences = comparison.differences()
        self.say("DIFFERENT: " + "; ".join(differences) if differences else "identical, bit for bit")

    def how_to_resume(self, topic: TopicName) -> None:
        """Show commands to continue with."""
        quoted, usual = shlex.quote(str(self._directory)), str(self._directory) == state.DEFAULT_DIRECTORY
        where = "" if usual else f" --standalone {quoted}"
        start = "make standalone" if usual else f"offloaderd standalone --data {quoted}"
        self.say(f"\nThe data stays in {self._directory}. To go on, leave it running in one terminal:")
        for line in (start, f"offloadctl{where} status", f"offloadctl{where} segments {topic}"):
            self.say(f"  {line}")
        self.say(f"  offloadctl{where} read {topic} --max 3")
        self.say(f"  seq 1000 | offloadctl{where} produce numbers && offloadctl{where} topics enable numbers")

    def _refresh(self, drawn: RenderableType, line: str) -> None:
        """Draw on a terminal; elsewhere write a line every few seconds."""
        now_s = self._clock.monotonic()
        if not self._console.is_terminal:
            if now_s - self._last_line_s >= LINE_EVERY_S:
                self._last_line_s = now_s
                self.say(line)
            return
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
            self._live.start()
        self._live.update(drawn, refresh=True)


def _flow_table(now: Progress) -> Text:
    share = f" of {show.number(now.total_entries)}" if now.total_entries else ""
    rate = show.rate(now.appended_bytes, now.seconds)
    committed = show.plural(now.segments, "segment")
    rows = [
        ("appended", show.number(now.appended_entries), show.size(now.appended_bytes), f"{rate}{share}"),
        ("in the buffer", "", show.size(now.buffered_bytes), ""),
        ("being uploaded", show.number(now.open_entries), show.size(now.open_bytes), "the open segment"),
        ("committed", show.number(now.committed_entries), show.size(now.committed_bytes), committed),
        ("lag", show.number(now.lag_entries), show.size(now.lag_bytes), _lag_age(now)),
        *([("trouble", "", "", now.failure)] if now.failure else []),
    ]
    return Text(show.rendered(("", ">ENTRIES", ">BYTES", ""), rows).rstrip("\n"))


def _lag_age(now: Progress) -> str:
    """Return the age of the oldest entry that is not committed, a question mark if it is unknown."""
    return "?" if now.lag_seconds is None else show.age(now.lag_seconds)


def flow_line(now: Progress) -> str:
    """Return the progress in one line."""
    of = f" of {show.number(now.total_entries)}" if now.total_entries else ""
    parts = [
        f"{now.seconds:6.1f} s  appended {show.number(now.appended_entries)}{of} ({show.size(now.appended_bytes)})",
        f"buffer {show.size(now.buffered_bytes)}",
        f"uploading {show.number(now.open_entries)}",
        f"committed {show.number(now.committed_entries)} in {show.plural(now.segments, 'segment')}",
        f"lag {show.number(now.lag_entries)} ({_lag_age(now)})",
    ]
    return " | ".join(parts + ([f"failing: {now.failure}"] if now.failure else []))


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
    from offloaderd.standalone import dataset, runner  # noqa: PLC0415 - --help need not wait for the daemon's libraries
    from offloaderd.standalone.stack import StackOptions  # noqa: PLC0415

    screen = TerminalScreen(data)
    work = partial(_walk, dataset.choose(source), screen) if walkthrough else None
    with ExitStack() as exits:
        options = StackOptions(directory=data, config=config, new_ports=new_ports)
        screen.starting()
        try:
            starting = partial(_start_log, exits, to_file=walkthrough)
            run = runner.run(
                options, os.environ, SystemClock(), starting=starting, ready=screen.ready, work=work, keep=keep
            )
            return asyncio.run(run)
        except runner.Interrupted as stopped:
            click.echo(stopped.message, err=True)
            return INTERRUPTED
        finally:
            screen.close()


async def _walk(chosen: dataset.Dataset, screen: TerminalScreen, running: Stack) -> None:
    """Run the walkthrough against the daemon."""
    from offloaderd.client import DaemonClient  # noqa: PLC0415
    from offloaderd.standalone.walkthrough import Walkthrough  # noqa: PLC0415

    async with DaemonClient(running.state.address) as client:
        topic = await Walkthrough(client, chosen, screen, SystemClock()).run()
    screen.how_to_resume(topic)


def _start_log(exits: ExitStack, running: Stack, *, to_file: bool) -> None:
    """Write the log of the daemon to a file, if a live table is shown, else to stderr."""
    from offloaderd.daemon import log  # noqa: PLC0415

    settings = running.settings.log
    if not to_file:
        log.configure(settings.level, settings.format, sys.stderr)
        return
    path = running.directory / LOG_NAME
    if path.exists():
        path.replace(path.with_suffix(".log.1"))
    log.configure(settings.level, settings.format, exits.enter_context(path.open("w", encoding="utf-8")))
    exits.callback(log.configure)
