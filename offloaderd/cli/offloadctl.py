"""`offloadctl`: ask a daemon, over gRPC."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

import offloaderd
from offloaderd.cli.ctl import options
from offloaderd.cli.program import EXIT_CODES, LazyCommands, Program

if TYPE_CHECKING:
    from offloaderd.cli.ctl.options import Session

PLAIN = (
    *("backfill", "convert", "daemons", "doctor", "drill", "explain", "gc", "grants", "history", "identity", "ledgers"),
    *("offload", "produce", "read", "rollback", "seek", "segments", "status", "top", "verify"),
)
"""Commands whose modules have their names."""
COMMANDS = {name: f"ctl.{name}:{name}" for name in PLAIN} | {
    "broker": "ctl.policies:broker",
    "drain": "ctl.daemons:drain",
    "import-broker-conf": "ctl.import_broker_conf:import_broker_conf",
    "log-level": "ctl.control:log_level",
    "namespaces": "ctl.policies:namespaces",
    "plan-cost": "ctl.plan_cost:plan_cost",
    "reload": "ctl.control:reload_settings",
    "topics": "ctl.policies:topics",  # which puts more commands into it
}


@click.group(
    cls=Program,
    commands=LazyCommands(COMMANDS),
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
