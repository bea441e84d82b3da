"""Settings of reading back."""

from typing import Annotated

from pydantic import BeforeValidator, Field

from offloaderd.core.errors import InvalidInput
from offloaderd.core.read_options import ReadPriority
from offloaderd.core.section import Bytes, Section

KiB, MiB = 1024, 1024**2


def _priority(value: object) -> object:
    try:
        return ReadPriority.parse(value) if isinstance(value, str) else value
    except InvalidInput as error:
        raise ValueError(error.message) from error


Priority = Annotated[ReadPriority, BeforeValidator(_priority)]


class ReadSettings(Section):
    """Reads of entries."""

    priority: Priority = ReadPriority.TIERED_STORAGE_FIRST
    """Which tier is asked first when both have an entry (PIP-73); tiered-first is accepted too. Asking the store first
    keeps load off the bookies."""

    batch_bytes: Bytes = Field(default=1 * MiB, ge=1 * KiB, le=256 * MiB)
    """Payload bytes of one answer of a read, at least one entry; a client may ask for less. Answers that clients have
    not received yet are outside the memory budgets: up to twice this size for each of read.readers_max reads."""

    read_ahead_bytes: Bytes = Field(default=16 * MiB, ge=0)
    """Most that a sequential read fetches in advance; it begins with one block, and grows while the reader uses it."""

    readers_max: int = Field(default=256, ge=1, le=100_000)
    """Reads open at the same time; the next is refused and may come again."""
