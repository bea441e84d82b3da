"""Which plots the pages have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offloaderd.metric_values import TIERS
from offloaderd.pages.plots import BYTES, BYTES_RATE, SECONDS, Plot, plot

if TYPE_CHECKING:
    from offloaderd.pages.ring import Ring, TopicRings

TIER_WORDS = dict(zip(TIERS, ("buffer", "ledger source", "bucket"), strict=True))


def daemon_plots(ring: Ring, now_ms: int) -> tuple[Plot, ...]:
    """Return the drawings of the daemon's hour."""
    return (
        plot(
            "throughput",
            "Throughput",
            BYTES_RATE,
            {"taken in": ring.column("taken_bytes_per_s"), "stored": ring.column("stored_bytes_per_s")},
            now_ms,
        ),
        plot("lag-age", "Age of the oldest entry that is not durable", SECONDS, {"lag": ring.column("lag_s")}, now_ms),
        plot("lag-bytes", "Not durable yet, all topics", BYTES, {"lag": ring.column("lag_bytes")}, now_ms),
        plot(
            "reads",
            "Read, by tier",
            BYTES_RATE,
            {TIER_WORDS[tier]: ring.column(f"read_{tier}_bytes_per_s") for tier in TIERS},
            now_ms,
        ),
    )


def topic_plots(rings: TopicRings, topic: str, now_ms: int) -> tuple[Plot, ...]:
    """Return the drawings of a topic's hour; none when it has none."""
    rate, lag = rings.column(topic, "taken_bytes_per_s"), rings.column(topic, "lag_s")
    if rate is None or lag is None:
        return ()
    return (
        plot("throughput", "Throughput", BYTES_RATE, {"taken in": rate}, now_ms),
        plot("lag-age", "Age of the oldest entry that is not durable", SECONDS, {"lag": lag}, now_ms),
    )
