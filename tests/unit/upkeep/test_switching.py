"""The exchange of first place and mirror: policy and map, interrupted and repeated, while the topic goes on."""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from offloaderd.api.places import PlacesService
from offloaderd.core.errors import Conflict, Fenced, InvalidInput
from offloaderd.core.model import MirrorRequired, Position
from offloaderd.core.names.patterns import of_topic
from offloaderd.metadata import paths
from offloaderd.metadata.nodes import record
from offloaderd.metadata.records import attempt as attempt_record
from offloaderd.metadata.records.attempt import Attempt, AttemptStatus
from offloaderd.metadata.topic_map.mirroring import exchanged
from offloaderd.policy.policies import OffloadPolicies
from offloaderd.policy.records import TopicPolicy, decode_policy, encode_policy
from offloaderd.policy.rules import Surroundings
from offloaderd.protocol.v1 import places_pb2 as pb
from offloaderd.upkeep.grants import records as grant_records
from offloaderd.upkeep.mirror import Mirror
from offloaderd.upkeep.settings import MirrorSettings
from offloaderd.upkeep.switching import exchange, planned
from tests.unit.api.test_manual import CALLER
from tests.unit.rigs.owned import Owned, offload_more
from tests.unit.rigs.rig import TOPIC, Rig, enabled, payloads, until, until_offloaded
from tests.unit.upkeep.test_mirror import AWAY, HOME, PLACES, THIRD, lag, mirroring, rig_of
from tests.unit.upkeep.test_mirror_required import looked
from tests.unit.upkeep.test_mirrored import collected, mirrored, segments_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from offloaderd.core.model import TopicName
    from offloaderd.fleet.engine import Engine
    from offloaderd.topic.offloader import TopicOffloader

HOME_TEXT, AWAY_TEXT, THIRD_TEXT = map("/".join, (HOME, AWAY, THIRD))
OPEN_ID = UUID(int=5)
SERVICES = {HOME: ("objects", "s3"), AWAY: ("archive", "azure"), THIRD: ("objects", "s3")}
PAIRS = {"there": (HOME, AWAY), "back": (AWAY, HOME)}


def job_attempt(topic: TopicName) -> str:
    """Return the node of a job's segment."""
    return paths.history_job_attempt(topic, OPEN_ID)


def places_of(rig_segments: object) -> list[object]:
    """Return first place and mirror of segments."""
    return [(one.place, one.mirror) for one in rig_segments]  # type: ignore[attr-defined]


class Running:
    """An engine with a mirror, and the service in front of it."""

    def __init__(self, engine: Engine, topic: TopicOffloader) -> None:
        self.engine = engine
        self.topic = topic
        self.service = PlacesService(engine, engine.context.metadata, Surroundings(places=PLACES), SERVICES)

    async def switch(self, to: str = "", *, dry_run: bool = False) -> pb.SwitchProgress:
        """Exchange the places; return the end of it."""
        request = pb.SwitchPlacesRequest(topic=str(TOPIC), to=to, dry_run=dry_run)
        *_, last = [one async for one in self.service.SwitchPlaces(request, CALLER)]
        return last

    async def listed(self) -> dict[str, pb.ListPlacesResponse.Place]:
        """Return the places with what lies in each, from two pages."""
        first = await self.service.ListPlaces(pb.ListPlacesRequest(topic=str(TOPIC), page_size=1), CALLER)
        assert first.next_page_token
        request = pb.ListPlacesRequest(topic=str(TOPIC), page_token=first.next_page_token)
        rest = await self.service.ListPlaces(request, CALLER)
        return {f"{one.bucket}/{one.prefix}": one for one in (*first.places, *rest.places)}

    async def policy(self) -> tuple[str | None, str | None, str | None]:
        """Return the places that the topic's own policy names."""
        found = await record(self.engine.context.metadata, paths.policy(TOPIC), decode_policy)
        assert found is not None
        return found.bucket, found.prefix, found.mirror

    async def copied(self) -> None:
        """Wait until nothing lacks its copy."""
        await until(lambda: not self.topic.mirror.due(self.topic.map.segments, self.topic.policy))


@asynccontextmanager
async def running(rig: Rig) -> AsyncIterator[Running]:
    """Run a daemon with a topic whose policy names a mirror."""
    holder: list[Mirror] = []

    async def copy(offloader: TopicOffloader) -> None:
        await holder[0].run(offloader)

    rig.duties = {"mirror": copy}
    async with rig.engine() as engine:
        holder.append(Mirror(engine.context, MirrorSettings()))
        yield Running(engine, await enabled(engine, TopicPolicy(enabled=True, mirror=AWAY_TEXT)))


async def offload(rig: Rig, running: Running, count: int, *, seed: int = 0) -> None:
    """Append and commit a segment."""
    assert rig.ledgers is not None
    last = await rig.ledgers.append(TOPIC, payloads(count, seed=seed))
    await running.topic.request_roll()
    await until_offloaded(running.topic, last)


async def test_first_place_and_mirror_are_exchanged_and_the_topic_goes_on() -> None:
    """Policy and map; new segments begin in the new place and are copied to the old one; every entry is read there."""
    rig = rig_of(mirror=None)
    async with running(rig) as one:
        await offload(rig, one, 25)
        await offload(rig, one, 10, seed=1)
        await one.copied()
        found = await one.switch()
        assert (found.first, found.mirror, found.policy_changed, found.segments) == (AWAY_TEXT, HOME_TEXT, True, 2)
        assert await one.policy() == (*AWAY, HOME_TEXT)
        await offload(rig, one, 12, seed=2)
        await one.copied()
        assert places_of(one.topic.map.segments) == [(AWAY, HOME)] * 3
        assert [payload for _, payload in await rig.committed()] == [
            *payloads(25), *payloads(10, seed=1), *payloads(12, seed=2)
        ]  # fmt: skip
        assert rig.metrics.registry.get_sample_value("offloaderd_mirror_copies_total", {"outcome": "ok"}) == 3
        rows = await one.listed()
        assert {text: (row.role, row.segments, row.copies, row.both) for text, row in rows.items()} == {
            HOME_TEXT: ("mirror", 0, 3, 3), AWAY_TEXT: ("first", 3, 0, 3), "us/": ("", 0, 0, 0)
        }  # fmt: skip
        assert (rows[AWAY_TEXT].service, rows[AWAY_TEXT].kind, rows[AWAY_TEXT].segment_entries) == (
            "archive",
            "azure",
            47,
        )
    assert [one for one in await collected(rig) if one.verdict != "keep"] == []


async def test_a_place_that_is_named_may_be_asked_for_again() -> None:
    """The second time nothing changes; without a name the exchange is taken back."""
    rig = rig_of(mirror=None)
    async with running(rig) as one:
        await offload(rig, one, 25)
        await one.copied()
        assert (await one.switch(AWAY_TEXT)).segments == 1
        again = await one.switch(AWAY_TEXT)
        assert (again.policy_changed, again.segments_total, again.waiting, again.first) == (False, 0, 0, AWAY_TEXT)
        assert (await one.switch()).first == HOME_TEXT
        assert places_of(one.topic.map.segments) == [(HOME, AWAY)]


async def test_a_dry_run_changes_nothing() -> None:
    """It says what would be exchanged, and what still waits for its copy."""
    rig = rig_of(mirror=None)
    async with running(rig) as one:
        await offload(rig, one, 25)
        await one.copied()
        found = await one.switch(dry_run=True)
        assert (found.policy_changed, found.segments_total, found.segments, found.done) == (True, 1, 0, True)
        assert await one.policy() == (None, None, AWAY_TEXT)
        assert places_of(one.topic.map.segments) == [(HOME, AWAY)]


async def test_what_interrupts_an_exchange_is_made_good_by_the_next_call() -> None:
    """The policy is changed first; meanwhile nothing is copied anew, and nothing is garbage."""
    rig = rig_of(mirror=None)
    async with running(rig) as one:
        for seed in range(3):
            await offload(rig, one, 10, seed=seed)
        await one.copied()
        request = pb.SwitchPlacesRequest(topic=str(TOPIC))
        async with aclosing(one.service.SwitchPlaces(request, CALLER)) as progress:
            assert (await anext(progress)).segments == 1
        assert await one.policy() == (*AWAY, HOME_TEXT)
        assert places_of(one.topic.map.segments) == [(AWAY, HOME), (HOME, AWAY), (HOME, AWAY)]
        await one.copied()
        assert await collected(rig) == []
        found = await one.switch()
        assert (found.first, found.policy_changed, found.segments_total) == (AWAY_TEXT, False, 2)
        assert places_of(one.topic.map.segments) == [(AWAY, HOME)] * 3
        assert rig.metrics.registry.get_sample_value("offloaderd_mirror_copies_total", {"outcome": "ok"}) == 3


async def test_a_segment_without_its_copy_waits_for_the_next_call() -> None:
    """It stays where it is, is copied to the new first place, and then exchanged."""
    rig = await mirrored(25)
    await offload_more(rig, [10], seed=1)
    owned = await Owned.claim(rig)
    policy = (await owned.book(bucket=HOME[0], prefix=HOME[1], mirror=AWAY_TEXT).of(TOPIC)).values
    wanted = planned(owned.offloader.map.segments, policy)
    assert (len(wanted.segments), wanted.waiting) == (1, 1)
    async with aclosing(exchange(owned.offloader.record, wanted)) as done:
        assert [number async for number in done] == [1]
    rig.policy = replace(rig.policy, place=AWAY, mirror=HOME)
    owned = await Owned.claim(rig)
    async with mirroring(rig, owned):
        await until(lambda: not lag(owned))
    assert places_of(owned.offloader.map.segments) == [(AWAY, HOME), (HOME, AWAY)]
    rest = planned(owned.offloader.map.segments, replace(policy, bucket=AWAY[0], prefix=AWAY[1], mirror=HOME_TEXT))
    assert (rest.first, rest.policy_changes, len(rest.segments)) == (AWAY, False, 1)


async def test_an_owner_that_was_fenced_exchanges_nothing() -> None:
    """The map is changed under the epoch alone."""
    rig = await mirrored(25)
    late = await Owned.claim(rig)
    await Owned.claim(rig)
    [segment] = late.offloader.map.segments
    with pytest.raises(Fenced):
        await late.offloader.record.exchange_places(segment.segment_id, AWAY)
    assert places_of(await segments_of(rig)) == [(HOME, AWAY)]


async def test_what_cannot_be_exchanged_is_refused_with_the_reason() -> None:
    """A topic without a mirror, a place that is neither of the two, and a policy that changes meanwhile."""
    rig = rig_of(mirror=None)
    async with running(rig) as one:
        with pytest.raises(InvalidInput, match="neither the first place nor the mirror") as caught:
            await one.switch("us/")
        assert AWAY_TEXT in caught.value.hint
        before = await one.engine.book.of(TOPIC)
        store = one.engine.context.metadata
        node = await store.get(paths.policy(TOPIC))
        changed = TopicPolicy(enabled=True, mirror="us/")
        await store.replace(paths.policy(TOPIC), encode_policy(changed), node.version)
        with pytest.raises(Conflict, match="changed meanwhile"):
            await one.service._change_policy(TOPIC, before, OffloadPolicies(mirror=HOME_TEXT), dry_run=False)
        assert await one.policy() == (None, None, "us/")
        node = await store.get(paths.policy(TOPIC))
        await store.replace(paths.policy(TOPIC), encode_policy(TopicPolicy(enabled=True)), node.version)
        with pytest.raises(Conflict, match="no mirror"):
            await one.switch()


async def test_a_mirror_is_named_and_everything_copied_there() -> None:
    """The policy keeps its other values; a place that cannot be a mirror is refused, and a dry run changes nothing."""
    rig = rig_of(mirror=None)
    async with running(rig) as one:
        await offload(rig, one, 25)
        await one.copied()

        async def named(mirror: str, *, dry_run: bool = False) -> pb.SetMirrorResponse:
            request = pb.SetMirrorRequest(topic=str(TOPIC), mirror=mirror, dry_run=dry_run)
            return await one.service.SetMirror(request, CALLER)

        for wrong in ("elsewhere/", HOME_TEXT):
            with pytest.raises(InvalidInput):
                await named(wrong)
        assert await named("us/", dry_run=True) == pb.SetMirrorResponse(before=AWAY_TEXT, changed=True)
        assert await one.policy() == (None, None, AWAY_TEXT)
        assert (await named("us/")).changed
        listed = await one.service.ListPlaces(pb.ListPlacesRequest(topic=str(TOPIC)), CALLER)
        assert (listed.uncopied_segments, listed.uncopied_since_ms) == (
            1,
            one.topic.map.segments[0].offloaded_ms,
        )
        await one.copied()
        assert places_of(one.topic.map.segments) == [(HOME, THIRD)]
        assert not (await named("us/")).changed


async def test_what_began_elsewhere_is_moved_after_its_policy() -> None:
    """A policy that names another place leaves old segments behind; with their place as the mirror they follow."""
    rig = rig_of(mirror=None)
    async with running(rig) as one:
        await offload(rig, one, 25)
        await one.copied()
        bucket, prefix = THIRD
        await one.engine.select(of_topic(TOPIC), TopicPolicy(enabled=True, bucket=bucket, prefix=prefix, mirror=""))
        await until(lambda: one.topic.policy.place == THIRD)
        await offload(rig, one, 10, seed=1)
        assert [it.place for it in one.topic.map.segments] == [HOME, THIRD]
        await one.service.SetMirror(pb.SetMirrorRequest(topic=str(TOPIC), mirror=HOME_TEXT), CALLER)
        await one.copied()
        found = await one.switch("us/")
        assert (found.policy_changed, found.segments, found.waiting) == (False, 1, 0)
        assert places_of(one.topic.map.segments) == [(THIRD, HOME)] * 2


async def test_a_place_that_is_mirror_and_first_by_other_levels_is_told_as_the_first() -> None:
    """A move to it looks for what lies elsewhere; as the mirror it would be waited for until nothing is there."""
    rig = rig_of(mirror=None)
    async with running(rig) as one:
        await offload(rig, one, 25)
        await one.engine.select(of_topic(TOPIC), TopicPolicy(enabled=True, mirror=HOME_TEXT))
        assert {text: row.role for text, row in (await one.listed()).items()} == {
            HOME_TEXT: "first", AWAY_TEXT: "", THIRD_TEXT: ""
        }  # fmt: skip


@pytest.mark.parametrize(
    "path",
    [paths.attempt, paths.history_attempt, paths.rollback_attempt, job_attempt],
    ids=["live", "history", "rollback", "job"],
)
async def test_a_segment_that_is_being_written_elsewhere_is_told_whoever_writes_it(
    path: Callable[[TopicName], str],
) -> None:
    """Else a move would end while one of history is being written in the old place, and leave it there."""
    rig = rig_of(mirror=None)
    async with running(rig) as one:
        await offload(rig, one, 25)
        bucket, prefix = THIRD
        there = Attempt(
            segment_id=OPEN_ID,
            begin=Position(9, 0),
            assigned_ms=1,
            epoch=1,
            status=AttemptStatus.ASSIGNED,
            driver_properties={"bucket": bucket, "prefix": prefix},
        )
        await rig.tree.connect().create(path(TOPIC), attempt_record.encode(there))
        found = await one.service.ListPlaces(pb.ListPlacesRequest(topic=str(TOPIC)), CALLER)
        assert found.open_place == THIRD_TEXT


async def test_what_is_in_a_third_place_is_moved_with_the_rest() -> None:
    """Its copy in the new first place is exchanged like any other, and then it lacks one in the new mirror."""
    rig = rig_of(mirror=None)
    async with running(rig) as one:
        await offload(rig, one, 25)
        bucket, prefix = THIRD
        await one.engine.select(of_topic(TOPIC), TopicPolicy(enabled=True, bucket=bucket, prefix=prefix, mirror=""))
        await until(lambda: one.topic.policy.place == THIRD)
        await offload(rig, one, 10, seed=1)
        await one.service.SetMirror(pb.SetMirrorRequest(topic=str(TOPIC), mirror=AWAY_TEXT), CALLER)
        await one.copied()
        assert places_of(one.topic.map.segments) == [(HOME, AWAY), (THIRD, AWAY)]
        found = await one.switch(AWAY_TEXT)
        assert (found.policy_changed, found.segments, found.waiting) == (True, 2, 1)
        await one.copied()
        assert places_of(one.topic.map.segments) == [(AWAY, THIRD)] * 2
        assert (await one.switch(AWAY_TEXT)).waiting == 0
        assert len(await rig.committed()) == 35


async def test_an_interrupted_exchange_of_a_third_place_is_completed() -> None:
    """What has its copy in the first place of the policy is left of it."""
    rig = await mirrored(25)
    owned = await Owned.claim(rig)
    policy = (await owned.book(bucket=AWAY[0], prefix=AWAY[1], mirror="/".join(THIRD)).of(TOPIC)).values
    wanted = planned(owned.offloader.map.segments, policy)
    assert (wanted.first, wanted.policy_changes, len(wanted.segments)) == (AWAY, False, 1)


async def test_only_a_copy_becomes_the_first_place() -> None:
    """A segment without one, or with one elsewhere, is left alone."""
    rig = await mirrored(25)
    owned = await Owned.claim(rig)
    [segment] = owned.offloader.map.segments
    for place in (HOME, THIRD):
        steps, after = exchanged(owned.offloader.map, segment.segment_id, place)
        assert (steps, after) == ([], owned.offloader.map)


async def test_grants_are_for_the_place_in_which_the_segments_are_now() -> None:
    """They are verified again after an exchange, and the embedded store deletes by them."""
    rig = await mirrored(15)
    await offload_more(rig, (10,), seed=7)
    owned = await Owned.claim(rig)
    before = await looked(owned, mirror_required=MirrorRequired.NO, deletion_lag_s=3600.0)
    await owned.offloader.record.exchange_places(owned.offloader.map.segments[0].segment_id, AWAY)
    after = await looked(owned, mirror_required=MirrorRequired.NO, deletion_lag_s=3600.0)
    assert before[0].segments[0].objects[0].key.startswith(HOME[1])
    assert after[0].segments[0].objects[0].key.startswith(AWAY[1])
    assert after[0].is_in([AWAY])
    await looked(owned, mirror_required=MirrorRequired.NO)
    deleted_ms = (await grant_records.load_all(rig.tree.connect(), TOPIC))[0].source_deleted_ms
    assert deleted_ms
    await owned.offloader.record.exchange_places(owned.offloader.map.segments[0].segment_id, HOME)
    renewed = (await looked(owned, mirror_required=MirrorRequired.NO))[0]
    assert renewed.is_in([HOME])
    assert renewed.source_deleted_ms == deleted_ms, "it was deleted by this grant, and by nobody else"
