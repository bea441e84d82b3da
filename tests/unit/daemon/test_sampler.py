"""What is sampled: rates from counters, lags of all topics, rates of topics under one claim."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from offloaderd.core.aio import Tasks
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.daemon.status_page.last_hour import SAMPLE_S, TOPIC_SAMPLE_S, Sampler
from offloaderd.protocol.status import Rate
from offloaderd.testing.clock import FakeClock
from tests.unit.daemon.scene import stalled, status

if TYPE_CHECKING:
    from offloaderd.topic.status import TopicStatus


class Look:
    """A sampler of some topics, and a clock."""

    def __init__(self, *topics: TopicStatus) -> None:
        self.topics = list(topics)
        self.metrics = Metrics()
        self.clock = FakeClock()
        self.sampler = Sampler(lambda: self.topics, self.metrics, self.clock)

    async def sample(self, seconds: float = 10.0) -> None:
        """Take a sample some time after the last."""
        await self.clock.advance(seconds)
        await self.sampler.sample()

    def last(self, column: str) -> float:
        """Return the newest value of a column."""
        return self.sampler.ring.column(column)[-1][1]


async def test_rates_are_differences_over_the_time_that_passed() -> None:
    """The first sample knows no rate; later ones divide by what really passed, not by what should have."""
    look = Look()
    look.metrics.source_bytes.inc(1000)
    await look.sample()
    assert math.isnan(look.last("taken_bytes_per_s"))
    look.metrics.source_bytes.inc(5000)
    look.metrics.upload_bytes.inc(2000)
    look.metrics.read_bytes.labels(source="objects").inc(300)
    await look.sample(20)
    assert look.last("taken_bytes_per_s") == 250
    assert look.last("stored_bytes_per_s") == 100
    assert look.last("read_objects_bytes_per_s") == 15
    assert look.last("read_buffer_bytes_per_s") == 0


async def test_lags_are_of_all_topics() -> None:
    """Entries and bytes add up, of ages the oldest counts, and stalled topics are counted."""
    look = Look(status(1), status(2), stalled(3))
    await look.sample()
    assert look.last("lag_entries") == 3000
    assert look.last("lag_s") == 4.0
    assert look.last("stalled_topics") == 1


async def test_a_topic_s_rate_needs_two_looks_under_one_claim() -> None:
    """What another daemon, or another claim, has counted is no rate; a topic that is gone is forgotten."""
    look = Look(status(1), status(2))
    await look.sample()
    assert look.sampler.rates == {}
    look.topics = [
        replace(status(1), taken_entries=50, taken_bytes=4000),
        replace(status(2), taken_entries=50, epoch=4),
    ]
    await look.sample()
    assert look.sampler.rates == {str(status(1).topic): Rate(5.0, 400.0)}
    look.topics = []
    await look.sample()
    assert look.sampler.rates == {}


async def test_a_suspended_topic_has_no_rate_and_is_not_remembered() -> None:
    """Thousands of them take no memory for it; their hour shows that nothing moved since the first sample."""
    look = Look(status(1), replace(status(2), asleep=True))
    await look.sample()
    await look.sample(TOPIC_SAMPLE_S)
    assert list(look.sampler.rates) == [str(status(1).topic)]
    hour = look.sampler.topics.column(str(status(2).topic), "taken_bytes_per_s")
    assert hour is not None
    assert [rate for _, rate in hour][1:] == [0.0]


async def test_what_a_topic_takes_as_it_wakes_is_in_its_rate() -> None:
    """One that wakes for a few entries now and then would have none otherwise; nor is anything counted twice."""
    asleep = replace(status(1), asleep=True, taken_entries=50, taken_bytes=4000)
    look = Look(asleep)
    await look.sample()
    await look.sample()
    assert look.sampler.rates == {}
    look.topics = [replace(status(1), taken_entries=80, taken_bytes=5000)]
    await look.sample()
    assert look.sampler.rates == {str(status(1).topic): Rate(3.0, 100.0)}
    await look.sample()
    assert look.sampler.rates == {str(status(1).topic): Rate(0.0, 0.0)}
    look.topics = [replace(asleep, taken_entries=90, taken_bytes=5000)]
    await look.sample()
    assert look.sampler.rates == {str(status(1).topic): Rate(1.0, 0.0)}
    look.topics = [replace(asleep, taken_entries=100, taken_bytes=5000)]
    await look.sample()
    assert look.sampler.rates == {str(status(1).topic): Rate(1.0, 0.0)}
    await look.sample()
    assert look.sampler.rates == {}
    look.topics = [replace(status(1), epoch=4, taken_entries=100, taken_bytes=5000)]
    await look.sample()
    assert look.sampler.rates == {}


async def test_the_loop_samples_topics_less_often_and_shows_its_size() -> None:
    """It samples every 10 s, topics every minute, and says as metrics how much it keeps."""
    look = Look(*(status(number) for number in range(1100)))
    async with Tasks("the test") as tasks:
        tasks.start(look.sampler.run(), name="sampler")
        await look.clock.advance(TOPIC_SAMPLE_S + SAMPLE_S / 2)
    value = look.metrics.registry.get_sample_value
    assert value("offloaderd_status_samples") == 7
    assert value("offloaderd_status_topics", {"history": "kept"}) == 1000
    assert value("offloaderd_status_topics", {"history": "left_out"}) == 100
    hour = look.sampler.topics.column(str(status(1).topic), "lag_s")
    assert hour is not None
    assert [lag for _, lag in hour] == [2.0, 2.0]
