"""The schema of a topic's values, from an option in Avro's own language or Pulsar's description, and its values.

    .option("schema", '{"type": "record", "name": "Order", "fields": [...]}').option("encoding", "json")
    .option("schema", "orders.json")      # an answer of `pulsar-admin schemas get` or of the REST API

Pulsar describes values of its types AVRO and JSON alike, by an Avro schema. A topic may have had several versions of
it: a message is read by the version that it was written with, if that is given, into the type of the newest.
"""

import json
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
from fastavro.schema import SchemaParseException

from offloaderd.core.errors import InvalidInput
from offloaderd.format.pulsar.messages import Message
from offloaderd.spark.values.types import Avro, kind_of


class Encoding(StrEnum):
    """The encoding of values, named as Pulsar's types of schema, in small letters."""

    AVRO = "avro"
    """Avro's binary encoding, without a header."""
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueSchema:
    """The schemas of values: `newest` gives their type, `versions` has those that writers used, by Pulsar's number.

    Without `versions` every value is taken to be written with the newest.
    """

    encoding: Encoding
    newest: Avro
    versions: dict[int, Avro]


def read_schema(text: str, encoding: str | None = None) -> ValueSchema:
    """Read an option: the schema itself, or the path of a file with it. Raises InvalidInput.

    `encoding` is for a schema without it; the default is Avro.
    """
    found = _from_json(_text_of(text.strip()))
    option = _encoding(encoding) if encoding is not None else None
    if not _is_pulsars(found):
        return ValueSchema(encoding=option or Encoding.AVRO, newest=_checked(found), versions={})
    entries = found.get("getSchemaResponses", found) if isinstance(found, dict) else found
    entries = entries if isinstance(entries, list) else [entries]
    if not entries:
        raise InvalidInput("the topic has no schema")
    kinds = {_kind(one) for one in entries} | ({option} if option else set())
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
    """Return a text that begins as JSON does, or the content of the file that it names."""
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
    """Return whether this is Pulsar's description of one schema or several, and not a schema."""
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
    """Return a schema. Raises InvalidInput for one against Avro's rules."""
    try:
        fastavro.parse_schema(definition)
    except (SchemaParseException, TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
        raise InvalidInput(f"no Avro schema: {type(error).__name__} {error}") from None
    return definition


class MalformedValue(ValueError):
    """A value does not fit its schema; the message names the difference."""


class ValueDecoder:
    """Reads the values of one table."""

    def __init__(self, schema: ValueSchema) -> None:
        newest = kind_of(schema.newest)
        self._of_json = newest.of_json if schema.encoding is Encoding.JSON else None
        self._newest = fastavro.parse_schema(newest.avro)
        self._versions = {
            number: fastavro.parse_schema(kind_of(one).avro) if one != schema.newest else self._newest
            for number, one in schema.versions.items()
        }

    def array(self, messages: list[Message | None], kind: pa.DataType) -> tuple[pa.Array, dict[int, str]]:
        """Return the values as an array, and by their index in it the errors of values that are null for that.

        None stands for a message without a value, or with an unreadable one.
        """
        values: list[Any] = []
        wrong: dict[int, str] = {}
        for at, message in enumerate(messages):
            try:
                values.append(None if message is None else self.value(message))
            except MalformedValue as error:
                values.append(None)
                wrong[at] = str(error)
        try:
            return pa.array(values, type=kind), wrong
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            for at, value in enumerate(values):
                try:
                    pa.array([value], type=kind)
                except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
                    values[at] = None
                    wrong[at] = str(error)
            return pa.array(values, type=kind), wrong

    def value(self, message: Message) -> Any:  # noqa: ANN401 - whatever the schema says
        """Return a message's value. Raises MalformedValue."""
        if self._of_json is not None:
            try:
                return self._of_json(json.loads(message.data, parse_float=Decimal))
            except (ValueError, ArithmeticError, RecursionError) as error:
                raise MalformedValue(str(error)) from None
        writer = self._writer(message.schema_version)
        stream = BytesIO(message.data)
        try:
            if writer is self._newest:
                value = fastavro.schemaless_reader(stream, writer)
            else:
                value = fastavro.schemaless_reader(stream, writer, self._newest)
        except Exception as error:  # noqa: BLE001 - foreign bytes make the library raise anything
            why = f"{type(error).__name__} {error}".strip()
            raise MalformedValue(f"{len(message.data)} bytes are no such value: {why}") from None
        if left := len(message.data) - stream.tell():
            raise MalformedValue(f"{left} bytes are left behind the value")
        return value

    def _writer(self, version: bytes) -> Any:  # noqa: ANN401 - the library's own
        """Return the schema that a value was written with; the newest if its version is unknown."""
        if not version or not self._versions:
            return self._newest
        number = int.from_bytes(version, "big", signed=True)
        if number not in self._versions:
            given = ", ".join(map(str, sorted(self._versions)))
            raise MalformedValue(f"written with version {number} of the schema, of which {given} were given")
        return self._versions[number]
