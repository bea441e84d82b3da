"""`offloadctl segments`: what is stored where."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from offloaderd.cli import show
from offloaderd.cli.ctl import options
from offloaderd.rpc.message_json import as_json

if TYPE_CHECKING:
    from offloaderd.cli.ctl.options import Session
    from offloaderd.model import TopicName
    from offloaderd.rpc.v1 import admin_pb2


@click.command(short_help="List a topic's segments.")
@click.argument("topic", type=options.TOPIC)
@options.common
def segments(session: Session, topic: TopicName) -> None:
    """List a topic's segments in order: method, range, size, object; the open one last.

    The writer is the driver that made it: offloaderd, or a broker's own, such as aws-s3.

    \b
    Examples:
      offloadctl segments orders
      offloadctl segments orders --json | jq -r '.segments[].data_key'
    """
    found = session.ask(lambda client: client.segments(topic))
    if found or session.json:
        document = {"topic": str(topic), "segments": [as_json(one, kept=("bucket",)) for one in found]}
        session.tell(document, lambda: TABLE.show(found))
    else:
        click.echo(f"{topic} has no segments yet", err=True)


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
