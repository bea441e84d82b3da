"""Every metric of the daemon, as typed attributes on one registry.

A metric's name is its attribute's name behind `offloaderd_`, and for a counter before `_total`. A help text has the
unit and what to do with the number. Base units are seconds and bytes; no metric is a rate. Labels are bounded: a label
has either the closed set of values written here (the series exist at zero from the start, so that `increase()` sees the
first event) or values that an operator bounds, which are only `topic`, `namespace` (of topics and quotas), the S3
operations and codes, and the gRPC methods. Ledger ids, keys and upload ids are never labels. docs/metrics.md is
generated from this module.
"""

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector, disable_created_metrics

from offloaderd import __version__
from offloaderd.core.clock import Clock
from offloaderd.core.health import HealthView
from offloaderd.core.metrics.families import (
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
    STORE_CODES,
    STORE_THROTTLES,
    counter,
    gauge,
    histogram,
    topic_gauge,
)
from offloaderd.core.metrics.service import ServiceMetrics
from offloaderd.core.metrics.upkeep import UpkeepMetrics
from offloaderd.core.model import RollReason

disable_created_metrics()  # type: ignore[no-untyped-call]  # `_created` doubles the series and no panel reads it


class Metrics(ServiceMetrics, UpkeepMetrics):
    """The daemon's metrics; each daemon (and each test) has an instance with a registry of its own."""

    build_info = gauge(
        "Always 1; its labels name the version that runs. Join other metrics with it to compare versions.",
        version=OPEN,
        revision=OPEN,
    )
    ready = gauge("1 while the daemon serves, 0 while it starts or drains. Page when it stays 0 for two minutes.")
    dependency_up = gauge(
        "1 while the dependency answers, else 0; no series for a dependency that this daemon does not use. A further "
        "service has the name of its table, as objects.services.archive. /readyz shows its last answer.",
        dependency=DEPENDENCIES,
    )

    source_entries = counter("Entries taken in, pushed by a broker or tailed. Flat under load: nothing arrives.")
    source_bytes = counter("Payload bytes taken in. Compare its rate with that of upload_bytes.")
    source_gaps = counter(
        "Times that entries between two that arrived were missing and had to be searched for. Page on any increase."
    )
    source_fallback_reads = counter(
        "Reads of the ledger source for entries that the buffer declined or dropped. High: raise memory.buffer_bytes."
    )
    source_fallback_bytes = counter("Payload bytes of those reads: additional load on the source.")
    buffer_bytes = gauge("Bytes in the tailing buffers of all topics.")
    buffer_limit_bytes = gauge("Bytes the tailing buffers may hold in all (memory.buffer_bytes).")
    buffer_rejected_entries = counter(
        "Entries that a buffer declined; they are read from the source instead. full: raise memory.buffer_bytes.",
        reason=("full", "not_consecutive", "closed"),
    )
    backpressure_seconds = counter(
        "Seconds that producers were held back. A rate above 0.2 for long: uploads are slower than the writers."
    )
    memory_budget_bytes = gauge("Bytes that all memory pools together may use, from the settings.")
    memory_used_bytes = gauge(
        "Bytes in use by pool. Above 90 % of the budget for long: raise the pool's setting.",
        pool=("buffer", "upload", "cache", "unpack"),
    )

    source_lost_entries = counter(
        "Entries that retention deleted before they were offloaded, as far as their number is known. Page on any."
    )
    source_losses = counter(
        "Ranges reported as lost to retention: certain, or possible when nobody can say. Page on any increase.",
        kind=("certain", "possible"),
    )
    broker_ledgers = counter(
        "Ledgers that brokers offloaded themselves, by outcome. Page on lost, and on waiting.",
        outcome=("adopted", "offloaded_again", "lost", "waiting"),
    )
    bookie_requests = counter(
        "Requests to bookies by outcome. wait: long polls; probe: whether a bookie that has not answered long polls "
        "is alive. Rising errors: run offloadctl doctor.",
        operation=BOOKIE_OPERATIONS,
        outcome=BOOKIE_OUTCOMES,
    )
    bookie_request_duration_seconds = histogram(
        "Time from a request to a bookie to its answer.", operation=BOOKIE_TIMED
    )
    bookie_bytes = counter("Bytes read from bookies, entries and headers: this daemon's load on them.")
    bookie_hedged_reads = counter(
        "Reads that were sent to a second replica because the first was slow. Rising: a bookie is overloaded or "
        "failing."
    )
    bookie_connections = gauge("Connections to bookies that are open now.")
    bookies_avoided = gauge("Bookies to which no requests are sent for a while because they failed recently.")
    bookie_requests_in_flight = gauge("Requests to bookies that wait for their answer.")
    bookie_long_polls = gauge(
        "Long polls that bookies have not answered: about one for each idle topic that is not polled."
    )
    bookie_bad_entries = counter(
        "Replicas of entries that failed their check; another replica was read. Any increase: look at that bookie."
    )
    source_polled_topics = gauge(
        "Quiet topics that are polled, as they have no long poll. Divided by bookkeeper.idle_polls_per_s: how many "
        "seconds later the entry after a silence may be seen."
    )
    source_throttled_seconds = counter(
        "Time that reads waited for the rate limits of bookkeeper.*. High with a growing lag: raise them.",
        scope=("daemon", "topic"),
    )
    source_hidden_entries = topic_gauge(
        "Entries that bookies hold and that are not known to be confirmed: the last ones of a writer that has stopped "
        "writing."
    )

    pipeline_bytes = gauge(
        "Bytes on their way to durable, by stage. The stage that grows is the slow one.",
        stage=("assembly", "transfer", "commit", "verify"),
    )
    inflight_parts = gauge("Parts being uploaded now; at most offload.parts_in_flight_max.")
    lag_bytes = topic_gauge(
        "Payload bytes confirmed but not yet durable. Compare with the free space of the source to see when it is full."
    )
    lag_entries = topic_gauge("Entries confirmed but not yet durable.")
    lag_seconds = topic_gauge(
        "Age of the oldest entry that is not durable. Page above twice segment_age_max_s. No series: unknown."
    )
    lag_unknown = topic_gauge(
        "1 while the age of the oldest entry that is not durable is unknown; `offloadctl status` says why."
    )
    segment_age_max_seconds = topic_gauge(
        "Age at which the topic's segments are sealed; only streamed topics have it. Compare their lag with it."
    )
    remote_segments = topic_gauge("Committed segments of the topic, those that brokers wrote included.")
    remote_bytes = topic_gauge(
        "Bytes of the data objects of committed segments; their indexes and manifests are not counted."
    )
    stalled = topic_gauge(
        "1 while a topic makes no progress, by class of error; `offloadctl status` has the message. Page on any.",
        reason=ERROR_CLASSES,
    )
    oldest_open_segment_seconds = gauge("Age of the oldest segment that is not committed; 0 without one.")

    segments = counter(
        "Segments that reached a state. Rising failed: see the segment.failed events of the log.",
        state=("assigned", "offloaded", "failed"),
    )
    segment_rolls = counter(
        "Segments by the reason for which they were sealed. Mostly age with little data: raise "
        "offload.segment_age_max_s.",
        reason=tuple(map(str, RollReason)),
    )
    segment_bytes = histogram("Bytes of the data object of each committed segment.", BYTES_BUCKETS)
    segment_entries = histogram("Entries of each committed segment.", ENTRIES_BUCKETS)
    time_to_durable_seconds = histogram(
        "From an entry's arrival to its commit, up to 6 h. p99 well above offload.segment_age_max_s: uploads lag.",
        LONG_SECONDS_BUCKETS,
    )
    upload_parts = counter(
        "Parts by outcome. kept: an earlier owner had stored it; replaced: an earlier owner had stored another one.",
        outcome=("ok", "failed", "kept", "replaced"),
    )
    upload_bytes = counter("Bytes of uploaded parts. Page when it is flat while bytes wait in the stage transfer.")
    upload_part_duration_seconds = histogram(
        "Time of one part's upload with its retries, outages of the store included, in buckets to 6 h.",
        LONG_SECONDS_BUCKETS,
    )
    upload_retries = counter(
        "Requests that were repeated, by class of error. denied: check credentials; throttled: lower the parallelism.",
        **{"class": ERROR_CLASSES},
    )
    uploads_aborted = counter(
        "Segments given up, with their uploads. failed: the segment failed; takeover: the previous owner had left it.",
        reason=("failed", "takeover"),
    )
    upload_last_success_timestamp_seconds = gauge("Unix time when the last part was stored; 0: none yet.")

    metadata_commits = counter(
        "Metadata transactions by outcome. unknown: settled by reading back; conflict: look for a second owner.",
        outcome=("ok", "conflict", "unknown", "error"),
    )
    metadata_commit_duration_seconds = histogram(
        "Time of one commit with read-backs and retries, outages of ZooKeeper included, in buckets to 6 h.",
        LONG_SECONDS_BUCKETS,
    )
    metadata_node_bytes = gauge(
        "Size of the largest node in the last change of a map. From 900000 on a ledger's context is stored in pieces."
    )
    zk_session_state = gauge("Metadata session: 0 lost, 1 suspended, 2 connected.")
    zk_session_losses = counter(
        "Metadata sessions lost. More than three in a quarter of an hour: raise metadata.session_timeout_s."
    )

    cache_requests = counter(
        "Look-ups by result. Under half hit with evictions rising: raise memory.cache_bytes.",
        cache=CACHES,
        result=("hit", "miss", "joined"),
    )
    cache_bytes = gauge("Bytes held by the cache.", cache=CACHES)
    cache_limit_bytes = gauge("Bytes the cache may hold.", cache=CACHES)
    cache_evictions = counter(
        "Items that caches dropped, by cause. stale: damaged or missing. gone: of a segment or topic that was deleted. "
        "purged: by an operator.",
        cache=CACHES,
        cause=("size", "stale", "gone", "purged"),
    )
    read_fallbacks = counter(
        "Reads of a segment's mirror instead of its own place, by what was wrong there. Look when it keeps rising: the "
        "log's segment.read_elsewhere names the segments.",
        reason=("missing", "damaged", "denied", "unreachable"),
    )
    prefetch_bytes = counter("Bytes fetched in advance of the reader. Far above read_bytes: readers stop early.")
    checksum_failures = counter(
        "Times that stored bytes were not those that were written. Page on any; the data.corrupt events of the log "
        "name the object.",
        where=("upload", "read", "scrub"),
    )
    verified_bytes = counter("Bytes of objects that were checked before their commit.")

    objects_requests = counter(
        "Answers of the object store by operation and code. More than 5 % of 5xx: ask its operator.",
        operation=OPEN,
        code=OPEN,
    )
    objects_request_duration_seconds = histogram("Time of one request to its last byte.", operation=OPEN)
    objects_throttles = counter(
        "Answers that asked for fewer requests (503 SlowDown, 429). Lasting: lower offload.parts_in_flight_max."
    )
    objects_bytes = counter(
        "Body bytes received (in) and sent (out), which may be charged as traffic.", direction=("in", "out")
    )
    objects_requests_in_flight = gauge(
        "Requests to the object store that are not answered, with those that wait for a connection. At "
        "objects.connections_max for long: raise that setting, or the store is slow."
    )
    bucket_accessible = gauge(
        "1 while the bucket exists and can be used with our credentials. Page when 0 for two minutes."
    )

    segments_resumed = counter(
        "Open segments of an earlier owner that were resumed. Compare with offloaderd_ownership_changes_total."
    )
    recovery_seconds = histogram(
        "From the claim of a topic with an open segment to its first progress, in buckets to 6 h. Above 5 s: the "
        "source or store is slow, or away.",
        LONG_SECONDS_BUCKETS,
    )
    buffer_overdrawn_bytes = gauge(
        "Bytes in use beyond memory.buffer_bytes. They are for one sealed segment at a time that lacks entries while "
        "other such segments hold all memory. Above 0 for long: raise memory.buffer_bytes."
    )

    upload_concurrency = gauge(
        "Parts of all topics that may be uploaded to the service of `objects` at the same time: halved when the store "
        "asks for fewer requests, raised again as parts succeed. Low for long: the store cannot take what is written."
    )
    stalled_seconds = topic_gauge(
        "How long a topic has been stalled; 0 while it makes progress. Page above a few minutes."
    )
    unprotected_entries = topic_gauge(
        "Entries that an outage of the store keeps from being durable; 0 in normal running. Page on any for long."
    )
    unprotected_bytes = topic_gauge(
        "Payload bytes of these. Compare with the source's room, or spill.bytes_max, to see when it overruns."
    )
    unprotected_seconds = topic_gauge(
        "How long ago that outage began; 0 once everything that it delayed is stored. Compare with the source's "
        "retention."
    )
    spill_bytes = gauge("Bytes of spill files on this daemon's disk, of all topics.")
    spill_limit_bytes = gauge("Bytes that spill files may take (spill.bytes_max); 0: topics cannot spill.")
    spilled_entries = counter(
        "Pushed entries that found no room in memory and went to disk. Rising without an outage: uploads lag."
    )

    history_remaining_entries = topic_gauge(
        "Entries of the topic's history that are not offloaded yet, by its plan; they count as lag as well. Not 0 and "
        "not falling: offloadctl history status TOPIC shows who is to offload them, and the error."
    )
    history_remaining_bytes = topic_gauge(
        "Payload bytes of the topic's history that are not offloaded yet, by its plan."
    )
    history_waiting = topic_gauge(
        "1 while the topic's new entries wait until its history is offloaded (order history-first, history left to a "
        "job). The source alone has them: run the job, or set the order to alongside."
    )
    history_ranges = gauge(
        "Ranges in the unfinished histories of this daemon's topics, by state. claimed for hours: offloadctl history "
        "status TOPIC shows by whom.",
        state=("planned", "claimed", "done"),
    )
    history_probes = counter(
        "Requests to the source for the length of a ledger up to an entry, to find the boundaries of segments; about "
        "log2 of a ledger's entries for each boundary."
    )
    history_boundaries = counter("Boundaries of segments that were searched for by such requests.")
    history_probe_duration_seconds = histogram("Time of one such request.")
    history_doubtful_ledgers = counter(
        "Ledgers whose lengths were missing or contradicted each other, so that they were split by number of entries. "
        "Their segments may have another size than requested."
    )

    event_loop_lag_seconds = histogram("How late timers fire. p99 above 250 ms: the loop is blocked.")

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        """Register everything on `registry`, together with the default `process_*` and `python_gc_*` collectors."""
        super().__init__(registry)
        self.set_build(__version__, "")
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def set_build(self, version: str, revision: str) -> None:
        """Set version and revision of the running build."""
        self.build_info.clear()
        self.build_info.labels(version=version, revision=revision).set(1)

    def show_health(self, health: HealthView) -> None:
        """Listener for `Health.listen`: copy readiness and dependencies. Others have no series, as 0 means down."""
        self.ready.set(health.ready)
        known = {dependency.name: dependency.up for dependency in health.dependencies}
        for name, up in known.items():
            self.dependency_up.labels(dependency=name).set(up)
        for name in set(DEPENDENCIES) - known.keys() if health.ready else ():
            self.dependency_up.remove(name)

    def request_begun(self) -> None:
        """Count the begin of a request to the object store; `request` follows for each."""
        self.objects_requests_in_flight.inc()

    def request(self, operation: str, code: str, seconds: float, bytes_in: int, bytes_out: int) -> None:
        """Count one request to the object store: the hook of `objects/s3/store.py`."""
        self.objects_requests_in_flight.dec()
        known = code if code in STORE_CODES else "other"
        self.objects_requests.labels(operation=operation, code=known).inc()
        self.objects_request_duration_seconds.labels(operation=operation).observe(seconds)
        self.objects_bytes.labels(direction="in").inc(bytes_in)
        self.objects_bytes.labels(direction="out").inc(bytes_out)
        if code in STORE_THROTTLES:
            self.objects_throttles.inc()


async def watch_loop(clock: Clock, metrics: Metrics, *, interval_s: float = 0.25) -> None:
    """Measure by how much sleeps end too late; runs until it is cancelled."""
    while True:
        asked = clock.monotonic()
        await clock.sleep(interval_s)
        metrics.event_loop_lag_seconds.observe(max(0.0, clock.monotonic() - asked - interval_s))
