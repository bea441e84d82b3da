"""`offloadctl read`: write entries of any tier to standard output."""

import sys
from typing import Unpack

import click

from offloaderd.cli.offloadctl.entries.read_styles import (
    FORMATS,
    TIERS,
    Encoder,
    MessageEncoder,
    encoder,
    held_back,
    message_encoder,
)
from offloaderd.cli.offloadctl.entries.seek import NUMBER, one_goal
from offloaderd.cli.options import common as options
from offloaderd.cli.options.common import Session
from offloaderd.cli.options.quantities import MOMENT
from offloaderd.client import Wanted
from offloaderd.client.resume import RESUME_S
from offloaderd.core.errors import InvalidInput
from offloaderd.core.model import Position, TopicName
from offloaderd.core.read_options import Transactions


@click.command()
@click.argument("topic", type=options.TOPIC)
@click.option("--from", "first", type=options.POSITION, metavar="POS", help="First entry. [default: the oldest]")
@click.option("--from-time", "time", type=MOMENT, metavar="TIME", help="Begin with the first that is not older.")
@click.option("--from-index", "index", type=NUMBER, metavar="N", help="Begin with the message of this index (PIP-70).")
@click.option(
    "--from-sequence", "sequence", type=NUMBER, metavar="N", help="Begin with the topic's entry N, from 0 on."
)
@click.option("--to", "last", type=options.POSITION, metavar="POS", help="Last entry, inclusive. [default: the newest]")
@click.option("--follow", "-f", is_flag=True, help="Continue with new entries as they arrive.")
@click.option("--max", "entries_max", type=click.IntRange(min=1), metavar="N", help="Stop after this many entries.")
@click.option(
    "--format",
    "style",
    type=click.Choice(FORMATS),
    default="text",
    show_default=True,
    help="text: one entry a line. hex: position and bytes. raw: the bytes, back to back. json: one line an entry, "
    "with position and tier (base64 where it is not UTF-8).",
)
@click.option("--messages", is_flag=True, help="Unpack entries into messages, as a consumer would be given them.")
@click.option(
    "--transactions",
    type=click.Choice([kind.value for kind in Transactions]),
    default=Transactions.COMMITTED.value,
    show_default=True,
    help="With --messages. committed: those that a consumer is given. all: aborted and open ones and markers as well, "
    "and what they are.",
)
@click.option("--client-bytes", is_flag=True, help="Leave out the metadata that brokers put before entries (PIP-70).")
@click.option("--priority", "read_priority", type=options.PRIORITY, help="tiered-storage-first or bookkeeper-first.")
@options.common
def read(
    session: Session,
    /,
    topic: TopicName,
    *,
    style: str,
    messages: bool,
    transactions: str,
    time: int | None,
    index: int | None,
    sequence: int | None,
    **wanted: Unpack[Wanted],
) -> None:
    """Print the entries of a topic from one position to another, both inclusive, in order.

    A position is LEDGER:ENTRY; --from-time and the like begin where offloadctl seek finds them. Entries come from the
    daemon's buffer, the bucket or the ledger source, whichever has them. On a terminal, text shows control characters
    as escapes; elsewhere it gives the bytes as they are.

    With --messages, batches are unpacked, contents uncompressed and chunks joined. Messages that cannot be unpacked,
    such as encrypted ones, come as they are stored, and say so. --max counts entries, not messages. Messages of
    aborted transactions are left out, and nothing is printed from the first message of an open transaction on, as
    consumers are given it: --follow waits there, else the command ends and says so. --transactions all prints all.

    \b
    Examples:
      offloadctl read orders
      offloadctl read orders --from 12:0 --to 12:99 --json
      offloadctl read orders --follow --max 10
      offloadctl read orders --from-time 2026-11-21T10:00:00Z --messages
      offloadctl read orders --format hex | less
      offloadctl read orders --messages --json | jq -r .key
    """
    first, last = wanted["first"], wanted["last"]
    wanted["seek"] = one_goal({"time": time, "index": index, "sequence": sequence})
    if first is not None and wanted["seek"] is not None:
        raise click.UsageError("--from excludes --from-time, --from-index and --from-sequence")
    if isinstance(first, Position) and isinstance(last, Position) and first > last:
        raise InvalidInput(f"the range {first}..{last} is reversed", hint="--from must not be after --to")
    if transactions != Transactions.COMMITTED and not messages:
        raise click.UsageError("--transactions needs --messages: entries are printed whatever transaction they are in")
    style, terminal = "json" if session.json else style, sys.stdout.isatty()
    if messages:
        encode, kind = message_encoder(style, terminal=terminal), Transactions(transactions)
        session.run(_read_messages(session, topic, wanted, encode, kind))
    else:
        session.run(_read(session, topic, wanted, encoder(style, terminal=terminal)))


async def _read(session: Session, topic: TopicName, wanted: Wanted, encode: Encoder) -> None:
    output = sys.stdout.buffer
    async with session.client() as client:
        # With --follow the read continues at another daemon; a read of a range ends with the error.
        resume_s = RESUME_S if wanted["follow"] else 0
        async for answer in client.read(topic, timeout_s=session.timeout_s, resume_s=resume_s, **wanted):
            output.writelines(encode(answer.batch, TIERS.get(answer.tier, "unknown")))
            output.flush()


async def _read_messages(
    session: Session, topic: TopicName, wanted: Wanted, encode: MessageEncoder, transactions: Transactions
) -> None:
    output, timeout_s = sys.stdout.buffer, session.timeout_s
    async with session.client() as client:
        async for answer in client.read_messages(topic, timeout_s=timeout_s, transactions=transactions, **wanted):
            output.writelines(map(encode, answer.messages))
            output.flush()
            if answer.HasField("held_back"):
                click.echo(held_back(answer.held_back), err=True)
