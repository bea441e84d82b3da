"""Streaming segments that are rewritten as whole ledgers, so that a stock broker reads them."""

from __future__ import annotations

from offloaderd.metric_families import Families
from offloaderd.metric_values import OPEN

FAILURE_REASONS = ("unreadable", "upload")


class RollbackMetrics(Families):
    """The part of the metrics that is about going back to a stock broker."""

    def _rollback(self) -> None:
        self.rollback_ledgers = self._counter(
            "offloaderd_rollback_ledgers_total",
            "Ledgers that were rewritten as objects of their own, verified and exchanged for their segments.",
        )
        self.rollback_bytes = self._counter(
            "offloaderd_rollback_bytes_total", "Payload bytes of the ledgers that were rewritten."
        )
        self.rollback_failures = self._counter(
            "offloaderd_rollback_failures_total",
            "Ledgers that could not be rewritten and stay in their segments, by why: unreadable (what is in the bucket "
            "is not what was committed) or upload (the object could not be stored, or did not read back as it was "
            "sent). Look when it grows: offloadctl rollback plan TOPIC names them.",
            reason=FAILURE_REASONS,
        )
        self.rollback_left_ledgers = self._topic_gauge(
            "offloaderd_rollback_left_ledgers",
            "Ledgers that are still to be rewritten by the topic's order; 0 without one.",
            topic=OPEN,
        )
