"""Metrics of `offloaderd spark tables run`, on the page of that application, and of the daemon that looks on."""

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
        "Messages that are no rows of the table since the application started: in its dead letters, or left out.",
        table=OPEN,
    )
    table_steps = counter(
        "Steps by outcome. Look at an increase of failed ones: `offloadctl tables show` says why.",
        table=OPEN,
        outcome=OUTCOMES,
    )
    table_committed_timestamp_seconds = gauge(
        "Unix time of the last commit of the application; no series: none yet.", table=OPEN
    )


class DeclaredTableMetrics(Families):
    """What the applications have said last of declared tables; one daemon of the cluster has the series."""

    declared_table_lag_seconds = gauge(
        "Of one daemon: how long ago the oldest segment was offloaded that the table lacked when its application was "
        "heard of last; 0: it lacked none. It grows when the application is gone. Take the greatest of all daemons, "
        "and look when it exceeds two intervals of the table and an hour.",
        declaration=OPEN,
        table=OPEN,
    )
    declared_table_lag_entries = gauge(
        "Of one daemon: offloaded entries that the table lacked when its application was heard of last.",
        declaration=OPEN,
        table=OPEN,
    )
    declared_table_failing = gauge(
        "Of one daemon: 1 if the table's last step has failed, else 0. Look when it is 1 for half an hour, whatever "
        "the table's interval is: `offloadctl tables show` says why.",
        declaration=OPEN,
        table=OPEN,
    )
    declared_table_rows_apart = gauge(
        "Of one daemon: messages since the table was made that are no rows of it, but in its dead letters or left out. "
        "Look at any increase: the column `reason` of the dead letters says why.",
        declaration=OPEN,
        table=OPEN,
    )
    declaration_unwritten_seconds = gauge(
        "Of one daemon: how long ago an application was heard of that writes the tables of the declaration, else how "
        "old the declaration is; 0 while one holds it that has begun no table yet. Look when it exceeds two intervals "
        "and an hour.",
        declaration=OPEN,
    )
    declaration_interval_seconds = gauge("Of one daemon: the interval of the declaration's tables.", declaration=OPEN)
