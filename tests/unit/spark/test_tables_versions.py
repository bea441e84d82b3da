"""Versions of a topic's schema, by which its table may be written."""

import json
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from offloaderd.core.errors import InvalidInput
from offloaderd.ledgers.pulsar.schemas import Schema
from offloaderd.spark.tables.versions import choices
from offloaderd.spark.value_schema import read_schema
from tests.unit.spark.test_value_schema import inline


def test_the_schema_is_that_of_the_newest_type() -> None:
    """All its versions, without deletions; types whose values are bytes have none."""

    def text_of(versions: Mapping[int, Schema]) -> str:
        return next(choices(versions)).text

    def version(kind: str, properties: Mapping[str, str] = MappingProxyType({}), *, deleted: bool = False) -> Schema:
        return Schema(type=kind, content=b"{}", deleted=deleted, created_ms=0, properties=properties)

    assert text_of({}) == ""
    assert text_of({0: version("AVRO", deleted=True)}) == ""
    assert text_of({0: version("KEY_VALUE")}) == ""
    made: dict[str, Any] = json.loads(
        text_of({0: version("JSON"), 1: version("JSON", deleted=True), 2: version("AVRO"), 3: version("AVRO")})
    )
    assert [(one["version"], one["type"]) for one in made["getSchemaResponses"]] == [(2, "AVRO"), (3, "AVRO")]
    assert text_of({0: version("PROTOBUF")}) == ""
    assert json.loads(text_of({0: version("PROTOBUF_NATIVE")}))["getSchemaResponses"][0]["data"] == "{}"
    types = {"key.schema.type": "INT32", "value.schema.type": "AVRO"}
    assert text_of({0: version("KEY_VALUE", {**types, "kv.encoding.type": "OTHER"})}) == ""
    assert text_of({0: version("KEY_VALUE", {**types, "key.schema.type": "PROTOBUF"})}) == ""
    content = inline(b"", b'{"type": "int"}')
    pairs = {
        0: version("KEY_VALUE", {**types, "kv.encoding.type": "SEPARATED"}),
        1: replace(version("KEY_VALUE", types), content=content),
        2: replace(version("KEY_VALUE", {**types, "kv.encoding.type": "INLINE"}), content=content),
    }
    (first, last) = json.loads(text_of(pairs))["getSchemaResponses"]
    assert (first["version"], last["version"]) == (1, 2), "one that is encoded in another way is left out"
    assert json.loads(last["data"]) == {"key": "", "value": {"type": "int"}}
    assert read_schema(text_of(pairs)).type.simpleString() == "struct<key:int,value:int>"
    damaged = text_of({0: version("KEY_VALUE", types)})
    with pytest.raises(InvalidInput, match="no JSON"):
        read_schema(damaged)


def test_earlier_versions_of_one_type_may_be_chosen() -> None:
    """Each comes with those before it, newest first; one of another type, or that was deleted, is no choice."""
    kinds = {0: "PROTOBUF", 1: "AVRO", 2: "JSON", 3: "AVRO", 4: "AVRO", 5: "AVRO"}
    held = {
        number: Schema(type=kind, content=b"1", deleted=number == 4, created_ms=0) for number, kind in kinds.items()
    }
    found = [(one.version, json.loads(one.text)["getSchemaResponses"]) for one in choices(held)]
    assert [(newest, [one["version"] for one in given]) for newest, given in found] == [
        (5, [1, 3, 5]),
        (3, [1, 3]),
        (1, [1]),
    ]
    assert [tuple(one) for one in choices({0: held[1], 1: held[0]})] == [(1, "")]
    assert [tuple(one) for one in choices({})] == [(-1, "")]
