"""Metrics of a parent of several processes, which are on its page beside those of its processes; a list of all."""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry

from offloaderd.core.metrics.captures import CaptureMetrics
from offloaderd.core.metrics.drills import RestoreDrillMetrics
from offloaderd.core.metrics.families import OPEN, Documented, Families, counter, gauge
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.metrics.tables import DeclaredTableMetrics, TableMetrics


class ProcessMetrics(Families):
    """Metrics of the parent. Each has the label `process`, as all metrics of its processes have on its page."""

    process_up = gauge(
        "With several processes: 1 while this one serves, else 0. Page when it stays 0 for five minutes.",
        process=OPEN,
    )
    process_replacements = counter(
        "With several processes: times that this one ended by itself, or was killed as it did not answer, and was "
        "started again. Any increase: look at its last lines in the log.",
        process=OPEN,
    )


def all_documented() -> Sequence[Documented]:
    """Return the metrics of a daemon, of captures, of several processes, of drills, and of tables, as declared."""
    kinds = (Metrics, CaptureMetrics, ProcessMetrics, RestoreDrillMetrics, TableMetrics, DeclaredTableMetrics)
    return [one for kind in kinds for one in kind(CollectorRegistry()).documented()]
