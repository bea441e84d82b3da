"""What `offloadctl convert` says, to people and to programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from offloaderd.cli import show
from offloaderd.errors import OffloaderError
from offloaderd.rpc.message_json import picked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.cli.progress import Bars
    from offloaderd.model import TopicName
    from offloaderd.spark.convert import Ended, Plan, Status
    from offloaderd.spark.convert_job import Progress

PLANS: show.Table[tuple[TopicName, Plan]] = show.Table(
    ("TOPIC", lambda row: str(row[0])),
    ("TO", lambda row: str(row[1].target)),
    (">SEGMENTS", lambda row: show.number(row[1].sources)),
    (">OBJECTS", lambda row: show.number(len(row[1].outlook.goals))),
    (">ENTRIES", lambda row: show.number(row[1].entries)),
    (">PAYLOAD", lambda row: show.size(row[1].payload_bytes)),
    (">PUTS", lambda row: show.number(row[1].puts)),
    (">GETS", lambda row: show.number(row[1].gets)),
)


def show_progress(bars: Bars, topic: TopicName, one: Progress) -> None:
    """Show how far a topic is; each exchange is a step."""
    said = f"{one.done} of {show.plural(one.goals, 'object')}, {one.writing} being written"
    bars.show(str(topic), said, one.bytes_done, one.bytes_all, step=one.done)


def show_plans(found: Sequence[tuple[TopicName, Plan | OffloaderError]]) -> None:
    """Show plans, and why there is none."""
    plans = [(topic, one) for topic, one in found if not isinstance(one, OffloaderError)]
    if plans:
        PLANS.show(plans)
    for topic, one in plans:
        for why, count in sorted(one.outlook.left.items()):
            click.echo(f"{topic}: {count:,} stay as they are: {why}", err=True)
    for topic, failed in found:
        if isinstance(failed, OffloaderError):
            click.echo(f"{topic}: {failed}", err=True)


def plan_json(topic: TopicName, one: Plan | OffloaderError) -> dict[str, object]:
    """Return a plan as JSON shows it."""
    if isinstance(one, OffloaderError):
        return {"topic": str(topic), "error": str(one)}
    objects = [
        {
            **picked(goal, "begin", "end", "entries", "payload_bytes"),
            "of": [str(source.segment_id) for source in goal.sources],
        }
        for goal in one.outlook.goals
    ]
    return {
        "topic": str(topic),
        "error": None,
        **picked(one, "to=target", "segments=sources"),
        "objects": objects,
        **picked(one, "entries", "payload_bytes", "segment_bytes", "puts", "gets"),
        "left": one.outlook.left,
    }


def show_ended(ended: Sequence[Ended]) -> None:
    """Show what became of the topics of a run."""
    for one in ended:
        if one.progress is None:
            click.echo(f"{one.topic}: not done")
            continue
        click.echo(f"{one.topic}: {show.plural(one.progress.done, 'object')} in place of the old ones")
        for failure in one.progress.failures:
            click.echo(f"{one.topic}: left as it was: {failure}", err=True)


def ended_json(one: Ended) -> dict[str, object]:
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
