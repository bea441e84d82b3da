"""`offloadctl segments`: what is stored where."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from offloaderd.cli import show
from offloaderd.cli.ctl import options
from offloaderd.rpc import message_json

if TYPE_CHECKING:
    from offloaderd.cli.ctl.options import Session
    from offloaderd.model import TopicName
    from offloaderd.rpc.v1 import admin_pb2


@click.command(short_help="List a topic's segments.")
@click.argument("topic", type=options.TOPIC)
@options.common
def segments(session: Session, topic: TopicName) -> int:
    """List a topic's segments in order: method, range, size, object; the open one last.

    The writer is the driver that made it: offloaderd, or a broker's own, such as aws-s3.

    \b
    Examples:
      offloadctl segments orders
      offloadctl segments orders --json | jq -r '.segments[].data_key'
    """
    return session.run(_segments(session, topic))


async def _segments(session: Session, topic: TopicName) -> None:
    async with session.client() as client:
        found = await client.segments(topic)
    if session.json:
        show.document({"topic": str(topic), "segments": [as_json(segment) for segment in found]})
    elif not found:
        click.echo(f"{topic} has no segments yet", err=True)
    else:
        TABLE.show(found)


def status(segment: admin_pb2.Segment) -> str:
    """Return the status word, with the state of a segment that is still open; an older daemon does not tell it."""
    return f"{segment.status}, {segment.state}" if segment.state and not segment.HasField("end") else segment.status


TABLE: show.Table[admin_pb2.Segment] = show.Table(
    ("STATUS", status),
    ("METHOD", "method"),
    ("WRITER", "writer"),
    ("BEGIN", "begin"),
    ("END", lambda one: show.position_of(one, "end") or "open"),
    (">ENTRIES", "entries"),
    (">PAYLOAD", "payload_bytes"),
    (">OBJECT", lambda one: show.size(one.object_bytes) if one.object_bytes else "-"),
    ("OFFLOADED AT (UTC)", "offloaded_ms"),
    ("DATA OBJECT", lambda one: f"{one.bucket}/{one.data_key}"),
)


def as_json(segment: admin_pb2.Segment) -> dict[str, object]:
    """Return a segment as JSON shows it; `end` and `offloaded_ms` are null while it is open."""
    return message_json.as_json(segment, kept=("bucket",))
