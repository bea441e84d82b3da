"""Places of several services: what needs a service waits while it does not answer, and everything else goes on."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from offloaderd.core.errors import Denied, NoSpace, Throttled, Transient
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import Position, RefusalKind, TopicName
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.objects import keys
from offloaderd.objects.places import Places
from offloaderd.policy.records import TopicPolicy
from offloaderd.segment.upload import ServiceContext
from offloaderd.testing.faults import FaultyStore
from offloaderd.testing.memory.ledgers import MemoryLedgers
from offloaderd.testing.memory.objects import MemoryStore
from offloaderd.upkeep.gc.collector import Collector
from offloaderd.upkeep.gc.findings import Finding, Kind, Verdict
from offloaderd.upkeep.stored import Site
from tests.unit.objects.buckets import Buckets
from tests.unit.rigs.rig import TOPIC, Rig, enabled, memory_ledgers, payloads, turn, until, until_offloaded
from tests.virtual import LoopClock

if TYPE_CHECKING:
    from offloaderd.core.clock import Clock
    from offloaderd.fleet.engine import Engine
    from offloaderd.objects.port import SegmentStore
    from offloaderd.topic.outage import TopicContext

HOME, ARCHIVE = PLACES = ("b", "seg/"), ("archive", "old/")
LABELS = keys.segment_metadata("test")
OTHER = TopicName.parse("public/default/others")


class Services(Buckets):
    """A bucket of each of two services, of which those named in `down` refuse everything."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock, HOME[0], ARCHIVE[0])
        self.down: set[str] = set()
        self.throttled = 0
        """How many parts, and manifests, the archive still refuses, as it is asked too often."""
        self.full = False
        """Whether the archive takes no parts."""

    def at(self, bucket: str) -> SegmentStore:  # type: ignore[override]  # with faults
        """See SegmentStore."""

        def refuse(operation: str, key: str, when: str) -> Exception | None:
            sent = operation == "upload_part" or (operation == "get" and key.endswith("-manifest"))
            if (bucket, when) == (ARCHIVE[0], "before") and sent and self.throttled:
                self.throttled -= 1
                return Throttled("slow down")
            if (bucket, operation, when) == (ARCHIVE[0], "upload_part", "before") and self.full:
                return NoSpace("full")
            return Denied(f"no right to {bucket}") if bucket in self.down and when == "before" else None

        return FaultyStore(super().at(bucket), refuse)


class ServicesRig(Rig):
    """A rig whose second place is of another service than the first."""

    def context(self, *given: Any, **named: Any) -> TopicContext:  # noqa: ANN401 - those of the rig
        """See Rig."""
        found = super().context(*given, **named)
        home, archive = found.places
        return replace(found, places=Places(home, replace(archive, driver={**archive.driver, "driver": "azureblob"})))


def rig_of() -> tuple[Rig, Services]:
    """A rig with a place in each of two services."""
    rig = ServicesRig(places=(HOME, ARCHIVE))
    rig.ledgers = memory_ledgers(rig.clock, ledger_entries_max=10)
    rig.objects = services = Services(rig.clock)
    return rig, services


def policy_of(place: tuple[str, str]) -> TopicPolicy:
    """A topic's policy that names a place."""
    return TopicPolicy(enabled=True, bucket=place[0], prefix=place[1])


async def offload(rig: Rig, engine: Engine, place: tuple[str, str], topic: TopicName = TOPIC) -> list[bytes]:
    """Write a ledger of a topic and have it stored in a place; returns what was written."""
    offloader, content = await enabled(engine, policy_of(place), topic), payloads(10)
    while offloader.policy.place != place:
        await offloader.policy_changed.wait()
    assert isinstance(rig.ledgers, MemoryLedgers)
    last = await rig.ledgers.append(topic, content)
    await offloader.request_roll()
    await until_offloaded(offloader, last)
    return content


async def buckets_of(rig: Rig, topic: TopicName = TOPIC) -> list[str]:
    """Where the segments of a topic lie, in order."""
    return [one.bucket for one in (await catalog.load(rig.tree.connect(), topic)).segments]


def stalled_reasons(engine: Engine) -> dict[TopicName, str]:
    """Why topics stall."""
    return {one.topic: one.stalled_reason for one in engine.statuses() if one.state == "stalled"}


async def test_a_topic_goes_on_in_another_service_and_back() -> None:
    """Its segments lie where its policy was at their begin, and all of them are read."""
    rig, _ = rig_of()
    async with rig.engine() as engine:
        written = [entry for place in (HOME, ARCHIVE, HOME) for entry in await offload(rig, engine, place)]
    assert await buckets_of(rig) == [HOME[0], ARCHIVE[0], HOME[0]]
    assert [payload for _, payload in await rig.committed()] == written


async def test_a_service_that_is_down_stops_the_topics_that_need_it_alone() -> None:
    """A topic of the first service commits under a new claim, one whose policy names the other says why it waits."""
    rig, services = rig_of()
    async with rig.engine() as engine:
        await offload(rig, engine, HOME)
        await offload(rig, engine, ARCHIVE, OTHER)
    services.down = {ARCHIVE[0]}
    async with rig.engine("two") as engine:
        await offload(rig, engine, HOME)
        assert isinstance(rig.ledgers, MemoryLedgers)
        last = await rig.ledgers.append(OTHER, payloads(10))
        other = await enabled(engine, policy_of(ARCHIVE), OTHER)
        await other.request_roll()
        await until(lambda: OTHER in stalled_reasons(engine))
        assert list(stalled_reasons(engine)) == [OTHER]
        assert "no right to archive" in stalled_reasons(engine)[OTHER]
        await offload(rig, engine, HOME)
        services.down = set()
        await until_offloaded(other, last)
    assert await buckets_of(rig) == [HOME[0]] * 3
    assert await buckets_of(rig, OTHER) == [ARCHIVE[0]] * 2


def apart(rig: Rig) -> Rig:
    """Have each service its own pace and reach, as the daemon gives them."""
    made, further = rig.context, {ARCHIVE[0]: ServiceContext()}

    def context(*given: Any, **named: Any) -> TopicContext:  # noqa: ANN401 - those of the rig
        found = made(*given, **named)
        return replace(found, upload_context=replace(found.upload_context, further=further))

    rig.context = context  # type: ignore[method-assign]
    return rig


async def test_each_service_has_its_own_pace_reach_and_refusal() -> None:
    """One that throttles, or does not answer a probe, slows down and stalls the topics that store in it alone."""
    rig, services = rig_of()
    async with apart(rig).engine() as engine:
        up = engine.context.upload_context
        await offload(rig, engine, HOME)
        await offload(rig, engine, ARCHIVE, OTHER)
        here = await enabled(engine, policy_of(HOME))
        there = await enabled(engine, policy_of(ARCHIVE), OTHER)
        assert here.reach is up.service(HOME[0]).reach is not there.reach
        up.service(HOME[0]).reach.probed(Transient("no answer"), Behind())
        assert up.service(ARCHIVE[0]).reach.failure is None
        up.follow_pace(3)
        assert [up.service(one).pace.ceiling for one, _ in PLACES] == [3, 3]
        services.down = {ARCHIVE[0]}
        assert isinstance(rig.ledgers, MemoryLedgers)
        await rig.ledgers.append(OTHER, payloads(10))
        await there.request_roll()
        await until(lambda: OTHER in stalled_reasons(engine))
        assert "no right to archive" in engine.store_refuses(ARCHIVE[0])
        assert engine.store_refuses() == engine.store_refuses(HOME[0]) == ""
        services.down = set()


async def test_topics_of_a_service_that_is_away_leave_memory_to_the_others() -> None:
    """As many of them as would fill it: each holds a part that nobody takes, and topics of the other service go on."""
    rig, services = rig_of()
    async with apart(rig).engine() as engine:
        await offload(rig, engine, HOME)
        services.full = True
        assert isinstance(rig.ledgers, MemoryLedgers)
        stuck = [TopicName.parse(f"public/default/stuck-{number}") for number in range(24)]
        for topic in stuck:
            await rig.ledgers.append(topic, payloads(300))
            await enabled(engine, policy_of(ARCHIVE), topic)
        budget = engine.context.upload_context.budget
        await until(lambda: budget.used > budget.limit // 2)
        await rig.clock.sleep(5)
        await offload(rig, engine, HOME)
        services.full = False


async def test_a_service_that_throttles_slows_down_its_own_uploads() -> None:
    """Parts to another one keep their slots."""
    rig, services = rig_of()
    async with apart(rig).engine() as engine:
        up = engine.context.upload_context
        before = up.service(HOME[0]).pace.limit
        services.throttled = 1
        await offload(rig, engine, ARCHIVE)
        assert services.throttled == 0
        assert up.service(ARCHIVE[0]).pace.limit < before
        assert up.service(HOME[0]).pace.limit == before


async def test_a_service_that_a_topic_has_left_does_not_slow_down_its_uploads() -> None:
    """It is asked for the manifest of the segment before, and throttles: parts to the new one keep their slots."""
    rig, services = rig_of()
    async with apart(rig).engine() as engine:
        await offload(rig, engine, ARCHIVE)
    async with apart(rig).engine("two") as engine:
        up = engine.context.upload_context
        before = {bucket: up.service(bucket).pace.limit for bucket, _ in PLACES}
        services.throttled = 1
        await offload(rig, engine, HOME)
        assert services.throttled == 0
        assert up.service(ARCHIVE[0]).pace.limit < before[ARCHIVE[0]]
        assert up.service(HOME[0]).pace.limit == before[HOME[0]]


async def test_nothing_of_a_topic_is_deleted_before_the_heads_of_all_services_were_compared() -> None:
    """The map may have gone back to before the topic stored in the service that is down."""
    rig, services = rig_of()
    async with rig.engine() as engine:
        await offload(rig, engine, HOME)
        services.down = {ARCHIVE[0]}
    async with rig.engine("two") as engine:
        await offload(rig, engine, HOME)
        topic = await enabled(engine, policy_of(HOME))
        for _ in range(100):
            await turn()
        assert not topic.identity.checked.is_set()
        services.down = set()
        await until(topic.identity.checked.is_set)


async def test_a_map_that_went_back_to_before_the_move_is_refused() -> None:
    """The head in the other service says how far the topic was, although nothing of the map is there."""
    rig, services = rig_of()
    async with rig.engine() as engine:
        await offload(rig, engine, HOME)
    backup = rig.tree.backup()
    async with rig.engine() as engine:
        await offload(rig, engine, ARCHIVE)
    rig.tree = backup
    assert await services.at(ARCHIVE[0]).get(keys.head(ARCHIVE[1], "test", TOPIC.managed_ledger))
    async with rig.engine("two") as engine:
        await until(lambda: any(one.refusals for one in engine.statuses()))
        (refusal,) = engine.statuses()[0].refusals
        assert refusal.kind == RefusalKind.METADATA_WENT_BACK
    assert await buckets_of(rig) == [HOME[0]]
    assert (await catalog.load(rig.tree.connect(), TOPIC)).offloaded == Position(0, 9)


async def test_garbage_is_collected_where_a_service_answers() -> None:
    """What lies in the one that is down stays as it is, committed or not, and no finding is about it."""
    rig, services = rig_of()
    async with rig.engine() as engine:
        for place in (HOME, ARCHIVE):
            await offload(rig, engine, place)
    await services.at(HOME[0]).put(f"{HOME[1]}{rig.clock.uuid()}", b"left", metadata=LABELS)
    await services.at(ARCHIVE[0]).put(f"{ARCHIVE[1]}{rig.clock.uuid()}", b"left", metadata=LABELS)
    services.down = {ARCHIVE[0]}
    assert await collected(rig) == ["seg"]
    services.down = set()
    assert await collected(rig) == ["old"]
    for bucket, _ in PLACES:
        assert len(await services.keys(bucket)) == 3


async def collected(rig: Rig) -> list[str]:
    """Collect garbage, and return the folders in which something was deleted."""
    sites = [Site(cluster="test", bucket=bucket, prefix=prefix) for bucket, prefix in PLACES]
    collector = Collector(rig.store, rig.tree.connect(), sites, clock=rig.clock, metrics=Metrics())
    async with aclosing(collector.collect(grace_s=0, apply=True)) as found:
        finds = [one async for one in found if isinstance(one, Finding)]
    assert {one.verdict for one in finds} <= {Verdict.DELETED}
    return [one.key.partition("/")[0] for one in finds]


class Behind(LoopClock):
    """A clock that is a day behind."""

    def wall_ms(self) -> int:
        """See Clock."""
        return super().wall_ms() - 86_400_000


async def test_ages_are_by_the_clock_of_the_store_that_has_the_object() -> None:
    """A store whose clock is a day behind the first one's keeps what was stored a moment ago."""
    rig, services = rig_of()
    async with rig.engine() as engine:
        await offload(rig, engine, HOME)
    services.add(ARCHIVE[0], MemoryStore(Behind()))
    await services.at(ARCHIVE[0]).put(f"{ARCHIVE[1]}{rig.clock.uuid()}", b"young", metadata=LABELS)
    sites = [Site(cluster="test", bucket=bucket, prefix=prefix) for bucket, prefix in PLACES]
    collector = Collector(rig.store, rig.tree.connect(), sites, clock=rig.clock, metrics=Metrics())
    async with aclosing(collector.collect(grace_s=3600, apply=True)) as found:
        (find,) = [one async for one in found if isinstance(one, Finding)]
    assert (find.verdict, find.kind) == (Verdict.KEEP, Kind.YOUNG)
