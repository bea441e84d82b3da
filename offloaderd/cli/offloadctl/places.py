"""`offloadctl places`: where segments lie, and the exchange of a topic's first place and its mirror."""

from collections.abc import Callable
from dataclasses import dataclass, field

import click

from offloaderd.cli import options, show
from offloaderd.cli.options import Session, last_of
from offloaderd.cli.progress import Bars
from offloaderd.client import DaemonClient
from offloaderd.core.clock import Clock, SystemClock
from offloaderd.core.errors import Transient
from offloaderd.core.model import TopicName
from offloaderd.protocol.conversion import as_json
from offloaderd.protocol.v1 import places_pb2

SWITCH_TIMEOUT_S = 3600.0
POLL_S = 2.0
"""Pause between two looks at how far the copies are."""
FAILING_S = 600.0
"""How long copies may fail before a command that waits for them ends; the daemon tries on."""


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
      offloadctl places list orders -o json | jq .uncopied_segments
    """
    found = session.ask(lambda client: client.places(topic or ""))
    document = {"topic": str(topic or ""), **as_json(found, kept=("uncopied_segments", "uncopied_bytes"))}
    session.tell(document, lambda: _show(topic, found))


def _show(topic: TopicName | None, found: places_pb2.ListPlacesResponse) -> None:
    show.Table(*PLACES, *(OF_TOPIC if topic is not None else ())).show(found.places)
    if found.uncopied_segments:
        lacking = f"{show.plural(found.uncopied_segments, 'segment')} ({show.size(found.uncopied_bytes)})"
        show.note(f"{lacking} have no copy in the mirror yet")
    if found.copy_failure:
        show.note(failing_text(found))
    if found.open_place:
        show.note(f"a segment is being written in {found.open_place}")


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
      offloadctl places switch orders -o json | jq .waiting
    """
    with Bars() as bars:
        found = session.ask(
            lambda client: exchanged(client, topic, bars, to=to, dry_run=dry_run), timeout_s=SWITCH_TIMEOUT_S
        )
    document = {"topic": str(topic), "dry_run": dry_run, **as_json(found)}
    session.tell(document, "\n".join(switch_lines(topic, found, dry_run=dry_run)))


async def exchanged(
    client: DaemonClient, topic: TopicName, bars: Bars, *, to: str, dry_run: bool = False
) -> places_pb2.SwitchProgress:
    """Exchange the places of a topic, with a bar; return the last progress."""

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
        f"{would}exchanged: {show.plural(count, 'segment')}, {show.size(found.bytes_total)}, stored in both places",
    ]
    if found.waiting:
        lines.append(
            f"{show.plural(found.waiting, 'segment')} not in both places yet: repeat the command when they are copied"
        )
    return lines


@places.command(short_help="Move a topic to another place.")
@click.argument("topic", type=options.TOPIC)
@click.option("--to", metavar="BUCKET/PREFIX", required=True, help="The place that is to be the first one afterwards.")
@click.option("--delete-old", is_flag=True, help="Delete the copies in the old place at the end; for good.")
@click.option("--yes", is_flag=True, help="Do not ask before --delete-old.")
@click.option("--dry-run", is_flag=True, help="Change nothing; show what would be done.")
@options.common
def move(session: Session, topic: TopicName, *, to: str, delete_old: bool, yes: bool, dry_run: bool) -> None:
    """Move a topic to another place while it is written and read.

    The place becomes the mirror of the topic; when all segments of before are copied there, first place and mirror are
    exchanged. The old place is the mirror then, and keeps its copies. If new segments are stored there already, the old
    place becomes the mirror, and what is left in it is copied and exchanged.

    With --delete-old the topic has no mirror in the end: once nothing is first in the old place any more, the copies
    there are put on the trash list, and their objects are deleted after retention.reader_grace_s (1 h). Interrupted,
    the same command goes on where it was: copies are made by the daemon, with or without the command. If they make no
    progress, the command says why, and ends after ten minutes of failures or after --timeout; the daemon goes on. Only
    the daemon that owns the topic does it.

    \b
    Examples:
      offloadctl places move orders --to pulsar-eu/topics/ --dry-run
      offloadctl places move orders --to pulsar-eu/topics/
      offloadctl places move orders --to pulsar-eu/topics/ --delete-old --yes
      offloadctl places move orders --to pulsar-eu/topics/ -o json | jq .waiting
    """
    to = to if "/" in to else f"{to}/"  # a bucket alone is its place without a prefix
    if delete_old and not dry_run and not yes:
        options.confirm(f"Move {topic} to {to}? In the end its copies elsewhere are deleted")

    async def work(client: DaemonClient) -> tuple[dict[str, object], list[str]]:
        if delete_old:
            await client.set_mirror(topic, "", dry_run=True)  # a policy that demands the mirror refuses it now
        document, lines = await moved(client, topic, wait, to=to, dry_run=dry_run)
        if delete_old:
            more, told = await deleted(client, topic, wait, to=to, dry_run=dry_run)
            document, lines = {**document, **more}, [*lines, *told]
        return document, lines

    with Bars() as bars:
        wait = Wait(topic, session.timeout_s, bars)
        document, lines = session.ask(work)
    session.tell({"topic": str(topic), "dry_run": dry_run, **document}, "\n".join(lines))


@dataclass
class Wait:
    """The waits of a command for copies, which the daemon makes: for `limit_s` in all, without one until they fail for
    FAILING_S. `bars` show them.
    """

    topic: TopicName
    limit_s: float | None
    bars: Bars
    clock: Clock = field(default_factory=SystemClock)
    _noted: str = ""

    def __post_init__(self) -> None:
        self._began_s = self.clock.monotonic()

    async def pause(self, found: places_pb2.ListPlacesResponse, waits_for: str) -> None:
        """Wait POLL_S; note a new failure. Raises Transient with what is waited for, and why, when the time is over."""
        if found.copy_failure != self._noted:
            self._noted = found.copy_failure
            if found.copy_failure:
                self.bars.note(failing_text(found))
        waited_s = self.clock.monotonic() - self._began_s
        failing_s = (found.now_ms - found.copy_failing_since_ms) / 1000 if found.copy_failing_since_ms else 0.0
        over = min(failing_s, waited_s) > FAILING_S if self.limit_s is None else waited_s > self.limit_s
        if over:
            why = f"; {failing_text(found)}" if found.copy_failure else ""
            raise Transient(
                f"after {show.age(waited_s)} still {waits_for} of {self.topic}{why}",
                hint="the daemon goes on with the copies: repeat the command, which goes on where it was, once "
                f"`offloadctl places list {self.topic}` shows progress; --timeout TIME waits longer",
            )
        await self.clock.sleep(POLL_S)


def failing_text(found: places_pb2.ListPlacesResponse) -> str:
    """Return since when copies fail, and why."""
    since = f" since {show.moment(found.copy_failing_since_ms)} UTC" if found.copy_failing_since_ms else ""
    return f"copies FAIL{since}: {found.copy_failure}"


async def moved(
    client: DaemonClient, topic: TopicName, wait: Wait, *, to: str, dry_run: bool
) -> tuple[dict[str, object], list[str]]:
    """Move a topic, or with `dry_run` check what can be; return the document, and the lines."""
    found = await client.places(topic)
    roles = named_roles(found)
    mirrored, mirror = places_pb2.SetMirrorResponse(), to
    if roles.get("first") == to and "mirror" not in roles:  # its policy was changed by hand, or the move has ended
        left = [one for one in found.places if place_text(one) != to and one.segments > one.broker_segments]
        if not left:
            return {"to": to, "mirror_changed": False}, [f"{topic}: first place {to}, no mirror"]
        mirror = place_text(max(left, key=lambda one: one.segments))
    if mirror not in roles.values():
        mirrored = await client.set_mirror(topic, mirror, dry_run=dry_run)
    lines = []
    if mirrored.changed:
        would = "would be " if dry_run else ""
        lines += [f"{topic}: mirror {mirror} ({would}set{f' instead of {mirrored.before}' if mirrored.before else ''})"]
        if dry_run:
            rows = [one for one in found.places if place_text(one) != to]
            count, size_bytes = sum(one.segments for one in rows), sum(one.segment_bytes for one in rows)
            copied = f"{show.plural(count, 'segment')}, {show.size(size_bytes)}"
            lines += [f"would be copied, and then exchanged: {copied}"]
            return {"to": to, "mirror_changed": True, "segments": count, "size_bytes": size_bytes}, lines
    if not dry_run and (mirrored.changed or roles.get("first") != to):
        await _copied(client, topic, wait, mirror)
    last = await exchanged(client, topic, wait.bars, to=to, dry_run=dry_run)
    return (
        {"to": to, "mirror_changed": mirrored.changed, **as_json(last)},
        [*lines, *switch_lines(topic, last, dry_run=dry_run)],
    )


def place_text(one: Row) -> str:
    """Return a place as policies write it."""
    return f"{one.bucket}/{one.prefix}"


def named_roles(found: places_pb2.ListPlacesResponse) -> dict[str, str]:
    """Return the places of a topic's policy by their role."""
    return {one.role: place_text(one) for one in found.places if one.role}


async def deleted(
    client: DaemonClient, topic: TopicName, wait: Wait, *, to: str, dry_run: bool
) -> tuple[dict[str, object], list[str]]:
    """Take the mirror from a topic whose first place is `to`, and delete the copies elsewhere; returns as `moved`."""
    if not dry_run:
        await _settled(client, topic, wait, to)
        await client.set_mirror(topic, "")

    def take(one: places_pb2.DeleteCopiesProgress) -> None:
        wait.bars.show("deleting", f"{one.copies} of {one.copies_total} copies", one.copies, one.copies_total)

    last = await last_of(client.delete_copies(topic, dry_run=dry_run, timeout_s=SWITCH_TIMEOUT_S), take)
    where = f" in {', '.join(last.places)}" if last.places else ""
    copies = f"{show.plural(last.copies, 'copy', 'copies')}{where}, {show.size(last.bytes_total)}"
    text = f"{topic}: no mirror; on the trash list: {copies}, deleted after retention.reader_grace_s"
    if not last.copies:
        text = f"{topic}: no mirror; no copies elsewhere, but what was put on the trash list before"
    if dry_run:
        text = "then the topic would have no mirror, and the copies in the old place would be put on the trash list"
    return {"copies_deleted": last.copies, "deleted_in": list(last.places)}, [text]


async def _settled(client: DaemonClient, topic: TopicName, wait: Wait, to: str) -> None:
    """Wait until every segment that has a copy in `to` is read there, and none is being written elsewhere."""
    while True:
        found = await client.places(topic)
        mirror = named_roles(found).get("mirror")
        old = next((one for one in found.places if place_text(one) == mirror), None)
        left = old.segments - old.broker_segments if old is not None else 0
        if mirror is None or (not left and found.open_place != mirror):
            return
        opened = ", and the open one" if found.open_place == mirror else ""
        waits_for = f"{show.plural(left, 'segment')}{opened} left in {mirror}"
        wait.bars.show("settling", waits_for, step=1)
        await wait.pause(found, waits_for)
        await exchanged(client, topic, wait.bars, to=to)


async def _copied(client: DaemonClient, topic: TopicName, wait: Wait, mirror: str) -> None:
    """Wait until the mirror has every segment that was offloaded before; later ones do not hold it up."""
    began_ms, most = 0, 0
    while True:
        found = await client.places(topic)
        began_ms, most = began_ms or found.now_ms, max(most, found.uncopied_segments)
        if not found.uncopied_segments or found.uncopied_since_ms >= began_ms:
            return
        left = f"{show.plural(found.uncopied_segments, 'segment')} ({show.size(found.uncopied_bytes)})"
        left += f" to be copied to {mirror}"
        done = most - found.uncopied_segments
        wait.bars.show("copying", left, done, most, step=1 + done * 10 // most)
        await wait.pause(found, left)
