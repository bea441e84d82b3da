"""Declaration of metrics as attributes of a class, their buckets and labels, and what a scrape collects.

A gauge with a series per topic is a number in a dictionary for each, not prometheus_client's five objects and a lock: a
daemon with ten thousand topics has two hundred thousand series.
"""

import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import product
from typing import Generic, NamedTuple, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from offloaderd.core.renamed import METRICS

SECONDS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""5 ms to 60 s, the same for all requests and the like, so that panels and alerts are comparable."""

LONG_SECONDS_BUCKETS = (*SECONDS_BUCKETS, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0, 21_600.0)
"""The same and up to 6 h, for waits for a segment's end (ten minutes by default), a client or an outage."""

BYTES_BUCKETS = tuple(float(4**power) for power in range(6, 17))
"""4 KiB to 4 GiB, each four times the last."""

ENTRIES_BUCKETS = tuple(float(10**power) for power in range(9))
"""One entry to a hundred million."""

TIERS = ("buffer", "source", "objects")
DEPENDENCIES = ("metadata", "objects", "ledgers")
ERROR_CLASSES = (
    "throttled",
    "transient",
    "expired",
    "denied",
    "no_space",
    "bucket_missing",
    "not_found",
    "identity",
    "other",
)
CACHES = ("blocks", "segments", "disk")
BOOKIE_OPERATIONS = ("read", "batch", "last", "wait", "probe")
BOOKIE_TIMED = ("read", "batch", "last")
"""Without long polls (`wait`), which last until an entry arrives, and probes, which only test the connection."""
BOOKIE_OUTCOMES = ("ok", "missing", "busy", "timeout", "failed")
OPEN: tuple[str, ...] = ()
"""A label with values that are not known in advance."""

STORE_CODES = frozenset({
    "200", "201", "202", "204", "206", "400", "403", "404", "409", "412", "416", "429", "500", "502", "503", "504",
    "AccessDenied", "EntityTooSmall", "ExpiredToken", "ExpiredTokenException", "InternalError", "InvalidAccessKeyId",
    "InvalidPart", "InvalidRange", "NoSuchBucket", "NoSuchKey", "NoSuchUpload", "PreconditionFailed", "RequestTimeout",
    "ServiceUnavailable",
    "SignatureDoesNotMatch", "SlowDown", "error", "ok", "timeout", "unreachable",
    "AuthenticationFailed", "AuthorizationFailure", "AuthorizationPermissionMismatch", "BlobAlreadyExists",
    "BlobNotFound", "ConditionNotMet", "ContainerNotFound", "InvalidBlockList", "OperationTimedOut", "ServerBusy",
    "BlobArchived", "InvalidObjectState", "SasOutOfTime",
    "authError", "backendError", "changedMeanwhile", "conditionNotMet", "forbidden", "internalError", "noSuchBucket",
    "notFound", "rateLimitExceeded", "required", "retentionPolicyNotMet",
})  # fmt: skip
"""Codes that `objects_requests` counts by name. Any other is `other`, so that no server can grow the label."""

STORE_THROTTLES = frozenset({
    "429", "503", "SlowDown", "ServerBusy", "ServiceUnavailable", "TooManyRequests",
    "OperationNotAllowedDuringThrottling", "rateLimitExceeded", "userRateLimitExceeded", "quotaExceeded",
    "dailyLimitExceeded", "slowDown",
})  # fmt: skip
"""Codes of S3, Azure and Google that ask for fewer requests."""


_TOTAL = "_total"
OLD_METRICS = {new.removesuffix(_TOTAL): old.removesuffix(_TOTAL) for old, new in METRICS.items()}
"""Old names of families by the new ones; without `_total`, which only a counter's samples have."""


class Documented(NamedTuple):
    """The documentation of a metric; a label without values takes any."""

    name: str
    kind: str
    text: str
    labels: Mapping[str, tuple[str, ...]]


class Registry(CollectorRegistry):
    """A registry that finds one sample without collecting those of all other metrics.

    Collectors that do not say their names (those of the process and of garbage) are always collected.
    """

    def __init__(self) -> None:
        super().__init__(support_collectors_without_names=True)

    def get_sample_value(self, name: str, labels: Mapping[str, str] | None = None) -> float | None:
        """Return the value of a sample, None if there is none."""
        for family in self.restricted_registry((name,)).collect():
            for sample in family.samples:
                if sample.labels == (labels or {}):
                    return sample.value
        return None


class View(Collector):
    """A registry reduced to some families; renamed ones appear under both names."""

    def __init__(self, registry: CollectorRegistry, by_topic: Collection[str], topics: bool | None) -> None:
        self._registry = registry
        self._by_topic = by_topic
        self._topics = topics

    def collect(self) -> Iterator[Metric]:
        """Yield the chosen families."""
        for family in self._registry.collect():
            if self._topics is None or self._topics == (family.name in self._by_topic):
                yield family
                if (old := OLD_METRICS.get(family.name)) is not None:
                    yield _under(old, family)


def _under(old: str, family: Metric) -> Metric:
    """Return a family with the same samples under its old name."""
    ending = _TOTAL if family.type == "counter" else ""
    copy = Metric(old, f"Deprecated: now {family.name}{ending}.", family.type)
    copy.samples = [sample._replace(name=old + sample.name.removeprefix(family.name)) for sample in family.samples]
    return copy


TOPIC = "topic"
NAMESPACE = "namespace"
"""Label of series that go with the account of a namespace or tenant; the other labels have known values."""


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
        self.attribute = attribute
        self.name = self.name or f"offloaderd_{attribute}{'_total' if self.kind == 'counter' else ''}"

    def named(self, name: str) -> "Declared[_Family]":
        """Set a name that differs from the attribute's."""
        self.name = name
        return self

    def __get__(self, families: "Families", owner: type | None = None) -> _Family:
        """Create the metric of an instance, which has it among its own attributes from then on: these come first."""
        if families is None:
            raise AttributeError(f"{self.attribute} is a metric of an instance")
        return families.made(self)

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
        """Without a registry of somebody else's, each metric is created when it is used first, or all are read."""
        self._registry = Registry() if registry is None else registry
        self._making = threading.Lock()
        self._declared = [
            one for kind in type(self).__mro__ for one in vars(kind).values() if isinstance(one, Declared)
        ]
        if registry is not None:
            self._make_all()

    @property
    def registry(self) -> CollectorRegistry:
        """The registry, with all metrics."""
        self._make_all()
        return self._registry

    def made(self, declared: Declared[_Family]) -> _Family:
        """Return a metric, and create it if nobody has used it before."""
        with self._making:
            own = vars(self)
            if declared.attribute not in own:
                own[declared.attribute] = declared.on(self._registry)
            found: _Family = own[declared.attribute]
            return found

    def _make_all(self) -> None:
        for one in self._declared:
            self.made(one)

    def drop_topic(self, topic: str) -> None:
        """Remove every series of a topic that this daemon no longer serves; an unknown one is no error."""
        for one in self._declared:
            if TOPIC in one.labels and (family := vars(self).get(one.attribute)) is not None:
                family.remove_topic(topic)

    def drop_namespace(self, namespace: str) -> None:
        """Remove every series of a namespace or tenant; an unknown one is no error."""
        for one in self._declared:
            first, *more = one.labels or [""]
            if first == NAMESPACE and (family := vars(self).get(one.attribute)) is not None:
                for values in product(*(one.labels[name] for name in more)):
                    family.remove(namespace, *values)

    def view(self, *, topics: bool | None = None) -> Collector:
        """Return what a scrape collects: all families (None), only those by topic (True), or only the others."""
        return View(self.registry, {one.name for one in self._declared if TOPIC in one.labels}, topics)

    def documented(self) -> Sequence[Documented]:
        """All of the daemon's own metrics, in the order of their declaration."""
        return [Documented(one.name, one.kind, one.text, one.labels) for one in self._declared]
