"""`offloadctl read`: entries, wherever they are, on standard output."""

from __future__ import annotations

import base64
import sys
from typing import TYPE_CHECKING

import click

from offloaderd.cli import show
from offloaderd.cli.ctl import options
from offloaderd.errors import InvalidInput
from offloaderd.rpc.v1 import common_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from offloaderd.cli.ctl.options import Session
    from offloaderd.model import Position, ReadPriority, TopicName

    Encoder = Callable[[common_pb2.EntryBatch, str], Iterator[bytes]]

TIERS = {common_pb2.TIER_BUFFER: "buffer", common_pb2.TIER_SOURCE: "source", common_pb2.TIER_OBJECTS: "objects"}
FORMATS = ("text", "hex", "raw", "json")


@click.command(short_help="Print a topic's entries.")
@click.argument("topic", type=options.TOPIC)
@click.option("--from", "first", type=options.POSITION, metavar="POS", help="First entry. [default: the oldest]")
@click.option("--to", "last", type=options.POSITION, metavar="POS", help="Last entry, inclusive. [default: the newest]")
@click.option("--follow", "-f", is_flag=True, help="Go on with new entries as they come.")
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
@click.option("--priority", type=options.PRIORITY, help="tiered-storage-first or bookkeeper-first.")
@options.common
def read(
    session: Session, /, topic: TopicName, *, style: str, first: Position | None, last: Position | None,
    follow: bool, entries_max: int | None, priority: ReadPriority | None,
) -> int:  # fmt: skip
    """Print the entries of a topic from one position to another, both inclusive, in order.

    A position is LEDGER:ENTRY. Entries come from the daemon's buffer, the bucket or the ledger source, whichever
    has them. On a terminal, text shows control characters as escapes; elsewhere it gives the bytes as they are.

    \b
    Examples:
      offloadctl read orders
      offloadctl read orders --from 12:0 --to 12:99 --json
      offloadctl read orders --follow --max 10
      offloadctl read orders --format hex | less
    """
    if first is not None and last is not None and first > last:
        raise InvalidInput(f"the range {first}..{last} is reversed", hint="--from must not be after --to")
    encode = encoder("json" if session.json else style, terminal=sys.stdout.isatty())
    return session.run(_read(session, topic, encode, first, last, follow=follow, limit=entries_max, priority=priority))


async def _read(
    session: Session,
    topic: TopicName,
    encode: Encoder,
    first: Position | None,
    last: Position | None,
    *,
    follow: bool,
    limit: int | None,
    priority: ReadPriority | None,
) -> None:
    output = sys.stdout.buffer
    async with session.client() as client:
        answers = client.read(
            topic,
            first=first,
            last=last,
            follow=follow,
            entries_max=limit or 0,
            read_priority=priority,
            timeout_s=session.timeout_s,
        )
        async for answer in answers:
            output.writelines(encode(answer.batch, TIERS.get(answer.tier, "unknown")))
            output.flush()


def encoder(style: str, *, terminal: bool) -> Encoder:
    """Return the function that turns a batch into output."""
    styles: dict[str, Encoder] = {
        "text": as_safe_text if terminal else as_text,
        "hex": as_hex,
        "raw": as_raw,
        "json": as_json,
    }
    return styles[style]


def as_text(batch: common_pb2.EntryBatch, tier: str) -> Iterator[bytes]:
    """One entry a line, bytes untouched."""
    for payload in batch.payloads:
        yield payload
        yield b"\n"


def as_safe_text(batch: common_pb2.EntryBatch, tier: str) -> Iterator[bytes]:
    """One entry a line; what could move the cursor or is no UTF-8 is shown as an escape."""
    for payload in batch.payloads:
        text = payload.decode("utf-8", "backslashreplace")
        if not text.isprintable():
            text = "".join(
                char if char.isprintable() or char == "\t" else char.encode("unicode_escape").decode() for char in text
            )
        yield f"{text}\n".encode()


def as_hex(batch: common_pb2.EntryBatch, tier: str) -> Iterator[bytes]:
    """Position and bytes in hexadecimal."""
    for entry_id, payload in enumerate(batch.payloads, batch.first_entry_id):
        yield f"{batch.ledger_id}:{entry_id}\t{payload.hex()}\n".encode()


def as_raw(batch: common_pb2.EntryBatch, tier: str) -> Iterator[bytes]:
    """The bytes and nothing else."""
    yield from batch.payloads


def as_json(batch: common_pb2.EntryBatch, tier: str) -> Iterator[bytes]:
    """One JSON object a line: position, tier, bytes, and the payload as text or base64."""
    for entry_id, payload in enumerate(batch.payloads, batch.first_entry_id):
        try:
            text, encoding = payload.decode(), "utf-8"
        except UnicodeDecodeError:
            text, encoding = base64.b64encode(payload).decode(), "base64"
        line = {
            "ledger_id": batch.ledger_id,
            "entry_id": entry_id,
            "tier": tier,
            "bytes": len(payload),
            "encoding": encoding,
            "payload": text,
        }
        yield show.json_line(line).encode()
