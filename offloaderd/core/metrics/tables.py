"""Metrics of `offloaderd spark tables run`, on the page of that application."""

from offloaderd.core.metrics.families import OPEN, Families, counter, gauge

OUTCOMES = ("committed", "idle", "failed")


class TableMetrics(Families):
    """What is known of each table; `table` is DECLARATION/TABLE."""

    table_lag_seconds = gauge(
        "Of spark tables run: how long ago the oldest segment was offloaded that the table lacks; 0: it lacks none. "
        "Look when it exceeds three intervals of the table, or ten minutes.",
        table=OPEN,
    )
    table_lag_entries = gauge("Offloaded entries that the table lacks.", table=OPEN)
    table_rows = counter("Rows that steps have added or changed since the application started.", table=OPEN)
    table_rows_apart = counter(
        "Messages that are no rows of the table: in its dead letters, or left out. Any increase: look at the column "
        "`reason` of the dead letters.",
        table=OPEN,
    )
    table_steps = counter(
        "Steps by outcome. Look at an increase of failed ones: `offloadctl tables show` says why.",
        table=OPEN,
        outcome=OUTCOMES,
    )
    table_failing = gauge(
        "1 since the last step of the table has failed, 0 since one has succeeded. Look when it is 1 for half an hour, "
        "whatever the table's interval is: `offloadctl tables show` says why.",
        table=OPEN,
    )
    table_committed_timestamp_seconds = gauge(
        "Unix time of the last commit of the application; no series: none yet.", table=OPEN
    )
