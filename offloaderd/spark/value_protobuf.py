"""Values of Pulsar's type PROTOBUF_NATIVE: their type in Spark, and the reader of their bytes.

The schema has the descriptors of all files that the message needs (ProtobufNativeSchemaUtils, in JSON with base64), so
no generated code is. A value is read by the newest version, whatever version it was written with: fields are found by
their numbers, so one that was renamed has its new name.

| Protobuf | Spark |
|---|---|
| message, repeated, map | struct, array, map |
| int32 and its kind; int64 and its kind, uint32; uint64 | int; bigint; decimal(20, 0) |
| float, double, bool, string, bytes | float, double, boolean, string, binary |
| enum | string: the name, or the number of a value that the schema lacks; in proto2 such a value is left out |
| google.protobuf.Timestamp | timestamp |

A field that can be absent (a message, `optional`, one of a `oneof`) is null when it is; others have their default.
Messages inside of themselves, without a field, or with names that differ in case alone have no type in Spark; the error
names their place. Bytes of another message that are well formed are no error: Protobuf does not name what it holds.
"""

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from pyspark.sql import types as spark

from offloaderd.core.errors import InvalidInput

PROTOBUF_NATIVE = "PROTOBUF_NATIVE"
"""Pulsar's name of the type."""

FIELDS_MAX, DEPTH_MAX = 10_000, 64
"""Most fields of a type, each counted at every place where it is, and messages in each other; Protobuf decodes 100."""
KINDS_MAX = 16
"""Types in memory."""
Read = Callable[[Any], Any]


class _Kind(NamedTuple):
    """A type in Spark, and what makes a value of it out of protobuf's."""

    spark: spark.DataType
    read: Read


class ProtobufKind(NamedTuple):
    """The type of values, and the reader of one. It raises ValueError for bytes that are no such message."""

    spark: spark.StructType
    read: Callable[[bytes], dict[str, Any]]


def protobuf_kind(definition: Any) -> ProtobufKind:  # noqa: ANN401 - whatever JSON holds
    """Return the type of a schema of Pulsar's. Raises InvalidInput, with the place, for one that cannot be used.

    A schema is checked, asked for its type in Spark and read by: its type is made once for all three.
    """
    held = definition if isinstance(definition, Mapping) else {}
    name, files = held.get("rootMessageTypeName"), held.get("fileDescriptorSet")
    if not isinstance(name, str) or not isinstance(files, str):
        raise InvalidInput(
            "a schema of PROTOBUF_NATIVE is an object with fileDescriptorSet and rootMessageTypeName, as `pulsar-admin "
            "schemas get` prints it"
        )
    return _made(name, files)


@lru_cache(maxsize=KINDS_MAX)
def _made(name: str, files: str) -> ProtobufKind:
    root = _root(name, files)
    kind = _Walk().message(root, "", ())
    made = GetMessageClass(root)

    def read(data: bytes) -> dict[str, Any]:
        try:
            found = made.FromString(data)
        except DecodeError as error:
            raise ValueError(str(error)) from None
        value: dict[str, Any] = kind.read(found)
        return value

    return ProtobufKind(kind.spark, read)


def _root(name: str, files: str) -> Descriptor:
    """Return the descriptor of the values' message."""
    pool = DescriptorPool()
    try:
        for file in _in_order(FileDescriptorSet.FromString(base64.b64decode(files, validate=True)).file):
            pool.Add(file)
        return pool.FindMessageTypeByName(name)
    except KeyError:
        raise InvalidInput(f"fileDescriptorSet does not have the message {name}, or a file that it needs") from None
    except (binascii.Error, DecodeError, TypeError, ValueError) as error:
        raise InvalidInput(f"fileDescriptorSet is no set of descriptors: {error}") from None


def _in_order(files: Iterable[FileDescriptorProto]) -> list[FileDescriptorProto]:
    """Return files behind those that they need: Pulsar writes them in the order of a hash map."""
    left = {file.name: file for file in files}
    found: list[FileDescriptorProto] = []
    for name in list(left):
        waiting = [name]
        while waiting:
            file = left.get(waiting[-1])
            needed = [one for one in file.dependency if one in left and one not in waiting] if file is not None else []
            if needed:
                waiting.append(needed[0])
                continue
            waiting.pop()
            if file is not None:
                found.append(left.pop(file.name))
    return found


class _Struct(NamedTuple):
    spark: spark.StructType
    read: Read


class _Walk:
    """One pass over a type, which counts its fields: a small schema may describe a type without end."""

    def __init__(self) -> None:
        self._fields = 0

    def message(self, descriptor: Descriptor, where: str, outer: tuple[str, ...]) -> _Struct:
        """Return the type of a message at a place, inside of those in `outer`."""
        name = descriptor.full_name
        self._fields += len(descriptor.fields)
        if name in outer:
            raise _unsupported(where, f"{name}, which is inside of itself")
        if len(outer) >= DEPTH_MAX or self._fields > FIELDS_MAX:
            raise _unsupported(where, f"more than {DEPTH_MAX} messages in each other, or {FIELDS_MAX} fields in all")
        if not descriptor.fields:
            raise _unsupported(where, f"{name}, a message without a field")
        if len({one.name.lower() for one in descriptor.fields}) < len(descriptor.fields):
            raise _unsupported(where, f"{name}, in which two fields differ in the case of their names alone")
        fields = [
            (one, self._field(one, f"{where}.{one.name}".lstrip("."), (*outer, name))) for one in descriptor.fields
        ]
        has = GetMessageClass(descriptor).HasField  # a message may have a field of this name

        def read(message: Any) -> dict[str, Any]:  # noqa: ANN401 - a message of any type
            return {
                field.name: kind.read(getattr(message, field.name))
                if not field.has_presence or has(message, field.name)
                else None
                for field, kind in fields
            }

        return _Struct(spark.StructType([spark.StructField(field.name, kind.spark) for field, kind in fields]), read)

    def _field(self, field: FieldDescriptor, where: str, outer: tuple[str, ...]) -> _Kind:
        inner = field.message_type
        if inner is not None and inner.GetOptions().map_entry:
            key, value = (self._one(inner.fields_by_name[name], where, outer) for name in ("key", "value"))
            read_key, read_value = key.read, value.read
            return _Kind(
                spark.MapType(key.spark, value.spark),
                lambda items: [(read_key(one), read_value(items[one])) for one in items],
            )
        kind = self._one(field, where, outer)
        if not field.is_repeated:
            return kind
        read = kind.read
        return _Kind(spark.ArrayType(kind.spark), lambda items: [read(one) for one in items])

    def _one(self, field: FieldDescriptor, where: str, outer: tuple[str, ...]) -> _Kind:
        """Return the type of a single value of a field."""
        if field.message_type is not None:
            if _is_timestamp(field.message_type):
                return _Kind(spark.TimestampType(), lambda at: at.seconds * 1_000_000 + at.nanos // 1000)
            kind = self.message(field.message_type, where, outer)
            return _Kind(kind.spark, kind.read)
        if field.enum_type is not None:
            names = {one.number: one.name for one in reversed(field.enum_type.values)}  # the first of several counts
            return _Kind(spark.StringType(), lambda number: names.get(number, str(number)))
        return _SCALARS[field.type]


def _is_timestamp(descriptor: Descriptor) -> bool:
    fields = {one.name: one.type for one in descriptor.fields}
    return descriptor.full_name == "google.protobuf.Timestamp" and fields == {
        "seconds": FieldDescriptor.TYPE_INT64,
        "nanos": FieldDescriptor.TYPE_INT32,
    }


def _unsupported(where: str, what: str) -> InvalidInput:
    return InvalidInput(f"Spark has no type for {f'at {where}' if where else 'the value'}: {what}")


def _same(value: Any) -> Any:  # noqa: ANN401 - whatever protobuf has
    return value


_INT, _LONG = _Kind(spark.IntegerType(), _same), _Kind(spark.LongType(), _same)
_UNSIGNED = _Kind(spark.DecimalType(20, 0), Decimal)
_SCALARS = {
    FieldDescriptor.TYPE_INT32: _INT,
    FieldDescriptor.TYPE_SINT32: _INT,
    FieldDescriptor.TYPE_SFIXED32: _INT,
    FieldDescriptor.TYPE_INT64: _LONG,
    FieldDescriptor.TYPE_SINT64: _LONG,
    FieldDescriptor.TYPE_SFIXED64: _LONG,
    FieldDescriptor.TYPE_UINT32: _LONG,
    FieldDescriptor.TYPE_FIXED32: _LONG,
    FieldDescriptor.TYPE_UINT64: _UNSIGNED,
    FieldDescriptor.TYPE_FIXED64: _UNSIGNED,
    FieldDescriptor.TYPE_FLOAT: _Kind(spark.FloatType(), _same),
    FieldDescriptor.TYPE_DOUBLE: _Kind(spark.DoubleType(), _same),
    FieldDescriptor.TYPE_BOOL: _Kind(spark.BooleanType(), _same),
    FieldDescriptor.TYPE_STRING: _Kind(spark.StringType(), _same),
    FieldDescriptor.TYPE_BYTES: _Kind(spark.BinaryType(), _same),
}
