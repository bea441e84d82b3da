"""Brings the topics' gauges up to date every few seconds, so that the hot path keeps no gauge."""

from collections.abc import Callable, Sequence

from offloaderd.core.model import TopicName
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.records.history import RangeState
from offloaderd.topic.context import TopicContext
from offloaderd.topic.status import HistoryStatus, TopicStatus

REPORT_S = 5.0
"""Pause between two updates: shorter than any scrape interval, and nearly free with many topics."""


class Reporter:
    """Turns statuses into gauges."""

    def __init__(self, context: TopicContext, statuses: Callable[[], Sequence[TopicStatus]]) -> None:
        self._context = context
        self._statuses = statuses
        self._metrics = context.upload_context.metrics
        self._stalled: dict[TopicName, str] = {}
        self._summed: dict[TopicName, tuple[CommittedSegment, ...]] = {}

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            self.report()
            await self._context.upload_context.clock.sleep(REPORT_S)

    def report(self) -> None:
        """Set every gauge once."""
        metrics, statuses = self._metrics, self._statuses()
        metrics.ownership_topics.set(sum(1 for status in statuses if status.epoch))
        metrics.topics_suspended.set(sum(status.asleep for status in statuses))
        metrics.topics_paused.set(sum(1 for status in statuses if status.paused_ms))
        metrics.buffer_bytes.set(self._context.pool.used_bytes)
        metrics.buffer_overdrawn_bytes.set(self._context.pool.overdrawn_bytes)
        metrics.memory_used_bytes.labels(pool="buffer").set(self._context.pool.used_bytes)
        metrics.memory_used_bytes.labels(pool="upload").set(self._context.upload_context.budget.used_bytes)
        metrics.pipeline_bytes.labels(stage="assembly").set(sum(status.open_segment_bytes for status in statuses))
        metrics.oldest_open_segment_seconds.set(max((status.open_segment_age_s for status in statuses), default=0.0))
        for state in RangeState:
            ranges = sum(status.history.ranges[state] for status in statuses if status.history is not None)
            metrics.history_ranges.labels(state=state.value).set(ranges)
        for status in statuses:
            self.report_topic(status)

    def report_topic(self, status: TopicStatus) -> None:
        """Set the gauges of one topic."""
        topic = str(status.topic)
        self._report_lag(topic, status)
        self._metrics.source_hidden_entries.labels(topic=topic).set(status.hidden_entries)
        self._metrics.stalled_seconds.labels(topic=topic).set(status.stalled_s)
        self._metrics.paused_seconds.labels(topic=topic).set(status.paused_s)
        self._metrics.unprotected_entries.labels(topic=topic).set(status.unprotected_entries)
        self._metrics.unprotected_bytes.labels(topic=topic).set(status.unprotected_bytes)
        self._metrics.unprotected_seconds.labels(topic=topic).set(status.unprotected_s)
        self._report_history(topic, status.history)
        self._report_stored(status)
        before = self._stalled.pop(status.topic, "")
        if before and before != status.stalled_class:
            self._metrics.stalled.remove(topic, before)
        if status.stalled_class:
            self._stalled[status.topic] = status.stalled_class
            self._metrics.stalled.labels(topic=topic, reason=status.stalled_class).set(1)

    def _report_lag(self, topic: str, status: TopicStatus) -> None:
        """Show how far the topic is behind; what is not known has no series, so that nobody takes it for 0."""
        metrics = self._metrics
        metrics.lag_unknown.labels(topic=topic).set(1 if status.lag_seconds is None else 0)
        for gauge, value in (
            (metrics.lag_entries, status.lag_entries),
            (metrics.lag_bytes, status.lag_bytes),
            (metrics.lag_seconds, status.lag_seconds),
        ):
            if value is None:
                gauge.remove(topic)
            else:
                gauge.labels(topic=topic).set(value)

    def _report_stored(self, status: TopicStatus) -> None:
        """Show what is committed, summed up anew only when it changed, and what the lag is measured against."""
        metrics, topic = self._metrics, str(status.topic)
        if status.asleep:
            self._summed.pop(status.topic, None)  # all is as it was; nothing of it is kept
        elif self._summed.get(status.topic) is not status.segments:
            self._summed[status.topic] = status.segments
            metrics.remote_segments.labels(topic=topic).set(len(status.segments))
            metrics.remote_bytes.labels(topic=topic).set(sum(segment.object_bytes for segment in status.segments))
        if status.segment_age_max_s is not None:
            metrics.segment_age_max_seconds.labels(topic=topic).set(status.segment_age_max_s)
        else:
            metrics.segment_age_max_seconds.remove(topic)

    def _report_history(self, topic: str, history: HistoryStatus | None) -> None:
        """Show what is left of a topic's history; nothing when there is none, or it is done."""
        metrics = self._metrics
        metrics.history_remaining_entries.labels(topic=topic).set(history.left_entries if history is not None else 0)
        metrics.history_remaining_bytes.labels(topic=topic).set(history.left_bytes if history is not None else 0)
        metrics.history_waiting.labels(topic=topic).set(1 if history is not None and history.live_waits else 0)

    def forget(self, topic: TopicName) -> None:
        """Drop the series of a topic that this daemon no longer works on."""
        self._stalled.pop(topic, None)
        self._summed.pop(topic, None)
        self._metrics.drop_topic(str(topic))
