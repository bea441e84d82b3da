"""How much of everything: a full run of less than 20 minutes, or a quick one of less than three."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024
ENTRY_SIZES = {"100 B": 100, "1 KiB": 1024, "10 KiB": 10 * 1024, "1 MiB": MIB}
"""Entries of the benchmarks of throughput."""
QUICK_LABELS = ("1 KiB", "10 KiB")
"""Those that have goals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Bytes, seconds and numbers of topics of one run, and how often everything is measured."""

    runs: int
    segment_bytes: int
    """One topic's entries in one measurement of throughput; they are one segment."""
    way_bytes: int
    """The same for the ways into the bucket whose CPU has goals: what happens once a segment weighs half as much, and
    still four times as much as with segments of 1 GiB, the daemon's default."""
    read_bytes: int
    """The same where it is read: several times what the cache of blocks holds, so that most of it is not the filling of
    memory that nothing was in before."""
    reader_bytes: int
    """Bytes for each of several readers: several times the read-ahead of one, where shares are compared."""
    backfill_bytes: int
    """One topic's history for a Spark job, or what the data source reads."""
    stock_bytes: int
    """A ledger that Pulsar's offloader and ours offload."""
    random_reads: int
    durable_s: float
    """How long streams of messages are watched."""
    sustained_s: float
    """How long the daemon is kept at full load, in each of two ways."""
    idle_topics: int
    slow_topics: int
    """Topics with an entry a second each."""
    slow_age_s: float
    """Largest age of their segments; they are watched for as long, and begin over as long a time."""
    burst_messages: int
    quick: bool

    @property
    def entry_sizes(self) -> dict[str, int]:
        """Sizes of entries by their labels; that of 1 KiB comes first, for others are compared with it."""
        labels = QUICK_LABELS if self.quick else ("1 KiB", *(label for label in ENTRY_SIZES if label != "1 KiB"))
        return {label: ENTRY_SIZES[label] for label in labels}

    @property
    def ledger_sizes(self) -> dict[str, int]:
        """The entry sizes of ledgers on bookies, fewer in a quick run, since they take longer to write."""
        return {label: ENTRY_SIZES[label] for label in (QUICK_LABELS[:1] if self.quick else QUICK_LABELS)}


def bytes_of(total: int, entry_bytes: int) -> int:
    """Return the bytes of one measurement: fewer than `total` for small entries, whose cost is by entry."""
    return total // 4 if entry_bytes < 1024 else total


def scale(
    *, quick: bool, runs: int | None, sustained_s: float | None, idle: int | None = None, slow: int | None = None
) -> Scale:
    """Return the size of a run; None leaves its own."""
    if quick:
        return Scale(
            runs=runs or 1,
            segment_bytes=12 * MIB,
            way_bytes=12 * MIB,
            read_bytes=12 * MIB,
            reader_bytes=2 * MIB,
            backfill_bytes=24 * MIB,
            stock_bytes=8 * MIB,
            random_reads=10,
            durable_s=3,
            sustained_s=sustained_s or 2,
            idle_topics=idle or 20,
            slow_topics=slow or 50,
            slow_age_s=2,
            burst_messages=200,
            quick=True,
        )
    return Scale(
        runs=runs or 3,
        segment_bytes=128 * MIB,
        way_bytes=256 * MIB,
        read_bytes=512 * MIB,
        reader_bytes=64 * MIB,
        backfill_bytes=256 * MIB,
        stock_bytes=128 * MIB,
        random_reads=100,
        durable_s=15,
        sustained_s=sustained_s or 30,
        idle_topics=idle or 500,
        slow_topics=slow or 1000,
        slow_age_s=40,
        burst_messages=2000,
        quick=False,
    )
