"""Settings of what uploads may do at a time, and of what happens while the store is away; see sections.py."""

from __future__ import annotations

from pydantic import Field

from offloaderd.config.kinds import Bytes, OptionalText
from offloaderd.config.section import Section
from offloaderd.model import OutagePolicy

GiB = 1024**3


class UploadSettings(Section):
    """How hard the store is driven by all topics together."""

    concurrency_max: int = Field(default=16, ge=1, le=1000)
    """Parts of all topics on their way at the same time. The store lowers this by answering 503 SlowDown, and it is
    raised again step by step. 16 parts of 8 MiB are memory.upload_bytes; more than objects.connections_max only wait
    for connections."""


class OutageSettings(Section):
    """What becomes of new entries while the store is away for long."""

    policy: OutagePolicy = OutagePolicy.SOURCE
    """For topics whose own policy says nothing. source: the ledger source keeps them, and a topic without one holds its
    pushers back once memory is full. block: nothing is taken from the beginning of the outage, so that no more is
    unprotected than was. spill: topics without a source overflow to spill.directory."""


class SpillSettings(Section):
    """The disk for pushed entries that find no room in memory."""

    directory: OptionalText = Field(default=None, examples=["/var/lib/offloaderd/spill"])
    """A directory of this daemon's own; what is in it is thrown away at the start, as it was never reported durable.
    Not set: topics cannot spill."""

    bytes_max: Bytes = Field(default=10 * GiB, ge=16 * 1024**2)
    """Most that all topics may have there; then their pushers wait. Leave the disk some room beyond."""
