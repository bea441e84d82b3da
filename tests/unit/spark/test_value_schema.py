"""Schemas of values as options give them, what Spark makes of them, and values that fit or do not."""

from __future__ import annotations

import base64
import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_type

from offloaderd.core.errors import InvalidInput
from offloaderd.core.model import Position
from offloaderd.format.pulsar.messages import Message
from offloaderd.spark.tables.rows import TableRows
from offloaderd.spark.value_schema import Encoding, KeyValueSchema, ValueSchema, read_schema
from offloaderd.spark.value_types import kind_of
from offloaderd.spark.values import MalformedValue, SameVersion, ValueDecoder, decoder_of
from tests.loops import both_loops

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures(both_loops.__name__)

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}},
        {"name": "before", "type": "Kind"},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}},
        {"name": "number", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "weight", "type": ["float", "double"]},
        {"name": "paid", "type": "boolean", "default": False},
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Line",
                    "fields": [
                        {"name": "sku", "type": "string"},
                        {"name": "tags", "type": {"type": "map", "values": "int"}},
                    ],
                },
            },
        },
    ],
}  # fmt: skip
EMPTY: dict[str, Any] = {"type": "record", "name": "Empty", "fields": []}
AVRO_VALUE: dict[str, Any] = {
    "id": 7,
    "note": None,
    "at": datetime(2026, 11, 21, 10, tzinfo=UTC),
    "local": datetime(2026, 11, 21, 10),  # noqa: DTZ001 - a time without a zone is what this type is
    "day": date(2026, 11, 21),
    "price": Decimal("12.50"),
    "kind": "NEW",
    "before": "OLD",
    "hash": b"ab",
    "number": "0-1",
    "weight": 1.5,
    "paid": True,
    "lines": [{"sku": "x", "tags": {"a": 1}}],
}
JSON_VALUE: dict[str, Any] = {
    **AVRO_VALUE,
    "at": 1795255200000,
    "local": 1795255200000000,
    "day": 20778,
    "price": 12.5,
    "hash": base64.b64encode(b"ab").decode(),
}
KIND = (
    "struct<id:bigint,note:string,at:timestamp,local:timestamp_ntz,day:date,price:decimal(10,2),kind:string,"
    "before:string,hash:binary,number:string,weight:double,paid:boolean,lines:array<struct<sku:string,tags:map<string,int>>>>"
)


def message(data: bytes, version: bytes = b"") -> Message:
    """Return a message with this value."""
    return Message(position=Position(1, 0), data=data, schema_version=version)


def written(definition: Any, value: Any) -> bytes:  # noqa: ANN401 - whatever Avro says
    """Return a value in Avro's encoding."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(definition), value)
    return stream.getvalue()


def record(*fields: tuple[str, Any]) -> dict[str, Any]:
    """Return the schema of a record."""
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields]}


def single(text: str, encoding: str | None = None) -> ValueSchema:
    """Return the schema of values that are no pairs."""
    found = read_schema(text, encoding)
    assert isinstance(found, ValueSchema)
    return found


def test_both_encodings_give_the_same() -> None:
    """Each type of Avro that Spark has comes out of both encodings alike, as one struct."""
    kind = kind_of(ORDER)
    assert kind.spark.simpleString() == KIND
    arrow = to_arrow_type(kind.spark, timezone="UTC")
    of_avro, wrong = ValueDecoder(single(json.dumps(ORDER))).array([SameVersion([written(ORDER, AVRO_VALUE)])], arrow)
    assert not wrong
    assert of_avro[0].as_py() == {**AVRO_VALUE, "lines": [{"sku": "x", "tags": [("a", 1)]}]}
    without = {name: value for name, value in JSON_VALUE.items() if name != "note"} | {"else": "passed over"}
    decoder = ValueDecoder(single(json.dumps(ORDER), "json"))
    of_json, wrong = decoder.array([SameVersion([json.dumps(without).encode()])], arrow)
    assert not wrong
    assert of_json.equals(of_avro)
    assert decoder.value(message(json.dumps({**without, "paid": None} | {"weight": "NaN"}).encode().replace(
        b'"paid": null, ', b""
    )))["paid"] is False  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"id": "7"}, "id: an integer of 64 bits expected, found '7'"),
        ({"id": 2**63}, "id: an integer of 64 bits"),
        ({"id": True}, "id: an integer"),
        ({"lines": [{"sku": 1, "tags": {}}]}, "lines: sku: a text expected"),
        ({"lines": {}}, "lines: an array expected"),
        ({"kind": "GONE"}, "kind: one of NEW, OLD expected"),
        ({"kind": ["NEW"]}, "kind: one of NEW, OLD expected"),
        ({"hash": "?"}, "hash: bytes in base64 expected"),
        ({"paid": 1}, "paid: true or false expected"),
        ({"weight": "heavy"}, "weight: a number expected"),
        ({"weight": []}, "weight: a number expected"),
        ({"price": "1"}, "price: a number expected"),
        ({"lines": [{"sku": "x", "tags": [1]}]}, "tags: an object expected"),
    ],
)
def test_json_that_does_not_fit_says_where(change: dict[str, Any], said: str) -> None:
    """The path of the field, what is expected there and what was found."""
    decoder = ValueDecoder(single(json.dumps(ORDER), "json"))
    with pytest.raises(MalformedValue, match=said):
        decoder.value(message(json.dumps(JSON_VALUE | change).encode()))
    with pytest.raises(MalformedValue, match="id is missing"):
        decoder.value(message(b"{}"))
    for foreign in (b"", b"\xff", b"[" * 100_000, b"1e999999999999999999999"):
        with pytest.raises(MalformedValue):
            decoder.value(message(foreign))


def test_foreign_bytes_in_avro_are_told_and_no_others() -> None:
    """What is cut, too long, or beyond a type is named by its place among the others, which stay."""
    decoder = ValueDecoder(single(json.dumps(ORDER)))
    arrow = to_arrow_type(kind_of(ORDER).spark, timezone="UTC")
    good = written(ORDER, AVRO_VALUE)
    large = {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 2}
    fields = [one if one["name"] != "price" else {**one, "type": large} for one in ORDER["fields"]]
    many = written({**ORDER, "fields": fields}, {**AVRO_VALUE, "price": Decimal("123456789012345.00")})
    values, wrong = decoder.array(
        [SameVersion([good, good[:-1], None]), SameVersion([good + b"!"]), SameVersion([b"\xff" * 9, many])], arrow
    )
    assert [one.as_py() is None for one in values] == [False, True, True, True, True, True]
    assert set(wrong) == {1, 3, 4, 5}
    assert wrong[3] == "1 bytes are left behind the value"


def test_what_pulsar_says_of_a_schema_is_understood(tmp_path: Path) -> None:
    """What its tools and its REST API print, for one version or all, from the option itself or from a file."""
    plain = record(("a", "int"))
    assert single('"string"').newest == "string"
    assert single(json.dumps(plain)).encoding is Encoding.AVRO
    printed = {"name": "orders", "schema": plain, "type": "JSON", "timestamp": 0, "properties": {}}
    rest = {"version": 3, "type": "JSON", "timestamp": 0, "data": json.dumps(plain), "properties": {}}
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(printed))
    for text, versions in (
        (json.dumps(printed), {}),
        (str(file), {}),
        (json.dumps(rest), {3: plain}),
        (json.dumps({"version": 2, "schemaInfo": printed}), {2: plain}),
        (json.dumps([printed, printed]), {0: plain, 1: plain}),
        (json.dumps({"getSchemaResponses": [{**rest, "version": 0}, {**rest, "version": 5}]}), {0: plain, 5: plain}),
    ):
        found = single(text)
        assert (found.encoding, found.newest, found.versions) == (Encoding.JSON, plain, versions)


def test_each_version_reads_what_was_written_with_it() -> None:
    """A value is read by its own version and comes out as the newest; one of a version nobody gave is malformed."""
    old = record(("a", "int"))
    new = record(("a", "long"))
    new["fields"].append({"name": "b", "type": "string", "default": "none"})
    pulsars = [
        {"version": 0, "type": "AVRO", "data": json.dumps(old)},
        {"version": 1, "type": "AVRO", "data": json.dumps(new)},
    ]
    decoder = ValueDecoder(single(json.dumps(pulsars)))
    versions = [number.to_bytes(8, "big") for number in range(3)]
    assert decoder.value(message(written(old, {"a": 5}), versions[0])) == {"a": 5, "b": "none"}
    assert decoder.value(message(written(new, {"a": 5, "b": "x"}), versions[1])) == {"a": 5, "b": "x"}
    assert decoder.value(message(written(new, {"a": 5, "b": "x"}))) == {"a": 5, "b": "x"}, "nobody says which"
    with pytest.raises(MalformedValue, match="version 2 of the schema, and only 0, 1 can be read"):
        decoder.value(message(written(new, {"a": 5, "b": "x"}), versions[2]))


def test_an_earlier_version_without_a_type_in_spark() -> None:
    """Values of it are malformed, and those of the others are read: the newest version may have put it right."""
    schemas = [record(("a", "int")), record(("a", ["int", "string"])), record(("a", "int"), ("b", "int"))]
    schemas[2]["fields"][1]["default"] = 7
    pulsars = [{"version": at, "type": "AVRO", "data": json.dumps(one)} for at, one in enumerate(schemas)]
    decoder = ValueDecoder(single(json.dumps(pulsars)))
    first, second, _ = (number.to_bytes(8, "big") for number in range(3))
    assert decoder.value(message(written(schemas[0], {"a": 5}), first)) == {"a": 5, "b": 7}
    with pytest.raises(MalformedValue, match="version 1 of the schema, and only 0, 2 can be read"):
        decoder.value(message(written(schemas[1], {"a": "x"}), second))


@pytest.mark.parametrize(
    ("stored", "logical", "first", "last"),
    [
        ("int", "date", date(1, 1, 1), date(9999, 12, 31)),
        ("long", "timestamp-millis", datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC)),
        ("long", "timestamp-micros", datetime(1, 1, 1, tzinfo=UTC), datetime.max.replace(tzinfo=UTC)),
        ("long", "local-timestamp-millis", datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_000)),  # noqa: DTZ001 - it has no zone
        ("long", "local-timestamp-micros", datetime.min, datetime.max),  # noqa: DTZ901 - as above
    ],
)
def test_times_of_all_years_that_spark_has(stored: str, logical: str, first: date, last: date) -> None:
    """The first and the last one; what is before or behind them does not fit, nor do numbers of any length."""
    schema = record(("t", ["null", {"type": stored, "logicalType": logical}]))
    values = single(json.dumps(schema))
    plain = record(("t", ["null", stored]))
    sound = [written(schema, {"t": one}) for one in (first, None, last)]
    read: Any = fastavro.schemaless_reader
    ends = [read(io.BytesIO(one), plain)["t"] for one in (sound[0], sound[2])]
    beyond = [written(record(("t", ["null", "long"])), {"t": one}) for one in (ends[0] - 1, ends[1] + 1, 2**63 - 1)]
    found, wrong = ValueDecoder(values).array([SameVersion(sound + beyond)], to_arrow_type(values.type, timezone="UTC"))
    assert [one and one["t"] for one in found.to_pylist()] == [first, None, last, None, None, None]
    assert [*wrong] == [3, 4, 5]
    assert all("is not in the years 1 to 9999" in why for why in wrong.values())


@pytest.mark.parametrize("encoding", ["AVRO", "JSON"])
def test_a_time_by_default_is_in_the_unit_of_its_schema(encoding: str) -> None:
    """Also in a field that may be null, and inside of other types. In JSON what is not there may be null."""
    at = {"type": "long", "logicalType": "timestamp-millis"}
    inside = {"type": "record", "name": "Inside", "fields": [{"name": "t", "type": at}, {"name": "n", "type": "long"}]}
    nested = [("w", {"type": "array", "items": at}), ("x", {"type": "map", "values": ["null", at]})]
    nested += [("y", inside), ("z", {"type": "array", "items": "Inside"})]
    new = record(("a", "int"), ("t", at), ("u", [at, "null"]), ("v", ["null", at]), *nested)
    of_nested = ([1500], {"k": 1500}, {"t": 1500, "n": 1500}, [{"t": 1500, "n": 1500}])
    for field, default in zip(new["fields"][1:], (1500, 1500, None, *of_nested), strict=True):
        field["default"] = default
    pulsars = [
        {"version": number, "type": encoding, "data": json.dumps(one)}
        for number, one in enumerate((record(("a", "int")), new))
    ]
    values = single(json.dumps(pulsars))
    old = written(record(("a", "int")), {"a": 5}) if encoding == "AVRO" else b'{"a": 5}'
    found, _ = ValueDecoder(values).array([SameVersion([old], bytes(8))], to_arrow_type(values.type, timezone="UTC"))
    moment = datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)
    row, u = {"t": moment, "n": 1500}, moment if encoding == "AVRO" else None
    assert found.to_pylist() == [
        {"a": 5, "t": moment, "u": u, "v": None, "w": [moment], "x": [("k", moment)], "y": row, "z": [row]}
    ]


def test_a_renamed_field_is_read_by_its_alias() -> None:
    """In Avro from what was written with an older version, in JSON by whichever name a value has."""
    old, new = record(("a", "int")), record(("b", "long"))
    new["fields"][0]["aliases"] = ["x", "a"]
    pulsars = [{"version": number, "type": "AVRO", "data": json.dumps(one)} for number, one in enumerate((old, new))]
    decoder = ValueDecoder(single(json.dumps(pulsars)))
    assert decoder.value(message(written(old, {"a": 5}), bytes(8))) == {"b": 5}
    decoder = ValueDecoder(single(json.dumps(new), "json"))
    assert [decoder.value(message(one)) for one in (b'{"a": 5}', b'{"b": 6, "a": 5}')] == [{"b": 5}, {"b": 6}]
    with pytest.raises(MalformedValue, match="b is missing"):
        decoder.value(message(b'{"c": 5}'))


def test_a_value_is_that_of_one_field() -> None:
    """In JSON as in Avro: an alias that is the name of another field, or the alias of one before, reads nothing."""
    optional = ["null", "int"]
    both = record(("a", optional), ("b", optional), ("c", optional), ("d", optional))
    for field, aliases in zip(both["fields"], ([], ["a"], ["x"], ["x"]), strict=True):
        field |= {"aliases": aliases, "default": None}
    decoder = ValueDecoder(single(json.dumps(both), "json"))
    assert decoder.value(message(b'{"a": 5, "x": 6}')) == {"a": 5, "b": None, "c": 6, "d": None}


def test_aliases_have_places() -> None:
    """Through arrays, maps, unions and names of types; only Avro's schemas have them."""
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "n", "type": "int", "aliases": ["m"]}]}
    rows, notes = {"type": "array", "items": ["null", inner]}, {"type": "map", "values": "Inner"}
    outer = record(("rows", rows), ("notes", ["null", notes]), ("one", "Inner"), ("plain", "int"))
    outer["fields"][0]["aliases"] = ["lines"]
    places = ["rows.element.n", "notes.value.n", "one.n"]
    for encoding in ("avro", "json"):
        assert single(json.dumps(outer), encoding).aliases == {"rows": ["lines"]} | {one: ["m"] for one in places}
    assert not single('{"type": "INT32", "schema": ""}').aliases


@pytest.mark.parametrize(
    ("text", "encoding", "said"),
    [
        ("nowhere.json", None, "neither a schema in JSON nor a file"),
        ("{", None, "no JSON"),
        ('{"type": "wreckord"}', None, "no Avro schema"),
        ("[]", None, "type for the value: a union of 0 types"),
        ('{"type": "array"}', None, "no Avro schema"),
        ('"string"', "xml", "encoding = 'xml': avro or json"),
        ('{"type": "PROTOBUF", "schema": ""}', None, "Pulsar's type PROTOBUF"),
        ('{"type": "AVRO", "schema": "\\"int\\""}', "json", "values would be avro and json"),
        ('{"getSchemaResponses": []}', None, "the topic has no schema"),
        ('{"schema": "\\"int\\""}', None, "does not name its type"),
        ('{"type": "AVRO", "version": "x", "schema": "\\"int\\""}', None, "version 'x' is no number"),
        (json.dumps(record(("a", ["int", "string"]))), None, "at a: a union of 2 types"),
        (json.dumps(record(("a", ["null", "R"]))), None, "at a: R, which is inside of itself"),
        (json.dumps(record(("a", {"type": "array", "items": EMPTY}))), None, r"at a\[\]: Empty, a record without"),
        (json.dumps(record(("a", "null"))), None, "at a: null alone"),
        (
            json.dumps(record(("a", {"type": "bytes", "logicalType": "decimal", "precision": 39}))),
            None,
            "at a: a decimal of 39 digits",
        ),
    ],
)  # fmt: skip
def test_schemas_that_cannot_be_used_say_why(text: str, encoding: str | None, said: str) -> None:
    """Mistakes of the option, rules of Avro, and what Spark has no type for, by its place."""
    with pytest.raises(InvalidInput, match=said):
        ValueDecoder(single(text, encoding))


def test_named_types_and_other_unions() -> None:
    """Names are found in their namespace; int and long are one; logical types that mean nothing here are passed."""
    inner = {"type": "record", "name": "a.b.Inner", "fields": [{"name": "n", "type": ["int", "null", "long"]}]}
    outer = record(("x", inner), ("y", "a.b.Inner"), ("z", {"type": "long", "logicalType": "time-micros"}))
    decoder = ValueDecoder(single(json.dumps({**outer, "namespace": "a.b"})))
    value = {"x": {"n": 2**40}, "y": {"n": None}, "z": 5}
    assert kind_of(outer).spark.simpleString() == "struct<x:struct<n:bigint>,y:struct<n:bigint>,z:bigint>"
    assert decoder.value(message(written(outer, value))) == value
    assert pa.array([value], type=to_arrow_type(kind_of(outer).spark)).null_count == 0


@pytest.mark.parametrize(
    ("kind", "data", "value"),
    [
        ("STRING", "å".encode(), "å"),
        ("BOOLEAN", b"\1", True),
        ("INT8", b"\xff", -1),
        ("INT16", b"\x01\x00", 256),
        ("INT32", b"\xff\xff\xff\xfe", -2),
        ("INT64", (2**40).to_bytes(8, "big"), 2**40),
        ("FLOAT", b"\x3f\xc0\0\0", 1.5),
        ("DOUBLE", b"\xbf\xf8\0\0\0\0\0\0", -1.5),
        ("TIMESTAMP", (1500).to_bytes(8, "big"), datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)),
        ("INSTANT", (1).to_bytes(8, "big") + (2_000_000).to_bytes(4, "big"), datetime(1970, 1, 1, 0, 0, 1, 2000, UTC)),
        ("LOCAL_DATE", (1).to_bytes(8, "big"), date(1970, 1, 2)),
        ("LOCAL_TIME", (7).to_bytes(8, "big"), 7),
        (
            "LOCAL_DATE_TIME",
            (1).to_bytes(8, "big") + (1_000_000_000).to_bytes(8, "big"),
            datetime(1970, 1, 2, 0, 0, 1),  # noqa: DTZ001 - a local one
        ),
    ],
)
def test_primitive_values(kind: str, data: bytes, value: object) -> None:
    """As Pulsar's client writes them; bytes too few or too many are no value, and named."""
    schema = single(json.dumps({"version": 0, "type": kind, "data": ""}))
    assert schema.encoding is Encoding.PRIMITIVE
    decoder = ValueDecoder(schema)
    contents = SameVersion([data, data + b"\xff", b"", None])
    array, wrong = decoder.array([contents], to_arrow_type(schema.type, timezone="UTC"))
    assert array.to_pylist()[0] == value
    assert array.to_pylist()[3] is None
    assert sorted(wrong) == ([1] if kind == "STRING" else [1, 2])


def test_versions_of_two_primitive_types_are_refused() -> None:
    """One table has one type."""
    both = [{"version": 0, "type": "INT32", "data": ""}, {"version": 1, "type": "STRING", "data": ""}]
    with pytest.raises(InvalidInput, match="INT32 and STRING"):
        single(json.dumps({"getSchemaResponses": both}))
    with pytest.raises(InvalidInput, match="avro or json"):
        single(json.dumps(record(("a", "int"))), "primitive")


def pair(encoding: str, key: tuple[str, Any], value: tuple[str, Any], **more: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return a version as the REST API says it."""
    properties = {"key.schema.type": key[0], "value.schema.type": value[0], "kv.encoding.type": encoding}
    return {
        "type": "KEY_VALUE",
        "data": json.dumps({"key": key[1], "value": value[1]}),
        "properties": properties,
    } | more


def inline(*parts: bytes | None) -> bytes:
    """Return parts with their lengths."""
    return b"".join(b"\xff" * 4 if part is None else len(part).to_bytes(4, "big") + part for part in parts)


OLD: dict[str, Any] = {"type": "record", "name": "V", "fields": [{"name": "a", "type": "int"}]}
NEW: dict[str, Any] = {**OLD, "fields": [*OLD["fields"], {"name": "b", "type": "string", "default": "none"}]}
VERSIONS = [number.to_bytes(8, "big") for number in range(2)]


@pytest.mark.parametrize("separated", [False, True])
def test_pairs_have_a_key_and_a_value(separated: bool) -> None:
    """Each by its own schema and version; what fits neither is told, and a message without any part is null."""
    encoding = "SEPARATED" if separated else "INLINE"
    schema = read_schema(
        json.dumps(
            [pair(encoding, ("INT32", ""), ("AVRO", one), version=number) for number, one in enumerate((OLD, NEW))]
        )
    )
    assert isinstance(schema, KeyValueSchema)
    assert schema.type.simpleString() == "struct<key:int,value:struct<a:int,b:string>>"

    def sent(key: bytes | None, value: bytes | None) -> tuple[bytes | None, bytes | None]:
        """Return content and key of a message."""
        return (value, key) if separated else (inline(key, value), None)

    old = [sent(b"\0\0\0\1", written(OLD, {"a": 5})), sent(b"\0\0\0\2", None), (None, None)]
    new = [sent(None, written(NEW, {"a": 6, "b": "x"})), sent(b"short", written(NEW, {"a": 7, "b": "y"}))]
    new += [sent(b"\0\0\0\3", b"?")]
    parts = [
        SameVersion([content for content, _ in rows], version, [key for _, key in rows])
        for rows, version in ((old, VERSIONS[0]), (new, VERSIONS[1]))
    ]
    found, wrong = decoder_of(schema).array(parts, to_arrow_type(schema.type))
    assert found.to_pylist() == [
        {"key": 1, "value": {"a": 5, "b": "none"}},
        {"key": 2, "value": None},
        None,
        {"key": None, "value": {"a": 6, "b": "x"}},
        None,
        None,
    ]
    assert sorted(wrong) == [4, 5]
    assert wrong[4].startswith("key: 5 bytes are no such value")
    assert wrong[5].startswith("value: 1 bytes are no such value")


def test_aliases_of_pairs() -> None:
    """A column that key and value have both is the key's, and so are its earlier names."""
    key, value = record(("id", "int"), ("k", "int")), record(("id", "int"), ("v", "int"))
    for field, alias in zip((key["fields"][1], *value["fields"]), ("old_k", "old_id", "old_v"), strict=True):
        field["aliases"] = [alias]
    schema = read_schema(json.dumps(pair("INLINE", ("AVRO", key), ("JSON", value))))
    assert TableRows(schema).aliases == {"k": ["old_k"], "v": ["old_v"]}
    schema = read_schema(json.dumps(pair("INLINE", ("AVRO", {"type": "array", "items": key}), ("STRING", ""))))
    assert TableRows(schema).aliases == {"key.element.k": ["old_k"]}


@pytest.mark.parametrize("content", [b"", b"\0\0\0", inline(b"1234")[:7], inline(b"1234"), inline(b"1", b"2") + b"3"])
def test_what_is_no_pair_is_told(content: bytes) -> None:
    """A part is cut off, or something is left."""
    schema = read_schema(json.dumps(pair("INLINE", ("BYTES", ""), ("STRING", ""))))
    found, wrong = decoder_of(schema).array([SameVersion([content, inline(b"k", b"v")])], to_arrow_type(schema.type))
    assert found.to_pylist() == [None, {"key": b"k", "value": "v"}]
    assert "a pair" in wrong.pop(0)
    assert not wrong


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([pair("INLINE", ("PROTOBUF", ""), ("STRING", ""))], "Pulsar's type PROTOBUF are not decoded"),
        ([pair("INLINE", ("AVRO", 5), ("STRING", ""))], "no Avro schema"),
        ([{"type": "KEY_VALUE", "data": "{}"}], "no pair of schemas with properties"),
        ([{"type": "KEY_VALUE", "data": "{}", "properties": {}}], "the type of its key"),
        ([pair("INLINE", ("STRING", ""), ("STRING", "")), {"type": "STRING", "data": ""}], "no pair of schemas"),
        (
            [pair(one, ("STRING", ""), ("STRING", ""), version=at) for at, one in enumerate(("INLINE", "SEPARATED"))],
            "the versions of one encoding only",
        ),
    ],
)
def test_pairs_that_cannot_be_used_say_why(entries: list[dict[str, Any]], said: str) -> None:
    """The part or the version is named."""
    with pytest.raises(InvalidInput, match=said):
        read_schema(json.dumps(entries))
    with pytest.raises(InvalidInput, match="a pair of schemas names those"):
        read_schema(json.dumps(pair("INLINE", ("STRING", ""), ("STRING", ""))), "json")
