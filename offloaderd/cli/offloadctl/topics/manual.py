"""`offloadctl offload`: PIP-76's manual offload, and what all ways to offload by hand share.

`topics offload` and `topics offload-status` (offload.py) ask the same calls and show the same answers.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import click

from offloaderd.cli import show
from offloaderd.cli.options import common as options
from offloaderd.cli.options.common import Session
from offloaderd.cli.program import FAILED, OK
from offloaderd.cli.progress import Bars
from offloaderd.core.errors import OffloaderError
from offloaderd.core.model import Position, TopicName
from offloaderd.protocol import message_json
from offloaderd.protocol.v1 import admin_pb2


@click.command()
@click.argument("topic", type=options.TOPIC)
@click.option("--wait", is_flag=True, help="Return when all of it is in the bucket and committed.")
@options.common
def offload(session: Session, topic: TopicName, *, wait: bool) -> int:
    """Close the topic's open segment, so that everything confirmed by now is offloaded.

    With --wait a progress bar runs on stderr until it is. Interrupting the wait does not stop the offload. It is the
    short form of `offloadctl topics offload`, which takes a part of a topic as well.

    \b
    Examples:
      offloadctl offload orders
      offloadctl offload orders --wait --timeout 120
    """
    return session.run(ask(session, topic, wait=wait))


async def ask(
    session: Session,
    topic: TopicName,
    *,
    wait: bool,
    to: Position | None = None,
    size_threshold: int | None = None,
    dry_run: bool = False,
) -> int:
    """Have a topic offloaded and show what comes of it; returns the exit code."""
    async with session.client() as client:
        reports = client.offload(
            topic,
            wait=wait,
            to=to,
            size_threshold=size_threshold,
            dry_run=dry_run,
            timeout_s=timeout_of(session, wait=wait),
        )
        last = await followed(reports, hidden=session.json or not wait)
    plan = PLAN.rendered(last.plan) if dry_run and last.plan else ""
    session.tell(as_json(topic, last), plan + sentence(topic, last))
    return code_of(last)


def timeout_of(session: Session, *, wait: bool) -> float | None:
    """Return the deadline of a call: none for one that waits, unless it was given."""
    return session.timeout_s if wait else session.timeout_s or options.CALL_TIMEOUT_S


async def followed(
    reports: AsyncGenerator[admin_pb2.OffloadProgress, None], *, hidden: bool
) -> admin_pb2.OffloadProgress:
    """Return the last report, with a bar on a terminal meanwhile."""
    last: admin_pb2.OffloadProgress | None = None
    most = 0
    with Bars(hidden=hidden) as bars:
        async with aclosing(reports):
            async for last in reports:
                most = max(most, last.remaining_entries)
                left = "" if last.done else f"{show.plural(last.remaining_entries, 'entry', 'entries')} left"
                said = f"{left}; {last.message}" if last.message else left
                bars.show("offloading", said, most - last.remaining_entries, most or None)
    if last is None:
        raise OffloaderError("the daemon ended the call without an answer")
    return last


def code_of(last: admin_pb2.OffloadProgress) -> int:
    """Return the exit code: nothing to do is no failure, not to know what became of it is."""
    return FAILED if last.outcome in {"failed", "unknown"} else OK


def sentence(topic: TopicName, last: admin_pb2.OffloadProgress) -> str:
    """Return the result in one line."""
    target, offloaded = show.position_of(last, "target"), show.position_of(last, "offloaded")
    left = f"{show.plural(last.remaining_entries, 'entry', 'entries')} ({show.size(last.remaining_bytes)})"
    reason = f": {last.reason}" if last.reason else ""
    match last.outcome:
        case "planned":
            return f"would offload {topic} up to {target}, {left}" + (f"; not more, as {last.reason}" if reason else "")
        case "nothing":
            return f"nothing to offload of {topic}{reason}" + (f" (offloaded up to {offloaded})" if offloaded else "")
        case "failed":
            return f"failed to offload {topic} up to {target}{reason}"
        case "unknown":
            return f"nothing is known of an offload of {topic}{reason}"
        case "done":
            moment = f" at {show.moment(last.done_ms)} UTC" if last.done_ms else ""
            return f"offloaded {topic} up to {target}{moment}" + (f"; not more, as {last.reason}" if reason else "")
    if last.owner_address:
        return f"offloading {topic} up to {target}: {last.message}"
    failure = f"; it does not move: {last.message}" if last.message else ""
    return f"offloading {topic} up to {target}: {left} to go{failure}"


PLAN: show.Table[admin_pb2.PlannedOffload] = show.Table(
    ("LEDGER", "ledger_id"),
    ("ENTRIES", lambda one: f"{one.first_entry_id}..{one.last_entry_id}"),
    (">COUNT", lambda one: show.number(one.last_entry_id - one.first_entry_id + 1)),
    (">SIZE", "payload_bytes"),
    ("METHOD", "method"),
    ("BY ITSELF", lambda one: "yes" if one.due else "no"),
)


def as_json(topic: TopicName, last: admin_pb2.OffloadProgress) -> dict[str, object]:
    """Return the result as JSON shows it."""
    return {"topic": str(topic), **message_json.as_json(last, leave_out=("owner_address",))}
