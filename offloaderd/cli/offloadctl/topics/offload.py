"""`offloadctl topics offload` and `offload-status`, as in pulsar-admin, with what really became of it."""

import click

from offloaderd.cli import show
from offloaderd.cli.offloadctl.topics.manual import as_json, ask, code_of, followed, sentence, timeout_of
from offloaderd.cli.options import common as options
from offloaderd.cli.options.common import Session
from offloaderd.cli.options.quantities import Parsed, with_hint
from offloaderd.client import DaemonClient, Unreachable
from offloaderd.core.model import Position, TopicName
from offloaderd.policy.policies import Field, Kind
from offloaderd.protocol.v1 import admin_pb2

THRESHOLD = Field(name="--size-threshold", option="size-threshold", kind=Kind.BYTES)


LATEST = "latest"
THRESHOLD_SIZE = Parsed(
    "size", THRESHOLD.read, lambda text, error: f"{with_hint(text, error)}; write bytes, or a number with K, M, G or T"
)
"""Bytes that are to stay; 0 is allowed."""
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
@click.option("--dry-run", is_flag=True, help="Do nothing; show what would go, by which method, how large it is.")
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
    one that ends at the position or before; what is left then, and why, is said. A request outlives the daemon that
    took it: the topic's next owner goes on. `topics offload-status` says what became of it.

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


@click.command("offload-status", short_help="Show what became of an offload by hand.")
@click.argument("topic", type=options.TOPIC)
@click.option("--wait", "-w", is_flag=True, help="Return when nothing is under way any more.")
@options.common
def offload_status(session: Session, topic: TopicName, *, wait: bool) -> int:
    """Show what became of the last offload that was asked for by hand: nothing to do, running, done or failed.

    It follows from what is stored, so it holds after a restart, and whichever daemon has the topic now; how much is
    left is known to that daemon alone, which is asked for it. Where nobody asked, it says what goes on by itself, or
    why nothing does. Exit code 1 when it failed, or nothing can be said; 0 when there was nothing to do.

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
    session.tell(as_json(topic, last), f"{show.fact_lines(facts(last))}\n{sentence(topic, last)}")
    return code_of(last)


async def _of_owner(
    session: Session, client: DaemonClient, topic: TopicName, known: admin_pb2.OffloadProgress, *, wait: bool
) -> admin_pb2.OffloadProgress:
    """Ask the daemon that has the topic; what the first one said stands where that cannot be reached."""
    try:
        async with client.at(known.owner_address) as owner:
            return await _asked(session, owner, topic, wait=wait)
    except Unreachable as error:
        click.echo(f"{error.message}: what follows is all that is stored", err=True)
        return known


async def _asked(session: Session, client: DaemonClient, topic: TopicName, *, wait: bool) -> admin_pb2.OffloadProgress:
    reports = client.offload_status(topic, wait=wait, timeout_s=timeout_of(session, wait=wait))
    return await followed(reports, hidden=session.json or not wait)


def facts(last: admin_pb2.OffloadProgress) -> list[tuple[str, str]]:
    """Return what is known, without what is not."""
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
        ("offloaded", offloaded + (f" ({stood} when it was asked)" if last.wanted else "")),
        ("left", left if last.remaining_entries else ""),
        ("method", last.method),
        ("owner", last.owner),
        ("segment", segment if last.segment_id else ""),
    )
    return [(name, value) for name, value in pairs if value]
