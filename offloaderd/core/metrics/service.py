"""Metrics of daemons, owners and moves of topics; of reads; of callers; of changes at run time."""

from offloaderd.core.metrics.families import (
    LONG_SECONDS_BUCKETS,
    OPEN,
    TIERS,
    Families,
    counter,
    gauge,
    histogram,
    topic_gauge,
)
from offloaderd.core.model import DOMAINS_NOT_COVERED

STANDINGS = ("working", "impaired", "draining")
WAKE_CAUSES = ("source", "due", "used", "policy")
WHYS = ("chosen", "only_here", "fell_back_missing", "fell_back_corrupt", "fell_back_unavailable")


QUOTAS = ("write_bytes_per_s", "read_bytes_per_s", "stored_bytes", "topics", "readers", "calls", "unpack_bytes")


class ServiceMetrics(Families):
    """The metrics of placement, reads, calls and changes of a running daemon."""

    namespace_written_bytes = counter(
        "Payload bytes that were taken in, by namespace; - are namespaces without topics and quotas. Those of a known "
        "tenant count for the tenant.",
        namespace=OPEN,
    )
    namespace_read_bytes = counter("Bytes that were sent to readers, by namespace, for its bill.", namespace=OPEN)
    namespace_requests = counter("Calls that named a topic or pattern of the namespace.", namespace=OPEN)
    namespace_stored_byte_seconds = counter(
        "Bytes of data objects times the seconds that they were stored, of topics that this daemon owns; divide by "
        "3600 for byte-hours.",
        namespace=OPEN,
    )
    namespace_waited_seconds = counter(
        "Seconds that feeds and readers waited for a rate of their namespace (quota). Rising with a growing lag: raise "
        "write_bytes_per_s, or the tenant sends too much.",
        namespace=OPEN,
        quota=QUOTAS,
    )
    namespace_refused = counter(
        "Calls that were refused, and topics that were not enabled, because a quota of the namespace or tenant is "
        "used. Rising: its callers need more, or do too much at once.",
        namespace=OPEN,
        quota=QUOTAS,
    )
    namespace_used = gauge(
        "Use of each quota by namespace or tenant now. stored_bytes and topics are those of the cluster as this daemon "
        "knows them, the others its own.",
        namespace=OPEN,
        quota=QUOTAS,
    )
    namespace_quota = gauge(
        "Quotas in force, by namespace or tenant; no series without a limit. stored_bytes used up: nothing more of its "
        "topics is offloaded.",
        namespace=OPEN,
        quota=QUOTAS,
    )

    ownership_topics = gauge("Topics that this daemon owns now.")
    topics_suspended = gauge(
        "Topics that this daemon owns and has suspended because they are idle (offload.suspend_after_s)."
    )
    topic_wakes = counter(
        "Suspended topics that were resumed, by cause. source: the source has something new. due: a duty, or an hour "
        "has passed. used: a push, a read, a call. policy: the policy has changed.",
        cause=WAKE_CAUSES,
    )
    ownership_changes = counter(
        "Topics claimed and given up or lost. Rising steadily: sessions flap.", direction=("gained", "lost")
    )
    fenced_writes = counter(
        "Writes refused because another daemon owns the topic now. One after a pause of the daemon is normal; many "
        "point to the network."
    )
    placement_daemons = gauge(
        "Daemons that this one takes into account, itself among them. All daemons should show the same numbers; "
        "impaired: it cannot reach the bucket.",
        standing=STANDINGS,
    )
    placement_topics = gauge(
        "Topics that this daemon owns or waits for. first: it ranks first for them. elsewhere: another daemon ranks "
        "first, and they are handed over once no daemon joins or leaves any more; look when this stays above 0 for an "
        "hour.",
        place=("first", "elsewhere"),
    )
    ownership_moves = counter(
        "Topics that this daemon handed over or took. moved: the other daemon claimed it. returned: it did not; look "
        "at its log. adopted: claimed here because the living daemon that ranks first did not; look at that one's "
        "log.",
        outcome=("moved", "returned", "adopted"),
    )
    handover_seconds = histogram(
        "Time from the decision to hand a topic over until its release, in which the open segment is sealed and "
        "committed, in buckets to 6 h. After the release entries wait only for the claim of the new owner.",
        LONG_SECONDS_BUCKETS,
    )

    read_requests = counter(
        "Runs of entries read, by the tier that was asked and outcome. fallback: the tier failed and the next one "
        "answered.",
        source=TIERS,
        outcome=("ok", "fallback", "error", "cancelled"),
    )
    read_bytes = counter("Payload bytes served, by tier.", source=TIERS)
    read_entries = counter("Entries served, by tier.", source=TIERS)
    read_choice_entries = counter(
        "Entries served, by tier and the reason for it (PIP-73). chosen: by the read priority, or they were in the "
        "buffer. only_here: the tier with priority does not have them. fell_back_missing, _corrupt, _unavailable: it "
        "should have them and could not give them; look at that tier when these rise.",
        source=TIERS,
        why=WHYS,
    )
    read_choice_bytes = counter(
        "Payload bytes served, by tier and the reason for it, as read_choice_entries.", source=TIERS, why=WHYS
    )
    broker_unknown = counter(
        "Ledgers that a broker asked to read and whose state is unknown. map_unknown: the map has neither all of the "
        "ledger nor its deletion. topic_unknown: there is no record of the topic. entries_missing: an object is "
        "missing. Brokers try again and skip nothing. Page on any.",
        reason=("map_unknown", "topic_unknown", "entries_missing"),
    )
    read_duration_seconds = histogram(
        "From a read's start to its end, in buckets to 6 h; reads that follow are not counted.", LONG_SECONDS_BUCKETS
    )
    read_first_byte_seconds = histogram(
        "From a read's start to its first batch, in buckets to 6 h. p99 above 1 s: the cache is small, or the store "
        "slow or away.",
        LONG_SECONDS_BUCKETS,
    )
    readers = gauge("Reads open now; at most read.readers_max.")
    disk_cache_open = gauge("1 while the disk cache is used. 0 with cache.directory set: the log says why.")
    disk_cache_read_bytes = counter("Bytes that reads took from the disk cache instead of the store.")
    disk_cache_written_bytes = counter("Bytes written to the disk cache. Far above disk_cache_read_bytes: a small one.")
    disk_cache_declined = counter(
        "Ranges that were not on the disk, and not written to it either. once: it is full, and they were requested "
        "once, or less often than what is there. writes: the disk takes less than is fetched. off: see "
        "disk_cache_open.",
        cause=("once", "writes", "off"),
    )
    disk_cache_failures = counter(
        "Failures of the disk below cache.directory; readers get what they want from the store. damaged: other bytes "
        "than were written. missing: a removed file. slow: a read of more than 5 s. directory: it cannot be opened. "
        "delete: a file that stays, and takes room.",
        cause=("damaged", "missing", "read", "write", "delete", "slow", "directory"),
    )
    disk_cache_gets_saved = counter(
        "GETs that were not sent, as the disk cache had all that was wanted, or another reader fetched it."
    )
    disk_cache_money_saved = counter("What these would have cost by prices.get_1000, without traffic.")
    seeks = counter(
        "Seeks by kind of target and by what was needed to answer: manifests, one block or entry, a scan of several, "
        "nothing there yet. Many scans: the segments are of older versions, or the entries are in the source still.",
        kind=("time", "index", "sequence"),
        outcome=("manifest", "block", "scan", "nothing", "error"),
    )
    seek_bytes = counter(
        "Bytes that seeks read: blocks of the bucket, entries of the ledger source.", source=("objects", "source")
    )

    grpc_server_handled = counter(
        "Calls finished, by method and status code, with the labels of go-grpc-prometheus. Internal or DataLoss: see "
        "the log.",
        grpc_type=OPEN,
        grpc_service=OPEN,
        grpc_method=OPEN,
        grpc_code=OPEN,
    ).named("grpc_server_handled_total")
    grpc_server_handling_seconds = histogram(
        "From a call's start to its status, in buckets to 6 h; streams last as long as their client wants them to.",
        LONG_SECONDS_BUCKETS,
        grpc_type=OPEN,
        grpc_service=OPEN,
        grpc_method=OPEN,
    ).named("grpc_server_handling_seconds")
    grpc_calls = gauge("Calls being served, probes apart. Near grpc.calls_max: new ones are refused soon.")
    grpc_identity_highest = gauge(
        "Calls, and reads among them, of the identity that has the most. Near access.identity_calls_max or "
        "identity_readers_max: further ones of this identity are refused soon.",
        of=("calls", "readers"),
    )
    grpc_refused = counter(
        "Calls that were refused or cut. unauthenticated, denied: see the audit log for the caller. Others: a limit "
        "was reached. Rising unauthenticated: somebody tries tokens, or a token has expired.",
        reason=("unauthenticated", "denied", "calls", "rate", "duration", "slow", "identity_calls", "identity_readers"),
    )
    grpc_tokens = counter(
        "Calls that were accepted by a token, by the key that signed it: present, previous "
        "(access.token_..._previous), or one of the provider (access.token_jwks). When previous does not rise any "
        "more, the old key can be removed.",
        signed_by=("present", "previous", "provider"),
    )
    grpc_limit = gauge(
        "The limits of the API, from the settings; 0: no limit. Seconds, bytes or numbers, as the label says.",
        limit=(
            "calls",
            "calls_per_s",
            "namespace_expressions",
            "namespace_topics",
            "tenant_namespaces",
            "identity_calls",
            "identity_readers",
            "call_s",
            "send_s",
            "message_bytes",
            "streams_per_connection",
        ),
    )
    broker_topics = counter(
        "Topics that no policy named when their broker wanted a ledger offloaded. enabled: they are now. unlisted: "
        "Pulsar's list has no such topic or ledger; another cluster's daemon was asked, or somebody tries names. "
        "full: access.namespace_topics_max or tenant_namespaces_max is reached.",
        outcome=("enabled", "unlisted", "full"),
    )
    tls_expires_timestamp_seconds = gauge(
        "When the daemon's certificate ends (tls.cert_file); 0 without TLS. Page a week before."
    )
    metadata_world_writable = gauge(
        "1 while every client of ZooKeeper may write the daemon's nodes, policies and retention among them: "
        "metadata.acl is open, and ZooKeeper is not on this machine alone."
    )
    tls_reload_failing = gauge(
        "1 while a changed certificate or token key cannot be used; the old one stays in use, and the log says why."
    )

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
        domain=DOMAINS_NOT_COVERED,
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
