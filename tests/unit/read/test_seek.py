"""Seeking over all tiers, against looking at every entry."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offloaderd.core.errors import CorruptData, IdentityRefused, InvalidInput, NotFound, TopicNotFound, Transient
from offloaderd.core.model import EntryBatch, Position
from offloaderd.core.read_options import Goal, SeekKind, Tier
from offloaderd.format import manifest_bytes
from offloaderd.format.manifest import Past
from offloaderd.format.pulsar.entry_time import EntryTime
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.objects import keys
from offloaderd.objects.checks import cut
from offloaderd.read.search import BLANK_MAX, Answered, first_true, key_of
from offloaderd.read.seek import Unseekable, seek
from offloaderd.segment.prefix_totals import past_behind, past_of
from offloaderd.testing.memory.objects import MemoryStore
from tests.unit.read.build import PREFIX, TOPIC, FastClock, Piece, make_read_rig, put_segment, sample
from tests.unit.read.seek_topics import (
    NOW,
    Entry,
    Topic,
    expected,
    furnish,
    goals,
    manifest_of,
    message,
    noted,
    pieces_of,
    topics,
)
from tests.unit.read.shelf import Shelf
from tests.virtual import virtually

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from offloaderd.core.model import TopicName
    from offloaderd.objects.port import ObjectInfo
    from tests.unit.read.build import ReadRig


async def check(topic: Topic, kinds: Sequence[SeekKind]) -> None:
    """Compare every seek with a look at every entry."""
    rig = await furnish(topic)
    async with rig.reader:
        for kind in kinds:
            for goal in goals(topic, kind):
                try:
                    found = await seek(rig.reader, TOPIC, goal)
                except Unseekable:
                    assert all(key_of(goal, one.payload) is None for one in topic.kept()), goal
                    continue
                hit = (found.hit.position, found.hit.time) if found.hit is not None else None
                assert hit == expected(topic, goal), goal
                last = topic.kept()[-1].position
                assert found.behind == Position(last.ledger_id, last.entry_id + 1)


COMMON = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


@COMMON
@given(topics(orderly=True, old=True))
def test_what_is_found_is_what_a_look_at_every_entry_finds(topic: Topic) -> None:
    """By time and index, in topics of all tiers, with and without PIP-70, of old and new manifests, partly deleted."""
    virtually(check(topic, [SeekKind.TIME, SeekKind.INDEX]))


@COMMON
@given(topics(orderly=True, old=False))
def test_numbers_go_on_through_ledgers_tiers_and_deletions(topic: Topic) -> None:
    """The sequence number of an entry is its place among all that there ever were."""
    virtually(check(topic, [SeekKind.SEQUENCE]))


@COMMON
@given(topics(orderly=False, old=False))
def test_any_disorder_is_searched_where_manifests_tell_of_it(topic: Topic) -> None:
    """Segments are searched exactly however wrong clocks were: only what nobody has surveyed needs some order."""
    count = len(topic.entries)
    cuts = sorted({0, *topic.cuts, count})
    old = [False] * (len(cuts) - 1)
    removed = min(topic.removed, len(old) - 1)
    stored = replace(topic, cuts=cuts, old=old, removed=removed, trimmed=count, hot=count, unlisted=count)
    virtually(check(stored, [SeekKind.TIME, SeekKind.INDEX, SeekKind.SEQUENCE]))


async def test_a_clock_that_was_wrong_for_a_moment_misleads_no_search_of_segments() -> None:
    """The first entry that is not older is far before those that are."""
    rig = make_read_rig()
    behind: Past | None = None
    for number, times in enumerate([[10, 90], [50], [60, 20], [95]]):
        past = past_of(TopicMap(TOPIC, tuple(rig.map.segments)), Position(number, 0), {}, behind)
        pieces = [Piece(number, 0, [message(time) for time in times])]
        segment_id = uuid.UUID(int=number + 1)
        rig.map.segments.append(await put_segment(rig.store, pieces, segment_id=segment_id, surveyed=True, past=past))
        behind = past_behind(await manifest_of(rig, segment_id))
    async with rig.reader:
        for time, position in ((11, (0, 1)), (80, (0, 1)), (91, (3, 0)), (10, (0, 0))):
            assert await found_at(rig, SeekKind.TIME, time) == (Position(*position), True)


async def test_ledgers_that_have_left_a_segment_are_not_found_in_it() -> None:
    """The manifest still has their blocks, the map does not: rewritten, or deleted, they are nobody's to read here."""
    rig = make_read_rig()
    pieces = [Piece(number, 0, [message(time) for time in times]) for number, times in ((1, [10, 30]), (2, [20, 40]))]
    past = past_of(TopicMap(TOPIC, ()), Position(1, 0), {}, None)
    whole = await put_segment(rig.store, pieces, segment_id=uuid.UUID(int=1), surveyed=True, past=past)
    async with rig.reader:
        rig.map.segments = [whole]
        assert await found_at(rig, SeekKind.TIME, 25) == (Position(1, 1), True)
        rig.map.segments = [replace(whole, slices=whole.slices[1:])]
        assert await found_at(rig, SeekKind.TIME, 5) == (Position(2, 0), True)
        assert await found_at(rig, SeekKind.TIME, 25) == (Position(2, 1), True)


async def test_slight_disorder_misleads_no_search_of_the_source() -> None:
    """An entry that is a little older than one before it does not hide that."""
    shelf = Shelf()
    shelf.put(1, [message(NOW + time) for time in (1000, 3000, 2000, 2000, 2000, 1500)])
    rig = make_read_rig(source=shelf)
    async with rig.reader:
        assert await found_at(rig, SeekKind.TIME, NOW + 2500) == (Position(1, 1), True)
        assert await found_at(rig, SeekKind.TIME, NOW + 3001) == (Position(1, 6), False)


class CountingReader:
    """The objects of a store, and which ranges of which of them were read."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.reads: list[tuple[str, int | None]] = []

    def at(self, bucket: str) -> CountingReader:
        """See ObjectReader."""
        return self

    async def get(self, key: str, first: int = 0, length: int | None = None) -> bytes:
        """See ObjectReader."""
        self.reads.append((key, length))
        return await self._store.get(key, first, length)

    async def get_pieces(self, key: str, first: int, lengths: Sequence[int]) -> Sequence[bytes]:
        """See ObjectReader."""
        return cut(await self.get(key, first, sum(lengths)), lengths)

    def data(self) -> list[int | None]:
        """Return the lengths that were read of data objects, and forget everything."""
        found = [length for key, length in self.reads if not key.endswith(("-index", "-manifest"))]
        self.reads.clear()
        return found

    async def head(self, key: str) -> ObjectInfo:
        """See ObjectReader."""
        return await self._store.head(key)

    def list(self, prefix: str = "") -> AsyncGenerator[ObjectInfo, None]:
        """See ObjectReader."""
        return self._store.list(prefix)


async def stored_topic(
    segments: int, *, entries: int = 30, surveyed: bool = True
) -> tuple[ReadRig, CountingReader, list[Entry]]:
    """Return a topic of one ledger a segment, an entry every 10 ms, ten of them a block; every second ledger PIP-70."""
    store = MemoryStore(FastClock())
    counting = CountingReader(store)
    rig = make_read_rig(objects=counting, store=store)
    found: list[Entry] = []
    behind: Past | None = None
    for number in range(segments):
        begin = len(found)
        for entry_id in range(entries):
            time = NOW + 10 * len(found)
            payload = noted(time, len(found)) if number % 2 else message(time)
            found.append(Entry(Position(number + 1, entry_id), payload, len(found)))
        past = past_of(TopicMap(TOPIC, tuple(rig.map.segments)), found[begin].position, {}, behind)
        segment = await put_segment(
            store,
            pieces_of(found[begin:]),
            segment_id=uuid.UUID(int=number + 1),
            block_entries=10,
            surveyed=surveyed,
            past=past if surveyed else None,
        )
        rig.map.segments.append(replace(segment, offloaded_ms=NOW + 10 * len(found)))
        behind = past_behind(await manifest_of(rig, segment.segment_id))
    return rig, counting, found


@pytest.mark.parametrize("kind", SeekKind)
async def test_one_small_get_at_most_beyond_the_manifests(kind: SeekKind) -> None:
    """A seek reads one block of one segment or nothing, and no more than a few manifests of many segments."""
    rig, counting, entries = await stored_topic(40)
    for entry in entries[::7]:
        key = entry.number if kind is SeekKind.SEQUENCE else key_of(Goal(kind, 0), entry.payload)
        if key is None:
            continue
        cold = make_read_rig(objects=counting, store=rig.store)
        cold.map.segments = rig.map.segments
        async with cold.reader:
            found = await seek(cold.reader, TOPIC, Goal(kind, key))
            assert found.hit is not None
            assert (found.hit.position, found.hit.sequence) == (entry.position, entry.number)
            assert len(counting.reads) == 2 * found.cost.tables + found.cost.gets
            gets = counting.data()
            assert sum(filter(None, gets)) == found.cost.get_bytes <= 10 * 100 + 200
            assert len(gets) == found.cost.gets == found.cost.blocks <= 1
            assert found.cost.tables <= (3 if kind is SeekKind.TIME else 13)
            first_of_block = entry.position.entry_id % 10 == 0 and kind is not SeekKind.SEQUENCE
            assert found.cost.answered is (Answered.MANIFEST if first_of_block else Answered.BLOCK)
            again = await seek(cold.reader, TOPIC, Goal(kind, key))
            assert again.hit == found.hit
            assert counting.reads == [], "tables and block are in memory now"


async def found_at(rig: ReadRig, kind: SeekKind, value: int) -> tuple[Position | None, bool]:
    """Return where to read on, and whether an entry is there."""
    found = await seek(rig.reader, TOPIC, Goal(kind, value))
    return found.begin, found.hit is not None


async def three_tiers(*, closed: bool = False) -> tuple[ReadRig, Shelf]:
    """Return a topic of six entries, 10 ms apart: two in the bucket, two in the source, two in the buffer."""
    shelf = Shelf()
    shelf.put(3, [noted(NOW + 10 * number, 2 * number) for number in range(4)], closed=closed)
    rig = make_read_rig(source=shelf)
    pieces = [Piece(3, 0, [noted(NOW, 0), noted(NOW + 10, 2)])]
    past = past_of(TopicMap(TOPIC), Position(3, 0), {}, None)
    rig.map.segments = [await put_segment(rig.store, pieces, segment_id=uuid.UUID(int=1), surveyed=True, past=past)]
    rig.hot.add(EntryBatch(3, 4, [noted(NOW + 40, 8), noted(NOW + 50, 10)]), Position(3, 3))
    return rig, shelf


async def test_each_tier_answers_for_what_it_has() -> None:
    """Manifest, source and buffer, and both ends of the topic."""
    rig, _ = await three_tiers()
    async with rig.reader:
        for number, tier in enumerate([Tier.OBJECTS, Tier.OBJECTS, Tier.SOURCE, Tier.SOURCE, Tier.BUFFER, Tier.BUFFER]):
            for kind, value in (
                (SeekKind.TIME, NOW + 10 * number),
                (SeekKind.INDEX, 2 * number),
                (SeekKind.SEQUENCE, number),
            ):
                hit = (await seek(rig.reader, TOPIC, Goal(kind, value))).hit
                assert hit is not None
                assert (hit.position, hit.tier) == (Position(3, number), tier)
                assert hit.time == EntryTime(NOW + 10 * number, 2 * number)
        for kind in SeekKind:
            assert await found_at(rig, kind, 0) == (Position(3, 0), True)
            assert await found_at(rig, kind, NOW + 51) == (Position(3, 6), False)
        assert await found_at(rig, SeekKind.INDEX, 3) == (Position(3, 2), True)
    outcomes = {
        outcome: sum(
            sample(rig.metrics, "offloaderd_seeks_total", {"kind": kind.value, "outcome": outcome}) for kind in SeekKind
        )
        for outcome in ("manifest", "block", "scan", "nothing", "error")
    }
    assert outcomes["nothing"] == 3
    assert outcomes["error"] == 0
    assert min(outcomes["manifest"], outcomes["block"], outcomes["scan"]) > 0
    assert sample(rig.metrics, "offloaderd_seek_bytes_total", {"source": "source"}) > 0
    assert sample(rig.metrics, "offloaderd_seek_bytes_total", {"source": "objects"}) > 0


async def test_a_topic_without_entries_has_no_position() -> None:
    """One that is known and empty is no error, one that nobody knows is."""
    rig = make_read_rig()
    rig.map.enabled = True
    async with rig.reader:
        for kind in SeekKind:
            assert await found_at(rig, kind, 0) == (None, False)
        rig.map.enabled = False
        with pytest.raises(TopicNotFound):
            await seek(rig.reader, TOPIC, Goal(SeekKind.TIME, 0))


@pytest.mark.parametrize("value", [-1, 2**64])
async def test_a_number_that_cannot_be_one_is_refused(value: int) -> None:
    """Before anything is looked at."""
    rig = make_read_rig()
    async with rig.reader:
        with pytest.raises(InvalidInput, match="cannot seek"):
            await seek(rig.reader, TOPIC, Goal(SeekKind.INDEX, value))
    assert rig.map.looks == 0


async def test_the_source_stands_in_for_a_segment_that_cannot_be_read() -> None:
    """A missing manifest, or a damaged block, costs a look at the source; without the entries there it is an error."""
    rig, shelf = await three_tiers()
    key = keys.SegmentKeys(PREFIX, uuid.UUID(int=1))
    manifest = await rig.store.get(key.manifest)
    data = bytearray(await rig.store.get(key.data))
    for part in rig.map.segments[0].slices:  # the source has not one entry more of its ledgers
        shelf.ledgers_by_id[part.ledger_id] = shelf.ledgers_by_id[part.ledger_id][: part.last_entry_id + 1]
    async with rig.reader:
        await rig.store.delete([key.manifest])
        found = await seek(rig.reader, TOPIC, Goal(SeekKind.TIME, NOW + 5))
        assert found.hit is not None
        assert (found.hit.position, found.hit.tier) == (Position(3, 1), Tier.SOURCE)
        await rig.store.put(key.manifest, manifest)
        data[-30] ^= 1
        await rig.store.put(key.data, bytes(data))
        assert await found_at(rig, SeekKind.TIME, NOW + 5) == (Position(3, 1), True)
        shelf.ledgers_by_id[3] = shelf.ledgers_by_id[3][:1]
        with pytest.raises(CorruptData):
            await seek(rig.reader, TOPIC, Goal(SeekKind.TIME, NOW + 5))
        await rig.store.delete([key.data])
        with pytest.raises(NotFound):
            await seek(rig.reader, TOPIC, Goal(SeekKind.TIME, NOW + 5))
    assert sample(rig.metrics, "offloaderd_seeks_total", {"kind": "time", "outcome": "error"}) == 2


async def test_what_the_buffer_cannot_join_on_is_not_readable_yet() -> None:
    """Nobody can say what lies between: to answer with a later entry, or with nothing, would be wrong."""
    rig, _ = await three_tiers()
    rig.hot.clear()
    rig.hot.add(EntryBatch(3, 5, [noted(NOW + 50, 10)]))
    async with rig.reader:
        assert await found_at(rig, SeekKind.TIME, NOW + 30) == (Position(3, 3), True)
        for kind in SeekKind:
            with pytest.raises(Transient, match="not readable yet"):
                await seek(rig.reader, TOPIC, Goal(kind, NOW + 50))


async def test_a_source_that_stumbles_is_asked_again_and_one_that_rots_is_an_error() -> None:
    """As everywhere in reading."""
    rig, shelf = await three_tiers()
    async with rig.reader:
        shelf.stumbles = 2
        assert await found_at(rig, SeekKind.TIME, NOW + 30) == (Position(3, 3), True)
        shelf.rotten = {(3, 2)}
        with pytest.raises(CorruptData, match="ledger 3"):
            await seek(rig.reader, TOPIC, Goal(SeekKind.TIME, NOW + 30))


async def test_without_the_source_what_is_offloaded_is_found() -> None:
    """If it is all that there was up to there: else the source may have an earlier answer, or the only one."""
    rig, shelf = await three_tiers()
    async with rig.reader:
        shelf.stumbles = 10**6
        assert await found_at(rig, SeekKind.TIME, NOW + 10) == (Position(3, 1), True)
        assert await found_at(rig, SeekKind.SEQUENCE, 1) == (Position(3, 1), True)
        with pytest.raises(Transient, match="cannot be read"):
            await seek(rig.reader, TOPIC, Goal(SeekKind.TIME, NOW + 30))
        (whole,) = rig.map.segments
        manifest = await manifest_of(rig, whole.segment_id)
        later = replace(manifest, past=Past(7, Position(3, 0)), segment_id=uuid.UUID(int=9))
        for kind in ("data", "index"):
            data = await rig.store.get(getattr(whole.keys, kind))
            await rig.store.put(getattr(keys.SegmentKeys(PREFIX, later.segment_id), kind), data)
        key = keys.SegmentKeys(PREFIX, later.segment_id).manifest
        await rig.store.put(key, manifest_bytes.encode(later))
        rig.map.segments = [replace(whole, segment_id=later.segment_id)]
        with pytest.raises(Transient, match="cannot be read"):
            await seek(rig.reader, TOPIC, Goal(SeekKind.TIME, NOW + 10))
        rig.map.segments = []
        with pytest.raises(Transient, match="stumbles"):
            await seek(rig.reader, TOPIC, Goal(SeekKind.TIME, NOW + 10))


async def test_what_a_refused_source_may_know_is_refused() -> None:
    """It may have an earlier answer, or the only one; what is offloaded up to the answer is found."""
    rig, _ = await three_tiers()

    async def refused(topic: TopicName) -> IdentityRefused:
        return IdentityRefused(f"the source of {topic} is another cluster's")

    rig.reader.source_refused = refused
    async with rig.reader:
        assert await found_at(rig, SeekKind.TIME, NOW + 10) == (Position(3, 1), True)
        for stored in (rig.map.segments, list[CommittedSegment]()):
            rig.map.segments = stored
            with pytest.raises(IdentityRefused, match="another cluster"):
                await seek(rig.reader, TOPIC, Goal(SeekKind.TIME, NOW + 30))


async def test_a_topic_without_times_is_not_told_to_have_nothing_yet() -> None:
    """Wherever its entries are: all of them may have been written since."""
    shelf = Shelf()
    shelf.put(1, [b"raw"] * 3)
    segment_id, store = uuid.UUID(int=1), MemoryStore(FastClock())
    stored, tailed = make_read_rig(store=store, objects=store), make_read_rig(source=shelf)
    stored.map.segments.append(await put_segment(store, [Piece(1, 0, [b"raw"] * 3)], segment_id=segment_id))
    for rig in stored, tailed:
        async with rig.reader:
            for kind in SeekKind.TIME, SeekKind.INDEX:
                with pytest.raises(Unseekable, match="entries round 1:2 have none"):
                    await seek(rig.reader, TOPIC, Goal(kind, 5))
            assert await found_at(rig, SeekKind.SEQUENCE, 3) == (Position(1, 3), False)


async def test_entries_without_times_are_passed_over_only_so_far() -> None:
    """The rest of such a ledger is taken for one of another broker; when nothing is found, that is said."""
    shelf = Shelf()
    shelf.put(1, [b"raw"] * (2 * BLANK_MAX) + [noted(NOW, 1)])
    shelf.put(2, [noted(NOW + 5, 2), b"raw", message(NOW + 9)])
    rig = make_read_rig(source=shelf)
    async with rig.reader:
        assert await found_at(rig, SeekKind.TIME, NOW) == (Position(2, 0), True)
        assert await found_at(rig, SeekKind.TIME, NOW + 6) == (Position(2, 2), True)
        assert await found_at(rig, SeekKind.INDEX, 0) == (Position(2, 0), True)
        assert await found_at(rig, SeekKind.SEQUENCE, 2 * BLANK_MAX) == (Position(1, 2 * BLANK_MAX), True)
        with pytest.raises(Unseekable, match="have none") as refused:
            await seek(rig.reader, TOPIC, Goal(SeekKind.TIME, NOW + 10))
        assert "seek by sequence" in refused.value.hint
        shelf.put(1, [b"raw"] * (BLANK_MAX - 10) + [message(NOW)])
        assert await found_at(rig, SeekKind.TIME, NOW) == (Position(1, BLANK_MAX - 10), True)


async def test_manifests_of_older_versions_are_searched_by_halves() -> None:
    """A few blocks of a few segments are read, not all of them."""
    rig, counting, entries = await stored_topic(32, surveyed=False)
    for entry in entries[5::101]:
        cold = make_read_rig(objects=counting, store=rig.store)
        cold.map.segments = rig.map.segments
        async with cold.reader:
            found = await seek(cold.reader, TOPIC, Goal(SeekKind.TIME, NOW + 10 * entry.number))
            assert found.hit is not None
            assert found.hit.position == entry.position
            assert found.hit.sequence is None
            assert found.cost.gets < 40
            assert await found_at(cold, SeekKind.SEQUENCE, entry.number) == (entry.position, True)


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 41), st.integers(-3, 45))
def test_first_true_probes_little_and_is_right(low: int, length: int, first: int, guess: int) -> None:
    """From any guess, and with few questions from one that is nearly right."""
    high = low + length
    asked: list[int] = []

    async def true_at(number: int) -> bool:
        assert low <= number < high
        asked.append(number)
        return number >= first

    answer = virtually(first_true(low, high, guess, true_at))
    assert answer == min(max(first, low), high)
    if abs(answer - guess) <= 1:
        assert len(asked) <= 4
    assert len(asked) <= 14
