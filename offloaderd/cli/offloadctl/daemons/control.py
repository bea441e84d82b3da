"""`offloadctl reload` and `offloadctl log-level`: change a daemon while it runs."""

import click

from offloaderd.cli import show
from offloaderd.cli.options import common as options
from offloaderd.cli.options.common import Session
from offloaderd.cli.options.quantities import DURATION
from offloaderd.daemon.log.modules import LEVELS
from offloaderd.protocol.message_json import as_json
from offloaderd.protocol.v1 import control_pb2

DEFAULT_FOR = "10m"


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
      offloadctl reload --json | jq -r '.changes[] | select(.needs_restart) | .key'
    """
    found = session.ask(lambda client: client.reload(dry_run=dry_run))
    changes = [as_json(one, kept=("old", "new")) for one in found.changes]
    document = {"daemon_id": found.daemon_id, "dry_run": found.dry_run, "changes": changes}
    session.tell(document, lambda: show_changes(found, dry_run=dry_run))


def show_changes(found: control_pb2.ReloadResponse, *, dry_run: bool) -> None:
    """Show the effect of each changed setting."""
    if not found.changes:
        click.echo(f"{found.daemon_id}: nothing has changed")
        return
    effect = "would take effect" if dry_run else "in effect"
    show.table(
        ("SETTING", "IT WAS", "IT IS", "EFFECT"),
        [(one.key, one.old, one.new, "needs a restart" if one.needs_restart else effect) for one in found.changes],
    )
    if waiting := ", ".join(one.key for one in found.changes if one.needs_restart):
        click.echo(f"restart {found.daemon_id} for {waiting}", err=True)


@click.command("log-level")
@click.argument("module", required=False)
@click.argument("level", type=click.Choice(LEVELS), required=False)
@click.option("--for", "seconds", type=DURATION, default=DEFAULT_FOR, show_default=True, help="For how long.")
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
    ("MODULE", lambda one: one.module or "(all others)"),
    ("LEVEL", "level"),
    ("FOR", "left_s"),
)
