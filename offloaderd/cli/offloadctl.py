"""`offloadctl`: ask a daemon, over gRPC."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

import offloaderd
from offloaderd.cli.ctl import options
from offloaderd.cli.program import EXIT_CODES, LazyCommands, Program

if TYPE_CHECKING:
    from offloaderd.cli.ctl.options import Session

COMMANDS = LazyCommands(
    "offloaderd.cli.ctl.backfill:backfill",
    "offloaderd.cli.ctl.control:log_level",
    "offloaderd.cli.ctl.control:reload",
    "offloaderd.cli.ctl.convert:convert",
    "offloaderd.cli.ctl.daemons:daemons",
    "offloaderd.cli.ctl.daemons:drain",
    "offloaderd.cli.ctl.doctor:doctor",
    "offloaderd.cli.ctl.drill:drill",
    "offloaderd.cli.ctl.explain:explain",
    "offloaderd.cli.ctl.gc:gc",
    "offloaderd.cli.ctl.grants:grants",
    "offloaderd.cli.ctl.history:history",
    "offloaderd.cli.ctl.identity:identity",
    "offloaderd.cli.ctl.import_broker_conf:import_broker_conf",
    "offloaderd.cli.ctl.ledgers:ledgers",
    "offloaderd.cli.ctl.offload:offload",
    "offloaderd.cli.ctl.plan_cost:plan_cost",
    "offloaderd.cli.ctl.policies:broker",
    "offloaderd.cli.ctl.policies:namespaces",
    "offloaderd.cli.ctl.produce:produce",
    "offloaderd.cli.ctl.read:read",
    "offloaderd.cli.ctl.rollback:rollback",
    "offloaderd.cli.ctl.seek:seek",
    "offloaderd.cli.ctl.segments:segments",
    "offloaderd.cli.ctl.status:status",
    "offloaderd.cli.ctl.top:top",
    "offloaderd.cli.ctl.verify:verify",
    "offloaderd.cli.ctl.policies:topics",  # which puts more commands into it
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
