"""Settings of captures."""

from pydantic import Field

from offloaderd.core.section import Seconds, Section

DAY_S = 86_400


class CaptureSettings(Section):
    """Copies of what topics need besides their entries, in the bucket."""

    enabled: bool = True
    """Capture subscriptions, schemas, policies and properties of the topics with segments, and this cluster's own
    policies, selections, quotas and revocations, in one object each time. One daemon does it for the cluster. It reads
    ZooKeeper, and one entry of each subscription of a loaded topic from bookies; no broker takes part."""

    interval_s: Seconds = Field(default=float(DAY_S), ge=60, le=30 * DAY_S)
    """How often. What consumers acknowledge after the last capture is delivered to them again after a mount."""

    keep: int = Field(default=14, ge=1, le=10_000)
    """How many captures stay, and the newest without problems. The others are deleted after a new one was stored."""
