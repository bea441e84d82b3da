"""Gauges with a series for each topic: a number in a dictionary, where prometheus_client keeps five objects and a lock.

A daemon with ten thousand topics has two hundred thousand of them.
"""

import sys
from collections.abc import Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

TOPIC = "topic"


class TopicGauge(Collector):
    """A gauge whose first label is `topic`; used as prometheus_client's, on one thread, and collected on any."""

    def __init__(self, name: str, text: str, more_labels: Sequence[str]) -> None:
        self._name = name
        self._text = text
        self._labels = (TOPIC, *more_labels)
        self._values: dict[str | tuple[str, ...], float] = {}
        """By topic, or by topic and further labels."""

    def labels(self, topic: str, **more: str) -> "TopicSeries":
        """Return one series, which shows 0 from now on if it is new. Raises KeyError for a label that is missing."""
        key = self._key(topic, *(more[name] for name in self._labels[1:]))
        self._values.setdefault(key, 0.0)
        return TopicSeries(self._values, key)

    def remove(self, topic: str, *more: str) -> None:
        """Forget one series; one that is not there is no error."""
        self._values.pop(self._key(topic, *more), None)

    def remove_topic(self, topic: str) -> None:
        """Forget all series of a topic."""
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
        """Have it show this number."""
        self._values[self._key] = float(value) or 0.0  # most are 0: one object for all of them

    def dec(self) -> None:
        """Have it show one less, unless it has been forgotten."""
        if self._key in self._values:
            self._values[self._key] -= 1
