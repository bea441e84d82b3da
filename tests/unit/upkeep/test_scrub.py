"""The scrub: in turn, at its rate, where it stopped, under the fence, and loud about what it finds."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pytest
from structlog.testing import capture_logs

from offloaderd.core.errors import Conflict, Denied, Fenced
from offloaderd.core.limits import ByteBudget
from offloaderd.core.model import Loss, Position
from offloaderd.format import manifest_bytes
from offloaderd.metadata import paths
from offloaderd.metadata.records import grant as grant_record
from offloaderd.metadata.records import ownership
from offloaderd.metadata.records import verified as verified_record
from offloaderd.metadata.records.verified import Cursor, SegmentVerified, Verified
from offloaderd.segment.claim.fence import Claim, Fence
from offloaderd.testing.faults import Faults, FaultyStore
from offloaderd.topic.offloader import Rest
from offloaderd.upkeep.grants.revoke_on_damage import GrantRevoker
from offloaderd.upkeep.settings import ScrubSettings
from offloaderd.upkeep.stored import Site
from offloaderd.upkeep.verify.scrub import AGAIN_S, Scrubber
from tests.patience import PATIENCE_S
from tests.unit.read.build import sample
from tests.unit.upkeep.site import BUCKET, CLUSTER, PREFIX, TOPIC, Ground, data_key, manifest_key, runs, segment_id

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from offloaderd.core.model import TopicName
    from offloaderd.format.manifest import SegmentManifest
    from offloaderd.metadata.topic_map.map import TopicMap
    from offloaderd.objects.port import ObjectInfo, ObjectReader, SegmentStore
    from offloaderd.testing.faults import Plan
    from offloaderd.topic.offloader import TopicOffloader

HOUR_S = 3600.0
WEEK_S = 7 * 24 * HOUR_S


class Owner:
    """The owner of the topic, with a real fence."""

    def __init__(self, ground: Ground, topic_map: TopicMap, version: int) -> None:
        self.topic = TOPIC
        self.map = topic_map
        self.rest = Rest()
        self.fence = Fence(ground.metadata, Claim(TOPIC, 1, version), clock=ground.clock, metrics=ground.metrics)

    @property
    def record(self) -> Owner:
        """What writes."""
        return self


@pytest.fixture
async def ground() -> Ground:
    """Three segments, committed a moment ago, each of two blocks."""
    site = Ground()
    await site.enable()
    for number in range(1, 4):
        first = 10 * number - 10
        described = await site.store(
            number, [*runs(1, first, 5), *runs(1, first + 5, 5)], sealed_ms=site.clock.wall_ms()
        )
        await site.commit(described)
    record = ownership.Epoch(epoch=1, daemon_id="me", claimed_ms=1)
    await site.metadata.create(paths.epoch(TOPIC), ownership.encode_epoch(record))
    return site


def scrubber(
    ground: Ground,
    *,
    objects: ObjectReader | None = None,
    rate: int = 10**9,
    damaged: Callable[[TopicName, Sequence[int], str], Awaitable[None]] | None = None,
) -> Scrubber:
    """Return a scrubber that is due an hour after a commit, and then every week."""
    return Scrubber(
        objects or ground.objects,
        ground.metadata,
        [Site(cluster=CLUSTER, bucket=BUCKET, prefix=PREFIX)],
        ScrubSettings.model_construct(interval_s=WEEK_S, first_after_s=HOUR_S, bytes_per_s=rate),
        clock=ground.clock,
        metrics=ground.metrics,
        damaged=damaged,
    )


@asynccontextmanager
async def scrubbing(ground: Ground, scrub: Scrubber) -> AsyncIterator[Owner]:
    """Run the duty beside the test."""
    owner = Owner(ground, await ground.map(), (await ground.metadata.get(paths.epoch(TOPIC))).version)
    async with asyncio.TaskGroup() as group:
        duty = group.create_task(scrub.run(cast("TopicOffloader", owner)))
        yield owner
        duty.cancel()


async def recorded(ground: Ground) -> Verified:
    """Return what is recorded."""
    path = paths.verified(TOPIC)
    return verified_record.decode((await ground.metadata.get(path)).value, path=path)


async def flip(ground: Ground, key: str, at: int) -> None:
    """Flip a bit."""
    info, data = await ground.objects.head(key), bytearray(await ground.objects.get(key))
    data[at] ^= 8
    await ground.objects.put(key, bytes(data), metadata=info.metadata)


def metric(ground: Ground, name: str, **labels: str) -> float:
    """Return a metric's value."""
    return sample(ground.metrics, f"offloaderd_scrub_{name}", labels)


async def test_each_segment_is_read_an_hour_after_its_commit_and_then_every_week(ground: Ground) -> None:
    """Whole, and recorded with time and level."""
    committed_ms = ground.clock.wall_ms()
    async with scrubbing(ground, scrubber(ground)):
        await ground.clock.advance(HOUR_S - 60)
        assert metric(ground, "bytes_total") == 0
        assert metric(ground, "last_complete_timestamp_seconds", topic=str(TOPIC)) == committed_ms / 1000
        await ground.clock.advance(HOUR_S)
        assert metric(ground, "objects_total", result="sound") == 9
        seen = (await recorded(ground)).segments
        assert seen.keys() == {segment_id(number) for number in (1, 2, 3)}
        for one in seen.values():
            assert (one.level, one.flaws) == ("full", 0)
            assert HOUR_S * 1000 <= one.verified_ms - committed_ms <= 2 * HOUR_S * 1000
        oldest_ms = min(one.verified_ms for one in seen.values())
        assert metric(ground, "last_complete_timestamp_seconds", topic=str(TOPIC)) == oldest_ms / 1000
        await ground.clock.advance(WEEK_S - 2 * HOUR_S)
        assert metric(ground, "objects_total", result="sound") == 9
        await ground.clock.advance(3 * HOUR_S)
        assert metric(ground, "objects_total", result="sound") == 18


async def test_what_was_verified_longest_ago_is_told(ground: Ground) -> None:
    """Until its first check a segment counts from its commit; one that was checked just now hides no other."""
    oldest_ms = ground.clock.wall_ms()
    await ground.clock.advance(600)
    later_ms = ground.clock.wall_ms()
    await ground.commit(await ground.store(4, runs(1, 30, 5), sealed_ms=later_ms))
    async with scrubbing(ground, scrubber(ground)):
        await ground.clock.advance(60)
        assert metric(ground, "last_complete_timestamp_seconds", topic=str(TOPIC)) == oldest_ms / 1000
        await ground.clock.advance(HOUR_S - 600)
        assert metric(ground, "objects_total", result="sound") == 9
        assert metric(ground, "last_complete_timestamp_seconds", topic=str(TOPIC)) == later_ms / 1000


async def test_a_flipped_bit_is_told_counted_and_recorded(ground: Ground) -> None:
    """With key, byte and entries; the sound segments beside it are as before, and a repair shows within an hour."""
    await flip(ground, data_key(2), 150)
    with capture_logs() as logs:
        async with scrubbing(ground, scrubber(ground)):
            await ground.clock.advance(1.2 * HOUR_S)
            (told,) = [one for one in logs if one["event"] == "scrub.damaged"]
            assert told["segment_id"] == str(segment_id(2))
            assert told["entries"] == "1:10 to 1:14"
            assert told["flaw"].startswith(f"{data_key(2)} at byte 0: expected a block with checksum")
            assert "restore" in told["hint"]
            assert metric(ground, "damaged_segments", topic=str(TOPIC)) == 1
            assert metric(ground, "objects_total", result="damaged") == 1
            assert sample(ground.metrics, "offloaderd_checksum_failures_total", {"where": "scrub"}) == 1
            seen = (await recorded(ground)).segments
            assert {number for number in (1, 2, 3) if seen[segment_id(number)].flaws} == {2}
            assert seen[segment_id(2)].flaw == told["flaw"]
            await flip(ground, data_key(2), 150)
            await ground.clock.advance(AGAIN_S + 600)
            assert metric(ground, "damaged_segments", topic=str(TOPIC)) == 0
            await ground.clock.advance(60)
            assert (await recorded(ground)).segments[segment_id(2)].flaws == 0


async def test_damage_is_recorded_before_the_next_segment_is_read(ground: Ground) -> None:
    """A daemon that ends in the middle of a large one leaves what it has found to the next."""

    class Endless(FaultyStore):
        """Never gives the second segment's data."""

        async def get(self, key: str, first: int = 0, length: int | None = None) -> bytes:
            """Wait."""
            if key == data_key(2):
                await asyncio.Event().wait()
            return await ground.objects.get(key, first, length)

    await flip(ground, data_key(1), 150)
    async with scrubbing(ground, scrubber(ground, objects=Endless(ground.objects, Faults()))):
        await ground.clock.advance(1.2 * HOUR_S)
        assert (await recorded(ground)).segments[segment_id(1)].flaws == 1


async def test_a_bit_that_flips_on_its_way_is_no_damage(ground: Ground) -> None:
    """What is seen once and not again is not told; the store has the right bytes."""

    class Flaky(FaultyStore):
        """Gives a wrong byte the first time that it is asked for a piece of data."""

        wrong = 1

        async def get(self, key: str, first: int = 0, length: int | None = None) -> bytes:
            """Return what is stored, nearly."""
            data = await super().get(key, first, length)
            if length is not None and self.wrong:
                self.wrong -= 1
                return bytes([data[0] ^ 1]) + data[1:]
            return data

    with capture_logs() as logs:
        async with scrubbing(ground, scrubber(ground, objects=Flaky(ground.objects, Faults()))):
            await ground.clock.advance(1.2 * HOUR_S)
    assert not [one for one in logs if one["event"] == "scrub.damaged"]
    assert metric(ground, "objects_total", result="sound") == 9


@pytest.mark.parametrize("key", [data_key(2), manifest_key(2)])
async def test_a_missing_object_is_told(ground: Ground, key: str) -> None:
    """As a flaw of its segment."""
    await ground.objects.delete([key])
    async with scrubbing(ground, scrubber(ground)):
        await ground.clock.advance(1.2 * HOUR_S)
        seen = (await recorded(ground)).segments[segment_id(2)]
    assert seen.flaws == 1
    assert seen.flaw.startswith(f"{key}: no such object")


async def test_damage_keeps_the_source_from_deleting(ground: Ground) -> None:
    """The grant of each ledger in the segment is taken back, or forbidden beforehand; labels are no reason."""
    keeper = GrantRevoker(ground.metadata, ground.objects, ground.clock, ground.metrics)
    async with scrubbing(ground, scrubber(ground, damaged=keeper.keep)):
        await ground.objects.put(data_key(1), await ground.objects.get(data_key(1)))
        await ground.clock.advance(1.2 * HOUR_S)
        assert await ground.metadata.children(paths.grants(TOPIC)) == []
        await flip(ground, data_key(2), 150)
        await ground.clock.advance(WEEK_S + HOUR_S)
        path = paths.grant(TOPIC, 1)
        grant = grant_record.decode((await ground.metadata.get(path)).value, path=path)
        assert grant.revoked_ms
        assert "the scrub found its copy damaged" in grant.revoked_reason
        assert not grant.allows(2**60)


async def test_a_loss_that_the_manifest_lacks_is_told(ground: Ground) -> None:
    """A rebuild would not know of it; the entries are sound, so the source may delete them."""
    last_answer: list[Sequence[int]] = []

    async def damaged(topic: TopicName, ledger_ids: Sequence[int], reason: str) -> None:
        last_answer.append(ledger_ids)

    async with scrubbing(ground, scrubber(ground, damaged=damaged)) as owner:
        owner.map = owner.map.with_loss(Loss(after=Position(1, 9), before=Position(1, 10), entries=1, noticed_ms=1))[1]
        await ground.clock.advance(1.2 * HOUR_S)
        seen = (await recorded(ground)).segments
    assert [(one.flaws, "the loss between 1:9 and 1:10" in one.flaw) for one in seen.values()] == [
        (0, False),
        (1, True),
        (0, False),
    ]
    assert last_answer == []


async def test_the_next_owner_goes_on_where_the_last_one_stopped(ground: Ground) -> None:
    """In the middle of a segment, and at the segment that is next; nothing is read twice."""
    await ground.metadata.create(
        paths.verified(TOPIC),
        verified_record.encode(
            Verified(
                {segment_id(1): SegmentVerified(verified_ms=ground.clock.wall_ms() + 1000, level="full")},
                Cursor(segment_id(2), 1),
            )
        ),
    )
    await ground.clock.advance(2)
    store = Recording(ground.objects, Faults())
    async with scrubbing(ground, scrubber(ground, objects=store)):
        await ground.clock.advance(60)
        ((key, first),) = store.pieces
        assert key == data_key(2)
        blocks = (await described(ground, 2)).blocks
        assert first == blocks[1].offset > 0
        await ground.clock.advance(HOUR_S + 900)
        assert (await recorded(ground)).segments.keys() == {segment_id(number) for number in (1, 2, 3)}
        assert store.pieces[1:] == [(data_key(3), 0)]


async def test_a_cursor_in_a_segment_that_is_gone_skips_nothing_of_another_one(ground: Ground) -> None:
    """Retention took the segment that was being read: the next one is read from its first block, damage found."""
    cursor = Cursor(segment_id(9), 1)
    await ground.metadata.create(paths.verified(TOPIC), verified_record.encode(Verified({}, cursor)))
    await flip(ground, data_key(1), (await described(ground, 1)).blocks[0].offset + 20)
    async with scrubbing(ground, scrubber(ground)):
        await ground.clock.advance(1.2 * HOUR_S)
        assert (await recorded(ground)).segments[segment_id(1)].flaws == 1


async def described(ground: Ground, number: int) -> SegmentManifest:
    """Return a segment's manifest."""
    return manifest_bytes.decode(await ground.objects.get(manifest_key(number)), key="k")


class Recording(FaultyStore):
    """Keeps which pieces of data objects were asked for."""

    def __init__(self, store: SegmentStore, plan: Plan) -> None:
        super().__init__(store, plan)
        self.pieces: list[tuple[str, int]] = []

    async def get(self, key: str, first: int = 0, length: int | None = None) -> bytes:
        """Answer as ever."""
        if length is not None and not key.endswith(("-index", "-manifest")):
            self.pieces.append((key, first))
        return await super().get(key, first, length)


async def test_what_is_in_memory_is_in_the_budget(ground: Ground) -> None:
    """A piece is asked for only when there is room for it, and given back when it was looked at."""
    budget = ByteBudget(1000)
    await budget.acquire(900)
    store = Recording(ground.objects, Faults())
    scrub = Scrubber(
        store,
        ground.metadata,
        [Site(cluster=CLUSTER, bucket=BUCKET, prefix=PREFIX)],
        ScrubSettings.model_construct(interval_s=WEEK_S, first_after_s=0, bytes_per_s=10**9),
        clock=ground.clock,
        metrics=ground.metrics,
        budget=budget,
    )
    async with scrubbing(ground, scrub):
        await ground.clock.advance(60)
        assert store.pieces == []
        budget.release(900)
        await ground.clock.advance(60)
        assert len(store.pieces) == 3
        assert budget.used == 0


async def test_the_rate_is_kept(ground: Ground) -> None:
    """All that is read, whatever it is, is at most so many bytes a second."""
    async with scrubbing(ground, scrubber(ground, rate=1)):
        await ground.clock.advance(HOUR_S)
        before = metric(ground, "bytes_total")
        await ground.clock.advance(HOUR_S)
        assert 1500 < metric(ground, "bytes_total") - before <= HOUR_S + 1000


async def test_another_rate_holds_from_the_next_request_on(ground: Ground) -> None:
    """A reload of the settings slows down what is under way."""
    scrub = scrubber(ground)
    scrub.follow(ScrubSettings.model_construct(interval_s=WEEK_S, first_after_s=HOUR_S, bytes_per_s=1))
    async with scrubbing(ground, scrub):
        await ground.clock.advance(HOUR_S)
        before = metric(ground, "bytes_total")
        await ground.clock.advance(HOUR_S)
        assert 1500 < metric(ground, "bytes_total") - before <= HOUR_S + 1000


async def test_a_segment_that_is_deleted_meanwhile_is_no_damage(ground: Ground) -> None:
    """Its objects are gone, and so is it."""

    class Falling(FaultyStore):
        """Takes the first segment out of the map when its data is looked for."""

        async def head(self, key: str) -> ObjectInfo:
            """Answer as ever."""
            if key == data_key(1):
                owner.map = replace(owner.map, segments=owner.map.segments[-2:])
            return await super().head(key)

    await ground.objects.delete([data_key(1), manifest_key(1)])
    async with scrubbing(ground, scrubber(ground, objects=Falling(ground.objects, Faults()))) as owner:
        await ground.clock.advance(2 * HOUR_S)
        assert metric(ground, "damaged_segments", topic=str(TOPIC)) == 0
        assert metric(ground, "objects_total", result="damaged") == 0
        assert (await recorded(ground)).segments.keys() == {segment_id(2), segment_id(3)}


async def test_a_deposed_owner_records_nothing(ground: Ground) -> None:
    """Its look ends in Fenced, as all of its writes do."""
    owner = Owner(ground, await ground.map(), 0)
    node = await ground.metadata.get(paths.epoch(TOPIC))
    await ground.metadata.replace(paths.epoch(TOPIC), node.value, node.version)
    duty = asyncio.ensure_future(scrubber(ground).run(cast("TopicOffloader", owner)))  # noqa: TID251 - its error is looked at
    await ground.clock.advance(2 * HOUR_S)
    with pytest.raises(Fenced):
        await asyncio.wait_for(duty, PATIENCE_S)
    with pytest.raises(Conflict):
        await ground.metadata.create(paths.policy(TOPIC), b"")
    assert "verified" not in await ground.metadata.children(paths.topic(TOPIC))


async def test_a_store_that_does_not_answer_is_asked_again_later(ground: Ground) -> None:
    """Not a finding, and no end of the duty."""
    faults = Faults()
    faults.fail("get", Denied("no right"), times=2)
    async with scrubbing(ground, scrubber(ground, objects=FaultyStore(ground.objects, faults))):
        await ground.clock.advance(1.3 * HOUR_S)
        assert metric(ground, "objects_total", result="unreachable") == 2
        assert metric(ground, "objects_total", result="sound") == 9


async def test_a_record_that_cannot_be_read_begins_anew(ground: Ground) -> None:
    """It only says when to look again."""
    await ground.metadata.create(paths.verified(TOPIC), b"\xff")
    async with scrubbing(ground, scrubber(ground)):
        await ground.clock.advance(1.2 * HOUR_S)
        assert len((await recorded(ground)).segments) == 3


async def test_a_record_that_another_process_has_written_is_read_again(ground: Ground) -> None:
    """By the version of before nothing would be recorded any more."""
    async with scrubbing(ground, scrubber(ground)):
        await ground.clock.advance(1.2 * HOUR_S)
        node = await ground.metadata.get(paths.verified(TOPIC))
        await ground.metadata.replace(paths.verified(TOPIC), node.value, node.version)
        written_ms = ground.clock.wall_ms()
        await ground.clock.advance(WEEK_S + HOUR_S)
        seen = (await recorded(ground)).segments.values()
        assert [one.verified_ms > written_ms for one in seen] == [True] * 3


async def test_what_is_off_does_nothing(ground: Ground) -> None:
    """And ends."""
    site = Site(cluster=CLUSTER, bucket=BUCKET, prefix=PREFIX)
    options = ScrubSettings.model_construct(interval_s=1, first_after_s=0, bytes_per_s=1, enabled=False)
    idle = Scrubber(ground.objects, ground.metadata, [site], options, clock=ground.clock, metrics=ground.metrics)
    await idle.run(cast("TopicOffloader", Owner(ground, await ground.map(), 0)))
