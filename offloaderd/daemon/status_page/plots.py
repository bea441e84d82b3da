"""Plots of numbers over time for SVG: lines as points, ticks and texts; and the plots of the pages."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from offloaderd.core import humanize as words
from offloaderd.core.metrics.values import TIERS
from offloaderd.daemon.status_page.sampler import Ring, TopicRings

WIDTH, HEIGHT = 600, 170
LEFT, RIGHT, TOP, BOTTOM = 80, 8, 10, 22
"""Room for labels round the lines, in units of the drawing."""

SPAN_MS = 3_600_000
TICKS_MAX = 4
TIER_WORDS = dict(zip(TIERS, ("buffer", "ledger source", "bucket"), strict=True))

Points: TypeAlias = "Sequence[tuple[int, float]]"


@dataclass(frozen=True, slots=True)
class Scale:
    """Steps of the axis for a kind of numbers, and their format."""

    steps: tuple[float, ...]
    write: Callable[[float], str]


def _decimal(units: Sequence[float]) -> tuple[float, ...]:
    return tuple(unit * step for unit in units for step in (1, 2, 5, 10, 20, 50, 100, 200, 500))


BYTES_RATE = Scale(_decimal([1024**power for power in range(6)]), lambda value: f"{words.size(round(value))}/s")
BYTES = Scale(_decimal([1024**power for power in range(6)]), lambda value: words.size(round(value)))
SECONDS = Scale(
    (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21_600, 43_200, 86_400, 172_800, 604_800),
    words.age,
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
    """Return the plots of the last hour of a topic; none if it was not sampled."""
    rate, lag = rings.column(topic, "taken_bytes_per_s"), rings.column(topic, "lag_s")
    if rate is None or lag is None:
        return ()
    return (
        plot("throughput", "Throughput", BYTES_RATE, {"taken in": rate}, now_ms),
        plot("lag-age", "Age of the oldest entry that is not durable", SECONDS, {"lag": lag}, now_ms),
    )
