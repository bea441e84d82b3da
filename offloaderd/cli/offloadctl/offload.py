"""`offloadctl offload`, `topics offload`, `offload-status`, `pause` and `resume`: manual offload (PIP-76), and none."""

from collections.abc import AsyncGenerator

import click

from offloaderd.cli import options, show
from offloaderd.cli.options import Parsed, Session, last_of, with_hint
from offloaderd.cli.program import FAILED, OK
from offloaderd.cli.progress import Bars
from offloaderd.client import DaemonClient, Unreachable
from offloaderd.core.model import Position, TopicName
from offloaderd.policy.policies import Field, Kind
from offloaderd.protocol.conversion import as_json
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
    """Offload a topic and show the result; returns the exit code."""
    timeout_s = timeout_of(session, wait=wait)
    async with session.client() as client:
        reports = client.offload(
            topic, wait=wait, to=to, size_threshold=size_threshold, dry_run=dry_run, timeout_s=timeout_s
        )
        last = await followed(reports, hidden=session.structured or not wait)
    plan = PLAN.rendered(last.plan) if dry_run and last.plan else ""
    session.tell(_progress_json(topic, last), plan + _sentence(topic, last))
    return _code_of(last)


def timeout_of(session: Session, *, wait: bool) -> float | None:
    """Return the deadline of a call: by default none for one that waits."""
    return session.timeout_s if wait else session.timeout_s or options.CALL_TIMEOUT_S


async def followed(
    reports: AsyncGenerator[admin_pb2.OffloadProgress, None], *, hidden: bool
) -> admin_pb2.OffloadProgress:
    """Show a progress bar until the reports end, and return the last one."""
    most = 0
    with Bars(hidden=hidden) as bars:

        def tell(now: admin_pb2.OffloadProgress) -> None:
            nonlocal most
            most = max(most, now.remaining_entries)
            left = "" if now.done else f"{show.plural(now.remaining_entries, 'entry', 'entries')} left"
            said = f"{left}; {now.message}" if now.message else left
            bars.show("offloading", said, most - now.remaining_entries, most or None)

        return await last_of(reports, tell)


def _code_of(last: admin_pb2.OffloadProgress) -> int:
    """Return the exit code: nothing to do is a success, an unknown outcome is a failure."""
    return FAILED if last.outcome in {"failed", "unknown"} else OK


def _sentence(topic: TopicName, last: admin_pb2.OffloadProgress) -> str:
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


def _progress_json(topic: TopicName, last: admin_pb2.OffloadProgress) -> dict[str, object]:
    return {"topic": str(topic), **as_json(last, leave_out=("owner_address",))}


THRESHOLD = Field(name="--size-threshold", option="size-threshold", kind=Kind.BYTES)
LATEST = "latest"
THRESHOLD_SIZE = Parsed(
    "size", THRESHOLD.read, lambda text, error: f"{with_hint(text, error)}; write bytes, or a number with K, M, G or T"
)
"""Bytes that stay in BookKeeper; 0 is allowed."""
UNTIL = Parsed("position", lambda text: text if text == LATEST else Position.parse(text))


@click.command("offload", short_help="Offload what a topic holds, or a part of it.")
@click.argument("topic", type=options.TOPIC)
@click.option(
    "--size-threshold",
    "-s",
    type=THRESHOLD_SIZE,
    metavar="SIZE",
    help="Leave at most so much in BookKeeper, e.g. 10G. The newest ledgers stay as long as their sizes, that of the "
    "open one included, add up to no more; all older ones go. The open ledger stays in any case. 0: all closed ones.",
)
@click.option(
    "--to",
    type=UNTIL,
    metavar="LEDGER:ENTRY|latest",
    help="Offload everything up to this entry, or all there is (the default).",
)
@click.option("--wait", is_flag=True, help="Return when all of it is in the bucket and committed.")
@click.option(
    "--dry-run", is_flag=True, help="Change nothing; show what would be offloaded, by which method, and its size."
)
@options.common
def offload_topic(
    session: Session,
    topic: TopicName,
    size_threshold: int | None,
    to: Position | str | None,
    *,
    wait: bool,
    dry_run: bool,
) -> int:
    """Offload a topic now, by the method of its policy, whatever the policy's thresholds say.

    Streaming takes everything up to the position. Ledger-based offloading takes whole closed ledgers, up to the last
    one that ends at the position or before, and shows what remains and why. A request outlives the daemon that took it:
    the next owner of the topic continues. `topics offload-status` shows its state.

    \b
    Examples:
      offloadctl topics offload orders
      offloadctl topics offload orders --size-threshold 10G --dry-run
      offloadctl topics offload orders --to 12:499 --wait
    """
    if size_threshold is not None and to is not None:
        raise click.UsageError("--size-threshold and --to exclude each other")
    until = to if isinstance(to, Position) else None
    return session.run(ask(session, topic, wait=wait, to=until, size_threshold=size_threshold, dry_run=dry_run))


@click.command("offload-status", short_help="Show the state of a manual offload.")
@click.argument("topic", type=options.TOPIC)
@click.option("--wait", "-w", is_flag=True, help="Return when no offload is in progress any more.")
@options.common
def offload_status(session: Session, topic: TopicName, *, wait: bool) -> int:
    """Show the state of the last manual offload: nothing to do, running, done or failed.

    The state follows from what is stored, so it survives a restart and a move to another daemon. Only the owner of the
    topic knows how much remains, so it is called as well. Without a manual offload the state of the automatic one is
    shown. Exit code 1 when it failed, or its state is unknown; 0 when there was nothing to do.

    \b
    Examples:
      offloadctl topics offload-status orders
      offloadctl topics offload-status orders --wait --timeout 600
    """
    return session.run(_status(session, topic, wait=wait))


async def _status(session: Session, topic: TopicName, *, wait: bool) -> int:
    async with session.client() as client:
        last = await _asked(session, client, topic, wait=False)
        if last.owner_address:
            last = await _of_owner(session, client, topic, last, wait=wait)
        if wait and not last.done:
            last = await _asked(session, client, topic, wait=True)
    session.tell(_progress_json(topic, last), f"{show.fact_lines(_facts(last))}\n{_sentence(topic, last)}")
    return _code_of(last)


async def _of_owner(
    session: Session, client: DaemonClient, topic: TopicName, known: admin_pb2.OffloadProgress, *, wait: bool
) -> admin_pb2.OffloadProgress:
    """Return the answer of the owner of the topic; or of the first daemon if it is unreachable."""
    try:
        async with client.at(known.owner_address) as owner:
            return await _asked(session, owner, topic, wait=wait)
    except Unreachable as error:
        show.note(f"{error.message}: what follows is all that is stored")
        return known


async def _asked(session: Session, client: DaemonClient, topic: TopicName, *, wait: bool) -> admin_pb2.OffloadProgress:
    reports = client.offload_status(topic, wait=wait, timeout_s=timeout_of(session, wait=wait))
    return await followed(reports, hidden=session.structured or not wait)


def _facts(last: admin_pb2.OffloadProgress) -> list[tuple[str, str]]:
    asked = f"{show.moment(last.asked_ms)} UTC" if last.asked_ms else ""
    left = f"{show.plural(last.remaining_entries, 'entry', 'entries')}, {show.size(last.remaining_bytes)}"
    segment = f"{last.segment_id}, {show.plural(last.segment_entries, 'entry', 'entries')} so far"
    stood = show.position_of(last, "stood") or "nothing"
    offloaded = show.position_of(last, "offloaded") or "nothing"
    pairs = (
        ("outcome", last.outcome),
        ("wanted", last.wanted),
        ("asked", asked + (f" from {last.asked_by}" if last.asked_by else "")),
        ("target", show.position_of(last, "target") or ""),
        ("offloaded", offloaded + (f" ({stood} at the request)" if last.wanted else "")),
        ("left", left if last.remaining_entries else ""),
        ("method", last.method),
        ("owner", last.owner),
        ("segment", segment if last.segment_id else ""),
    )
    return [(name, value) for name, value in pairs if value]


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
    if dry_run and not session.structured:
        show.note("nothing was changed")
