"""Values in Avro by columns: the same arrays and errors as value by value, whatever the schema and the bytes."""

from __future__ import annotations

from decimal import Decimal
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_type

from offloaderd.core import native
from offloaderd.spark.value_columns import AvroColumns
from offloaderd.spark.value_schema import Encoding, ValueSchema
from offloaderd.spark.value_types import kind_of
from offloaderd.spark.values import SameVersion, ValueDecoder
from tests.loops import NOT_BUILT, in_python
from tests.unit.core.test_native import Damage
from tests.unit.spark.test_value_schema import written

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from offloaderd.spark.value_types import Avro

pytestmark = pytest.mark.skipif(not native.IN_USE, reason=NOT_BUILT)

INT, LONG = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
NUMBERS = count()


class Typed(NamedTuple):
    """A schema and values of it."""

    avro: Avro
    values: st.SearchStrategy[Any]


def named(kind: str, values: st.SearchStrategy[Any], **more: object) -> Typed:
    """Return a type that has a name."""
    return Typed({"type": kind, "name": f"T{next(NUMBERS)}", **more}, values)


DECIMAL: dict[str, Any] = {"logicalType": "decimal", "precision": 6, "scale": 2}
CENTS = st.integers(-999_999, 999_999)


def stored(number: int) -> bytes:
    """Return a decimal's digits in as few bytes as it needs."""
    return number.to_bytes((number + (number < 0)).bit_length() // 8 + 1, "big", signed=True)


PLAIN: list[Callable[[], Typed]] = [
    lambda: Typed("boolean", st.booleans()),
    lambda: Typed("int", INT),
    lambda: Typed("long", LONG),
    lambda: Typed("float", st.floats(width=32)),
    lambda: Typed("double", st.floats()),
    lambda: Typed("string", st.text(max_size=5)),
    lambda: Typed("bytes", st.binary(max_size=5)),
    lambda: named("fixed", st.binary(min_size=3, max_size=3), size=3),
    lambda: named("enum", st.sampled_from("AB"), symbols=["A", "B"]),
    lambda: Typed({"type": "int", "logicalType": "date"}, st.integers(-719_162, 2_932_896)),
    lambda: Typed({"type": "long", "logicalType": "timestamp-millis"}, st.integers(-(10**12), 10**13)),
    lambda: Typed({"type": "long", "logicalType": "local-timestamp-micros"}, st.integers(-(10**15), 10**16)),
    lambda: Typed({"type": "bytes", **DECIMAL}, CENTS.map(stored)),
    lambda: named("fixed", CENTS.map(lambda one: one.to_bytes(5, "big", signed=True)), size=5, **DECIMAL),
]


def nested(draw: st.DrawFn, depth: int) -> Typed:
    """Draw a type, at most so deep."""
    shape = draw(st.sampled_from(["plain", "null", "null last", *(["array", "map", "record"] if depth else [])]))
    if shape == "record":
        fields = [nested(draw, depth - 1) for _ in range(draw(st.integers(1, 3)))]
        values = st.fixed_dictionaries({f"f{at}": one.values for at, one in enumerate(fields)})
        return named("record", values, fields=[{"name": f"f{at}", "type": one.avro} for at, one in enumerate(fields)])
    if shape == "plain" or not depth:
        make: Callable[[], Typed] = draw(st.sampled_from(PLAIN))
        return make()
    inner = nested(draw, depth - 1)
    match shape:
        case "array":
            return Typed({"type": "array", "items": inner.avro}, st.lists(inner.values, max_size=3))
        case "map":
            values = st.dictionaries(st.text("abé", max_size=2), inner.values, max_size=3)
            return Typed({"type": "map", "values": inner.avro}, values)
    if isinstance(inner.avro, list):
        return inner
    avro = ["null", inner.avro] if shape == "null" else [inner.avro, "null"]
    return Typed(avro, st.none() | inner.values)


def arrays(avro: Avro, contents: Sequence[bytes | None]) -> list[tuple[pa.Array, dict[int, str]]]:
    """Return the values of contents and their errors with the compiled loop, and one by one."""
    decoder = ValueDecoder(ValueSchema(encoding=Encoding.AVRO, newest=avro, versions={}))
    kind = to_arrow_type(kind_of(avro).spark, timezone="UTC")
    compiled = decoder.array([SameVersion(contents)], kind)
    with pytest.MonkeyPatch.context() as patch:
        in_python(patch)
        return [compiled, decoder.array([SameVersion(contents)], kind)]


@given(st.data())
@settings(max_examples=200)
def test_values_are_the_same(data: st.DataObject) -> None:
    """Of sound values, which all come by columns, and with one that is damaged."""
    one = data.draw(st.composite(nested)(3), label="schema")
    contents = [
        None if value is None else written(one.avro, value)
        for value in data.draw(st.lists(one.values | st.none(), max_size=4), label="values")
    ]
    kind = to_arrow_type(kind_of(one.avro).spark, timezone="UTC")
    assert AvroColumns(kind_of(one.avro).avro).array(contents, kind) is not None
    if contents and (content := contents[-1]) is not None and data.draw(st.booleans()):
        contents[-1] = Damage(data)(content)
    (compiled, errors), (python, expected) = arrays(one.avro, contents)
    assert errors == expected
    assert compiled.type == python.type
    assert repr(compiled.to_pylist()) == repr(python.to_pylist())  # a NaN equals itself
    compiled.validate(full=True)


@pytest.mark.parametrize(
    ("avro", "content", "given"),
    [
        ("string", b"\x02\xff", None),
        ("string", b"\x06\xed\xa0\x80", None),
        ("boolean", b"\x02", True),
        ("int", b"\x80\x80\x80\x80\x10", None),
        ({"type": "int", "logicalType": "date"}, b"\xfe\xff\xff\xff\x0f", None),
        ({"type": "long", "logicalType": "timestamp-millis"}, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", None),
        ({"type": "map", "values": "int"}, b"\x04\x02a\x02\x02a\x04\x00", [("a", 2)]),
        ({"type": "array", "items": "int"}, b"\xfe\xff\xff\xff\x0f\x00", None),
        ({"type": "bytes", **DECIMAL}, b"\x08\x7f\xff\xff\xff", None),
        ({"type": "bytes", **DECIMAL}, b"\x20\x80" + bytes(15), None),
        ({"type": "bytes", **DECIMAL}, b"\x22" + bytes(16) + b"\x05", Decimal("0.05")),
        ({"type": "bytes", **DECIMAL}, b"\x04\x05", None),
        ({"type": "bytes", **DECIMAL}, b"\x01", None),
        ({"type": "bytes", **DECIMAL}, b"\x01\x05", None),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, b"\x04", None),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, b"\x01", "B"),
        (["null", "int"], b"\x04\x02", None),
        (["null", "int"], b"\x01\x02", 1),
        ("bytes", b"\x01", None),
        ({"type": "int", "logicalType": "date"}, b"\x93\xe6\x57", None),
        ({"type": "array", "items": "int"}, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00\x00", []),
        (["int", "long"], b"\x02\x02", 1),
    ],
)
def test_what_has_no_columns_is_read_value_by_value(avro: Avro, content: bytes, given: object) -> None:
    """Texts that are none, numbers, times and decimals out of range, keys given twice, counts without their items."""
    kind = kind_of(avro)
    assert AvroColumns(kind.avro).array([content], to_arrow_type(kind.spark, timezone="UTC")) is None
    (compiled, errors), (python, expected) = arrays(avro, [content])
    assert errors == expected
    assert not any(" at 0x" in one for one in errors.values())
    assert (errors == {}) == (given is not None)
    assert compiled.to_pylist() == python.to_pylist() == [given]


def test_a_field_that_is_named_twice_has_one_value() -> None:
    """The last one, as fastavro has it."""
    avro = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}] * 2}
    for found, errors in arrays(avro, [b"\x02\x04"]):
        assert [one.to_pylist() for one in found.flatten()] == [[2], [2]]
        assert errors == {}


def test_values_of_earlier_versions_are_read_by_their_own_schema() -> None:
    """By columns come only those that were written with the newest."""
    earlier = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
    newest = {**earlier, "fields": [{"name": "b", "type": "string", "default": "x"}, {"name": "a", "type": "int"}]}
    decoder = ValueDecoder(ValueSchema(encoding=Encoding.AVRO, newest=newest, versions={0: earlier, 1: newest}))
    kind = to_arrow_type(kind_of(newest).spark, timezone="UTC")
    parts = [SameVersion([written(earlier, {"a": 5})], bytes(8)), SameVersion([written(newest, {"b": "y", "a": 6})])]
    found, errors = decoder.array(parts, kind)
    assert found.to_pylist() == [{"b": "x", "a": 5}, {"b": "y", "a": 6}]
    assert errors == {}
    found, errors = decoder.array([parts[1], parts[1]._replace(version=bytes(7) + b"\x05")], kind)
    assert found.to_pylist() == [{"b": "y", "a": 6}, None]
    assert list(errors) == [1]


def test_a_schema_may_be_deeper_than_the_compiled_loop_goes() -> None:
    """Its values are read one by one; a type may be named in several places."""
    avro: Avro = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}
    for _ in range(70):
        avro = {"type": "array", "items": avro}
    pair = {"type": "record", "name": "P", "fields": [{"name": "x", "type": avro}, {"name": "y", "type": "R"}]}
    value: Any = {"a": 7}
    for _ in range(70):
        value = [value]
    (compiled, errors), (python, expected) = arrays(pair, [written(pair, {"x": value, "y": {"a": 8}})])
    assert errors == expected == {}
    assert compiled.to_pylist() == python.to_pylist() == [{"x": value, "y": {"a": 8}}]
