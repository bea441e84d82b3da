"""Settings of what becomes of new entries while the store is away."""

from pydantic import Field

from offloaderd.core.model import OutagePolicy
from offloaderd.core.section import Bytes, OptionalText, Section

GiB = 1024**3


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
