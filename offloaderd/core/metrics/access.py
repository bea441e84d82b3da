"""Metrics of calls: accepted and refused callers, and the remaining validity of the daemon's certificate."""

from offloaderd.core.metrics.families import Families, counter, gauge, histogram
from offloaderd.core.metrics.values import LONG_SECONDS_BUCKETS, OPEN

LIMITS = (
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
)
REFUSALS = ("unauthenticated", "denied", "calls", "rate", "duration", "slow", "identity_calls", "identity_readers")


class AccessMetrics(Families):
    """The metrics of callers."""

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
        reason=REFUSALS,
    )
    grpc_tokens = counter(
        "Calls that were accepted by a token, by the key that signed it: present, or previous "
        "(access.token_..._previous). When previous does not rise any more, the old key can be removed.",
        signed_by=("present", "previous"),
    )
    grpc_limit = gauge(
        "The limits of the API, from the settings; 0: no limit. Seconds, bytes or numbers, as the label says.",
        limit=LIMITS,
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
        "1 while everybody who reaches ZooKeeper may write the daemon's nodes, policies and retention among them: "
        "metadata.acl is open, and ZooKeeper is not on this machine alone."
    )
    tls_reload_failing = gauge(
        "1 while a changed certificate or token key cannot be used; the old one stays in use, and the log says why."
    )
