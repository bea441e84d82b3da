"""Metrics of history: entries before the live edge that are left to offload, and the cost of splitting them."""

from offloaderd.core.metrics.families import Families, counter, gauge, histogram, topic_gauge


class HistoryMetrics(Families):
    """The metrics of topics with entries from before they were enabled."""

    history_remaining_entries = topic_gauge(
        "Entries of the topic's history that are not offloaded yet, by its plan; they count as lag as well. Not 0 and "
        "not falling: offloadctl history status TOPIC shows who is to offload them, and the error."
    )
    history_remaining_bytes = topic_gauge(
        "Payload bytes of the topic's history that are not offloaded yet, by its plan."
    )
    history_waiting = topic_gauge(
        "1 while the topic's new entries wait until its history is offloaded (order history-first, history left to a "
        "job). The source alone has them: run the job, or set the order to alongside."
    )
    history_ranges = gauge(
        "Ranges in the unfinished histories of this daemon's topics, by state. claimed for hours: offloadctl history "
        "status TOPIC shows by whom.",
        state=("planned", "claimed", "done"),
    )
    history_probes = counter(
        "Requests to the source for the length of a ledger up to an entry, to find the boundaries of segments; about "
        "log2 of a ledger's entries for each boundary."
    )
    history_boundaries = counter("Boundaries of segments that were searched for by such requests.")
    history_probe_duration_seconds = histogram("Time of one such request.")
    history_doubtful_ledgers = counter(
        "Ledgers whose lengths were missing or contradicted each other, so that they were split by number of entries. "
        "Their segments may have another size than requested."
    )
