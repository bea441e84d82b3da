"""Gauges by topic: what they show, and what is left of a topic that is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from offloaderd.core.metrics.families import TopicGauge

if TYPE_CHECKING:
    from collections.abc import Mapping


class Shown:
    """A registry with two of them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.plain = TopicGauge("lag", "How far behind.", [])
        self.reasons = TopicGauge("stalled", "Why it stands.", ["reason"])
        self.registry.register(self.plain)
        self.registry.register(self.reasons)

    def value(self, name: str, labels: Mapping[str, str]) -> float | None:
        """Return what a scrape would."""
        return self.registry.get_sample_value(name, dict(labels))


def test_each_topic_has_its_number() -> None:
    """The last one that was set; and one less after `dec`."""
    it = Shown()
    it.plain.labels(topic="a").set(3)
    it.plain.labels(topic="b").set(4.5)
    it.plain.labels(topic="a").dec()
    assert it.value("lag", {"topic": "a"}) == 2
    assert it.value("lag", {"topic": "b"}) == 4.5
    it.plain.labels(topic="c")
    assert it.value("lag", {"topic": "c"}) == 0
    assert it.value("lag", {"topic": "d"}) is None


def test_it_is_shown_as_any_gauge() -> None:
    """In the text that Prometheus reads, names with odd characters escaped."""
    it = Shown()
    it.reasons.labels(topic='a"b', reason="denied").set(1)
    text = generate_latest(it.registry).decode()
    assert text.splitlines() == [
        "# HELP lag How far behind.",
        "# TYPE lag gauge",
        "# HELP stalled Why it stands.",
        "# TYPE stalled gauge",
        'stalled{reason="denied",topic="a\\"b"} 1.0',
    ]


def test_a_topic_that_is_gone_has_no_series() -> None:
    """Whatever its other labels are; a series in somebody's hands does not come back by counting down."""
    it = Shown()
    for topic in ("a", "b"):
        it.plain.labels(topic=topic).set(1)
        it.reasons.labels(topic=topic, reason="denied").set(1)
        it.reasons.labels(topic=topic, reason="corrupt").set(1)
    held = it.plain.labels(topic="a")
    it.reasons.remove("b", "denied")
    it.reasons.remove("b", "never")
    for family in (it.plain, it.reasons):
        family.remove_topic("a")
        family.remove_topic("unknown")
    held.dec()
    assert it.value("lag", {"topic": "a"}) is None
    assert it.value("stalled", {"topic": "a", "reason": "corrupt"}) is None
    assert it.value("stalled", {"topic": "b", "reason": "denied"}) is None
    assert it.value("stalled", {"topic": "b", "reason": "corrupt"}) == 1


def test_labels_that_are_not_the_family_s() -> None:
    """One that is missing is an error, as is a family that is registered twice."""
    it = Shown()
    with pytest.raises(KeyError):
        it.reasons.labels(topic="a")
    with pytest.raises(ValueError, match="Duplicated"):
        it.registry.register(TopicGauge("lag", "Again.", []))
