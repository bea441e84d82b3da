"""Values of PROTOBUF_NATIVE: their types, what is absent and what is default, and schemas that cannot be used."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from decimal import Decimal
from itertools import permutations
from typing import Any

import pytest
from google.protobuf import timestamp_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from pyspark.sql.pandas.types import to_arrow_type

from offloaderd.core.errors import InvalidInput
from offloaderd.spark import value_protobuf
from offloaderd.spark.value_protobuf import protobuf_kind
from offloaderd.spark.value_schema import Encoding, KeyValueSchema, ValueSchema, read_schema
from offloaderd.spark.values import SameVersion, ValueDecoder, decoder_of

Field = FieldDescriptorProto
STAMP = "google/protobuf/timestamp.proto"


def file(*messages: DescriptorProto, name: str = "orders.proto", needs: tuple[str, ...] = ()) -> FileDescriptorProto:
    """Return a file of the package `shop` in proto3."""
    return FileDescriptorProto(name=name, package="shop", syntax="proto3", dependency=needs, message_type=messages)


def message(name: str, *fields: FieldDescriptorProto, **other: Any) -> DescriptorProto:  # noqa: ANN401
    """Return a message."""
    return DescriptorProto(name=name, field=fields, **other)


def field(name: str, number: int, kind: int, *, many: bool = False, of: str = "", **other: Any) -> FieldDescriptorProto:  # noqa: ANN401
    """Return a field."""
    label = Field.LABEL_REPEATED if many else Field.LABEL_OPTIONAL
    given: Any = {"type": kind, **({"type_name": of} if of else {}), **other}
    return FieldDescriptorProto(name=name, number=number, label=label, **given)


def described(*files: FileDescriptorProto, stamp_last: bool = False) -> str:
    """Return a set of files, with Protobuf's timestamp, as text."""
    stamp = FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(stamp)
    held = [*files, stamp] if stamp_last else [stamp, *files]
    return base64.b64encode(FileDescriptorSet(file=held).SerializeToString()).decode()


def definition(*files: FileDescriptorProto, root: str = "shop.Order") -> dict[str, str]:
    """Return what Pulsar's registry has of a schema."""
    return {
        "fileDescriptorSet": described(*files),
        "rootMessageTypeName": root,
        "rootFileDescriptorName": files[-1].name if files else "",
    }


def written(*files: FileDescriptorProto, root: str = "shop.Order", **values: Any) -> bytes:  # noqa: ANN401
    """Return the bytes of a value."""
    pool = DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    for one in files:
        pool.Add(one)
    data: bytes = GetMessageClass(pool.FindMessageTypeByName(root))(**values).SerializeToString()
    return data


NUMBERS = ["int32", "sint32", "sfixed32", "int64", "sint64", "sfixed64", "uint32", "fixed32", "uint64", "fixed64"]
KINDS = [*NUMBERS, "float", "double", "bool", "string", "bytes"]
SCALARS = file(
    message("Order", *(field(name, at, getattr(Field, f"TYPE_{name.upper()}")) for at, name in enumerate(KINDS, 1)))
)


def test_every_scalar_has_a_type_that_holds_all_its_values() -> None:
    """The largest and the least of each."""
    kind = protobuf_kind(definition(SCALARS))
    assert kind.spark.simpleString() == (
        "struct<int32:int,sint32:int,sfixed32:int,int64:bigint,sint64:bigint,sfixed64:bigint,uint32:bigint,"
        "fixed32:bigint,uint64:decimal(20,0),fixed64:decimal(20,0),float:float,double:double,bool:boolean,"
        "string:string,bytes:binary>"
    )
    most: dict[str, Any] = {"int32": 2**31 - 1, "sint32": -(2**31), "sfixed32": -1, "int64": 2**63 - 1}
    most |= {"sint64": -(2**63), "sfixed64": -1, "uint32": 2**32 - 1, "fixed32": 2**32 - 1, "uint64": 2**64 - 1}
    most |= {"fixed64": 2**64 - 1, "float": 0.5, "double": -1e300, "bool": True, "string": "å", "bytes": b"\xff"}
    found = ValueDecoder(ValueSchema(encoding=Encoding.PROTOBUF, newest=definition(SCALARS), versions={}))
    array, wrong = found.array(
        [SameVersion([written(SCALARS, **most), written(SCALARS), None])], to_arrow_type(kind.spark, timezone="UTC")
    )
    assert not wrong
    full, empty, nothing = array.to_pylist()
    assert full == {**most, "uint64": Decimal(2**64 - 1), "fixed64": Decimal(2**64 - 1)}
    assert empty == dict.fromkeys(most, 0) | {"bool": False, "string": "", "bytes": b""}
    assert nothing is None


NESTED = file(
    message(
        "Order",
        field("at", 1, Field.TYPE_MESSAGE, of=".google.protobuf.Timestamp"),
        field("lines", 2, Field.TYPE_MESSAGE, many=True, of=".shop.Line"),
        field("counts", 3, Field.TYPE_MESSAGE, many=True, of=".shop.Order.CountsEntry"),
        field("state", 4, Field.TYPE_ENUM, of=".shop.Order.State"),
        field("note", 5, Field.TYPE_STRING, oneof_index=0, proto3_optional=True),
        nested_type=[
            message(
                "CountsEntry",
                field("key", 1, Field.TYPE_STRING),
                field("value", 2, Field.TYPE_MESSAGE, of=".shop.Line"),
                options={"map_entry": True},
            )
        ],
        enum_type=[{"name": "State", "value": [{"name": "NEW", "number": 0}, {"name": "SENT", "number": 1}]}],
        oneof_decl=[{"name": "_note"}],
    ),
    message("Line", field("article", 1, Field.TYPE_STRING)),
    needs=(STAMP,),
)


def test_messages_lists_maps_and_moments() -> None:
    """What can be absent is null when it is; an enumeration is its name, or the number of a newer one."""
    schema = ValueSchema(encoding=Encoding.PROTOBUF, newest=definition(NESTED), versions={})
    assert schema.type.simpleString() == (
        "struct<at:timestamp,lines:array<struct<article:string>>,counts:map<string,struct<article:string>>,"
        "state:string,note:string>"
    )
    full = written(
        NESTED,
        at=datetime(1970, 1, 1, 0, 0, 1, 2, UTC),
        lines=[{"article": "a"}, {"article": "b"}],
        counts={"x": {"article": "c"}},
        state=1,
        note="",
    )
    newer = written(NESTED, state=7)
    found, wrong = ValueDecoder(schema).array([SameVersion([full, newer])], to_arrow_type(schema.type, timezone="UTC"))
    assert not wrong
    first, second = found.to_pylist()
    assert first == {
        "at": datetime(1970, 1, 1, 0, 0, 1, 2, UTC),
        "lines": [{"article": "a"}, {"article": "b"}],
        "counts": [("x", {"article": "c"})],
        "state": "SENT",
        "note": "",
    }
    assert second == {"at": None, "lines": [], "counts": [], "state": "7", "note": None}


def test_fields_are_found_by_their_numbers() -> None:
    """A field that was renamed has its new name in old values as well; one that is gone is left out."""
    old = file(message("Order", field("id", 1, Field.TYPE_INT32), field("gone", 2, Field.TYPE_STRING)))
    new = file(message("Order", field("number", 1, Field.TYPE_INT64), field("late", 3, Field.TYPE_STRING)))
    versions = [
        {"version": at, "type": "PROTOBUF_NATIVE", "data": json.dumps(definition(one))}
        for at, one in enumerate((old, new))
    ]
    schema = read_schema(json.dumps({"getSchemaResponses": versions}))
    assert isinstance(schema, ValueSchema)
    data = written(old, id=5, gone="x")
    found, wrong = ValueDecoder(schema).array(
        [SameVersion([data], number.to_bytes(8, "big")) for number in (0, 1, 2)], to_arrow_type(schema.type)
    )
    assert found.to_pylist() == [{"number": 5, "late": ""}, {"number": 5, "late": ""}, None]
    assert "version 2 of the schema, and only 0, 1 can be read" in wrong[2]


def test_bytes_that_are_no_message_are_malformed() -> None:
    """That value is null, and says why; those beside it are read."""
    schema = ValueSchema(encoding=Encoding.PROTOBUF, newest=definition(SCALARS), versions={})
    found, wrong = ValueDecoder(schema).array(
        [SameVersion([b"\xff\xff", written(SCALARS, int32=3)])], to_arrow_type(schema.type)
    )
    assert sorted(wrong) == [0]
    assert "2 bytes are no such value" in wrong[0]
    assert found.to_pylist()[1]["int32"] == 3


def test_a_pair_may_have_parts_of_it() -> None:
    """A key of one type and a value of another."""
    properties = {"key.schema.type": "STRING", "value.schema.type": "PROTOBUF_NATIVE", "kv.encoding.type": "SEPARATED"}
    held = {"key": "", "value": definition(SCALARS)}
    schema = read_schema(json.dumps([{"type": "KEY_VALUE", "properties": properties, "data": json.dumps(held)}]))
    assert isinstance(schema, KeyValueSchema)
    contents = SameVersion([written(SCALARS, int32=3)], keys=[b"k"])
    found, wrong = decoder_of(schema).array([contents], to_arrow_type(schema.type))
    assert not wrong
    assert (found.to_pylist()[0]["key"], found.to_pylist()[0]["value"]["int32"]) == ("k", 3)


def test_files_may_come_in_any_order() -> None:
    """Pulsar's registry has them in the order of a hash map."""
    files = [
        file(message("Line", field("article", 1, Field.TYPE_STRING)), name="line.proto"),
        file(
            message("Page", field("line", 1, Field.TYPE_MESSAGE, of=".shop.Line")),
            name="p.proto",
            needs=("line.proto",),
        ),
        file(
            message("Order", field("page", 1, Field.TYPE_MESSAGE, of=".shop.Page")),
            needs=("p.proto", "line.proto", STAMP),
        ),
    ]
    for order in permutations(files):
        kind = protobuf_kind({**definition(*order), "fileDescriptorSet": described(*order, files[0], stamp_last=True)})
        assert kind.spark.simpleString() == "struct<page:struct<line:struct<article:string>>>"
        assert kind.read(written(*files, page={"line": {"article": "a"}})) == {"page": {"line": {"article": "a"}}}


def test_names_of_fields_are_any() -> None:
    """Also those of Protobuf's own methods; the first of several names of a number is the one."""
    names = ["HasField", "Clear", "DESCRIPTOR", "FromString", "ListFields", "from"]
    fields = [
        field(name, at, Field.TYPE_STRING, oneof_index=at - 1, proto3_optional=True) for at, name in enumerate(names, 1)
    ]
    state = field("state", 9, Field.TYPE_ENUM, of=".shop.Order.State")
    values = [{"name": "ZERO", "number": 0}, {"name": "FIRST", "number": 1}, {"name": "OLD", "number": 1}]
    made = file(
        message(
            "Order",
            *fields,
            state,
            oneof_decl=[{"name": f"_{name}"} for name in names],
            enum_type=[{"name": "State", "value": values, "options": {"allow_alias": True}}],
        )
    )
    read = protobuf_kind(definition(made)).read
    given = {name: f"a {name}" for name in names}
    assert read(written(made, state=1, **given)) == {**given, "state": "FIRST"}
    assert read(written(made)) == {**dict.fromkeys(names), "state": "ZERO"}


def wide(count: int) -> FileDescriptorProto:
    """Return messages of two fields each, whose type has as many fields as two to that power."""
    inner = [
        message(
            name, *(field(one, at, Field.TYPE_MESSAGE, of=f".shop.M{number + 1}") for at, one in enumerate("ab", 1))
        )
        for number in range(count)
        for name in (f"M{number}" if number else "Order",)
    ]
    return file(*inner, message(f"M{count}", field("end", 1, Field.TYPE_INT32)))


def deep(count: int) -> FileDescriptorProto:
    """Return so many messages in each other."""
    inner = [
        message(f"M{number}" if number else "Order", field("in", 1, Field.TYPE_MESSAGE, of=f".shop.M{number + 1}"))
        for number in range(count)
    ]
    return file(*inner, message(f"M{count}", field("end", 1, Field.TYPE_INT32)))


INSIDE = file(message("Order", field("inner", 1, Field.TYPE_MESSAGE, many=True, of=".shop.Order")))
EMPTY = file(message("Order", field("inner", 1, Field.TYPE_MESSAGE, of=".shop.None")), message("None"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "an object with fileDescriptorSet and rootMessageTypeName"),
        ([], "an object with fileDescriptorSet and rootMessageTypeName"),
        ({**definition(SCALARS), "fileDescriptorSet": "%"}, "no set of descriptors"),
        ({**definition(SCALARS), "fileDescriptorSet": "/w=="}, "no set of descriptors"),
        (definition(SCALARS, root="shop.Other"), r"the message shop\.Other"),
        (definition(file(message("Order", field("a", 1, Field.TYPE_INT32)), needs=("missing.proto",))), "descriptors"),
        (definition(INSIDE), "at inner: shop.Order, which is inside of itself"),
        (definition(EMPTY), "at inner: shop.None, a message without a field"),
        (definition(wide(40)), "10000 fields in all"),
        (definition(deep(70)), "64 messages in each other"),
        (definition(file(message("Order", *(field(one, at, 5) for at, one in enumerate("aA", 1))))), "in the case of"),
    ],
)
def test_schemas_that_cannot_be_used_say_why(given: object, said: str) -> None:
    """By the option, as a user gives it."""
    text = json.dumps({"version": 0, "type": "PROTOBUF_NATIVE", "data": given})
    with pytest.raises(InvalidInput, match=said):
        read_schema(text)


def test_the_type_of_a_schema_is_made_once() -> None:
    """Checking it, its type in Spark and its reader all need it, and its descriptors may be large."""
    before = value_protobuf._made.cache_info()
    schema = read_schema(json.dumps({"version": 0, "type": "PROTOBUF_NATIVE", "data": definition(wide(3))}))
    assert isinstance(schema, ValueSchema)
    assert schema.type == protobuf_kind(definition(wide(3))).spark
    ValueDecoder(schema)
    after = value_protobuf._made.cache_info()
    assert (after.misses - before.misses, after.hits - before.hits) == (1, 3)
