"""The last hour in numbers: sampled into memory of a fixed size, and plotted for SVG as lines, ticks and texts.

Rates are differences of the counters that the metrics have anyway: nothing is counted for the page on the hot path.
"""

import math
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import add
from typing import NamedTuple, TypeAlias

from prometheus_client import Counter

from offloaderd.core import units as words
from offloaderd.core.aio import in_turns
from offloaderd.core.clock import Clock, pause_after_pass
from offloaderd.core.metrics.families import TIERS
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import TopicName
from offloaderd.protocol.status import Rate, Rates, Taken
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

    def __init__(self, statuses: Callable[[], Iterable[TopicStatus]], metrics: Metrics, clock: Clock) -> None:
        self.ring = Ring([*(f"{name}_per_s" for name in COUNTED), *MEASURED])
        self.topics = TopicRings(TOPIC_COLUMNS)
        self.rates = Rates()
        self._statuses = statuses
        self._metrics = metrics
        self._clock = clock
        self._counted: dict[str, float] = {}
        self._sampled_s = 0.0
        self._topics_s: float | None = None
        self._suspended: Mapping[TopicName, TopicStatus] = {}
        """The suspended topics of the last sample."""

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            begun_s = self._clock.monotonic()
            await self.sample()
            await self._clock.sleep(pause_after_pass(self._clock, begun_s, SAMPLE_S))

    async def sample(self) -> None:
        """Take a sample; the first one has no rates."""
        now_s, wall_ms = self._clock.monotonic(), self._clock.wall_ms()
        taken: dict[str, tuple[int, int, int]] = {}
        woken: dict[str, tuple[int, int, int]] = {}
        suspended: dict[TopicName, TopicStatus] = {}
        lags_s: dict[str, float] = {}
        sums = measured(())
        with_topics = self._topics_s is None or now_s - self._topics_s >= TOPIC_SAMPLE_S - SAMPLE_S / 2
        async for statuses in in_turns(self._statuses()):
            sums = together(sums, measured(statuses))
            for one in statuses:
                before = self._suspended.get(one.topic)
                if one.asleep:
                    suspended[one.topic] = one
                if one is not before:  # else it is suspended as it was: it has no rate, and nothing is made for it
                    taken[str(one.topic)] = _counts(one)
                    if before is not None:
                        woken[str(one.topic)] = _counts(before)
                if with_topics:
                    lags_s[str(one.topic)] = NOTHING if one.lag_seconds is None else one.lag_seconds
        self._suspended = suspended
        self.rates.look(taken, now_s, woken)
        self.ring.add(wall_ms, {**self._rates(now_s), **sums})
        if with_topics:
            self._topics_s = now_s
            self.topics.add(wall_ms, {topic: (self._rate(topic, taken), lag_s) for topic, lag_s in lags_s.items()})
        self._metrics.status_samples.set(len(self.ring.samples))
        self._metrics.status_topics.labels(history="kept").set(self.topics.kept)
        self._metrics.status_topics.labels(history="left_out").set(self.topics.left_out)

    def _rate(self, topic: str, taken: Taken) -> float:
        """Return a topic's bytes per second: none of a suspended one."""
        return self.rates.get(topic, Rate(NOTHING, NOTHING) if topic in taken else Rate(0.0, 0.0)).bytes_per_s

    def _rates(self, now_s: float) -> dict[str, float]:
        """Return the rates per second since the last sample."""
        now, before, seconds = counted(self._metrics), self._counted, now_s - self._sampled_s
        self._counted, self._sampled_s = now, now_s
        known = before and seconds > 0
        return {f"{name}_per_s": (now[name] - before[name]) / seconds if known else NOTHING for name in COUNTED}


def _counts(status: TopicStatus) -> tuple[int, int, int]:
    return status.epoch, status.taken_entries, status.taken_bytes


def measured(statuses: Sequence[TopicStatus]) -> dict[str, float]:
    """Return the lag of all topics together as far as it is known, of the oldest entry where it is an age."""
    return {
        "lag_s": max((one.lag_seconds for one in statuses if one.lag_seconds is not None), default=0.0),
        "lag_entries": sum(one.lag_entries or 0 for one in statuses),
        "lag_bytes": sum(one.lag_bytes or 0 for one in statuses),
        "stalled_topics": sum(1 for one in statuses if one.stalled_reason),
    }


def together(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """Return the lag of two groups of topics together."""
    return {name: (max if name == "lag_s" else add)(value, other[name]) for name, value in one.items()}


def counted(metrics: Metrics) -> dict[str, float]:
    """Return the counters whose rates are kept."""
    reads = by_label(metrics.read_bytes, "source")
    return {
        "taken_entries": sum(value for _, value in totals(metrics.source_entries)),
        "taken_bytes": sum(value for _, value in totals(metrics.source_bytes)),
        "stored_bytes": sum(value for _, value in totals(metrics.upload_bytes)),
        **{f"read_{tier}_bytes": reads.get(tier, 0.0) for tier in TIERS},
    }


def totals(counter: Counter) -> Iterator[tuple[dict[str, str], float]]:
    """Yield the labels and the value of each series of a counter."""
    samples = (sample for family in counter.collect() for sample in family.samples)
    return ((sample.labels, sample.value) for sample in samples if sample.name.endswith("_total"))


def by_label(counter: Counter, label: str) -> dict[str, float]:
    """Return a counter's values by one of its labels, summed over the others."""
    found: dict[str, float] = {}
    for labels, value in totals(counter):
        found[labels[label]] = found.get(labels[label], 0.0) + value
    return found


WIDTH, HEIGHT = 600, 170
LEFT, RIGHT, TOP, BOTTOM = 80, 8, 10, 22
"""Room for labels round the lines, in units of the drawing."""

SPAN_MS = HOUR_S * 1000
TICKS_MAX = 4
TIER_WORDS = dict(zip(TIERS, ("buffer", "ledger source", "bucket"), strict=True))

Points: TypeAlias = "Sequence[tuple[int, float]]"


@dataclass(frozen=True, slots=True)
class Scale:
    """Steps of the axis for a kind of numbers, and their format."""

    steps: tuple[float, ...]
    write: Callable[[float], str]


_SIZES = tuple(1024**power * step for power in range(6) for step in (1, 2, 5, 10, 20, 50, 100, 200, 500))
BYTES_RATE = Scale(_SIZES, lambda value: f"{words.size(round(value))}/s")
BYTES = Scale(_SIZES, lambda value: words.size(round(value)))
SECONDS = Scale(
    (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21_600, 43_200, 86_400, 172_800, 604_800), words.age
)


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on an axis, at a place in the drawing."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Line:
    """A line: pieces of `x,y` points with gaps where nothing was measured; its last and highest value as text."""

    name: str
    number: int
    pieces: tuple[str, ...]
    now: str
    highest: str


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot; `summary` describes it as text for screen readers."""

    key: str
    title: str
    lines: tuple[Line, ...]
    across: tuple[Tick, ...]
    up: tuple[Tick, ...]
    summary: str


def plot(key: str, title: str, scale: Scale, series: Mapping[str, Points], now_ms: int) -> Plot:
    """Return the plot of an hour that ends now; `series` are times in milliseconds and values, by name."""
    recent = {name: [(at, value) for at, value in points if at > now_ms - SPAN_MS] for name, points in series.items()}
    known = [value for points in recent.values() for _, value in points if not math.isnan(value)]
    step = step_for(max(known, default=0.0), scale)
    top = step * max(1, math.ceil(max(known, default=0.0) / step))
    lines = tuple(
        _line(number, name, points, scale, top, now_ms) for number, (name, points) in enumerate(recent.items())
    )
    summary = "; ".join(f"{line.name}: now {line.now}, highest {line.highest}" for line in lines)
    return Plot(
        key=key,
        title=title,
        lines=lines,
        across=tuple(Tick(_x(now_ms - minutes * 60_000, now_ms), f"-{minutes} min") for minutes in (60, 45, 30, 15)),
        up=tuple(Tick(_y(step * count, top), scale.write(step * count)) for count in range(round(top / step) + 1)),
        summary=f"{title}, last hour. {summary}.",
    )


def step_for(highest: float, scale: Scale) -> float:
    """Return a distance of marks on the axis that gives few of them."""
    fitting = (step for step in scale.steps if highest <= step * TICKS_MAX)
    return next(fitting, 10 ** math.ceil(math.log10(highest / TICKS_MAX)) if highest else scale.steps[0])


def _line(number: int, name: str, points: Points, scale: Scale, top: float, now_ms: int) -> Line:
    pieces: list[list[str]] = [[]]
    for at, value in points:
        if math.isnan(value):
            pieces.append([])
        else:
            pieces[-1].append(f"{_x(at, now_ms):.1f},{_y(value, top):.1f}")
    values = [value for _, value in points if not math.isnan(value)]
    return Line(
        name=name,
        number=number,
        pieces=tuple(" ".join(piece) for piece in pieces if piece),
        now=scale.write(values[-1]) if values else "unknown",
        highest=scale.write(max(values)) if values else "unknown",
    )


def _x(at_ms: int, now_ms: int) -> float:
    return WIDTH - RIGHT - (WIDTH - LEFT - RIGHT) * (now_ms - at_ms) / SPAN_MS


def _y(value: float, top: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top


def daemon_plots(ring: Ring, now_ms: int) -> tuple[Plot, ...]:
    """Return the plots of the last hour of the daemon."""
    moved = {"taken in": ring.column("taken_bytes_per_s"), "stored": ring.column("stored_bytes_per_s")}
    reads = {TIER_WORDS[tier]: ring.column(f"read_{tier}_bytes_per_s") for tier in TIERS}
    return (
        plot("throughput", "Throughput", BYTES_RATE, moved, now_ms),
        plot("lag-age", "Age of the oldest entry that is not durable", SECONDS, {"lag": ring.column("lag_s")}, now_ms),
        plot("lag-bytes", "Not durable yet, all topics", BYTES, {"lag": ring.column("lag_bytes")}, now_ms),
        plot("reads", "Read, by tier", BYTES_RATE, reads, now_ms),
    )


def topic_plots(rings: TopicRings, topic: str, now_ms: int) -> tuple[Plot, ...]:
    """Return the plots of the last hour of a topic; none if it was not sampled."""
    rate, lag = rings.column(topic, "taken_bytes_per_s"), rings.column(topic, "lag_s")
    if rate is None or lag is None:
        return ()
    return (
        plot("throughput", "Throughput", BYTES_RATE, {"taken in": rate}, now_ms),
        plot("lag-age", "Age of the oldest entry that is not durable", SECONDS, {"lag": lag}, now_ms),
    )
