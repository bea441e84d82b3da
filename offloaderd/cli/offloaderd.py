"""`offloaderd`: run the daemon, or everything it needs as well."""

from __future__ import annotations

import click

import offloaderd
from offloaderd.cli.daemon.check_config import check_config
from offloaderd.cli.daemon.doctor import doctor
from offloaderd.cli.daemon.health import health
from offloaderd.cli.daemon.rebuild import rebuild
from offloaderd.cli.daemon.serve import serve
from offloaderd.cli.daemon.spark import spark
from offloaderd.cli.daemon.standalone import standalone
from offloaderd.cli.daemon.verify import verify
from offloaderd.cli.program import Program

EXIT_CODES = """\b
Exit codes:
  0    stopped as asked, everything complete
  1    failed, or the drain was not complete in time
  2    wrong usage or configuration
  130  interrupted before the work was done"""


@click.group(cls=Program, epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(offloaderd.__version__, prog_name="offloaderd")
def cli() -> None:
    """Stream Apache Pulsar's entries to S3 while the ledger is still being written.

    \b
    Examples:
      offloaderd standalone --walkthrough
      offloaderd check-config --config offloaderd.toml
      offloaderd doctor --config offloaderd.toml
      offloaderd serve --config offloaderd.toml
    """


for command in (serve, standalone, check_config, doctor, health, rebuild, verify, spark):
    cli.add_command(command)


def main() -> None:
    """Console script."""
    cli(prog_name="offloaderd")


if __name__ == "__main__":
    main()
