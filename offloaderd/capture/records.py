"""A capture: what topics needed besides their entries at one time, as records, and the document that holds them.

A document is JSON lines under gzip. The first line describes the capture; each other line is a record with its kind,
what it is about, its name there, and a value:

| kind | about | name | value |
|---|---|---|---|
| `tenant` | tenant | | Pulsar's node, JSON |
| `namespace` | tenant/namespace | | Pulsar's node, JSON, without secrets |
| `partitions` | topic | | Pulsar's node of the partitioned topic, JSON |
| `properties` | topic | | properties of the topic by name |
| `subscription` | topic | cursor | what is acknowledged (`cursor_value`) |
| `schema` | topic | version | a version of the schema (`schema_value`) |
| `node` | path below the metadata's root | | a node of offloaderd, base64 |

A reader takes kinds that it does not know as they are. The last line says how many records there are: a document
without it was cut short.
"""

import base64
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from offloaderd.core.errors import CorruptData, InvalidInput
from offloaderd.core.model import Position
from offloaderd.ledgers.pulsar.cursors import Cursor
from offloaderd.ledgers.pulsar.schemas import Schema

FORMAT: Final = 1
DOCUMENT_BYTES_MAX: Final = 1 << 30
"""Longest document, unpacked: some millions of records."""
LEVEL: Final = 6


class Kind(StrEnum):
    """Kinds of records that this release writes."""

    TENANT = "tenant"
    NAMESPACE = "namespace"
    PARTITIONS = "partitions"
    PROPERTIES = "properties"
    SUBSCRIPTION = "subscription"
    SCHEMA = "schema"
    NODE = "node"


Key = tuple[str, str, str]
"""Kind of a record, what it is about, and its name there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """All records of one time, and what could not be read then. `taken_ms` is the wall clock of the daemon."""

    cluster: str
    deployment_id: str
    taken_ms: int
    records: Mapping[Key, Any]
    problems: tuple[str, ...] = ()

    def of(self, kind: Kind) -> Iterator[tuple[str, Any]]:
        """Yield what the records of a kind are about, with their values, in order."""
        return ((about, value) for (one, about, _), value in self.records.items() if one == kind)

    def about(self, kind: Kind) -> dict[str, dict[str, Any]]:
        """Return the records of a kind by what they are about, and by their names there."""
        found: dict[str, dict[str, Any]] = {}
        for (one, about, name), value in self.records.items():
            if one == kind:
                found.setdefault(about, {})[name] = value
        return found


def encode(capture: Capture) -> bytes:
    """Return the document of a capture; the same capture always gives the same bytes."""
    packer = zlib.compressobj(LEVEL, wbits=zlib.MAX_WBITS | 16)
    data = bytearray()
    for line in text_lines(capture):
        data += packer.compress(f"{line}\n".encode())
    return bytes(data + packer.flush())


def text_lines(capture: Capture) -> Iterator[str]:
    """Yield the lines of a document, for people and programs."""
    head = {
        "format": FORMAT,
        "cluster": capture.cluster,
        "deployment": capture.deployment_id,
        "taken_ms": capture.taken_ms,
        "problems": list(capture.problems),
    }
    yield json.dumps(head, sort_keys=True)
    for kind, about, name in sorted(capture.records):
        value = capture.records[kind, about, name]
        yield json.dumps({"kind": kind, "about": about, "name": name, "value": value}, sort_keys=True)
    yield json.dumps({"records": len(capture.records)})


def decode(data: bytes, *, key: str) -> Capture:
    """Read a document; `key` is its object. Raises CorruptData."""

    def corrupt(expected: str, found: object) -> CorruptData:
        return CorruptData(key=key, offset=0, expected=expected, found=found)

    try:
        unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        text = unpacker.decompress(data, DOCUMENT_BYTES_MAX)
        if not unpacker.eof or unpacker.unused_data:
            raise corrupt("one whole gzip document", f"{len(data)} bytes")
        head, *lines = map(json.loads, text.splitlines())
        if head["format"] != FORMAT:
            raise corrupt(f"a capture of format {FORMAT}", head["format"])
        count = lines.pop()["records"]
        records = {(str(one["kind"]), str(one["about"]), str(one["name"])): one["value"] for one in lines}
        capture = Capture(
            cluster=str(head["cluster"]),
            deployment_id=str(head["deployment"]),
            taken_ms=int(head["taken_ms"]),
            records=records,
            problems=tuple(map(str, head["problems"])),
        )
    except (zlib.error, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise corrupt("the lines of a capture", f"{type(error).__name__}: {error}") from None
    if count != len(records):
        raise corrupt(f"{count} records", len(records))
    return capture


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A record that differs between two captures; None for a value that one of them lacks."""

    key: Key
    before: Any
    after: Any


def changes(before: Capture, after: Capture) -> list[Change]:
    """Return what differs between two captures, in order."""
    found = (
        Change(key=key, before=before.records.get(key), after=after.records.get(key))
        for key in sorted({*before.records, *after.records})
    )
    return [one for one in found if one.before != one.after]


def cursor_value(cursor: Cursor) -> dict[str, Any]:
    """Return a cursor as a record's value."""
    return {
        "mark_delete": str(cursor.mark_delete),
        "acknowledged": [[str(after), str(last)] for after, last in cursor.acknowledged],
        "batches": [[str(at), list(words)] for at, words in cursor.batches],
        "numbers": dict(cursor.numbers),
        "texts": dict(cursor.texts),
    }


def cursor_of(value: Any) -> Cursor:  # noqa: ANN401 - JSON
    """Return the cursor of a record. Raises InvalidInput."""
    try:
        return Cursor(
            mark_delete=_position(value["mark_delete"]),
            acknowledged=tuple((_position(after), _position(last)) for after, last in value["acknowledged"]),
            batches=tuple((_position(at), tuple(map(int, words))) for at, words in value["batches"]),
            numbers=tuple((str(name), int(number)) for name, number in value["numbers"].items()),
            texts=tuple((str(name), str(text)) for name, text in value["texts"].items()),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(f"not a subscription of a capture: {type(error).__name__}: {error}") from None


def _position(text: str) -> Position:
    """Return a position, whose entry may be -1: that before the first one of a ledger."""
    ledger_id, _, entry_id = text.partition(":")
    return Position(int(ledger_id), int(entry_id))


def schema_value(schema: Schema) -> dict[str, Any]:
    """Return a version of a schema as a record's value."""
    return {
        "type": schema.type,
        "content": base64.b64encode(schema.content).decode(),
        "deleted": schema.deleted,
        "created_ms": schema.created_ms,
        "properties": dict(schema.properties),
    }


def schema_of(value: Any) -> Schema:  # noqa: ANN401 - JSON
    """Return the schema of a record. Raises InvalidInput."""
    try:
        return Schema(
            type=str(value["type"]),
            content=base64.b64decode(value["content"], validate=True),
            deleted=bool(value["deleted"]),
            created_ms=int(value["created_ms"]),
            properties={str(name): str(text) for name, text in value["properties"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(f"not a schema of a capture: {type(error).__name__}: {error}") from None


def node_value(content: bytes) -> str:
    """Return a node of offloaderd as a record's value."""
    return base64.b64encode(content).decode()


def node_of(value: Any) -> bytes:  # noqa: ANN401 - JSON
    """Return the node of a record. Raises InvalidInput."""
    try:
        return base64.b64decode(value, validate=True)
    except (ValueError, TypeError) as error:
        raise InvalidInput(f"not a node of a capture: {error}") from None
