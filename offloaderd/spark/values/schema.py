"""The schema of a topic's values, as an option gives it: Avro's own language, or what Pulsar says of the topic.

    .option("schema", '{"type": "record", "name": "Order", "fields": [...]}').option("encoding", "json")
    .option("schema", "orders.json")      # what `pulsar-admin schemas get` or the REST API have answered

Pulsar describes values of its types AVRO and JSON alike, by an Avro schema. A topic may have had several versions of
it: those that are given are used for the messages that were written with them, and the newest says what comes out.
"""

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import fastavro
from fastavro.schema import SchemaParseException

from offloaderd.core.errors import InvalidInput


class Encoding(StrEnum):
    """How a value is written; the words are those of Pulsar's types of schema, in small letters."""

    AVRO = "avro"
    """Avro's binary encoding, without any head."""
    JSON = "json"


Avro = Any
"""A schema in Avro's language, as JSON has it: a name, an object or a list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueSchema:
    """How values are read: `newest` says what they are, `versions` what they were written with, by Pulsar's number.

    Without `versions` nobody said which one it is, and every value is taken to be written with it.
    """

    encoding: Encoding
    newest: Avro
    versions: dict[int, Avro]


def read_schema(text: str, encoding: str | None = None) -> ValueSchema:
    """Read an option: the schema itself, or the path of a file with it. Raises InvalidInput.

    `encoding` is needed only where the schema does not say it, and is Avro then if it is not said.
    """
    found = _from_json(_text_of(text.strip()))
    said = _encoding(encoding) if encoding is not None else None
    if not _is_pulsars(found):
        return ValueSchema(encoding=said or Encoding.AVRO, newest=_checked(found), versions={})
    entries = found.get("getSchemaResponses", found) if isinstance(found, dict) else found
    entries = entries if isinstance(entries, list) else [entries]
    if not entries:
        raise InvalidInput("the topic has no schema")
    kinds = {_kind(one) for one in entries} | ({said} if said else set())
    if len(kinds) > 1:
        raise InvalidInput(
            f"values would be {' and '.join(sorted(kinds))}: say one encoding, and give its versions only"
        )
    definitions = [_definition(one) for one in entries]
    numbers = [one.get("version") if isinstance(one, dict) else None for one in entries]
    versions = dict(zip(range(len(entries)) if None in numbers else map(_number, numbers), definitions, strict=True))
    if len(entries) == 1 and None in numbers:
        versions = {}
    newest = definitions[0] if not versions else versions[max(versions)]
    return ValueSchema(encoding=kinds.pop(), newest=newest, versions=versions)


def _text_of(text: str) -> str:
    """Return the schema itself, which begins as JSON does, or what the file holds that is named."""
    if text[:1] in {"{", "[", '"'}:
        return text
    try:
        return Path(text).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise InvalidInput(f"neither a schema in JSON nor a file that can be read: {why}") from None


def _from_json(text: str) -> Any:  # noqa: ANN401 - whatever JSON holds
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"no JSON: {error}") from None


def _is_pulsars(found: Avro) -> bool:
    """Say whether this is Pulsar's description of a schema, or several, and not a schema."""
    first = found[0] if isinstance(found, list) and found else found
    return isinstance(first, dict) and not {"schema", "schemaInfo", "data", "getSchemaResponses"}.isdisjoint(first)


def _info(one: Any) -> dict[str, Any]:  # noqa: ANN401 - whatever JSON holds
    info = one.get("schemaInfo", one) if isinstance(one, dict) else one
    if not isinstance(info, dict) or not isinstance(info.get("type"), str):
        raise InvalidInput("a version of the schema does not name its type")
    return info


def _kind(one: Any) -> Encoding:  # noqa: ANN401 - whatever JSON holds
    kind = _info(one)["type"]
    if kind.upper() not in {"AVRO", "JSON"}:
        raise InvalidInput(f"values of Pulsar's type {kind} are not decoded, only AVRO and JSON")
    return Encoding(kind.lower())


def _definition(one: Any) -> Avro:  # noqa: ANN401 - whatever JSON holds
    info = _info(one)
    held = info.get("schema", info.get("data"))
    return _checked(_from_json(held) if isinstance(held, str) else held)


def _encoding(word: str) -> Encoding:
    try:
        return Encoding(word.strip().lower())
    except ValueError:
        raise InvalidInput(f"encoding = {word!r}: avro or json") from None


def _number(version: Any) -> int:  # noqa: ANN401 - whatever JSON holds
    if not isinstance(version, int):
        raise InvalidInput(f"version {version!r} is no number")
    return version


def _checked(definition: Avro) -> Avro:
    """Return a schema that Avro's rules allow."""
    try:
        fastavro.parse_schema(definition)
    except (SchemaParseException, TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
        raise InvalidInput(f"no Avro schema: {type(error).__name__} {error}") from None
    return definition
