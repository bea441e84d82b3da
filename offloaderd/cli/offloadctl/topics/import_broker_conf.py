"""`offloadctl import-broker-conf`: take over the offload configuration of a broker."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from offloaderd.cli import show
from offloaderd.cli.offloadctl.topics.policies import BROKER, changed
from offloaderd.cli.options import common as options
from offloaderd.cli.options.common import Session
from offloaderd.cli.program import OK, USAGE
from offloaderd.core.model import OffloadMethod
from offloaderd.policy import broker_conf
from offloaderd.policy.broker_conf import Import
from offloaderd.policy.policies import shown
from offloaderd.protocol.message_json import picked
from offloaderd.protocol.v1 import policy_pb2

CONF_BYTES_MAX = 10 << 20
"""A broker.conf has some 100 kB."""


@click.command("import-broker-conf")
@click.argument("conf", metavar="BROKER_CONF", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--apply", is_flag=True, help="Set the policies at the broker level. Without it nothing is changed.")
@click.option(
    "--method",
    type=click.Choice([str(one) for one in OffloadMethod]),
    help="The method to set. [default: ledger-based, as brokers offload]",
)
@options.common
def import_broker_conf(session: Session, conf: Path, apply: bool, method: str | None) -> int:
    """Show for every offload key of a broker.conf how it is used here, or why not.

    Policies are set at the broker level with --apply; without it no daemon is called. Settings of the daemon are shown
    as lines for its settings file. Secrets are neither copied nor shown. Mistakes are shown with their lines, and
    nothing is set then.

    \b
    Examples:
      offloadctl import-broker-conf /pulsar/conf/broker.conf
      offloadctl import-broker-conf broker.conf --method streaming --apply
    """
    if conf.stat().st_size > CONF_BYTES_MAX:
        raise click.BadParameter(f"{conf} is larger than {show.size(CONF_BYTES_MAX)}: it is no broker.conf")
    found = broker_conf.read(conf.read_text(encoding="utf-8", errors="replace"))
    if method is not None:
        found.policies = replace(found.policies, method=OffloadMethod(method))
        found.notes = [note for note in found.notes if not note.startswith("method = ")]
    done = None
    if apply and not found.mistakes:
        policies = policy_pb2.OffloadPolicies(**found.policies.set_values())
        done = session.ask(lambda client: client.set_policies(BROKER, policies), timeout_s=options.PATTERN_TIMEOUT_S)
    show_import(session, found, done)
    return USAGE if found.mistakes else OK


def show_import(session: Session, found: Import, done: policy_pb2.ChangePoliciesResponse | None) -> None:
    """Show the keys, and what was changed if they were applied."""
    if session.json:
        show.document({**import_json(found), "applied": done is not None})
        return
    show.table(
        ["LINE", "KEY", "VALUE", "USED AS"],
        [(str(one.line), one.key, one.value, one.used_as or f"- ({one.why})") for one in found.verdicts],
    )
    if found.policies.set_values():
        click.echo("\nPolicies of the broker level:")
        show.facts((f"  {name}", shown(name, value)) for name, value in found.policies.set_values().items())
    if found.settings:
        click.echo("\nFor the daemon's settings file:")
        for line in broker_conf.toml(found.settings):
            click.echo(f"  {line}".rstrip())
    click.echo()
    for note in found.notes:
        click.echo(f"note: {note}", err=True)
    for mistake in found.mistakes:
        click.echo(f"mistake: {mistake}", err=True)
    if done is not None:
        changed(session, BROKER, done, dry_run=False, verb="set")
    elif not found.mistakes:
        click.echo("nothing was changed; --apply sets the policies", err=True)


def import_json(found: Import) -> dict[str, Any]:
    """Return the keys of a broker.conf as JSON shows them."""
    return {
        "keys": [
            picked(one, "line", "key", "value", "used_as", "why_not=why", kept=("value",)) for one in found.verdicts
        ],
        "policies": dict(found.policies.set_values()),
        "settings": found.settings,
        "notes": found.notes,
        "mistakes": found.mistakes,
    }
