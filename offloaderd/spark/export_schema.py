"""How the type of an export's values may change from one run to the next: fields come and go, and keep their types."""

from __future__ import annotations

from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from offloaderd.errors import InvalidConfig


def widened(old: DataType, new: DataType, at: str = "value") -> DataType:
    """Return a type with the fields of both; a field that one of them lacks is null in its rows.

    Raises InvalidConfig, with its place, for what is of another type now: files of both could not be read together.
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
