"""Settings of history."""

from pydantic import Field

from offloaderd.core.section import Bytes, Section


class HistorySettings(Section):
    """Entries from before a topic was enabled."""

    daemon_bytes_max: Bytes = Field(default=4 * 1024 * 1024 * 1024, ge=0)
    """If the closed ledgers of a topic have more than this when it is enabled, the daemon records the boundary and
    leaves them to a backfill job. New entries wait for that job unless the topic's history order is alongside. 0:
    daemons never offload history."""
