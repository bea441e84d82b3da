"""What the scrub has read and found."""

from __future__ import annotations

from offloaderd.metric_families import Families
from offloaderd.metric_values import OPEN


class ScrubMetrics(Families):
    """The part of the metrics that is about verifying what is stored."""

    def _scrub(self) -> None:
        self.scrub_bytes = self._counter(
            "offloaderd_scrub_bytes_total",
            "Bytes that the scrub has read. Its rate is at most scrub.bytes_per_s; 0 for days while there are "
            "segments: look whether scrub.enabled is off.",
        )
        self.scrub_objects = self._counter(
            "offloaderd_scrub_objects_total",
            "Objects that the scrub has looked at, by result; unreachable counts looks that the store did not answer.",
            result=("sound", "damaged", "unreachable"),
        )
        self.scrub_damaged_segments = self._topic_gauge(
            "offloaderd_scrub_damaged_segments",
            "Segments of the topic that were not as they were written when the scrub last looked. Page when it is not "
            "0: offloadctl verify TOPIC says what is wrong. A repair shows within an hour.",
            topic=OPEN,
        )
        self.scrub_last_complete_timestamp_seconds = self._topic_gauge(
            "offloaderd_scrub_last_complete_timestamp_seconds",
            "Since when each of the topic's segments has been verified (or committed); 0 when it has none. Older than "
            "scrub.interval_s by days: raise scrub.bytes_per_s.",
            topic=OPEN,
        )
