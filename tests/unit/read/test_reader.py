"""Reading a topic over all tiers: fall back, follow, snapshots, and what is said when it cannot be done."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from offloaderd.core.errors import (
    CorruptData,
    EntriesLost,
    EntriesMissing,
    IdentityRefused,
    InvalidInput,
    NotFound,
    OutOfRange,
    TopicNotFound,
    Transient,
)
from offloaderd.core.model import EntryBatch, HistoryOrder, Loss, Position, TopicName
from offloaderd.core.read_options import ReadPriority, Tier
from offloaderd.metadata.records.history import HistoryPlan, Worker
from offloaderd.objects import keys
from offloaderd.read.stream import ChangeSignals, split
from offloaderd.testing.clock import FakeClock
from offloaderd.testing.memory.ledgers import MemoryLedgers
from tests.patience import PATIENCE_S
from tests.unit.read.build import (
    PREFIX,
    TOPIC,
    FastClock,
    Piece,
    collect,
    flat,
    make_read_rig,
    payloads,
    put_segment,
    run,
    sample,
    turns,
)
from tests.unit.read.shelf import Broken, Shelf

if TYPE_CHECKING:
    from offloaderd.core.entries import Entries
    from tests.unit.read.build import ReadRig

IDS = [uuid.UUID(int=number) for number in range(1, 9)]


async def three_tiers() -> tuple[ReadRig, Shelf]:
    """Return a topic of ledgers 3 (closed, 10 entries) and 5 (open, 8): bucket to 5:3, source all, buffer from 5:6."""
    shelf = Shelf()
    shelf.put(3, payloads(3, 0, 9))
    shelf.put(5, payloads(5, 0, 7), closed=False)
    rig = make_read_rig(source=shelf)
    rig.map.segments = [
        await put_segment(rig.store, [Piece(3, 0, payloads(3, 0, 4))], segment_id=IDS[0]),
        await put_segment(
            rig.store, [Piece(3, 5, payloads(3, 5, 9), 10), Piece(5, 0, payloads(5, 0, 3))], segment_id=IDS[1]
        ),
    ]
    rig.hot.add(EntryBatch(5, 6, payloads(5, 6, 7)))
    return rig, shelf


ALL = run(3, 0, 9) + run(5, 0, 7)


async def test_a_read_goes_through_all_tiers() -> None:
    """Bucket, then source, then buffer, each entry once; the policy of the topic decides without a priority."""
    rig, _ = await three_tiers()
    async with rig.reader:
        assert await collect(rig) == (ALL, [Tier.OBJECTS, Tier.SOURCE, Tier.BUFFER])
        assert await collect(rig, priority=ReadPriority.BOOKKEEPER_FIRST) == (ALL, [Tier.SOURCE, Tier.BUFFER])
        rig.map.enabled, rig.map.priority = True, ReadPriority.BOOKKEEPER_FIRST
        assert await collect(rig) == (ALL, [Tier.SOURCE, Tier.BUFFER])
    assert sample(rig.metrics, "offloaderd_read_entries_total", {"source": "buffer"}) == 6
    assert sample(rig.metrics, "offloaderd_read_entries_total", {"source": "objects"}) == 14
    size = sum(len(data) for _, _, data in ALL)
    served = [sample(rig.metrics, "offloaderd_read_bytes_total", {"source": tier.value}) for tier in Tier]
    assert sum(served) == 3 * size
    assert sample(rig.metrics, "offloaderd_read_duration_seconds_count") == 3


async def test_a_long_read_looks_at_the_topic_once() -> None:
    """Reading costs no metadata beyond the first look, however many segments there are."""
    rig, _ = await three_tiers()
    async with rig.reader:
        rig.map.enabled = True
        await collect(rig, priority=ReadPriority.TIERED_STORAGE_FIRST)
    assert rig.map.looks == 1


@pytest.mark.parametrize(
    ("broken", "priority", "tiers"),
    [
        ("bucket", ReadPriority.TIERED_STORAGE_FIRST, [Tier.SOURCE, Tier.BUFFER]),
        ("source", ReadPriority.BOOKKEEPER_FIRST, [Tier.OBJECTS, Tier.SOURCE, Tier.BUFFER]),
    ],
)
async def test_the_other_tier_takes_over(broken: str, priority: ReadPriority, tiers: list[Tier]) -> None:
    """Missing data in the tier that was asked is taken from the other one, and counted."""
    rig, shelf = await three_tiers()
    if broken == "bucket":
        for segment in rig.map.segments:
            await rig.store.delete([keys.SegmentKeys(PREFIX, segment.segment_id).data])
    else:
        shelf.rotten = {(3, 0)}
    async with rig.reader:
        found, seen = await collect(rig, priority=priority)
    assert found == ALL
    assert set(seen) == set(tiers)
    failed = "objects" if broken == "bucket" else "source"
    assert sample(rig.metrics, "offloaderd_read_requests_total", {"source": failed, "outcome": "fallback"}) >= 1
    assert sample(rig.metrics, "offloaderd_read_requests_total", {"source": failed, "outcome": "error"}) == 0


async def test_corruption_in_the_middle_switches_there() -> None:
    """Entries before a corrupt block come from the bucket, the rest from the source, and no byte is wrong."""
    rig, _ = await three_tiers()
    key = keys.SegmentKeys(PREFIX, IDS[1]).data
    stored = bytearray(await rig.store.get(key))
    stored[-20] ^= 1
    await rig.store.put(key, bytes(stored))
    async with rig.reader:
        found, tiers = await collect(rig, last=Position(5, 3))
    assert found == run(3, 0, 9) + run(5, 0, 3)
    assert tiers == [Tier.OBJECTS, Tier.SOURCE]
    assert sample(rig.metrics, "offloaderd_checksum_failures_total", {"where": "read"}) == 1


async def test_the_most_specific_error_is_raised() -> None:
    """When no tier can give an entry: a passing trouble before corruption, corruption before absence."""
    rig, shelf = await three_tiers()
    shelf.rotten = {(3, 1)}
    await rig.store.delete([keys.SegmentKeys(PREFIX, IDS[0]).data])
    async with rig.reader:
        with pytest.raises(CorruptData, match="ledger 3"):
            await collect(rig)
        shelf.rotten = set()
        shelf.ledgers_by_id.pop(3)
        with pytest.raises(NotFound, match=str(IDS[0])):
            await collect(rig)
        assert sample(rig.metrics, "offloaderd_read_requests_total", {"source": "objects", "outcome": "error"}) == 2
    down = make_read_rig(source=shelf, objects=Broken(Transient("S3 is down")))  # type: ignore[arg-type]
    down.map.segments = rig.map.segments
    async with down.reader:
        with pytest.raises(Transient, match="S3 is down"):
            await collect(down)


async def test_topics_known_only_through_the_bucket_are_readable() -> None:
    """With no source at all, or one that forgot the topic, everything that was offloaded is read."""
    for source in (None, Shelf(known=False)):
        rig = make_read_rig(source=source)
        old, _ = await three_tiers()
        rig = make_read_rig(source=source, store=old.store)
        rig.map.segments = old.map.segments
        async with rig.reader:
            assert await collect(rig) == (run(3, 0, 9) + run(5, 0, 3), [Tier.OBJECTS])
            positions = await rig.reader.last_positions(TOPIC)
        assert positions == (Position(3, 0), Position(5, 3), Position(5, 3), None, None, False)


async def test_a_source_that_is_away_matters_only_where_it_is_needed() -> None:
    """A range that is wholly in the bucket is read without the source; any other is refused for now."""
    rig, shelf = await three_tiers()
    shelf.stumbles = 10**6
    async with rig.reader:
        assert (await collect(rig, last=Position(5, 3)))[0] == run(3, 0, 9) + run(5, 0, 3)
        rig.hot.clear()  # else the buffer's newest entry would tell that something lies between
        with pytest.raises(Transient, match="stumbles"):
            await collect(rig)


async def test_a_source_that_is_refused_gives_a_reader_nothing() -> None:
    """What is offloaded or buffered is read; for what lies beyond, the reader is told why the source is not read."""
    rig, shelf = await three_tiers()
    rig.reader.source_refused = refused
    shelf.put(7, [b"of another cluster"])
    async with rig.reader:
        stored = run(3, 0, 9) + run(5, 0, 3)
        for priority in ReadPriority:
            assert (await collect(rig, last=Position(5, 3), priority=priority)) == (stored, [Tier.OBJECTS])
        for what in ({"first": Position(5, 4)}, {"last": Position(7, 0)}, {"first": Position(1, 0)}):
            with pytest.raises(IdentityRefused, match="another cluster"):
                await collect(rig, **what)
        rig.hot.clear()
        for follow in (False, True):
            batches = rig.reader.read(TOPIC, follow=follow)
            with pytest.raises(IdentityRefused, match="another cluster"):
                _ = [batch async for batch in batches]
        async with aclosing(rig.reader.read(TOPIC)) as batches:
            assert (await anext(batches))[0].first == Position(3, 0)
        assert (await rig.reader.last_positions(TOPIC)).confirmed == Position(5, 3)
        rig.map.segments = []
        for follow in (False, True):
            with pytest.raises(IdentityRefused):
                await collect(rig, follow=follow)


async def test_what_only_a_source_that_is_refused_may_have_is_not_called_missing() -> None:
    """An entry of history that is not offloaded yet: it may be there, and nobody may look."""
    rig, _ = await three_tiers()
    rig.map.segments = [
        await put_segment(rig.store, [Piece(3, 0, payloads(3, 0, 4))], segment_id=IDS[2]),
        await put_segment(rig.store, [Piece(5, 0, payloads(5, 0, 3))], segment_id=IDS[3]),
    ]
    rig.map.history = HistoryPlan(
        boundary=5, first=3, last=Position(3, 9), order=HistoryOrder.ALONGSIDE, worker=Worker.DAEMON,
        planned_ms=1, epoch=1, daemon_id="d", entries=10, payload_bytes=1,
    )  # fmt: skip
    where = {"first": Position(3, 0), "last": Position(5, 3)}
    async with rig.reader:
        assert (await collect(rig, **where))[0] == run(3, 0, 9) + run(5, 0, 3)
        rig.reader.source_refused = refused
        with pytest.raises(IdentityRefused, match="another cluster"):
            await collect(rig, **where)


async def refused(topic: TopicName) -> IdentityRefused | None:
    """Say that a topic's source is of another history."""
    return IdentityRefused(f"{topic}: of another cluster", hint="point to the other one")


async def test_a_source_that_stumbles_is_tried_again() -> None:
    """A passing error of the source costs a pause, not the read, and no fall back."""
    rig, shelf = await three_tiers()
    async with rig.reader:
        reading = rig.reader.read(TOPIC, priority=ReadPriority.BOOKKEEPER_FIRST)
        batches = [(await anext(reading))[0]]
        shelf.stumbles = 2
        async with aclosing(reading):
            batches += [batch async for batch, _ in reading]
    assert flat(batches) == ALL
    assert rig.clock.pauses == [0.1, 0.2]
    assert sample(rig.metrics, "offloaderd_read_requests_total", {"source": "source", "outcome": "fallback"}) == 0


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ({"first": Position(5, 1), "last": Position(3, 0)}, InvalidInput),
        ({"first": Position(-1, 0)}, InvalidInput),
        ({"last": Position(0, -1)}, InvalidInput),
        ({"batch_bytes": -1}, InvalidInput),
        ({"entries_max": -1}, InvalidInput),
        ({"first": Position(5, 8)}, OutOfRange),
        ({"last": Position(6, 0)}, OutOfRange),
        ({"first": Position(2, 0)}, NotFound),
        ({"first": Position(4, 0)}, EntriesMissing),
    ],
)
async def test_bad_ranges(what: dict[str, Any], error: type[Exception]) -> None:
    """What cannot be read is refused before anything is handed out."""
    rig, _ = await three_tiers()
    async with rig.reader:
        with pytest.raises(error):
            await collect(rig, **what)
        assert rig.reader.segments.pinned_bytes == 0


async def test_unknown_and_empty_topics() -> None:
    """A topic without a trace is not found; one that is only enabled, or has no entry yet, is empty."""
    for source in (None, Shelf(known=False)):
        rig = make_read_rig(source=source)
        async with rig.reader:
            for follow in (False, True):
                with pytest.raises(TopicNotFound, match="orders"):
                    await collect(rig, follow=follow, priority=ReadPriority.BOOKKEEPER_FIRST)
            with pytest.raises(TopicNotFound):
                await rig.reader.last_positions(TOPIC)
            rig.map.enabled = True
            assert await collect(rig) == ([], [])
            assert await rig.reader.last_positions(TOPIC) == (None, None, None, None, None, False)
            with pytest.raises(OutOfRange):
                await collect(rig, first=Position(0, 0))
    rig = make_read_rig(source=Shelf())
    async with rig.reader:
        assert await collect(rig) == ([], [])


async def test_batches_respect_their_limits() -> None:
    """No batch is larger than asked, and than the daemon has it, unless it is one entry; `entries_max` cuts exactly."""
    rig, _ = await three_tiers()
    async with rig.reader:
        for batch_bytes in (1, 10, 25):
            async with aclosing(rig.reader.read(TOPIC, batch_bytes=batch_bytes)) as found:
                batches = [batch async for batch, _ in found]
            assert flat(batches) == ALL
            assert all(len(one.payloads) == 1 or one.payload_bytes() <= batch_bytes for one in batches)
        for entries_max in (1, 4, 11, 17, 18, 99):
            assert (await collect(rig, entries_max=entries_max))[0] == ALL[:entries_max]
        rig.reader.options = replace(rig.reader.options, batch_bytes=10)
        async with aclosing(rig.reader.read(TOPIC, batch_bytes=1 << 24)) as found:
            batches = [batch async for batch, _ in found]
        assert all(len(one.payloads) == 1 or one.payload_bytes() <= 10 for one in batches)
        assert rig.reader.segments.pinned_bytes == 0


def test_split_keeps_entries_together() -> None:
    """Splitting fills each piece as far as it goes; empty entries cost nothing."""
    batch = EntryBatch(1, 10, [b"aa", b"", b"bb", b"ccccc", b"d", b""])
    assert [list(piece.payloads) for piece in split(batch, 4)] == [[b"aa", b"", b"bb"], [b"ccccc"], [b"d", b""]]
    assert [piece.first_entry_id for piece in split(batch, 4)] == [10, 13, 14]
    assert list(split(batch, 100)) == [batch]


async def test_a_snapshot_ends_where_the_topic_ended_when_it_began() -> None:
    """Entries that come while a read without `last` is under way are not part of it."""
    rig, shelf = await three_tiers()
    async with rig.reader:
        reading = rig.reader.read(TOPIC)
        batches = [(await anext(reading))[0]]
        shelf.ledgers_by_id[5] += payloads(5, 8, 20)
        rig.hot.add(EntryBatch(5, 8, payloads(5, 8, 20)))
        async with aclosing(reading):
            batches += [batch async for batch, _ in reading]
    assert flat(batches) == ALL


async def test_a_ledger_that_leaves_the_source_is_found_in_the_bucket() -> None:
    """A reader that is in the middle of a ledger goes on when the source drops it after its offload."""
    rig, shelf = await three_tiers()
    segments, rig.map.segments = rig.map.segments, []
    async with rig.reader:
        reading = rig.reader.read(TOPIC, last=Position(5, 2))
        batches = [(await anext(reading))[0]]
        rig.map.segments = segments
        shelf.ledgers_by_id.pop(3)
        async with aclosing(reading):
            batches += [batch async for batch, _ in reading]
    assert flat(batches) == run(3, 0, 9) + run(5, 0, 2)


async def test_following_reads_while_it_is_written() -> None:
    """Followers of a store that is appended to, and rolls its ledgers, get every entry once and in order."""
    clock = FastClock()
    ledgers = MemoryLedgers(clock=clock, ledger_entries_max=7)
    rig = make_read_rig(source=ledgers)
    wanted = [f"entry {number}".encode() for number in range(60)]
    async with ledgers, rig.reader, asyncio.TaskGroup() as group:
        await ledgers.create(TOPIC)

        async def write() -> Position:
            last = Position(0, 0)
            for number in range(0, 60, 4):
                last = await ledgers.append(TOPIC, wanted[number : number + 4])
                await clock.sleep(1)
            return last

        async def follow() -> list[bytes]:
            async with aclosing(rig.reader.read(TOPIC, follow=True, entries_max=60)) as found:
                return [data async for batch, _ in found for data in batch.payloads]

        following = [group.create_task(follow()) for _ in range(3)]
        await turns(5)
        writing = group.create_task(write())
    assert all(task.result() == wanted for task in following)
    assert len(ledger_ids(ledgers)) > 5
    assert writing.result().entry_id >= 0


async def test_a_follower_hears_at_once_of_what_the_source_has_got() -> None:
    """Not only at the next tick: a follower would be a second behind."""
    clock = FakeClock()
    ledgers = MemoryLedgers(clock=clock)
    rig = make_read_rig(source=ledgers)
    async with ledgers, rig.reader:
        await ledgers.create(TOPIC)
        signals = ChangeSignals(hot=rig.hot, source=ledgers, clock=clock, loader=rig.reader.segments.loader)
        with signals.following(TOPIC) as signal:
            await turns(5)
            async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
                waiting = group.create_task(signal.after(signal.count))
                await turns(5)
                assert not waiting.done()
                await ledgers.append(TOPIC, [b"x"])


def ledger_ids(ledgers: MemoryLedgers) -> set[int]:
    """Return the ids of a store's ledgers."""
    return set(ledgers._payloads)


async def test_following_a_pushed_topic_across_ledgers_in_the_buffer() -> None:
    """Without a source, the buffer's word that one ledger follows another is enough; before it, the reader waits."""
    rig = make_read_rig()
    rig.map.enabled = True
    found: list[Entries] = []
    async with rig.reader, asyncio.TaskGroup() as group:

        async def follow() -> None:
            async with aclosing(rig.reader.read(TOPIC, follow=True, last=Position(4, 2))) as batches:
                async for batch, tier in batches:
                    assert tier is Tier.BUFFER
                    found.append(batch)

        group.create_task(follow())
        await turns(10)
        rig.hot.add(EntryBatch(2, 0, payloads(2, 0, 3)))
        await turns(20)
        assert flat(found) == run(2, 0, 3)
        rig.hot.add(EntryBatch(4, 0, payloads(4, 0, 5)), follows=Position(2, 3))
    assert flat(found) == run(2, 0, 3) + run(4, 0, 2)


async def test_a_follower_crosses_when_the_bucket_shows_the_end() -> None:
    """A pushed topic whose buffer was released goes on from the bucket, whose manifest says that the ledger ended."""
    rig = make_read_rig()
    rig.map.enabled = True
    rig.hot.add(EntryBatch(2, 0, payloads(2, 0, 3)))
    async with rig.reader, asyncio.TaskGroup() as group:
        following = group.create_task(collect(rig, follow=True, last=Position(4, 5)))
        await turns(20)
        rig.hot.clear()
        rig.map.segments = [
            await put_segment(rig.store, [Piece(2, 0, payloads(2, 0, 3), 4)], segment_id=IDS[0]),
            await put_segment(rig.store, [Piece(4, 0, payloads(4, 0, 5))], segment_id=IDS[1]),
        ]
    assert following.result() == (run(2, 0, 3) + run(4, 0, 5), [Tier.BUFFER, Tier.OBJECTS])


async def test_a_gap_at_the_end_of_a_ledger_is_an_error() -> None:
    """If a manifest knows of more entries in a ledger than any tier has, the read stops instead of going on."""
    rig = make_read_rig()
    rig.map.segments = [
        await put_segment(rig.store, [Piece(2, 0, payloads(2, 0, 3), 9)], segment_id=IDS[0]),
        await put_segment(rig.store, [Piece(4, 0, payloads(4, 0, 5))], segment_id=IDS[1]),
    ]
    async with rig.reader:
        with pytest.raises(EntriesMissing, match="2:4 to 2:8"):
            await collect(rig)


async def test_following_stops_watching_with_its_last_follower() -> None:
    """Watchers of a topic live as long as somebody follows it; a cancelled follower leaves nothing behind."""
    rig, _ = await three_tiers()
    async with rig.reader as reader:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(collect(rig, follow=True)) for _ in range(2)]
            await turns(200)
            watching = len(reader.segments.loader._tasks)
            tasks[0].cancel()
            await turns(5)
            assert len(reader.segments.loader._tasks) == watching == 3
            tasks[1].cancel()
        await turns(5)
        assert not reader.segments.loader._tasks
        assert reader.segments.pinned_bytes == 0


async def test_positions_of_all_tiers() -> None:
    """LastPositions says how far each tier reaches."""
    rig, _ = await three_tiers()
    async with rig.reader:
        found = await rig.reader.last_positions(TOPIC)
    assert found == (Position(3, 0), Position(5, 7), Position(5, 3), Position(5, 6), Position(5, 7), False)


async def test_a_tier_that_gives_other_entries_is_not_believed() -> None:
    """A source that answers with the wrong entries is treated as corrupt: the bucket answers instead."""
    rig, shelf = await three_tiers()
    shelf.ledgers_by_id[3] = payloads(3, 0, 9)

    async def wrong(topic: TopicName, ledger: int, first: int, last: int, *, batch_bytes: int) -> Any:  # noqa: ANN401
        yield EntryBatch(ledger, first + 1, payloads(ledger, first + 1, last))

    shelf.read = wrong  # type: ignore[method-assign,assignment]
    async with rig.reader:
        found, tiers = await collect(rig, last=Position(3, 9), priority=ReadPriority.BOOKKEEPER_FIRST)
    assert (found, tiers) == (run(3, 0, 9), [Tier.OBJECTS])


async def test_a_loss_is_told_even_when_the_buffer_goes_on_behind_it() -> None:
    """The offloader went on behind the lost range; a reader that comes to it must not do so unseen."""
    rig = make_read_rig()
    rig.map.losses = (Loss(Position(2, 3), Position(4, 0), 7),)
    rig.hot.add(EntryBatch(2, 0, payloads(2, 0, 3)))
    rig.hot.add(EntryBatch(4, 0, payloads(4, 0, 5)), follows=Position(2, 3))
    async with rig.reader as reader:
        found: list[Position] = []

        async def follow() -> None:
            async for batch, _ in reader.read(TOPIC, follow=True):
                found.append(batch.last)

        with pytest.raises(EntriesLost, match="after 2:3 and before 4:0 were deleted"):
            await follow()
        assert found == [Position(2, 3)]
        behind = [batch async for batch, _ in reader.read(TOPIC, first=Position(4, 0))]
        assert [batch.last for batch in behind] == [Position(4, 5)]
