"""Readers fall back to the mirror: missing, denied, unreachable or damaged objects are read from the other place."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from offloaderd.core.errors import Archived, BucketMissing, CorruptData, Denied, NotFound, OffloaderError, Transient
from offloaderd.core.retry import RetryPolicy
from offloaderd.read.places import AWAY_S
from offloaderd.read.segments import SegmentOptions, SegmentReader
from tests.unit.rigs.rig import TOPIC, Rig, payloads
from tests.unit.upkeep.test_mirror import AWAY, HOME, breaking, buckets_of, mended
from tests.unit.upkeep.test_mirrored import damage, mirrored, segments_of

if TYPE_CHECKING:
    from offloaderd.core.model import TopicName
    from offloaderd.metadata.committed import CommittedSegment

OPTIONS = SegmentOptions(retry=RetryPolicy(tries_max=2, patience_s=5.0, pause_s=1.0, pause_max_s=1.0))


class Reading:
    """A reader of a rig's buckets, and what it has told of damage."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.told: list[tuple[tuple[str, str], OffloaderError]] = []
        self.reader = SegmentReader(rig.store, clock=rig.clock, metrics=rig.metrics, options=OPTIONS)
        self.reader.damaged = self._damaged

    def _damaged(self, _: TopicName, segment: CommittedSegment, error: OffloaderError) -> None:
        self.told.append((segment.place, error))

    async def all(self) -> list[bytes]:
        """Read every entry."""
        found: list[bytes] = []
        async with self.reader:
            for segment in await segments_of(self.rig):
                async with aclosing(self.reader.read(TOPIC, segment, segment.begin, segment.end)) as batches:
                    async for batch in batches:
                        found += batch.payloads
        return found

    def fallbacks(self, reason: str) -> float:
        """Return how often the mirror was read for a reason."""
        return self.rig.metrics.registry.get_sample_value("offloaderd_read_fallbacks_total", {"reason": reason}) or 0


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Transient("gone"), "unreachable"),
        (BucketMissing("no such bucket"), "unreachable"),
        (Denied("no"), "denied"),
        (NotFound("none"), "missing"),
    ],
)
async def test_what_one_place_does_not_give_is_read_from_the_other(error: OffloaderError, reason: str) -> None:
    """Every entry is the one that was written; a place that does not answer is asked once, and not for every block."""
    rig = await mirrored(150, 150)
    asked: list[str] = []

    def plan(operation: str, key: str, when: str) -> None:
        asked.append(key)
        raise error

    breaking(rig, HOME[0], plan)
    reading = Reading(rig)
    with capture_logs() as logs:
        assert await reading.all() == [*payloads(150), *payloads(150, seed=1)]
    assert reading.fallbacks(reason) > 0
    events = [one["segment_id"] for one in logs if one["event"] == "segment.read_elsewhere"]
    assert len(events) == len(set(events)) > 0
    if reason != "missing":
        assert len(set(asked)) <= 2
        assert reading.told == []


@pytest.mark.parametrize("place", [HOME, AWAY])
async def test_a_damaged_block_is_read_from_the_other_place_and_reported(place: tuple[str, str]) -> None:
    """Whichever place is damaged; the other blocks come from the first place."""
    rig = await mirrored(150)
    [segment] = await segments_of(rig)
    await damage(rig, next(one for one in segment.each_place if one.place == place))
    reading = Reading(rig)
    assert await reading.all() == payloads(150)
    assert reading.fallbacks("damaged") == (1 if place == HOME else 0)
    assert [one for one, _ in reading.told] == ([HOME] if place == HOME else [])


async def test_damage_is_reported_at_each_read_and_logged_once() -> None:
    """A grant that an operator allows before the repair is revoked again."""
    rig = await mirrored(150)
    [segment] = await segments_of(rig)
    reading = Reading(rig)
    with capture_logs() as logs:
        for error in (NotFound("none"), NotFound("none"), CorruptData(key="k", offset=0, expected=1, found=2)):
            reading.reader.places.passed_on(TOPIC, segment, error)
    assert [one for one, _ in reading.told] == [HOME] * 3
    assert [one["reason"] for one in logs] == ["missing", "damaged"]


async def test_a_damaged_manifest_is_read_from_the_other_place() -> None:
    """The tables of a segment are as those of its copy."""
    rig = await mirrored(150)
    [segment] = await segments_of(rig)
    await buckets_of(rig).at(HOME[0]).put(segment.keys.manifest, b"\0" * 200)
    reading = Reading(rig)
    assert await reading.all() == payloads(150)
    assert [one for one, _ in reading.told] == [HOME]


async def test_one_entry_is_read_from_the_other_place() -> None:
    """By the chunks of its block, of which no other reader has asked."""
    rig = await mirrored(150)
    [segment] = await segments_of(rig)
    await buckets_of(rig).at(HOME[0]).delete([segment.keys.data])
    reading = Reading(rig)
    async with reading.reader as reader, reader.table(TOPIC, segment) as table:
        found, _ = await reader.entry(table, segment.begin)
    assert found == payloads(150)[0]
    assert reading.fallbacks("missing") == 1


async def test_damage_in_both_places_is_an_error() -> None:
    """Nothing that differs from what was written is handed out."""
    rig = await mirrored(150)
    [segment] = await segments_of(rig)
    for one in segment.each_place:
        await damage(rig, one)
    with pytest.raises(CorruptData):
        await Reading(rig).all()


async def test_damage_in_one_place_and_none_in_a_place_that_is_away_may_pass() -> None:
    """The caller is told to try again: the other place may have it."""
    rig = await mirrored(150)
    [segment] = await segments_of(rig)
    await damage(rig, segment)

    def plan(operation: str, key: str, when: str) -> None:
        raise Transient("gone")

    breaking(rig, AWAY[0], plan)
    with pytest.raises(Transient):
        await Reading(rig).all()
    mended(rig)
    assert await Reading(rig).all() == payloads(150)


async def test_a_mirror_that_left_the_settings_is_no_place() -> None:
    """The error of the segment's own place is that of the read."""
    rig = await mirrored(10)
    [segment] = await segments_of(rig)
    await buckets_of(rig).at(HOME[0]).delete([segment.keys.data])

    def plan(operation: str, key: str, when: str) -> None:
        raise BucketMissing("no such bucket")

    breaking(rig, AWAY[0], plan)
    with pytest.raises(NotFound, match=str(segment.segment_id)):
        await Reading(rig).all()


async def test_damage_is_reported_after_the_place_was_away() -> None:
    """That a segment was read elsewhere for another reason does not keep the scrub from being told."""
    rig = await mirrored(150)
    [segment] = await segments_of(rig)
    reading = Reading(rig)

    def plan(operation: str, key: str, when: str) -> None:
        raise Transient("gone")

    async with reading.reader as reader:
        breaking(rig, HOME[0], plan)
        async with reader.table(TOPIC, segment) as table:
            await reader.block(table, 0)
        mended(rig)
        await rig.clock.sleep(AWAY_S)
        await damage(rig, segment)
        async with reader.table(TOPIC, segment) as table:
            for number in range(1, len(table.manifest.blocks)):
                await reader.block(table, number)
    assert [one for one, _ in reading.told] == [HOME]


async def test_an_archived_object_does_not_turn_readers_away_from_its_bucket() -> None:
    """The others of the same bucket are read there."""
    rig = await mirrored(150, 150)
    first, second = await segments_of(rig)
    asked: list[str] = []

    def plan(operation: str, key: str, when: str) -> None:
        asked.append(key)
        if key == first.keys.data:
            raise Archived("it is in an archive")

    breaking(rig, HOME[0], plan)
    reading = Reading(rig)
    assert await reading.all() == [*payloads(150), *payloads(150, seed=1)]
    assert second.keys.data in asked
    assert reading.told == []
