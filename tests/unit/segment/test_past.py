"""What manifests say of what lay before their segments: on from the segment before, whatever became of its manifest."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.model import LedgerInfo, Loss, Position, TopicName
from offloaderd.format import manifest_bytes
from offloaderd.format.manifest import Past
from offloaderd.format.pulsar.entry_time import Survey, survey
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.segment import prefix_totals as past_module
from offloaderd.segment.prefix_totals import Pasts, past_behind, past_of
from tests.unit.format.builders import Run, build_segment
from tests.unit.rigs.owned import offload_more, offloaded_topic
from tests.unit.rigs.rig import TOPIC as OWNED

if TYPE_CHECKING:
    from offloaderd.format.manifest import SegmentManifest

TOPIC = TopicName.parse("public/default/flights")


def infos(**entries: int) -> dict[int, LedgerInfo]:
    """Return what the source lists: l3=10 is ledger 3 with 10 entries."""
    return {
        int(name[1:]): LedgerInfo(ledger_id=int(name[1:]), closed=True, entries=count, size_bytes=0)
        for name, count in entries.items()
    }


def described(number: int, *runs: Run, past: Past | None) -> SegmentManifest:
    """Return the manifest of a segment."""
    return replace(build_segment(runs).manifest, segment_id=uuid.UUID(int=number), past=past)


def run(ledger_id: int, first: int, count: int) -> Run:
    """Return entries without times."""
    return Run(ledger_id, first, [b"x"] * count)


def with_times(manifest: SegmentManifest, *surveys: Survey | None) -> SegmentManifest:
    """Say of the blocks what their times are."""
    blocks = tuple(
        replace(block, survey=survey, first_publish_time=None)
        for block, survey in zip(manifest.blocks, surveys, strict=True)
    )
    return replace(manifest, blocks=blocks)


def mapped(*manifests: SegmentManifest, losses: tuple[Loss, ...] = ()) -> TopicMap:
    """Return a map of these segments."""
    segments = tuple(CommittedSegment.described(one, bucket="b", prefix="p/") for one in manifests)
    return TopicMap(TOPIC, segments, losses=losses)


FIRST = with_times(
    described(1, run(3, 5, 2), run(4, 0, 3), past=Past(5, Position(3, 5))), Survey(7, 90, 0, 3), Survey(50, 60, 1)
)


def test_a_row_goes_on() -> None:
    """Entries are counted on, the greatest time and index kept, over segments without any as well."""
    behind = past_behind(FIRST)
    assert behind == Past(10, Position(3, 5), 90, 3)
    second = with_times(described(2, run(4, 3, 1), past=behind), Survey(None, None, 1))
    assert past_behind(second) == Past(11, Position(3, 5), 90, 3)
    third = with_times(described(3, run(9, 0, 1), past=past_behind(second)), Survey(99, 99, 0, 4))
    assert past_behind(third) == Past(12, Position(3, 5), 99, 4)
    assert past_of(mapped(FIRST, second), Position(9, 0), {}, past_behind(second)) == past_behind(second)


def test_a_block_that_says_nothing_ends_the_row() -> None:
    """Entries are known all the same; times are known from the next segment on."""
    cut = with_times(FIRST, Survey(7, 90, 0, 3), None)
    assert past_behind(cut) == Past(10, Position(4, 2))
    assert past_of(mapped(cut), Position(4, 3), {}, past_behind(cut)) == Past(10, Position(4, 3))


def test_the_first_segment_counts_what_the_source_has_before_it() -> None:
    """History keeps its place, offloaded or not."""
    known = infos(l1=10, l2=0, l3=7, l4=99)
    assert past_of(mapped(), Position(3, 5), known, None) == Past(15, Position(3, 5))
    assert past_of(mapped(), Position(3, 5), {}, None) == Past(0, Position(3, 5))


def test_a_gap_begins_a_new_row() -> None:
    """What only the source has between two segments is counted; and nobody knows its times."""
    behind = past_behind(FIRST)
    known = infos(l4=6, l5=4, l8=2, l9=9)
    assert past_of(mapped(FIRST), Position(9, 1), known, behind) == Past(10 + 3 + 4 + 2 + 1, Position(9, 1))
    lost = Loss(Position(4, 2), Position(9, 0), 12)
    assert past_of(mapped(FIRST, losses=(lost,)), Position(9, 0), {}, behind) == Past(10, Position(9, 0))
    assert past_of(mapped(FIRST), Position(9, 0), infos(l4=3, l9=9), behind) == behind


def test_behind_a_segment_of_an_older_version_the_kept_entries_are_counted() -> None:
    """As far as they are known."""
    old = replace(FIRST, past=None)
    assert past_behind(old) is None
    assert past_of(mapped(old), Position(4, 3), infos(l3=7, l4=9), None) == Past(5 + 5, Position(4, 3))


def test_history_is_told_apart_from_what_comes_after_it() -> None:
    """A segment that fits in before others goes on from the one before it, not from the newest."""
    live = described(9, run(20, 0, 4), past=Past(100, Position(20, 0)))
    behind = past_behind(FIRST)
    assert past_of(mapped(FIRST, live), Position(4, 3), infos(l4=3), behind) == behind


class Bucket:
    """Objects, and which of them were asked for."""

    def __init__(self, *manifests: SegmentManifest) -> None:
        self.asked: list[str] = []
        self.objects = {f"p/{one.segment_id}-manifest": manifest_bytes.encode(one) for one in manifests}

    async def find(self, _: str, key: str) -> bytes | None:
        """Return an object if it is there."""
        self.asked.append(key)
        return self.objects.get(key)


async def test_a_manifest_is_read_once_or_not_at_all() -> None:
    """What was written is remembered, what an earlier owner wrote is read when it is needed first."""
    pasts, bucket = Pasts(), Bucket(FIRST)
    for _ in range(2):
        assert await pasts.before(mapped(FIRST), Position(4, 3), {}, bucket.find) == past_behind(FIRST)
    assert len(bucket.asked) == 1
    second = described(2, run(4, 3, 1), past=past_behind(FIRST))
    pasts.note(second)
    assert await pasts.before(mapped(FIRST, second), Position(4, 4), {}, bucket.find) == past_behind(second)
    assert await pasts.before(mapped(), Position(4, 4), {}, bucket.find) == Past(0, Position(4, 4))
    assert len(bucket.asked) == 1


@pytest.mark.parametrize("content", [None, b"", b"no manifest"])
async def test_a_manifest_that_cannot_be_read_stops_nobody(content: bytes | None) -> None:
    """The count goes on with what is kept."""
    bucket = Bucket(FIRST)
    (key,) = bucket.objects
    bucket.objects.pop(key)
    if content is not None:
        bucket.objects[key] = content
    pasts = Pasts()
    for _ in range(2):
        assert await pasts.before(mapped(FIRST), Position(4, 3), {}, bucket.find) == Past(5, Position(4, 3))
    assert len(bucket.asked) == 1


async def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The topics that were written last are kept."""
    monkeypatch.setattr(past_module, "REMEMBERED_MAX", 2)
    pasts, bucket = Pasts(), Bucket(FIRST)
    for number in (1, 2, 3):
        pasts.note(replace(FIRST, segment_id=uuid.UUID(int=number)))
    await pasts.before(mapped(FIRST), Position(4, 3), {}, bucket.find)
    assert len(bucket.asked) == 1


async def test_owners_count_on_from_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over segments, ledgers and owners the numbers go on without a gap, and the row of known times does."""
    rig = await offloaded_topic(4, 13, 5)
    read: list[str] = []
    get = rig.store.get

    async def counted(key: str, first: int = 0, length: int | None = None) -> bytes:
        read.append(key)
        return await get(key, first, length)

    before = [one.keys.manifest for one in (await catalog.load(rig.tree.connect(), OWNED)).segments]
    monkeypatch.setattr(rig.store, "get", counted)
    await offload_more(rig, [3, 20], seed=50)
    assert [key for key in read if key in before] == before[-1:], "the next owner reads one manifest, once"
    segments = (await catalog.load(rig.tree.connect(), OWNED)).segments
    manifests = [manifest_bytes.decode(await get(one.keys.manifest), key="m") for one in segments]
    counts = [one.entries for one in segments]
    assert [one.past.entries for one in manifests if one.past] == [sum(counts[:at]) for at in range(len(counts))]
    assert {one.past.since for one in manifests if one.past} == {segments[0].begin}
    assert all(block.survey == survey([b""] * block.entry_count) for one in manifests for block in one.blocks)
