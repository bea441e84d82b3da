"""Metrics of `offloaderd drill restore`, which writes them to a file, as it ends before anything could scrape it.

Their file is for node_exporter's textfile collector. `pulsar_cluster` is daemon.cluster; a label `cluster` is often
that of the scrape.
"""

from offloaderd.core.metrics.families import OPEN, Families, gauge

PARTS = ("listing", "plan", "apply", "read")


class RestoreDrillMetrics(Families):
    """The metrics of the last drill, and when the last one succeeded."""

    restore_drill_last_run_timestamp_seconds = gauge(
        "Of drill restore, which writes a file for node_exporter (--metrics-file): Unix time when the last one ended.",
        pulsar_cluster=OPEN,
    )
    restore_drill_last_success_timestamp_seconds = gauge(
        "Unix time when the last drill ended in which every topic came up; 0: none yet. Look when it is older than the "
        "interval of the drills.",
        pulsar_cluster=OPEN,
    )
    restore_drill_success = gauge(
        "1 if every topic came up in the last drill, else 0. Look when it is 0: its report names the topics.",
        pulsar_cluster=OPEN,
    )
    restore_drill_topics = gauge(
        "Topics of the last drill by outcome; no series if it was not completed.",
        pulsar_cluster=OPEN,
        outcome=("sound", "failed"),
    )
    restore_drill_duration_seconds = gauge(
        "Time of the last drill by part: the floor of the time that a mount of the same topics takes, without the "
        "writes into ZooKeeper. No series if it was not completed.",
        pulsar_cluster=OPEN,
        part=PARTS,
    )
