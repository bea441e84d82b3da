"""`offloadctl convert`: what is stored is rewritten, here or by Spark: V2 as V1, V1 as V2, small segments as large."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from offloaderd.cli import options, show
from offloaderd.cli.jobs import (
    MASTER,
    PATIENCE,
    SPARK_CONF,
    UPLOAD_RATE,
    Given,
    parsed,
    selected,
    settings_of,
    tell_ended,
)
from offloaderd.cli.options import Session
from offloaderd.cli.program import FAILED, OK
from offloaderd.cli.progress import Bars
from offloaderd.cli.settings import CONFIG
from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import OffloaderError
from offloaderd.core.model import TopicName
from offloaderd.protocol.conversion import picked
from offloaderd.spark import convert as work
from offloaderd.spark.convert import Options, Plan, Progress, Status, Target
from offloaderd.spark.jobs.driver import Ended, JobTopics
from offloaderd.spark.jobs.executors import open_context

if TYPE_CHECKING:
    from offloaderd.daemon.settings import Settings


SELECTED = selected("All enabled topics of it with segments. May be repeated.")
TARGET = click.option(
    "--to",
    "target",
    required=True,
    type=click.Choice(["ledger-based", "streaming", "merged"]),
    help="The new shape of the segments.",
)
SEGMENT_SIZE = click.option("--segment-size", metavar="SIZE", help="Payload of segments, instead of the policy's.")
SMALL = click.option(
    "--small", metavar="SIZE", help="What is merged: segments with less payload. [default: half of the segment size]"
)


@click.group()
@options.common
def convert(session: Session) -> None:
    """Rewrite segments in another shape: --to ledger-based (V2 as V1), streaming (V1 as V2), merged (small as large).

    Segments are read with every checksum, and each new object is written, read back and compared by hash. Then it
    replaces its sources in one transaction, and their objects go to the trash. A topic's newest segment stays as it is,
    and with ledger-based its newest ledger. Works with the metadata and the bucket themselves, by the daemon's own
    settings: --config and the environment, or --standalone. The offload of topics continues meanwhile. To go back to a
    stock broker without a job: offloadctl rollback.
    """


@convert.command(short_help="Show what a run would rewrite.")
@TARGET
@SEGMENT_SIZE
@SMALL
@SELECTED
def plan(
    session: Session,
    names: tuple[str, ...],
    namespaces: tuple[str, ...],
    target: str,
    config: Path | None,
    **given: Any,  # noqa: ANN401
) -> int:
    """Show how many segments would become how many objects, with how many requests, and what stays and why.

    Changes nothing.

    \b
    Examples:
      offloadctl convert plan orders --to merged --config offloaderd.toml
      offloadctl convert plan --namespace public/default --to ledger-based --config offloaderd.toml -o json
    """
    wanted = parsed(names, namespaces, **given)
    return _plan(session, settings_of(session, config), wanted.topics, _options(wanted, target))


def _plan(session: Session, settings: Settings, wanted: JobTopics, chosen: Options) -> int:
    async def planned() -> Sequence[tuple[TopicName, Plan | OffloaderError]]:
        async with open_context(settings, SystemClock(), rewriting=True) as (context, book):
            topics = await work.named(context.metadata, wanted)
            return await work.plan(context, book, topics, chosen)

    found = session.run(planned())
    session.tell({"topics": [plan_json(*one) for one in found]}, lambda: show_plans(found))
    return FAILED if any(isinstance(one, OffloaderError) for _, one in found) else OK


@convert.command(short_help="Rewrite segments.")
@TARGET
@SEGMENT_SIZE
@SMALL
@options.PLAN_ONLY
@options.YES
@click.option("--spark", is_flag=True, help="Write in the executors of Spark instead of this process.")
@MASTER
@SPARK_CONF
@click.option("--parallel", metavar="N", help="Objects written at a time. [default: 2, with Spark the cores it has]")
@UPLOAD_RATE
@PATIENCE
@SELECTED
def run(
    session: Session,
    names: tuple[str, ...],
    namespaces: tuple[str, ...],
    target: str,
    config: Path | None,
    dry_run: bool,
    yes: bool,
    **given: Any,  # noqa: ANN401
) -> int:
    """Rewrite segments, verify each new object, and replace its sources. May be interrupted at any time.

    Exit code 1 if segments could not be rewritten; they stay as they are, and all others are rewritten.

    \b
    Examples:
      offloadctl convert run orders --to merged --segment-size 1GiB --dry-run --config offloaderd.toml
      offloadctl convert run orders --to streaming --yes --config offloaderd.toml
      offloadctl convert run --namespace public/default --to ledger-based --yes --spark --parallel 16
    """
    wanted = parsed(names, namespaces, **given)
    chosen, settings = _options(wanted, target), settings_of(session, config)
    if dry_run:
        return _plan(session, settings, wanted.topics, chosen)
    if given["spark"]:
        from offloaderd.spark.session import check_libraries  # noqa: PLC0415 - as above

        check_libraries()
    if not yes:
        options.confirm(f"Rewrite segments --to {target}? The old objects are deleted once the new ones are proven")
    with Bars() as bars, ExitStack() as stack:
        session_of_spark = None
        if given["spark"]:
            from offloaderd.spark.session import spark_session  # noqa: PLC0415 - as above

            started = spark_session(
                "offloaderd convert", master=given["master"], options=wanted.conf, starting=show.note
            )
            session_of_spark = stack.enter_context(started)
        progress = partial(show_progress, bars)
        ended = asyncio.run(work.run(settings, wanted.topics, chosen, progress, session=session_of_spark))
    code = tell_ended(session, ended, ended_json, show_ended)
    return FAILED if any(one.progress is not None and one.progress.failures for one in ended) else code


@convert.command(short_help="Show what segments topics have, and who rewrites them.")
@SELECTED
def status(session: Session, names: tuple[str, ...], namespaces: tuple[str, ...], config: Path | None) -> None:
    """Show how many whole ledgers and segments there are, who rewrites them, and which new objects are in progress.

    \b
    Examples:
      offloadctl convert status orders --config offloaderd.toml
    """
    wanted, settings = parsed(names, namespaces).topics, settings_of(session, config)

    async def asked() -> list[Status]:
        async with open_context(settings, SystemClock(), rewriting=True) as (context, _):
            topics = await work.named(context.metadata, wanted)
            return [await work.status(context.metadata, topic) for topic in topics]

    found = session.run(asked())
    session.tell({"topics": [status_json(one) for one in found]}, lambda: show_status(found))


@convert.command(short_help="End a run, from anywhere.")
@click.argument("topic", type=options.TOPIC)
@CONFIG
@options.common
def cancel(session: Session, topic: TopicName, config: Path | None) -> None:
    """End the rewriting of a topic's segments: objects in progress go to the trash, completed ones stay.

    \b
    Examples:
      offloadctl convert cancel orders --config offloaderd.toml
    """
    settings = settings_of(session, config)

    async def cancelled() -> int:
        async with open_context(settings, SystemClock(), rewriting=True) as (context, _):
            return await work.cancel(context, topic)

    begun = session.run(cancelled())
    session.tell(
        {"topic": str(topic), "begun": begun},
        f"nobody rewrites segments of {topic} any more; {show.plural(begun, 'object')} begun are on the trash list",
    )


def _options(given: Given, target: str) -> Options:
    common = {name: getattr(given.options, name) for name in ("segment_bytes", "share", "patience_s")}
    return Options(target=Target(target), small_bytes=given.small_bytes, **common)


PLANS: show.Table[tuple[TopicName, Plan]] = show.Table(
    ("TOPIC", lambda row: str(row[0])),
    ("TO", lambda row: str(row[1].target)),
    (">SEGMENTS", lambda row: show.number(row[1].sources)),
    (">OBJECTS", lambda row: show.number(len(row[1].objects.goals))),
    (">ENTRIES", lambda row: show.number(row[1].entries)),
    (">PAYLOAD", lambda row: show.size(row[1].payload_bytes)),
    (">PUTS", lambda row: show.number(row[1].puts)),
    (">GETS", lambda row: show.number(row[1].gets)),
)


def show_progress(bars: Bars, one: Progress) -> None:
    """Show how far a topic is; each exchange is a step."""
    said = f"{one.done} of {show.plural(one.goals, 'object')}, {one.writing} being written"
    bars.show(str(one.topic), said, one.bytes_done, one.bytes_all, step=one.done)


def show_plans(found: Sequence[tuple[TopicName, Plan | OffloaderError]]) -> None:
    """Show plans, and why there is none."""
    plans = [(topic, one) for topic, one in found if not isinstance(one, OffloaderError)]
    if plans:
        PLANS.show(plans)
    for topic, one in plans:
        for why, count in sorted(one.objects.left.items()):
            show.note(f"{topic}: {count:,} stay as they are: {why}")
    for topic, failed in found:
        if isinstance(failed, OffloaderError):
            show.note(f"{topic}: {failed}")


def plan_json(topic: TopicName, one: Plan | OffloaderError) -> dict[str, object]:
    """Return a plan as JSON shows it."""
    if isinstance(one, OffloaderError):
        return {"topic": str(topic), "error": str(one)}
    objects = [
        {
            **picked(goal, "begin", "end", "entries", "payload_bytes"),
            "of": [str(source.segment_id) for source in goal.sources],
        }
        for goal in one.objects.goals
    ]
    return {
        "topic": str(topic),
        "error": None,
        **picked(one, "to=target", "segments=sources"),
        "objects": objects,
        **picked(one, "entries", "payload_bytes", "segment_bytes", "puts", "gets"),
        "left": one.objects.left,
    }


def show_ended(ended: Sequence[Ended[Progress]]) -> None:
    """Show what became of the topics of a run."""
    for one in ended:
        if one.progress is None:
            click.echo(f"{one.topic}: not done")
            continue
        click.echo(f"{one.topic}: {show.plural(one.progress.done, 'object')} in place of the old ones")
        for failure in one.progress.failures:
            show.note(f"{one.topic}: left as it was: {failure}")


def ended_json(one: Ended[Progress]) -> dict[str, object]:
    """Return what became of a topic as JSON shows it."""
    done = one.progress
    return {
        "topic": str(one.topic),
        "objects": done.goals if done is not None else 0,
        "done": done.done if done is not None else 0,
        "failures": list(done.failures) if done is not None else [],
        "error": str(one.error) if one.error is not None else None,
    }


def show_status(found: Sequence[Status]) -> None:
    """Show what segments topics have."""
    for one in found:
        held = f"{show.plural(one.ledgers, 'whole ledger')}, {show.plural(one.segments, 'segment')}"
        click.echo(f"{one.topic}  {held}, {show.size(one.payload_bytes)}")
        who = f"driver {one.driver}" if one.driver else "nobody"
        click.echo(f"  {one.begun} begun and not exchanged, {one.trash} on the trash list; worked on by {who}")


def status_json(one: Status) -> dict[str, object]:
    """Return what segments a topic has as JSON shows it."""
    return picked(one, "topic", "driver", "ledgers", "segments", "payload_bytes", "begun", "trash")
