"""What readers get, from which tier, and why from that one."""

from offloaderd.core.metrics.families import Families, counter, gauge, histogram
from offloaderd.core.metrics.values import LONG_SECONDS_BUCKETS, TIERS

WHYS = ("chosen", "only_here", "fell_back_missing", "fell_back_corrupt", "fell_back_unavailable")

BROKER_UNKNOWN = ("map_unknown", "topic_unknown", "entries_missing")


class ReadMetrics(Families):
    """The part of the metrics that is about reads."""

    read_requests = counter(
        "Runs of entries read, by tier asked and outcome. fallback: the tier failed and the next one answered.",
        source=TIERS,
        outcome=("ok", "fallback", "error", "cancelled"),
    )
    read_bytes = counter("Payload bytes handed out by tier.", source=TIERS)
    read_entries = counter("Entries handed out by tier.", source=TIERS)
    read_choice_entries = counter(
        "Entries handed out, by tier and why it was this one (PIP-73). chosen: the read priority says so, or they "
        "were in the buffer. only_here: the tier that comes first has not got them. fell_back_missing, _corrupt, "
        "_unavailable: it has, and could not give them: look at that tier when these rise.",
        source=TIERS,
        why=WHYS,
    )
    read_choice_bytes = counter(
        "Payload bytes handed out, by tier and why it was this one, as read_choice_entries.", source=TIERS, why=WHYS
    )
    broker_unknown = counter(
        "Ledgers that a broker wanted to read, and of which nobody can say what became of them: map_unknown (the map "
        "has not all of it, and not its deletion), topic_unknown (nothing is on record of the topic), entries_missing"
        " (an object is gone). Brokers try again and skip nothing. Page on any.",
        reason=BROKER_UNKNOWN,
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
    seeks = counter(
        "Seeks by what they went by and what answered: manifests, one block or entry, a scan of several, nothing "
        "there yet. Many scans: topics whose segments are of older versions, or lie in the source still.",
        kind=("time", "index", "sequence"),
        outcome=("manifest", "block", "scan", "nothing", "error"),
    )
    seek_bytes = counter(
        "Bytes that seeks read, blocks of the bucket and entries of the ledger source.", source=("objects", "source")
    )
