"""`offloadctl`: ask a daemon, over gRPC."""

import click

import offloaderd
from offloaderd.cli import options
from offloaderd.cli.options import Session
from offloaderd.cli.program import EXIT_CODES, LazyCommands, Program

COMMANDS = LazyCommands(
    "offloaderd.cli.offloadctl",
    {
        "backfill:backfill": "Offload a large history with Spark. [daemon, spark]",
        "cache:cache": "Show and warm the disk cache of a daemon.",
        "completion:completion": "Print the script by which a shell completes words.",
        "completion:options": "Show the options of every command.",
        "context:context": "Name daemons, and choose one.",
        "daemons:log_level": "Change the log level of a module for a time.",
        "daemons:reload": "Reload the settings of a daemon.",
        "convert:convert": "Rewrite what is stored: V1, V2, larger segments. [daemon]",
        "daemons:daemons": "Show the daemons of the cluster, and who should have a topic.",
        "daemons:drain": "Hand the topics of a daemon to the others.",
        "status:doctor": "Check the dependencies of the daemon.",
        "drill:drill": "Try the promises on your stores, with faults. [daemon]",
        "segments:explain": "Show where an entry, or a whole topic, is stored.",
        "gc:gc": "Find objects without a reference in the bucket, and delete them.",
        "ledgers:grants": "Forbid and allow the deletion of ledgers from their source.",
        "history:history": "Plan a topic's history, and see how far it is offloaded.",
        "identity:identity": "Show whose data these are, and accept what is refused.",
        "policies:import_broker_conf": "Import the offload settings of a broker.conf.",
        "ledgers:ledgers": "List a topic's ledgers, and delete them from the tier.",
        "metadata:metadata": "Keep what topics need besides their entries. [daemon]",
        "offload:offload": "Offload what a topic holds now.",
        "places:places": "Show where segments lie, and change the first place of a topic.",
        "plan_cost:plan_cost": "Reckon what segment size and age cost. [daemon]",
        "policies:broker": "Set what holds for all topics of the cluster.",
        "policies:namespaces": "Set what holds for the topics of a namespace.",
        "entries:produce": "Append lines to a topic of the embedded store.",
        "quotas:quotas": "Show what namespaces use, and limit it.",
        "entries:read": "Print a topic's entries.",
        "rollback:rollback": "Make what was streamed readable for a stock broker.",
        "entries:seek": "Find an entry by time or number.",
        "segments:segments": "List a topic's segments.",
        "status:status": "Show the daemon and its topics, or one topic.",
        "tables:tables": "Declare tables that follow topics, and see where they stand. [daemon]",
        "status:top": "Watch the topics of a daemon.",
        "segments:verify": "Verify a topic's segments.",
        "policies:topics": "List, enable and disable topics.",  # which puts more commands into it
    },
)


@click.group(
    cls=Program, commands=COMMANDS, epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(offloaderd.__version__, prog_name="offloadctl")
@options.common
def cli(session: Session) -> None:
    """Operate an offloaderd daemon: topics, offloads, segments, entries.

    Topics are written persistent://TENANT/NAMESPACE/TOPIC, TENANT/NAMESPACE/TOPIC or TOPIC (in public/default), as
    in pulsar-admin. Results go to stdout, progress and errors to stderr. Commands with a name in brackets need
    that extra: pip install 'offloaderd[daemon]'.

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
