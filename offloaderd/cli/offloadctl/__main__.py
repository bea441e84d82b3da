"""`offloadctl`: ask a daemon, over gRPC."""

import click

import offloaderd
from offloaderd.cli.options import common as options
from offloaderd.cli.options.common import Session
from offloaderd.cli.program import EXIT_CODES, LazyCommands, Program

COMMANDS = LazyCommands(
    "offloaderd.cli.offloadctl",
    {
        "history.backfill:backfill": "Offload a large history with Spark.",
        "daemons.control:log_level": "Change the log level of a module for a time.",
        "daemons.control:reload": "Reload the settings of a daemon.",
        "history.convert:convert": "Rewrite what is stored: V1, V2, larger segments.",
        "daemons.daemons:daemons": "Show the daemons of the cluster, and who should have a topic.",
        "daemons.daemons:drain": "Hand the topics of a daemon to the others.",
        "daemons.status:doctor": "Check the dependencies of the daemon.",
        "daemons.drill:drill": "Try the promises on your stores, with faults injected.",
        "entries.explain:explain": "Show where an entry is stored.",
        "storage.gc:gc": "Find what nobody refers to in the bucket, and delete it.",
        "storage.ledgers:grants": "Forbid and allow the deletion of ledgers from their source.",
        "history.history:history": "Plan a topic's history, and see how far it is offloaded.",
        "storage.identity:identity": "Show whose data these are, and accept what is refused.",
        "topics.import_broker_conf:import_broker_conf": "Import the offload settings of a broker.conf.",
        "storage.ledgers:ledgers": "List a topic's ledgers, and delete them from the tier.",
        "topics.offload:offload": "Offload what a topic holds now.",
        "storage.plan_cost:plan_cost": "Reckon what segment size and age cost.",
        "topics.policies:broker": "Set what holds for all topics of the cluster.",
        "topics.policies:namespaces": "Set what holds for the topics of a namespace.",
        "entries.produce:produce": "Append lines to a topic of the embedded store.",
        "entries.read:read": "Print a topic's entries.",
        "history.rollback:rollback": "Make what was streamed readable for a stock broker.",
        "entries.seek:seek": "Find an entry by time or number.",
        "storage.segments:segments": "List a topic's segments.",
        "daemons.status:status": "Show the daemon and its topics, or one topic.",
        "daemons.top:top": "Watch the topics of a daemon.",
        "storage.segments:verify": "Verify a topic's segments.",
        "topics.policies:topics": "List, enable and disable topics.",  # which puts more commands into it
    },
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
