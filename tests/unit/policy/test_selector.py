"""Enabling and disabling by pattern, on a metadata store in memory: what is written, what is told, what is left."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from offloaderd.core.errors import Conflict, NotFound, OutcomeUnknown, Transient
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import TopicName
from offloaderd.core.names.patterns import TopicPattern
from offloaderd.metadata import paths
from offloaderd.policy import store as policies
from offloaderd.policy.records import TopicPolicy, decode_policy
from offloaderd.policy.store import enabled_topics, topic_policies
from offloaderd.policy.updates import TURN_S, Selector
from offloaderd.testing.clock import FakeClock
from offloaderd.testing.memory.metadata import MemoryMetadata, MemoryTree
from tests.unit.rigs.topic_source import TopicSource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Sequence

    from offloaderd.metadata.port import Step, Versioned

POLICY = TopicPolicy(segment_bytes_max=5)


@dataclass
class Room:
    """A selector over a source and a store, and another session that looks."""

    selector: Selector
    source: TopicSource
    store: MemoryMetadata
    clock: FakeClock
    metrics: Metrics = field(default_factory=Metrics)

    async def enable(self, pattern: str, policy: TopicPolicy = POLICY, *, dry_run: bool = False) -> dict[str, str]:
        """Enable and return outcome and reason by topic."""
        return told(await self.selector.enable(TopicPattern.parse(pattern), policy, dry_run=dry_run))

    async def disable(self, pattern: str, *, dry_run: bool = False) -> dict[str, str]:
        """Disable and return outcome and reason by topic."""
        return told(await self.selector.disable(TopicPattern.parse(pattern), dry_run=dry_run))

    async def enabled(self) -> dict[str, str]:
        """Return every enabled topic with the pattern that selected it."""
        found = await topic_policies(self.store)
        return {
            short(topic): policy.selected_by
            for topic, policy in found.items()
            if isinstance(policy, TopicPolicy) and policy.enabled
        }

    async def policy(self, topic: str) -> TopicPolicy:
        """Return a topic's policy."""
        path = paths.policy(TopicName.parse(topic))
        return decode_policy((await self.store.get(path)).value, path=path)


def short(topic: TopicName) -> str:
    """Name a topic without what all have."""
    return f"{topic.tenant}/{topic.namespace}/{topic.local}".removeprefix("public/default/")


def told(changes: Sequence[Any]) -> dict[str, str]:
    """Write changes shortly."""
    return {short(one.topic): f"{one.outcome}: {one.reason}".removesuffix(": ") for one in changes}


@asynccontextmanager
async def running(*names: str, store: MemoryMetadata | None = None) -> AsyncIterator[Room]:
    """A room in which these topics exist."""
    source, clock = TopicSource(set(names)), FakeClock()
    async with store or MemoryTree().connect() as opened:
        selector = Selector(opened, source, clock)  # type: ignore[arg-type]
        yield Room(selector, source, opened, clock)


async def test_a_namespace_is_enabled_topic_by_topic() -> None:
    """Every topic gets the policy, with its folders and the pattern; reserved ones are left alone with the reason."""
    async with running("orders", "clicks", "compacted", "acme/web/x") as room:
        room.source.reasons["public/default/compacted"] = "it is compacted"
        assert await room.enable("public/default/*") == {
            "orders": "enabled", "clicks": "enabled", "compacted": "left-alone: it is compacted",
        }  # fmt: skip
        assert await room.enabled() == dict.fromkeys(["orders", "clicks"], "public/default/*")
        topic = TopicName.parse("orders")
        assert await room.policy("orders") == TopicPolicy(segment_bytes_max=5, selected_by="public/default/*")
        assert set(await room.store.children(paths.topic(topic))) >= {
            folder.rpartition("/")[2] for folder in paths.folders(topic)[1:]
        }
        assert room.source.requests["public", "default"] == 1


async def test_enabling_again_changes_the_policy_of_what_was_selected() -> None:
    """The same again changes nothing; another policy reaches the selected topics and no others."""
    async with running("orders", "clicks") as room:
        await room.enable("clicks", TopicPolicy())
        await room.enable("public/default/*")
        assert await room.enable("public/default/*") == {
            "orders": "unchanged", "clicks": "left-alone: enabled by name",
        }  # fmt: skip
        counter = await room.store.get(paths.TOPICS)
        other = TopicPolicy(segment_age_max_s=7)
        assert (await room.enable("public/default/*", other))["orders"] == "changed"
        assert (await room.store.get(paths.TOPICS)).version == counter.version + 1
        assert (await room.policy("orders")).segment_age_max_s == 7
        assert (await room.policy("clicks")).segment_age_max_s is None


async def test_an_expression_keeps_its_age_when_its_policy_is_changed() -> None:
    """Of two expressions that match the older one counts, and changing its policy does not make it the younger."""
    async with running("orders") as room:
        for pattern in ("re:.*/orders", "re:.*"):
            await room.enable(pattern)
            await room.clock.advance(1)
        await room.enable("re:.*/orders", TopicPolicy())
        assert await room.enabled() == {"orders": "re:.*/orders"}
        await room.disable("re:.*/orders")
        await room.enable("re:.*/orders")
        assert await room.enabled() == {"orders": "re:.*"}


async def test_a_topic_disabled_by_name_stays_disabled() -> None:
    """An exception from a selection lasts, whatever is selected later, until the topic is enabled by name."""
    async with running("orders", "clicks") as room:
        await room.enable("public/default/*")
        assert await room.disable("orders") == {"orders": "disabled"}
        left = "left-alone: disabled by name"
        assert (await room.enable("public/default/*"))["orders"] == left
        assert (await room.enable("public/*"))["orders"] == left
        assert await room.enabled() == {"clicks": "public/default/*"}
        assert await room.enable("orders") == {"orders": "enabled"}
        assert (await room.enabled())["orders"] == ""


async def test_disabling_a_selection_disables_what_it_selected() -> None:
    """Topics of others stay, topics that another selection matches go over to it, new ones get nothing any more."""
    async with running("orders", "clicks", "acme/web/x", "public/other/y") as room:
        await room.enable("clicks")
        await room.enable("re:public/.*|acme/.*")
        await room.enable("public/default/*")
        assert await room.enabled() == {
            "orders": "public/default/*", "clicks": "",
            "acme/web/x": "re:public/.*|acme/.*", "public/other/y": "re:public/.*|acme/.*",
        }  # fmt: skip
        assert await room.disable("public/default/*") == {"orders": "changed: selected by re:public/.*|acme/.*"}
        assert set((await room.disable("re:public/.*|acme/.*")).values()) == {"disabled"}
        assert await room.enabled() == {"clicks": ""}
        with pytest.raises(NotFound, match="selects nothing"):
            await room.disable("public/default/*")
        assert set((await room.enable("re:public/.*|acme/.*")).values()) == {"enabled", "left-alone: enabled by name"}


async def test_a_partitioned_topic_is_enabled_and_disabled_as_one() -> None:
    """Its partitions follow the name, even against a selection; the name itself is no topic."""
    partitions = ["orders-partition-0", "orders-partition-1"]
    async with running(*partitions, "orders-partition-x") as room:
        assert await room.enable("orders") == dict.fromkeys(["orders", *partitions], "enabled")
        assert (await room.policy("orders")).partitioned
        assert not (await room.policy("orders")).active
        assert (await room.policy(partitions[0])).selected_by == "public/default/orders"
        assert await enabled_topics(room.store) == [TopicName.parse(name) for name in partitions]
        left = "left-alone: selected by public/default/orders"
        assert await room.enable("public/default/*") == {
            "orders": "left-alone: enabled by name", **dict.fromkeys(partitions, left), "orders-partition-x": "enabled",
        }  # fmt: skip
        assert await room.disable("orders") == dict.fromkeys(["orders", *partitions], "disabled")
        assert list(await room.enabled()) == ["orders-partition-x"]


async def test_partitions_of_a_selection_are_excepted_by_their_topics_name() -> None:
    """Disabling a partitioned topic that was never named stops its partitions, and those that come."""
    async with running("orders-partition-0", "clicks") as room:
        await room.enable("public/default/*")
        assert await room.disable("orders") == {"orders": "disabled", "orders-partition-0": "disabled"}
        room.source.names.add("orders-partition-1")
        again = await room.enable("public/default/*")
        assert again["orders-partition-1"] == "left-alone: public/default/orders is disabled"
        assert await room.enabled() == {"clicks": "public/default/*"}


async def test_a_topic_that_does_not_exist_yet_is_enabled_by_name() -> None:
    """A push-only topic is in no source, and a source that does not answer stops nobody from naming a topic."""
    async with running() as room:
        assert await room.enable("orders") == {"orders": "enabled"}
        room.source.failures["public", "default"] = Transient("away")
        assert await room.enable("clicks") == {"clicks": "enabled"}
        with pytest.raises(Transient):
            await room.enable("public/default/*")
        assert await room.store.children(paths.SELECTIONS) == []
        with pytest.raises(NotFound, match="not enabled"):
            await room.disable("other")


async def test_a_plainly_named_topic_is_taken_even_if_it_is_reserved() -> None:
    """Whoever names a compacted topic, or a partitioned one, wants it."""
    async with running("orders", "part-partition-0") as room:
        room.source.reasons = {"public/default/orders": "compacted", "public/default/part-partition-0": "compacted"}
        assert await room.enable("public/default/*") == dict.fromkeys(
            ["orders", "part-partition-0"], "left-alone: compacted"
        )
        assert await room.enable("orders") == {"orders": "enabled"}
        assert await room.enable("part") == {"part": "enabled", "part-partition-0": "enabled"}


async def test_a_dry_run_reports_the_same_and_writes_nothing() -> None:
    """The answer of a dry run is that of the run; the tree is as it was."""
    async with running("orders", "clicks", "p-partition-0") as room:
        for ask in (room.enable, room.disable):
            for pattern in ("public/default/*", "p", "clicks"):
                before = await dump(room.store)
                rehearsed = await ask(pattern, dry_run=True)
                assert await dump(room.store) == before
                assert await ask(pattern) == rehearsed


async def test_a_thousand_topics_are_enabled_in_ten_transactions() -> None:
    """The counter that wakes every daemon moves once for each hundred topics, not for each topic."""
    names = [f"t/n/topic-{number:05}" for number in range(1000)]
    async with running(*names) as room:
        assert len(await room.enable("t/n/*")) == 1000
        assert (await room.store.get(paths.TOPICS)).version == 1000 // policies.BATCH_TOPICS
        assert set(await room.enabled()) == set(names)


class Unsteady(MemoryMetadata):
    """A store whose transactions fail as a test wants; what is `applied` is carried out and then said to be unknown."""

    def __init__(self, tree: MemoryTree) -> None:
        super().__init__(tree)
        self.failures: list[tuple[Exception, bool]] = []

    async def transact(self, steps: Sequence[Step]) -> None:
        """Fail, with or without having done it."""
        if self.failures:
            error, applied = self.failures.pop()
            if applied:
                await super().transact(steps)
            raise error
        await super().transact(steps)


AWAY, LOST, LATE = Transient("away"), OutcomeUnknown("lost"), Conflict("somebody was faster")


@pytest.mark.parametrize("known", [(), (TopicName.parse("orders"),)])
@pytest.mark.parametrize("failure", [(AWAY, False), (LOST, False), (LOST, True), (LATE, False)])
async def test_writes_are_tried_again_until_they_are_known(
    failure: tuple[Exception, bool], known: tuple[TopicName, ...]
) -> None:
    """An answer that was lost is read back; the result tells of what was written either way."""
    store = Unsteady(MemoryTree())
    topics = [TopicName.parse(name) for name in ("orders", "clicks")]
    async with running("orders", "clicks", store=store) as room, asyncio.TaskGroup() as group:
        store.failures = [failure]
        writing = group.create_task(policies.write(store, room.clock, topics, lambda *_: POLICY, known=known))
        while not writing.done():
            await room.clock.advance(1)
        assert writing.result() == dict.fromkeys(topics, POLICY)
        assert (await room.store.get(paths.TOPICS)).version == 1
        store.failures = [failure] * 2
        enabling = group.create_task(room.enable("public/default/*"))
        while not enabling.done():
            await room.clock.advance(1)
        assert await room.store.children(paths.SELECTIONS) == ["public%2Fdefault%2F*"]


async def test_a_store_that_never_takes_a_write_ends_the_try() -> None:
    """The caller is told what was not written, after a bounded number of tries."""
    store = Unsteady(MemoryTree())
    async with running("orders", store=store) as room, asyncio.TaskGroup() as group:
        store.failures = [(Transient("away"), False)] * 100
        enabling = group.create_task(raised(room.enable("orders")))
        while not enabling.done():
            await room.clock.advance(60)
        assert "the policies of 1 topics could not be written: away" in enabling.result()
        assert len(store.failures) == 100 - policies.TRIES


async def raised(work: Coroutine[Any, Any, object]) -> str:
    """Return the Transient error that something ends with."""
    with pytest.raises(Transient) as caught:
        await work
    return str(caught.value)


async def test_what_changes_meanwhile_is_decided_anew() -> None:
    """A topic that somebody disables between the plan and the write is not enabled after all."""
    async with running("orders", "clicks") as room:
        said = await room.selector.stored()
        await room.enable("public/default/*")
        rules = (await room.selector.stored()).rules
        topics = sorted(map(TopicName.parse, ("orders", "clicks")))
        stale = await room.selector.plan(rules, topics, said.policies)
        assert [one.outcome for one in stale] == ["enabled", "enabled"]
        await room.disable("orders")
        stored = await room.selector.carry_out(rules, stale, said.policies)
        assert list(stored) == [TopicName.parse("clicks")]
        assert await room.enabled() == {"clicks": "public/default/*"}


async def test_a_damaged_policy_is_left_alone_until_it_is_named() -> None:
    """A selection does not overwrite what it cannot read; an operator who names the topic does."""
    async with running("orders") as room:
        await room.store.create(paths.policy(TopicName.parse("orders")), b"\xff")
        assert (await room.enable("public/default/*"))["orders"].startswith("left-alone: its policy is damaged")
        assert await room.enable("orders") == {"orders": "enabled"}
        assert await room.enabled() == {"orders": ""}


async def dump(store: MemoryMetadata, path: str = "/") -> dict[str, Versioned]:
    """Return the whole tree."""
    found = {path: await store.get(path)}
    for name in await store.children(path):
        found |= await dump(store, f"{path.rstrip('/')}/{name}")
    return found


class SlowClock(FakeClock):
    """Whatever is done takes as long as a turn may."""

    def monotonic(self) -> float:
        """Return a later time each time."""
        self._now += TURN_S
        return self._now


async def test_what_takes_long_gives_others_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many expressions held against many topics hold up no call and no probe in between."""
    turn = 0
    seen: list[int] = []
    plain = TopicPattern.matches

    def matches(self: TopicPattern, topic: TopicName) -> bool:
        seen.append(turn)
        return plain(self, topic)

    async def others() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)  # noqa: TID251 - counts turns

    monkeypatch.setattr(TopicPattern, "matches", matches)
    async with running(*(f"orders-{number}" for number in range(20))) as room:
        room.selector.clock = SlowClock()
        beside = asyncio.create_task(others())  # noqa: TID251 - it is cancelled below
        found = await room.enable("re:public/default/.*", dry_run=True)
        beside.cancel()
    assert len(found) == 20
    assert len(seen) == 40
    assert max(Counter(seen).values()) <= 2
