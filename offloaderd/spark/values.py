"""The values of messages by a schema, from an option in Avro's own language or Pulsar's description, and their types.

    .option("schema", '{"type": "record", "name": "Order", "fields": [...]}').option("encoding", "json")
    .option("schema", "orders.json")      # an answer of `pulsar-admin schemas get` or of the REST API

Pulsar describes values of its types AVRO and JSON alike, by an Avro schema. A topic may have had several versions of
it: a message is read by the version that it was written with, if that is given, into the type of the newest.

| Avro | Spark |
|---|---|
| record, array, map | struct, array, map |
| a union with null; of int and long; of float and double | the type, nullable; bigint; double |
| string, enum, uuid | string |
| bytes, fixed | binary; a value in JSON has them in base64, as Jackson writes them |
| decimal up to 38 digits, date | decimal, date |
| timestamp and local-timestamp, of milliseconds or microseconds | timestamp, timestamp_ntz |
| other logical types | the type that they are stored as |

Pulsar's primitive types (STRING, INT32, ...) have the types of Spark that hold all of their values; LOCAL_TIME is the
nanoseconds of the day, DATE and TIME are moments, as in Java.

Everything is nullable, as in all tables of Spark with an external source. Other unions, recursive types, and records
without a field have no type there; the error names their place.
"""

import base64
import binascii
import json
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import fastavro
import pyarrow as pa
from fastavro.schema import SchemaParseException
from pyspark.sql import types as spark

from offloaderd.core.errors import InvalidInput
from offloaderd.format.pulsar.messages import Message

T = TypeVar("T")

Avro = Any
"""A schema in Avro's language, as JSON has it: a name, an object or a list."""


class Encoding(StrEnum):
    """The encoding of values, named as Pulsar's types of schema, in small letters."""

    AVRO = "avro"
    """Avro's binary encoding, without a header."""
    JSON = "json"
    PRIMITIVE = "primitive"
    """One number, text or moment, as Pulsar's client writes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueSchema:
    """The schemas of values: `newest` gives their type, `versions` has those that writers used, by Pulsar's number.

    Without `versions` every value is taken to be written with the newest. A primitive one is Pulsar's name of the type.
    """

    encoding: Encoding
    newest: Avro
    versions: dict[int, Avro]

    @property
    def type(self) -> spark.DataType:
        """The type of values in Spark. Raises InvalidInput if it has none."""
        if self.encoding is Encoding.PRIMITIVE:
            return PRIMITIVES[self.newest].spark
        return kind_of(self.newest).spark


def read_schema(text: str, encoding: str | None = None) -> ValueSchema:
    """Read a schema, or the file at a path; `encoding` is for one without it, by default Avro. Raises InvalidInput."""
    found = _from_json(_text_of(text.strip()))
    option = _encoding(encoding) if encoding is not None else None
    if not _is_pulsars(found):
        return ValueSchema(encoding=option or Encoding.AVRO, newest=_checked(found), versions={})
    entries = found.get("getSchemaResponses", found) if isinstance(found, dict) else found
    entries = entries if isinstance(entries, list) else [entries]
    if not entries:
        raise InvalidInput("the topic has no schema")
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
    if kind in PRIMITIVES:
        return Encoding.PRIMITIVE
    if kind not in {"AVRO", "JSON"}:
        raise InvalidInput(f"values of Pulsar's type {kind} are not decoded, only AVRO, JSON and primitive ones")
    return Encoding(kind.lower())


def _definition(one: Any) -> Avro:  # noqa: ANN401 - whatever JSON holds
    info = _info(one)
    if (kind := info["type"].upper()) in PRIMITIVES:
        return kind
    held = info.get("schema", info.get("data"))
    return _checked(_from_json(held) if isinstance(held, str) else held)


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


class MalformedValue(ValueError):
    """A value does not fit its schema; the message names the difference."""


class SameVersion(NamedTuple):
    """Contents of messages that were written with one version of the schema; None for one without a value."""

    contents: Sequence[bytes | None]
    version: bytes = b""


class ValueDecoder:
    """Reads the values of one table."""

    def __init__(self, schema: ValueSchema) -> None:
        self._known = schema.versions.keys()
        self._versions: dict[int, Any] = {}
        if schema.encoding is Encoding.PRIMITIVE:
            self._of_version = self._of_bytes(PRIMITIVES[schema.newest].read)
            return
        newest = kind_of(schema.newest)
        if schema.encoding is Encoding.JSON:
            self._of_version = self._of_json(newest.of_json)
            return
        self._newest = fastavro.parse_schema(newest.avro)
        self._versions = {
            number: fastavro.parse_schema(kind_of(one).avro) if one != schema.newest else self._newest
            for number, one in schema.versions.items()
        }
        self._of_version = self._of_avro

    def array(self, parts: Iterable[SameVersion], kind: pa.DataType) -> tuple[pa.Array, dict[int, str]]:
        """Return the values as an array, and by their index in it the errors of values that are null for that."""
        values: list[Any] = []
        wrong: dict[int, str] = {}
        for contents, version in parts:
            try:
                read = self._reader(version)
            except MalformedValue as error:
                wrong |= {len(values) + at: str(error) for at, one in enumerate(contents) if one is not None}
                values += [None] * len(contents)
                continue
            for one in contents:
                try:
                    values.append(None if one is None else read(one))
                except MalformedValue as error:
                    wrong[len(values)] = str(error)
                    values.append(None)
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
        return self._reader(message.schema_version)(message.data)

    def _reader(self, version: bytes) -> Callable[[bytes], Any]:
        """Return the reader of values of a version; it raises MalformedValue, as this does for an unknown version."""
        if version and self._known and (number := int.from_bytes(version, "big", signed=True)) not in self._known:
            given = ", ".join(map(str, sorted(self._known)))
            raise MalformedValue(f"written with version {number} of the schema, of which {given} were given")
        return self._of_version(version)

    def _of_bytes(self, read: Callable[[bytes], Any]) -> Callable[[bytes], Callable[[bytes], Any]]:
        def value(data: bytes) -> Any:  # noqa: ANN401 - whatever the schema says
            try:
                return read(data)
            except (ValueError, struct.error) as error:
                raise MalformedValue(f"{len(data)} bytes are no such value: {error}") from None

        return lambda _: value

    def _of_json(self, read: Callable[[Any], Any]) -> Callable[[bytes], Callable[[bytes], Any]]:
        def value(data: bytes) -> Any:  # noqa: ANN401 - whatever the schema says
            try:
                return read(json.loads(data, parse_float=Decimal))
            except (ValueError, ArithmeticError, RecursionError) as error:
                raise MalformedValue(str(error)) from None

        return lambda _: value

    def _of_avro(self, version: bytes) -> Callable[[bytes], Any]:
        """Return the reader of values that were written with a version; with the newest if it is not known."""
        newest, writer = self._newest, self._newest
        if version and self._versions:
            writer = self._versions[int.from_bytes(version, "big", signed=True)]
        reader = None if writer is newest else newest

        def value(data: bytes) -> Any:  # noqa: ANN401 - whatever the schema says
            stream = BytesIO(data)
            try:
                found = fastavro.schemaless_reader(stream, writer, reader)
            except Exception as error:  # noqa: BLE001 - foreign bytes make the library raise anything
                why = f"{type(error).__name__} {error}".strip()
                raise MalformedValue(f"{len(data)} bytes are no such value: {why}") from None
            if left := len(data) - stream.tell():
                raise MalformedValue(f"{left} bytes are left behind the value")
            return found

        return value


DECIMAL_DIGITS_MAX = 38
MICROS = {"millis": 1000, "micros": 1}
INTEGER_BITS = {"int": 32, "long": 64}
SPECIAL = {"NaN", "Infinity", "-Infinity"}
"""Numbers that JSON does not have; Jackson writes them in quotes."""


class Kind(NamedTuple):
    """A type: Spark's, the schema with only the logical types of the table above, and the reader of JSON.

    `of_json` takes the parser's value, in which numbers with a point are Decimal. Raises ValueError.
    """

    spark: spark.DataType
    avro: Avro
    of_json: Callable[[Any], Any]
    nullable: bool = False


def kind_of(definition: Avro) -> Kind:
    """Return the type of a schema. Raises InvalidInput, with the place, for one that Spark has no type for."""
    return _Walk().kind(definition, "")


class _Walk:
    """One pass over a schema, with the types that have a name; None for one that is not complete yet."""

    def __init__(self) -> None:
        self._named: dict[str, Kind | None] = {}

    def kind(self, node: Avro, where: str, space: str = "") -> Kind:
        """Return the type of a node at a place, in a namespace."""
        if isinstance(node, list):
            return self._union(node, where, space)
        if isinstance(node, str):
            return self._by_name(node, where, space)
        inner = node["type"]
        if isinstance(inner, dict | list):
            return self.kind(inner, where, space)
        match inner:
            case "record" | "error" | "enum" | "fixed":
                return self._declared(node, where, space)
            case "array":
                items = self.kind(node["items"], f"{where}[]", space)
                return Kind(spark.ArrayType(items.spark), {"type": "array", "items": items.avro}, _array(items))
            case "map":
                values = self.kind(node["values"], f"{where}{{}}", space)
                avro = {"type": "map", "values": values.avro}
                return Kind(spark.MapType(spark.StringType(), values.spark), avro, _map(values))
            case _:
                return _logical(node, where) or self._by_name(inner, where, space)

    def _by_name(self, name: str, where: str, space: str) -> Kind:
        if name in _PRIMITIVES:
            return _PRIMITIVES[name]
        full = name if "." in name else f"{space}.{name}"
        known = self._named.get(full, self._named.get(f".{name}"))
        if known is None:
            raise _unsupported(where, f"{name}, which is inside of itself" if name != "null" else "null alone")
        return Kind(known.spark, full.removeprefix("."), known.of_json)

    def _declared(self, node: dict[str, Any], where: str, space: str) -> Kind:
        """Return a type with a name, by which later nodes may refer to it."""
        space = node.get("namespace", space)
        full = node["name"] if "." in node["name"] else f"{space}.{node['name']}"
        space = full.rpartition(".")[0]
        self._named[full] = None
        name = full.removeprefix(".")
        if node["type"] == "enum":
            avro = {"type": "enum", "name": name, "symbols": node["symbols"]}
            avro |= {"default": node["default"]} if "default" in node else {}
            found = Kind(spark.StringType(), avro, _symbol(frozenset(node["symbols"])))
        elif node["type"] == "fixed":
            avro = {"type": "fixed", "name": name, "size": node["size"]}
            found = _decimal(node, avro, where) or Kind(spark.BinaryType(), avro, _bytes)
        else:
            found = self._record(node, name, where, space)
        self._named[full] = found
        return found

    def _record(self, node: dict[str, Any], name: str, where: str, space: str) -> Kind:
        fields = []
        for field in node["fields"]:
            kind = self.kind(field["type"], f"{where}.{field['name']}".lstrip("."), space)
            avro = {key: value for key, value in field.items() if key in {"name", "default", "aliases"}}
            fields.append((avro | {"type": kind.avro}, kind))
        if not fields:
            raise _unsupported(where, f"{name}, a record without a field")
        avro = {"type": "record", "name": name, "fields": [one for one, _ in fields]}
        avro |= {"aliases": node["aliases"]} if "aliases" in node else {}
        struct = spark.StructType([spark.StructField(one["name"], kind.spark) for one, kind in fields])
        return Kind(struct, avro, _struct(fields))

    def _union(self, nodes: list[Avro], where: str, space: str) -> Kind:
        some = [node for node in nodes if node != "null"]
        kinds = [self.kind(node, where, space) for node in some]
        names = {kind.avro for kind in kinds if isinstance(kind.avro, str)}
        one = kinds[0] if len(kinds) == 1 else None
        if len(kinds) == 2:
            one = _PRIMITIVES["long"] if names == {"int", "long"} else one
            one = _PRIMITIVES["double"] if names == {"float", "double"} else one
        if one is None:
            raise _unsupported(where, f"a union of {len(kinds)} types")
        declared = iter(kinds)
        avro = [node if node == "null" else next(declared).avro for node in nodes]
        if "null" not in nodes:
            return Kind(one.spark, avro, one.of_json)
        return Kind(one.spark, avro, _or_null(one), nullable=True)


def _unsupported(where: str, what: str) -> InvalidInput:
    place = f"at {where}" if where else "the value"
    return InvalidInput(f"Spark has no type for {place}: {what}")


def _logical(node: dict[str, Any], where: str) -> Kind | None:
    """Return the type of a logical type of the table above; None for others."""
    name, _, unit = str(node.get("logicalType", "")).rpartition("-")
    stored = node["type"]
    if node.get("logicalType") == "date" and stored == "int":
        return Kind(spark.DateType(), {"type": stored, "logicalType": "date"}, _integer(32))
    if name in {"timestamp", "local-timestamp"} and unit in MICROS and stored == "long":
        kind = spark.TimestampType() if name == "timestamp" else spark.TimestampNTZType()
        avro = {"type": stored, "logicalType": node["logicalType"]}
        return Kind(kind, avro, lambda value: _integer(64)(value) * MICROS[unit])
    return _decimal(node, {"type": stored}, where) if stored == "bytes" else None


def _decimal(node: dict[str, Any], avro: dict[str, Any], where: str) -> Kind | None:
    if node.get("logicalType") != "decimal" or not isinstance(node.get("precision"), int):
        return None  # Avro: a logical type that is not valid is ignored
    digits, scale = node["precision"], node.get("scale", 0)
    if digits > DECIMAL_DIGITS_MAX:
        raise _unsupported(where, f"a decimal of {digits} digits; {DECIMAL_DIGITS_MAX} is the most")
    avro |= {"logicalType": "decimal", "precision": digits, "scale": scale}
    return Kind(spark.DecimalType(digits, scale), avro, _decimal_of)


def _wrong(expected: str, value: Any) -> ValueError:  # noqa: ANN401 - whatever JSON holds
    return ValueError(f"{expected} expected, found {str(value)[:40]!r}")


def _integer(bits: int) -> Callable[[Any], int]:
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def read(value: Any) -> int:  # noqa: ANN401 - whatever JSON holds
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise _wrong(f"an integer of {bits} bits", value)
        return value

    return read


def _instance(kind: type[T], expected: str) -> Callable[[Any], T]:
    def read(value: Any) -> T:  # noqa: ANN401 - whatever JSON holds
        if not isinstance(value, kind):
            raise _wrong(expected, value)
        return value

    return read


_boolean = _instance(bool, "true or false")
_text = _instance(str, "a text")
_list = _instance(list, "an array")
_object = _instance(dict, "an object")


def _decimal_of(value: Any) -> Decimal:  # noqa: ANN401 - whatever JSON holds
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise _wrong("a number", value)
    return Decimal(value)


def _float(value: Any) -> float:  # noqa: ANN401 - whatever JSON holds
    if isinstance(value, str) and value in SPECIAL:
        return float(value)
    return float(_decimal_of(value))


def _bytes(value: Any) -> bytes:  # noqa: ANN401 - whatever JSON holds
    try:
        return base64.b64decode(_text(value), validate=True)
    except binascii.Error:
        raise _wrong("bytes in base64", value) from None


def _symbol(symbols: frozenset[str]) -> Callable[[Any], str]:
    def read(value: Any) -> str:  # noqa: ANN401 - whatever JSON holds
        if not isinstance(value, str) or value not in symbols:
            raise _wrong(f"one of {', '.join(sorted(symbols))}", value)
        return value

    return read


def _array(items: Kind) -> Callable[[Any], list[Any]]:
    return lambda value: [items.of_json(one) for one in _list(value)]


def _map(values: Kind) -> Callable[[Any], dict[str, Any]]:
    return lambda value: {name: values.of_json(one) for name, one in _object(value).items()}


def _or_null(kind: Kind) -> Callable[[Any], Any]:
    return lambda value: None if value is None else kind.of_json(value)


def _struct(fields: list[tuple[dict[str, Any], Kind]]) -> Callable[[Any], dict[str, Any]]:
    def read(value: Any) -> dict[str, Any]:  # noqa: ANN401 - whatever JSON holds
        found: dict[str, Any] = {}
        _object(value)
        for field, kind in fields:
            name = field["name"]
            if name not in value and kind.nullable:
                found[name] = None  # Jackson leaves out what is null
                continue
            if name not in value and "default" not in field:
                raise ValueError(f"{name} is missing")
            try:
                found[name] = kind.of_json(value.get(name, field.get("default")))
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        return found

    return read


_PRIMITIVES: dict[str, Kind] = {
    "boolean": Kind(spark.BooleanType(), "boolean", _boolean),
    "int": Kind(spark.IntegerType(), "int", _integer(32)),
    "long": Kind(spark.LongType(), "long", _integer(64)),
    "float": Kind(spark.FloatType(), "float", _float),
    "double": Kind(spark.DoubleType(), "double", _float),
    "bytes": Kind(spark.BinaryType(), "bytes", _bytes),
    "string": Kind(spark.StringType(), "string", _text),
}


class _Primitive(NamedTuple):
    """One of Pulsar's primitive types: Spark's, and the reader of a value. It raises ValueError or struct.error."""

    spark: spark.DataType
    read: Callable[[bytes], Any]


def _packed(form: str, then: Callable[..., Any] = lambda value: value) -> Callable[[bytes], Any]:
    """Return a reader of numbers of fixed length, the most significant byte first."""
    whole = struct.Struct(f">{form}")
    return lambda data: then(*whole.unpack(data))


def _flag(data: bytes) -> bool:
    (found,) = data
    return found != 0


_MOMENT = _Primitive(spark.TimestampType(), _packed("q", lambda ms: ms * 1000))
_DAY_MICROS = 86_400_000_000

PRIMITIVES: dict[str, _Primitive] = {
    "STRING": _Primitive(spark.StringType(), bytes.decode),
    "BOOLEAN": _Primitive(spark.BooleanType(), _flag),
    "INT8": _Primitive(spark.IntegerType(), _packed("b")),
    "INT16": _Primitive(spark.IntegerType(), _packed("h")),
    "INT32": _Primitive(spark.IntegerType(), _packed("i")),
    "INT64": _Primitive(spark.LongType(), _packed("q")),
    "FLOAT": _Primitive(spark.FloatType(), _packed("f")),
    "DOUBLE": _Primitive(spark.DoubleType(), _packed("d")),
    "DATE": _MOMENT,
    "TIME": _MOMENT,
    "TIMESTAMP": _MOMENT,
    "INSTANT": _Primitive(
        spark.TimestampType(), _packed("qi", lambda second, nanos: second * 1_000_000 + nanos // 1000)
    ),
    "LOCAL_DATE": _Primitive(spark.DateType(), _packed("q")),
    "LOCAL_TIME": _Primitive(spark.LongType(), _packed("q")),
    "LOCAL_DATE_TIME": _Primitive(
        spark.TimestampNTZType(), _packed("qq", lambda day, nanos: day * _DAY_MICROS + nanos // 1000)
    ),
}
"""Pulsar's primitive types, as its schemas write them (org.apache.pulsar.client.impl.schema, big-endian)."""
