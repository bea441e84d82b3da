"""The types that values of messages have in Spark, and readers of values in JSON and of primitive ones.

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
import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from decimal import Decimal
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from pyspark.sql import types as spark

from offloaderd.core.errors import InvalidInput

T = TypeVar("T")

Avro = Any
"""A schema in Avro's language, as JSON has it: a name, an object or a list."""
DECIMAL_DIGITS_MAX = 38
EPOCH = date(1970, 1, 1)
_DAY_MICROS = 86_400_000_000
MICROS = {"millis": 1000, "micros": 1}
_OURS = "offloaderd-"
DAYS = f"{_OURS}days"
_NUMBERS = {unit: f"{_OURS}{unit}" for unit in MICROS}
INTEGER_BITS = {"int": 32, "long": 64}
SPECIAL = {"NaN", "Infinity", "-Infinity"}
"""Numbers that JSON does not have; Jackson writes them in quotes."""


class Kind(NamedTuple):
    """A type: Spark's, the schema with only the logical types of the table above, and the reader of JSON.

    Dates and timestamps have logical types of ours in `avro`: AVRO_READERS gives them as `of_json` does.

    `of_json` takes the parser's value, in which numbers with a point are Decimal. Raises ValueError. `aliases` has the
    earlier names of fields, by their places: names joined by dots, `element` in an array, `value` in a map.
    """

    spark: spark.DataType
    avro: Avro
    of_json: Callable[[Any], Any]
    nullable: bool = False
    aliases: Mapping[str, Sequence[str]] = MappingProxyType({})


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
                avro, inside = {"type": "array", "items": items.avro}, _inside("element", items)
                return Kind(spark.ArrayType(items.spark), avro, _array(items), aliases=inside)
            case "map":
                values = self.kind(node["values"], f"{where}{{}}", space)
                avro, inside = {"type": "map", "values": values.avro}, _inside("value", values)
                return Kind(spark.MapType(spark.StringType(), values.spark), avro, _map(values), aliases=inside)
            case _:
                return _logical(node, where) or self._by_name(inner, where, space)

    def _by_name(self, name: str, where: str, space: str) -> Kind:
        if name in _PRIMITIVES:
            return _PRIMITIVES[name]
        full = name if "." in name else f"{space}.{name}"
        known = self._named.get(full, self._named.get(f".{name}"))
        if known is None:
            raise _unsupported(where, f"{name}, which is inside of itself" if name != "null" else "null alone")
        return known._replace(avro=full.removeprefix("."))

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
            if node["size"] < 1:  # an array could have any number of them in a few bytes
                raise _unsupported(where, f"{name}, a fixed of no bytes")
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
            fields.append(({key: value for key, value in field.items() if key in {"name", "default", "aliases"}}, kind))
        if not fields:
            raise _unsupported(where, f"{name}, a record without a field")
        avro = {"type": "record", "name": name, "fields": [self._field(one, kind.avro) for one, kind in fields]}
        avro |= {"aliases": node["aliases"]} if "aliases" in node else {}
        struct = spark.StructType([spark.StructField(one["name"], kind.spark) for one, kind in fields])
        aliases = {one["name"]: one["aliases"] for one, _ in fields if one.get("aliases")}
        for one, kind in fields:
            aliases |= _inside(one["name"], kind)
        return Kind(struct, avro, _struct(fields), aliases=aliases)

    def _field(self, field: dict[str, Any], avro: Avro) -> dict[str, Any]:
        """Return a field of a type, with its default as fastavro takes it."""
        default = {"default": self._default(avro, field["default"])} if "default" in field else {}
        return {**field, **default, "type": avro}

    def _default(self, avro: Avro, value: Any) -> Any:  # noqa: ANN401 - what JSON has
        """Return a default with its times as AVRO_READERS give them, which fastavro does not ask for a default."""
        match avro, value:
            case list(), _:
                some = next((node for node in avro if node != "null"), "null")
                return value if value is None else self._default(some, value)
            case str(), _:
                named = self._named.get(avro, self._named.get(f".{avro}"))
                return value if named is None else self._default(named.avro, value)
            case {"type": "record", "fields": fields}, dict():
                types = {one["name"]: one["type"] for one in fields}
                return {name: self._default(types.get(name, "null"), one) for name, one in value.items()}
            case {"items": items}, list():
                return [self._default(items, one) for one in value]
            case {"values": values}, dict():
                return {name: self._default(values, one) for name, one in value.items()}
            case {"logicalType": str(logical)}, int():
                return value * MICROS.get(logical.removeprefix(_OURS), 1)
        return value

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
            return one._replace(avro=avro)
        return one._replace(avro=avro, of_json=_or_null(one), nullable=True)


def _inside(place: str, kind: Kind) -> dict[str, Sequence[str]]:
    return {f"{place}.{one}": names for one, names in kind.aliases.items()}


def _unsupported(where: str, what: str) -> InvalidInput:
    place = f"at {where}" if where else "the value"
    return InvalidInput(f"Spark has no type for {place}: {what}")


def _logical(node: dict[str, Any], where: str) -> Kind | None:
    """Return the type of a logical type of the table above; None for others."""
    name, _, unit = str(node.get("logicalType", "")).rpartition("-")
    stored = node["type"]
    if node.get("logicalType") == "date" and stored == "int":
        return Kind(spark.DateType(), {"type": stored, "logicalType": DAYS}, _integer(32))
    if name in {"timestamp", "local-timestamp"} and unit in MICROS and stored == "long":
        kind = spark.TimestampType() if name == "timestamp" else spark.TimestampNTZType()
        return Kind(
            kind, {"type": stored, "logicalType": _NUMBERS[unit]}, lambda value: _integer(64)(value) * MICROS[unit]
        )
    return _decimal(node, {"type": stored}, where) if stored == "bytes" else None


class Range(NamedTuple):
    """The numbers that a logical type of ours may have, once they are `times` as large."""

    first: int
    last: int
    times: int = 1

    def read(self, value: int, *_: Any) -> int:  # noqa: ANN401 - the schemas that fastavro gives
        """Return the number of a value. Raises OverflowError."""
        found = value * self.times
        if not self.first <= found <= self.last:
            raise OverflowError(f"{value} is not in the years 1 to 9999")
        return found


_DAYS = Range((date.min - EPOCH).days, (date.max - EPOCH).days)
RANGES = {f"int-{DAYS}": _DAYS} | {
    f"long-{_NUMBERS[unit]}": Range(_DAYS.first * _DAY_MICROS, (_DAYS.last + 1) * _DAY_MICROS - 1, times)
    for unit, times in MICROS.items()
}
"""Of the logical types of ours, by fastavro's names; Spark has no times beyond the years 1 to 9999."""
AVRO_READERS = {name: one.read for name, one in RANGES.items()}
"""Readers of the logical types of ours, by fastavro's names: days and microseconds since 1970, as numbers.

fastavro would make objects of them, and Arrow numbers of these again.
"""


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
    taken = {field["name"] for field, _ in fields}
    aliases: dict[str, list[str]] = {}
    for field, _ in fields:
        aliases[field["name"]] = [one for one in field.get("aliases", ()) if one not in taken]
        taken.update(aliases[field["name"]])

    def read(value: Any) -> dict[str, Any]:  # noqa: ANN401 - whatever JSON holds
        found: dict[str, Any] = {}
        _object(value)
        for field, kind in fields:
            name = field["name"]
            given = name if name in value else next((one for one in aliases[name] if one in value), None)
            if given is None and kind.nullable:
                found[name] = None  # Jackson leaves out what is null
                continue
            if given is None and "default" not in field:
                raise ValueError(f"{name} is missing")
            try:
                found[name] = kind.of_json(field.get("default") if given is None else value[given])
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

PRIMITIVES: dict[str, _Primitive] = {
    "STRING": _Primitive(spark.StringType(), bytes.decode),
    "BYTES": _Primitive(spark.BinaryType(), bytes),
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
