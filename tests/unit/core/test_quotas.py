"""Accounts: what namespaces and tenants use is counted, rates delay, amounts refuse; the nearest level counts."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from offloaderd.core.errors import Throttled
from offloaderd.core.limits import Flow
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import TopicName
from offloaderd.core.names.patterns import Scope
from offloaderd.core.quotas import UNUSED_S, Accounts, Quotas, Usage
from tests.virtual import LoopClock

EU, US = TopicName("acme", "eu", "orders"), TopicName("acme", "us", "orders")
EU_SCOPE, ACME, BROKER = Scope("acme", "eu"), Scope("acme"), Scope()


def accounts(levels: dict[Scope, Quotas] | None = None) -> Accounts:
    """Return accounts with quotas, for two namespaces of a tenant."""
    made = Accounts(LoopClock(), Metrics())
    made.of(EU)
    made.of(US)
    made.follow(levels or {})
    return made


def refusals(made: Accounts, namespace: str, quota: str) -> float:
    """Return how often something was refused."""
    labels = {"namespace": namespace, "quota": quota}
    return made.nobody.metrics.registry.get_sample_value("offloaderd_namespace_refused_total", labels) or 0.0


def test_the_nearest_level_counts_and_a_tenants_is_of_all_together() -> None:
    """A namespace has its own value, else that of the broker level; `off` ends the search."""
    made = accounts({BROKER: Quotas(readers=5, calls=7), EU_SCOPE: Quotas(readers=2, calls=-1), ACME: Quotas(topics=9)})
    assert made.of(EU).limits == Quotas(readers=2, calls=-1)
    assert made.of(EU).limits.limit("calls") is None
    assert made.of(US).limits == Quotas(readers=5, calls=7)
    assert made.at(ACME).limits == Quotas(topics=9)


def test_calls_and_readers_beyond_a_quota_are_refused() -> None:
    """The error names quota, value and whom to ask; the tenant's counts for its namespaces together."""
    made = accounts({EU_SCOPE: Quotas(readers=2), ACME: Quotas(calls=3)})
    eu, us = made.of(EU), made.of(US)
    eu.begin("calls", "readers")
    eu.begin("calls", "readers")
    with pytest.raises(Throttled, match="acme/eu has 2 readers open already: its quota is readers = 2") as refused:
        eu.begin("calls", "readers")
    assert "an administrator of acme/* may raise the quota" in refused.value.hint
    us.begin("calls")
    with pytest.raises(Throttled, match="acme has 3 calls open already: its quota is calls = 3") as refused:
        us.begin("calls")
    assert "an administrator of * may raise the quota" in refused.value.hint
    assert (refusals(made, "acme/eu", "readers"), refusals(made, "acme", "calls")) == (1, 1)
    eu.end("calls", "readers")
    us.begin("calls", "readers")
    assert (eu.open["readers"], us.open["readers"], made.at(ACME).open["calls"]) == (1, 1, 3)
    assert (eu.usage.requests, us.usage.requests) == (2, 2)


async def test_bytes_beyond_a_rate_wait() -> None:
    """They are charged after they were moved; the tenant's rate holds for all its namespaces."""
    made = accounts({EU_SCOPE: Quotas(write_bytes_per_s=100), ACME: Quotas(read_bytes_per_s=100)})
    eu, us, clock = made.of(EU), made.of(US), LoopClock()
    began_s = clock.monotonic()
    await eu.may_write()
    eu.wrote(600)
    assert eu.write_behind
    await eu.may_write()
    assert 4.5 < clock.monotonic() - began_s < 5.5, "one second's worth was saved up"
    assert not us.write_behind
    began_s = clock.monotonic()
    us.sent(400)
    await eu.may_read()
    assert 2.5 < clock.monotonic() - began_s < 3.5
    assert (eu.usage.written_bytes, us.usage.read_bytes) == (600, 400)


async def test_a_higher_rate_helps_those_who_wait() -> None:
    """Nobody waits for what a mistake of an hour ago has charged; meanwhile the source is refreshed."""
    made = accounts({EU_SCOPE: Quotas(write_bytes_per_s=1)})
    eu, clock, turns = made.of(EU), LoopClock(), Counter[str]()
    eu.wrote(1_000_000)

    async def meanwhile() -> None:
        turns["now"] += 1

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(eu.may_write(meanwhile))
        await clock.sleep(10)
        made.follow({})
    assert 8 < turns["now"] < 13


async def test_unpacked_memory_has_its_quota() -> None:
    """Half of it for messages, for which a read waits; half for chunks, which are refused."""
    made = accounts({EU_SCOPE: Quotas(unpack_bytes=100)})
    eu, clock = made.of(EU), LoopClock()
    async with asyncio.TaskGroup() as group, eu.unpacking(40):
        waiting = group.create_task(_unpack(made, 40))
        await clock.sleep(1)
        assert not waiting.done()
    eu.wait_for_rest(40)
    with pytest.raises(Throttled, match=r"unpack_bytes = 100"):
        eu.wait_for_rest(40)
    eu.wait_for_rest(-40)
    eu.wait_for_rest(40)
    made.of(US).wait_for_rest(1000)


async def _unpack(made: Accounts, size: int) -> None:
    async with made.of(EU).unpacking(size):
        pass


def test_stored_bytes_and_topics_are_those_of_the_cluster() -> None:
    """At the quota nothing more is stored; a tenant's topics are counted together."""
    made = accounts({EU_SCOPE: Quotas(stored_bytes=1000), ACME: Quotas(topics=3)})
    topics = Counter({EU_SCOPE: 2, Scope("acme", "us"): 1})
    assert not made.count(topics, Counter({EU_SCOPE: 999}))
    assert not made.of(EU).over_stored
    assert made.count(topics, Counter({EU_SCOPE: 1000}))
    assert made.of(EU).over_stored.startswith("the quota stored_bytes = 1000 of acme/eu")
    assert made.of(EU).over_since_ms
    assert not made.of(US).over_stored
    assert made.no_room(Scope("acme", "us"), topics).startswith("acme has 3 topics: its quota is topics = 3")
    assert not made.no_room(Scope("acme", "us"), topics - Counter({EU_SCOPE: 1}))
    assert made.count(topics, Counter())
    assert not made.of(EU).over_since_ms


def test_a_quota_of_nothing_is_used_up_from_the_first_moment() -> None:
    """Before anything was counted: so it is noticed that it is lifted, and topics that it paused go on."""
    made = Accounts(LoopClock(), Metrics())
    made.follow({EU_SCOPE: Quotas(stored_bytes=0), BROKER: Quotas(stored_bytes=1)})
    assert made.of(EU).over_stored
    assert made.of(EU).over_since_ms
    assert not made.of(US).over_since_ms
    made.follow({})
    assert made.count(Counter(), Counter())
    assert not made.of(EU).over_since_ms


def test_names_without_topics_share_an_account() -> None:
    """Callers that make names up make no accounts, and no series. Those of a tenant count for the tenant."""
    made = accounts({BROKER: Quotas(calls=2)})
    one, other = made.known(Scope("made", "up")), made.known(Scope("up", "made"))
    assert one is other is made.nobody
    one.begin("calls")
    one.begin("calls")
    with pytest.raises(Throttled):
        other.begin("calls")
    assert made.known(Scope("acme", "new")) is made.at(ACME)
    assert [account.name for account in made] == ["acme", "acme/eu", "acme/us"]


def test_a_tenant_with_a_weight_is_one_flow() -> None:
    """A tenant does not get more by having more namespaces; without a weight each is a flow of its own."""
    made = accounts()
    assert made.of(EU).counted() is made.of(EU)
    made.follow({ACME: Quotas(weight=3), EU_SCOPE: Quotas(weight=2)})
    assert made.of(EU).counted() is made.of(US).counted() is made.at(ACME)
    assert (made.at(ACME).weight, made.of(EU).weight, made.of(US).weight) == (3, 2, Flow.weight)


async def test_an_account_that_nothing_uses_is_dropped_and_its_sums_stay() -> None:
    """Its series go as well; the next use gives it another with the same limits and sums."""
    made, clock = accounts({BROKER: Quotas(readers=1)}), LoopClock()
    registry = made.nobody.metrics.registry
    made.of(EU).begin("calls")
    made.of(EU).end("calls")
    for _ in range(2):
        made.count(Counter({EU_SCOPE: 1}), Counter())
        await clock.sleep(UNUSED_S)
        made.count(Counter({EU_SCOPE: 1}), Counter())
    assert [one.name for one in made] == ["acme", "acme/eu"], "a topic of the cluster is a use, also of the tenant"
    label = {"namespace": "acme/us"}
    assert registry.get_sample_value("offloaderd_namespace_requests_total", label) is None
    await idle(made, clock)
    assert not list(made)
    assert made.usage == {EU_SCOPE: Usage(requests=1)}, "what was never counted leaves nothing"
    assert registry.get_sample_value("offloaderd_namespace_requests_total", {"namespace": "acme/eu"}) is None
    assert made.of(EU).limits == Quotas(readers=1)
    made.of(EU).begin("calls")
    assert made.usage[EU_SCOPE].requests == 2


async def idle(made: Accounts, clock: LoopClock) -> None:
    """Let time pass without any use of an account, also for the tenants after their namespaces."""
    for _ in range(3):
        made.count(Counter(), Counter())
        await clock.sleep(UNUSED_S)


@pytest.mark.parametrize("use", ["call", "rate", "unpacked", "chunks", "stored", "here", "quota", "counted"])
async def test_an_account_in_use_stays(use: str) -> None:
    """Whatever is held, to be paid for, counted lately or set: an account that is gone would not know it."""
    made, clock = accounts(), LoopClock()
    account = made.of(EU)
    stored, here = Counter[Scope](), set[Scope]()
    match use:
        case "call":
            account.begin("calls", "readers")
        case "rate":
            made.follow({BROKER: Quotas(write_bytes_per_s=1)})
            account.wrote(10 * round(UNUSED_S))
        case "unpacked":
            await account.unpacked.acquire(1)
        case "chunks":
            account.wait_for_rest(1)
        case "stored":
            stored[EU_SCOPE] = 1
        case "here":
            here = {EU_SCOPE}
        case "quota":
            made.follow({EU_SCOPE: Quotas(readers=1)})
    for _ in range(3):
        made.count(Counter(), stored, here)
        await clock.sleep(UNUSED_S)
        if use == "counted":
            account.sent(1)
    made.count(Counter(), stored, here)
    assert made.find(EU_SCOPE) is account


async def test_accounts_are_dropped_without_a_keeper() -> None:
    """A daemon that only reads looks when it needs another account."""
    made, clock = Accounts(LoopClock(), Metrics()), LoopClock()
    for number in range(4):
        made.of(TopicName("acme", f"n{number}", "orders"))
        await clock.sleep(UNUSED_S)
    assert [one.name for one in made] == ["acme", "acme/n3"]
