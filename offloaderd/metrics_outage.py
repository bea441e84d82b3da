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
        self.stalled_seconds = self._gauge(
            "offloaderd_stalled_seconds",
            "How long a topic has been stalled; 0 while it makes progress. Page above a few minutes.",
            topic=OPEN,
        )
