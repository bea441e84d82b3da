"""`offloadctl doctor`: have a running daemon try everything that it needs."""

from contextlib import aclosing

import click

from offloaderd.cli import checks
from offloaderd.cli.options import common as options
from offloaderd.cli.options.common import Session


@click.command()
@options.common
def doctor(session: Session) -> int:
    """Try ZooKeeper, bookies, the brokers' admin API, the bucket and the clocks, from where the daemon runs.

    One line a check, with what to do; exit code 1 when anything failed. When no daemon can be reached, or none can
    start, use: offloaderd doctor --config PATH.

    \b
    Examples:
      offloadctl doctor
      offloadctl doctor --json | jq -r '.checks[] | select(.verdict == "fail") | .found'
    """
    return session.run(_doctor(session))


async def _doctor(session: Session) -> int:
    async with session.client() as client, aclosing(client.examine(timeout_s=session.timeout_s)) as results:
        return await checks.shown(results, as_json=session.json)
