"""`offloadctl ledgers` and `offloadctl grants`: the state of ledgers, their deletion from tier and source."""

import click

from offloaderd.cli import options, show
from offloaderd.cli.options import Session
from offloaderd.core.model import TopicName
from offloaderd.protocol.conversion import as_json, picked
from offloaderd.protocol.v1 import retention_pb2


@click.group()
@options.common
def ledgers(session: Session) -> None:
    """List the ledgers of a topic with their states, and delete them from the tier."""


@ledgers.command("list", short_help="List a topic's ledgers.")
@click.argument("topic", type=options.TOPIC)
@options.common
def list_ledgers(session: Session, topic: TopicName) -> None:
    """List the ledgers that the source or the tier has, with the state of each.

    \b
    open       still being written
    closed     not all of it is offloaded yet
    offloaded  all of it is in the tier; its copy is not verified yet, or the verification failed (see the daemon's log)
    granted    its copy was verified: the source may delete it after the time shown
    revoked    that permission was revoked, see `offloadctl grants`
    deleted    marked deleted in the tier; removed when all earlier ledgers are

    \b
    Examples:
      offloadctl ledgers list orders
      offloadctl ledgers list orders -o json | jq -r '.ledgers[] | select(.state == "granted") | .ledger_id'
    """
    found = session.ask(lambda client: client.ledgers(topic))
    names = ("ledgers", "deleted_up_to=floor", "deleted_segments", "deleted_bytes", "source_error", "metadata_error")
    document = {"topic": str(topic), **picked(found, *names, nullable=("epoch",))}
    session.tell(document, lambda: _show_ledgers(topic, found))


def _show_ledgers(topic: TopicName, found: retention_pb2.ListLedgersResponse) -> None:
    if found.ledgers:
        TABLE.show(found.ledgers)
    else:
        show.note(f"{topic} has no ledgers")
    if floor := show.position_of(found, "floor"):
        size = show.size(found.deleted_bytes)
        show.note(f"deleted up to {floor}: {show.plural(found.deleted_segments, 'segment')}, {size}")
    if found.metadata_error:
        show.note(f"ZooKeeper is away, grants are not shown: {found.metadata_error}")
    if found.source_error:
        show.note(f"the source was not read: {found.source_error}")


def _note(one: retention_pb2.Ledger) -> str:
    """Return the note on a ledger: its deletion, or the state of its grant."""
    grant = one.grant
    if one.deleted_ms:
        return f"marked deleted at {show.moment(one.deleted_ms)}"
    if grant.revoked_ms:
        reason = f": {grant.revoked_reason}" if grant.revoked_reason else ""
        return f"{'DAMAGED: ' if grant.damaged else ''}revoked at {show.moment(grant.revoked_ms)}{reason}"
    if grant.source_deleted_ms:
        return f"deleted from the source at {show.moment(grant.source_deleted_ms)}"
    if grant.verified_ms:
        how = "all read" if grant.readback else "checked"
        return f"{how} by {grant.daemon_id}; may be deleted from {show.moment(grant.not_before_ms)} on"
    return ""


TABLE: show.Table[retention_pb2.Ledger] = show.Table(
    (">LEDGER", "ledger_id"),
    ("STATE", "state"),
    (">ENTRIES", "entries"),
    (">OFFLOADED", "offloaded_entries"),
    (">PAYLOAD", "payload_bytes"),
    (">SEGMENTS", "segments"),
    ("AT SOURCE", lambda one: ("yes" if one.at_source else "no") if one.HasField("at_source") else "-"),
    ("VERIFIED AT (UTC)", lambda one: show.moment(one.grant.verified_ms)),
    ("NOTE", _note),
)


@ledgers.command("delete", short_help="Delete ledgers from the tier.")
@click.argument("topic", type=options.TOPIC)
@click.argument("ledger_ids", metavar="LEDGER...", nargs=-1, required=True, type=click.IntRange(min=0))
@click.option("--dry-run", is_flag=True, help="Change nothing; show which segments would be deleted.")
@options.YES
@options.common
def delete(session: Session, topic: TopicName, ledger_ids: tuple[int, ...], dry_run: bool, yes: bool) -> None:
    """Mark ledgers deleted in the tier; for good.

    A segment is deleted, oldest first, when all its ledgers are marked. Ledgers that the source still has are refused:
    the tier never holds less than the source. Only the daemon that owns the topic does it. The ledgers are not read any
    more; their objects are deleted after retention.reader_grace_s (1 h), at once where that is 0.

    \b
    Examples:
      offloadctl ledgers delete orders 17 18 --dry-run
      offloadctl ledgers delete orders 17 18 --yes
    """
    if not dry_run and not yes:
        named = ", ".join(map(str, ledger_ids))
        options.confirm(f"Mark ledger {named} of {topic} deleted? What the tier has of it cannot be read any more")
    found = session.ask(lambda client: client.delete_ledgers(topic, ledger_ids, dry_run=dry_run))
    document = {"topic": str(topic), "dry_run": dry_run, **as_json(found)}
    session.tell(document, "\n".join(_deletion_lines(found, dry_run=dry_run)))


def _deletion_lines(found: retention_pb2.DeleteLedgersResponse, *, dry_run: bool) -> list[str]:
    would = "would be " if dry_run else ""
    size = show.size(sum(segment.object_bytes for segment in found.segments))
    lines = [
        f"{would}marked deleted: {', '.join(map(str, found.marked)) or 'none, all were before'}",
        f"{would}deleted: {show.plural(len(found.segments), 'segment')}, {size}",
    ]
    ends = [(show.position_of(one, "begin"), show.position_of(one, "end")) for one in found.segments]
    lines += [f"  {one.segment_id}  {begin}..{end}" for one, (begin, end) in zip(found.segments, ends, strict=True)]
    if found.segments:
        lines.append("their objects go after retention.reader_grace_s (1 h unless set)")
    if found.waits_for:
        lines.append(f"other segments wait for ledger {', '.join(map(str, found.waits_for))}, which is not marked")
    return lines


@click.group()
@options.common
def grants(session: Session) -> None:
    """Forbid and allow the deletion of ledgers from their source.

    The daemon grants the deletion of every ledger whose copy it has verified; `offloadctl ledgers list` shows which.
    """


@grants.command(short_help="Forbid the deletion of a ledger from its source.")
@click.argument("topic", type=options.TOPIC)
@click.argument("ledger_id", metavar="LEDGER", type=click.IntRange(min=0))
@click.option("--reason", default="", metavar="TEXT", help="Why; shown in lists.")
@options.common
def revoke(session: Session, topic: TopicName, ledger_id: int, reason: str) -> None:
    """Revoke the permission, or forbid it before it is granted. It is not granted again until it is allowed.

    Refused once the daemon has begun to delete the ledger.

    \b
    Examples:
      offloadctl grants revoke orders 17
      offloadctl grants revoke orders 17 --reason 'legal hold 2026-114'
    """

    grant = session.ask(lambda client: client.revoke_grant(topic, ledger_id, reason=reason))
    session.tell(
        {"topic": str(topic), "ledger_id": ledger_id, "grant": as_json(grant, nullable=("epoch",))},
        f"the source must keep ledger {ledger_id} of {topic} (since {show.moment(grant.revoked_ms)})",
    )


@grants.command(short_help="Allow the deletion of a ledger again.")
@click.argument("topic", type=options.TOPIC)
@click.argument("ledger_id", metavar="LEDGER", type=click.IntRange(min=0))
@options.common
def allow(session: Session, topic: TopicName, ledger_id: int) -> None:
    """Lift a revocation: the copy is verified anew, and then the ledger is granted again.

    \b
    Examples:
      offloadctl grants allow orders 17
    """

    session.ask(lambda client: client.allow_grant(topic, ledger_id))
    session.tell(
        {"topic": str(topic), "ledger_id": ledger_id, "grant": None},
        f"ledger {ledger_id} of {topic} is granted again once its copy is verified",
    )
