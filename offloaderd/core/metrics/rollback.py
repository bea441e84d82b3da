"""Metrics of the rewrite of streaming segments as whole ledgers, which brokers without offloaderd can read."""

from offloaderd.core.metrics.families import Families, counter, topic_gauge

FAILURE_REASONS = ("unreadable", "upload")


class RollbackMetrics(Families):
    """The metrics of returns to brokers without offloaderd."""

    rollback_ledgers = counter(
        "Ledgers that were rewritten as objects of their own, verified and exchanged for their segments."
    )
    rollback_bytes = counter("Payload bytes of the ledgers that were rewritten.")
    rollback_failures = counter(
        "Ledgers that could not be rewritten and stay in their segments, by reason. unreadable: the bucket does not "
        "hold what was committed. upload: the object could not be stored, or did not read back as it was sent. Look "
        "when it grows: offloadctl rollback plan TOPIC names them.",
        reason=FAILURE_REASONS,
    )
    rollback_remaining_ledgers = topic_gauge(
        "Ledgers that are still to be rewritten by the topic's order; 0 without one."
    )
