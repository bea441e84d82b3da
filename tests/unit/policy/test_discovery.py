"""Topics that come later: found within seconds, looked at once, and never lost to an error on the way."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from offloaderd.core.errors import Denied, NotFound, Transient
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import TopicName
from offloaderd.core.names.patterns import TopicPattern
from offloaderd.metadata import paths
from offloaderd.policy import store as stored
from offloaderd.policy.discovery import COMPARED_S, DISCOVERY_S, JITTER_S, Discovery
from offloaderd.policy.records import Selection, TopicPolicy
from offloaderd.policy.updates import Selector
from offloaderd.testing.clock import FakeClock
from offloaderd.testing.memory.metadata import MemoryMetadata, MemoryTree
from tests.unit.policy.test_selector import Room
from tests.unit.rigs.topic_source import TopicSource
from tests.virtual import virtually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Counting(MemoryMetadata):
    """A store that counts what is read of it, and can be away."""

    def __init__(self, tree: MemoryTree) -> None:
        super().__init__(tree)
        self.reads = 0
        self.away = False

    async def children(self, path: str) -> list[str]:
        """Count a look."""
        self.reads += 1
        if self.away:
            raise Transient("the store is away")
        return list(await super().children(path))


@asynccontextmanager
async def discovering(*names: str, tree: MemoryTree | None = None) -> AsyncIterator[Room]:
    """A daemon that has looked once, and an operator who asks another daemon over the same tree."""
    tree, source, clock = tree or MemoryTree(), TopicSource(set(names)), FakeClock()
    store = Counting(tree)
    metrics = Metrics()
    discovery = Discovery(Selector(store, source, clock), metrics)  # type: ignore[arg-type]
    async with store, tree.connect() as other, asyncio.TaskGroup() as group:
        task = group.create_task(discovery.run())
        await clock.advance(JITTER_S)
        source.requests.clear()
        selector = Selector(other, source, FakeClock(seed=1))  # type: ignore[arg-type]
        yield Room(selector, source, store, clock, metrics)
        task.cancel()


def unapplied(room: Room) -> float | None:
    """Return how many selections the daemon cannot apply."""
    return room.metrics.registry.get_sample_value("offloaderd_selections_unapplied")


def reads(room: Room) -> int:
    """Return how many listings the daemon has asked its metadata store for."""
    assert isinstance(room.store, Counting)
    return room.store.reads


async def test_a_new_topic_is_enabled_within_seconds() -> None:
    """A topic that appears in an enabled namespace is found by the next pass; others are not touched."""
    async with discovering("orders") as room:
        await room.enable("public/default/*")
        await room.clock.advance(JITTER_S)
        room.source.names |= {"clicks", "public/other/x"}
        await room.clock.advance(DISCOVERY_S)
        assert await room.enabled() == dict.fromkeys(["orders", "clicks"], "public/default/*")
        assert (await room.policy("clicks")).segment_bytes_max == 5


async def test_topics_of_other_domains_are_counted_and_named_once() -> None:
    """Those of an enabled namespace, whenever they come; a look that shows the same ones says nothing again."""

    def count() -> float | None:
        return room.metrics.registry.get_sample_value("offloaderd_topics_not_covered", {"domain": "segment"})

    async with discovering("orders") as room:
        room.source.others |= {"segment://public/default/a", "segment://public/other/b"}
        with capture_logs() as lines:
            await room.enable("public/default/*")
            await room.clock.advance(DISCOVERY_S)
            assert count() == 1
            room.source.others |= {f"segment://public/default/c-{number}" for number in range(9)}
            await room.clock.advance(2 * COMPARED_S)
            assert count() == 10
        told = [line for line in lines if line["event"] == "topics.not_covered"]
        assert [(line["topics"], len(line["first"])) for line in told] == [(1, 1), (9, 5)]
        assert told[0]["first"] == ["segment://public/default/a"]
        assert room.source.requests["not covered"] < 6


async def test_new_partitions_follow_what_was_said_of_their_topic() -> None:
    """A topic that was named before it existed turns out to be partitioned; more partitions come later."""
    async with discovering() as room:
        await room.enable("orders")
        assert (await room.policy("orders")).active
        room.source.names |= {"orders-partition-0", "orders-partition-1"}
        await room.clock.advance(DISCOVERY_S)
        follows = "public/default/orders"
        assert await room.enabled() == {"orders": "", "orders-partition-0": follows, "orders-partition-1": follows}
        assert (await room.policy("orders")).partitioned
        room.source.names |= {"orders-partition-2"}
        await room.clock.advance(DISCOVERY_S)
        assert (await room.policy("orders-partition-2")).selected_by == follows
        await room.disable("orders")
        room.source.names |= {"orders-partition-3"}
        await room.clock.advance(2 * DISCOVERY_S)
        assert await room.enabled() == {}


async def test_a_topic_that_exists_after_all_is_partitioned_no_more() -> None:
    """Once the source shows the name itself, entries under it are offloaded."""
    async with discovering("orders-partition-0") as room:
        await room.enable("orders")
        room.source.names.add("orders")
        await room.clock.advance(DISCOVERY_S)
        assert (await room.policy("orders")).active


async def test_an_idle_pass_requests_one_listing_and_nothing_else() -> None:
    """Once everything is known, a namespace costs one request a pass, however many topics it has."""
    async with discovering(*(f"topic-{number}" for number in range(200)), "system") as room:
        room.source.reasons["public/default/system"] = "of Pulsar itself"
        await room.enable("public/default/*")
        await room.clock.advance(2 * DISCOVERY_S)
        room.source.requests.clear()
        before = reads(room)
        await room.clock.advance(3 * DISCOVERY_S)
        assert room.source.requests == {("public", "default"): 3}
        assert reads(room) == before
        await room.clock.advance(COMPARED_S)
        assert room.source.requests["reserved"] == 1


async def test_without_selections_nothing_is_asked() -> None:
    """A daemon on which nobody enabled anything leaves the source alone."""
    async with discovering("orders", "clicks") as room:
        await room.clock.advance(5 * DISCOVERY_S)
        assert not room.source.requests


async def test_a_topic_that_is_compacted_no_more_is_taken_in_the_end() -> None:
    """What was left alone is looked at again after a while."""
    async with discovering("orders") as room:
        room.source.reasons["public/default/orders"] = "compacted"
        await room.enable("public/default/*")
        await room.clock.advance(JITTER_S)
        room.source.reasons.clear()
        await room.clock.advance(2 * DISCOVERY_S)
        assert await room.enabled() == {}
        await room.clock.advance(COMPARED_S + DISCOVERY_S)
        assert await room.enabled() == {"orders": "public/default/*"}


async def test_a_namespace_that_does_not_answer_keeps_none_of_the_others() -> None:
    """One line of log says what is not listed; the rest is discovered, and it as well once it answers."""
    async with discovering() as room:
        await room.enable("acme/*")
        await room.enable("public/default/*")
        room.source.failures["acme", None] = Denied("no right to list")
        room.source.names |= {"acme/web/x", "orders"}
        with capture_logs() as logs:
            await room.clock.advance(3 * DISCOVERY_S)
        assert await room.enabled() == {"orders": "public/default/*"}
        assert [line["event"] for line in logs].count("discovery.unlisted") == 1
        room.source.failures.clear()
        await room.clock.advance(DISCOVERY_S)
        assert set(await room.enabled()) == {"orders", "acme/web/x"}


async def test_an_empty_listing_takes_nothing_away() -> None:
    """Topics that the source shows no more keep their policy: absence is no order to stop."""
    async with discovering("orders", "clicks") as room:
        await room.enable("public/default/*")
        room.source.names.clear()
        await room.enable("public/default/*", TopicPolicy(segment_bytes_max=6))
        await room.clock.advance(3 * DISCOVERY_S)
        assert set(await room.enabled()) == {"orders", "clicks"}
        assert (await room.policy("orders")).segment_bytes_max == 6


async def test_a_store_that_is_away_is_asked_again() -> None:
    """A pass that fails is said once and made up for by a later one."""
    async with discovering() as room:
        assert isinstance(room.store, Counting)
        room.store.away = True
        await room.enable("public/default/*")
        room.source.names.add("orders")
        with capture_logs() as logs:
            await room.clock.advance(3 * DISCOVERY_S)
        assert [line["event"] for line in logs].count("discovery.failed") == 1
        room.store.away = False
        await room.clock.advance(DISCOVERY_S)
        assert set(await room.enabled()) == {"orders"}


async def test_what_a_crash_left_half_done_is_completed() -> None:
    """A selection that was stored, changed or removed without being carried out is carried out by who looks next."""
    tree = MemoryTree()
    async with discovering("orders", tree=tree) as room:
        await room.enable("public/default/*")
        value = (await room.store.get(paths.selection("public/default/*"))).value
        await room.disable("public/default/*")
    async with tree.connect() as store:
        await store.create(paths.selection("public/default/*"), value)
    async with discovering("orders", "clicks", tree=tree) as room:
        assert set(await room.enabled()) == {"orders", "clicks"}
        await room.store.delete(paths.selection("public/default/*"))
        await room.clock.advance(2 * JITTER_S)
        assert await room.enabled() == {}


async def test_a_damaged_selection_ends_nothing() -> None:
    """A record that nobody can read is an alarm, not an order to stop ten thousand topics."""
    async with discovering("orders") as room:
        await room.enable("public/default/*")
        path = paths.selection("public/default/*")
        await room.store.replace(path, b"\xff", (await room.store.get(path)).version)
        counter = await room.store.get(paths.SELECTIONS)
        with capture_logs() as logs:
            await room.store.replace(paths.SELECTIONS, b"", counter.version)
            await room.clock.advance(2 * DISCOVERY_S)
        assert "selection.corrupt" in [line["event"] for line in logs]
        assert await room.enabled() == {"orders": "public/default/*"}


async def test_an_expression_that_is_not_taken_any_more_ends_nothing() -> None:
    """What an earlier release stored stays readable and selects nothing: topics go on, an alarm says so, it can go."""
    tree, pattern = MemoryTree(), TopicPattern.named("re:public/default/(?!us-).*")
    chosen = TopicPolicy(selected_by=pattern.text)
    async with tree.connect() as store:
        clock = FakeClock()
        await stored.put(store, clock, Selection(pattern=pattern, policy=chosen, created_ms=1))
        await stored.write(store, clock, [TopicName.parse("orders")], lambda *_: chosen, known=[])
    with capture_logs() as logs:
        async with discovering("orders", "eu-1", tree=tree) as room:
            await room.clock.advance(2 * DISCOVERY_S)
            assert await room.enabled() == {"orders": pattern.text}
            found = (await stored.selections(room.store))[pattern.text]
            assert isinstance(found, Selection)
            assert "(?!" in found.refused
            assert unapplied(room) == 1
            await room.selector.disable(pattern)
            await room.clock.advance(2 * DISCOVERY_S)
            assert (await room.enabled(), unapplied(room)) == ({}, 0)
    assert [line["pattern"] for line in logs if line["event"] == "selection.unapplied"] == [pattern.text]


async def test_an_expired_session_stops_no_discovery() -> None:
    """After the store's session was lost the watches continue under the next one."""
    async with discovering() as room:
        assert isinstance(room.store, MemoryMetadata)
        room.store.expire()
        await room.enable("public/default/*")
        room.source.names.add("orders")
        await room.clock.advance(DISCOVERY_S)
        assert set(await room.enabled()) == {"orders"}


async def test_several_daemons_agree() -> None:
    """Daemons that see the same at the same time give every topic its policy, each once."""
    tree, names = MemoryTree(), [f"topic-{number}" for number in range(250)]
    async with discovering(*names, tree=tree) as one, discovering(*names, tree=tree) as two:
        await one.enable("public/default/*", TopicPolicy())
        one.source.names |= {"late"}
        two.source.names |= {"late"}
        async with asyncio.TaskGroup() as group:
            for room in (one, two):
                group.create_task(room.clock.advance(2 * DISCOVERY_S))
        assert set(await one.enabled()) == {*names, "late"}
        assert (await one.store.get(paths.policy(TopicName.parse("late")))).version == 0


STEPS = st.sampled_from(
    [
        ("enable", "public/default/*"), ("enable", "public/*"), ("enable", "re:.*/a.*"), ("enable", "a"),
        ("disable", "public/default/*"), ("disable", "public/*"), ("disable", "re:.*/a.*"), ("disable", "a"),
        ("disable", "b"), ("topic", "a"), ("topic", "b"), ("topic", "a-partition-0"), ("topic", "public/x/a"),
        ("topic", "acme/x/ab"), ("look", ""),
    ]
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(STEPS, max_size=12))
def test_whatever_happens_discovery_comes_to_rest_where_the_rules_say(steps: list[tuple[str, str]]) -> None:
    """After any history, every topic has exactly the policy that follows from what was said, and stays so."""

    async def history() -> None:
        async with discovering() as room:
            for what, name in steps:
                if what == "topic":
                    room.source.names.add(name)
                elif what == "look":
                    await room.clock.advance(DISCOVERY_S)
                else:
                    await attempt(room, what, name)
            await room.clock.advance(2 * DISCOVERY_S)
            said = await room.selector.stored()
            for topic in {*said.policies, *map(TopicName.parse, room.source.names)}:
                assert said.rules.wanted(topic, said.policies.get(topic)) is None
            counter = await room.store.get(paths.TOPICS) if said.policies else None
            await room.clock.advance(3 * DISCOVERY_S)
            assert counter is None or await room.store.get(paths.TOPICS) == counter

    virtually(history())


async def attempt(room: Room, what: str, name: str) -> None:
    """Enable or disable; disabling what is not enabled is no matter."""
    if what == "enable":
        await room.enable(name)
    else:
        with suppress(NotFound):
            await room.disable(name)
