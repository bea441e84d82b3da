"""The values of messages, decoded by a schema into arrays of Arrow."""

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from io import BytesIO
from typing import Any, NamedTuple

import fastavro
import pyarrow as pa

from offloaderd.core.errors import InvalidInput
from offloaderd.format.pulsar.key_value import split
from offloaderd.format.pulsar.messages import Message
from offloaderd.spark.value_columns import AvroColumns
from offloaderd.spark.value_protobuf import protobuf_kind
from offloaderd.spark.value_schema import Encoding, KeyValueSchema, Schema, ValueSchema
from offloaderd.spark.value_types import AVRO_READERS, PRIMITIVES, kind_of

fastavro.read.LOGICAL_READERS.update(AVRO_READERS)


class MalformedValue(ValueError):
    """A value does not fit its schema; the message names the difference."""


class SameVersion(NamedTuple):
    """Contents of messages that were written with one version of the schema; None for one without a value.

    `keys` are those of the messages; only pairs whose parts are written apart need them.
    """

    contents: Sequence[bytes | None]
    version: bytes = b""
    keys: Sequence[bytes | None] = ()


class ValueDecoder:
    """Reads the values of one table."""

    def __init__(self, schema: ValueSchema) -> None:
        self._known = schema.versions.keys()
        self._versions: dict[int, Any] = {}
        self._columns: AvroColumns | None = None
        if schema.encoding is Encoding.PRIMITIVE:
            self._of_version = self._of_bytes(PRIMITIVES[schema.newest].read)
            return
        if schema.encoding is Encoding.PROTOBUF:
            self._of_version = self._of_bytes(protobuf_kind(schema.newest).read)
            return
        newest = kind_of(schema.newest)
        if schema.encoding is Encoding.JSON:
            self._of_version = self._of_json(newest.of_json)
            return
        self._newest = fastavro.parse_schema(newest.avro)
        self._columns = AvroColumns(newest.avro)
        self._versions = dict(self._writers(schema))
        self._known = self._versions.keys()
        self._of_version = self._of_avro

    def _writers(self, schema: ValueSchema) -> Iterator[tuple[int, Any]]:
        """Yield the versions of a schema that values in Avro are read by; one that Spark has no type for is none."""
        for number, one in schema.versions.items():
            if one == schema.newest:
                yield number, self._newest
                continue
            try:
                kind = kind_of(one)
            except InvalidInput:
                continue
            yield number, fastavro.parse_schema(kind.avro)

    def array(self, parts: Iterable[SameVersion], kind: pa.DataType) -> tuple[pa.Array, dict[int, str]]:
        """Return the values as an array, and by their index in it the errors of values that are null for that."""
        values: list[Any] = []
        wrong: dict[int, str] = {}
        parts = list(parts)
        if self._columns is not None and all(self._is_newest(version) for _, version, _ in parts):
            found = self._columns.array([one for contents, _, _ in parts for one in contents], kind)
            if found is not None:
                return found, wrong
        for contents, version, _ in parts:
            try:
                read = self._reader(version)
            except MalformedValue as error:
                wrong |= {len(values) + at: str(error) for at, one in enumerate(contents) if one is not None}
                values += [None] * len(contents)
                continue
            for one in contents:
                try:
                    values.append(None if one is None else read(one))
                except MalformedValue as error:
                    wrong[len(values)] = str(error)
                    values.append(None)
        try:
            return pa.array(values, type=kind), wrong
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            for at, value in enumerate(values):
                try:
                    pa.array([value], type=kind)
                except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
                    values[at] = None
                    wrong[at] = str(error)
            return pa.array(values, type=kind), wrong

    def value(self, message: Message) -> Any:  # noqa: ANN401 - whatever the schema says
        """Return a message's value. Raises MalformedValue."""
        return self._reader(message.schema_version)(message.data)

    def _is_newest(self, version: bytes) -> bool:
        """Return whether values of a version, in Avro, were written with the newest schema."""
        number = int.from_bytes(version, "big", signed=True)
        return not version or not self._versions or self._versions.get(number) is self._newest

    def _reader(self, version: bytes) -> Callable[[bytes], Any]:
        """Return the reader of values of a version; it raises MalformedValue, as this does for an unknown version."""
        if version and self._known and (number := int.from_bytes(version, "big", signed=True)) not in self._known:
            given = ", ".join(map(str, sorted(self._known)))
            raise MalformedValue(f"written with version {number} of the schema, and only {given} can be read")
        return self._of_version(version)

    def _of_bytes(self, read: Callable[[bytes], Any]) -> Callable[[bytes], Callable[[bytes], Any]]:
        def value(data: bytes) -> Any:  # noqa: ANN401 - whatever the schema says
            try:
                return read(data)
            except (ValueError, struct.error) as error:
                raise MalformedValue(f"{len(data)} bytes are no such value: {error}") from None

        return lambda _: value

    def _of_json(self, read: Callable[[Any], Any]) -> Callable[[bytes], Callable[[bytes], Any]]:
        def value(data: bytes) -> Any:  # noqa: ANN401 - whatever the schema says
            try:
                return read(json.loads(data, parse_float=Decimal))
            except (ValueError, ArithmeticError, RecursionError) as error:
                raise MalformedValue(str(error)) from None

        return lambda _: value

    def _of_avro(self, version: bytes) -> Callable[[bytes], Any]:
        """Return the reader of values that were written with a version; with the newest if it is not known."""
        newest, writer = self._newest, self._newest
        if version and self._versions:
            writer = self._versions[int.from_bytes(version, "big", signed=True)]
        reader = None if writer is newest else newest

        def value(data: bytes) -> Any:  # noqa: ANN401 - whatever the schema says
            stream = BytesIO(data)
            try:
                found = fastavro.schemaless_reader(stream, writer, reader)
            except Exception as error:  # noqa: BLE001 - foreign bytes make the library raise anything
                why = f"{type(error).__name__} {error}".partition(" from <")[0].strip()  # the address of the stream
                raise MalformedValue(f"{len(data)} bytes are no such value: {why}") from None
            if left := len(data) - stream.tell():
                raise MalformedValue(f"{left} bytes are left behind the value")
            return found

        return value


class KeyValueDecoder:
    """Reads the pairs of one table. A pair is null if it has neither part."""

    def __init__(self, schema: KeyValueSchema) -> None:
        self._key, self._value = ValueDecoder(schema.key), ValueDecoder(schema.value)
        self._separated = schema.separated

    def array(self, parts: Iterable[SameVersion], kind: pa.DataType) -> tuple[pa.Array, dict[int, str]]:
        """See ValueDecoder."""
        keys: list[SameVersion] = []
        values: list[SameVersion] = []
        wrong: dict[int, str] = {}
        empty: list[bool] = []
        for contents, version, given in parts:
            if self._separated:
                pairs = list(zip(given, contents, strict=True))
            else:
                pairs, unsplit = _pairs(contents)
                wrong |= {len(empty) + at: why for at, why in unsplit.items()}
            keys.append(SameVersion([key for key, _ in pairs], version))
            values.append(SameVersion([value for _, value in pairs], version))
            empty += [key is None and value is None for key, value in pairs]
        arrays = []
        for name, decoder, side in (("key", self._key, keys), ("value", self._value, values)):
            found, missed = decoder.array(side, kind.field(name).type)
            arrays.append(found)
            wrong = {at: f"{name}: {why}" for at, why in missed.items()} | wrong
        for at in wrong:
            empty[at] = True
        fields = [kind.field(at) for at in range(kind.num_fields)]
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=pa.array(empty, pa.bool_())), wrong


def _pairs(contents: Sequence[bytes | None]) -> tuple[list[tuple[bytes | None, bytes | None]], dict[int, str]]:
    """Return the parts of each content, and by its index the error of one that is no pair."""
    found: list[tuple[bytes | None, bytes | None]] = []
    wrong: dict[int, str] = {}
    for at, one in enumerate(contents):
        try:
            found.append((None, None) if one is None else split(one))
        except ValueError as error:
            wrong[at] = str(error)
            found.append((None, None))
    return found, wrong


Decoder = ValueDecoder | KeyValueDecoder


def decoder_of(schema: Schema) -> Decoder:
    """Return the decoder of a schema's values. Raises InvalidInput if Spark has no type for them."""
    return KeyValueDecoder(schema) if isinstance(schema, KeyValueSchema) else ValueDecoder(schema)
