"""Making metrics: a registry that knows how its families are described, and which of them name topics."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from offloaderd.metric_topics import TOPIC, TopicGauge
from offloaderd.metric_values import SECONDS_BUCKETS, Documented, View

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from prometheus_client.registry import Collector

_Family = TypeVar("_Family", Counter, Gauge, Histogram)


class Families:
    """A registry, and what is declared on it."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = CollectorRegistry() if registry is None else registry
        self._by_topic: dict[str, TopicGauge] = {}
        self._documented: list[Documented] = []

    def drop_topic(self, topic: str) -> None:
        """Forget every series of a topic that this daemon no longer serves; an unknown one is no error."""
        for family in self._by_topic.values():
            family.remove_topic(topic)

    def view(self, *, topics: bool | None = None) -> Collector:
        """Return what a scrape collects: all families (None), only those by topic (True), or only the others."""
        return View(self.registry, self._by_topic.keys(), topics)

    def documented(self) -> Sequence[Documented]:
        """All of the daemon's own metrics, in the order of their declaration."""
        return self._documented

    def _counter(self, name: str, text: str, **labels: tuple[str, ...]) -> Counter:
        return self._keep(name, text, Counter(name, text, tuple(labels), registry=self.registry), labels)

    def _gauge(self, name: str, text: str, **labels: tuple[str, ...]) -> Gauge:
        return self._keep(name, text, Gauge(name, text, tuple(labels), registry=self.registry), labels)

    def _topic_gauge(self, name: str, text: str, **labels: tuple[str, ...]) -> TopicGauge:
        """Declare a gauge with a series for each topic; `topic` is its first label."""
        family = TopicGauge(name, text, [label for label in labels if label != TOPIC])
        self.registry.register(family)
        self._by_topic[name] = family
        self._documented.append(Documented(name, "gauge", text, dict(labels)))
        return family

    def _histogram(
        self, name: str, text: str, buckets: Iterable[float] = SECONDS_BUCKETS, **labels: tuple[str, ...]
    ) -> Histogram:
        family = Histogram(name, text, tuple(labels), buckets=tuple(buckets), registry=self.registry)
        return self._keep(name, text, family, labels)

    def _keep(self, name: str, text: str, family: _Family, labels: Mapping[str, tuple[str, ...]]) -> _Family:
        self._documented.append(Documented(name, family._type, text, dict(labels)))  # noqa: SLF001 - no public name
        if labels and all(labels.values()):
            for values in product(*labels.values()):
                family.labels(*values)
        return family
