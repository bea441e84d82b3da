"""What lay before the live edge: how much of it is left, and what splitting it has cost."""

from __future__ import annotations

from offloaderd.metric_families import Families
from offloaderd.metric_values import OPEN


class HistoryMetrics(Families):
    """The part of the metrics that is about topics that had entries before they were enabled."""

    def _history(self) -> None:
        self.history_left_entries = self._topic_gauge(
            "offloaderd_history_left_entries",
            "Entries of the topic's history that are not offloaded yet, by its plan; they count as lag as well. Not 0 "
            "and not falling: offloadctl history status TOPIC says who is to offload them and what hinders them.",
            topic=OPEN,
        )
        self.history_left_bytes = self._topic_gauge(
            "offloaderd_history_left_bytes",
            "Payload bytes of the topic's history that are not offloaded yet, by its plan.",
            topic=OPEN,
        )
        self.history_waiting = self._topic_gauge(
            "offloaderd_history_waiting",
            "1 while the topic's new entries wait until its history is offloaded (order history-first, history left "
            "to a job). The source alone has them: run the job, or set the order to alongside.",
            topic=OPEN,
        )
        self.history_ranges = self._gauge(
            "offloaderd_history_ranges",
            "Ranges of all histories of this daemon's topics that are not done, by state. A claimed one for hours: "
            "offloadctl history status TOPIC says who has it.",
            state=("planned", "claimed", "done"),
        )
        self.history_probes = self._counter(
            "offloaderd_history_probes_total",
            "Lengths that were asked of the source to find the boundaries of segments; about log2 of a ledger's "
            "entries for each boundary.",
        )
        self.history_boundaries = self._counter(
            "offloaderd_history_boundaries_total", "Boundaries of segments that were looked for in that way."
        )
        self.history_probe_duration_seconds = self._histogram(
            "offloaderd_history_probe_duration_seconds", "How long the source took to tell one of these lengths."
        )
        self.history_doubtful_ledgers = self._counter(
            "offloaderd_history_doubtful_ledgers_total",
            "Ledgers whose lengths were missing or contradicted each other, so that they were split by their entries' "
            "number. Their segments may be of another size than asked for.",
        )
