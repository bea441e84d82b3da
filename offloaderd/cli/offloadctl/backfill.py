"""`offloadctl backfill`: history too large for a daemon, offloaded by a Spark job."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from offloaderd.cli import options, show
from offloaderd.cli.jobs import MASTER, PATIENCE, SPARK_CONF, UPLOAD_RATE, parsed, selected, settings_of, tell_ended
from offloaderd.cli.options import Session
from offloaderd.cli.program import FAILED, OK
from offloaderd.cli.progress import Bars, share_of
from offloaderd.cli.settings import CONFIG
from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import OffloaderError
from offloaderd.core.model import OffloadMethod, TopicName
from offloaderd.policy.settings import Prices
from offloaderd.protocol.conversion import picked
from offloaderd.spark.backfill import backfill as work
from offloaderd.spark.backfill.backfill import Progress, Status
from offloaderd.spark.backfill.plan import Origin, TopicPlan
from offloaderd.spark.backfill.transfer import HandedBack, hand_back
from offloaderd.spark.jobs.driver import Ended
from offloaderd.spark.jobs.executors import Stores, open_stores

if TYPE_CHECKING:
    from offloaderd.daemon.settings import Settings


T = TypeVar("T")
BAR_CHARS = 30
SELECTED = selected("All topics of it with history planned for a job. May be repeated.")
SEGMENT_SIZE = click.option(
    "--segment-size", metavar="SIZE", help="Instead of the topic's policy's, where history is not split yet."
)


@click.group()
@options.common
def backfill(session: Session) -> None:
    """Offload history that is too large for a daemon (history.daemon_bytes_max) with a Spark job.

    Works with the metadata, the bucket and the ledgers themselves, by the daemon's own settings: --config and the
    environment, or --standalone. The daemon of the topic offloads new entries meanwhile, and shows the job's progress.

    By the topic's policy, segments (V2) are written or, under the method ledger-based, whole ledgers (V1): all closed
    ones but the newest, whatever the thresholds. The job takes over a history that the daemon has begun to offload.
    """


@backfill.command(short_help="Show what a run would do, and cost.")
@SEGMENT_SIZE
@SELECTED
def plan(
    session: Session, names: tuple[str, ...], namespaces: tuple[str, ...], segment_size: str | None, config: Path | None
) -> int:
    """Find the boundaries of segments by binary search on the ledgers' lengths, and show what a run would write.

    Changes nothing and needs no Spark. Costs are by the prices of the settings, section `prices`.

    \b
    Examples:
      offloadctl backfill plan orders --config offloaderd.toml
      offloadctl backfill plan --namespace public/default --segment-size 2GiB --config offloaderd.toml
      offloadctl backfill plan orders --config offloaderd.toml -o json | jq '.topics[].segments'
    """
    given = parsed(names, namespaces, segment_size=segment_size)
    settings = settings_of(session, config)
    segment_bytes, prices = given.options.segment_bytes, settings.prices
    found = session.run(_with_stores(settings, lambda stores: work.plan(stores, given.topics, segment_bytes)))
    session.tell({"topics": [plan_json(*one, prices) for one in found]}, lambda: show_plans(found, prices))
    return FAILED if any(isinstance(one, OffloaderError) for _, one in found) else OK


@backfill.command(short_help="Offload history with Spark.")
@SEGMENT_SIZE
@MASTER
@SPARK_CONF
@click.option(
    "--parallel", metavar="N", help="Segments written at a time. [default: the cores that Spark has when it starts]"
)
@click.option("--source-rate", metavar="SIZE", help="Bytes a second from all bookies together. [default: as settings]")
@UPLOAD_RATE
@PATIENCE
@SELECTED
def run(
    session: Session,
    names: tuple[str, ...],
    namespaces: tuple[str, ...],
    config: Path | None,
    **given: Any,  # noqa: ANN401
) -> int:
    """Read history in executors, upload it and commit it in order. May be interrupted and run again at any time.

    Exit code 1 if the history of a topic could not be completed; the other topics are not affected.

    \b
    Examples:
      offloadctl backfill run orders --config offloaderd.toml
      offloadctl backfill run --namespace public/default --config offloaderd.toml --parallel 32 --source-rate 400MiB
      offloadctl backfill run orders --config offloaderd.toml --master spark://spark:7077 --parallel 32
    """
    wanted = parsed(names, namespaces, **given)
    settings = settings_of(session, config)
    from offloaderd.spark.session import check_libraries, spark_session  # noqa: PLC0415

    check_libraries()
    # Before Spark, which takes its time.
    topics, done = asyncio.run(_with_stores(settings, lambda stores: work.checked(stores, wanted.topics)))
    ended = [Ended[Progress](topic=topic, nothing=True) for topic in done]
    if topics:
        started = spark_session("offloaderd backfill", master=given["master"], options=wanted.conf, starting=show.note)
        with started as spark, Bars() as bars:
            ended += asyncio.run(work.run(settings, spark, topics, wanted.options, partial(show_progress, bars)))
    return tell_ended(session, ended, ended_json, show_ended)


@backfill.command(short_help="Show how far history is offloaded.")
@SELECTED
def status(session: Session, names: tuple[str, ...], namespaces: tuple[str, ...], config: Path | None) -> None:
    """Show with a bar how much of history is offloaded, who drives it, and how long it may still take.

    Ranges one by one: offloadctl history status TOPIC.

    \b
    Examples:
      offloadctl backfill status orders --config offloaderd.toml
      offloadctl backfill status --namespace public/default --config offloaderd.toml -o json
    """
    topics = parsed(names, namespaces).topics
    settings = settings_of(session, config)
    found = session.run(_with_stores(settings, lambda stores: work.status(stores, topics)))
    session.tell({"topics": [status_json(*one) for one in found]}, lambda: show_status(found))


@backfill.command(short_help="End a run, from anywhere.")
@click.argument("topic", type=options.TOPIC)
@click.option(
    "--discard", is_flag=True, help="Put segments in progress on the trash list; a later run starts them anew."
)
@click.option("--to-daemon", is_flag=True, help="Let the daemon of the topic offload the rest, however much it is.")
@CONFIG
@options.common
def cancel(session: Session, topic: TopicName, discard: bool, to_daemon: bool, config: Path | None) -> None:
    """End the backfill of a topic: its driver and executors lose their claim, change nothing more, and stop.

    Committed segments stay. The next run resumes segments in progress, unless --discard deletes them. With --to-daemon
    no next run is needed: complete segments are committed, and the daemon offloads the rest, one segment or whole
    ledger at a time.

    \b
    Examples:
      offloadctl backfill cancel orders --config offloaderd.toml
      offloadctl backfill cancel orders --discard --config offloaderd.toml
      offloadctl backfill cancel orders --to-daemon --config offloaderd.toml
    """
    settings = settings_of(session, config)
    if to_daemon:
        found = session.run(_with_stores(settings, lambda stores: hand_back(stores, topic)))
        left = picked(found.left, "entries_left=entries", "bytes_left=payload_bytes")
        document = {"topic": str(topic), **picked(found, "method", "committed", "discarded"), **left}
        session.tell(document, _handed_back(topic, found))
        return
    begun, method = session.run(_with_stores(settings, lambda stores: work.cancel(stores, topic, discard=discard)))
    what = "are on the trash list" if discard else "are resumed by the next run"
    session.tell(
        {"topic": str(topic), "method": method.value, "begun": begun, "discarded": discard},
        f"nobody drives the {method} backfill of {topic} any more; {_units(method, begun)} begun {what}",
    )


async def _with_stores(settings: Settings, call: Callable[[Stores], Awaitable[T]]) -> T:
    async with open_stores(settings, SystemClock()) as stores:
        return await call(stores)


def show_progress(bars: Bars, one: Progress) -> None:
    """Show how far a topic is; each commit and each loss is a step."""
    written = f"{one.ranges_done} of {show.plural(one.ranges, 'segment')}"
    said = f"{written}, {one.writing} being written, {one.waiting} waiting"
    done = one.bytes_all - one.bytes_left
    bars.show(str(one.topic), said, done, one.bytes_all, step=one.ranges_done + one.losses)


def _plan_table(prices: Prices) -> show.Table[TopicPlan]:
    return show.Table(
        ("TOPIC", "topic"),
        ("METHOD", "method"),
        (">SEGMENTS", lambda one: show.number(len(one.ranges))),
        (">ENTRIES", "entries"),
        (">PAYLOAD", "payload_bytes"),
        (">SIZE", lambda one: show.size(one.segment_bytes) if one.method is OffloadMethod.STREAMING else "whole"),
        (">PUTS", "puts"),
        (">GETS", "gets"),
        (">COST ONCE", lambda one: f"{one.costs(prices)[0]:,.2f}"),
        (">COST/MONTH", lambda one: f"{one.costs(prices)[1]:,.2f}"),
        (">PROBES", "probes"),
    )


def show_plans(found: Sequence[tuple[TopicName, TopicPlan | OffloaderError]], prices: Prices) -> None:
    """Show plans, what a run does about the daemons of their topics, and why there is no plan."""
    plans = [one for _, one in found if not isinstance(one, OffloaderError)]
    if plans:
        _plan_table(prices).show(plans)
    for one in plans:
        if one.origin is Origin.DAEMON:
            show.note(f"{one.topic}: its daemon is offloading this; a run takes it over, with what it has begun")
        elif one.origin is Origin.NEW:
            show.note(f"{one.topic}: its daemon takes these ledgers as they become due; a run takes them over")
        if one.doubtful:
            ledgers = show.plural(one.doubtful, "ledger")
            show.note(f"{one.topic}: lengths of {ledgers} are in doubt: split by entries")
        how = "on record" if one.split else f"in {show.age(one.seconds)}"
        boundaries = show.plural(one.boundaries, "boundary", "boundaries")
        show.note(f"{one.topic}: {show.plural(one.probes, 'probe')} for {boundaries}, {how}")
    for _, failed in found:
        if isinstance(failed, OffloaderError):
            show.note(f"not for a job: {failed}")
    if not found:
        show.note("no topic has history for a job")


def _units(method: OffloadMethod, count: int) -> str:
    """Return so many of what a method writes."""
    return show.plural(count, "segment" if method is OffloadMethod.STREAMING else "ledger")


def plan_json(topic: TopicName, one: TopicPlan | OffloaderError, prices: Prices) -> dict[str, object]:
    """Return a plan as JSON shows it."""
    if isinstance(one, OffloaderError):
        return {"topic": str(topic), "error": str(one)}
    once, month = one.costs(prices)
    return {
        "topic": str(topic),
        "error": None,
        **picked(one, "method", "worker=origin"),
        "segments": len(one.ranges),
        **picked(one, "entries", "payload_bytes", "object_bytes", "segment_bytes", "puts", "gets"),
        "cost_once": round(once, 4),
        "cost_month": round(month, 4),
        **picked(one, "probes", "boundaries", "seconds", "doubtful_ledgers=doubtful", "split"),
        "ranges": [picked(each, "begin", "end", "entries") for each in one.ranges],
    }


def show_ended(ended: Sequence[Ended[Progress]]) -> None:
    """Show what became of the topics of a run."""
    for one in ended:
        if one.nothing:
            click.echo(f"{one.topic}: nothing to do, its history is offloaded")
        elif (done := one.progress) is not None:
            losses = show.plural(done.losses, "loss", "losses")
            lost = f"; {losses} recorded: see offloadctl explain" if done.losses else ""
            click.echo(f"{one.topic}: done, {show.plural(done.committed, 'segment')} committed{lost}")
        else:
            click.echo(f"{one.topic}: not done")
    if not ended:
        show.note("no topic has history for a job")


def ended_json(one: Ended[Progress]) -> dict[str, object]:
    """Return what became of a topic as JSON shows it."""
    counts = ("committed", "losses", "retries")
    return {
        "topic": str(one.topic),
        "done": one.nothing or one.progress is not None,
        **(picked(one.progress, *counts) if one.progress is not None else dict.fromkeys(counts, 0)),
        "error": str(one.error) if one.error is not None else None,
    }


def show_status(found: Sequence[tuple[TopicName, Status | None]]) -> None:
    """Show how far topics are."""
    for topic, one in found:
        if one is None:
            show.note(f"{topic}: no planned history")
            continue
        left = f"{show.size(one.bytes_left)} left" if not one.done else "done"
        speed = f", {show.size(int(one.bytes_per_s))}/s" if one.driver and one.bytes_per_s else ""
        time = f", about {show.age(one.seconds_left)}" if one.seconds_left is not None and not one.done else ""
        click.echo(f"{topic}  {_bar(one.payload_bytes - one.bytes_left, one.payload_bytes)}  {left}{speed}{time}")
        who = f"driver {one.driver}" if one.driver else "nobody" if one.worker == "job" else "the daemon"
        ranges = f"{one.ranges_done} of {show.plural(one.ranges, 'range')} done" if one.ranges else "not split yet"
        begun = f"{one.written} begun and not committed"
        click.echo(f"  {one.method}: {ranges}, {begun}; worked on by {who if not one.done else 'nobody'}")
    if not found:
        show.note("no topic is enabled there")


def status_json(topic: TopicName, one: Status | None) -> dict[str, object]:
    """Return how far a topic is as JSON shows it; null without planned history."""
    if one is None:
        return {"topic": str(topic), "history": None}
    sizes = ("entries", "entries_left", "payload_bytes", "bytes_left", "segments")
    ranges = ("ranges", "ranges_done", "ranges_claimed", "begun=written")
    history = {
        **picked(one, "worker", "method", "driver", "done"),
        "done_percent": round(100 - 100 * one.bytes_left / one.payload_bytes, 1) if one.payload_bytes else 100.0,
        **picked(one, *sizes, *ranges),
        "bytes_per_s": round(one.bytes_per_s),
        "seconds_left": round(one.seconds_left, 1) if one.seconds_left is not None else None,
    }
    return {"topic": str(topic), "history": history}


def _handed_back(topic: TopicName, found: HandedBack) -> str:
    done = f"{_units(found.method, found.committed)} that were whole are committed"
    vain = f"{_units(found.method, found.discarded)} begun are on the trash list"
    daemon = f"its daemon offloads the rest, {show.size(found.left.payload_bytes)}"
    rest = daemon if found.left.entries else "all is done"
    return f"nobody drives the {found.method} backfill of {topic} any more: {done}, {vain}; {rest}"


def _bar(done: int, total: int) -> str:
    """Return a bar and its percentage as text; without a total it is full."""
    share = share_of(done, total)
    filled = int(share * BAR_CHARS)
    return f"[{'#' * filled}{'.' * (BAR_CHARS - filled)}] {100 * share:5.1f} %"
