"""Changes of an export's columns from one run to the next: fields come and go, and keep their types.

In a table a column is identified by an id, and a user may rename it.
"""

from collections.abc import Mapping, Sequence

from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from offloaderd.core.errors import InvalidConfig


def widened(old: DataType, new: DataType, at: str = "value") -> DataType:
    """Return a type with the fields of both; a field that one of them lacks is null in its rows.

    Raises InvalidConfig, with its place, for a field of another type: files of both could not be read together.
    """
    if isinstance(old, StructType) and isinstance(new, StructType):
        fields = {field.name: field for field in new.fields}
        kept = [
            StructField(one.name, widened(one.dataType, fields[one.name].dataType, f"{at}.{one.name}"))
            if one.name in fields
            else one
            for one in old.fields
        ]
        return StructType([*kept, *(one for one in new.fields if one.name not in old.names)])
    if isinstance(old, ArrayType) and isinstance(new, ArrayType):
        return ArrayType(widened(old.elementType, new.elementType, f"{at}[]"))
    if isinstance(old, MapType) and isinstance(new, MapType) and old.keyType == new.keyType:
        return MapType(old.keyType, widened(old.valueType, new.valueType, f"{at}{{}}"))
    if old != new:
        raise InvalidConfig(
            f"the schema has {at} as {new.simpleString()}, and what is exported has it as {old.simpleString()}",
            hint="fields may be added and left out; for other types of fields that stay, name another target",
        )
    return old


def renamed(columns: StructType, now: Mapping[str, int], before: Sequence[Mapping[str, int]]) -> StructType:
    """Return columns with their names in a table `now`; `before` are its earlier schemas, the newest last.

    A schema has the id of each field by its place: its name after those of the fields around it, joined by dots. A
    field that is not in the table keeps its name.
    """
    places = {field_id: place for place, field_id in now.items()}

    def name(was: str, place: str) -> str:
        """Return the name of a field that was once at `was`, and is at `place` unless it was renamed."""
        if place in now:
            return place.rpartition(".")[2]
        ids = (one[was] for one in reversed(before) if was in one)
        return next((places[one] for one in ids if one in places), place).rpartition(".")[2]

    def kind(of: DataType, was: str, place: str) -> DataType:
        if isinstance(of, StructType):
            return struct(of, f"{was}.", f"{place}.")
        if isinstance(of, ArrayType):
            return ArrayType(kind(of.elementType, f"{was}.element", f"{place}.element"))
        if isinstance(of, MapType):
            return MapType(of.keyType, kind(of.valueType, f"{was}.value", f"{place}.value"))
        return of

    def struct(of: StructType, was: str, place: str) -> StructType:
        fields = []
        for one in of.fields:
            called = name(was + one.name, place + one.name)
            fields.append(StructField(called, kind(one.dataType, was + one.name, place + called)))
        return StructType(fields)

    return struct(columns, "", "")
