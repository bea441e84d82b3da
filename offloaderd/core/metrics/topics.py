"""Gauges with a series per topic: each is a number in a dictionary, not prometheus_client's five objects and a lock.

A daemon with ten thousand topics has two hundred thousand series.
"""

import sys
from collections.abc import Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

TOPIC = "topic"


class TopicGauge(Collector):
    """A gauge by `topic`, with the methods of prometheus_client's. One thread sets it, any thread may collect it."""

    def __init__(self, name: str, text: str, more_labels: Sequence[str]) -> None:
        self._name = name
        self._text = text
        self._labels = (TOPIC, *more_labels)
        self._values: dict[str | tuple[str, ...], float] = {}
        """By topic, or by topic and further labels."""

    def labels(self, topic: str, **more: str) -> "TopicSeries":
        """Return one series; a new one is 0. Raises KeyError for a missing label."""
        key = self._key(topic, *(more[name] for name in self._labels[1:]))
        self._values.setdefault(key, 0.0)
        return TopicSeries(self._values, key)

    def remove(self, topic: str, *more: str) -> None:
        """Remove one series; a missing one is no error."""
        self._values.pop(self._key(topic, *more), None)

    def remove_topic(self, topic: str) -> None:
        """Remove all series of a topic."""
        self._values.pop(topic, None)
        if len(self._labels) > 1:
            for key in [key for key in self._values if key[0] == topic]:
                del self._values[key]

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Yield the family without its series."""
        yield self._family()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the family."""
        family = self._family()
        for key, value in list(self._values.items()):
            family.add_metric([key] if isinstance(key, str) else list(key), value)
        yield family

    def _family(self) -> GaugeMetricFamily:
        return GaugeMetricFamily(self._name, self._text, labels=self._labels)

    def _key(self, topic: str, *more: str) -> str | tuple[str, ...]:
        topic = sys.intern(topic)  # all families share the name
        return (topic, *more) if more else topic


class TopicSeries:
    """One series of a TopicGauge."""

    __slots__ = ("_key", "_values")

    def __init__(self, values: dict[str | tuple[str, ...], float], key: str | tuple[str, ...]) -> None:
        self._values = values
        self._key = key

    def set(self, value: float) -> None:
        """Set the value."""
        self._values[self._key] = float(value) or 0.0  # most values are 0, and share one object

    def dec(self) -> None:
        """Subtract one, unless the series was removed."""
        if self._key in self._values:
            self._values[self._key] -= 1
