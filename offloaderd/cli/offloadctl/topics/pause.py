"""`offloadctl topics pause` and `resume`: stop the offload of a topic until it is resumed."""

import click

from offloaderd.cli import show
from offloaderd.cli.options import common as options
from offloaderd.cli.options.common import Session
from offloaderd.core.model import TopicName
from offloaderd.protocol.message_json import as_json

DRY_RUN = click.option("--dry-run", is_flag=True, help="Change nothing; show the new state of each topic.")


@click.command("pause", short_help="Pause the offload of a topic.")
@click.argument("topic", type=options.TOPIC)
@DRY_RUN
@options.common
def pause(session: Session, topic: TopicName, *, dry_run: bool) -> None:
    """Pause the offload of TOPIC and its partitions until `resume`, across restarts and moves to other daemons.

    Its open segment is sealed and committed, and no other is begun. Reads, retention and grants continue. Entries wait
    in BookKeeper, whose retention continues as well: resume before it deletes them. A topic that is only pushed commits
    what it has accepted and holds the broker back.

    \b
    Examples:
      offloadctl topics pause orders
      offloadctl topics list | grep paused
    """
    change_pause(session, topic, undo=False, dry_run=dry_run)


@click.command("resume", short_help="Resume a paused topic.")
@click.argument("topic", type=options.TOPIC)
@DRY_RUN
@options.common
def resume(session: Session, topic: TopicName, *, dry_run: bool) -> None:
    """Resume the offload of TOPIC and its partitions where it was paused.

    \b
    Examples:
      offloadctl topics resume orders
    """
    change_pause(session, topic, undo=True, dry_run=dry_run)


def change_pause(session: Session, topic: TopicName, *, undo: bool, dry_run: bool) -> None:
    """Pause or resume a topic, and show the new state of it and its partitions."""
    found = session.ask(lambda client: client.pause(topic, undo=undo, dry_run=dry_run))
    would = "would be " if dry_run else ""
    lines = []
    for one in found:
        state = f"paused since {show.moment(one.paused_ms)} UTC" if one.paused_ms else "going on"
        lines.append(f"{one.topic}: {would if one.changed else 'was already '}{state}")
    session.tell({"dry_run": dry_run, "topics": [as_json(one) for one in found]}, "\n".join(lines))
    if dry_run and not session.json:
        click.echo("nothing was changed", err=True)
