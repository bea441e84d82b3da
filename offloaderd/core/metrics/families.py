"""Declaration of metrics as attributes of a class, and their registration with their descriptions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import TYPE_CHECKING, Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from offloaderd.core.metrics.topics import TOPIC, TopicGauge
from offloaderd.core.metrics.values import OPEN, SECONDS_BUCKETS, Documented, View

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

Labels = tuple[str, ...]
_Family = TypeVar("_Family", bound=Counter | Gauge | Histogram | TopicGauge)


class Declared(Generic[_Family]):
    """The declaration of a metric: each instance of the class has one of its own, as an attribute of the same name."""

    def __init__(
        self,
        make: Callable[[str, Sequence[str], CollectorRegistry], _Family],
        kind: str,
        text: str,
        labels: dict[str, Labels],
    ) -> None:
        self._make = make
        self.kind = kind
        self.text = text
        self.labels = labels
        self.name = ""

    def __set_name__(self, owner: type, attribute: str) -> None:
        """Name the metric by its attribute."""
        self.attribute = attribute
        self.name = self.name or f"offloaderd_{attribute}{'_total' if self.kind == 'counter' else ''}"

    def named(self, name: str) -> Declared[_Family]:
        """Set a name that differs from the attribute's."""
        self.name = name
        return self

    def __get__(self, families: Families, owner: type | None = None) -> _Family:
        """Called for classes alone: an instance has the metric among its own attributes, which come first."""
        raise AttributeError(f"{self.attribute} is a metric of an instance")

    def on(self, registry: CollectorRegistry) -> _Family:
        """Create the metric, with a series for each combination of known values of labels."""
        family = self._make(self.name, tuple(self.labels), registry)
        if self.labels and all(self.labels.values()):
            for values in product(*self.labels.values()):
                family.labels(*values)
        return family


def counter(text: str, **labels: Labels) -> Declared[Counter]:
    """Declare a counter; `_total` is added to its name."""
    return Declared(lambda of, by, on: Counter(of, text, by, registry=on), "counter", text, labels)


def gauge(text: str, **labels: Labels) -> Declared[Gauge]:
    """Declare a gauge."""
    return Declared(lambda of, by, on: Gauge(of, text, by, registry=on), "gauge", text, labels)


def histogram(text: str, buckets: Sequence[float] = SECONDS_BUCKETS, **labels: Labels) -> Declared[Histogram]:
    """Declare a histogram, of seconds by default."""
    return Declared(lambda of, by, on: Histogram(of, text, by, buckets=buckets, registry=on), "histogram", text, labels)


def topic_gauge(text: str, **labels: Labels) -> Declared[TopicGauge]:
    """Declare a gauge with a series per topic; `topic` is its first label."""

    def make(name: str, by: Sequence[str], registry: CollectorRegistry) -> TopicGauge:
        family = TopicGauge(name, text, by[1:])
        registry.register(family)
        return family

    return Declared(make, "gauge", text, {TOPIC: OPEN, **labels})


class Families:
    """A registry, and the metrics that an instance's classes declare."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = CollectorRegistry() if registry is None else registry
        self._declared = [
            one for kind in type(self).__mro__ for one in vars(kind).values() if isinstance(one, Declared)
        ]
        for one in self._declared:
            setattr(self, one.attribute, one.on(self.registry))
        self._by_topic = {one.name: getattr(self, one.attribute) for one in self._declared if TOPIC in one.labels}

    def drop_topic(self, topic: str) -> None:
        """Remove every series of a topic that this daemon no longer serves; an unknown one is no error."""
        for family in self._by_topic.values():
            family.remove_topic(topic)

    def view(self, *, topics: bool | None = None) -> Collector:
        """Return what a scrape collects: all families (None), only those by topic (True), or only the others."""
        return View(self.registry, self._by_topic.keys(), topics)

    def documented(self) -> Sequence[Documented]:
        """All of the daemon's own metrics, in the order of their declaration."""
        return [Documented(one.name, one.kind, one.text, one.labels) for one in self._declared]
