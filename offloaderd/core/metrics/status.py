"""Metrics of what the daemon shows of itself otherwise: the status page, traces."""

from __future__ import annotations

from offloaderd.core.metrics.families import Families, counter, gauge


class StatusMetrics(Families):
    """The part of Metrics that is about the status page and traces."""

    status_samples = gauge("Samples kept for the plots of the status page, of at most 360: one every 10 s for an hour.")
    status_topics = gauge(
        "Topics by whether the status page keeps an hour of them: at most 1000 are kept. Only plots are left out.",
        history=("kept", "left_out"),
    )
    spans = counter(
        "Spans of traces by what became of them. ended less exported and failed, for long: the queue was full and "
        "they were dropped; failed rising: the collector is away.",
        outcome=("ended", "exported", "failed"),
    )
