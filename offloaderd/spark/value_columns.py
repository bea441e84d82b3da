"""Values in Avro as arrays of Arrow, by columns, with the compiled loop (core/native.py).

It reads values by the schema that they were written with. A map is an array of records of a key and a value, in Avro
as in Arrow. For unions of more than a type and null, and for values of which one is damaged, there is no answer;
`values.py` reads those one by one, and says what is wrong.
"""

import array
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from offloaderd.core import native
from offloaderd.spark.value_types import RANGES, Avro, Range

_KINDS = {"boolean": "?", "int": "i", "long": "q", "float": "f", "double": "d", "bytes": "s", "string": "s"}
"""The primitive types by the letters of the compiled loop."""
FIXED_BYTES_MAX = 2**31 - 1


class _NoColumns(Exception):
    """A type that is read value by value, or a value that is not sound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """One type of a schema, with those inside of it.

    `null_branch`: which type of its union is null; -1 for one that is in none. `argument`: bytes of a fixed, symbols of
    an enum. `range` of a logical type.
    """

    kind: str
    null_branch: int = -1
    argument: int = 0
    inside: tuple["_Column", ...] = ()
    symbols: tuple[str, ...] = ()
    range: Range | None = None

    def numbers(self) -> Iterator[int]:
        """Yield the schema as the compiled loop takes it: four numbers for this type and each inside."""
        inside = [number for one in self.inside for number in one.numbers()]
        yield from (ord(self.kind), self.null_branch, self.argument, len(inside) // 4)
        yield from inside

    def array(self, found: Iterator[native.AvroColumn], rows: int, kind: pa.DataType) -> pa.Array:
        """Return the next of the found columns, with those inside. Raises _NoColumns if they are unsound."""
        there, values, ends = next(found)
        valid = None if there is None else _bits(there)
        if self.kind == "r":
            fields = [one.array(found, rows, kind.field(at).type) for at, one in enumerate(self.inside)]
            return pa.Array.from_buffers(kind, rows, [valid], children=fields)
        if ends is not None and self.kind == "a":
            return self._array(found, rows, kind, valid, ends)
        if ends is not None:
            return pa.Array.from_buffers(kind, rows, [valid, pa.py_buffer(ends), pa.py_buffer(values)])
        if self.kind == "e":
            indexes = pa.Array.from_buffers(pa.int32(), rows, [valid, pa.py_buffer(values)])
            return pa.array(self.symbols, kind).take(indexes)
        return pa.Array.from_buffers(kind, rows, [valid, self._numbers(values)])

    def _array(
        self, found: Iterator[native.AvroColumn], rows: int, kind: pa.DataType, valid: pa.Buffer | None, ends: bytes
    ) -> pa.Array:
        """Return an array or a map of the items that come next. Raises _NoColumns for a map that has a key twice."""
        (items,) = self.inside
        at = np.frombuffer(ends, np.int32)
        pairs = pa.types.is_map(kind)
        inner = items.array(
            found, int(at[-1]), pa.struct([kind.key_field, kind.item_field]) if pairs else kind.value_type
        )
        if pairs:
            keys = pa.table({"row": np.repeat(np.arange(rows), np.diff(at)), "key": inner.field(0)})
            if keys.group_by(["row", "key"]).aggregate([]).num_rows != len(inner):
                raise _NoColumns
        return pa.Array.from_buffers(kind, rows, [valid, pa.py_buffer(ends)], children=[inner])

    def _numbers(self, values: bytes) -> pa.Buffer:
        """Return numbers as Arrow has them."""
        if self.kind == "?":
            return _bits(values)
        if self.range is None or not values:
            return pa.py_buffer(values)
        first, last, times = self.range
        numbers = np.frombuffer(values, np.int64 if self.kind == "q" else np.int32)
        if int(numbers.min()) * times < first or int(numbers.max()) * times > last:
            raise _NoColumns
        return pa.py_buffer(numbers * times)


def _bits(flags: bytes) -> pa.Buffer:
    """Return a bit for each byte, as Arrow has them."""
    return pa.py_buffer(np.packbits(np.frombuffer(flags, np.uint8), bitorder="little"))


class AvroColumns:
    """Reads values of one schema by columns."""

    def __init__(self, avro: Avro) -> None:
        """`avro` is that of a Kind."""
        try:
            self._column = _column(avro, {})
        except _NoColumns:
            self._schema = b""
        else:
            self._schema = array.array("i", self._column.numbers()).tobytes()

    def array(self, contents: list[bytes | None], kind: pa.DataType) -> pa.Array | None:
        """Return the values of contents; None if they have to be read one by one."""
        columns = native.avro_columns(self._schema, contents) if self._schema else None
        if columns is None:
            return None
        try:
            made = self._column.array(iter(columns), len(contents), kind)
            made.validate(full=True)  # that texts are UTF-8, and decimals fit
        except (_NoColumns, pa.ArrowInvalid):
            return None
        return made


def _column(avro: Avro, named: dict[str, _Column]) -> _Column:
    """Return the column of a type. Raises _NoColumns."""
    found = None
    match avro:
        case str():
            found = _Column(kind=_KINDS[avro]) if avro in _KINDS else named.get(avro)
        case ["null", other] | [other, "null"] if other != "null":
            found = replace(_column(other, named), null_branch=avro.index("null"))
        case {"type": "array", "items": items}:
            found = _Column(kind="a", inside=(_column(items, named),))
        case {"type": "map", "values": values}:
            found = _Column(kind="a", inside=(_Column(kind="r", inside=(_Column(kind="s"), _column(values, named))),))
        case {"type": "record", "fields": fields} if len({one["name"] for one in fields}) == len(fields):
            found = _Column(kind="r", inside=tuple(_column(one["type"], named) for one in fields))
        case {"type": "enum", "symbols": symbols}:
            found = _Column(kind="e", argument=len(symbols), symbols=tuple(symbols))
        case {"type": "fixed", "size": int(size)} if size <= FIXED_BYTES_MAX:
            found = _Column(kind="n" if "logicalType" in avro else "x", argument=size)
        case {"type": "bytes", "logicalType": "decimal"}:
            found = _Column(kind="n")
        case {"type": "int" | "long" as stored, "logicalType": str(logical)}:
            found = _Column(kind=_KINDS[stored], range=RANGES[f"{stored}-{logical}"])
    if found is None:
        raise _NoColumns
    if isinstance(avro, dict) and "name" in avro:
        named[avro["name"]] = found
    return found
