"""What is changed while the daemon runs: its settings, the levels of its log, topics that are paused."""

from offloaderd.core import domains
from offloaderd.core.metrics.families import Families, counter, gauge, topic_gauge


class ControlMetrics(Families):
    """The part of the metrics that is about changing a running daemon."""

    reloads = counter(
        "Times that the settings were read again. refused: they had mistakes, the old ones hold; the log names each.",
        outcome=("done", "refused"),
    )
    reload_success = gauge(
        "1 after a start or a reload that worked, 0 after one that was refused: the next start would fail."
    )
    reload_timestamp_seconds = gauge("When the settings that hold were read.")
    reload_waiting_settings = gauge(
        "Settings that were changed and wait for a restart; `offloadctl reload --dry-run` names them."
    )
    log_levels_raised = gauge(
        "Modules whose log level was set for a time by `offloadctl log-level`. Not 0 for days: somebody renews it."
    )
    selections_unapplied = gauge(
        "Patterns that select nothing: their records are damaged, or their expressions, of an earlier release, are "
        "not taken any more. Topics that they selected go on, new ones are not enabled; `offloadctl topics list` says"
        " why. Not 0: enable another pattern, then disable the old one."
    )
    selection_expressions_highest = gauge(
        "Expressions (re:) of the namespace, or tenant, that has most; every daemon holds each against its topics. At"
        ' offloaderd_grpc_limit{limit="namespace_expressions"}: further ones are refused.'
    )
    topics_not_covered = gauge(
        "Topics of enabled namespaces that this release cannot offload, by the domain of their names (`segment://`, "
        "PIP-460); counted every five minutes. Not 0: nothing of them is in the bucket; `offloadctl doctor` names "
        "them.",
        domain=domains.NOT_COVERED,
    )
    topics_paused = gauge("Topics of this daemon that an operator has paused; their lag grows on purpose.")
    paused_seconds = topic_gauge(
        "Since when a topic is paused, as an age; 0: it is not. Retention of the source goes on meanwhile, so resume "
        "before it deletes."
    )
    status_samples = gauge("Samples kept for the plots of the status page, of at most 360: one every 10 s for an hour.")
    status_topics = gauge(
        "Topics by whether the status page keeps an hour of them: at most 1000 are kept. Only plots are left out.",
        history=("kept", "left_out"),
    )
    spans = counter(
        "Spans of traces by what became of them. ended less exported and failed, for long: the queue was full and "
        "they were dropped; failed rising: the collector is away.",
        outcome=("ended", "exported", "failed"),
    )
