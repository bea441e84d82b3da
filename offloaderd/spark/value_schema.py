"""Schemas of values, from an option in Avro's own language or Pulsar's description.

    .option("schema", '{"type": "record", "name": "Order", "fields": [...]}').option("encoding", "json")
    .option("schema", "orders.json")      # an answer of `pulsar-admin schemas get` or of the REST API

Pulsar describes values of its types AVRO and JSON alike, by an Avro schema, those of PROTOBUF_NATIVE by Protobuf's
descriptors. A topic may have had several versions of its schema: a message is read by the version that it was written
with, if that is given, into the type of the newest.

A value of KEY_VALUE is a struct of `key` and `value`, each by its own schema.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import fastavro
from fastavro.schema import SchemaParseException
from pyspark.sql import types as spark

from offloaderd.core.errors import InvalidInput
from offloaderd.ledgers.pulsar.schemas import KEY_VALUE
from offloaderd.spark.value_protobuf import PROTOBUF_NATIVE, protobuf_kind
from offloaderd.spark.value_types import PRIMITIVES, Avro, kind_of


class Encoding(StrEnum):
    """The encoding of values, named as Pulsar's types of schema, in small letters."""

    AVRO = "avro"
    """Avro's binary encoding, without a header."""
    JSON = "json"
    PRIMITIVE = "primitive"
    """One number, text or moment, as Pulsar's client writes it."""
    PROTOBUF = "protobuf"
    """A message of Protobuf, by Pulsar's type PROTOBUF_NATIVE."""


ENCODING_OF = {
    "AVRO": Encoding.AVRO,
    "JSON": Encoding.JSON,
    PROTOBUF_NATIVE: Encoding.PROTOBUF,
    **dict.fromkeys(PRIMITIVES, Encoding.PRIMITIVE),
}
"""Pulsar's types of schema whose values are decoded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueSchema:
    """The schemas of values: `newest` gives their type, `versions` has those that writers used, by Pulsar's number.

    Without `versions` every value is taken to be written with the newest. Each is an Avro schema, Pulsar's name of a
    primitive type, or Pulsar's object with Protobuf's descriptors.
    """

    encoding: Encoding
    newest: Avro
    versions: dict[int, Avro]

    @property
    def type(self) -> spark.DataType:
        """The type of values in Spark. Raises InvalidInput if it has none."""
        if self.encoding is Encoding.PRIMITIVE:
            return PRIMITIVES[self.newest].spark
        if self.encoding is Encoding.PROTOBUF:
            return protobuf_kind(self.newest).spark
        return kind_of(self.newest).spark

    @property
    def aliases(self) -> Mapping[str, Sequence[str]]:
        """The earlier names of fields, as Avro's schemas have them, by their places; see Kind."""
        return kind_of(self.newest).aliases if self.encoding in {Encoding.AVRO, Encoding.JSON} else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValueSchema:
    """The schemas of pairs. `separated`: the key is that of the message, else both are in its content."""

    key: ValueSchema
    value: ValueSchema
    separated: bool

    @property
    def type(self) -> spark.StructType:
        """The type of pairs in Spark. Raises InvalidInput if one of both has none."""
        fields = {"key": self.key.type, "value": self.value.type}
        return spark.StructType([spark.StructField(name, kind) for name, kind in fields.items()])


Schema = ValueSchema | KeyValueSchema


def read_schema(text: str, encoding: str | None = None) -> Schema:
    """Read a schema, or the file at a path; `encoding` is for one without it, by default Avro. Raises InvalidInput."""
    found = _from_json(_text_of(text.strip()))
    option = _encoding(encoding) if encoding is not None else None
    if not _is_pulsars(found):
        return ValueSchema(encoding=option or Encoding.AVRO, newest=_checked(found), versions={})
    entries = found.get("getSchemaResponses", found) if isinstance(found, dict) else found
    entries = entries if isinstance(entries, list) else [entries]
    if not entries:
        raise InvalidInput("the topic has no schema")
    if KEY_VALUE in {_info(one)["type"].upper() for one in entries}:
        if option is not None:
            raise InvalidInput("encoding: a pair of schemas names those of its parts")
        return _pairs(entries)
    return _values(entries, option)


def _pairs(entries: list[Any]) -> KeyValueSchema:
    """Return the versions of a pair of schemas."""
    keys, values, separated = zip(*map(_parts, entries), strict=True)
    if len(set(separated)) > 1:
        raise InvalidInput("keys would be in messages and in their contents: give the versions of one encoding only")
    return KeyValueSchema(key=_values(list(keys)), value=_values(list(values)), separated=separated[0])


def _parts(one: Any) -> tuple[Any, Any, bool]:  # noqa: ANN401 - whatever JSON holds
    """Return the descriptions of a key's and a value's schema, and whether they are written apart."""
    info = _info(one)
    properties = info.get("properties")
    if info["type"].upper() != KEY_VALUE or not isinstance(properties, dict):
        raise InvalidInput(f"a version is no pair of schemas with properties: give the versions of {KEY_VALUE} only")
    held = info.get("schema", info.get("data"))
    held = _from_json(held) if isinstance(held, str) else held
    if not isinstance(held, dict):
        raise InvalidInput("a pair of schemas is an object with key and value")
    version = {"version": one["version"]} if "version" in one else {}
    parts = []
    for name in ("key", "value"):
        kind = properties.get(f"{name}.schema.type")
        if not isinstance(kind, str):
            raise InvalidInput(f"a pair of schemas does not name the type of its {name} ({name}.schema.type)")
        parts.append({"type": kind, "schema": held.get(name, ""), **version})
    return parts[0], parts[1], properties.get("kv.encoding.type") == "SEPARATED"


def _values(entries: list[Any], option: Encoding | None = None) -> ValueSchema:
    """Return the versions of one schema."""
    kinds = {_kind(one) for one in entries} | ({option} if option else set())
    primitive = {_info(one)["type"].upper() for one in entries} if Encoding.PRIMITIVE in kinds else set()
    if len(primitive) > 1:
        raise InvalidInput(f"values would be {' and '.join(sorted(primitive))}: give the versions of one type only")
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
    kind = _info(one)["type"].upper()
    found = ENCODING_OF.get(kind)
    if found is None:
        others = "only AVRO, JSON, PROTOBUF_NATIVE and primitive ones"
        raise InvalidInput(f"values of Pulsar's type {kind} are not decoded, {others}")
    return found


def _definition(one: Any) -> Avro:  # noqa: ANN401 - whatever JSON holds
    info = _info(one)
    if (kind := info["type"].upper()) in PRIMITIVES:
        return kind
    held = info.get("schema", info.get("data"))
    definition = _from_json(held) if isinstance(held, str) else held
    if kind == PROTOBUF_NATIVE:
        protobuf_kind(definition)
        return definition
    return _checked(definition)


def _encoding(word: str) -> Encoding:
    found = {one.value: one for one in (Encoding.AVRO, Encoding.JSON)}.get(word.strip().lower())
    if found is None:
        raise InvalidInput(f"encoding = {word!r}: avro or json")
    return found


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
