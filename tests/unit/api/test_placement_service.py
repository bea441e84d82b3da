"""PlacementService: daemons in order, topics and reasons; draining that waits, plans, is refused and taken back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pytest

from offloaderd.api.daemon import PlacementService
from offloaderd.core.aio import Signal
from offloaderd.core.errors import Conflict, InvalidInput, NotFound
from offloaderd.core.model import TopicName
from offloaderd.fleet.placement import ranked
from offloaderd.metadata.records.ownership import DaemonNode, Owner
from offloaderd.protocol.v1 import placement_pb2

if TYPE_CHECKING:
    from offloaderd.fleet.engine import Engine
    from offloaderd.fleet.registration import Registration
    from offloaderd.protocol.v1.placement_pb2_grpc import _ServicerContext as Context

REAL_TIME = "gRPC"

CONTEXT = cast("Context", None)
TOPICS = [TopicName.parse(f"public/default/t{number}") for number in range(20)]


def node(name: str, **changed: Any) -> DaemonNode:  # noqa: ANN401 - a field's value
    """Make a registration."""
    return DaemonNode(daemon_id=name, address=f"{name}:1", version="1", started_ms=5, **changed)


@dataclass
class View:
    """Who is there."""

    me: DaemonNode
    others: list[DaemonNode]

    @property
    def members(self) -> dict[str, DaemonNode]:
        """All by id."""
        return {one.daemon_id: one for one in [self.me, *self.others]}

    def first(self, key: str) -> DaemonNode:
        """Return the best daemon."""
        return self.ranking(key)[0]

    def ranking(self, key: str) -> list[DaemonNode]:
        """Return the real ranking."""
        return ranked(key, self.members.values())


@dataclass
class FakeEngine:
    """Owns what a test says."""

    placement: View
    owned: list[TopicName] = field(default_factory=list)
    changed: Signal = field(default_factory=Signal)

    def topics(self) -> list[TopicName]:
        """Return what is left; one topic goes at every look."""
        now = list(self.owned)
        if self.placement.me.draining:
            self.owned[-1:] = []
            self.changed.notify()
        return now

    def enabled(self) -> list[TopicName]:
        """Return all topics."""
        return TOPICS

    def placed(self, topic: TopicName, owner: str) -> str:
        """Return what can be told apart."""
        return f"{topic.local} of {owner}"

    async def has_policy(self, topic: TopicName) -> bool:
        """Say whether it is one of those."""
        return topic in TOPICS

    async def owner_of(self, topic: TopicName) -> Owner | None:
        """Return the same owner for all that are there."""
        return Owner(daemon_id="b", address="b:1", session_id="s", epoch=2) if topic in TOPICS else None


class FakeRegistration:
    """Changes what the engine believes of itself."""

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.announced_count = 0

    def announce(self, *, draining: bool) -> None:
        """Note it."""
        self.engine.placement.me = node("a", draining=draining)

    async def announced(self) -> None:
        """Note that it was waited for."""
        self.announced_count += 1


def served(*others: DaemonNode) -> tuple[PlacementService, FakeEngine, FakeRegistration]:
    """Return a service of daemon a."""
    engine = FakeEngine(View(node("a"), list(others)), TOPICS[:3])
    registration = FakeRegistration(engine)
    return PlacementService(cast("Engine", engine), cast("Registration", registration)), engine, registration


async def reports(service: PlacementService, **request: bool) -> list[placement_pb2.DrainProgress]:
    """Return all that a drain says."""
    return [one async for one in service.Drain(placement_pb2.DrainRequest(**request), CONTEXT)]


async def test_daemons_are_told_with_their_standing_and_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """By name without a topic; counts are those of topics for which a daemon ranks first."""
    service, engine, _ = served(node("c", impaired="no bucket"), node("b", draining=True))
    found = await service.ListDaemons(placement_pb2.ListDaemonsRequest(), CONTEXT)
    assert [(one.daemon_id, one.standing, one.topics, one.asked) for one in found.daemons] == [
        ("a", "working", 20, True),
        ("b", "draining", 0, False),
        ("c", "impaired", 0, False),
    ]
    engine.placement.others = [node("b"), node("c")]
    found = await service.ListDaemons(placement_pb2.ListDaemonsRequest(), CONTEXT)
    assert sum(one.topics for one in found.daemons) == 20
    assert all(one.topics for one in found.daemons)
    first = await service.ListDaemons(placement_pb2.ListDaemonsRequest(page_size=2), CONTEXT)
    rest = placement_pb2.ListDaemonsRequest(page_token=first.next_page_token)
    assert [*first.daemons, *(await service.ListDaemons(rest, CONTEXT)).daemons] == [*found.daemons]
    assert len(first.daemons) == 2
    monkeypatch.setattr(engine, "enabled", pytest.fail)  # the pages behind the first one count no topics again
    assert (await service.ListDaemons(rest, CONTEXT)).daemons[0].topics == found.daemons[2].topics


async def test_pages_of_a_ranking_are_of_one_order() -> None:
    """Each daemon once, the best first; when the order changes between two pages, the token says so."""
    service, engine, _ = served(*map(node, "bcdef"))
    request = placement_pb2.ListDaemonsRequest(topic=str(TOPICS[0]), page_size=2)
    found: list[str] = []
    tokens = [""]
    while not found or tokens[-1]:
        request.page_token = tokens[-1]
        answer = await service.ListDaemons(request, CONTEXT)
        found += [one.daemon_id for one in answer.daemons]
        tokens.append(answer.next_page_token)
    assert found == [one.daemon_id for one in engine.placement.ranking(str(TOPICS[0]))]
    request.page_token = tokens[1]
    fewer, more = set("abcdef") - {found[3]}, set("abcdefg")
    for there, draining in ((fewer, ""), (more, ""), (set("abcdef"), found[0]), (set("abcdef"), found[4])):
        engine.placement.others = [node(one, draining=one == draining) for one in sorted(there - {"a"})]
        engine.placement.me = node("a", draining=draining == "a")
        with pytest.raises(InvalidInput, match="the order of the list has changed") as refused:
            await service.ListDaemons(request, CONTEXT)
        assert refused.value.hint == "begin again without page_token"
    request.topic = str(TOPICS[1])
    with pytest.raises(InvalidInput, match="no page_token of this list"):
        await service.ListDaemons(request, CONTEXT)


async def test_a_topic_that_was_never_enabled_is_not_found() -> None:
    """A typo is told, instead of the daemon that would have it."""
    service, _, _ = served(node("b"))
    with pytest.raises(NotFound, match="nosuch is not offloaded"):
        await service.ListDaemons(placement_pb2.ListDaemonsRequest(topic="public/default/nosuch"), CONTEXT)


async def test_for_a_topic_daemons_come_in_the_order_of_their_claim_to_it() -> None:
    """The ranking, the owner, and why the topic is not where it belongs."""
    service, engine, _ = served(node("b"), node("c"))
    found = await service.ListDaemons(placement_pb2.ListDaemonsRequest(topic=str(TOPICS[4])), CONTEXT)
    expected = [one.daemon_id for one in engine.placement.ranking(str(TOPICS[4]))]
    assert [one.daemon_id for one in found.daemons] == expected
    assert (found.owner, found.reason) == ("b", "t4 of b")


async def test_draining_reports_how_many_are_left_until_none_is() -> None:
    """The others are told first; the last report says that it is done."""
    service, _, registration = served(node("b"))
    said = await reports(service)
    assert [one.left for one in said] == [3, 2, 1, 0]
    assert [one.done for one in said] == [False, False, False, True]
    assert registration.announced_count == 1


async def test_draining_can_be_planned_and_taken_back() -> None:
    """A dry run changes nothing; undo has the daemon take part again."""
    service, engine, registration = served(node("b"))
    (plan,) = await reports(service, dry_run=True)
    assert [(move.topic, move.to) for move in plan.moves] == [(str(topic), "b") for topic in TOPICS[:3]]
    assert not engine.placement.me.draining
    await reports(service)
    assert engine.placement.me.draining
    (undone,) = await reports(service, undo=True)
    assert undone.done
    assert not engine.placement.me.draining
    assert registration.announced_count == 2


@pytest.mark.parametrize("others", [[], [node("b", draining=True)]])
async def test_the_last_one_is_not_drained(others: list[DaemonNode]) -> None:
    """With nobody to take the topics draining is refused, and nothing is changed."""
    service, engine, _ = served(*others)
    with pytest.raises(Conflict, match="no other daemon"):
        await reports(service)
    assert not engine.placement.me.draining
