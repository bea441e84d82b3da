"""What lay before the live edge: how much of it is left, and what splitting it has cost."""

from offloaderd.core.metrics.families import Families, counter, gauge, histogram, topic_gauge


class HistoryMetrics(Families):
    """The part of the metrics that is about topics that had entries before they were enabled."""

    history_remaining_entries = topic_gauge(
        "Entries of the topic's history that are not offloaded yet, by its plan; they count as lag as well. Not 0 and"
        " not falling: offloadctl history status TOPIC says who is to offload them and what hinders them."
    )
    history_remaining_bytes = topic_gauge(
        "Payload bytes of the topic's history that are not offloaded yet, by its plan."
    )
    history_waiting = topic_gauge(
        "1 while the topic's new entries wait until its history is offloaded (order history-first, history left to a "
        "job). The source alone has them: run the job, or set the order to alongside."
    )
    history_ranges = gauge(
        "Ranges of all histories of this daemon's topics that are not done, by state. A claimed one for hours: "
        "offloadctl history status TOPIC says who has it.",
        state=("planned", "claimed", "done"),
    )
    history_probes = counter(
        "Lengths that were asked of the source to find the boundaries of segments; about log2 of a ledger's entries "
        "for each boundary."
    )
    history_boundaries = counter("Boundaries of segments that were looked for in that way.")
    history_probe_duration_seconds = histogram("How long the source took to tell one of these lengths.")
    history_doubtful_ledgers = counter(
        "Ledgers whose lengths were missing or contradicted each other, so that they were split by their entries' "
        "number. Their segments may be of another size than asked for."
    )
