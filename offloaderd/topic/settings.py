"""Settings of outages of the store, and of spill files."""

from pydantic import Field

from offloaderd.core.model import OutagePolicy
from offloaderd.core.section import Bytes, OptionalText, Section

GiB = 1024**3


class OutageSettings(Section):
    """New entries during a long outage of the store."""

    policy: OutagePolicy = OutagePolicy.SOURCE
    """For topics whose own policy does not set it. source: entries stay in the ledger source; a topic without one holds
    its pushers back once memory is full. block: no entries are taken while the outage lasts, so that the number of
    unprotected entries does not grow. spill: topics without a source write what does not fit to spill.directory."""


class SpillSettings(Section):
    """The disk for pushed entries without room in memory."""

    directory: OptionalText = Field(default=None, examples=["/var/lib/offloaderd/spill"])
    """A directory for this daemon alone. Its content is deleted at the start: none of it was reported durable. Not set:
    topics cannot spill."""

    bytes_max: Bytes = Field(default=10 * GiB, ge=16 * 1024**2)
    """Most that all topics together may store there; then their pushers wait. Leave some free space on the disk."""
