"""`offloaderd drill`: prove on the site's own bucket that its topics would come up again."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import click

from offloaderd.cli import captures, show
from offloaderd.cli.captures import CAPTURE
from offloaderd.cli.offloaderd.mount import AT_GAP
from offloaderd.cli.options import Parsed
from offloaderd.cli.program import FAILED, OK
from offloaderd.cli.progress import Bars
from offloaderd.cli.settings import CONFIG, settings_at
from offloaderd.core.clock import Clock, SystemClock
from offloaderd.core.names.patterns import TopicPattern
from offloaderd.daemon import log
from offloaderd.daemon.settings import Settings
from offloaderd.daemon.stores import sites
from offloaderd.drill.restore import BYTES_READ, Found, Reading, RestoreDrill, Wish
from offloaderd.drill.restore_report import RestoreReport, last_success, write_metrics
from offloaderd.mount.captured import Captured
from offloaderd.mount.plan import AtGap
from offloaderd.objects.opening import bucket_store

STEP_PERCENT = 10
"""How often progress is written where there is no terminal."""


@click.group()
def drill() -> None:
    """Prove beforehand, on the site's own bucket, that topics would come up again; nothing is written there.

    `offloadctl drill` is another drill: it injects faults before scratch topics of its own.

    \b
    Examples:
      offloaderd drill restore --config offloaderd.toml
    """


@drill.command()
@click.argument("patterns", metavar="[TOPIC|PATTERN]...", nargs=-1, type=Parsed("pattern", TopicPattern.parse))
@CONFIG
@click.option(
    "--read",
    "reading",
    type=click.Choice([one.value for one in Reading]),
    default=Reading.ENDS.value,
    show_default=True,
    help="What is read of each ledger: nothing; the first and the last entry in each segment; everything.",
)
@AT_GAP
@CAPTURE
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="Write the report (Markdown) there.")
@click.option(
    "--metrics-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write metrics there, for node_exporter's textfile collector: a name that ends with .prom.",
)
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON: one document.")
def restore(
    *,
    patterns: Sequence[TopicPattern],
    config: Path | None,
    reading: str,
    at_gap: str,
    capture: str,
    output: Path | None,
    metrics_file: Path | None,
    as_json: bool,
) -> int:
    """Try the restore of all topics, or of those given, from the bucket alone.

    It plans a mount and writes it into an empty cluster in memory, opens each ledger as a broker's driver would, and
    reads entries with their checksums. It needs read rights on the bucket and nothing else. The report says what would
    come up, what would not and why, and how long it took. docs/restore-drill.md has more.

    Exit code 1 when a topic would not come up, or something in the bucket cannot be read.

    \b
    Examples:
      offloaderd drill restore --config offloaderd.toml
      offloaderd drill restore 'acme/orders/*' --read all --output restore.md --config offloaderd.toml
      offloaderd drill restore --config offloaderd.toml --metrics-file /var/lib/node_exporter/restore.prom
      offloaderd drill restore --config offloaderd.toml --json | jq '.topic_results[] | select(.comes_up | not)'
    """
    log.configure("critical")
    wish = Wish(patterns=patterns, reading=Reading(reading), at_gap=AtGap(at_gap))
    report = asyncio.run(_tried(settings_at(config, None), wish, capture, metrics_file))
    text = report.markdown()
    if output is not None:
        output.write_text(text, encoding="utf-8")
    if as_json:
        show.document(report.document())
    else:
        click.echo(text, nl=False)
    return OK if report.found.sound else FAILED


async def _tried(settings: Settings, wish: Wish, capture: str, metrics_file: Path | None) -> RestoreReport:
    """Run the drill, and write its metrics, also if it is broken off by an error. Raises what prevents it."""
    clock, cluster = SystemClock(), settings.daemon.cluster
    succeeded_s = last_success(metrics_file, cluster) if metrics_file is not None else 0.0

    def write(found: Found | None) -> None:
        if metrics_file is not None:
            write_metrics(metrics_file, cluster, found, now_s=clock.wall_ms() / 1000, succeeded_s=succeeded_s)

    try:
        report = await _run(settings, clock, wish, capture)
    except Exception:
        write(None)
        raise
    write(report.found)
    return report


async def _run(settings: Settings, clock: Clock, wish: Wish, capture: str) -> RestoreReport:
    with Bars() as bars:

        def progress(name: str, done: int, total: int) -> None:
            said = show.size(done) if name == BYTES_READ else show.number(done)
            step = 100 * done // total // STEP_PERCENT if total else 0
            bars.show(name, said, done, total or None, step=step)

        async with bucket_store(settings.objects, clock) as objects:
            chosen = await captures.chosen(objects, settings, capture)
            captured = Captured(chosen) if chosen is not None else None
            return RestoreReport(
                cluster=settings.daemon.cluster,
                bucket=sites(settings)[0].bucket,
                wish=wish,
                found=await RestoreDrill(objects, settings, wish, clock, progress, captured).run(),
                captured_ms=captured.taken_ms if captured is not None else None,
            )
