"""Metrics of captures, which one daemon takes for the cluster."""

from offloaderd.core.metrics.families import Families, counter, gauge


class CaptureMetrics(Families):
    """Metrics of the daemon that leads the job; those of the others stand still."""

    captures = counter(
        "Captures of what topics need besides their entries, by how they ended; an incomplete one is stored as well, "
        "without what could not be read. Look when failed or incomplete grows for two days.",
        outcome=("stored", "incomplete", "failed"),
    )
    capture_newest_timestamp_seconds = gauge(
        "Time of the newest capture in the bucket, in seconds since 1970, as the job's daemon knows it; 0: "
        "none. Take the greatest of all daemons, and page when it is two intervals old."
    )
    capture_problems = gauge(
        "What the last capture of this daemon could not read. Above zero: the log names each (capture.incomplete)."
    )
