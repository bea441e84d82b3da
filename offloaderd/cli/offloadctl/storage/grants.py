"""`offloadctl grants`: take back, or allow again, the permission to delete a ledger from its source."""

import click

from offloaderd.cli import show
from offloaderd.cli.options import common as options
from offloaderd.cli.options.common import Session
from offloaderd.core.model import TopicName
from offloaderd.protocol.message_json import as_json


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
    """Take the permission back, or forbid it before it is given. It is not given again until it is allowed.

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
