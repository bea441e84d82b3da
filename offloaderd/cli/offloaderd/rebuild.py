"""`offloaderd rebuild`: rebuild the metadata from the bucket alone."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import click

from offloaderd.capture.records import Capture
from offloaderd.capture.restore import Restored, restore
from offloaderd.cli import captures, options, show
from offloaderd.cli.captures import CAPTURE
from offloaderd.cli.options import Parsed
from offloaderd.cli.program import FAILED, OK
from offloaderd.cli.progress import Bars
from offloaderd.cli.settings import CONFIG, STANDALONE, served
from offloaderd.core.clock import Clock, SystemClock
from offloaderd.core.errors import Conflict, Transient
from offloaderd.core.model import TopicName
from offloaderd.daemon import log
from offloaderd.daemon.stores import metadata_store, sites
from offloaderd.metadata.port import MetadataStore
from offloaderd.objects.opening import bucket_store
from offloaderd.protocol.conversion import picked
from offloaderd.upkeep import rebuild as work
from offloaderd.upkeep.rebuild import Found, Plan
from offloaderd.upkeep.rebuild_plan import Problem, TopicPlan

SEGMENT = Parsed("segment", UUID, lambda text, _: f"not a segment: {text!r}; write its whole uuid, as in its key")


@click.command()
@CONFIG
@STANDALONE
@click.option("--apply", "apply_", is_flag=True, help="Write the metadata. Without this nothing is written.")
@click.option(
    "--topic",
    "topics",
    metavar="TOPIC",
    type=options.TOPIC,
    multiple=True,
    help="Only this topic, of which the metadata must know nothing; others may be there and daemons may run. "
    "May be repeated.",
)
@click.option(
    "--prefer",
    metavar="SEGMENT",
    type=SEGMENT,
    multiple=True,
    help="Of segments that hold the same entries take this one. May be repeated.",
)
@click.option("--without", metavar="SEGMENT", type=SEGMENT, multiple=True, help="Leave this one out. May be repeated.")
@click.option(
    "--lost",
    metavar="POSITION",
    type=options.POSITION,
    multiple=True,
    help="Record what is missing behind this last position before a gap as lost. May be repeated.",
)
@CAPTURE
@click.option("--enable", is_flag=True, help="Enable the topics at once. Without this they come back disabled.")
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON: one document.")
def rebuild(
    *,
    config: Path | None,
    standalone: Path | None,
    apply_: bool,
    topics: tuple[TopicName, ...],
    capture: str,
    enable: bool,
    as_json: bool,
    **decisions: Any,  # noqa: ANN401 - prefer, without, lost
) -> int:
    """Read every manifest under the prefix, and write the map of each topic into empty metadata.

    Overlaps, gaps, contradictions, and segments that are incomplete or cannot be read are reported and never decided:
    nothing of such a topic is written. No daemon may run meanwhile, unless topics are named; with --standalone, stop it
    before --apply. What was broken off goes on with the same command. Policies, selections, quotas, pauses and
    revocations come out of a capture.

    Exit code 1 when a topic is, or would be, left out.

    \b
    Examples:
      offloaderd rebuild --config offloaderd.toml
      offloaderd rebuild --config offloaderd.toml --apply
      offloaderd rebuild --standalone data/standalone --apply
      offloaderd rebuild --config offloaderd.toml --topic orders --prefer 2c2f8f6e-8d4f-4b8f-9f36-0d8a6a1f2b11 --apply
      offloaderd rebuild --config offloaderd.toml --json | jq -r '.topics[].problems[].text'
    """
    log.configure("critical")
    clock = SystemClock()
    started = clock.monotonic()

    async def rebuilt() -> Shown:
        async with served(config, standalone) as settings:
            async with bucket_store(settings.objects, clock) as objects:
                with Bars() as bars:
                    found = await work.read_buckets(objects, sites(settings), bars.counter("segments read"))
                    await work.read_brokers(objects, sites(settings), found)
                captured = await captures.chosen(objects, settings, capture)
            plan = work.make_plan(found, topics=topics, **decisions)
            written: Sequence[TopicName] = ()
            restored: Restored | None = None
            target = ""
            try:
                async with metadata_store(settings) as metadata:
                    if apply_:
                        written, restored = await _written(metadata, plan, captured, topics, enable=enable, clock=clock)
                    else:
                        await work.check_target(metadata, topics)
            except (Conflict, Transient) as error:
                if apply_:
                    raise
                target = str(error)
        return Shown(
            found=found,
            plan=plan,
            written=set(written),
            target=target,
            applied=apply_,
            seconds=clock.monotonic() - started,
            captured=captured,
            restored=restored,
        )

    shown = asyncio.run(rebuilt())
    if as_json:
        show.document(shown.document())
    else:
        shown.write()
    return FAILED if shown.left_out or shown.target else OK


async def _written(
    metadata: MetadataStore,
    plan: Plan,
    captured: Capture | None,
    topics: Collection[TopicName],
    *,
    enable: bool,
    clock: Clock,
) -> tuple[Sequence[TopicName], Restored | None]:
    """Write the maps, then what a capture has; return the topics written, and what came out of the capture."""
    with Bars() as bars:
        progress, now_ms = bars.counter("topics written"), clock.wall_ms()
        written = await work.write(metadata, plan, topics=topics, enable=enable, now_ms=now_ms, progress=progress)
    if captured is None:
        return written, None
    blocked = {one.topic for one in plan.topics} - set(written)
    return written, await restore(metadata, captured, clock, write=True, topics=topics, blocked=blocked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The result, for people and for programs. `target`: why the metadata store refuses it, or empty."""

    found: Found
    plan: Plan
    written: Collection[TopicName]
    target: str
    applied: bool
    seconds: float
    captured: Capture | None
    restored: Restored | None

    @property
    def left_out(self) -> int:
        """Number of topics that are not written until the user decides."""
        return sum(self.state(one) == "blocked" for one in self.plan.topics) + self.plan.blocked

    def state(self, plan: TopicPlan) -> str:
        """Return the state of a topic."""
        if plan.topic in self.written:
            return "written"
        return "blocked" if plan.blocked or self.plan.blocked else "ready"

    def write(self) -> None:
        """Write the result as text."""
        plans = self.plan.topics
        if plans:
            TABLE.show(map(self._topic, plans))
            click.echo()
        problems = [*self.plan.problems, *(problem for plan in plans for problem in plan.problems)]
        for problem in problems:
            kind = problem.kind.upper() if problem.blocks else problem.kind.value
            where = f"{problem.topic}: " if problem.topic is not None else ""
            todo = f" -> {problem.what_to_do}" if problem.what_to_do else ""
            click.echo(f"{kind:<13} {where}{problem.text}{todo}")
        if problems:
            click.echo()
        counts = self.found.counts
        click.echo(
            f"read {show.plural(counts.segments, 'segment')} ({show.size(counts.object_bytes)}) of "
            f"{show.plural(len(plans), 'topic')} in {show.age(self.seconds)}"
        )
        ready = sum(self.state(plan) == "ready" for plan in plans)
        if self.applied:
            click.echo(f"wrote {show.plural(len(self.written), 'topic')}")
            self._write_restored()
        else:
            click.echo(f"would write {show.plural(ready, 'topic')}")
        if self.left_out:
            click.echo(
                "what is blocked is not written: decide with --prefer, --without and --lost, or restore what is missing"
            )
        if self.target:
            click.echo(f"the target cannot take it: {self.target}")
        elif not self.applied and ready:
            click.echo("nothing was written: this was a dry run, add --apply")

    def _write_restored(self) -> None:
        """Write what came out of the capture."""
        if self.captured is None or self.restored is None:
            click.echo("no capture: policies, selections, quotas and revocations are to be set again")
            return
        for path, why in self.restored.left.items():
            click.echo(f"left {path}: {why}")
        nodes = show.plural(len(self.restored.written), "node")
        click.echo(f"wrote {nodes} out of the capture of {show.moment(self.captured.taken_ms)}")

    def _topic(self, plan: TopicPlan) -> dict[str, object]:
        segments = plan.map.segments
        return {
            "topic": str(plan.topic),
            "state": self.state(plan),
            "segments": len(segments),
            "entries": sum(one.entries for one in segments),
            "payload_bytes": sum(one.payload_bytes for one in segments),
            "begin": str(segments[0].begin) if segments else None,
            "end": str(segments[-1].end) if segments else None,
            "losses": len(plan.map.losses),
        }

    def document(self) -> dict[str, object]:
        """Return the result as JSON shows it."""
        return {
            "applied": self.applied,
            **picked(self.found.counts, "segments", "object_bytes"),
            **picked(self, "seconds", "target"),
            "topics": [
                {**self._topic(plan), "epoch": plan.epoch, "problems": list(map(_problem_json, plan.problems))}
                for plan in self.plan.topics
            ],
            "problems": list(map(_problem_json, self.plan.problems)),
            "captured_ms": self.captured.taken_ms if self.captured is not None else None,
            "restored": self.restored.written if self.restored is not None else [],
            "not_restored": self.restored.left if self.restored is not None else {},
        }


TABLE = show.Table[dict[str, object]](
    ("STATE", "state"),
    ("TOPIC", "topic"),
    (">SEGMENTS", "segments"),
    (">ENTRIES", "entries"),
    (">PAYLOAD", "payload_bytes"),
    ("BEGIN", "begin"),
    ("END", "end"),
    (">LOSSES", "losses"),
)


def _problem_json(problem: Problem) -> dict[str, object]:
    return picked(problem, "kind", "blocks", "topic", "segments", "text", "what_to_do", kept=("text",))
