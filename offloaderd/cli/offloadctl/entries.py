"""`offloadctl read`, `seek` and `produce`: print the entries of any tier, find one, append some."""

import base64
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import click

from offloaderd.cli import forms, options, show
from offloaderd.cli.options import MOMENT, Session, ago_ms, duration_param, from_command_line
from offloaderd.cli.program import NOT_FOUND, OK
from offloaderd.cli.progress import Bars
from offloaderd.cli.settings import CONFIG, settings_at
from offloaderd.client import Wanted
from offloaderd.client.channel import RESUME_S
from offloaderd.client.reading import Bucket
from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import InvalidInput
from offloaderd.core.model import EntryBatch, Position, TopicName
from offloaderd.core.read_options import Goal, SeekKind, Transactions
from offloaderd.protocol.conversion import picked, position_text
from offloaderd.protocol.v1 import common_pb2, ledgers_pb2, read_pb2
from offloaderd.standalone.dataset import Lines

Encoder = Callable[[EntryBatch, str], Iterator[bytes]]
MessageEncoder = Callable[[read_pb2.Message], bytes]

TIERS = {common_pb2.TIER_BUFFER: "buffer", common_pb2.TIER_SOURCE: "source", common_pb2.TIER_OBJECTS: "objects"}
FORMATS = ("text", "hex", "raw", "json")


def encoder(style: str, *, terminal: bool) -> Encoder:
    """Return the function that turns a batch into output."""
    styles: dict[str, Encoder] = {
        "text": _safe_text if terminal else _text,
        "hex": _hex,
        "raw": lambda batch, _: iter(batch.payloads),
        "json": _json,
    }
    return styles[style]


def _text(batch: EntryBatch, _tier: str) -> Iterator[bytes]:
    """One entry a line, bytes untouched."""
    for payload in batch.payloads:
        yield payload
        yield b"\n"


def _safe_text(batch: EntryBatch, _tier: str) -> Iterator[bytes]:
    """One entry a line; control characters and bytes that are not UTF-8 are shown as escapes."""
    for payload in batch.payloads:
        yield f"{_printable(payload)}\n".encode()


def _hex(batch: EntryBatch, _tier: str) -> Iterator[bytes]:
    """Position and bytes in hexadecimal."""
    for entry_id, payload in enumerate(batch.payloads, batch.first_entry_id):
        yield f"{batch.ledger_id}:{entry_id}\t{payload.hex()}\n".encode()


def _json(batch: EntryBatch, tier: str) -> Iterator[bytes]:
    """One JSON object a line: position, tier, bytes, and the payload as text or base64."""
    for entry_id, payload in enumerate(batch.payloads, batch.first_entry_id):
        line = {"ledger_id": batch.ledger_id, "entry_id": entry_id, "tier": tier, **_value(payload)}
        yield show.json_line(line).encode()


def _printable(data: bytes) -> str:
    """Return bytes as text without control characters."""
    text = data.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char == "\t" else char.encode("unicode_escape").decode() for char in text
    )


def _value(data: bytes) -> dict[str, object]:
    """Return bytes for JSON: as text, or as base64 if they are not UTF-8."""
    try:
        text, encoding = data.decode(), "utf-8"
    except UnicodeDecodeError:
        text, encoding = base64.b64encode(data).decode(), "base64"
    return {"bytes": len(data), "encoding": encoding, "payload": text}


def message_encoder(style: str, *, terminal: bool) -> MessageEncoder:
    """Return the function that turns a message into output."""
    styles: dict[str, MessageEncoder] = {
        "text": partial(_message_text, terminal=terminal),
        "hex": _message_hex,
        "raw": lambda message: message.data,
        "json": _message_json,
    }
    return styles[style]


def _message_text(message: read_pb2.Message, *, terminal: bool) -> bytes:
    """One message a line, for a terminal as safe text; those that a consumer does not get are named in brackets."""
    data = _printable(message.data).encode() if terminal else message.data
    return _named(message) or _not_committed(message) + data + b"\n"


def _message_hex(message: read_pb2.Message) -> bytes:
    """Id, key and bytes in hexadecimal; for a message of a transaction its id and state."""
    transaction = f"\t{_transaction_of(message)}" if message.HasField("transaction") else ""
    return f"{_message_id(message)}\t{message.key.hex()}\t{message.data.hex()}{transaction}\n".encode()


def _message_json(message: read_pb2.Message) -> bytes:
    """One JSON object a line with all known fields of the message; times are milliseconds."""
    line: dict[str, object] = {
        "ledger_id": message.position.ledger_id,
        "entry_id": message.position.entry_id,
        "batch_index": message.batch_index,
        "tier": TIERS.get(message.tier, "unknown"),
        "state": _state_of(message),
        "key": _value(message.key)["payload"] if message.HasField("key") else None,
        "properties": {one.key: one.value for one in message.properties},
        "producer": message.producer,
        "sequence_id": message.sequence_id,
        **picked(message, "publish_ms", "event_ms", "broker_ms", "index"),
        "tombstone": message.tombstone,
        "transaction_id": _transaction_id(message.transaction) if message.HasField("transaction") else None,
        "transaction_state": _transaction_state(message.transaction) if message.HasField("transaction") else None,
        "reason": message.reason,
        **_value(message.data),
    }
    return show.json_line(line).encode()


def _message_id(message: read_pb2.Message) -> str:
    """Return LEDGER:ENTRY, or LEDGER:ENTRY:INDEX for a message in a batch."""
    position = position_text(message.position)
    return position if message.batch_index < 0 else f"{position}:{message.batch_index}"


def _state_of(message: read_pb2.Message) -> str:
    return read_pb2.MessageState.Name(message.state).removeprefix("MESSAGE_STATE_").lower()


def _transaction_id(transaction: read_pb2.Transaction) -> str:
    """Return a transaction's id as Pulsar writes it."""
    return f"({transaction.most_bits},{transaction.least_bits})"


def _transaction_state(transaction: read_pb2.Transaction) -> str:
    return read_pb2.TransactionState.Name(transaction.state).removeprefix("TRANSACTION_STATE_").lower()


def _transaction_of(message: read_pb2.Message) -> str:
    return f"{_transaction_id(message.transaction)} {_transaction_state(message.transaction)}"


def _not_committed(message: read_pb2.Message) -> bytes:
    """Return the mark before the data of a message that a consumer does not get; empty for other messages."""
    if not message.HasField("transaction") or message.transaction.state == read_pb2.TRANSACTION_STATE_COMMITTED:
        return b""
    return f"<{_message_id(message)} {_transaction_of(message)}> ".encode()


def _named(message: read_pb2.Message) -> bytes:
    """Return the text in place of a message that cannot be shown; empty if it can."""
    if message.state == read_pb2.MESSAGE_STATE_PLAIN:
        return b""
    reason = _printable(message.reason.encode())
    return f"<{_message_id(message)} {_state_of(message)}, {len(message.data)} bytes: {reason}>\n".encode()


NUMBER = click.IntRange(min=0, max=2**64 - 1)


@click.command()
@click.argument("topic", type=options.TOPIC)
@click.option("--time", type=MOMENT, metavar="TIME", help="The first entry that is not older: ISO 8601 (UTC) or ms.")
@click.option(
    "--ago", type=duration_param(0), metavar="DURATION", help="The first entry not older than this: 90s, 15min, 2h."
)
@click.option("--index", type=NUMBER, metavar="N", help="The entry with the message that has this index (PIP-70).")
@click.option(
    "--sequence", type=NUMBER, metavar="N", help="The entry with this number, counted over all ledgers from 0."
)
@options.common
def seek(session: Session, topic: TopicName, *, ago: float | None, **wanted: int | None) -> int:
    """Find the first entry, in the order of the topic, that is not older than a time, or has a number or a greater one.

    An entry's time is the broker's timestamp (PIP-70) or, without one, the time at which its producer published it.
    Positions can be read from: offloadctl read --from POSITION, or directly with --from-time. Exit code 4 when there is
    no such entry yet; the position is then where the next one may come.

    \b
    Examples:
      offloadctl seek orders --time 2026-11-21T10:00:00Z
      offloadctl seek orders --ago 2h
      offloadctl seek orders --index 1000000 -o json | jq -r .position
    """
    if ago is not None:
        if wanted["time"] is not None:
            raise click.UsageError("--time and --ago exclude each other")
        wanted["time"] = ago_ms(SystemClock(), ago)
    goal = one_goal(wanted)
    if goal is None:
        raise click.UsageError("say what to look for: --time, --ago, --index or --sequence")
    found = session.ask(lambda client: client.seek(topic, goal))
    document = {
        "topic": str(topic),
        str(goal.kind): goal.value,
        "found": _there(found),
        **picked(found, "position", "time_ms", "message_index=index", "entry_sequence=sequence"),
        "tier": TIERS.get(found.tier) if _there(found) else None,
        "answered_by": read_pb2.SeekAnswer.Name(found.answer).removeprefix("SEEK_ANSWER_").lower(),
        **picked(found, "gets", "get_bytes", "tables", "source_reads"),
    }
    session.tell(document, lambda: show.facts(_facts(found)))
    return OK if _there(found) else NOT_FOUND


def one_goal(wanted: Mapping[str, int | None]) -> Goal | None:
    """Return the goal that options named after SeekKind give, None for none. Raises UsageError for two."""
    goals = [Goal(SeekKind(name), value) for name, value in wanted.items() if value is not None]
    if len(goals) > 1:
        raise click.UsageError("a time, an index and a sequence number exclude each other")
    return goals[0] if goals else None


def _there(found: read_pb2.SeekResponse) -> bool:
    return found.answer != read_pb2.SEEK_ANSWER_NOTHING


def _facts(found: read_pb2.SeekResponse) -> list[tuple[str, str]]:
    position = show.position_of(found, "position")
    if not _there(found):
        where = f"nothing yet; the next entry may come at {position}" if position else "the topic has no entries yet"
        return [("position", where), ("cost", _cost(found))]
    return [
        ("position", position or "-"),
        ("time", f"{show.moment(found.time_ms)} ({found.time_ms} ms)" if found.HasField("time_ms") else "none"),
        ("index", show.number(found.index) if found.HasField("index") else "none"),
        ("sequence", show.number(found.sequence) if found.HasField("sequence") else "not counted"),
        ("tier", TIERS.get(found.tier, "unknown")),
        ("cost", _cost(found)),
    ]


def _cost(found: read_pb2.SeekResponse) -> str:
    parts = [
        show.plural(found.tables, "manifest") if found.tables else "",
        f"{show.plural(found.gets, 'GET')} of {show.size(found.get_bytes)}" if found.gets else "",
        show.plural(found.source_reads, "read") + " of the ledger source" if found.source_reads else "",
    ]
    return ", ".join(filter(None, parts)) or "nothing was read: all is in memory"


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
@click.option(
    "--direct",
    is_flag=True,
    help="Fetch what is in the bucket from there, and only the rest from the daemon. Needs the extra daemon and the "
    "bucket's settings; not with --messages.",
)
@CONFIG
@options.common
def read(
    session: Session,
    /,
    topic: TopicName,
    *,
    style: str,
    messages: bool,
    transactions: str,
    direct: bool,
    config: Path | None,
    **given: Any,  # noqa: ANN401 - the range, as Wanted has it, with each kind of goal under its own name
) -> None:
    """Print the entries of a topic from one position to another, both inclusive, in order.

    A position is LEDGER:ENTRY; --from-time and the like begin where offloadctl seek finds them. Entries come from the
    daemon's buffer, the bucket or the ledger source, whichever has them. On a terminal, text shows control characters
    as escapes; elsewhere it gives the bytes as they are.

    With --messages, batches are unpacked, contents uncompressed and chunks joined. Messages that cannot be unpacked,
    such as encrypted ones, come as they are stored, and say so. --max counts entries, not messages. Messages of
    aborted transactions are left out, and nothing is printed from the first message of an open transaction on, as
    consumers are given it: --follow waits there, else the command ends and says so. --transactions all prints all.

    With --direct the daemon says which segments have the entries, and this command reads them with the bucket's
    settings and credentials from --config, the environment, or a standalone that runs.

    \b
    Examples:
      offloadctl read orders
      offloadctl read orders --from 12:0 --to 12:99 -o json
      offloadctl read orders --follow --max 10
      offloadctl read orders --from-time 2026-11-21T10:00:00Z --messages
      offloadctl read orders --format hex | less
      offloadctl read orders --messages -o json | jq -r .key
      offloadctl read orders --direct --config offloaderd.toml --format raw > orders.bin
    """
    goal = one_goal({name: given.pop(name) for name in ("time", "index", "sequence")})
    wanted: Wanted = {**given, "seek": goal}  # type: ignore[typeddict-item] # checked by click
    first, last = wanted["first"], wanted["last"]
    if first is not None and goal is not None:
        raise click.UsageError("--from excludes --from-time, --from-index and --from-sequence")
    if isinstance(first, Position) and isinstance(last, Position) and first > last:
        raise InvalidInput(f"the range {first}..{last} is reversed", hint="--from must not be after --to")
    if transactions != Transactions.COMMITTED and not messages:
        raise click.UsageError("--transactions needs --messages: entries are printed whatever transaction they are in")
    if session.form not in {forms.TABLE, forms.JSON}:
        raise click.UsageError(f"read knows no -o {session.form}\nhint: --format " + "|".join(FORMATS))
    if not direct and from_command_line(click.get_current_context(), "config"):
        raise click.UsageError("--config has the settings of the bucket, which only --direct reads: add --direct")
    if direct and messages:
        raise click.UsageError("--direct gives entries as stored, only the daemon unpacks them: leave --messages out")
    style, terminal = "json" if session.structured else style, sys.stdout.isatty()
    if messages:
        encode, kind = message_encoder(style, terminal=terminal), Transactions(transactions)
        session.run(_read_messages(session, topic, wanted, encode, kind))
    else:
        bucket = _bucket(config, session.standalone) if direct else nullcontext()
        session.run(_read(session, topic, wanted, encoder(style, terminal=terminal), bucket))


def _bucket(config: Path | None, standalone: Path | None) -> AbstractAsyncContextManager[Bucket]:
    """Return the bucket of the settings, to be opened for direct reads. Raises InvalidConfig."""
    from offloaderd.direct import bucket_reads  # noqa: PLC0415 - of the extra `daemon`

    return bucket_reads(settings_at(config, standalone).objects)


async def _read(
    session: Session,
    topic: TopicName,
    wanted: Wanted,
    encode: Encoder,
    bucket: AbstractAsyncContextManager[Bucket | None],
) -> None:
    output = sys.stdout.buffer
    async with session.client() as client, bucket as direct:
        # With --follow the read continues at another daemon; a read of a range ends with the error.
        resume_s = RESUME_S if wanted["follow"] else 0
        answers = client.read(topic, timeout_s=session.timeout_s, resume_s=resume_s, direct=direct, **wanted)
        async with aclosing(answers):
            async for answer in answers:
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
                at, transaction = position_text(answer.held_back.position), answer.held_back.transaction
                show.note(
                    f"note: consumers are given nothing from {at} on yet: transaction {_transaction_id(transaction)} "
                    "begins there and is open; --follow waits for its end, --transactions all shows what there is"
                )


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
    sent_bytes = entries = 0
    last: str | None = None

    async def counted() -> AsyncIterator[list[bytes]]:
        """Yield the batches and count their bytes, line feeds included, as the file has them."""
        nonlocal sent_bytes
        async for batch in lines.batches():
            sent_bytes += sum(map(len, batch)) + len(batch)
            yield batch

    async with session.client() as client:
        with Bars(hidden=session.structured) as bars:

            def answered(answer: ledgers_pb2.AppendResponse) -> None:
                nonlocal entries, last
                entries += answer.entry_count
                last = show.position_of(answer, "last") or last
                said = f"{show.plural(entries, 'entry', 'entries')}, {show.size(sent_bytes)}"
                bars.show("appending", said, sent_bytes, lines.total_bytes)

            await client.append(topic, counted(), answered, timeout_s=session.timeout_s)
        if roll:
            await client.roll(topic)
    seconds = clock.monotonic() - started
    skipped = f"; {show.plural(lines.skipped, 'empty line')} skipped" if lines.skipped else ""
    payload = sent_bytes - entries
    session.tell(
        {
            "topic": str(topic),
            "entries": entries,
            "payload_bytes": payload,
            "skipped_empty_lines": lines.skipped,
            "last": last,
            "seconds": round(seconds, 3),
        },
        f"appended {show.plural(entries, 'entry', 'entries')} ({show.size(payload)}) to {topic} in "
        f"{show.age(seconds)}, last position {last or '-'}{skipped}",
    )
