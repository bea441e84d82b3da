"""`offloaderd`: run the daemon, or everything it needs as well."""

import click

import offloaderd
from offloaderd.cli.program import LazyCommands, Program

EXIT_CODES = """\b
Exit codes:
  0    stopped as asked, everything complete
  1    failed, or the drain was not complete in time
  2    wrong usage or configuration
  130  interrupted before the work was done"""

COMMANDS = LazyCommands(
    "offloaderd.cli.offloaderd",
    {
        "check:check_config": "Check the settings and show them.",
        "check:doctor": "Try everything the daemon needs, and say what to do.",
        "drill:drill": "Prove that the bucket's topics would come up again.",
        "serve:health": "Ask the daemon on this machine whether it is alive.",
        "mount:mount": "Bring topics up in another cluster out of the bucket.",
        "rebuild:rebuild": "Rebuild the metadata from the bucket alone.",
        "serve:serve": "Run the daemon.",
        "spark:spark": "Jobs over what is stored: export, tables, verify.",
        "standalone:standalone": "Run everything on this machine.",
        "verify:verify": "Verify everything in the bucket, with read access only.",
    },
)


@click.group(
    cls=Program, commands=COMMANDS, epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(offloaderd.__version__, prog_name="offloaderd")
def cli() -> None:
    """Stream Apache Pulsar's entries to S3 while the ledger is still being written.

    All commands need the extra `daemon`, `spark` and `standalone` the extra of their name:
    pip install 'offloaderd[daemon]'.

    \b
    Examples:
      offloaderd standalone --walkthrough
      offloaderd check-config --config offloaderd.toml
      offloaderd doctor --config offloaderd.toml
      offloaderd serve --config offloaderd.toml
    """


def main() -> None:
    """Console script."""
    cli(prog_name="offloaderd")


if __name__ == "__main__":
    main()
