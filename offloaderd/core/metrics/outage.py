"""Metrics of outages of the store: duration of stalls, and the reduction of uploads."""

from offloaderd.core.metrics.families import Families, counter, gauge, topic_gauge


class OutageMetrics(Families):
    """The metrics of outages."""

    upload_concurrency = gauge(
        "Parts of all topics that may be uploaded at the same time: halved when the store asks for fewer requests, "
        "raised again as parts succeed. Low for long: the store cannot take what is written."
    )
    stalled_seconds = topic_gauge(
        "How long a topic has been stalled; 0 while it makes progress. Page above a few minutes."
    )
    unprotected_entries = topic_gauge(
        "Entries that an outage of the store keeps from being durable; 0 in normal running. Page on any for long."
    )
    unprotected_bytes = topic_gauge(
        "Payload bytes of these. Compare with the source's room, or spill.bytes_max, to see when it overruns."
    )
    unprotected_seconds = topic_gauge(
        "How long ago that outage began; 0 once everything that it delayed is stored. Compare with the source's "
        "retention."
    )
    spill_bytes = gauge("Bytes of spill files on this daemon's disk, of all topics.")
    spill_limit_bytes = gauge("Bytes that spill files may take (spill.bytes_max); 0: topics cannot spill.")
    spilled_entries = counter(
        "Pushed entries that found no room in memory and went to disk. Rising without an outage: uploads lag."
    )
