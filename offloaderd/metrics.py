"""Every metric of the daemon, as typed attributes on one registry.

An attribute is called like its metric without `offloaderd_` and `_total`. A help text says the unit and what to do
with the number. Base units are seconds and bytes; nothing computes rates. Labels are bounded: each has either the
closed set of values written here (their series exist at zero from the start, so that `increase()` sees the first
event) or comes from a set that an operator bounds, which are only `topic`, the S3 operations and codes, and the
gRPC methods. Ledger ids, keys and upload ids are never labels. docs/metrics.md is generated from this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector, disable_created_metrics

from offloaderd import __version__
from offloaderd.metric_values import (
    BOOKIE_OPERATIONS,
    BOOKIE_OUTCOMES,
    BOOKIE_TIMED,
    BYTES_BUCKETS,
    CACHES,
    DEPENDENCIES,
    ENTRIES_BUCKETS,
    ERROR_CLASSES,
    LONG_SECONDS_BUCKETS,
    OPEN,
)
from offloaderd.metrics_access import AccessMetrics
from offloaderd.metrics_continue import ContinueMetrics
from offloaderd.metrics_control import ControlMetrics
from offloaderd.metrics_gc import GcMetrics
from offloaderd.metrics_history import HistoryMetrics
from offloaderd.metrics_outage import OutageMetrics
from offloaderd.metrics_placement import PlacementMetrics
from offloaderd.metrics_reads import ReadMetrics
from offloaderd.metrics_retention import RetentionMetrics
from offloaderd.metrics_rollback import RollbackMetrics
from offloaderd.metrics_s3 import S3Metrics
from offloaderd.metrics_scrub import ScrubMetrics
from offloaderd.metrics_seek import SeekMetrics
from offloaderd.metrics_status import StatusMetrics
from offloaderd.model import RollReason

if TYPE_CHECKING:
    from offloaderd.clock import Clock
    from offloaderd.health import HealthView

disable_created_metrics()  # type: ignore[no-untyped-call]  # `_created` doubles the series and no panel reads it


class Metrics(
    AccessMetrics,
    ContinueMetrics,
    ControlMetrics,
    OutageMetrics,
    GcMetrics,
    RetentionMetrics,
    PlacementMetrics,
    ScrubMetrics,
    HistoryMetrics,
    ReadMetrics,
    SeekMetrics,
    RollbackMetrics,
    S3Metrics,
    StatusMetrics,
):
    """The daemon's metrics; a fresh one with a fresh registry for each daemon (and each test)."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        """Register everything on `registry`, together with the default `process_*` and `python_gc_*` collectors."""
        super().__init__(registry)
        self._identity()
        self._source_and_buffer()
        self._bookies()
        self._pipeline_and_lag()
        self._segments_and_upload()
        self._s3()
        self._metadata()
        self._placement()
        self._reads()
        self._cache_and_integrity()
        self._access()
        self._process()
        self._continue()
        self._control()
        self._outage()
        self._gc()
        self._retention()
        self._scrub()
        self._seek()
        self._history()
        self._rollback()
        self._status()

    def _identity(self) -> None:
        self.build_info = self._gauge(
            "offloaderd_build_info",
            "Always 1; its labels say what runs here. Join with it to compare versions.",
            version=OPEN,
            revision=OPEN,
        )
        self.set_build(__version__, "")
        self.ready = self._gauge(
            "offloaderd_ready",
            "1 while the daemon serves, 0 while it starts or drains. Page when it stays 0 for two minutes.",
        )
        self.dependency_up = self._gauge(
            "offloaderd_dependency_up",
            "1 while the dependency answers, else 0; no series for what this daemon does without. /readyz says what it "
            "answered last.",
            dependency=DEPENDENCIES,
        )

    def _source_and_buffer(self) -> None:
        self.source_entries = self._counter(
            "offloaderd_source_entries_total",
            "Entries taken in, pushed by a broker or tailed. Flat under load: no feed.",
        )
        self.source_bytes = self._counter(
            "offloaderd_source_bytes_total", "Payload bytes taken in. Its rate against upload_bytes is the balance."
        )
        self.source_gaps = self._counter(
            "offloaderd_source_gaps_total",
            "Times that entries were missing between two that arrived and had to be looked for. Page on any increase.",
        )
        self.source_fallback_reads = self._counter(
            "offloaderd_source_fallback_reads_total",
            "Reads of the ledger source for what the buffer declined or dropped. High: raise memory.buffer_bytes.",
        )
        self.source_fallback_bytes = self._counter(
            "offloaderd_source_fallback_bytes_total",
            "Payload bytes of those reads: load the source would not have had.",
        )
        self.buffer_bytes = self._gauge("offloaderd_buffer_bytes", "Bytes in the tailing buffers of all topics.")
        self.buffer_limit_bytes = self._gauge(
            "offloaderd_buffer_limit_bytes", "Bytes the tailing buffers may hold in all (memory.buffer_bytes)."
        )
        self.buffer_rejected_entries = self._counter(
            "offloaderd_buffer_rejected_entries_total",
            "Entries that a buffer declined; they are read from the source instead. full: raise memory.buffer_bytes.",
            reason=("full", "not_consecutive", "closed"),
        )
        self.backpressure_seconds = self._counter(
            "offloaderd_backpressure_seconds_total",
            "Seconds that producers were held back. A rate above 0.2 for long: uploads are slower than the writers.",
        )
        self.memory_budget_bytes = self._gauge(
            "offloaderd_memory_budget_bytes", "Bytes that all memory pools together may use, from the settings."
        )
        self.memory_used_bytes = self._gauge(
            "offloaderd_memory_used_bytes",
            "Bytes in use by pool. Above 90 % of the budget for long: raise the pool's setting.",
            pool=("buffer", "upload", "cache", "unpack"),
        )

    def _bookies(self) -> None:
        self.source_lost_entries = self._counter(
            "offloaderd_source_lost_entries_total",
            "Entries that retention deleted before they were offloaded, as far as their number is known. Page on any.",
        )
        self.source_losses = self._counter(
            "offloaderd_source_losses_total",
            "Ranges reported as lost to retention: certain, or possible when nobody can say. Page on any increase.",
            kind=("certain", "possible"),
        )
        self.broker_ledgers = self._counter(
            "offloaderd_broker_ledgers_total",
            "Ledgers that brokers offloaded themselves, by what became of them. Page on lost, and on waiting.",
            outcome=("adopted", "offloaded_again", "lost", "waiting"),
        )
        self.bookie_requests = self._counter(
            "offloaderd_bookie_requests_total",
            "Requests to bookies by what came of them; wait: long polls, probe: whether a bookie that owes answers to "
            "long polls is alive. Errors that rise: offloadctl doctor.",
            operation=BOOKIE_OPERATIONS,
            outcome=BOOKIE_OUTCOMES,
        )
        self.bookie_request_duration_seconds = self._histogram(
            "offloaderd_bookie_request_duration_seconds",
            "Time from a request to a bookie to its answer.",
            operation=BOOKIE_TIMED,
        )
        self.bookie_bytes = self._counter(
            "offloaderd_bookie_bytes_total", "Bytes read from bookies, entries and headers: the load we are to them."
        )
        self.bookie_hedged_reads = self._counter(
            "offloaderd_bookie_hedged_reads_total",
            "Reads that were sent to a second replica because the first was slow. Rising: a bookie is ill.",
        )
        self.bookie_connections = self._gauge(
            "offloaderd_bookie_connections", "Connections to bookies that are open now."
        )
        self.bookies_avoided = self._gauge(
            "offloaderd_bookies_avoided", "Bookies that are left in peace for a while because they failed lately."
        )
        self.bookie_requests_in_flight = self._gauge(
            "offloaderd_bookie_requests_in_flight", "Requests to bookies that wait for their answer."
        )
        self.bookie_long_polls = self._gauge(
            "offloaderd_bookie_long_polls",
            "Long polls that bookies have not answered: about one for each idle topic that is not polled.",
        )
        self.bookie_bad_entries = self._counter(
            "offloaderd_bookie_bad_entries_total",
            "Replicas of entries that failed their check; another replica was read. Any increase: look at that bookie.",
        )
        self.source_throttled_seconds = self._counter(
            "offloaderd_source_throttled_seconds_total",
            "Time that reads waited for the rate limits of bookkeeper.*. High with a growing lag: raise them.",
            scope=("daemon", "topic"),
        )
        self.source_hidden_entries = self._topic_gauge(
            "offloaderd_source_hidden_entries",
            "Entries that bookies hold beyond what is known to be confirmed, which is what a quiet writer hides.",
            topic=OPEN,
        )

    def _pipeline_and_lag(self) -> None:
        self.pipeline_bytes = self._gauge(
            "offloaderd_pipeline_bytes",
            "Bytes by stage on their way to durable. The stage that grows is the one that is slow.",
            stage=("assembly", "transfer", "commit", "verify"),
        )
        self.inflight_parts = self._gauge(
            "offloaderd_inflight_parts", "Parts being uploaded now; at most offload.parts_in_flight_max."
        )
        self.lag_bytes = self._topic_gauge(
            "offloaderd_lag_bytes",
            "Payload bytes confirmed but not yet durable. Compare with the source's room to see when it will overrun.",
            topic=OPEN,
        )
        self.lag_entries = self._topic_gauge(
            "offloaderd_lag_entries", "Entries confirmed but not yet durable.", topic=OPEN
        )
        self.lag_seconds = self._topic_gauge(
            "offloaderd_lag_seconds",
            "Age of the oldest entry that is not durable. Page above twice segment_age_max_s. No series: unknown.",
            topic=OPEN,
        )
        self.lag_unknown = self._topic_gauge(
            "offloaderd_lag_unknown",
            "1 while the age of the oldest entry that is not durable is unknown; `offloadctl status` says why.",
            topic=OPEN,
        )
        self.segment_age_max_seconds = self._topic_gauge(
            "offloaderd_segment_age_max_seconds",
            "Age at which the topic's segments are sealed; streamed topics alone have it. Compare their lag with it.",
            topic=OPEN,
        )
        self.remote_segments = self._topic_gauge(
            "offloaderd_remote_segments",
            "Committed segments of the topic, those that brokers wrote included.",
            topic=OPEN,
        )
        self.remote_bytes = self._topic_gauge(
            "offloaderd_remote_bytes",
            "Bytes of the data objects of these; their indexes and manifests are not counted.",
            topic=OPEN,
        )
        self.stalled = self._topic_gauge(
            "offloaderd_stalled",
            "1 while a topic makes no progress, by class of error; `offloadctl status` has the message. Page on any.",
            topic=OPEN,
            reason=ERROR_CLASSES,
        )
        self.oldest_open_segment_seconds = self._gauge(
            "offloaderd_oldest_open_segment_seconds", "Age of the oldest segment that is not committed; 0 without one."
        )

    def _segments_and_upload(self) -> None:
        self.segments = self._counter(
            "offloaderd_segments_total",
            "Segments that reached a state. failed rising: see the log's segment.failed events.",
            state=("assigned", "offloaded", "failed"),
        )
        self.segment_rolls = self._counter(
            "offloaderd_segment_rolls_total",
            "Why segments were sealed. Mostly age with little data: raise offload.segment_age_max_s.",
            reason=tuple(map(str, RollReason)),
        )
        self.segment_bytes = self._histogram(
            "offloaderd_segment_bytes", "Bytes of the data object of each committed segment.", BYTES_BUCKETS
        )
        self.segment_entries = self._histogram(
            "offloaderd_segment_entries", "Entries of each committed segment.", ENTRIES_BUCKETS
        )
        self.time_to_durable_seconds = self._histogram(
            "offloaderd_time_to_durable_seconds",
            "From an entry's arrival to its commit, up to 6 h. p99 well above offload.segment_age_max_s: uploads lag.",
            LONG_SECONDS_BUCKETS,
        )
        self.upload_parts = self._counter(
            "offloaderd_upload_parts_total",
            "Parts by outcome; kept and replaced: stored by an earlier owner.",
            outcome=("ok", "failed", "kept", "replaced"),
        )
        self.upload_bytes = self._counter(
            "offloaderd_upload_bytes_total", "Bytes of uploaded parts. Flat while transfer bytes wait: page."
        )
        self.upload_part_duration_seconds = self._histogram(
            "offloaderd_upload_part_duration_seconds",
            "Time of one part's upload with its retries, in buckets to 6 h: an outage of the store is in it.",
            LONG_SECONDS_BUCKETS,
        )
        self.upload_retries = self._counter(
            "offloaderd_upload_retries_total",
            "Requests tried again, by class of error. denied: check credentials; throttled: lower the parallelism.",
            **{"class": ERROR_CLASSES},
        )
        self.uploads_aborted = self._counter(
            "offloaderd_uploads_aborted_total",
            "Multipart uploads given up: failed, or left behind by the owner before (takeover).",
            reason=("failed", "takeover"),
        )
        self.upload_last_success_timestamp_seconds = self._gauge(
            "offloaderd_upload_last_success_timestamp_seconds",
            "Unix time of the last part that was stored; 0: none yet.",
        )

    def _metadata(self) -> None:
        self.metadata_commits = self._counter(
            "offloaderd_metadata_commits_total",
            "Metadata transactions by outcome. unknown: settled by reading back; conflict: look for a second owner.",
            outcome=("ok", "conflict", "unknown", "error"),
        )
        self.metadata_commit_duration_seconds = self._histogram(
            "offloaderd_metadata_commit_duration_seconds",
            "Time of one commit with read-backs and retries, in buckets to 6 h: an outage of ZooKeeper is in it.",
            LONG_SECONDS_BUCKETS,
        )
        self.metadata_node_bytes = self._gauge(
            "offloaderd_metadata_node_bytes",
            "Size of the largest node of the last change of a map. From 900000 on a ledger's context goes into pieces.",
        )
        self.zk_session_state = self._gauge(
            "offloaderd_zk_session_state", "Metadata session: 0 lost, 1 suspended, 2 connected."
        )
        self.zk_session_losses = self._counter(
            "offloaderd_zk_session_losses_total",
            "Metadata sessions lost. More than three in a quarter of an hour: raise metadata.session_timeout_s.",
        )

    def _cache_and_integrity(self) -> None:
        self.cache_requests = self._counter(
            "offloaderd_cache_requests_total",
            "Look-ups by result. Under half hit with evictions rising: raise memory.cache_bytes.",
            cache=CACHES,
            result=("hit", "miss", "joined"),
        )
        self.cache_bytes = self._gauge("offloaderd_cache_bytes", "Bytes held by the cache.", cache=CACHES)
        self.cache_limit_bytes = self._gauge("offloaderd_cache_limit_bytes", "Bytes the cache may hold.", cache=CACHES)
        self.cache_evictions = self._counter(
            "offloaderd_cache_evictions_total", "What caches dropped, by cause.", cache=CACHES, cause=("size", "stale")
        )
        self.prefetch_bytes = self._counter(
            "offloaderd_prefetch_bytes_total",
            "Bytes read ahead of the reader. Far above read_bytes: readers give up early.",
        )
        self.checksum_failures = self._counter(
            "offloaderd_checksum_failures_total",
            "Stored bytes that were not what was written. Page on any; the log's data.corrupt events name the object.",
            where=("upload", "read", "scrub"),
        )
        self.verified_bytes = self._counter(
            "offloaderd_verified_bytes_total", "Bytes of objects that were checked before their commit."
        )

    def _process(self) -> None:
        self.event_loop_lag_seconds = self._histogram(
            "offloaderd_event_loop_lag_seconds", "How late timers fire. p99 above 250 ms: the loop is blocked."
        )
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def set_build(self, version: str, revision: str) -> None:
        """Say what runs here; replaces what was said before."""
        self.build_info.clear()
        self.build_info.labels(version=version, revision=revision).set(1)

    def show_health(self, health: HealthView) -> None:
        """Copy readiness and the state of the dependencies; made to be given to `Health.listen`.

        What a daemon does not depend on has no series: 0 would say that it is down.
        """
        self.ready.set(health.ready)
        known = {dependency.name: dependency.up for dependency in health.dependencies}
        for name in DEPENDENCIES:
            if name in known:
                self.dependency_up.labels(dependency=name).set(known[name])
            elif health.ready:
                self.dependency_up.remove(name)


async def watch_loop(clock: Clock, metrics: Metrics, *, interval_s: float = 0.25) -> None:
    """Observe for ever how much later than asked a sleep returns; ends by being cancelled."""
    while True:
        asked = clock.monotonic()
        await clock.sleep(interval_s)
        metrics.event_loop_lag_seconds.observe(max(0.0, clock.monotonic() - asked - interval_s))
