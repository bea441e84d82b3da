"""Metrics of changes at run time: settings, log levels, paused topics."""

from offloaderd.core import domains
from offloaderd.core.metrics.families import Families, counter, gauge, topic_gauge


class ControlMetrics(Families):
    """The metrics of changes of a running daemon."""

    reloads = counter(
        "Times that the settings were read again. refused: they had mistakes, and the previous ones stay in use; the "
        "log names each mistake.",
        outcome=("done", "refused"),
    )
    reload_success = gauge(
        "1 after a start or a reload that worked, 0 after one that was refused: the next start would fail."
    )
    reload_timestamp_seconds = gauge("When the settings that are in use were read.")
    reload_waiting_settings = gauge(
        "Settings that were changed and wait for a restart; `offloadctl reload --dry-run` names them."
    )
    log_levels_raised = gauge(
        "Modules with a temporary log level by `offloadctl log-level`. Not 0 for days: somebody sets it again and "
        "again."
    )
    selections_unapplied = gauge(
        "Patterns that select nothing: their record is damaged, or they are expressions of an earlier release that "
        "are refused now. Topics that they had selected stay enabled, new ones are not enabled; `offloadctl topics "
        "list` says why. Not 0: enable another pattern, then disable the old one."
    )
    selection_expressions_highest = gauge(
        "Expressions (re:) of the namespace or tenant that has the most; every daemon matches each with its topics. "
        'At offloaderd_grpc_limit{limit="namespace_expressions"} further ones are refused.'
    )
    topics_not_covered = gauge(
        "Topics of enabled namespaces that this release cannot offload, by the domain of their names (`segment://`, "
        "PIP-460); counted every five minutes. Not 0: none of their entries are in the bucket; `offloadctl doctor` "
        "names the topics.",
        domain=domains.NOT_COVERED,
    )
    topics_paused = gauge("Topics of this daemon that an operator has paused; their lag grows on purpose.")
    paused_seconds = topic_gauge(
        "For how long a topic has been paused; 0: it is not. The retention of the source continues, so resume the "
        "topic before entries are deleted."
    )
    status_samples = gauge("Samples kept for the plots of the status page, of at most 360: one every 10 s for an hour.")
    status_topics = gauge(
        "Topics by whether the status page keeps their plots of the last hour: at most 1000 are kept.",
        history=("kept", "left_out"),
    )
    spans = counter(
        "Spans of traces by outcome. ended stays above exported plus failed: the queue was full and spans were "
        "dropped. failed rises: the collector is away.",
        outcome=("ended", "exported", "failed"),
    )
