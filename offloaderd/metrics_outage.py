"""Metrics of what an outage of the store does to topics: how long they stall, and how the uploads give way."""

from __future__ import annotations

from offloaderd.metric_families import Families
from offloaderd.metric_values import OPEN


class OutageMetrics(Families):
    """The part of Metrics that is about outages."""

    def _outage(self) -> None:
        self.upload_concurrency = self._gauge(
            "offloaderd_upload_concurrency",
            "Parts of all topics that may be on their way at a time: halved when the store asks for fewer requests, "
            "raised again as parts work. Low for long: the store cannot take what is written.",
        )
        self.stalled_seconds = self._topic_gauge(
            "offloaderd_stalled_seconds",
            "How long a topic has been stalled; 0 while it makes progress. Page above a few minutes.",
            topic=OPEN,
        )
        self.unprotected_entries = self._topic_gauge(
            "offloaderd_unprotected_entries",
            "Entries that an outage of the store keeps from being durable; 0 in normal running. Page on any for long.",
            topic=OPEN,
        )
        self.unprotected_bytes = self._topic_gauge(
            "offloaderd_unprotected_bytes",
            "Payload bytes of these. Compare with the source's room, or spill.bytes_max, to see when it overruns.",
            topic=OPEN,
        )
        self.unprotected_seconds = self._topic_gauge(
            "offloaderd_unprotected_seconds",
            "How long ago that outage began, until all it held up is stored. Compare with the source's retention.",
            topic=OPEN,
        )
        self.spill_bytes = self._gauge(
            "offloaderd_spill_bytes", "Bytes of spill files on this daemon's disk, of all topics."
        )
        self.spill_limit_bytes = self._gauge(
            "offloaderd_spill_limit_bytes", "Bytes they may take (spill.bytes_max); 0: topics cannot spill."
        )
        self.spilled_entries = self._counter(
            "offloaderd_spilled_entries_total",
            "Pushed entries that found no room in memory and went to disk. Rising without an outage: uploads lag.",
        )
