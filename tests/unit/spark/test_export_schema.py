"""How the type of an export's values may change: what is gained and lost, and what stays as it is."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from offloaderd.errors import InvalidConfig
from offloaderd.spark.export_commit import Commit
from offloaderd.spark.export_schema import widened


def struct(**fields: DataType) -> StructType:
    """Return a struct of these fields."""
    return StructType([StructField(name, kind) for name, kind in fields.items()])


INT, TEXT = IntegerType(), StringType()


def test_fields_come_and_go() -> None:
    """At any depth; those that an earlier run had stay first, and in their order."""
    old = struct(id=INT, item=struct(name=TEXT), tags=ArrayType(struct(a=INT)), notes=MapType(TEXT, struct(a=INT)))
    new = struct(
        total=INT, item=struct(name=TEXT, price=INT), tags=ArrayType(struct(b=INT)), notes=MapType(TEXT, struct(a=INT))
    )
    assert widened(old, old) == old
    assert widened(old, new) == struct(
        id=INT,
        item=struct(name=TEXT, price=INT),
        tags=ArrayType(struct(a=INT, b=INT)),
        notes=MapType(TEXT, struct(a=INT)),
        total=INT,
    )


@pytest.mark.parametrize(
    ("new", "place"),
    [
        (struct(id=LongType()), "value.id as bigint"),
        (struct(item=TEXT), "value.item as string"),
        (struct(tags=ArrayType(TEXT)), r"value.tags\[\] as string"),
        (struct(notes=MapType(TEXT, TEXT)), r"value.notes\{\} as string"),
        (TEXT, "value as string"),
    ],
)
def test_another_type_is_refused_by_its_place(new: DataType, place: str) -> None:
    """Files of both could not be read together."""
    old = struct(id=INT, item=struct(name=TEXT), tags=ArrayType(INT), notes=MapType(TEXT, INT))
    with pytest.raises(InvalidConfig, match=place):
        widened(old, new)


def test_a_target_takes_its_own_source_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """With values of a wider type, and not without values, nor of another topic."""
    types = {"struct<id:int>": struct(id=INT), "struct<id:int,item:string>": struct(id=INT, item=TEXT)}
    monkeypatch.setattr(DataType, "fromDDL", types.__getitem__)  # which needs Java
    old = {"topic": "orders", "value": "struct<id:int>"}
    new = {**old, "value": "struct<id:int,item:string>"}
    commit = Commit(number=3, source=old, positions={"orders": "1:2"}, staging="3-a")
    wide = commit.checked(new, "/archive")
    assert wide.source == new
    assert wide.is_same(commit)
    assert wide.checked(old, "/archive").source == new, "a field that is left out stays a column"
    for other in ({"topic": "orders"}, {**new, "topic": "returns"}, {**new, "start": "1:0"}):
        with pytest.raises(InvalidConfig, match="export of something else"):
            commit.checked(other, "/archive")
