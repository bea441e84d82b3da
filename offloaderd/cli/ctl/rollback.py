"""`offloadctl rollback`: what a stock broker could read, and rewriting the rest for it."""

from __future__ import annotations

import sys
from contextlib import aclosing
from typing import TYPE_CHECKING

import click

from offloaderd.cli.ctl import options
from offloaderd.cli.ctl.rollback_words import (
    ledger_table,
    plan_json,
    plan_lines,
    progress_line,
    result_lines,
)
from offloaderd.cli.program import FAILED, OK
from offloaderd.errors import OffloaderError
from offloaderd.rpc.message_json import as_json

if TYPE_CHECKING:
    from offloaderd.cli.ctl.options import Session
    from offloaderd.client import DaemonClient
    from offloaderd.model import TopicName
    from offloaderd.rpc.v1 import rollback_pb2

TO = click.option("--to", "to_ledger_id", metavar="LEDGER", type=click.IntRange(min=0), help="Nothing behind this one.")


@click.group(short_help="Make what was streamed readable for a stock broker.")
@options.common
def rollback(session: Session) -> None:
    """Make what was streamed readable for a stock broker.

    A stock broker reads ledgers in objects of their own (PIP-17) and nothing of streaming segments (PIP-76). Closed
    ledgers that are offloaded to their end can be rewritten as such objects, verified, while the topic goes on.
    """


@rollback.command(short_help="Show what a stock broker could read, and what it would take.")
@click.argument("target", metavar="TOPIC|TENANT/NAMESPACE")
@TO
@options.common
def plan(session: Session, target: str, to_ledger_id: int | None) -> None:
    """Show of each ledger in the tier whether a stock broker could read it. Changes nothing.

    \b
    whole        it lies in an object of its own
    convertible  it can be rewritten as one
    open         it is not closed, or not offloaded to its end
    trimmed      its first entries were deleted by retention
    lost         entries of it were lost before they were offloaded
    unsure       nobody has recorded where it ended
    deleted      it is marked deleted
    elsewhere    some of it lies in another bucket than the daemon's
    pinned       it lies in a segment between ledgers that have to stay there

    \b
    Examples:
      offloadctl rollback plan orders
      offloadctl rollback plan public/default
      offloadctl rollback plan orders --json | jq -r '.topics[].ledgers[] | "\\(.ledger_id) \\(.segment_id)"'
    """
    show_plans(session, target, to_ledger_id)


def show_plans(session: Session, target: str, to: int | None) -> None:
    """Show of each topic its ledgers, and in words what follows from them."""

    async def asked(client: DaemonClient) -> list[rollback_pb2.PlanRollbackResponse]:
        async with aclosing(client.plan_rollback(target, to_ledger_id=to)) as plans:
            return [one async for one in plans]

    found = session.ask(asked, timeout_s=options.PATTERN_TIMEOUT_S)
    texts = [ledger_table(to).rendered(one.ledgers) if one.ledgers else "" for one in found]
    text = "\n\n".join(table + "\n".join(plan_lines(one, to)) for table, one in zip(texts, found, strict=True))
    session.tell({"topics": [plan_json(one, to) for one in found]}, text)


@rollback.command(short_help="Rewrite a topic's streaming segments as whole ledgers.")
@click.argument("topic", type=options.TOPIC)
@TO
@click.option("--dry-run", is_flag=True, help="Change nothing; show the plan.")
@click.option("--wait", is_flag=True, help="Return when it is done; tells how far it is on stderr.")
@click.option("--yes", is_flag=True, help="Do not ask; needed where there is no terminal.")
@options.common
def convert(session: Session, topic: TopicName, to_ledger_id: int | None, dry_run: bool, wait: bool, yes: bool) -> int:
    """Have a topic's closed ledgers rewritten as objects that a stock broker reads, the oldest first.

    Each is read from the bucket, written, read back and compared; only then does it take the place of what held it,
    and segments that hold nothing more are deleted. The topic goes on meanwhile. The order is recorded: it outlives
    this command and the daemon, and giving it again does no harm. The daemon that owns the topic has to be asked.
    Exit code 1 when ledgers could not be rewritten.

    \b
    Examples:
      offloadctl rollback convert orders --dry-run
      offloadctl rollback convert orders --wait
      offloadctl rollback convert orders --to 1234 --yes
    """
    if dry_run:
        show_plans(session, str(topic), to_ledger_id)
        return OK
    if not yes:
        confirm(f"Rewrite the segments of {topic}? Those that hold nothing more are deleted")
    found = session.ask(lambda client: client.convert_topic(topic, to_ledger_id=to_ledger_id))
    if not found.HasField("order"):
        nothing = f"nothing of {topic} is to be rewritten; offloadctl rollback plan {topic} says why"
        session.tell({"topic": str(topic), "order": None}, nothing)
        return OK
    if wait:
        return session.run(_follow(session, topic))
    session.tell(
        {"topic": str(topic), "order": as_json(found.order)},
        f"ledgers of {topic} up to {found.order.to_ledger_id} are being rewritten; "
        f"offloadctl rollback status {topic} shows how far",
    )
    return OK


def confirm(question: str) -> None:
    """Ask somebody; raises UsageError where nobody can answer, Abort for a no."""
    if not sys.stdin.isatty():
        raise click.UsageError("there is no terminal to ask at\nhint: add --yes")
    click.confirm(question, abort=True, err=True)


async def _follow(session: Session, topic: TopicName) -> int:
    """Tell progress until the order has ended; returns the exit code."""
    last: rollback_pb2.RollbackProgress | None = None
    said = ""
    async with (
        session.client() as client,
        aclosing(client.follow_rollback(topic, timeout_s=session.timeout_s)) as reports,
    ):
        async for report in reports:
            last = report
            line = progress_line(report)
            if line != said and not session.json:
                click.echo(line, err=True)
            said = line
    if last is None:
        raise OffloaderError("the daemon ended the call without an answer")
    session.tell(progress_json(topic, last), "\n".join(result_lines(topic, last)))
    return FAILED if last.order.failures or last.order.stopped else OK


def progress_json(topic: TopicName, one: rollback_pb2.RollbackProgress) -> dict[str, object]:
    """Return progress as JSON shows it."""
    return {"topic": str(topic), **as_json(one, leave_out=("ledger_bytes",))}


@rollback.command(short_help="Show how far the rewriting is.")
@click.argument("topic", type=options.TOPIC)
@options.common
def status(session: Session, topic: TopicName) -> None:
    """Show how far the last order is. The daemon that owns the topic has to be asked.

    \b
    Examples:
      offloadctl rollback status orders
      offloadctl rollback status orders --json | jq .left
    """

    async def asked(client: DaemonClient) -> rollback_pb2.RollbackProgress:
        timeout_s = session.timeout_s or options.CALL_TIMEOUT_S
        async with aclosing(client.follow_rollback(topic, timeout_s=timeout_s)) as reports:
            return await anext(reports)

    found = session.ask(asked)
    if not found.HasField("order"):
        lines = [f"nothing of {topic} was ordered to be rewritten"]
    else:
        lines = result_lines(topic, found) if found.order.ended_ms else [progress_line(found)]
    session.tell(progress_json(topic, found), "\n".join(lines))


@rollback.command(short_help="Stop the rewriting.")
@click.argument("topic", type=options.TOPIC)
@options.common
def stop(session: Session, topic: TopicName) -> None:
    """Take the order back. What is being written is given up, what was rewritten stays; it can be ordered again.

    \b
    Examples:
      offloadctl rollback stop orders
    """

    order = session.ask(lambda client: client.stop_rollback(topic))
    ended = "was stopped" if order.stopped else "had ended"
    session.tell({"topic": str(topic), "order": as_json(order)}, f"the rewriting of {topic} {ended}")
