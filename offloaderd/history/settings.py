"""Settings of history."""

from pydantic import Field

from offloaderd.core.section import Bytes, Section


class HistorySettings(Section):
    """Entries from before a topic was enabled."""

    daemon_bytes_max: Bytes = Field(default=4 * 1024 * 1024 * 1024, ge=0)
    """A topic with more than this in closed ledgers when it is enabled has them left to a backfill job, with the
    boundary on record; new entries wait for that unless the topic's history order is alongside. 0: history is never
    offloaded by a daemon."""
