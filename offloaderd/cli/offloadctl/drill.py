"""`offloadctl drill`: inject faults in front of the operator's own stores, and check each promise."""

import asyncio
from pathlib import Path

import click

from offloaderd.cli import options, show
from offloaderd.cli.jobs import settings_of
from offloaderd.cli.options import Session
from offloaderd.cli.program import FAILED, OK
from offloaderd.cli.settings import CONFIG
from offloaderd.core.clock import Clock, SystemClock
from offloaderd.daemon import log
from offloaderd.drill import drill as work
from offloaderd.drill.drill import Finding
from offloaderd.drill.exercises import EXERCISES, Exercise
from offloaderd.drill.scratch import Scratch


@click.command()
@click.option("--apply", is_flag=True, help="Run the drill. Without this only the plan is shown.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="Write the report (Markdown) there.")
@click.option(
    "--clean", "word", metavar="DRILL", help="Delete what the drill of this name has left behind, and run no drill."
)
@CONFIG
@options.common
def drill(session: Session, *, apply: bool, output: Path | None, word: str | None, config: Path | None) -> int:
    """Run a separate daemon on the bucket and the ZooKeeper of the settings, inject faults into both, and check the
    promises P1 to P10. Whether the topics in the bucket would come up again is `offloaderd drill restore`.

    It takes about a minute and 31 MB. All keys are below a prefix, and all nodes below the name of a cluster, that no
    other daemon uses; both are deleted at the end. Proxies on this machine inject the faults, and only the drill uses
    them. Run it where a daemon would run, with the same settings. Exit code 1 when a promise was broken or something
    was left behind.

    \b
    Examples:
      offloadctl drill --config offloaderd.toml
      offloadctl drill --config offloaderd.toml --apply --output drill.md
      offloadctl drill --config offloaderd.toml --apply -o json | jq '.findings[] | select(.outcome == "BROKEN")'
    """
    settings, clock = settings_of(session, config), SystemClock()
    log.configure("error", settings.log.format)
    scratch = Scratch.named(settings, word or clock.uuid().hex[:12])
    if word is not None:
        objects, records = session.run(scratch.clean(clock))
        session.tell(
            {"drill": scratch.name, "objects": objects, "records": records},
            f"{scratch.name}: {show.plural(objects, 'object')} and {show.plural(records, 'node')} were taken away",
        )
        return OK
    return session.run(_drill(session, scratch, clock, output, apply=apply))


async def _drill(session: Session, scratch: Scratch, clock: Clock, output: Path | None, *, apply: bool) -> int:
    if not apply:
        await work.check_reach(scratch, clock)
        plan = [{"promise": one.promise, "done": one.done, "tried": one.run is not None} for one in EXERCISES]
        session.tell({"drill": scratch.name, "where": work.where(scratch), "plan": plan}, lambda: _show_plan(scratch))
        return OK
    report = await work.run(scratch, clock, _tell)
    text = report.markdown(show.moment(report.started_ms))
    if output is not None:
        await asyncio.to_thread(output.write_text, text, encoding="utf-8")
    session.tell(report.document(), lambda: click.echo(text, nl=False))
    return OK if report.sound else FAILED


def _show_plan(scratch: Scratch) -> None:
    show.facts(list(work.where(scratch).items()))
    click.echo()
    show.table(("PROMISE", "WHAT WOULD BE DONE"), [(one.promise, one.done) for one in EXERCISES])
    show.note("\nnothing was done; --apply does it")


def _tell(exercise: Exercise, finding: Finding | None) -> None:
    """Write the progress of the drill to stderr."""
    if finding is None:
        show.note(f"{exercise.promise}: {exercise.done}")
    else:
        show.note(f"{exercise.promise}: {finding.outcome.value}: {finding.found}")
