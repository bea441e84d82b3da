"""`offloadctl`: ask a daemon, over gRPC."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

import offloaderd
from offloaderd.cli.options import common as options
from offloaderd.cli.program import EXIT_CODES, LazyCommands, Program

if TYPE_CHECKING:
    from offloaderd.cli.options.common import Session

COMMANDS = LazyCommands(
    "offloaderd.cli.offloadctl.history.backfill:backfill",
    "offloaderd.cli.offloadctl.daemons.control:log_level",
    "offloaderd.cli.offloadctl.daemons.control:reload",
    "offloaderd.cli.offloadctl.history.convert:convert",
    "offloaderd.cli.offloadctl.daemons.daemons:daemons",
    "offloaderd.cli.offloadctl.daemons.daemons:drain",
    "offloaderd.cli.offloadctl.daemons.doctor:doctor",
    "offloaderd.cli.offloadctl.daemons.drill:drill",
    "offloaderd.cli.offloadctl.entries.explain:explain",
    "offloaderd.cli.offloadctl.storage.gc:gc",
    "offloaderd.cli.offloadctl.storage.grants:grants",
    "offloaderd.cli.offloadctl.history.history:history",
    "offloaderd.cli.offloadctl.storage.identity:identity",
    "offloaderd.cli.offloadctl.topics.import_broker_conf:import_broker_conf",
    "offloaderd.cli.offloadctl.storage.ledgers:ledgers",
    "offloaderd.cli.offloadctl.topics.manual:offload",
    "offloaderd.cli.offloadctl.storage.plan_cost:plan_cost",
    "offloaderd.cli.offloadctl.topics.policies:broker",
    "offloaderd.cli.offloadctl.topics.policies:namespaces",
    "offloaderd.cli.offloadctl.entries.produce:produce",
    "offloaderd.cli.offloadctl.entries.read:read",
    "offloaderd.cli.offloadctl.history.rollback:rollback",
    "offloaderd.cli.offloadctl.entries.seek:seek",
    "offloaderd.cli.offloadctl.storage.segments:segments",
    "offloaderd.cli.offloadctl.daemons.status:status",
    "offloaderd.cli.offloadctl.daemons.top:top",
    "offloaderd.cli.offloadctl.storage.verify:verify",
    "offloaderd.cli.offloadctl.topics.policies:topics",  # which puts more commands into it
)


@click.group(
    cls=Program,
    commands=COMMANDS,
    epilog=EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(offloaderd.__version__, prog_name="offloadctl")
@options.common
def cli(session: Session) -> None:
    """Operate an offloaderd daemon: topics, offloads, segments, entries.

    Topics are written persistent://TENANT/NAMESPACE/TOPIC, TENANT/NAMESPACE/TOPIC or TOPIC (in public/default), as
    in pulsar-admin. Results go to stdout, progress and errors to stderr.

    \b
    Examples:
      offloadctl status
      offloadctl topics enable orders
      offloadctl offload orders --wait
      offloadctl read orders --from 0:0 --max 5
    """


def main() -> None:
    """Console script."""
    cli(prog_name="offloadctl")


if __name__ == "__main__":
    main()
