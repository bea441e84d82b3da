"""`offloaderd verify`: verify everything in the bucket with read access only."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, Unpack

import click

from offloaderd.cli import options, show
from offloaderd.cli.options import size_param
from offloaderd.cli.program import FAILED, OK, report
from offloaderd.cli.progress import Bars
from offloaderd.cli.settings import CONFIG, STANDALONE, served
from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import InvalidConfig, OffloaderError
from offloaderd.core.limits import TokenBucket
from offloaderd.core.model import TopicName
from offloaderd.daemon import log
from offloaderd.daemon.settings import Settings
from offloaderd.daemon.stores import metadata_store, sites
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.objects.opening import bucket_store
from offloaderd.objects.retrying import RetryingReader
from offloaderd.protocol.conversion import picked
from offloaderd.upkeep.flaws import Level, damage_by_segment
from offloaderd.upkeep.grants.revoke_on_damage import DamagedLedger, JobKeeper
from offloaderd.upkeep.verify.cluster import Report, Verifier, Wish

NOT_LOOKED = 3
LEVELS = ("metadata", "headers", "full")
COUNTS = ("segments", "entries", "object_bytes", "problems", "unreachable")
SUM = ("topics", "segments", "entries", "object_bytes", "problems", "notes", "unreachable", "error", "last_topic=last")


class Against(TypedDict):
    """What the bucket is compared with, and whether grants are revoked."""

    against_map: bool
    dry_run: bool


@click.command()
@CONFIG
@STANDALONE
@click.option(
    "--topic", "topics", metavar="TOPIC", type=options.TOPIC, multiple=True, help="Only this one. May be repeated."
)
@click.option(
    "--level",
    type=click.Choice(LEVELS),
    default="full",
    show_default=True,
    help="metadata: manifests, indexes, sizes, continuity. headers: also the header of each block. full: every byte.",
)
@click.option(
    "--against-map",
    is_flag=True,
    help="Also compare with the map in ZooKeeper, and revoke the grants of ledgers whose copy is damaged.",
)
@click.option("--dry-run", is_flag=True, help="With --against-map: revoke no grant, only say of which ledgers.")
@click.option("--after", metavar="TOPIC", type=options.TOPIC, help="Continue behind this topic, in order of name.")
@click.option("--rate", metavar="SIZE", type=size_param(2**20), help="Read at most this a second; a number is MiB.")
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON: one line a topic, the sum in the last one.")
def verify(
    *,
    config: Path | None,
    standalone: Path | None,
    topics: tuple[TopicName, ...],
    level: str,
    after: TopicName | None,
    rate: int | None,
    as_json: bool,
    **against: Unpack[Against],
) -> int:
    """Look at every segment under the prefix: is all of it there, and is it what was written?

    Nothing in the bucket is written or repaired. No daemon need run, and daemons may run meanwhile. The result of each
    topic is shown as soon as it is verified; an interrupted run continues with --after. Findings in lower case are no
    problems.

    With --against-map the grants of ledgers whose copy is damaged are revoked, so that their source keeps them: nothing
    else is written, and only in ZooKeeper. Without the right to write there, each such ledger is named with the command
    to run.

    \b
    Exit codes:
      0    everything that was inspected is sound
      1    problems were found
      2    wrong usage or configuration
      3    no problem was found, but not everything could be read

    \b
    Examples:
      offloaderd verify --config offloaderd.toml
      offloaderd verify --standalone data/standalone
      offloaderd verify --config offloaderd.toml --level metadata --against-map
      offloaderd verify --config offloaderd.toml --topic orders --rate 50MiB
      offloaderd verify --config offloaderd.toml --json | jq -r '.flaws[]? | select(.problem) | "\\(.key) \\(.offset)"'
    """
    log.configure("critical")
    if against["dry_run"] and not against["against_map"]:
        raise click.UsageError("--dry-run goes with --against-map: nothing else writes anything")
    view = View(as_json=as_json, bars=Bars())
    wish = Wish(level=Level(level), topics=topics, after=after)

    async def look() -> None:
        async with AsyncExitStack() as stack:
            stack.enter_context(view.bars)
            settings = await stack.enter_async_context(served(config, standalone))
            metadata = await stack.enter_async_context(metadata_store(settings)) if against["against_map"] else None
            keeper = JobKeeper(metadata, SystemClock(), job="offloaderd verify", dry_run=against["dry_run"])
            verifier = await _opened(stack, settings, rate, metadata=metadata, progress=view.progress)
            async with aclosing(verifier.run(wish)) as reports:
                async for one in reports:
                    view.show(one, await _kept(one, metadata, keeper))

    try:
        asyncio.run(look())
    except InvalidConfig:
        raise
    except OffloaderError as error:
        view.broken_off(error)
    except KeyboardInterrupt:
        view.hint()
        raise
    return view.end()


async def _opened(
    stack: AsyncExitStack,
    settings: Settings,
    rate: int | None,
    *,
    metadata: MetadataStore | None,
    progress: Callable[[str, int], None],
) -> Verifier:
    """Open the stores and return a verifier. Raises what the stores raise."""
    clock = SystemClock()
    objects = bucket_store(settings.objects, clock)
    await stack.enter_async_context(objects)
    retrying_reader = RetryingReader(objects, clock=clock, throttle=TokenBucket(rate or 0, clock, burst_s=0))
    return Verifier(objects, sites(settings), retrying_reader, clock=clock, metadata=metadata, progress=progress)


async def _kept(report: Report, metadata: MetadataStore | None, keeper: JobKeeper) -> list[DamagedLedger]:
    """Revoke the grants of ledgers with damaged committed segments. Raises what reading the map raises."""
    damage = damage_by_segment(report.flaws)
    if metadata is None or report.topic is None or not damage:
        return []
    return await keeper.keep(await catalog.load(metadata, report.topic), damage)


@dataclass(slots=True)
class View:
    """The totals so far, and their output."""

    as_json: bool
    bars: Bars
    topics: int = 0
    segments: int = 0
    entries: int = 0
    object_bytes: int = 0
    problems: int = 0
    notes: int = 0
    unreachable: int = 0
    last: str = ""
    error: str = ""

    def progress(self, what: str, count: int) -> None:
        """Show the progress of a topic on a terminal."""
        shown = show.size(count) if what.startswith("bytes") else show.number(count)
        self.bars.show("verifying", f"{shown} {what.removeprefix('bytes ')}")

    def show(self, one: Report, ledgers: Sequence[DamagedLedger] = ()) -> None:
        """Count a topic and show it, with the fates of ledgers whose copies are damaged."""
        self.bars.clear()
        if one.topic is not None:
            self.topics += 1
            self.last = str(one.topic)
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(one, name))
        self.notes += len(one.flaws) - one.problems - one.unreachable
        if self.as_json:
            document = {
                **picked(one, "topic", "segments", "entries", "object_bytes", "read_bytes", "problems"),
                "flaws": [show.flaw_json(flaw) for flaw in one.flaws],
                "ledgers": [show.damaged_ledger_json(ledger) for ledger in ledgers],
            }
            click.echo(show.json_line(document), nl=False)
            return
        name = "of no topic" if one.topic is None else str(one.topic)
        state = show.plural(one.problems, "PROBLEM") if one.problems else "not all seen" if one.unreachable else "sound"
        held = f"{show.plural(one.segments, 'segment')}, {show.size(one.object_bytes)}"
        click.echo(f"{name}: {state}" + (f" ({held})" if one.topic is not None else ""))
        show.write_flaws(one.flaws)
        show.write_ledgers(ledgers)

    def broken_off(self, error: OffloaderError) -> None:
        """Record that the rest could not be verified."""
        self.error = str(error)
        self.unreachable += 1
        report(error)
        self.hint()

    def hint(self) -> None:
        """Show how to continue."""
        if self.last:
            click.echo(f"hint: continue with --after {self.last}", err=True)

    def end(self) -> int:
        """Show the totals; returns the exit code."""
        code = FAILED if self.problems else NOT_LOOKED if self.unreachable else OK
        if self.as_json:
            click.echo(show.json_line({"summary": picked(self, *SUM)}), nl=False)
            return code
        looked = f"{show.plural(self.segments, 'segment')} of {show.plural(self.topics, 'topic')}"
        said = f"inspected {looked}: {show.number(self.entries)} entries, {show.size(self.object_bytes)}"
        verdict = show.plural(self.problems, "problem") if self.problems else "no problem"
        click.echo(f"{said}; {verdict}" + (f", {show.plural(self.notes, 'note')}" if self.notes else ""))
        if self.unreachable:
            click.echo("not everything could be read")
        return code
