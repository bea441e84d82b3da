"""Metrics of reads: results, tiers, and the reasons for the tier."""

from offloaderd.core.metrics.families import Families, counter, gauge, histogram
from offloaderd.core.metrics.values import LONG_SECONDS_BUCKETS, TIERS

WHYS = ("chosen", "only_here", "fell_back_missing", "fell_back_corrupt", "fell_back_unavailable")

BROKER_UNKNOWN = ("map_unknown", "topic_unknown", "entries_missing")


class ReadMetrics(Families):
    """The metrics of reads."""

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
        "Seeks by kind of target and by what was needed to answer: manifests, one block or entry, a scan of several, "
        "nothing there yet. Many scans: the segments are of older versions, or the entries are in the source still.",
        kind=("time", "index", "sequence"),
        outcome=("manifest", "block", "scan", "nothing", "error"),
    )
    seek_bytes = counter(
        "Bytes that seeks read: blocks of the bucket, entries of the ledger source.", source=("objects", "source")
    )
