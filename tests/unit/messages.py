"""Protobuf messages as the documents describe them."""

from __future__ import annotations

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import FieldDescriptor


def fields_of(name: str) -> list[tuple[int, str, str]]:
    """Return number, type and name of a message's fields, in order."""
    fields = descriptor_pool.Default().FindMessageTypeByName(name).fields
    return [(field.number, _kind_of(field), field.name) for field in fields]


def _kind_of(field: FieldDescriptor) -> str:
    """Return a field's type as the documents write it."""
    if field.message_type is not None:
        return field.message_type.name
    names = {
        value: name.removeprefix("TYPE_").lower()
        for name, value in vars(FieldDescriptor).items()
        if name.startswith("TYPE_") and isinstance(value, int)
    }
    return names[field.type]
