"""Output formats of `offloadctl read` for entries and messages: text, hexadecimal, raw bytes, JSON lines."""

import base64
from collections.abc import Callable, Iterator

from offloaderd.cli import show
from offloaderd.core.model import EntryBatch
from offloaderd.protocol.message_json import position_text
from offloaderd.protocol.v1 import common_pb2, read_pb2

Encoder = Callable[[EntryBatch, str], Iterator[bytes]]
MessageEncoder = Callable[[read_pb2.Message], bytes]

TIERS = {common_pb2.TIER_BUFFER: "buffer", common_pb2.TIER_SOURCE: "source", common_pb2.TIER_OBJECTS: "objects"}
FORMATS = ("text", "hex", "raw", "json")


def encoder(style: str, *, terminal: bool) -> Encoder:
    """Return the function that turns a batch into output."""
    styles: dict[str, Encoder] = {
        "text": as_safe_text if terminal else as_text,
        "hex": as_hex,
        "raw": as_raw,
        "json": as_json,
    }
    return styles[style]


def as_text(batch: EntryBatch, tier: str) -> Iterator[bytes]:
    """One entry a line, bytes untouched."""
    for payload in batch.payloads:
        yield payload
        yield b"\n"


def as_safe_text(batch: EntryBatch, tier: str) -> Iterator[bytes]:
    """One entry a line; control characters and bytes that are not UTF-8 are shown as escapes."""
    for payload in batch.payloads:
        yield f"{printable(payload)}\n".encode()


def as_hex(batch: EntryBatch, tier: str) -> Iterator[bytes]:
    """Position and bytes in hexadecimal."""
    for entry_id, payload in enumerate(batch.payloads, batch.first_entry_id):
        yield f"{batch.ledger_id}:{entry_id}\t{payload.hex()}\n".encode()


def as_raw(batch: EntryBatch, tier: str) -> Iterator[bytes]:
    """The bytes alone."""
    yield from batch.payloads


def as_json(batch: EntryBatch, tier: str) -> Iterator[bytes]:
    """One JSON object a line: position, tier, bytes, and the payload as text or base64."""
    for entry_id, payload in enumerate(batch.payloads, batch.first_entry_id):
        line = {"ledger_id": batch.ledger_id, "entry_id": entry_id, "tier": tier, **as_value(payload)}
        yield show.json_line(line).encode()


def printable(data: bytes) -> str:
    """Return bytes as text without control characters."""
    text = data.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char == "\t" else char.encode("unicode_escape").decode() for char in text
    )


def as_value(data: bytes) -> dict[str, object]:
    """Return bytes for JSON: as text, or as base64 if they are not UTF-8."""
    try:
        text, encoding = data.decode(), "utf-8"
    except UnicodeDecodeError:
        text, encoding = base64.b64encode(data).decode(), "base64"
    return {"bytes": len(data), "encoding": encoding, "payload": text}


def message_encoder(style: str, *, terminal: bool) -> MessageEncoder:
    """Return the function that turns a message into output."""
    styles: dict[str, MessageEncoder] = {
        "text": message_as_safe_text if terminal else message_as_text,
        "hex": message_as_hex,
        "raw": lambda message: message.data,
        "json": message_as_json,
    }
    return styles[style]


def message_as_text(message: read_pb2.Message) -> bytes:
    """One message a line, bytes unchanged; messages that a consumer does not get are named in angle brackets."""
    return _named(message) or _not_committed(message) + message.data + b"\n"


def message_as_safe_text(message: read_pb2.Message) -> bytes:
    """The same for a terminal."""
    return _named(message) or _not_committed(message) + f"{printable(message.data)}\n".encode()


def message_as_hex(message: read_pb2.Message) -> bytes:
    """Id, key and bytes in hexadecimal; for a message of a transaction its id and state."""
    transaction = f"\t{transaction_of(message)}" if message.HasField("transaction") else ""
    return f"{message_id(message)}\t{message.key.hex()}\t{message.data.hex()}{transaction}\n".encode()


def message_as_json(message: read_pb2.Message) -> bytes:
    """One JSON object a line with all known fields of the message; times are milliseconds."""
    line: dict[str, object] = {
        "ledger_id": message.position.ledger_id,
        "entry_id": message.position.entry_id,
        "batch_index": message.batch_index,
        "tier": TIERS.get(message.tier, "unknown"),
        "state": state_of(message),
        "key": as_value(message.key)["payload"] if message.HasField("key") else None,
        "properties": {one.key: one.value for one in message.properties},
        "producer": message.producer,
        "sequence_id": message.sequence_id,
        "publish_ms": message.publish_ms if message.HasField("publish_ms") else None,
        "event_ms": message.event_ms if message.HasField("event_ms") else None,
        "broker_ms": message.broker_ms if message.HasField("broker_ms") else None,
        "index": message.index if message.HasField("index") else None,
        "tombstone": message.tombstone,
        "transaction_id": transaction_id(message.transaction) if message.HasField("transaction") else None,
        "transaction_state": transaction_state(message.transaction) if message.HasField("transaction") else None,
        "reason": message.reason,
        **as_value(message.data),
    }
    return show.json_line(line).encode()


def message_id(message: read_pb2.Message) -> str:
    """Return LEDGER:ENTRY, or LEDGER:ENTRY:INDEX for a message in a batch."""
    position = position_text(message.position)
    return position if message.batch_index < 0 else f"{position}:{message.batch_index}"


def state_of(message: read_pb2.Message) -> str:
    """Return the state of a message in lower case."""
    return read_pb2.MessageState.Name(message.state).removeprefix("MESSAGE_STATE_").lower()


def transaction_id(transaction: read_pb2.Transaction) -> str:
    """Return a transaction's id as Pulsar writes it."""
    return f"({transaction.most_bits},{transaction.least_bits})"


def transaction_state(transaction: read_pb2.Transaction) -> str:
    """Return the state of a transaction in lower case."""
    return read_pb2.TransactionState.Name(transaction.state).removeprefix("TRANSACTION_STATE_").lower()


def transaction_of(message: read_pb2.Message) -> str:
    """Return id and state of a message's transaction."""
    return f"{transaction_id(message.transaction)} {transaction_state(message.transaction)}"


def held_back(held: read_pb2.HeldBack) -> str:
    """Return the note that consumers get no messages from a position on, and why."""
    at = position_text(held.position)
    return (
        f"note: consumers are given nothing from {at} on yet: transaction {transaction_id(held.transaction)} begins "
        "there and is open; --follow waits for its end, --transactions all shows what there is"
    )


def _not_committed(message: read_pb2.Message) -> bytes:
    """Return the mark before the data of a message that a consumer does not get; empty for other messages."""
    if not message.HasField("transaction") or message.transaction.state == read_pb2.TRANSACTION_STATE_COMMITTED:
        return b""
    return f"<{message_id(message)} {transaction_of(message)}> ".encode()


def _named(message: read_pb2.Message) -> bytes:
    """Return the text in place of a message that cannot be shown; empty if it can."""
    if message.state == read_pb2.MESSAGE_STATE_PLAIN:
        return b""
    reason = printable(message.reason.encode())
    return f"<{message_id(message)} {state_of(message)}, {len(message.data)} bytes: {reason}>\n".encode()
