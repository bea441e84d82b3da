"""Rate limits: what is read in a stretch of time is bounded, in turn, and what was not used is not charged."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offloaderd.bookkeeper.rate_limits import Limits
from offloaderd.bookkeeper.settings import BookkeeperSettings
from offloaderd.core.limits import BURST_S
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import TopicName
from offloaderd.ledgers.pulsar.source import BookKeeperLedgers
from offloaderd.testing import FakeClock, payloads
from tests.unit.bookkeeper.clockwork import in_time
from tests.unit.bookkeeper.fake_cluster import TOPIC, FakeCluster, Shape
from tests.virtual import virtually

if TYPE_CHECKING:
    from collections.abc import Sequence

OTHER = TopicName.parse("public/default/other")


async def send(limits: Limits, topic: TopicName, sizes: Sequence[int], clock: FakeClock) -> list[float]:
    """Send requests one after the other, each expected to bring what the one before did; returns when each was sent."""
    sent, expected = [], 0
    for size in sizes:
        turn = limits.turn(topic, expected)
        assert turn is not None
        await turn.wait()
        sent.append(clock.monotonic())
        turn.settle(size)
        expected = size
    return sent


async def test_without_limits_there_is_no_turn_to_wait_for() -> None:
    """The hot path is left alone."""
    assert Limits(BookkeeperSettings(), FakeClock(), Metrics()).turn(TOPIC, 1 << 20) is None


async def test_requests_are_spread_over_time() -> None:
    """A second's worth at once, then one after the other."""
    clock = FakeClock()
    limits = Limits(BookkeeperSettings(requests_per_s=10), clock, Metrics())
    sent = await in_time(clock, send(limits, TOPIC, [0] * 30, clock))
    assert sent[10] <= 0.11
    assert sent[-1] == pytest.approx(1.9, abs=0.11)
    await clock.advance(60)
    sent = await in_time(clock, send(limits, TOPIC, [0] * 12, clock))
    assert sent[-1] - sent[0] <= 0.2, "a second's worth is saved up, not more and not less"


async def test_a_topic_is_limited_on_its_own() -> None:
    """One that waits for its own limit does not hold back another."""
    clock, metrics = FakeClock(), Metrics()
    limits = Limits(BookkeeperSettings(topic_requests_per_s=1, requests_per_s=100), clock, metrics)
    await in_time(clock, send(limits, TOPIC, [0] * 4, clock))
    assert clock.monotonic() == pytest.approx(2)
    await in_time(clock, send(limits, OTHER, [0, 0], clock))
    assert clock.monotonic() == pytest.approx(2)
    waited = metrics.registry.get_sample_value("offloaderd_source_throttled_seconds_total", {"scope": "topic"})
    assert waited == pytest.approx(2)


async def test_other_rates_count_at_once_for_every_topic() -> None:
    """Also for one that was read before: settings are read again while the daemon runs."""
    clock = FakeClock()
    limits = Limits(BookkeeperSettings(topic_requests_per_s=1), clock, Metrics())
    await in_time(clock, send(limits, TOPIC, [0] * 4, clock))
    began = clock.monotonic()
    limits.follow(BookkeeperSettings(topic_requests_per_s=10))
    sent = await in_time(clock, send(limits, TOPIC, [0] * 21, clock))
    assert sent[-1] - began == pytest.approx(1, abs=0.11)


async def test_turns_come_in_the_order_of_asking() -> None:
    """Who waits is not overtaken, whatever the topic."""
    clock = FakeClock()
    limits = Limits(BookkeeperSettings(requests_per_s=1), clock, Metrics())
    order: list[int] = []

    async def ask(number: int) -> None:
        turn = limits.turn(TOPIC if number % 2 else OTHER, 0)
        assert turn is not None
        await turn.wait()
        order.append(number)

    async def all_of_them() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(8):
                group.create_task(ask(number))

    await in_time(clock, all_of_them())
    assert order == list(range(8))


async def test_who_gives_up_costs_nobody_time() -> None:
    """A cancelled turn is given back."""
    clock = FakeClock()
    limits = Limits(BookkeeperSettings(bytes_per_s=1000), clock, Metrics())
    await in_time(clock, send(limits, TOPIC, [1000], clock))

    async def give_up() -> None:
        turn = limits.turn(TOPIC, 50_000)
        assert turn is not None
        async with asyncio.timeout(0):
            await turn.wait()

    await in_time(clock, send(limits, TOPIC, [1000], clock))
    with pytest.raises(TimeoutError):
        await in_time(clock, give_up())
    began = clock.monotonic()
    await in_time(clock, send(limits, TOPIC, [0], clock))
    assert clock.monotonic() - began <= 1


async def test_who_gives_up_behind_others_costs_its_topic_nothing() -> None:
    """Its topic had let it through, and the daemon's queue had not: both turns are given back."""
    clock = FakeClock()
    limits = Limits(BookkeeperSettings(requests_per_s=10, topic_bytes_per_s=100), clock, Metrics())
    await in_time(clock, send(limits, OTHER, [0] * 15, clock))

    async def ask(seconds: float | None) -> None:
        turn = limits.turn(TOPIC, 1000)
        assert turn is not None
        async with asyncio.timeout(seconds):
            await turn.wait()

    with pytest.raises(TimeoutError):
        await in_time(clock, ask(0))
    began = clock.monotonic()
    await in_time(clock, ask(None))
    assert clock.monotonic() - began <= 0.2


@settings(max_examples=30)
@given(
    sizes=st.lists(st.integers(0, 5000), min_size=1, max_size=40),
    rate=st.integers(100, 5000),
    topics=st.integers(1, 3),
)
def test_bytes_stay_below_the_rate(sizes: list[int], rate: int, topics: int) -> None:
    """Over any stretch no more than the rate, the burst and what was under way at its beginning."""

    async def run() -> None:
        clock = FakeClock()
        limits = Limits(BookkeeperSettings(bytes_per_s=rate), clock, Metrics())
        log: list[tuple[float, int]] = []

        async def reader(topic: TopicName) -> None:
            sent = await send(limits, topic, sizes, clock)
            log.extend(zip(sent, sizes, strict=True))

        async def all_of_them() -> None:
            async with asyncio.TaskGroup() as group:
                for number in range(topics):
                    group.create_task(reader(TopicName("public", "default", f"t{number}")))

        await in_time(clock, all_of_them(), seconds_max=1e6)
        log.sort()
        total = sum(size for _, size in log[:-topics])
        assert total <= rate * (log[-1][0] + BURST_S) + topics * max(sizes)

    virtually(run())


async def test_a_read_keeps_to_the_limit() -> None:
    """Reading a ledger takes as long as its bytes need at the rate, and is no hedge's reason."""
    clock, cluster, metrics = FakeClock(), FakeCluster(), Metrics()
    ledger = await cluster.ledger()
    await ledger.write(payloads(100, 1000))
    await ledger.close()
    options = BookkeeperSettings(bytes_per_s=5000, hedge_s=0.5)
    async with BookKeeperLedgers(
        cluster.znodes, cluster.bookies, clock=clock, metrics=metrics, options=options
    ) as source:
        found: list[bytes] = []

        async def read() -> None:
            async for batch in source.read(TOPIC, 7, 0, 99, batch_bytes=4000):
                found.extend(batch.payloads)

        await in_time(clock, read())
    assert found == ledger.payloads
    assert 17 < clock.monotonic() < 23
    assert metrics.registry.get_sample_value("offloaderd_bookie_hedged_reads_total") == 0


@pytest.mark.parametrize(
    ("options", "seconds"),
    [(BookkeeperSettings(requests_per_s=1, hedge_s=0.5), 1), (BookkeeperSettings(bytes_per_s=4000), 0)],
    ids=["requests", "bytes"],
)
async def test_bookies_that_are_down_cost_their_requests_and_no_bytes(
    options: BookkeeperSettings, seconds: float
) -> None:
    """A request behind theirs may wait for its turn, which is no hedge's reason; what never came is not charged."""
    clock, cluster, metrics = FakeClock(), FakeCluster(), Metrics()
    ledger = await cluster.ledger(Shape(ensemble=4, write_quorum=4))
    await ledger.write(payloads(10))
    await ledger.close()
    cluster.bookies.down = {"b3", "b0"}
    async with BookKeeperLedgers(
        cluster.znodes, cluster.bookies, clock=clock, metrics=metrics, options=options
    ) as source:
        found: list[bytes] = []

        async def read() -> None:
            async for batch in source.read(TOPIC, 7, 0, 9, batch_bytes=4000):
                found.extend(batch.payloads)

        await in_time(clock, read())
    assert found == ledger.payloads
    assert clock.monotonic() == pytest.approx(seconds)
    assert metrics.registry.get_sample_value("offloaderd_bookie_hedged_reads_total") == 0
