"""What `offloadctl backfill` says, to people and to programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from offloaderd.cli import show
from offloaderd.cli.progress import as_text
from offloaderd.errors import OffloaderError
from offloaderd.model import OffloadMethod
from offloaderd.rpc.message_json import picked
from offloaderd.spark.backfill_job import Origin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.cli.progress import Bars
    from offloaderd.model import TopicName
    from offloaderd.policy.cost import Prices
    from offloaderd.spark.backfill import Ended, Status
    from offloaderd.spark.backfill_handback import HandedBack
    from offloaderd.spark.backfill_job import Progress
    from offloaderd.spark.backfill_plan import TopicPlan


def share_done(bytes_all: int, bytes_left: int) -> float:
    """Return how much of so many bytes is done."""
    return 1 - bytes_left / bytes_all if bytes_all else 1.0


def show_progress(bars: Bars, one: Progress) -> None:
    """Show how far a topic is; each commit and each loss is a step."""
    written = f"{one.ranges_done} of {show.plural(one.ranges, 'segment')}"
    said = f"{written}, {one.writing} being written, {one.waiting} waiting"
    done = one.bytes_all - one.bytes_left
    bars.show(str(one.topic), said, done, one.bytes_all, step=one.ranges_done + one.losses)


def plan_table(prices: Prices) -> show.Table[TopicPlan]:
    """Return the table of plans."""
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
    """Show plans, and why there is none."""
    plans = [one for _, one in found if not isinstance(one, OffloaderError)]
    if plans:
        plan_table(prices).show(plans)
    for plan in plans:
        _tell_origin(plan)
        _tell_probes(plan)
    for _, one in found:
        if isinstance(one, OffloaderError):
            click.echo(f"not for a job: {one}", err=True)
    if not found:
        click.echo("no topic has history for a job", err=True)


def units(method: OffloadMethod, count: int) -> str:
    """Return so many of what a method writes."""
    return show.plural(count, "segment" if method is OffloadMethod.STREAMING else "ledger")


def _tell_origin(one: TopicPlan) -> None:
    """Say what a run does about the topic's daemon."""
    if one.origin is Origin.DAEMON:
        click.echo(f"{one.topic}: its daemon is offloading this; a run takes it over, with what it has begun", err=True)
    elif one.origin is Origin.NEW:
        click.echo(f"{one.topic}: its daemon takes these ledgers as they become due; a run takes them over", err=True)


def _tell_probes(one: TopicPlan) -> None:
    """Say what finding the boundaries took."""
    if one.doubtful:
        ledgers = show.plural(one.doubtful, "ledger")
        click.echo(f"{one.topic}: lengths of {ledgers} are in doubt: split by entries", err=True)
    how = "on record" if one.split else f"in {show.age(one.seconds)}"
    boundaries = show.plural(one.boundaries, "boundary", "boundaries")
    click.echo(f"{one.topic}: {show.plural(one.probes, 'probe')} for {boundaries}, {how}", err=True)


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


def show_ended(ended: Sequence[Ended]) -> None:
    """Show what became of the topics of a run."""
    for one in ended:
        if one.nothing:
            click.echo(f"{one.topic}: nothing to do, its history is offloaded")
        elif one.progress is not None:
            done = one.progress
            lost = (
                f"; {show.plural(done.losses, 'loss', 'losses')} recorded: see offloadctl explain"
                if done.losses
                else ""
            )
            click.echo(f"{one.topic}: done, {show.plural(done.committed, 'segment')} committed{lost}")
        else:
            click.echo(f"{one.topic}: not done")
    if not ended:
        click.echo("no topic has history for a job", err=True)


def ended_json(one: Ended) -> dict[str, object]:
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
            click.echo(f"{topic}: no planned history", err=True)
            continue
        left = f"{show.size(one.bytes_left)} left" if not one.done else "done"
        speed = f", {show.size(int(one.bytes_per_s))}/s" if one.driver and one.bytes_per_s else ""
        time = f", about {show.age(one.seconds_left)}" if one.seconds_left is not None and not one.done else ""
        click.echo(f"{topic}  {as_text(one.payload_bytes - one.bytes_left, one.payload_bytes)}  {left}{speed}{time}")
        who = f"driver {one.driver}" if one.driver else "nobody" if one.worker == "job" else "the daemon"
        ranges = f"{one.ranges_done} of {show.plural(one.ranges, 'range')} done" if one.ranges else "not split yet"
        begun = f"{one.written} begun and not committed"
        click.echo(f"  {one.method}: {ranges}, {begun}; worked on by {who if not one.done else 'nobody'}")
    if not found:
        click.echo("no topic is enabled there", err=True)


def status_json(topic: TopicName, one: Status | None) -> dict[str, object]:
    """Return how far a topic is as JSON shows it; null without planned history."""
    if one is None:
        return {"topic": str(topic), "history": None}
    sizes = ("entries", "entries_left", "payload_bytes", "bytes_left", "segments")
    ranges = ("ranges", "ranges_done", "ranges_claimed", "begun=written")
    history = {
        **picked(one, "worker", "method", "driver", "done"),
        "done_percent": round(100 * share_done(one.payload_bytes, one.bytes_left), 1),
        **picked(one, *sizes, *ranges),
        "bytes_per_s": round(one.bytes_per_s),
        "seconds_left": round(one.seconds_left, 1) if one.seconds_left is not None else None,
    }
    return {"topic": str(topic), "history": history}


def show_handed_back(topic: TopicName, found: HandedBack) -> None:
    """Say what became of a history that its daemon goes on with."""
    done = f"{units(found.method, found.committed)} that were whole are committed"
    vain = f"{units(found.method, found.discarded)} begun are on the trash list"
    rest = (
        f"its daemon offloads the rest, {show.size(found.left.payload_bytes)}" if found.left.entries else "all is done"
    )
    click.echo(f"nobody drives the {found.method} backfill of {topic} any more: {done}, {vain}; {rest}")


def handed_back_json(found: HandedBack) -> dict[str, object]:
    """Return the same as JSON shows it."""
    left = picked(found.left, "entries_left=entries", "bytes_left=payload_bytes")
    return {**picked(found, "method", "committed", "discarded"), **left}
