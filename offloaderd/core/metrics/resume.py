"""What an owner goes on with that an earlier one left."""

from offloaderd.core.metrics.families import Families, counter, gauge, histogram
from offloaderd.core.metrics.values import LONG_SECONDS_BUCKETS


class ContinueMetrics(Families):
    """The part of the metrics that is about taking over open segments."""

    segments_resumed = counter(
        "Open segments of an earlier owner that were resumed. Against ownership changes: how often it works."
    )
    recovery_seconds = histogram(
        "From owning a topic with an open segment to its first progress, in buckets to 6 h. Above 5 s: the source or "
        "store is slow, or away.",
        LONG_SECONDS_BUCKETS,
    )
    buffer_overdrawn_bytes = gauge(
        "Bytes beyond memory.buffer_bytes: one segment at a time may take what it lacks if its end is decided and all"
        " memory is held by such. Above 0 for long: raise memory.buffer_bytes."
    )
