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
    first = {"id": 1, "value": 2, "value.a": 10, "value.rows": 11, "value.rows.element": 12, "value.rows.element.b": 13}
    first |= {"value.notes": 14, "value.notes.value": 16, "value.notes.value.c": 17}
    second = {**{place: at for place, at in first.items() if place != "id"}, "key": 1}
    now = {"key": 1, "content": 2, "content.A": 10, "content.rows": 11, "content.rows.element": 12}
    now |= {"content.rows.element.B": 13, "content.notes": 14, "content.notes.value": 16, "content.notes.value.C": 17}
    assert renamed(ours, first, [first]) == (ours, {})
    found = struct(A=INT, rows=ArrayType(struct(B=INT)), notes=MapType(TEXT, struct(C=INT)))
    assert renamed(ours, now, [first, second, now]) == (struct(key=INT, content=found, new=INT), {})
    gone = {"other": 3}
    assert renamed(ours, gone, [first, gone]) == (ours, {}), "it was dropped, and is added again"


def test_fields_that_a_table_has_by_an_alias() -> None:
    """At any depth, below a field that was renamed in the table as well; the first alias that it has, once."""
    ours = struct(key=INT, value=struct(b=ArrayType(struct(d=INT)), m=MapType(TEXT, struct(f=INT))))
    aliases = {"key": ["older", "old"], "value.b": ["a"], "value.b.element.d": ["c"], "value.m.value.f": ["e"]}
    first = {"old": 1, "value": 2, "value.a": 3, "value.a.element": 4, "value.a.element.c": 5}
    first |= {"value.m": 6, "value.m.value": 7, "value.m.value.e": 8}
    now = {"old": 1, "content": 2, "content.a": 3, "content.a.element": 4, "content.a.element.c": 5}
    now |= {"content.m": 6, "content.m.value": 7, "content.m.value.e": 8}
    found = struct(a=ArrayType(struct(c=INT)), m=MapType(TEXT, struct(e=INT)))
    moves = {"old": "key", "content.a": "b", "content.a.element.c": "d", "content.m.value.e": "f"}
    assert renamed(ours, now, [first, now], aliases) == (struct(old=INT, content=found), moves)


@pytest.mark.parametrize(
    ("ours", "now", "before", "names"),
    [
        pytest.param(struct(a=INT, b=INT), {"a": 1}, {}, ["a", "b"], id="the schema still has the other field"),
        pytest.param(struct(b=INT), {"a": 1, "b": 2}, {}, ["b"], id="the table has both"),
        pytest.param(struct(b=INT), {"a": 1, "c": 2}, {"a": 1, "b": 2}, ["c"], id="the table has it by another name"),
        pytest.param(struct(b=INT), {"x": 1}, {"a": 1}, ["x"], id="the column was renamed in the table"),
        pytest.param(struct(b=INT), {"a": 1}, {"a": 1, "b": 2}, ["b"], id="the table had both"),
        pytest.param(struct(b=INT), {"a": 1, "B": 2}, {}, ["b"], id="the table has it in other letters"),
        pytest.param(struct(b=INT, c=INT), {"a": 1}, {"c": 1}, ["b", "a"], id="a user gave it the name of the alias"),
    ],
)
def test_aliases_that_move_nothing(
    ours: StructType, now: dict[str, int], before: dict[str, int], names: list[str]
) -> None:
    """A column never takes what belongs to another."""
    found, moves = renamed(ours, now, [before, now], {"b": ["a"]})
    assert (found.names, moves) == (names, {})


def test_an_alias_is_the_name_of_a_field_beside() -> None:
    """A dot is no way into a record."""
    ours, now = struct(name=INT, item=struct(n=INT)), {"item": 1, "item.n": 2}
    assert renamed(ours, now, [now], {"name": ["item.n"]}) == (ours, {})


def test_a_name_of_a_user_below_a_field_with_an_alias() -> None:
    """It stays, before that field is renamed in the table and after."""
    ours, first = struct(q=struct(n=INT)), {"p": 1, "p.n": 2}
    second, third = {"p": 1, "p.k": 2}, {"q": 1, "q.k": 2}
    assert renamed(ours, second, [first, second], {"q": ["p"]}) == (struct(p=struct(k=INT)), {"p": "q"})
    assert renamed(ours, third, [first, second, third], {"q": ["p"]}) == (struct(q=struct(k=INT)), {})


@pytest.mark.parametrize("aliases", [["a", "b"], ["b", "a"]])
def test_a_field_that_is_renamed_twice(aliases: list[str]) -> None:
    """In whatever order it has its aliases; a field that goes back to an earlier name leaves the column its own."""
    before = [{"a": 1}, {"b": 1}]
    assert renamed(struct(c=INT), {"b": 1}, before, {"c": aliases}) == (struct(b=INT), {"b": "c"})
    assert renamed(struct(a=INT), {"b": 1}, before, {"a": ["b"]}) == (struct(b=INT), {})


def test_a_new_field_with_an_earlier_name_of_a_column() -> None:
    """Rows of before would have their values in it."""
    with pytest.raises(
        InvalidConfig, match=r"schema has v\.b and v\.a, and both are names of one column .*: b"
    ) as caught:
        renamed(struct(v=struct(b=INT, a=INT)), {"v": 1, "v.b": 2}, [{"v": 1, "v.a": 2}], {"v.b": ["a"]})
    assert "a name that the column never had" in str(caught.value.hint)


def test_two_fields_with_one_alias() -> None:
    """The first one gets the column."""
    found = renamed(struct(b=INT, c=INT), {"a": 1}, [{"a": 1}], {"b": ["a"], "c": ["a"]})
    assert found == (struct(a=INT, c=INT), {"a": "b"})
