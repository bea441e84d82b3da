"""`offloadctl topics pause` and `resume`: a topic stands still until somebody says otherwise."""

import click

from offloaderd.cli import show
from offloaderd.cli.options import common as options
from offloaderd.cli.options.common import Session
from offloaderd.core.model import TopicName
from offloaderd.protocol.message_json import as_json

DRY_RUN = click.option("--dry-run", is_flag=True, help="Change nothing; show what would become of each topic.")


@click.command("pause", short_help="Have a topic stand still.")
@click.argument("topic", type=options.TOPIC)
@DRY_RUN
@options.common
def pause(session: Session, topic: TopicName, *, dry_run: bool) -> None:
    """Have TOPIC, with its partitions, stand still until `resume`: restarts and moves to other daemons keep it so.

    Its open segment is sealed and committed, and no other is begun. Reads, retention and grants go on. Entries wait
    in BookKeeper, whose retention goes on as well: resume before it deletes them. A topic that is only pushed commits
    what it has accepted and holds the broker back.

    \b
    Examples:
      offloadctl topics pause orders
      offloadctl topics list | grep paused
    """
    say(session, topic, undo=False, dry_run=dry_run)


@click.command("resume", short_help="Have a paused topic go on.")
@click.argument("topic", type=options.TOPIC)
@DRY_RUN
@options.common
def resume(session: Session, topic: TopicName, *, dry_run: bool) -> None:
    """Have TOPIC, with its partitions, go on where it was paused.

    \b
    Examples:
      offloadctl topics resume orders
    """
    say(session, topic, undo=True, dry_run=dry_run)


def say(session: Session, topic: TopicName, *, undo: bool, dry_run: bool) -> None:
    """Pause a topic or resume it, and show what became of it and its partitions."""
    found = session.ask(lambda client: client.pause(topic, undo=undo, dry_run=dry_run))
    would = "would be " if dry_run else ""
    lines = []
    for one in found:
        state = f"paused since {show.moment(one.paused_ms)} UTC" if one.paused_ms else "going on"
        lines.append(f"{one.topic}: {would if one.changed else 'was already '}{state}")
    session.tell({"dry_run": dry_run, "topics": [as_json(one) for one in found]}, "\n".join(lines))
    if dry_run and not session.json:
        click.echo("nothing was changed", err=True)
