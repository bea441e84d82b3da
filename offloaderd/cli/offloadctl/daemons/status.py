"""`offloadctl status` and `offloadctl doctor`: the state of a daemon and its topics, and checks of what it needs."""

from contextlib import aclosing

import click

from offloaderd.cli import show, views
from offloaderd.cli.options import common as options
from offloaderd.cli.options.common import Session
from offloaderd.client import DaemonClient
from offloaderd.core.model import TopicName
from offloaderd.protocol.status_json import daemon_json, topic_json
from offloaderd.protocol.status_words import POSITIONS, daemon_facts, history_text, lag_cells, topic_facts
from offloaderd.protocol.v1 import admin_pb2, read_pb2

Answers = tuple[admin_pb2.StatusResponse, read_pb2.LastPositionsResponse | None]


@click.command()
@click.argument("topic", type=options.TOPIC, required=False)
@options.common
def status(session: Session, topic: TopicName | None) -> None:
    """Show the daemon, its dependencies and the progress of each topic; or one topic with its positions.

    \b
    Examples:
      offloadctl status
      offloadctl status orders
      offloadctl status orders --json | jq '.topics[0].lag_entries'
    """
    found, positions = session.ask(lambda client: status_and_positions(client, topic))
    session.tell(as_json(found, positions), lambda: show_status(topic, found, positions))


async def status_and_positions(client: DaemonClient, topic: TopicName | None) -> Answers:
    """Return the status, and the positions of a topic unless ZooKeeper is unreachable."""
    found = await client.status(topic)
    if topic is None or not all(one.up for one in found.dependencies if one.name == "metadata"):
        return found, None
    return found, await client.last_positions(topic)


def show_status(
    topic: TopicName | None, found: admin_pb2.StatusResponse, positions: read_pb2.LastPositionsResponse | None
) -> None:
    """Show the daemon and its topics, or one topic."""
    show.facts(daemon_facts(found))
    if topic is not None:
        for one in found.topics:
            click.echo()
            show.facts(topic_facts(one, positions))
    elif found.topics:
        click.echo()
        TABLE.show(found.topics)
        for one in found.topics:
            if one.stalled_reason:
                click.echo(f"{one.topic}: {one.stalled_reason}")
            if one.history.live_waits:
                click.echo(f"{one.topic}: {history_text(one.history)}")


TABLE: show.Table[admin_pb2.TopicStatus] = show.Table(
    ("TOPIC", "topic"),
    ("STATE", lambda one: "asleep" if one.asleep else one.state),
    ("CONFIRMED", "confirmed"),
    ("OFFLOADED", "offloaded"),
    (">LAG", lambda one: lag_cells(one)[0]),
    (">LAG BYTES", lambda one: lag_cells(one)[1]),
    (">LAG AGE", lambda one: lag_cells(one)[2]),
    (">OPEN SEGMENT", lambda one: show.size(one.open_segment_bytes) if one.open_segment_id else "-"),
    (">SEGMENTS", "segments_committed"),
)


def as_json(found: admin_pb2.StatusResponse, positions: read_pb2.LastPositionsResponse | None) -> dict[str, object]:
    """Return the status as JSON shows it, with `positions` for a single topic."""
    result: dict[str, object] = {
        "daemon": daemon_json(found),
        "topics": [topic_json(one) for one in found.topics],
    }
    if positions is not None:
        result["positions"] = {field: show.position_of(positions, field) for field in POSITIONS}
    return result


@click.command()
@options.common
def doctor(session: Session) -> int:
    """Check ZooKeeper, bookies, the admin API of brokers, the bucket and the clocks, from the machine of the daemon.

    One line a check, with a hint; exit code 1 when anything failed. When no daemon can be reached, or none can
    start, use: offloaderd doctor --config PATH.

    \b
    Examples:
      offloadctl doctor
      offloadctl doctor --json | jq -r '.checks[] | select(.verdict == "fail") | .found'
    """
    return session.run(_doctor(session))


async def _doctor(session: Session) -> int:
    async with session.client() as client, aclosing(client.examine(timeout_s=session.timeout_s)) as results:
        return await views.shown(results, as_json=session.json)
