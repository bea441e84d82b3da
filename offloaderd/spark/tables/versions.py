"""Versions of a topic's schema, by which its table may be written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from offloaderd.ledgers.pulsar.schemas import KEY_VALUE, key_value_text
from offloaderd.spark.value_schema import ENCODING_OF

if TYPE_CHECKING:
    from offloaderd.ledgers.pulsar.schemas import Schema

PAIR_ENCODINGS = {"INLINE", "SEPARATED"}
"""How a pair of a key and a value is sent."""
NO_VERSION = -1


class Choice(NamedTuple):
    """A version of a schema, and it with those before it for the data source's option `schema`.

    The text is empty where values are given as bytes.
    """

    version: int
    text: str


def choices(versions: Mapping[int, Schema]) -> Iterator[Choice]:
    """Yield the versions by which a table may be written, newest first; at least one.

    Those of another type or encoding than the newest are none: messages of them are not of this schema. Nor is one
    that was deleted.
    """
    there = {version: one for version, one in versions.items() if not one.deleted}
    newest = max(there, default=NO_VERSION)
    if not there or not _is_decoded(kinds := _kinds(there[newest])):
        yield Choice(newest, "")
        return
    given = [_described(version, one) for version, one in sorted(there.items()) if _kinds(one) == kinds]
    for count in range(len(given), 0, -1):
        yield Choice(int(given[count - 1]["version"]), json.dumps({"getSchemaResponses": given[:count]}))


def _kinds(schema: Schema) -> tuple[str, ...]:
    """Return the types of a schema, or of both parts of a pair, and how these are encoded."""
    if schema.type != KEY_VALUE:
        return (schema.type,)
    names = ("key.schema.type", "value.schema.type", "kv.encoding.type")
    key, value, encoding = (schema.properties.get(name, "") for name in names)
    return key, value, encoding or "INLINE"


def _is_decoded(kinds: tuple[str, ...]) -> bool:
    return ENCODING_OF.keys() >= set(kinds[:2]) and PAIR_ENCODINGS.issuperset(kinds[2:])


def _described(version: int, schema: Schema) -> dict[str, Any]:
    """Return a version as the admin API says it."""
    described: dict[str, Any] = {"version": version, "type": schema.type}
    if schema.type != KEY_VALUE:
        return {**described, "data": schema.content.decode(errors="replace")}
    try:
        pair = key_value_text(schema.content)
    except (ValueError, RecursionError):
        pair = ""  # which the data source refuses, with the topic's name
    return {**described, "data": pair, "properties": dict(schema.properties)}
