"""`offloadctl`: ask a daemon, over gRPC."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

import offloaderd
from offloaderd.cli.ctl import (
    backfill,
    control,
    convert,
    daemons,
    doctor,
    drill,
    explain,
    gc,
    grants,
    history,
    identity,
    import_broker_conf,
    ledgers,
    offload,
    options,
    plan_cost,
    policies,
    produce,
    read,
    rollback,
    seek,
    segments,
    status,
    top,
    topics,
    verify,
)
from offloaderd.cli.program import EXIT_CODES, Program

if TYPE_CHECKING:
    from offloaderd.cli.ctl.options import Session


@click.group(cls=Program, epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
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


for command in (
    topics.topics,
    status.status,
    top.top,
    offload.offload,
    segments.segments,
    explain.explain,
    verify.verify,
    read.read,
    seek.seek,
    produce.produce,
    doctor.doctor,
    drill.drill,
    daemons.daemons,
    daemons.drain,
    control.reload_settings,
    control.log_level,
    gc.gc,
    ledgers.ledgers,
    plan_cost.plan_cost,
    grants.grants,
    identity.identity,
    history.history,
    backfill.backfill,
    convert.convert,
    rollback.rollback,
    policies.broker,
    policies.namespaces,
    import_broker_conf.import_broker_conf,
):
    cli.add_command(command)


def main() -> None:
    """Console script."""
    cli(prog_name="offloadctl")


if __name__ == "__main__":
    main()
