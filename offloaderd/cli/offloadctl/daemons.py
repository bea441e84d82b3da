"""`offloadctl daemons`, `drain`, `reload` and `log-level`: the daemons of the cluster, and changes while they run."""

import click

from offloaderd.cli import options, show
from offloaderd.cli.options import DURATION, Session, last_of
from offloaderd.client import DaemonClient
from offloaderd.core.errors import NotFound
from offloaderd.core.model import LOG_LEVELS, TopicName
from offloaderd.protocol.conversion import as_json
from offloaderd.protocol.v1 import control_pb2, placement_pb2


@click.command()
@click.argument("topic", type=options.TOPIC, required=False)
@options.common
def daemons(session: Session, topic: TopicName | None) -> None:
    """Show the daemons that share the topics of the cluster, as the contacted daemon knows them.

    With TOPIC they are listed in the order of placement: the first owns the topic, the second takes over when the first
    stops, and so on. TOPICS counts the enabled topics for which a daemon is first.

    \b
    Examples:
      offloadctl daemons
      offloadctl daemons orders
      offloadctl daemons -o json | jq -r '.daemons[] | select(.standing != "working") | .daemon_id'
    """
    found = session.ask(lambda client: client.daemons(topic))
    document: dict[str, object] = {"daemons": [as_json(one) for one in found.daemons]}
    text = TABLE.rendered(found.daemons).rstrip("\n")
    if topic is not None:
        document |= {"topic": str(topic), "owner": found.owner or None, "reason": found.reason or None}
        owner = f"owned by {found.owner}" if found.owner else "nobody owns it"
        text += f"\n\n{topic}: {owner}" + (f"; {found.reason}" if found.reason else "")
    session.tell(document, text)


@click.command()
@click.argument("daemon", required=False)
@click.option("--self", "self_", is_flag=True, help="The contacted daemon, instead of naming one.")
@click.option("--undo", is_flag=True, help="Let it take topics again.")
@click.option("--dry-run", is_flag=True, help="Change nothing; show where the topics would go.")
@options.common
def drain(session: Session, daemon: str | None, *, self_: bool, undo: bool, dry_run: bool) -> None:
    """Make DAEMON hand all its topics to the others, a few at a time, and take no more.

    The open segment of each topic is sealed and committed first, and the next owner waits for it, so the offload pauses
    only for as long as a claim takes. The daemon keeps running and serving reads. --undo or its restart ends the drain;
    interrupting this command does not. SIGTERM drains a daemon as well; this command takes one out of service without
    stopping it. It is refused when no other daemon could take the topics.

    \b
    Examples:
      offloadctl drain offloaderd-2 --dry-run
      offloadctl drain offloaderd-2 --timeout 600
      offloadctl drain --self --undo
    """
    if (daemon is None) is not self_:
        raise click.UsageError("name a daemon, or say --self")
    target, last = session.ask(lambda client: _drain(session, client, daemon, undo=undo, dry_run=dry_run))
    takes = "would take" if dry_run else "takes"
    if undo:
        text = f"{target} {takes} topics again"
    elif dry_run:
        moves = MOVES.rendered(last.moves)
        text = f"{moves}{target} would hand over {show.plural(last.left, 'topic')}; nothing was changed"
    else:
        text = f"{target} has handed all its topics over and takes none until --undo or its restart"
    moved = [as_json(one, kept=("to",)) for one in last.moves]
    session.tell({"daemon_id": target, "left": last.left, "done": last.done, "moves": moved}, text)


TABLE: show.Table[placement_pb2.Daemon] = show.Table(
    ("DAEMON", lambda one: f"{one.daemon_id} (answers)" if one.asked else one.daemon_id),
    ("STANDING", lambda one: f"{one.standing}: {one.impaired}" if one.impaired else one.standing),
    (">TOPICS", "topics"),
    ("ADDRESS", "address"),
    ("VERSION", "version"),
    ("STARTED (UTC)", "started_ms"),
)
MOVES: show.Table[placement_pb2.Move] = show.Table(("TOPIC", "topic"), ("TO", "to"))


async def _drain(
    session: Session, client: DaemonClient, daemon: str | None, *, undo: bool, dry_run: bool
) -> tuple[str, placement_pb2.DrainProgress]:
    """Drain a daemon, whichever one was contacted; returns its id and the last report."""
    found = (await client.daemons()).daemons
    target = next((one for one in found if one.daemon_id == daemon or (daemon is None and one.asked)), None)
    if target is None:
        known = ", ".join(one.daemon_id for one in found)
        raise NotFound(f"no daemon {daemon} is registered", hint=f"there are {known}")
    if target.asked:
        return target.daemon_id, await _follow(session, client, undo=undo, dry_run=dry_run)
    async with client.at(target.address) as other:
        return target.daemon_id, await _follow(session, other, undo=undo, dry_run=dry_run)


async def _follow(session: Session, client: DaemonClient, *, undo: bool, dry_run: bool) -> placement_pb2.DrainProgress:
    """Wait for the end of the drain, writing the number of remaining topics to stderr; returns the last report."""
    left: int | None = None

    def tell(progress: placement_pb2.DrainProgress) -> None:
        nonlocal left
        if not (progress.done or dry_run or left == progress.left):
            show.note(f"{show.plural(progress.left, 'topic')} left")
        left = progress.left

    return await last_of(client.drain(undo=undo, dry_run=dry_run, timeout_s=session.timeout_s), tell)


@click.command()
@click.option("--dry-run", is_flag=True, help="Change nothing; show what would change.")
@options.common
def reload(session: Session, *, dry_run: bool) -> None:
    """Make the daemon read its settings file again, as SIGHUP does, and show the effect of each changed setting.

    Limits, budgets, rolling and other policies, roles, token keys and log levels take effect at once. Changed identity,
    places of stores and sizes of blocks and parts are listed and take effect with a restart. If anything in the file is
    wrong, nothing changes, and all mistakes are listed. The environment overrides the file.

    \b
    Examples:
      offloadctl reload --dry-run
      offloadctl reload -o json | jq -r '.changes[] | select(.needs_restart) | .key'
    """
    found = session.ask(lambda client: client.reload(dry_run=dry_run))
    changes = [as_json(one, kept=("old", "new")) for one in found.changes]
    document = {"daemon_id": found.daemon_id, "dry_run": found.dry_run, "changes": changes}
    session.tell(document, lambda: _show_changes(found, dry_run=dry_run))


def _show_changes(found: control_pb2.ReloadResponse, *, dry_run: bool) -> None:
    if not found.changes:
        click.echo(f"{found.daemon_id}: nothing has changed")
        return
    effect = "would take effect" if dry_run else "in effect"
    show.table(
        ("SETTING", "IT WAS", "IT IS", "EFFECT"),
        [(one.key, one.old, one.new, "needs a restart" if one.needs_restart else effect) for one in found.changes],
    )
    if waiting := ", ".join(one.key for one in found.changes if one.needs_restart):
        show.note(f"restart {found.daemon_id} for {waiting}")


@click.command("log-level")
@click.argument("module", required=False)
@click.argument("level", type=click.Choice(LOG_LEVELS), required=False)
@click.option("--for", "seconds", type=DURATION, default="10m", show_default=True, help="For how long.")
@click.option("--reset", is_flag=True, help="Reset MODULE to the level of the settings.")
@options.common
def log_level(session: Session, module: str | None, level: str | None, *, seconds: float, reset: bool) -> None:
    """Set the log level of MODULE and all below it for a time. Without MODULE the levels are shown.

    MODULE is a package or module of offloaderd (topic, topic.tailer, api.gate) or a library (kazoo, botocore,
    aiobotocore, grpc, aiohttp, asyncio, urllib3). A permanent level is set by [log] levels in the settings.

    \b
    Examples:
      offloadctl log-level
      offloadctl log-level topic.tailer debug --for 30m
      offloadctl log-level topic.tailer --reset
    """
    if (module is None and (level is not None or reset)) or (module is not None and (level is None) is not reset):
        raise click.UsageError("give MODULE and LEVEL, or MODULE and --reset, or nothing")
    found = session.ask(
        lambda client: client.log_levels() if module is None else client.set_log_level(module, level or "", seconds)
    )
    session.tell({"levels": [as_json(one) for one in found]}, lambda: LEVELS_TABLE.show(found))


LEVELS_TABLE: show.Table[control_pb2.ModuleLevel] = show.Table(
    ("MODULE", lambda one: one.module or "(all others)"), ("LEVEL", "level"), ("FOR", "left_s")
)
