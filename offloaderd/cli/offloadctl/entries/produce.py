"""`offloadctl produce`: append the lines of a file to a topic of the daemon's own ledger store."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import click

from offloaderd.cli import show
from offloaderd.cli.options import common as options
from offloaderd.cli.options.common import Session
from offloaderd.cli.progress import Bars
from offloaderd.core.clock import SystemClock
from offloaderd.core.model import TopicName
from offloaderd.protocol.v1 import ledgers_pb2
from offloaderd.standalone.dataset import Lines


@dataclass(slots=True)
class Total:
    """Totals of sent bytes and acknowledged entries."""

    sent_bytes: int = 0
    entries: int = 0
    last: str | None = None


@click.command()
@click.argument("topic", type=options.TOPIC)
@click.argument("file", default="-", type=click.Path(allow_dash=True, exists=True, dir_okay=False))
@click.option("--roll", is_flag=True, help="Close the ledger afterwards.")
@options.common
def produce(session: Session, topic: TopicName, *, file: str, roll: bool) -> None:
    """Append every line of FILE (standard input when it is left out or `-`) as one entry.

    Empty lines are skipped. Entries that are counted as appended survive a crash of the daemon and of the machine. Only
    a daemon with an embedded ledger store, as standalone has, offers this; to a Pulsar topic, produce with Pulsar.

    \b
    Examples:
      offloadctl produce orders orders.ndjson
      tail -f app.log | offloadctl produce logs
    """
    session.run(_produce(session, topic, Lines(file), roll=roll))


async def _produce(session: Session, topic: TopicName, lines: Lines, *, roll: bool) -> None:
    clock = SystemClock()
    started = clock.monotonic()
    total = Total()
    async with session.client() as client:
        with Bars(hidden=session.json) as bars:

            def answered(answer: ledgers_pb2.AppendResponse) -> None:
                total.entries += answer.entry_count
                total.last = show.position_of(answer, "last") or total.last
                said = f"{show.plural(total.entries, 'entry', 'entries')}, {show.size(total.sent_bytes)}"
                bars.show("appending", said, total.sent_bytes, lines.total_bytes)

            await client.append(topic, counted(lines, total), answered, timeout_s=session.timeout_s)
        if roll:
            await client.roll(topic)
    seconds = clock.monotonic() - started
    skipped = f"; {show.plural(lines.skipped, 'empty line')} skipped" if lines.skipped else ""
    payload = total.sent_bytes - total.entries
    session.tell(
        {
            "topic": str(topic),
            "entries": total.entries,
            "payload_bytes": payload,
            "skipped_empty_lines": lines.skipped,
            "last": total.last,
            "seconds": round(seconds, 3),
        },
        f"appended {show.plural(total.entries, 'entry', 'entries')} ({show.size(payload)}) to {topic} in "
        f"{show.age(seconds)}, last position {total.last or '-'}{skipped}",
    )


async def counted(lines: Lines, total: Total) -> AsyncIterator[list[bytes]]:
    """Yield the batches and count their bytes, line feeds included, as the file has them."""
    async for batch in lines.batches():
        total.sent_bytes += sum(map(len, batch)) + len(batch)
        yield batch
