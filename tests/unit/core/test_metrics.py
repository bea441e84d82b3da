"""The metrics: names and labels follow the rules, the documentation has them all, and topics can be forgotten."""

from __future__ import annotations

import ast
import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from prometheus_client import Histogram, generate_latest

from offloaderd.core.health import Health
from offloaderd.core.metrics.captures import CaptureMetrics
from offloaderd.core.metrics.drills import RestoreDrillMetrics
from offloaderd.core.metrics.families import (
    BYTES_BUCKETS,
    ENTRIES_BUCKETS,
    LONG_SECONDS_BUCKETS,
    SECONDS_BUCKETS,
    Documented,
    Families,
)
from offloaderd.core.metrics.metrics import Metrics, watch_loop
from offloaderd.core.metrics.processes import ProcessMetrics, all_documented
from offloaderd.core.metrics.tables import DeclaredTableMetrics, TableMetrics
from offloaderd.segment.settings import OffloadSettings

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[3]
DOCS, PACKAGE = ROOT / "docs", ROOT / "offloaderd"
OPEN_LABELS = {"topic", "namespace", "operation", "code", "version", "revision", "process", "pulsar_cluster", "table"}
OPEN_LABELS |= {"declaration"} | {f"grpc_{name}" for name in ("type", "service", "method", "code")}


def names_on(metrics: Families) -> set[str]:
    """Names of our own metrics, as they are scraped."""
    families = [family for family in metrics.registry.collect() if not family.name.startswith(("process_", "python_"))]
    return {f"{family.name}_total" if family.type == "counter" else family.name for family in families}


def test_the_documentation_has_every_metric_and_no_other() -> None:
    """Names in docs/metrics.md and names on the registries of all programs are the same set."""
    documented = set(re.findall(r"^\| `(\w+)` \|", (DOCS / "metrics.md").read_text(), re.MULTILINE))
    kinds = (Metrics, CaptureMetrics, ProcessMetrics, RestoreDrillMetrics, TableMetrics, DeclaredTableMetrics)
    assert documented == set().union(*(names_on(kind()) for kind in kinds))
    assert len(documented) > 50


def test_an_attribute_is_called_like_its_metric() -> None:
    """Who knows the name on the wire knows the attribute: without the prefix and without _total."""
    metrics = Metrics()
    for name in names_on(metrics):
        assert hasattr(metrics, name.removeprefix("offloaderd_").removesuffix("_total")), name


@pytest.mark.parametrize("metric", all_documented(), ids=lambda metric: metric.name)
def test_names_and_labels_keep_the_rules(metric: Documented) -> None:
    """Prefix, _total exactly for counters, base units, a help text with a full stop, and only known open labels."""
    name, kind, text, labels = metric
    assert name.startswith(("offloaderd_", "grpc_server_"))
    assert name.endswith("_total") == (kind == "counter")
    assert not re.search(r"_(ms|milliseconds|kb|mb|rate|percent)(_|$)", name)
    assert text[-1] == "."
    assert len(text) > 12
    for label, values in labels.items():
        assert values or label in OPEN_LABELS
        assert label not in {"ledger", "key", "upload_id", "segment"}


def literal_labels(source: Path) -> Iterator[tuple[str, str, str]]:
    """Yield (attribute, label, value) of every `x.attribute.labels(label="value")` in a module."""
    text = source.read_text()
    for node in ast.walk(ast.parse(text)) if ".labels(" in text else ():
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Attribute(attr=attribute), attr="labels"), keywords=keywords):
                for keyword in keywords:
                    if isinstance(keyword.value, ast.Constant):
                        yield attribute, str(keyword.arg), str(keyword.value.value)


def test_the_code_uses_no_label_value_that_is_not_declared() -> None:
    """A value outside its closed set would start late, and be missing in the documentation."""
    closed = {
        metric.name.removeprefix("offloaderd_").removesuffix("_total"): metric.labels for metric in all_documented()
    }
    used = [(path, *found) for path in PACKAGE.rglob("*.py") for found in literal_labels(path)]
    assert len(used) > 5
    wrong = [
        f"{path.name}: {attribute}.labels({label}={value!r})"
        for path, attribute, label, value in used
        if label not in closed[attribute] or (closed[attribute][label] and value not in closed[attribute][label])
    ]
    assert not wrong


LASTING = (
    "time_to_durable_seconds",
    "upload_part_duration_seconds",
    "metadata_commit_duration_seconds",
    "recovery_seconds",
    "handover_seconds",
    "grpc_server_handling_seconds",
    "read_duration_seconds",
    "read_first_byte_seconds",
)
"""What is tried again until a store answers, or waits for somebody else: an outage of hours is in them."""


def test_histograms_share_three_sets_of_buckets() -> None:
    """Durations, sizes and counts each have one set, so that panels compare like with like."""
    metrics = Metrics()
    histograms = {name: value for name, value in vars(metrics).items() if isinstance(value, Histogram)}
    for name, histogram in histograms.items():
        expected = {
            "segment_bytes": BYTES_BUCKETS,
            "segment_entries": ENTRIES_BUCKETS,
            **dict.fromkeys(LASTING, LONG_SECONDS_BUCKETS),
        }.get(name, SECONDS_BUCKETS)
        assert tuple(histogram._upper_bounds[:-1]) == expected, name
        assert name in {"segment_bytes", "segment_entries"} or name.endswith("_seconds")
    assert (SECONDS_BUCKETS[0], SECONDS_BUCKETS[-1]) == (0.005, 60.0)
    assert (LONG_SECONDS_BUCKETS[:13], LONG_SECONDS_BUCKETS[-1]) == (SECONDS_BUCKETS, 6 * 3600.0)


def test_the_time_to_durable_is_measured_at_the_default_settings() -> None:
    """A segment's age, and an outage of hours, each lie below a bucket's limit: their quantiles say something."""
    bounds = [bound for bound in LONG_SECONDS_BUCKETS if bound > OffloadSettings().segment_age_max_s]
    assert len(bounds) >= 4
    metrics = Metrics()
    for seconds in (590.0, 4 * 3600.0):
        metrics.time_to_durable_seconds.observe(seconds)
    below = [
        metrics.registry.get_sample_value("offloaderd_time_to_durable_seconds_bucket", {"le": str(bound)})
        for bound in (300.0, 600.0, 7200.0, 21_600.0)
    ]
    assert below == [0, 1, 1, 2]


def test_closed_labels_exist_at_zero_from_the_start() -> None:
    """`increase()` sees the first event only if the series was there before it."""
    value = Metrics().registry.get_sample_value
    assert value("offloaderd_checksum_failures_total", {"where": "read"}) == 0
    assert value("offloaderd_segment_rolls_total", {"reason": "memory"}) == 0
    assert value("offloaderd_read_requests_total", {"source": "objects", "outcome": "error"}) == 0


def test_a_single_value_is_that_of_all_samples() -> None:
    """Whatever collects it, also what does not say its names; one that is not there is None."""
    registry = Metrics().registry
    samples = [sample for family in registry.collect() for sample in family.samples]
    assert {"process_max_fds", "python_gc_collections_total", "offloaderd_ready"} <= {one.name for one in samples}
    assert [one.name for one in samples if registry.get_sample_value(one.name, one.labels) is None] == []
    assert registry.get_sample_value("offloaderd_checksum_failures_total", {"where": "nowhere"}) is None
    assert registry.get_sample_value("offloaderd_checksum_failures_total") is None


def test_metrics_of_two_daemons_do_not_meet() -> None:
    """Each has its own registry, so a second one in the process starts from zero."""
    first, second = Metrics(), Metrics()
    first.upload_bytes.inc(5)
    assert first.registry.get_sample_value("offloaderd_upload_bytes_total") == 5
    assert second.registry.get_sample_value("offloaderd_upload_bytes_total") == 0


def test_no_series_of_creation_times() -> None:
    """The library's _created series are off: they double what is stored and no panel reads them."""
    assert b"_created" not in generate_latest(Metrics().registry)


def test_a_topic_that_leaves_takes_its_series_along() -> None:
    """All families by topic forget it, with every reason, and keep the other topics."""
    metrics = Metrics()
    for topic in ("persistent://a/b/gone", "persistent://a/b/stays"):
        metrics.lag_bytes.labels(topic=topic).set(1)
        metrics.lag_entries.labels(topic=topic).set(1)
        metrics.lag_seconds.labels(topic=topic).set(1)
        for reason in ("denied", "transient"):
            metrics.stalled.labels(topic=topic, reason=reason).set(1)
    metrics.drop_topic("persistent://a/b/gone")
    metrics.drop_topic("persistent://a/b/never-seen")
    text = generate_latest(metrics.registry).decode()
    assert "b/gone" not in text
    assert text.count("b/stays") == 5


def test_requests_to_the_store_are_counted_with_bounded_codes() -> None:
    """Count, time and bytes of a request; a code that only a foreign server knows becomes `other`."""
    metrics = Metrics()
    value = metrics.registry.get_sample_value
    metrics.request("UploadPart", "200", 0.2, 10, 4096)
    metrics.request("UploadPart", "SlowDown", 0.1, 0, 0)
    for number in range(50):
        metrics.request("GetObject", f"Made{number}Up", 0.1, 0, 0)
    assert value("offloaderd_objects_requests_total", {"operation": "UploadPart", "code": "200"}) == 1
    assert value("offloaderd_objects_requests_total", {"operation": "GetObject", "code": "other"}) == 50
    assert value("offloaderd_objects_request_duration_seconds_count", {"operation": "UploadPart"}) == 2
    assert value("offloaderd_objects_bytes_total", {"direction": "in"}) == 10
    assert value("offloaderd_objects_bytes_total", {"direction": "out"}) == 4096
    assert value("offloaderd_objects_throttles_total") == 1


def test_health_shows_in_the_metrics() -> None:
    """`ready` and `dependency_up` follow the health they listen to."""
    metrics, health = Metrics(), Health()
    value = metrics.registry.get_sample_value
    health.listen(metrics.show_health)
    assert value("offloaderd_ready") == 0
    health.serving()
    health.up("objects")
    assert value("offloaderd_ready") == 1
    assert value("offloaderd_dependency_up", {"dependency": "objects"}) == 1
    health.down("objects", "timeout")
    assert value("offloaderd_dependency_up", {"dependency": "objects"}) == 0
    assert value("offloaderd_dependency_up", {"dependency": "ledgers"}) is None, "it has none: that is not down"
    health.down("objects.services.archive", "timeout")
    assert value("offloaderd_dependency_up", {"dependency": "objects.services.archive"}) == 0
    health.draining("SIGTERM")
    assert value("offloaderd_ready") == 0


def test_build_info_names_one_version() -> None:
    """Setting the build replaces what was said before."""
    metrics = Metrics()
    metrics.set_build("9.9", "abc")
    lines = [line for line in generate_latest(metrics.registry).decode().splitlines() if "build_info{" in line]
    assert lines == ['offloaderd_build_info{revision="abc",version="9.9"} 1.0']


class LateClock:
    """A clock whose sleeps take longer than asked, by what `late` says; ends the loop when there is no more."""

    def __init__(self, late: list[float]) -> None:
        self._late = late
        self._now = 100.0

    def wall_ms(self) -> int:
        """Not used."""
        raise NotImplementedError

    def monotonic(self) -> float:
        """Seconds so far."""
        return self._now

    async def sleep(self, seconds: float) -> None:
        """Let more than `seconds` pass at once."""
        if not self._late:
            raise asyncio.CancelledError
        self._now += seconds + self._late.pop(0)

    def call_later(self, seconds: float, call: Callable[[], object]) -> asyncio.Future[None]:
        """Not used."""
        raise NotImplementedError

    def uuid(self) -> uuid.UUID:
        """Not used."""
        raise NotImplementedError

    def jitter(self, seconds: float) -> float:
        """Not used."""
        raise NotImplementedError


async def test_the_loop_monitor_observes_how_late_timers_fire() -> None:
    """Each sleep counts once, with its delay only, and cancelling ends it."""
    metrics = Metrics()
    with pytest.raises(asyncio.CancelledError):
        await watch_loop(LateClock([0.0, 0.3, 2.0]), metrics)
    value = metrics.registry.get_sample_value
    assert value("offloaderd_event_loop_lag_seconds_count") == 3
    assert value("offloaderd_event_loop_lag_seconds_sum") == pytest.approx(2.3)
    assert value("offloaderd_event_loop_lag_seconds_bucket", {"le": "0.25"}) == 1
    assert value("offloaderd_event_loop_lag_seconds_bucket", {"le": "0.5"}) == 2
