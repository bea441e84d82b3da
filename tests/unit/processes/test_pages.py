"""One page of the pages of several processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.metrics.processes import ProcessMetrics
from offloaderd.processes.pages import joined, labelled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

Parse = Callable[[str], "Iterator[Metric]"]

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        ("up 1.0", 'up{process="3"} 1.0'),
        ('up{a="b"} 1.0', 'up{process="3",a="b"} 1.0'),
        ('up{a="{ }"} 1.0', 'up{process="3",a="{ }"} 1.0'),
        ('x_bucket{le="1"} 2 # {id="a"} 0.5', 'x_bucket{process="3",le="1"} 2 # {id="a"} 0.5'),
        ('x_total 2 # {id="a"} 0.5', 'x_total{process="3"} 2 # {id="a"} 0.5'),
    ],
)
def test_a_sample_gets_its_process_as_a_label(sample: str, expected: str) -> None:
    """Whatever its own labels hold."""
    assert labelled(sample, "3") == expected


@pytest.mark.parametrize(("accept", "parse"), [("", parse_text), (OPENMETRICS, parse_openmetrics)])
def test_families_of_all_processes_are_one_each_and_no_sample_is_missing(accept: str, parse: Parse) -> None:
    """Both formats can be read again: a family must not be begun twice."""
    encode, _ = choose_encoder(accept)
    parent = ProcessMetrics()
    for number in (1, 2):
        parent.process_up.labels(process=str(number)).set(1)
    pages = {"": encode(parent.view()).decode()}
    counts = {}
    for number in (1, 2):
        metrics = Metrics()
        metrics.source_entries.inc(number)
        metrics.lag_entries.labels(topic='a "quoted" {topic}').set(number)
        pages[str(number)] = encode(metrics.view()).decode()
        counts[number] = sum(len(one.samples) for one in parse(pages[str(number)]))
    families = list(parse(joined(pages)))
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    samples = [sample for family in families for sample in family.samples]
    assert all("process" in sample.labels for sample in samples)
    assert len(samples) == sum(counts.values()) + sum(len(one.samples) for one in parse(pages[""]))
    found = {(sample.labels["process"], sample.value) for sample in samples if sample.name == "offloaderd_lag_entries"}
    assert found == {("1", 1.0), ("2", 2.0)}
