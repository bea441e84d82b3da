"""What readers get, from which tier, and why from that one."""

from __future__ import annotations

from offloaderd.metric_families import Families
from offloaderd.metric_values import LONG_SECONDS_BUCKETS, TIERS

WHYS = ("chosen", "only_here", "fell_back_missing", "fell_back_corrupt", "fell_back_unavailable")

BROKER_UNKNOWN = ("map_unknown", "topic_unknown", "entries_missing")


class ReadMetrics(Families):
    """The part of the metrics that is about reads."""

    def _reads(self) -> None:
        self.read_requests = self._counter(
            "offloaderd_read_requests_total",
            "Runs of entries read, by tier asked and outcome. fallback: the tier failed and the next one answered.",
            source=TIERS,
            outcome=("ok", "fallback", "error", "cancelled"),
        )
        self.read_bytes = self._counter(
            "offloaderd_read_bytes_total", "Payload bytes handed out by tier.", source=TIERS
        )
        self.read_entries = self._counter("offloaderd_read_entries_total", "Entries handed out by tier.", source=TIERS)
        self.read_choice_entries = self._counter(
            "offloaderd_read_choice_entries_total",
            "Entries handed out, by tier and why it was this one (PIP-73). chosen: the read priority says so, or they "
            "were in the buffer. only_here: the tier that comes first has not got them. fell_back_missing, _corrupt, "
            "_unavailable: it has, and could not give them: look at that tier when these rise.",
            source=TIERS,
            why=WHYS,
        )
        self.read_choice_bytes = self._counter(
            "offloaderd_read_choice_bytes_total",
            "Payload bytes handed out, by tier and why it was this one, as read_choice_entries.",
            source=TIERS,
            why=WHYS,
        )
        self.broker_unknown = self._counter(
            "offloaderd_broker_unknown_total",
            "Ledgers that a broker wanted to read, and of which nobody can say what became of them: map_unknown (the "
            "map has not all of it, and not its deletion), topic_unknown (nothing is on record of the topic), "
            "entries_missing (an object is gone). Brokers try again and skip nothing. Page on any.",
            reason=BROKER_UNKNOWN,
        )
        self.read_duration_seconds = self._histogram(
            "offloaderd_read_duration_seconds",
            "From a read's start to its end, in buckets to 6 h; reads that follow are not counted.",
            LONG_SECONDS_BUCKETS,
        )
        self.read_first_byte_seconds = self._histogram(
            "offloaderd_read_first_byte_seconds",
            "From a read's start to its first batch, in buckets to 6 h. p99 above 1 s: the cache is small, or the "
            "store slow or away.",
            LONG_SECONDS_BUCKETS,
        )
        self.readers = self._gauge("offloaderd_readers", "Reads open now; at most read.readers_max.")
