"""`offloadctl segments` and `offloadctl verify`: list the segments of a topic, and compare them with the bucket."""

from contextlib import aclosing

import click

from offloaderd.cli import show, views
from offloaderd.cli.options import common as options
from offloaderd.cli.options.common import Session
from offloaderd.cli.program import CORRUPT, OK
from offloaderd.cli.progress import Bars
from offloaderd.core.model import TopicName
from offloaderd.protocol.message_json import as_json, picked
from offloaderd.protocol.v1 import inspect_pb2


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
        session.tell(document, lambda: views.TABLE.show(found))
    else:
        click.echo(f"{topic} has no segments yet", err=True)


@click.command()
@click.argument("topic", type=options.TOPIC)
@click.option(
    "--level",
    type=click.Choice(["metadata", "headers", "full"]),
    default="full",
    show_default=True,
    help="metadata: manifests, indexes, sizes. headers: also the header of each block. full: every byte.",
)
@options.common
def verify(session: Session, topic: TopicName, *, level: str) -> int:
    """Make the daemon read the committed segments of a topic, and show what differs from what was written.

    Nothing is changed, and any daemon can do it. Everything in the bucket, without a daemon: offloaderd verify. Exit
    code 5 when something is wrong.

    \b
    Examples:
      offloadctl verify orders
      offloadctl verify orders --level metadata
      offloadctl verify orders --json | jq -r '.flaws[]? | select(.problem) | "\\(.key) \\(.offset)"'
    """
    return session.run(_verify(session, topic, level))


async def _verify(session: Session, topic: TopicName, level: str) -> int:
    problems = segments = read_bytes = 0
    with Bars() as bars:
        async with (
            session.client() as client,
            aclosing(client.verify(topic, level=level, timeout_s=session.timeout_s)) as events,
        ):
            async for event in events:
                if event.HasField("segment"):
                    found = event.segment
                    flaws = list(found.flaws)
                    bars.show("verifying", f"{found.number} of {found.of} segments", found.number, found.of)
                    if session.json or flaws:
                        bars.clear()
                    if session.json:
                        click.echo(show.json_line(segment_json(found)), nl=False)
                    elif flaws:
                        begin, end = show.position_of(found, "begin"), show.position_of(found, "end")
                        click.echo(f"segment {found.segment_id} ({begin} to {end}):")
                        views.write_flaws(flaws)
                else:
                    bars.clear()
                    flaws = list(event.between.flaws)
                    segments, read_bytes = event.between.segments, event.between.read_bytes
                    if flaws and not session.json:
                        click.echo("between segments:")
                        views.write_flaws(flaws)
                    if session.json:
                        between = [views.flaw_as_json(flaw) for flaw in flaws]
                        click.echo(show.json_line({"summary": {"segments": segments, "flaws": between}}), nl=False)
                problems += sum(flaw.is_problem for flaw in flaws)
    if not session.json:
        verdict = show.plural(problems, "problem") if problems else "no problem"
        click.echo(f"read {show.size(read_bytes)} of {show.plural(segments, 'segment')}: {verdict}")
    return CORRUPT if problems else OK


def segment_json(found: inspect_pb2.VerifyEvent.Segment) -> dict[str, object]:
    """Return a segment as JSON shows it."""
    facts = picked(found, "segment_id", "begin", "end", "data_bytes", "read_bytes", kept=("segment_id",))
    return {**facts, "flaws": [views.flaw_as_json(flaw) for flaw in found.flaws]}
