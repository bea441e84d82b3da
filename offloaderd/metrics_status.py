"""Metrics of what the daemon shows of itself otherwise: the status page, traces."""

from __future__ import annotations

from offloaderd.metric_families import Families


class StatusMetrics(Families):
    """The part of Metrics that is about the status page and traces."""

    def _status(self) -> None:
        self.status_samples = self._gauge(
            "offloaderd_status_samples",
            "Samples kept for the plots of the status page, of at most 360: one every 10 s for an hour.",
        )
        self.status_topics = self._gauge(
            "offloaderd_status_topics",
            "Topics by whether the status page keeps an hour of them: at most 1000 are kept. Only plots are left out.",
            history=("kept", "left_out"),
        )
        self.spans = self._counter(
            "offloaderd_spans_total",
            "Spans of traces by what became of them. ended less exported and failed, for long: the queue was full and "
            "they were dropped; failed rising: the collector is away.",
            outcome=("ended", "exported", "failed"),
        )
