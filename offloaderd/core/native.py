"""Compiled loops, if the package offloaderd-native is installed (`native/`): less CPU, the same results.

Each answers for sound data only, and None for all other. The caller's loop in Python goes on then, and says what is
wrong, and where. Without the package every answer is None.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

INTERFACE = 3
"""The version of the functions that is used; a package with another one is left alone."""


def _none(*_: object) -> None:
    """Answer for nothing."""


BatchColumns: TypeAlias = tuple[
    list[bytes | None], list[bytes | None], list[tuple[tuple[str, str], ...]], list[int], list[int | None]
]
"""Values, keys, properties, sequence ids and event times of messages; None for what one does not have."""

AvroColumn: TypeAlias = tuple[bytes | None, bytes, bytes | None]
"""A byte for each value, 0 for null; the values; the ends of texts in them, or of arrays in the column of items."""

avro_columns: Callable[[bytes, list[bytes | None]], list[AvroColumn] | None] = _none
"""Returns values in Avro by columns: by which schema (spark/value_columns.py), of which contents."""
batch_columns: Callable[[bytes, int, int], BatchColumns | None] = _none
"""Returns the messages of a batch of Pulsar by columns: of which content, how many, the batch's sequence id."""
batch_entries: Callable[[bytes, int], list[bytes] | None] = _none
"""Returns the stored entries that lie from an offset of a bookie's answer on (WIRE.md, section 2)."""
framed_payloads: Callable[[bytes, int, int, int, int], list[bytes] | None] = _none
"""Returns the payloads of frames: of which bytes, from, to, the first entry's id, how many (FORMAT.md, section 1)."""
stored_payloads: Callable[[list[bytes], int, int], tuple[list[bytes], list[int], int] | None] = _none
"""Returns payloads, lengths, and the greatest LAC of stored entries with CRC32C: of which ledger, from which entry.

None for all where the processor has no instruction for CRC32C.
"""

try:
    import offloaderd_native
except ImportError:
    pass
else:
    if offloaderd_native.INTERFACE == INTERFACE:
        avro_columns = offloaderd_native.avro_columns
        batch_columns = offloaderd_native.batch_columns
        batch_entries = offloaderd_native.batch_entries
        framed_payloads = offloaderd_native.framed_payloads
        stored_payloads = offloaderd_native.stored_payloads

IN_USE = framed_payloads is not _none
"""Whether the compiled loops are there."""
