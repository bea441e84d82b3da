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

from offloaderd.core.errors import InvalidConfig
from offloaderd.spark.export.commit import Commit, renamed, widened


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


def test_fields_that_were_renamed_in_a_table() -> None:
    """At any depth, twice as well, by what a table remembers; what it does not have keeps its name."""
    ours = struct(
        id=INT, value=struct(a=INT, rows=ArrayType(struct(b=INT)), notes=MapType(TEXT, struct(c=INT))), new=INT
    )
    first = {"id": 1, "value": 2, "value.a": 10, "value.rows": 11, "value.rows.element.b": 13}
    first |= {"value.notes": 14, "value.notes.value.c": 17}
    second = {**{place: at for place, at in first.items() if place != "id"}, "key": 1}
    now = {"key": 1, "content": 2, "content.A": 10, "content.rows": 11, "content.rows.element.B": 13}
    now |= {"content.notes": 14, "content.notes.value.C": 17}
    assert renamed(ours, first, [first]) == ours
    found = struct(A=INT, rows=ArrayType(struct(B=INT)), notes=MapType(TEXT, struct(C=INT)))
    assert renamed(ours, now, [first, second, now]) == struct(key=INT, content=found, new=INT)
    gone = {"other": 3}
    assert renamed(ours, gone, [first, gone]) == ours, "it was dropped, and is added again"
