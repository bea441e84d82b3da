"""`offloadctl rollback`: show what a stock broker could read, and rewrite the rest for it."""

from contextlib import aclosing

import click

from offloaderd.cli import options, show
from offloaderd.cli.options import Session, last_of
from offloaderd.cli.program import FAILED, OK
from offloaderd.client import DaemonClient
from offloaderd.core.model import TopicName
from offloaderd.protocol.conversion import as_json, picked
from offloaderd.protocol.v1 import rollback_pb2

TO = click.option("--to", "to_ledger_id", metavar="LEDGER", type=click.IntRange(min=0), help="Nothing behind this one.")


@click.group()
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
    """Show for each ledger in the tier whether a stock broker could read it. Changes nothing.

    \b
    whole        it is stored in an object of its own
    convertible  it can be rewritten as one
    open         it is not closed, or not offloaded to its end
    trimmed      its first entries were deleted by retention
    lost         entries of it were lost before they were offloaded
    unsure       its end is not recorded
    deleted      it is marked deleted
    elsewhere    a part of it is stored in another bucket than the daemon's
    pinned       it is stored in a segment between ledgers that have to stay there

    \b
    Examples:
      offloadctl rollback plan orders
      offloadctl rollback plan public/default
      offloadctl rollback plan orders -o json | jq -r '.topics[].ledgers[] | "\\(.ledger_id) \\(.segment_id)"'
    """
    show_plans(session, target, to_ledger_id)


def show_plans(session: Session, target: str, to: int | None) -> None:
    """Show the ledgers of each topic, and what follows from them."""

    async def asked(client: DaemonClient) -> list[rollback_pb2.PlanRollbackResponse]:
        return [one async for one in client.plan_rollback(target, to_ledger_id=to)]

    found = session.ask(asked, timeout_s=options.PATTERN_TIMEOUT_S)
    texts = [_ledger_table(to).rendered(one.ledgers) if one.ledgers else "" for one in found]
    text = "\n\n".join(table + "\n".join(_plan_lines(one, to)) for table, one in zip(texts, found, strict=True))
    session.tell({"topics": [_plan_json(one, to) for one in found]}, text)


@rollback.command(short_help="Rewrite a topic's streaming segments as whole ledgers.")
@click.argument("topic", type=options.TOPIC)
@TO
@options.PLAN_ONLY
@click.option("--wait", is_flag=True, help="Return when it is done, with progress on stderr.")
@options.YES
@options.common
def convert(session: Session, topic: TopicName, to_ledger_id: int | None, dry_run: bool, wait: bool, yes: bool) -> int:
    """Rewrite the closed ledgers of a topic as objects that a stock broker reads, the oldest first.

    Each ledger is read from the bucket, written, read back and compared. Only then does it replace the segments, and
    segments without other ledgers are deleted. The offload of the topic continues meanwhile. The order is recorded, so
    it outlives this command and the daemon; a repeated order does no harm. Only the daemon that owns the topic takes
    it. Exit code 1 when ledgers could not be rewritten.

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
        options.confirm(f"Rewrite the segments of {topic}? Those that hold nothing more are deleted")
    found = session.ask(lambda client: client.convert_topic(topic, to_ledger_id=to_ledger_id))
    if not found.HasField("order"):
        nothing = f"nothing of {topic} is to be rewritten; offloadctl rollback plan {topic} says why"
        session.tell({"topic": str(topic), "order": None}, nothing)
        return OK
    if wait:
        return _follow(session, topic)
    session.tell(
        {"topic": str(topic), "order": as_json(found.order)},
        f"ledgers of {topic} up to {found.order.to_ledger_id} are being rewritten; "
        f"offloadctl rollback status {topic} shows how far",
    )
    return OK


def _follow(session: Session, topic: TopicName) -> int:
    """Show progress until the order has ended; returns the exit code."""
    said = ""

    def tell(report: rollback_pb2.RollbackProgress) -> None:
        nonlocal said
        line = _progress_line(report)
        if line != said and not session.structured:
            show.note(line)
        said = line

    last = session.ask(lambda client: last_of(client.follow_rollback(topic, timeout_s=session.timeout_s), tell))
    session.tell(_progress_json(topic, last), "\n".join(_result_lines(topic, last)))
    return FAILED if last.order.failures or last.order.stopped else OK


def _progress_json(topic: TopicName, one: rollback_pb2.RollbackProgress) -> dict[str, object]:
    return {"topic": str(topic), **as_json(one, leave_out=("ledger_bytes",))}


@rollback.command(short_help="Show how far the rewriting is.")
@click.argument("topic", type=options.TOPIC)
@options.common
def status(session: Session, topic: TopicName) -> None:
    """Show the progress of the last order. Only the daemon that owns the topic knows it.

    \b
    Examples:
      offloadctl rollback status orders
      offloadctl rollback status orders -o json | jq .left
    """

    async def asked(client: DaemonClient) -> rollback_pb2.RollbackProgress:
        timeout_s = session.timeout_s or options.CALL_TIMEOUT_S
        async with aclosing(client.follow_rollback(topic, timeout_s=timeout_s)) as reports:
            return await anext(reports)

    found = session.ask(asked)
    if not found.HasField("order"):
        lines = [f"nothing of {topic} was ordered to be rewritten"]
    else:
        lines = _result_lines(topic, found) if found.order.ended_ms else [_progress_line(found)]
    session.tell(_progress_json(topic, found), "\n".join(lines))


@rollback.command(short_help="Stop the rewriting.")
@click.argument("topic", type=options.TOPIC)
@options.common
def stop(session: Session, topic: TopicName) -> None:
    """Cancel the order. Objects in progress are aborted, rewritten ledgers stay; it can be ordered again.

    \b
    Examples:
      offloadctl rollback stop orders
    """

    order = session.ask(lambda client: client.stop_rollback(topic))
    ended = "was stopped" if order.stopped else "had ended"
    session.tell({"topic": str(topic), "order": as_json(order)}, f"the rewriting of {topic} {ended}")


SHOWN = 20
"""Ledgers that are named in one line."""


def _goes(ledger: rollback_pb2.RollbackLedger, to: int | None) -> bool:
    """Whether a ledger would be rewritten."""
    return ledger.standing == "convertible" and (to is None or ledger.ledger_id <= to)


def _ledger_table(to: int | None) -> show.Table[rollback_pb2.RollbackLedger]:
    """Return the table of ledgers, of which those up to `to` would be rewritten."""
    return show.Table(
        (">LEDGER", "ledger_id"),
        ("STANDING", "standing"),
        (">ENTRIES", "entries"),
        (">PAYLOAD", "payload_bytes"),
        (">SEGMENTS", "segments"),
        (">REQUESTS", lambda one: show.number(one.requests) if _goes(one, to) else "-"),
        (">TIME", lambda one: show.age(one.seconds) if _goes(one, to) else "-"),
        ("NOTE", lambda one: _note(one, to)),
    )


def _note(ledger: rollback_pb2.RollbackLedger, to: int | None) -> str:
    """Return the note on a ledger: its object, or why it is not rewritten."""
    if ledger.segment_id:
        return f"{ledger.segment_id} by {ledger.driver}"
    return "behind --to" if ledger.standing == "convertible" and not _goes(ledger, to) else ledger.why


def _plan_lines(one: rollback_pb2.PlanRollbackResponse, to: int | None) -> list[str]:
    """Return what a stock broker could read of a topic, and the remaining steps, as lines of text."""
    wholes = [ledger for ledger in one.ledgers if ledger.standing == "whole"]
    going = [ledger for ledger in one.ledgers if _goes(ledger, to)]
    staying = [ledger.ledger_id for ledger in one.ledgers if ledger.standing != "whole" and not _goes(ledger, to)]
    size = show.size(sum(ledger.payload_bytes for ledger in going))
    lines = [
        f"{one.topic}: a stock broker could read {show.number(len(wholes))} of "
        f"{show.plural(len(one.ledgers), 'ledger')} in the tier, and {show.number(len(wholes) + len(going))} after it"
    ]
    if going:
        how = "as measured here" if one.measured else "a guess, nothing was measured yet"
        lines.append(
            f"to rewrite: {show.plural(len(going), 'ledger')}, {size}, about "
            f"{show.plural(sum(ledger.requests for ledger in going), 'request')} and "
            f"{show.age(sum(ledger.seconds for ledger in going))} at {show.size(int(one.bytes_per_s))}/s ({how})"
        )
    if staying:
        named = ", ".join(show.abridged(list(map(str, staying)), SHOWN))
        lines.append(f"stay in segments, which a stock broker cannot read: ledger {named}")
    lines += [f"lost, in no ledger: entries {loss}" for loss in one.losses]
    if one.HasField("order"):
        lines.append(_order_line(one.order))
    # The steps that a conversion does not do.
    if not one.enabled:
        lines.append("the topic is not enabled: offloadctl topics enable it, or nobody can rewrite it")
    elif one.method == "streaming":
        lines.append("its method is streaming: what comes later will lie in segments again; set another method first")
    if one.unfinished:
        lines.append(f"its history {one.unfinished} is still being offloaded; plan again when that is done")
    if one.prefix:
        lines.append(
            f"the keys begin with {one.prefix!r}, which a stock broker does not put in front: copy the objects"
        )
    lines.append(
        "nothing here writes below /managed-ledgers: for a broker to find the objects, the topic's node there has to "
        "name each ledger's uuid and driver in its offload context (-o json lists them)"
    )
    return lines


def _order_line(order: rollback_pb2.RollbackOrder) -> str:
    what = f"ordered up to ledger {order.to_ledger_id} at {show.moment(order.ordered_ms)}"
    if not order.ended_ms:
        return f"{what}, and being carried out"
    end = "stopped" if order.stopped else "ended"
    failed = f"; {show.plural(len(order.failures), 'ledger')} could not be rewritten" if order.failures else ""
    return f"{what}, {end} at {show.moment(order.ended_ms)}{failed}"


def _plan_json(one: rollback_pb2.PlanRollbackResponse, to: int | None) -> dict[str, object]:
    """Return a plan as JSON shows it; unknown values, and those that do not apply, are null."""
    effort = ("requests", "seconds")
    ledgers = [
        {
            **picked(ledger, "ledger_id", "standing"),
            "converts": _goes(ledger, to),
            **picked(ledger, "why", "entries", "payload_bytes", "segments"),
            **(picked(ledger, *effort) if _goes(ledger, to) else dict.fromkeys(effort)),
            **picked(ledger, "segment_id", "driver"),
        }
        for ledger in one.ledgers
    ]
    return {
        "topic": one.topic,
        "ledgers": ledgers,
        **picked(one, "losses", "method", "enabled", "prefix", kept=("method", "prefix")),
        "bytes_per_s": round(one.bytes_per_s),
        **picked(one, "measured", "history_unfinished=unfinished", "order"),
    }


def _progress_line(report: rollback_pb2.RollbackProgress) -> str:
    done = f"{show.number(report.done)} of {show.plural(report.done + report.left, 'ledger')} rewritten"
    if report.HasField("ledger_id"):
        done += f"; ledger {report.ledger_id}: {report.phase}, {show.size(report.ledger_bytes)}"
    return f"{done}; it does not move: {report.error}" if report.error else done


def _result_lines(topic: TopicName, last: rollback_pb2.RollbackProgress) -> list[str]:
    end = "stopped" if last.order.stopped else "done"
    lines = [f"{end}: {show.plural(last.done, 'ledger')} of {topic} rewritten, {show.size(last.done_bytes)}"]
    lines += [f"ledger {one.ledger_id} could not be: {one.reason}" for one in last.order.failures]
    return lines
