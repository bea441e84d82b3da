"""`offloadctl history`: plan the history of a topic, and show its progress."""

import click

from offloaderd.cli import options, show
from offloaderd.cli.options import SIZE, Session
from offloaderd.client import DaemonClient
from offloaderd.core.model import TopicName
from offloaderd.protocol.conversion import as_json, picked
from offloaderd.protocol.v1 import history_pb2

PLAN_TIMEOUT_S = 3600.0
"""Each boundary takes about twenty requests to the source; years of ledgers have thousands of boundaries."""
SHOWN = 50
RANGES_MAX = 10_000


@click.group()
@options.common
def history(session: Session) -> None:
    """Plan the history of a topic, and show how far it is offloaded.

    History is what the closed ledgers held when the topic was enabled. The daemon offloads a small one by itself; a
    large one (history.daemon_bytes_max) is left to a backfill job. New entries begin behind it, or at once if the
    topic's history order is alongside.
    """


@history.command(short_help="Show into which segments history would be split.")
@click.argument("topic", type=options.TOPIC)
@click.option("--segment-size", type=SIZE, default=0, metavar="SIZE", help="Instead of the topic's policy's.")
@options.common
def plan(session: Session, topic: TopicName, segment_size: int) -> None:
    """Find the boundaries of segments by binary search on the ledgers' lengths, and show them. Changes nothing.

    \b
    Examples:
      offloadctl history plan orders
      offloadctl history plan orders --segment-size 2GiB
      offloadctl history plan orders -o json | jq '.ranges | length'
    """
    found = session.ask(lambda client: client.plan_history(topic, segment_bytes=segment_size), timeout_s=PLAN_TIMEOUT_S)
    session.tell({"topic": str(topic), **as_json(found, nullable=("epoch",))}, lambda: _show_plan(topic, found))


def _show_plan(topic: TopicName, found: history_pb2.PlanHistoryResponse) -> None:
    """Show into which segments history would be split, and the cost of the search."""
    if not found.ranges:
        show.note(f"{topic} has no history that is not offloaded")
        return
    PLANNED.show(found.ranges)
    for one in found.doubtful:
        show.note(f"ledger {one.ledger_id} is split by its entries' number: {one.reason}")
    click.echo(
        f"{show.plural(len(found.ranges), 'segment')} of about {show.size(found.segment_bytes)}, "
        f"{show.plural(found.entries, 'entry', 'entries')}, {show.size(found.payload_bytes)} "
        f"before {show.position_of(found, 'boundary')}; {show.plural(found.probes, 'probe')} for "
        f"{show.plural(found.boundaries, 'boundary', 'boundaries')} in {show.age(found.seconds)}; "
        f"{'left to' if found.planned else 'for'} the {'daemon' if found.worker == 'daemon' else 'backfill job'}",
        err=True,
    )


@history.command(short_help="Show how far planned history is offloaded.")
@click.argument("topic", type=options.TOPIC)
@click.option("--all", "everything", is_flag=True, help=f"All ranges, not only {SHOWN} of those that are not done.")
@options.common
def status(session: Session, topic: TopicName, everything: bool) -> None:
    """Show the planned history of a topic: its progress, who offloads it, and the state of its ranges.

    \b
    planned  nobody works on it yet
    claimed  a daemon or an executor writes its segment
    done     committed, or known to be lost

    \b
    Examples:
      offloadctl history status orders
      offloadctl history status orders --all
      offloadctl history status orders -o json | jq .done_percent
    """
    some = everything or session.structured

    async def asked(client: DaemonClient) -> history_pb2.GetHistoryResponse:
        first, most = (0, RANGES_MAX) if some else ((await client.history(topic)).ranges_done, SHOWN)
        return await client.history(topic, ranges_from=first, ranges_max=most)

    found = session.ask(asked)
    session.tell({"topic": str(topic), **_status_json(found)}, lambda: _show_status(topic, found, some=some))


def _show_status(topic: TopicName, found: history_pb2.GetHistoryResponse, *, some: bool) -> None:
    """Show the progress of a history with its ranges: from the first (`some`), or from the first that is not done."""
    if not found.HasField("plan"):
        show.note(f"{topic} has no planned history: it is offloaded in one sequence, or not at all yet")
        return
    show.facts(_facts(found))
    if found.ranges:
        click.echo()
        TABLE.show(found.ranges)
    shown, total = len(found.ranges), found.plan.ranges
    if shown + (0 if some else found.ranges_done) < total:
        show.note(f"{show.plural(shown, 'range')} of {show.number(total)}; --all shows more")


RANGE = (("BEGIN", "begin"), ("END", "end"), (">ENTRIES", "entries"), (">PAYLOAD", "payload_bytes"))
PLANNED: show.Table[history_pb2.HistoryRange] = show.Table(*RANGE)
TABLE: show.Table[history_pb2.HistoryRange] = show.Table(
    *RANGE,
    ("STATE", "state"),
    ("WHO", lambda one: f"{one.holder} (epoch {one.epoch})" if one.epoch else one.holder or "-"),
    ("SEGMENT", "segment_id"),
    (">TRIES", "tries"),
    ("LAST ERROR", "last_error"),
)


def _done_percent(found: history_pb2.GetHistoryResponse) -> float:
    """Return the percentage of entries that are offloaded or lost."""
    if found.plan.done_ms or not found.plan.entries:
        return 100.0
    return round(100 * (1 - found.left_entries / found.plan.entries), 1)


def _facts(found: history_pb2.GetHistoryResponse) -> list[tuple[str, str]]:
    plan = found.plan
    entries, size = show.plural(plan.entries, "entry", "entries"), show.size(plan.payload_bytes)
    where = f"{show.position_of(plan, 'begin')} to {show.position_of(plan, 'last')}"
    left = f"{show.plural(found.left_entries, 'entry', 'entries')}, {show.size(found.left_bytes)} left"
    done = f"since {show.moment(plan.done_ms)} UTC" if plan.done_ms else left
    lines = [
        ("history", f"{where}: {entries}, {size}"),
        ("done", f"{_done_percent(found)} %, {done}"),
        ("offloaded to", show.position_of(found, "offloaded") or "-"),
        ("live begins at", f"{show.position_of(plan, 'boundary')}{' when history is done' * found.live_waits}"),
        ("order", f"{plan.order} when it was planned at {show.moment(plan.planned_ms)} UTC"),
        ("who", _who(found)),
    ]
    if plan.ranges:
        cost = f"{show.plural(plan.probes, 'probe')} in {show.age(plan.split_seconds)}"
        states = f"{found.ranges_done} done, {found.ranges_claimed} claimed, {found.ranges_planned} planned"
        lines.append(("ranges", f"{states}; of about {show.size(plan.segment_bytes)}, {cost}"))
    if plan.doubtful_ledgers:
        lines.append(("DOUBTFUL", f"lengths of {show.plural(plan.doubtful_ledgers, 'ledger')}: split by entries"))
    if found.error:
        lines.append(("FAILED", found.error))
    return lines


def _who(found: history_pb2.GetHistoryResponse) -> str:
    if found.plan.worker == "daemon":
        return f"daemon {found.owner}" if found.owner else "the topic's next owner"
    if found.plan.holder:
        return f"job {found.plan.holder}, until {show.moment(found.plan.holder_until_ms)} UTC"
    return "a backfill job, which has not begun"


def _status_json(found: history_pb2.GetHistoryResponse) -> dict[str, object]:
    """Return the state of a history as JSON shows it; null for a topic without one."""
    if not found.HasField("plan"):
        return {"history": None}
    return {
        "history": as_json(found.plan, leave_out=("ranges",), nullable=("segment_bytes",)),
        "done_percent": _done_percent(found),
        **picked(found, "left_entries", "left_bytes", "offloaded", "owner", "error", "live_waits"),
        "states": picked(found, "planned=ranges_planned", "claimed=ranges_claimed", "done=ranges_done"),
        "ranges": [as_json(one, nullable=("epoch",)) for one in found.ranges],
    }
