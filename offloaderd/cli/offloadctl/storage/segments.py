"""`offloadctl segments`: what is stored where."""

import click

from offloaderd.cli.options import common as options
from offloaderd.cli.options.common import Session
from offloaderd.cli.segments import TABLE
from offloaderd.core.model import TopicName
from offloaderd.protocol.message_json import as_json


@click.command()
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
