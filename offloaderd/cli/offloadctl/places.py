"""`offloadctl places`: where segments lie, and the exchange of a topic's first place and its mirror."""

from collections.abc import Callable

import click

from offloaderd.cli import options, show
from offloaderd.cli.options import Session, last_of
from offloaderd.cli.progress import Bars
from offloaderd.client import DaemonClient
from offloaderd.core.model import TopicName
from offloaderd.protocol.conversion import as_json
from offloaderd.protocol.v1 import places_pb2

SWITCH_TIMEOUT_S = 3600.0


@click.group()
@options.common
def places(session: Session) -> None:
    """Show the places of a daemon, and exchange the first place and the mirror of a topic.

    A place is a bucket and a prefix of a service, written BUCKET/PREFIX.
    """


Row = places_pb2.ListPlacesResponse.Place
PLACES: tuple[tuple[str, str | Callable[[Row], str]], ...] = (
    ("PLACE", lambda one: f"{one.bucket}/{one.prefix}"),
    ("SERVICE", lambda one: one.service or "in no settings"),
    ("KIND", "kind"),
    ("ROLE", "role"),
)
OF_TOPIC: tuple[tuple[str, str | Callable[[Row], str]], ...] = (
    (">SEGMENTS", "segments"),
    (">SIZE", "segment_bytes"),
    (">ENTRIES", "segment_entries"),
    (">COPIES", "copies"),
    (">SIZE", "copy_bytes"),
    (">ENTRIES", "copy_entries"),
    (">BOTH", "both"),
)


@places.command(name="list", short_help="List the places, and what lies in each.")
@click.argument("topic", type=options.TOPIC, required=False)
@options.common
def list_(session: Session, topic: TopicName | None) -> None:
    """List the places of the daemon with their service and role; with TOPIC what of it lies in each.

    \b
    SEGMENTS  have this place as their first one: they are read here
    COPIES    of segments whose mirror this is
    BOTH      segments here that lie in another place as well

    \b
    Examples:
      offloadctl places list
      offloadctl places list orders
      offloadctl places list orders --json | jq .uncopied_segments
    """
    found = session.ask(lambda client: client.places(topic or ""))
    document = {"topic": str(topic or ""), **as_json(found, kept=("uncopied_segments", "uncopied_bytes"))}
    session.tell(document, lambda: _show(topic, found))


def _show(topic: TopicName | None, found: places_pb2.ListPlacesResponse) -> None:
    show.Table(*PLACES, *(OF_TOPIC if topic is not None else ())).show(found.places)
    if found.uncopied_segments:
        lacking = f"{show.plural(found.uncopied_segments, 'segment')} ({show.size(found.uncopied_bytes)})"
        show.note(f"{lacking} have no copy in the mirror yet")
    if found.open_place:
        show.note(f"the open segment is written in {found.open_place}")


@places.command(short_help="Exchange a topic's first place and its mirror.")
@click.argument("topic", type=options.TOPIC)
@click.option("--to", metavar="BUCKET/PREFIX", default="", help="The place that is to be the first one afterwards.")
@click.option("--dry-run", is_flag=True, help="Change nothing; show what would be exchanged.")
@options.common
def switch(session: Session, topic: TopicName, *, to: str, dry_run: bool) -> None:
    """Exchange the first place and the mirror of a topic, in its policy and for each segment that has both.

    No object is moved, and readers and writers go on. New segments are stored in the new first place from now on. An
    open segment is completed where it was begun and copied later: repeat the command to exchange it. With --to the
    command may be repeated at any time; without it the mirror becomes the first place, unless an earlier exchange was
    interrupted, which is then completed. Only the daemon that owns the topic does it.

    \b
    Examples:
      offloadctl places switch orders --dry-run
      offloadctl places switch orders --to pulsar-eu/topics/
      offloadctl places switch orders --json | jq .waiting
    """
    found = session.ask(lambda client: exchanged(client, topic, to=to, dry_run=dry_run), timeout_s=SWITCH_TIMEOUT_S)
    document = {"topic": str(topic), "dry_run": dry_run, **as_json(found)}
    session.tell(document, "\n".join(switch_lines(topic, found, dry_run=dry_run)))


async def exchanged(
    client: DaemonClient, topic: TopicName, *, to: str, dry_run: bool = False
) -> places_pb2.SwitchProgress:
    """Exchange the places of a topic, with a bar; return the last progress."""
    with Bars() as bars:

        def take(one: places_pb2.SwitchProgress) -> None:
            said = f"{one.segments} of {one.segments_total} segments"
            bars.show("switching", said, one.segments, one.segments_total)

        return await last_of(client.switch_places(topic, to=to, dry_run=dry_run, timeout_s=SWITCH_TIMEOUT_S), take)


def switch_lines(topic: TopicName, found: places_pb2.SwitchProgress, *, dry_run: bool) -> list[str]:
    """Return what was exchanged, or would be."""
    would = "would be " if dry_run else ""
    changed = f"{would}exchanged" if found.policy_changed else "was so before"
    count = found.segments_total if dry_run else found.segments
    lines = [
        f"{topic}: first place {found.first}, mirror {found.mirror} (policy: {changed})",
        f"{would}exchanged: {show.plural(count, 'segment')}, {show.size(found.bytes_total)}, none of it copied",
    ]
    if found.waiting:
        lines.append(
            f"{show.plural(found.waiting, 'segment')} not in both places yet: repeat the command when they are copied"
        )
    return lines
