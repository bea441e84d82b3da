"""Metrics of garbage collection: findings and deletions."""

from collections.abc import Mapping

from offloaderd.core.metrics.families import Families, counter, gauge

GC_OUTCOMES = ("ok", "failed")
GC_ACTIONS = ("deleted", "delete", "failed", "keep", "alarm")
GC_ALARMS = ("uncovered", "unknown_topic", "unreadable", "missing", "wrong_size")


class GcMetrics(Families):
    """The metrics of garbage."""

    gc_runs = counter(
        "Collections of garbage by outcome. A failed one stops deleting; the log says why. Look when two fail in a "
        "row.",
        outcome=GC_OUTCOMES,
    )
    gc_objects = counter(
        "Objects and uploads that collections found, by action. deleted. delete: would have been deleted, but gc.mode "
        "is report. failed: the deletion failed. keep: too young, or not ours. alarm: see offloaderd_gc_alarms.",
        action=GC_ACTIONS,
    )
    gc_orphan_bytes = gauge(
        "Bytes of objects without a reference, as the last collection found them before it deleted any. Look when it "
        "keeps growing: something leaves segments unfinished."
    )
    gc_alarms = gauge(
        "What the last collection found and may not repair: objects of committed segments that are missing or have "
        "another length, and segments in no map that have the only copy of their entries. Page when it is not 0; "
        "offloadctl gc lists them.",
        kind=GC_ALARMS,
    )
    gc_last_complete_timestamp_seconds = gauge(
        "When this daemon last completed a collection; 0 before the first. Take the newest of all daemons: one "
        "collects for all."
    )

    def show_collection(
        self, outcome: str, actions: Mapping[str, int], finds: Mapping[str, int], rubbish_bytes: int
    ) -> None:
        """Count one collection; a failed one is counted with its findings so far, which are incomplete."""
        self.gc_runs.labels(outcome=outcome).inc()
        for action, count in actions.items():
            self.gc_objects.labels(action=action).inc(count)
        if outcome == "ok":
            self.gc_orphan_bytes.set(rubbish_bytes)
            for kind in GC_ALARMS:
                self.gc_alarms.labels(kind=kind).set(finds.get(kind, 0))
