"""The last hour in numbers, in memory of a fixed size. No I/O, no clock: whoever samples says when."""

import math
from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

HOUR_S = 3600
SAMPLE_S = 10
"""Pause between two samples of the daemon."""

TOPIC_SAMPLE_S = 60
"""Pause between two samples of a topic: there are many."""

TOPICS_MAX = 1000
"""So many topics have an hour of their own; the memory for it is about a kilobyte each."""

NOTHING = math.nan
"""In the place of a sample that was not taken."""


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
        """Keep a sample, and forget the oldest if there is no more room."""
        self.samples.append(Sample(wall_ms, tuple(values[name] for name in self.columns)))

    def column(self, name: str) -> list[tuple[int, float]]:
        """Return moments and values of one column, the oldest first."""
        at = self.columns.index(name)
        return [(sample.wall_ms, sample.values[at]) for sample in self.samples]


class TopicRings:
    """The hours of many topics, which are sampled together: one number a topic, column and moment."""

    def __init__(
        self, columns: Sequence[str], *, topics_max: int = TOPICS_MAX, capacity: int = HOUR_S // TOPIC_SAMPLE_S
    ) -> None:
        self.columns = tuple(columns)
        self.left_out = 0
        """How many topics of the last sample found no room."""
        self._topics_max = topics_max
        self._capacity = capacity
        self._taken = 0
        self._moments: deque[int] = deque(maxlen=capacity)
        self._rows: dict[str, array[float]] = {}

    @property
    def kept(self) -> int:
        """How many topics have an hour."""
        return len(self._rows)

    def add(self, wall_ms: int, values: Mapping[str, Sequence[float]]) -> None:
        """Keep a sample of all topics that there are; the hour of one that is gone is forgotten.

        Who has room keeps it. If there are too many topics the first ones of `values` get what is left.
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
