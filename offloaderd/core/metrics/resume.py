"""Metrics of resumed attempts, which earlier owners left."""

from offloaderd.core.metrics.families import Families, counter, gauge, histogram
from offloaderd.core.metrics.values import LONG_SECONDS_BUCKETS


class ContinueMetrics(Families):
    """The metrics of resumed attempts."""

    segments_resumed = counter(
        "Open segments of an earlier owner that were resumed. Compare with offloaderd_ownership_changes_total."
    )
    recovery_seconds = histogram(
        "From the claim of a topic with an open segment to its first progress, in buckets to 6 h. Above 5 s: the "
        "source or store is slow, or away.",
        LONG_SECONDS_BUCKETS,
    )
    buffer_overdrawn_bytes = gauge(
        "Bytes in use beyond memory.buffer_bytes. They are for one sealed segment at a time that lacks entries while "
        "other such segments hold all memory. Above 0 for long: raise memory.buffer_bytes."
    )
