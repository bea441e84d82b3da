"""What the scrub has read and found."""

from offloaderd.core.metrics.families import Families, counter, topic_gauge


class ScrubMetrics(Families):
    """The part of the metrics that is about verifying what is stored."""

    scrub_bytes = counter(
        "Bytes that the scrub has read. Its rate is at most scrub.bytes_per_s; 0 for days while there are segments: "
        "look whether scrub.enabled is off."
    )
    scrub_objects = counter(
        "Objects that the scrub has looked at, by result; unreachable counts looks that the store did not answer.",
        result=("sound", "damaged", "unreachable"),
    )
    scrub_damaged_segments = topic_gauge(
        "Segments of the topic that were not as they were written when the scrub last looked. Page when it is not 0: "
        "offloadctl verify TOPIC says what is wrong. A repair shows within an hour."
    )
    scrub_last_complete_timestamp_seconds = topic_gauge(
        "Since when each of the topic's segments has been verified (or committed); 0 when it has none. Older than "
        "scrub.interval_s by days: raise scrub.bytes_per_s."
    )
