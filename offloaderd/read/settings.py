"""Settings of reading back."""

from typing import Annotated

from pydantic import BeforeValidator, Field

from offloaderd.core.errors import InvalidInput
from offloaderd.core.read_options import ReadPriority
from offloaderd.core.section import Bytes, OptionalText, Seconds, Section

KiB, MiB, GiB = 1024, 1024**2, 1024**3


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

    listing_s: Seconds = Field(default=300.0, ge=10, le=86_400)
    """Of a daemon that only reads (daemon.read_only): pause between two listings of the bucket. New topics, and
    deletions, are known after the next one. A listing costs one request for each 1,000 objects."""

    head_s: Seconds = Field(default=2.0, ge=0.5, le=3600)
    """Of a daemon that only reads: how old the newest segment of a topic that is read may be. It costs one small GET
    for each topic that is read."""

    readers_max: int = Field(default=256, ge=1, le=100_000)
    """Reads open at the same time; the next is refused and may come again."""


class CacheSettings(Section):
    """The disk cache: what readers fetched from the store, on a local disk, behind the cache in memory."""

    directory: OptionalText = Field(default=None, examples=["/var/lib/offloaderd/cache"])
    """A directory for this daemon alone, on a local disk. A restarted daemon finds its content there. It holds blocks
    as the store returns them, in plain bytes also where the bucket is encrypted: protect it as the bucket. What is
    deleted there goes from here within about an hour. A disk that is missing, full or damaged is no error: readers use
    the store. Not set: no disk cache."""

    disk_bytes: Bytes = Field(default=10 * GiB, ge=64 * MiB)
    """Most that is written there. Beside the budgets of [memory] it takes some 400 bytes for each block, as a rule of
    1 MiB. What waits to be written is part of memory.cache_bytes."""

    free_bytes: Bytes = Field(default=1 * GiB, ge=0)
    """What stays free on its file system: with less nothing is written, and the cache becomes smaller. So a mount that
    is missing does not fill the disk below it."""
