"""Pulsar's schemas: the node that lists the versions of a topic's schema, and the entries with them. Pure parsing.

A partitioned topic has one schema for all partitions. Each version is an entry of a ledger
(BookkeeperSchemaStorage); its number is in the metadata of the messages that were written with it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from offloaderd.core.errors import CorruptData
from offloaderd.core.model import Position
from offloaderd.format.parsing import parse_message
from offloaderd.format.pb.pulsar import schemas_pb2 as pb
from offloaderd.format.pulsar.key_value import split

ROOT = "/schemas"
TYPES: Mapping[int, str] = {
    1: "NONE",
    2: "STRING",
    3: "JSON",
    4: "PROTOBUF",
    5: "AVRO",
    6: "BOOLEAN",
    7: "INT8",
    8: "INT16",
    9: "INT32",
    10: "INT64",
    11: "FLOAT",
    12: "DOUBLE",
    13: "DATE",
    14: "TIME",
    15: "TIMESTAMP",
    16: "KEY_VALUE",
    17: "INSTANT",
    18: "LOCAL_DATE",
    19: "LOCAL_TIME",
    20: "LOCAL_DATE_TIME",
    21: "PROTOBUF_NATIVE",
}
"""Types by their stored number (SchemaRegistryFormat), as the admin API names them (SchemaType)."""
KEY_VALUE = "KEY_VALUE"
"""The type of pairs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """A version of a topic's schema. `deleted`: this version is the deletion. `properties` are the user's."""

    type: str
    content: bytes
    deleted: bool
    created_ms: int
    properties: Mapping[str, str] = field(default_factory=dict)


def decode_versions(node: bytes, *, path: str) -> dict[int, Position]:
    """Return where each version is stored, by its number in order. Raises CorruptData."""
    found = parse_message(pb.SchemaLocator, node, key=path, at=0)
    listed = (*found.index, found.info)
    versions = {one.version: Position(one.position.ledgerId, one.position.entryId) for one in listed}
    for version, where in versions.items():
        if version < 0 or where.ledger_id < 0 or where.entry_id < 0:
            raise CorruptData(key=path, offset=0, expected="a version at a position", found=f"{version} at {where}")
    return dict(sorted(versions.items()))


def decode_entry(data: bytes, *, key: str) -> Schema:
    """Read the entry of a version. Raises CorruptData."""
    entry = parse_message(pb.SchemaEntry, data, key=key, at=0)
    found = parse_message(pb.SchemaInfo, entry.schema_data, key=key, at=0)
    if found.type not in TYPES:
        raise CorruptData(key=key, offset=0, expected="a type of schema, 1 to 21", found=found.type)
    return Schema(
        type=TYPES[found.type],
        content=found.schema,
        deleted=found.deleted,
        created_ms=found.timestamp,
        properties={one.key: one.value for one in found.props},
    )


def key_value_text(content: bytes) -> str:
    """Return a pair of schemas as the admin API has it, in JSON. Raises ValueError, RecursionError."""
    key, value = (json.loads(part) if part else "" for part in split(content))
    return json.dumps({"key": key, "value": value})
