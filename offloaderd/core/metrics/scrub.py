"""Metrics of the scrub: what it has read and found."""

from offloaderd.core.metrics.families import Families, counter, topic_gauge


class ScrubMetrics(Families):
    """The metrics of the verification of stored data."""

    scrub_bytes = counter(
        "Bytes that the scrub has read. Its rate is at most scrub.bytes_per_s; 0 for days while there are segments: "
        "look whether scrub.enabled is off."
    )
    scrub_objects = counter(
        "Objects that the scrub has checked, by result. unreachable: the store did not answer.",
        result=("sound", "damaged", "unreachable"),
    )
    scrub_damaged_segments = topic_gauge(
        "Segments of the topic that the last check by the scrub found damaged. Page when it is not 0: offloadctl "
        "verify TOPIC says what is wrong. A repair shows within an hour."
    )
    scrub_last_complete_timestamp_seconds = topic_gauge(
        "The oldest time at which one of the topic's segments was last verified (or committed); 0 without segments. "
        "Older than scrub.interval_s by days: raise scrub.bytes_per_s."
    )
