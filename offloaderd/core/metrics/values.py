"""Building blocks of metrics: buckets, the closed sets of labels' values, views and descriptions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import Metric
from prometheus_client.registry import Collector

from offloaderd.core.renamed import METRICS

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

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
CACHES = ("blocks", "segments")
BOOKIE_OPERATIONS = ("read", "batch", "last", "wait", "probe")
BOOKIE_TIMED = ("read", "batch", "last")
"""Without long polls (`wait`), which last until an entry arrives, and probes, which only test the connection."""
BOOKIE_OUTCOMES = ("ok", "missing", "busy", "timeout", "failed")
OPEN: tuple[str, ...] = ()
"""A label with values that are not known in advance."""

S3_CODES = frozenset({
    "200", "204", "206", "400", "403", "404", "409", "412", "416", "429", "500", "502", "503", "504",
    "AccessDenied", "EntityTooSmall", "ExpiredToken", "ExpiredTokenException", "InternalError", "InvalidAccessKeyId",
    "InvalidPart", "InvalidRange", "NoSuchBucket", "NoSuchKey", "NoSuchUpload", "PreconditionFailed", "RequestTimeout",
    "ServiceUnavailable",
    "SignatureDoesNotMatch", "SlowDown", "error", "ok", "timeout", "unreachable",
})  # fmt: skip
"""Codes that `s3_requests` counts by name. Any other is `other`, so that no server can grow the label."""

S3_THROTTLES = frozenset({"429", "503", "SlowDown", "ServiceUnavailable"})


_TOTAL = "_total"
OLD_METRICS = {new.removesuffix(_TOTAL): old.removesuffix(_TOTAL) for old, new in METRICS.items()}
"""Old names of families by the new ones; without `_total`, which only a counter's samples have."""


class Documented(NamedTuple):
    """The documentation of a metric; a label without values takes any."""

    name: str
    kind: str
    text: str
    labels: Mapping[str, tuple[str, ...]]


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
