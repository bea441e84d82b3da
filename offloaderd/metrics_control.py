"""What is changed while the daemon runs: its settings, the levels of its log, topics that are paused."""

from __future__ import annotations

from offloaderd import domains
from offloaderd.metric_families import Families
from offloaderd.metric_values import OPEN


class ControlMetrics(Families):
    """The part of the metrics that is about changing a running daemon."""

    def _control(self) -> None:
        self.reloads = self._counter(
            "offloaderd_reloads_total",
            "Times that the settings were read again. refused: they had mistakes, the old ones hold; the log names "
            "each.",
            outcome=("done", "refused"),
        )
        self.reload_success = self._gauge(
            "offloaderd_reload_success",
            "1 after a start or a reload that worked, 0 after one that was refused: the next start would fail.",
        )
        self.reload_timestamp_seconds = self._gauge(
            "offloaderd_reload_timestamp_seconds", "When the settings that hold were read."
        )
        self.reload_waiting_settings = self._gauge(
            "offloaderd_reload_waiting_settings",
            "Settings that were changed and wait for a restart; `offloadctl reload --dry-run` names them.",
        )
        self.log_levels_raised = self._gauge(
            "offloaderd_log_levels_raised",
            "Modules whose log level was set for a time by `offloadctl log-level`. Not 0 for days: somebody renews it.",
        )
        self.selections_unapplied = self._gauge(
            "offloaderd_selections_unapplied",
            "Patterns that select nothing: their records are damaged, or their expressions, of an earlier release, are "
            "not taken any more. Topics that they selected go on, new ones are not enabled; `offloadctl topics list` "
            "says why. Not 0: enable another pattern, then disable the old one.",
        )
        self.selection_expressions_most = self._gauge(
            "offloaderd_selection_expressions_most",
            "Expressions (re:) of the namespace, or tenant, that has most; every daemon holds each against its "
            'topics. At offloaderd_grpc_limit{limit="namespace_expressions"}: further ones are refused.',
        )
        self.topics_not_covered = self._gauge(
            "offloaderd_topics_not_covered",
            "Topics of enabled namespaces that this release cannot offload, by the domain of their names "
            "(`segment://`, PIP-460); counted every five minutes. Not 0: nothing of them is in the bucket; "
            "`offloadctl doctor` names them.",
            domain=domains.NOT_COVERED,
        )
        self.topics_paused = self._gauge(
            "offloaderd_topics_paused", "Topics of this daemon that an operator has paused; their lag grows on purpose."
        )
        self.paused_seconds = self._topic_gauge(
            "offloaderd_paused_seconds",
            "Since when a topic is paused, as an age; 0: it is not. Retention of the source goes on meanwhile, so "
            "resume before it deletes.",
            topic=OPEN,
        )
