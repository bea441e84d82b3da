"""Captures in the bucket: taken when due, kept in number, and put back after a rebuild."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from offloaderd.capture import storage
from offloaderd.capture.keeper import Keeper, take
from offloaderd.capture.records import Capture, Key, Kind, encode, node_value
from offloaderd.capture.restore import restore
from offloaderd.capture.settings import CaptureSettings
from offloaderd.core.errors import Conflict, CorruptData, InvalidInput, NotFound, OutcomeUnknown, Transient
from offloaderd.core.names.patterns import Scope, TopicPattern, of_topic
from offloaderd.core.quotas import Quotas
from offloaderd.format.head import PlaceMarker
from offloaderd.metadata import paths
from offloaderd.metadata.identity import ensure_deployment
from offloaderd.metadata.records import grant
from offloaderd.metadata.records.identity import Deployment
from offloaderd.objects import keys, marker
from offloaderd.policy import quotas, records, store
from offloaderd.policy.policies import OffloadPolicies
from offloaderd.policy.records import Paused, Selection, TopicPolicy
from offloaderd.policy.selection import Rules
from offloaderd.testing.faults import Faults, FaultyStore
from offloaderd.testing.memory.metadata import MemoryTree
from offloaderd.testing.memory.objects import MemoryStore
from offloaderd.upkeep.grants import records as grants
from offloaderd.upkeep.stored import Site
from tests.unit.upkeep.site import TOPIC
from tests.virtual import LoopClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from offloaderd.metadata.port import MetadataStore
    from offloaderd.objects.port import SegmentStore

SITE = Site(cluster="prod", bucket="b", prefix="seg/")
CAPTURE = Capture(cluster="prod", deployment_id="", taken_ms=1_600_000_000_000, records={("k", "a", ""): 1})
DAY_S = 86_400.0


@pytest.fixture
def clock() -> LoopClock:
    """Virtual time."""
    return LoopClock()


@pytest.fixture
def objects(clock: LoopClock) -> MemoryStore:
    """An empty bucket."""
    return MemoryStore(clock)


@pytest.fixture
def metadata() -> MetadataStore:
    """Empty metadata."""
    return MemoryTree().connect()


def keeper(objects: SegmentStore, metadata: MetadataStore, clock: LoopClock) -> Keeper:
    """Return a keeper without a cluster."""
    return Keeper(objects, metadata, None, SITE, clock=clock, registry=CollectorRegistry())


@asynccontextmanager
async def kept(one: Keeper, current: Callable[[], CaptureSettings], leads: Callable[[], bool]) -> AsyncIterator[None]:
    """Have a keeper at work meanwhile."""
    async with asyncio.TaskGroup() as group:
        running = group.create_task(one.keep(current, leads))
        yield
        running.cancel()


async def names(objects: SegmentStore) -> list[str]:
    """Return the names of the captures in the bucket."""
    return [one.name for one in await storage.stored_captures(objects, SITE)]


async def test_a_capture_is_read_by_its_name_or_as_the_newest(objects: MemoryStore, clock: LoopClock) -> None:
    """Other objects of the folder are none, and those of other clusters are in other folders."""
    first = await storage.write(objects, SITE, CAPTURE)
    later = replace(CAPTURE, taken_ms=CAPTURE.taken_ms + 60_000, records={})
    second = await storage.write(objects, SITE, later)
    await objects.put(second.key.replace(".jsonl.gz", ".txt"), b"")
    await storage.write(objects, replace(SITE, cluster="prod2"), replace(later, cluster="prod2"))
    assert await names(objects) == [second.name, first.name]
    assert await storage.read(objects, SITE) == (second, later)
    assert (await storage.read(objects, SITE, first.name))[1] == CAPTURE
    with pytest.raises(NotFound, match="no capture 2020"):
        await storage.read(objects, SITE, "2020")
    await objects.put(second.key, encode(replace(later, cluster="other")))
    with pytest.raises(CorruptData, match="'prod'"):
        await storage.read(objects, SITE)


async def test_a_capture_is_stored_once_although_answers_are_lost(objects: MemoryStore, clock: LoopClock) -> None:
    """The name is one of its own, so what is there is an earlier try's."""
    faults = Faults()
    faults.lose_answer("put", times=2)
    await storage.write(FaultyStore(objects, faults), SITE, CAPTURE)
    assert len(await names(objects)) == 1
    faults.fail("put", OutcomeUnknown("no answer"), times=100)
    with pytest.raises(Transient, match="stays unknown"):
        await storage.write(FaultyStore(objects, faults), SITE, CAPTURE)


async def test_the_newest_captures_stay(objects: MemoryStore, clock: LoopClock) -> None:
    """As many as are to be kept; never none."""
    for number in range(5):
        await storage.write(objects, SITE, replace(CAPTURE, taken_ms=CAPTURE.taken_ms + number * 1000))
    before = await names(objects)
    assert [one.name for one in await storage.prune(objects, SITE, 2, "")] == before[2:]
    assert await names(objects) == before[:2]
    assert await storage.prune(objects, SITE, 2, "") == []
    with pytest.raises(InvalidInput):
        await storage.prune(objects, SITE, 0, "")


OTHER = Deployment(deployment_id=UUID(int=7 << 96), made_ms=5, made_by="d")
"""What a daemon makes over empty metadata."""


async def test_a_deployment_over_empty_metadata_hides_and_deletes_no_capture(
    objects: MemoryStore, metadata: MetadataStore, clock: LoopClock
) -> None:
    """ZooKeeper was lost, and a daemon has started: the newest capture is that of the deployment which owns the place.

    The new one takes its own at once, and once it has taken over the place its captures are the newest.
    """
    before_id = str(UUID(int=1 << 96))
    before = await storage.write(objects, SITE, replace(CAPTURE, deployment_id=before_id))
    place = PlaceMarker(deployment_id=before_id, cluster="prod", daemon_id="d", since_ms=1)
    await marker.put(objects, SITE.prefix, place)
    await ensure_deployment(metadata, OTHER)
    settings = CaptureSettings(interval_s=DAY_S, keep=1)
    async with kept(keeper(objects, metadata, clock), lambda: settings, lambda: True):
        await clock.sleep(3 * DAY_S)
    newest, *_ = found = await storage.stored_captures(objects, SITE)
    assert [one.deployment for one in found] == ["00000007", "00000001"]
    assert (await storage.read(objects, SITE))[0].name == before.name
    await marker.put(objects, SITE.prefix, replace(place, deployment_id=str(OTHER.deployment_id)))
    assert (await storage.read(objects, SITE))[0] == newest
    await objects.put(keys.marker(SITE.prefix, "prod"), b"damaged")
    assert (await storage.read(objects, SITE))[0] == newest


async def test_the_last_complete_capture_stays_beside_newer_ones(objects: MemoryStore) -> None:
    """What they could not read is in it."""
    capture = CAPTURE
    for number in range(5):
        problems = ("no right",) if number > 1 else ()
        capture = replace(CAPTURE, taken_ms=CAPTURE.taken_ms + number * 1000, problems=problems)
        await storage.write(objects, SITE, capture)
    before = await storage.stored_captures(objects, SITE)
    assert [one.complete for one in before] == [False, False, False, True, True]
    assert await storage.prune(objects, SITE, 2, "") == [before[2], before[4]]
    assert (await storage.read(objects, SITE))[1] == capture


async def test_two_captures_of_one_second_do_not_replace_each_other(objects: MemoryStore) -> None:
    """Of two daemons that both lead; the second one is taken again."""
    await storage.write(objects, SITE, CAPTURE)
    with pytest.raises(Conflict, match="of this second"):
        await storage.write(objects, SITE, replace(CAPTURE, records={}))
    assert (await storage.read(objects, SITE))[1] == CAPTURE


async def test_a_daemon_whose_clock_was_ahead_hides_and_deletes_no_capture(
    objects: MemoryStore, metadata: MetadataStore, clock: LoopClock
) -> None:
    """No capture is newer than its object: later ones are taken when they are due, and are the newest."""
    ahead = replace(CAPTURE, taken_ms=clock.wall_ms() + round(365 * DAY_S * 1000))
    wrong = await storage.write(objects, SITE, ahead)
    settings = CaptureSettings(interval_s=DAY_S, keep=2)
    async with kept(keeper(objects, metadata, clock), lambda: settings, lambda: True):
        await clock.sleep(DAY_S + 700)
        assert len(await names(objects)) == 2
        assert (await storage.read(objects, SITE))[0].name != wrong.name
        await clock.sleep(DAY_S)
        assert wrong.name not in await names(objects)


async def test_many_records_are_encoded_beside_the_daemons_work(
    objects: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take seconds, in which its session with ZooKeeper would end."""
    in_tasks = []

    def encoded(capture: Capture) -> bytes:
        in_tasks.append(asyncio.current_task() is not None)
        return encode(capture)

    monkeypatch.setattr(storage, "encode", encoded)
    await storage.write(objects, SITE, CAPTURE)
    many: dict[Key, object] = {("k", str(number), ""): 1 for number in range(storage.APART_RECORDS)}
    large = replace(CAPTURE, taken_ms=CAPTURE.taken_ms + 1000, records=many)
    await storage.write(objects, SITE, large)
    assert in_tasks == [True, False]
    assert (await storage.read(objects, SITE))[1] == large


async def test_captures_are_taken_when_due_by_the_daemon_that_leads(
    objects: MemoryStore, metadata: MetadataStore, clock: LoopClock
) -> None:
    """Also by one that has just started, and by the next leader no sooner."""
    settings, leads = CaptureSettings(interval_s=DAY_S, keep=3), True
    async with kept(keeper(objects, metadata, clock), lambda: settings, lambda: leads):
        await clock.sleep(601)
        assert len(await names(objects)) == 1
        await clock.sleep(DAY_S / 2)
    async with kept(keeper(objects, metadata, clock), lambda: settings, lambda: leads):
        await clock.sleep(DAY_S / 4)
        assert len(await names(objects)) == 1
        await clock.sleep(DAY_S / 2)
        assert len(await names(objects)) == 2
        leads = False
        await clock.sleep(3 * DAY_S)
        assert len(await names(objects)) == 2
        leads, settings = True, settings.model_copy(update={"enabled": False})
        await clock.sleep(3 * DAY_S)
        assert len(await names(objects)) == 2
        settings = settings.model_copy(update={"enabled": True})
        await clock.sleep(9 * DAY_S)
        assert len(await names(objects)) == 3


async def test_a_capture_that_fails_is_tried_again_and_counted(
    objects: MemoryStore, metadata: MetadataStore, clock: LoopClock
) -> None:
    """The daemon goes on."""
    faults = Faults()
    faults.fail("put", Transient("away"), times=2)
    one = keeper(FaultyStore(objects, faults), metadata, clock)
    with capture_logs() as logs:
        async with kept(one, CaptureSettings, lambda: True):
            await clock.sleep(1801)
    assert [one["event"] for one in logs][:2] == ["capture.failed"] * 2
    assert len(await names(objects)) == 1


async def test_what_could_not_be_read_is_counted_and_named(
    objects: MemoryStore, metadata: MetadataStore, clock: LoopClock
) -> None:
    """The rest is stored all the same, under a name that says so."""
    await rebuilt(metadata, clock, enabled=True)
    await metadata.create(paths.grant(TOPIC, 7), b"\xff")
    registry = CollectorRegistry()
    one = Keeper(objects, metadata, None, SITE, clock=clock, registry=registry)
    with capture_logs() as logs:
        stored = await one.capture(3)
    assert (stored.complete, stored.name.endswith("-incomplete")) == (False, True)
    assert [one["event"] for one in logs] == ["capture.incomplete", "capture.stored"]
    await metadata.delete(paths.grant(TOPIC, 7))
    await clock.sleep(1)
    assert (await one.capture(3)).complete
    counts = {
        outcome: registry.get_sample_value("offloaderd_captures_total", {"outcome": outcome})
        for outcome in ("stored", "incomplete", "failed")
    }
    assert counts == {"stored": 1, "incomplete": 1, "failed": 0}


async def owned(metadata: MetadataStore, clock: LoopClock) -> None:
    """Write what operators decide: levels, a selection, a paused topic, and a ledger that must stay."""
    await store.put_level(metadata, clock, None, OffloadPolicies(segment_age_max_s=77.0))
    await store.put_level(metadata, clock, (TOPIC.tenant, TOPIC.namespace), OffloadPolicies(segment_age_max_s=88.0))
    selection = Selection(pattern=TopicPattern.parse("acme/*"), policy=TopicPolicy(), created_ms=5)
    await store.put(metadata, clock, selection)
    await quotas.put(metadata, clock, Scope("acme"), Quotas(calls=7), by="me")
    policy = TopicPolicy(paused=Paused(5, "me"), segment_age_max_s=99.0)
    await store.write(metadata, clock, [TOPIC], lambda *_: policy, known=[])
    await grants.revoke(metadata, TOPIC, 7, reason="lawyers", now_ms=5)
    await metadata.create(paths.grant(TOPIC, 8), grant.encode(grant.Grant(ledger_id=8, verified_ms=5)))


async def rebuilt(metadata: MetadataStore, clock: LoopClock, *, enabled: bool) -> None:
    """Write what a rebuild leaves of the topic."""
    await store.write(metadata, clock, [TOPIC], lambda *_: TopicPolicy(enabled=enabled), known=[])


@pytest.mark.parametrize("enabled", [True, False])
async def test_what_operators_decided_comes_back_after_a_rebuild(
    metadata: MetadataStore, clock: LoopClock, *, enabled: bool
) -> None:
    """A grant that was not revoked is found anew by a verification; a topic that waits for a check stays disabled."""
    await owned(metadata, clock)
    taken = await take(metadata, None, cluster="prod", clock=clock)
    fresh = MemoryTree().connect()
    await rebuilt(fresh, clock, enabled=enabled)
    one = await restore(fresh, taken, clock, write=False, topics=[TOPIC])
    assert set(one.written) == {paths.policy(TOPIC), paths.grant(TOPIC, 7)}
    planned = await restore(fresh, taken, clock, write=False)
    assert len(planned.written) == 6
    assert await fresh.children(paths.SELECTIONS) == []
    assert (await restore(fresh, taken, clock, write=True)).written == planned.written
    for path in planned.written:
        if path not in {paths.policy(TOPIC), paths.grant(TOPIC, 7)}:
            assert (await fresh.get(path)).value == (await metadata.get(path)).value
    policy = (await store.read(fresh, [TOPIC]))[TOPIC]
    assert isinstance(policy, TopicPolicy)
    assert (policy.enabled, policy.paused, policy.segment_age_max_s) == (enabled, Paused(5, "me"), 99.0)
    revoked = grant.decode((await fresh.get(paths.grant(TOPIC, 7))).value, path="g")
    assert (revoked.revoked_ms, revoked.revoked_reason) == (5, "lawyers")
    assert await fresh.children(paths.grants(TOPIC)) == ["7"]
    again = await restore(fresh, taken, clock, write=True)
    assert (again.written, len(again.left)) == ([], 6)


async def test_a_ledger_that_was_granted_meanwhile_is_revoked_again(metadata: MetadataStore, clock: LoopClock) -> None:
    """A verification after the rebuild has found its copy; that an operator has forbidden it counts."""
    await owned(metadata, clock)
    taken = await take(metadata, None, cluster="prod", clock=clock)
    fresh = MemoryTree().connect()
    await rebuilt(fresh, clock, enabled=True)
    await fresh.create(paths.grant(TOPIC, 7), grant.encode(grant.Grant(ledger_id=7, verified_ms=9)))
    assert paths.grant(TOPIC, 7) in (await restore(fresh, taken, clock, write=True)).written
    found = grant.decode((await fresh.get(paths.grant(TOPIC, 7))).value, path="g")
    assert (found.revoked_ms, found.revoked_reason) == (5, "lawyers")


async def test_a_selection_that_comes_back_enables_no_topic_that_was_disabled(
    metadata: MetadataStore, clock: LoopClock
) -> None:
    """Nothing of it is in the bucket. One that the rebuild has still to write gets no node, which would refuse it."""
    selection = Selection(pattern=TopicPattern.parse("public/*"), policy=TopicPolicy(), created_ms=5)
    await store.put(metadata, clock, selection)
    policies = {"never": TopicPolicy(enabled=False), "blocked": TopicPolicy(enabled=False), "new": TopicPolicy()}
    wanted = {replace(TOPIC, local=name): policy for name, policy in policies.items()}
    await store.write(metadata, clock, list(wanted), lambda topic, _: wanted[topic], known=[])
    taken = await take(metadata, None, cluster="prod", clock=clock)
    never, blocked, new = wanted
    fresh = MemoryTree().connect()
    done = await restore(fresh, taken, clock, write=True, blocked=[blocked])
    assert set(done.left) == {paths.policy(blocked), paths.policy(new), paths.selection("public/*")}
    policies_now = await store.topic_policies(fresh)
    assert policies_now == {never: TopicPolicy(enabled=False)}
    rules = Rules(await store.selections(metadata), policies_now)
    assert rules.wanted(never, policies_now[never]) is None


async def test_partitions_go_on_by_the_policy_of_their_topic(metadata: MetadataStore, clock: LoopClock) -> None:
    """The whole topic has no entries, so a rebuild does not find it."""
    part = replace(TOPIC, local="trips-partition-0")
    whole = replace(TOPIC, local="trips")
    wanted = {
        part: TopicPolicy(selected_by=of_topic(whole).text),
        whole: TopicPolicy(partitioned=True, segment_age_max_s=99.0),
    }
    await store.write(metadata, clock, list(wanted), lambda topic, _: wanted[topic], known=[])
    taken = await take(metadata, None, cluster="prod", clock=clock)
    fresh = MemoryTree().connect()
    await store.write(fresh, clock, [part], lambda *_: TopicPolicy(enabled=True), known=[])
    await restore(fresh, taken, clock, write=True)
    policies = await store.topic_policies(fresh)
    assert policies[whole] == wanted[whole]
    followed = Rules({}, policies).wanted(part, policies[part])
    assert (policies[part], followed) == (wanted[part], replace(wanted[part], segment_age_max_s=99.0))


async def test_selections_wait_until_no_topic_is_blocked(metadata: MetadataStore, clock: LoopClock) -> None:
    """A daemon that finds them would begin topics anew whose maps a rebuild has still to write."""
    await owned(metadata, clock)
    taken = await take(metadata, None, cluster="prod", clock=clock)
    fresh = MemoryTree().connect()
    done = await restore(fresh, taken, clock, write=True, blocked=[TOPIC])
    assert await fresh.children(paths.SELECTIONS) == []
    assert "metadata import" in done.left[paths.selection("acme/*")]
    await restore(fresh, taken, clock, write=True)
    assert len(await fresh.children(paths.SELECTIONS)) == 1


async def test_what_is_there_stays(metadata: MetadataStore, clock: LoopClock) -> None:
    """An operator has decided something else meanwhile; topics without a map get nothing."""
    await owned(metadata, clock)
    taken = await take(metadata, None, cluster="prod", clock=clock)
    other = MemoryTree().connect()
    await store.put_level(other, clock, None, OffloadPolicies(segment_age_max_s=11.0))
    done = await restore(other, taken, clock, write=True)
    assert done.left[paths.BROKER_POLICY] == "another one is there"
    assert "not in these metadata" in done.left[paths.policy(TOPIC)]
    assert "not in these metadata" in done.left[paths.grant(TOPIC, 7)]
    level = records.decode_level((await other.get(paths.BROKER_POLICY)).value, path="b")
    assert level.policies.segment_age_max_s == 11.0
    await store.write(other, clock, [TOPIC], lambda *_: TopicPolicy(segment_age_max_s=12.0), known=[])
    done = await restore(other, taken, clock, write=True)
    assert done.left[paths.policy(TOPIC)] == "another one is there"


async def test_a_capture_that_was_edited_writes_nothing_damaged(metadata: MetadataStore, clock: LoopClock) -> None:
    """Each node is read before it is written."""
    bad: dict[Key, object] = {
        (Kind.NODE, paths.BROKER_POLICY, ""): node_value(b"\xff"),
        (Kind.NODE, paths.policy(TOPIC), ""): node_value(b"\xff"),
        (Kind.NODE, paths.grant(TOPIC, 1), ""): "%",
        (Kind.NODE, "nowhere", ""): node_value(b""),
    }
    done = await restore(metadata, replace(CAPTURE, records=bad), clock, write=True)
    assert (done.written, set(done.left)) == ([], {about for _, about, _ in bad})
