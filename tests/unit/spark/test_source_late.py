"""Segments that are merged, trimmed or damaged after a query was planned: each entry is given, or counted."""

from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offloaderd.core.errors import MapUnknown, Transient
from offloaderd.core.model import Loss, Position
from offloaderd.metadata.records.deletion import Floor
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.spark.scan.columns import Columns
from offloaderd.spark.scan.plan import HoleInRange
from offloaderd.spark.scan.query import EntryQuery
from offloaderd.spark.scan.read import record_batches
from offloaderd.spark.scan.segments import LateReader, segment_reader
from offloaderd.spark.scan.share import BrokenSegment, Condition
from offloaderd.spark.scan.snapshot import Snapshot, holes_of
from offloaderd.testing.builders import payloads
from tests.unit.format.test_pulsar_message import entry
from tests.unit.read.build import TOPIC, Piece, put_segment
from tests.unit.spark.lake import BASE_MS, CountingStore, entries, options, planned, read_share, snapshot
from tests.unit.spark.test_source import counted
from tests.unit.spark.test_source_messages import cut
from tests.virtual import virtually

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.core.model import TopicName
    from offloaderd.metadata.committed import CommittedSegment

LEDGER = 4
EVERYTHING = frozenset(Condition)


async def segments_of(
    store: CountingStore, held: Sequence[bytes], bounds: Sequence[int], *, number: int
) -> list[CommittedSegment]:
    """Store one ledger in segments that begin at these entries, the last bound being its end."""
    return [
        await put_segment(
            store, [Piece(LEDGER, low, held[low:high])], segment_id=uuid.UUID(int=number + at), block_entries=4
        )
        for at, (low, high) in enumerate(pairwise(bounds))
    ]


async def delete(store: CountingStore, segments: Sequence[CommittedSegment]) -> None:
    """Delete all objects of segments."""
    await store.delete([key for one in segments for key in one.keys.every])


def trimmed(segments: Sequence[CommittedSegment], floor: int) -> Snapshot:
    """Return a topic of which retention has deleted all up to an entry."""
    base = Floor(position=Position(LEDGER, floor), end=None, deleted_ms=1, segments=1, object_bytes=1, reason="age")
    topic_map = TopicMap(TOPIC, tuple(segments), base=base)
    return Snapshot(topic_map, holes_of(topic_map))


async def test_merged_while_it_is_read() -> None:
    """Half of the tasks read before a merge and half after: each entry is there once, and nothing counts as damaged."""
    store = CountingStore()
    held = payloads(100, ledger_id=LEDGER)
    before = await segments_of(store, held, range(0, 101, 10), number=1)
    shares = await planned(store, snapshot(before), options(partition_bytes=900))
    after = snapshot(await segments_of(store, held, [0, 35, 100], number=100))
    rows = []
    for number, share in enumerate(shares):
        if number == len(shares) // 2:
            await delete(store, before)
        rows += await read_share(store, share, options(), now=after)
    assert entries(rows) == [(LEDGER, at, data) for at, data in enumerate(held)]


async def test_merged_again_while_it_is_read() -> None:
    """What the answer before names is gone as well: that is no damage, but asked anew."""
    store = CountingStore()
    held = payloads(40, ledger_id=LEDGER)
    before = await segments_of(store, held, range(0, 41, 10), number=1)
    (share,) = await planned(store, snapshot(before), options())
    merged = await segments_of(store, held, [0, 20, 40], number=100)
    answers = [snapshot(merged), snapshot(await segments_of(store, held, [0, 40], number=200))]
    await delete(store, [*before, *merged])

    async def current(_: TopicName) -> Snapshot:
        return answers.pop(0)

    wish = options(skip=EVERYTHING)
    task = wish.task(wish.columns)
    rows: list[dict[str, object]] = []
    async with segment_reader(store) as reader:
        late, columns = LateReader(reader, current), Columns(task.schema, skip=task.skip)
        async for batch in record_batches(late, share, wish.query, columns, task):
            rows += batch.to_pylist()
    assert [row["payload"] for row in rows] == held


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_each_entry_is_given_or_counted(data: st.DataObject) -> None:
    """However segments are cut again, trimmed and damaged between two tasks, each entry is given or counted, once."""
    count = data.draw(st.integers(5, 60))
    inner = st.lists(st.integers(1, count - 1), max_size=6, unique=True)
    old, new = ([0, *sorted(data.draw(inner)), count] for _ in range(2))
    floor = data.draw(st.integers(-1, count - 2))
    wish = options(partition_bytes=data.draw(st.integers(200, 4000)), skip=EVERYTHING)

    async def run() -> None:
        store = CountingStore()
        held = payloads(count, ledger_id=LEDGER)
        before = await segments_of(store, held, old, number=1)
        shares = await planned(store, snapshot(before), wish)
        turn = data.draw(st.integers(0, len(shares)))
        kept = [one for one in await segments_of(store, held, new, number=100) if one.end.entry_id > floor]
        kept[0] = replace(kept[0], slices=(replace(kept[0].slices[0], first_entry_id=max(0, floor + 1)),))
        now = trimmed(kept, floor) if floor >= 0 else snapshot(kept)
        rows = []
        for number, share in enumerate(shares):
            if number == turn:
                await delete(store, before)
                await delete(store, data.draw(st.lists(st.sampled_from(kept), max_size=2)))
            rows += await read_share(store, share, wish, now=now)
        given = [row["entry_id"] for row in rows if row["skipped"] is None]
        left_out = [at for _, at in counted(rows)]
        assert Counter(given + left_out) == Counter(range(count))
        assert all(row["payload"] == held[row["entry_id"]] for row in rows if row["skipped"] is None)

    virtually(run())


async def test_why_entries_are_gone_is_told() -> None:
    """What retention took is another condition than what the map names and the bucket lacks."""
    store = CountingStore()
    held = payloads(30, ledger_id=LEDGER)
    before = await segments_of(store, held, [0, 10, 20, 30], number=1)
    (share,) = await planned(store, snapshot(before), options())
    await delete(store, before[:2])
    now = trimmed(before[1:], 9)
    with pytest.raises(BrokenSegment, match=r"^\[OFFLOAD_RETENTION\] .*entries 4:0..4:9, .*deleted by retention"):
        await read_share(store, share, options(), now=now)
    with pytest.raises(BrokenSegment, match=r"^\[OFFLOAD_DAMAGE\] .*entries 4:10..4:19, "):
        await read_share(store, share, options(skip=frozenset({Condition.RETENTION})), now=now)
    rows = await read_share(store, share, options(skip=EVERYTHING), now=now)
    assert [row["skipped"] for row in rows if row["skipped"]] == [10, 10]


async def test_what_nobody_knows_is_not_skipped() -> None:
    """A map that cannot be asked, or that says nothing of entries, ends a query that skips everything else."""
    store = CountingStore()
    before = await segments_of(store, payloads(20, ledger_id=LEDGER), [0, 10, 20], number=1)
    wish = options(skip=EVERYTHING)
    (share,) = await planned(store, snapshot(before), wish)
    await delete(store, before[:1])
    with pytest.raises(MapUnknown, match=r"no segment has entries 4:0\.\.4:9"):
        await read_share(store, share, wish, now=snapshot(before[1:]))

    async def away(_: TopicName) -> Snapshot | None:
        raise Transient("no server answers")

    task = wish.task(wish.columns)
    async with segment_reader(store) as reader:
        with pytest.raises(Transient, match="is deleted, and which segment has its entries now is unknown: no server"):
            async for _ in record_batches(LateReader(reader, away), share, wish.query, Columns(task.schema), task):
                pass


async def test_chunks_before_that_were_merged() -> None:
    """What comes before a chunk is looked for in what holds it by then."""
    store = CountingStore()
    held = [*(entry(b"other") for _ in range(4)), *cut("m", b"whole message", 4)]
    before = await segments_of(store, held, [0, 3, 6, 7, 8], number=1)
    wish = options(messages=True, query=EntryQuery(first=Position(LEDGER, 7)))
    (share,) = await planned(store, snapshot(before), wish)
    after = snapshot(await segments_of(store, held, [0, 7, 8], number=100))
    await delete(store, before)
    (row,) = await read_share(store, share, wish, now=after)
    assert (row["value"], row["state"]) == (b"whole message", "plain")


async def test_a_loss_outside_of_the_times() -> None:
    """What was lost long before the times of a query does not concern it."""
    store = CountingStore()
    first, last = [
        await put_segment(store, [Piece(ledger_id, 0, payloads(5, ledger_id=ledger_id))], segment_id=uuid.UUID(int=at))
        for at, ledger_id in enumerate((LEDGER, 8))
    ]
    loss = Loss(first.end, last.begin, entries=5)
    found = snapshot([first, replace(last, offloaded_ms=BASE_MS)], [loss])
    day_ms = 86_400_000
    assert await planned(store, found, options(query=EntryQuery(since_ms=BASE_MS + day_ms)))
    with pytest.raises(HoleInRange, match=r"^\[OFFLOAD_LOSSES\]"):
        await planned(store, found, options(query=EntryQuery(since_ms=BASE_MS)))
