"""The last hour in numbers, in memory of a fixed size, and the loop that samples it; the status page plots it.

Rates are differences of the counters that the metrics have anyway: nothing is counted for the page on the hot path.
"""

import math
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from prometheus_client import Counter

from offloaderd.core.clock import Clock
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.metrics.values import TIERS
from offloaderd.protocol.status import Rate, Rates
from offloaderd.topic.status import TopicStatus

HOUR_S = 3600
SAMPLE_S = 10
"""Pause between two samples of the daemon."""

TOPIC_SAMPLE_S = 60
"""Pause between two samples of a topic: there are many."""

TOPICS_MAX = 1000
"""Number of topics that are sampled; each takes about a kilobyte."""

NOTHING = math.nan
"""Value of a missing sample."""


class Sample(NamedTuple):
    """Values at one moment of wall time, in milliseconds, in the order of the ring's columns."""

    wall_ms: int
    values: tuple[float, ...]


class Ring:
    """The newest samples of some columns."""

    def __init__(self, columns: Sequence[str], capacity: int = HOUR_S // SAMPLE_S) -> None:
        self.columns = tuple(columns)
        self.samples: deque[Sample] = deque(maxlen=capacity)

    def add(self, wall_ms: int, values: Mapping[str, float]) -> None:
        """Add a sample, and drop the oldest if the ring is full."""
        self.samples.append(Sample(wall_ms, tuple(values[name] for name in self.columns)))

    def column(self, name: str) -> list[tuple[int, float]]:
        """Return moments and values of one column, the oldest first."""
        at = self.columns.index(name)
        return [(sample.wall_ms, sample.values[at]) for sample in self.samples]


class TopicRings:
    """The last hour of many topics, which are sampled together: a number for each topic, column and time."""

    def __init__(
        self, columns: Sequence[str], *, topics_max: int = TOPICS_MAX, capacity: int = HOUR_S // TOPIC_SAMPLE_S
    ) -> None:
        self.columns = tuple(columns)
        self.left_out = 0
        """Number of topics of the last sample without a place."""
        self._topics_max = topics_max
        self._capacity = capacity
        self._taken = 0
        self._moments: deque[int] = deque(maxlen=capacity)
        self._rows: dict[str, array[float]] = {}

    @property
    def kept(self) -> int:
        """Number of sampled topics."""
        return len(self._rows)

    def add(self, wall_ms: int, values: Mapping[str, Sequence[float]]) -> None:
        """Add a sample of all topics; topics without a value are dropped.

        Sampled topics stay. If there are too many topics, the first ones of `values` get the free places.
        """
        for gone in self._rows.keys() - values.keys():
            del self._rows[gone]
        slot, width = self._taken % self._capacity, len(self.columns)
        self.left_out = 0
        for topic, row in values.items():
            kept = self._rows.get(topic)
            if kept is None:
                if len(self._rows) >= self._topics_max:
                    self.left_out += 1
                    continue
                kept = self._rows[topic] = array("f", [NOTHING]) * (width * self._capacity)
            kept[slot * width : (slot + 1) * width] = array("f", row)
        self._taken += 1
        self._moments.append(wall_ms)

    def column(self, topic: str, name: str) -> list[tuple[int, float]] | None:
        """Return moments and values of one column of a topic, the oldest first; None when it has no hour."""
        kept = self._rows.get(topic)
        if kept is None:
            return None
        width, at = len(self.columns), self.columns.index(name)
        first = self._taken - len(self._moments)
        slots = ((first + number) % self._capacity for number in range(len(self._moments)))
        return [(moment, kept[slot * width + at]) for moment, slot in zip(self._moments, slots, strict=True)]


COUNTED = ("taken_entries", "taken_bytes", "stored_bytes", *(f"read_{tier}_bytes" for tier in TIERS))
MEASURED = ("lag_s", "lag_entries", "lag_bytes", "stalled_topics")
TOPIC_COLUMNS = ("taken_bytes_per_s", "lag_s")


class Sampler:
    """The last hour of a daemon."""

    def __init__(self, statuses: Callable[[], Sequence[TopicStatus]], metrics: Metrics, clock: Clock) -> None:
        self.ring = Ring([*(f"{name}_per_s" for name in COUNTED), *MEASURED])
        self.topics = TopicRings(TOPIC_COLUMNS)
        self.rates = Rates()
        self._statuses = statuses
        self._metrics = metrics
        self._clock = clock
        self._counted: dict[str, float] = {}
        self._sampled_s = 0.0
        self._topics_s: float | None = None

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            self.sample()
            await self._clock.sleep(SAMPLE_S)

    def sample(self) -> None:
        """Take a sample; the first one has no rates."""
        statuses, now_s, wall_ms = self._statuses(), self._clock.monotonic(), self._clock.wall_ms()
        self.rates.look(statuses, now_s)
        self.ring.add(wall_ms, {**self._rates(now_s), **measured(statuses)})
        if self._topics_s is None or now_s - self._topics_s >= TOPIC_SAMPLE_S - SAMPLE_S / 2:
            self._topics_s = now_s
            none = Rate(NOTHING, NOTHING)
            rows = {
                name: (
                    self.rates.get(name, none).bytes_per_s,
                    NOTHING if one.lag_seconds is None else one.lag_seconds,
                )
                for one in statuses
                for name in (str(one.topic),)
            }
            self.topics.add(wall_ms, rows)
        self._metrics.status_samples.set(len(self.ring.samples))
        self._metrics.status_topics.labels(history="kept").set(self.topics.kept)
        self._metrics.status_topics.labels(history="left_out").set(self.topics.left_out)

    def _rates(self, now_s: float) -> dict[str, float]:
        """Return the rates per second since the last sample."""
        now, before, seconds = counted(self._metrics), self._counted, now_s - self._sampled_s
        self._counted, self._sampled_s = now, now_s
        known = before and seconds > 0
        return {f"{name}_per_s": (now[name] - before[name]) / seconds if known else NOTHING for name in COUNTED}


def measured(statuses: Sequence[TopicStatus]) -> dict[str, float]:
    """Return the lag of all topics together as far as it is known, of the oldest entry where it is an age."""
    return {
        "lag_s": max((one.lag_seconds for one in statuses if one.lag_seconds is not None), default=0.0),
        "lag_entries": sum(one.lag_entries or 0 for one in statuses),
        "lag_bytes": sum(one.lag_bytes or 0 for one in statuses),
        "stalled_topics": sum(1 for one in statuses if one.stalled_reason),
    }


def counted(metrics: Metrics) -> dict[str, float]:
    """Return the counters whose rates are kept."""
    reads = by_label(metrics.read_bytes, "source")
    return {
        "taken_entries": total(metrics.source_entries),
        "taken_bytes": total(metrics.source_bytes),
        "stored_bytes": total(metrics.upload_bytes),
        **{f"read_{tier}_bytes": reads.get(tier, 0.0) for tier in TIERS},
    }


def total(counter: Counter) -> float:
    """Return the sum of a counter's series."""
    return sum(
        sample.value for family in counter.collect() for sample in family.samples if sample.name.endswith("_total")
    )


def by_label(counter: Counter, label: str) -> dict[str, float]:
    """Return a counter's values by one of its labels, summed over the others."""
    found: dict[str, float] = {}
    for family in counter.collect():
        for sample in family.samples:
            if sample.name.endswith("_total"):
                found[sample.labels[label]] = found.get(sample.labels[label], 0.0) + sample.value
    return found
