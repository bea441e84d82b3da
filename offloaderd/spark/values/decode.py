"""Values of messages by their schema: from bytes to what Arrow takes for the column's type. Pure."""

import json
from decimal import Decimal
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa

from offloaderd.format.pulsar.messages import Message
from offloaderd.spark.values.schema import Encoding, ValueSchema
from offloaderd.spark.values.types import kind_of


class MalformedValue(ValueError):
    """A value is not what its schema says; the message says how."""


class ValueDecoder:
    """Reads the values of one table."""

    def __init__(self, schema: ValueSchema) -> None:
        newest = kind_of(schema.newest)
        self._of_json = newest.of_json if schema.encoding is Encoding.JSON else None
        self._newest = fastavro.parse_schema(newest.avro)
        self._versions = {
            number: fastavro.parse_schema(kind_of(one).avro) if one != schema.newest else self._newest
            for number, one in schema.versions.items()
        }

    def array(self, messages: list[Message | None], kind: pa.DataType) -> tuple[pa.Array, dict[int, str]]:
        """Return the values as an array, and what is wrong with those that are null for that, by their place in it.

        None stands for a message whose value is none, or cannot be seen.
        """
        values: list[Any] = []
        wrong: dict[int, str] = {}
        for at, message in enumerate(messages):
            try:
                values.append(None if message is None else self.value(message))
            except MalformedValue as error:
                values.append(None)
                wrong[at] = str(error)
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
        if self._of_json is not None:
            try:
                return self._of_json(json.loads(message.data, parse_float=Decimal))
            except (ValueError, ArithmeticError, RecursionError) as error:
                raise MalformedValue(str(error)) from None
        writer = self._writer(message.schema_version)
        stream = BytesIO(message.data)
        try:
            if writer is self._newest:
                value = fastavro.schemaless_reader(stream, writer)
            else:
                value = fastavro.schemaless_reader(stream, writer, self._newest)
        except Exception as error:  # noqa: BLE001 - the library raises whatever foreign bytes make of it
            told = f"{type(error).__name__} {error}".strip()
            raise MalformedValue(f"{len(message.data)} bytes are no such value: {told}") from None
        if left := len(message.data) - stream.tell():
            raise MalformedValue(f"{left} bytes are left behind the value")
        return value

    def _writer(self, version: bytes) -> Any:  # noqa: ANN401 - the library's own
        """Return the schema that a value was written with; the newest where nobody says which."""
        if not version or not self._versions:
            return self._newest
        number = int.from_bytes(version, "big", signed=True)
        if number not in self._versions:
            given = ", ".join(map(str, sorted(self._versions)))
            raise MalformedValue(f"written with version {number} of the schema, of which {given} were given")
        return self._versions[number]
