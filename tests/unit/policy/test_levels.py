"""Policies above the topics: what they do to which topics, what is told beforehand, and that all daemons follow."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import NotFound
from offloaderd.core.model import OffloadMethod, OutagePolicy
from offloaderd.core.names.patterns import of_topic
from offloaderd.metadata import paths
from offloaderd.policy import discovery
from offloaderd.policy.discovery import Discovery
from offloaderd.policy.policies import Level, OffloadPolicies, Origin
from offloaderd.policy.records import TopicPolicy
from offloaderd.policy.resolver import PolicyResolver, node_of
from offloaderd.policy.updates import Effect, Levels
from tests.unit.policy.test_selector import Room, running, short
from tests.unit.rigs.rig import TOPIC, Rig, enabled, memory_ledgers, offloader_of, payloads, until, until_offloaded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

STREAM = OffloadPolicies(method=OffloadMethod.STREAMING)
NOTHING = OffloadPolicies(method=OffloadMethod.NONE)
NAMESPACE = ("public", "default")


@dataclass
class Floor:
    """A room with somebody who sets policies."""

    room: Room
    levels: Levels

    async def say(
        self, policies: OffloadPolicies | None, where: tuple[str, str] | None = NAMESPACE, *, dry_run: bool = False
    ) -> dict[str, str]:
        """Say something of a namespace, and return what that does to topics."""
        return told(await self.levels.set_policies(where, policies, dry_run=dry_run))


def told(effects: Sequence[Effect]) -> dict[str, str]:
    """Write effects shortly."""
    return {short(one.topic): " ".join([one.outcome, *one.differences, one.reason]).strip() for one in effects}


@asynccontextmanager
async def floor(*names: str) -> AsyncIterator[Floor]:
    """A room in which these topics exist."""
    async with running(*names) as room:
        book = PolicyResolver(room.store, [Level(Origin.SETTINGS, OffloadPolicies(segment_bytes_max=1024))])
        room.selector._book = book
        yield Floor(room, Levels(room.selector, book))


async def test_a_namespace_with_a_method_has_its_topics_offloaded() -> None:
    """All that there are, as in Pulsar, but those of other namespaces, reserved ones, and those disabled by name."""
    async with floor("orders", "clicks", "compacted", "off", "acme/web/x") as one:
        one.room.source.reasons["public/default/compacted"] = "it is compacted"
        await one.room.enable("off")
        await one.room.disable("off")
        expected = {"orders": "enabled", "clicks": "enabled"}
        assert await one.say(STREAM, dry_run=True) == expected
        assert await one.room.enabled() == {}
        assert (await one.say(STREAM)) == expected
        assert await one.room.enabled() == dict.fromkeys(["orders", "clicks"], "public/default")
        assert await one.room.policy("orders") == TopicPolicy(selected_by="public/default")


async def test_topics_that_come_later_are_offloaded_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """Discovery looks at the namespace, also on a daemon that heard of the policy only from the store."""
    async with floor("orders") as one:
        await one.say(STREAM)
        one.room.source.names.add("public/default/new")
        await Discovery(one.room.selector).run_once()
        assert await one.room.enabled() == dict.fromkeys(["orders", "new"], "public/default")
    assert discovery.DISCOVERY_S <= 10


async def test_removing_it_ends_what_followed_from_it_alone() -> None:
    """Topics that another pattern matches go on under that, those of their own policy are not touched."""
    async with floor("orders", "clicks") as one:
        await one.room.enable("clicks")
        await one.say(STREAM)
        assert await one.say(None, dry_run=True) == {"orders": "disabled"}
        await one.room.enable("public/*", TopicPolicy(segment_bytes_max=77))
        assert await one.room.enabled() == {"orders": "public/default", "clicks": ""}
        assert await one.say(None) == {"orders": "changed segment_bytes_max: 1 KiB -> 77 B"}
        assert await one.room.enabled() == {"orders": "public/*", "clicks": ""}
        with pytest.raises(NotFound, match="namespace public/default"):
            await one.say(None)
        with pytest.raises(NotFound, match="broker"):
            await one.say(None, None)


async def test_a_namespace_without_a_method_enables_nothing_and_one_with_none_disables_nothing() -> None:
    """They only say what holds for topics that are offloaded for another reason."""
    async with floor("orders", "clicks") as one:
        await one.room.enable("orders", TopicPolicy())
        size = OffloadPolicies(segment_bytes_max=9)
        assert await one.say(size) == {"orders": "changed segment_bytes_max: 1 KiB -> 9 B"}
        assert await one.say(NOTHING) == {
            "orders": "changed method: streaming -> none, segment_bytes_max: 9 B -> 1 KiB".replace(", ", " ")
        }
        assert await one.room.enabled() == {"orders": ""}


async def test_a_broker_with_a_method_enables_nothing() -> None:
    """A whole cluster is not copied because of one word; what is offloaded follows."""
    async with floor("orders", "clicks", "acme/web/x") as one:
        await one.room.enable("orders", TopicPolicy(method=OffloadMethod.NONE))
        await one.room.enable("acme/web/*", TopicPolicy())
        ledgers = OffloadPolicies(method=OffloadMethod.LEDGER_BASED)
        assert await one.say(ledgers, None) == {"acme/web/x": "changed method: streaming -> ledger-based"}
        assert await one.room.enabled() == {"orders": "", "acme/web/x": "acme/web/*"}


async def test_a_selection_of_the_namespace_is_narrower_than_its_policy() -> None:
    """Both ways to enable a namespace go together: the pattern governs, its values win, and either may go first."""
    async with floor("orders") as one:
        await one.say(STREAM)
        await one.room.enable("public/default/*", TopicPolicy(segment_bytes_max=5))
        assert await one.room.enabled() == {"orders": "public/default/*"}
        assert await one.say(OffloadPolicies(method=OffloadMethod.STREAMING, segment_bytes_max=6)) == {}
        assert await one.room.disable("public/default/*") == {"orders": "changed: selected by public/default"}
        await one.room.enable("public/default/*", TopicPolicy())
        assert await one.say(None) == {"orders": "changed segment_bytes_max: 6 B -> 1 KiB"}
        assert await one.room.enabled() == {"orders": "public/default/*"}


async def test_disabling_the_pattern_of_a_namespace_that_has_a_policy_names_that() -> None:
    """Nobody enabled the pattern; the error says what to do instead."""
    async with floor("orders") as one:
        with pytest.raises(NotFound) as caught:
            await one.room.disable("public/default/*")
        assert "topics list" in str(caught.value.hint)
        await one.say(STREAM)
        with pytest.raises(NotFound) as caught:
            await one.room.disable("public/default/*")
        assert "namespaces remove-offload-policies" in str(caught.value.hint)


async def test_a_damaged_policy_of_a_namespace_ends_nothing_and_can_be_replaced() -> None:
    """Topics that follow from it keep what they have, until somebody says something again."""
    async with floor("orders") as one:
        await one.say(STREAM)
        path, store = node_of(NAMESPACE), one.room.store
        await store.replace(path, b"\xff", (await store.get(path)).version)
        fresh = Levels(one.room.selector, PolicyResolver(store))
        one.room.selector._book = fresh.book
        await Discovery(one.room.selector).run_once()
        assert await one.room.enabled() == {"orders": "public/default"}
        assert told(await fresh.set_policies(NAMESPACE, NOTHING)) == {"orders": "disabled method: streaming -> none"}


async def test_every_change_raises_the_counter_that_daemons_watch() -> None:
    """So that all of them look at once."""
    async with floor() as one:
        await one.say(NOTHING)
        versions = [(await one.room.store.get(paths.POLICIES)).version]
        for change in (STREAM, None):
            await one.say(change)
            versions.append((await one.room.store.get(paths.POLICIES)).version)
        assert versions == sorted(set(versions))


async def test_a_topic_says_something_by_its_name_and_takes_it_back() -> None:
    """It is enabled by that, with its partitions; taken back, it follows what governs it, or stays as it is."""
    async with floor("orders", "orders-partition-0") as one:
        levels = one.levels
        topic = TOPIC
        size = OffloadPolicies(segment_bytes_max=9)
        assert told(await levels.set_topic_policies(topic, size)) == {
            "orders": "enabled segment_bytes_max: 1 KiB -> 9 B",
            "orders-partition-0": "enabled segment_bytes_max: 1 KiB -> 9 B",
        }
        assert await one.room.enabled() == {"orders": "", "orders-partition-0": "public/default/orders"}
        assert (
            told(await levels.remove_topic_policies(topic, dry_run=True))["orders"]
            == "changed segment_bytes_max: 9 B -> 1 KiB"
        )
        await levels.remove_topic_policies(topic)
        assert (await one.room.policy("orders")).enabled
        with pytest.raises(NotFound, match="of its own"):
            await levels.remove_topic_policies(topic)
        await levels.set_topic_policies(topic, size)
        await one.say(STREAM)
        await levels.remove_topic_policies(topic)
        assert (await one.room.enabled())["orders"] == "public/default"


async def test_a_topic_that_is_disabled_by_name_stays_so() -> None:
    """Saying how it would be offloaded does not switch it on."""
    async with floor("orders") as one:
        await one.room.enable("orders")
        await one.room.disable("orders")
        await one.levels.set_topic_policies(TOPIC, OffloadPolicies(segment_bytes_max=9))
        assert await one.room.enabled() == {}
        assert (await one.room.policy("orders")).segment_bytes_max == 9
        await one.levels.remove_topic_policies(TOPIC)
        assert await one.room.policy("orders") == TopicPolicy(enabled=False)


async def test_running_topics_follow_every_level_at_once() -> None:
    """A value of the broker reaches the open segment of a topic that is here, without a restart, and goes again."""
    rig = Rig()
    rig.ledgers = memory_ledgers(rig.clock)
    async with rig.engine() as engine:
        topic = await enabled(engine)
        last = await rig.ledgers.append(TOPIC, payloads(5))
        await until(lambda: topic.taken >= last)
        assert topic.offloaded is None
        said = OffloadPolicies(segment_age_max_s=0.01, outage=OutagePolicy.BLOCK, threshold_bytes=7)
        await engine.levels.set_policies(None, said)
        await until_offloaded(topic, last)
        assert (topic.policy.segment_age_max_s, topic.policy.threshold_bytes) == (0.01, 7)
        assert topic.outage.policy is OutagePolicy.BLOCK
        await engine.levels.set_policies(NAMESPACE, OffloadPolicies(segment_age_max_s=4.0))
        await until(lambda: topic.policy.segment_age_max_s == 4.0)
        await engine.levels.set_policies(NAMESPACE, None)
        await engine.levels.set_policies(None, None)
        await until(lambda: topic.policy.segment_age_max_s == rig.policy.segment_age_max_s)
        assert (topic.policy.threshold_bytes, topic.outage.policy) == (None, OutagePolicy.SOURCE)


async def test_another_daemons_topics_follow_as_well() -> None:
    """Who owns a topic hears of what another daemon was told."""
    rig = Rig()
    rig.ledgers = memory_ledgers(rig.clock)
    async with rig.engine("one") as one, rig.engine("two") as two:
        await one.select(of_topic(TOPIC), TopicPolicy())
        await until(lambda: (one.find(TOPIC) or two.find(TOPIC)) is not None)
        owner, other = (one, two) if one.find(TOPIC) is not None else (two, one)
        topic = await offloader_of(owner)
        await other.levels.set_policies(NAMESPACE, OffloadPolicies(segment_bytes_max=123))
        await until(lambda: topic.policy.segment_bytes_max == 123)
