"""Which ledgers can leave their segments for an object of their own, in which order, and what the map is then."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.core.errors import Conflict, CorruptData, InvalidInput
from offloaderd.core.model import LedgerEnd, Loss, OffloadMethod, Position, TopicName
from offloaderd.metadata import paths
from offloaderd.metadata.committed import CommittedSegment, LedgerSlice
from offloaderd.metadata.port import Create
from offloaderd.metadata.records import orders
from offloaderd.metadata.records.orders import FAILURES_MAX, RollbackOrder
from offloaderd.metadata.topic_map import conversion, removal
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map.conversion import Standing
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.testing.memory.metadata import MemoryMetadata, MemoryTree

if TYPE_CHECKING:
    from collections.abc import Collection

TOPIC = TopicName("public", "default", "orders")
BUCKET = "bucket"


def made(number: int, *slices: tuple[int, int, int], bucket: str = BUCKET) -> CommittedSegment:
    """Return a streaming segment of slices (ledger, first, last)."""
    return CommittedSegment(
        segment_id=UUID(int=number << 64 | 0xF << 60 | number),
        slices=tuple(LedgerSlice(ledger, first, last, 10 * (last - first + 1)) for ledger, first, last in slices),
        object_bytes=1000 + number,
        assigned_ms=number,
        offloaded_ms=number + 1,
        bucket=bucket,
        prefix="p/",
    )


def whole(ledger_id: int, entries: int) -> CommittedSegment:
    """Return the object of a whole ledger."""
    return replace(made(1000 + ledger_id, (ledger_id, 0, entries - 1)), method=OffloadMethod.LEDGER_BASED)


async def stored() -> MemoryMetadata:
    """Return a store with the topic's folders."""
    store = MemoryTree().connect()
    for folder in paths.folders(TOPIC):
        await store.create(folder, b"")
    return store


async def committed(store: MemoryMetadata, *segments: CommittedSegment, ends: dict[int, int]) -> TopicMap:
    """Commit segments one by one."""
    current = TopicMap(TOPIC)
    for segment in segments:
        steps, current = current.with_commit(segment, {one: LedgerEnd(count, None) for one, count in ends.items()})
        await store.transact(steps)
    return current


def built(*segments: CommittedSegment, ends: dict[int, int]) -> TopicMap:
    """Return a map without a store."""
    current = TopicMap(TOPIC)
    for segment in segments:
        _, current = current.with_commit(segment, {one: LedgerEnd(count, None) for one, count in ends.items()})
    return current


def standings(topic_map: TopicMap, to: int | None = None) -> dict[int, Standing]:
    """Return every ledger's standing."""
    rows = conversion.ledger_states(topic_map, buckets=[BUCKET], to=to)
    assert all(bool(one.why) != (one.standing in {Standing.CONVERTIBLE, Standing.WHOLE}) for one in rows)
    assert sum(conversion.counts(rows).values()) == len(rows)
    return {one.ledger_id: one.standing for one in rows}


def next_ledger(topic_map: TopicMap, *, to: int, without: Collection[int] = ()) -> int | None:
    """Return which ledger can leave its segments next, None for none."""
    rows = conversion.ledger_states(topic_map, buckets=[BUCKET], to=to, without=without)
    wanted = {one.ledger_id for one in rows if one.standing is Standing.CONVERTIBLE and one.ledger_id <= to}
    return next(iter(conversion.sequence(topic_map, wanted.difference(without))), None)


A, B, C = made(1, (3, 0, 9), (4, 0, 4)), made(2, (4, 5, 9)), made(3, (4, 10, 12), (6, 0, 3))
ENDS = {3: 10, 4: 13, 6: 4}


async def test_a_ledger_leaves_its_segments_and_takes_empty_ones_to_the_trash() -> None:
    """One transaction: the context becomes the object, slices go, what has none is on the trash list."""
    store = await stored()
    current = await committed(store, A, B, C, ends=ENDS)
    before = current
    for ledger_id, entries in ENDS.items():
        assert next_ledger(current, to=6) == ledger_id
        steps, current = conversion.with_whole(current, whole(ledger_id, entries), now_ms=7)
        await store.transact(steps)
        assert await catalog.load(store, TOPIC) == current
        assert (current.offloaded, current.ends) == (before.offloaded, before.ends)
        if ledger_id == 4:
            assert [part.slices for part in current.segments[2:]] == [C.slices[1:]]
    assert standings(current) == dict.fromkeys(ENDS, Standing.WHOLE)
    assert next_ledger(current, to=6) is None
    assert set(await store.children(paths.trash(TOPIC))) == {str(one.segment_id) for one in (A, B, C)}


def test_what_cannot_be_whole_is_said_with_its_reason() -> None:
    """Below the floor, lost at the front or at the end, without an end, open, marked, in another bucket."""
    segments = [
        made(1, (2, 0, 4)),
        made(2, (2, 5, 9)),
        made(3, (3, 2, 9)),
        made(4, (4, 0, 5)),
        made(5, (5, 0, 9)),
        made(6, (6, 0, 9), bucket="other"),
        made(7, (7, 0, 9)),
        made(8, (8, 0, 3)),
        made(9, (9, 0, 3)),
    ]
    topic_map = built(*segments, ends={2: 10, 3: 10, 5: 10, 6: 10, 8: 4})
    _, topic_map = removal.without_oldest(topic_map, segments[0], reason="age", now_ms=1)
    _, topic_map = topic_map.with_loss(Loss(Position(4, 5), Position(5, 0), 4))
    _, topic_map = removal.mark_deleted(topic_map, [5], now_ms=1)
    assert standings(topic_map) == {
        2: Standing.TRIMMED,
        3: Standing.LOST,
        4: Standing.LOST,
        5: Standing.DELETED,
        6: Standing.ELSEWHERE,
        7: Standing.UNSURE,
        8: Standing.CONVERTIBLE,
        9: Standing.OPEN,
    }


def test_behind_a_ledger_that_stays_segments_are_taken_from_their_end() -> None:
    """A segment stays in one piece: (2 stays, 3, 4) loses 4 first; (4, 5, 6 open) loses from its front."""
    one, two = made(1, (2, 1, 4), (3, 0, 4), (4, 0, 4)), made(2, (4, 5, 9), (5, 0, 4), (6, 0, 4))
    topic_map = built(one, two, ends={3: 5, 4: 10, 5: 5})
    order = []
    while (ledger_id := next_ledger(topic_map, to=9)) is not None:
        order.append(ledger_id)
        _, topic_map = conversion.with_whole(topic_map, whole(ledger_id, topic_map.ends[ledger_id].entries), now_ms=1)
        assert TopicMap.build(TOPIC, topic_map.contexts).segments == topic_map.segments
    assert order == [4, 3, 5]
    assert [segment.slices for segment in topic_map.segments if segment.method is OffloadMethod.STREAMING] == [
        one.slices[:1],
        two.slices[2:],
    ]


def test_between_two_that_stay_nothing_can_go() -> None:
    """Whether they stay because they must, or because they lie behind `to`."""
    topic_map = built(made(1, (2, 1, 4), (3, 0, 4), (4, 0, 4)), ends={3: 5, 4: 5})
    assert standings(topic_map)[3] is Standing.CONVERTIBLE
    assert standings(topic_map, to=3) == {2: Standing.LOST, 3: Standing.PINNED, 4: Standing.CONVERTIBLE}
    assert next_ledger(topic_map, to=3) is None
    assert next_ledger(topic_map, to=4, without={4}) is None
    with pytest.raises(Conflict, match="would have a hole"):
        conversion.with_whole(topic_map, whole(3, 5), now_ms=1)


def test_a_map_that_has_changed_is_left_alone() -> None:
    """Deleted, marked, rewritten, longer or shorter meanwhile: nothing is replaced."""
    topic_map = built(A, B, C, ends=ENDS)
    _, marked = removal.mark_deleted(topic_map, [3], now_ms=1)
    _, gone = removal.without_oldest(topic_map, A, reason="age", now_ms=1)
    _, done = conversion.with_whole(topic_map, whole(3, 10), now_ms=1)
    for changed, object_ in (
        (marked, whole(3, 10)),
        (gone, whole(3, 10)),
        (gone, whole(4, 13)),
        (done, whole(3, 10)),
        (topic_map, whole(3, 9)),
        (built(A, B, ends=ENDS), whole(4, 10)),
        (TopicMap(TOPIC), whole(3, 10)),
    ):
        with pytest.raises(Conflict):
            conversion.with_whole(changed, object_, now_ms=1)
    with pytest.raises(InvalidInput, match="no whole ledger"):
        conversion.with_whole(topic_map, made(9, (3, 0, 9)), now_ms=1)


def test_a_transaction_does_not_outgrow_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a ledger in very many segments some are left to the collector."""
    limit = conversion.TRASH_MAX
    monkeypatch.setattr(conversion, "TRASH_MAX", 20)
    topic_map = built(*(made(n + 1, (3, n, n)) for n in range(25)), ends={3: 25})
    steps, after = conversion.with_whole(topic_map, whole(3, 25), now_ms=1)
    trash = [step for step in steps if isinstance(step, Create)]
    assert len(trash) == 20
    assert limit * max(len(step.path) + len(step.value) + 50 for step in trash) < 700_000
    assert len(after.segments) == 1


@st.composite
def topics(draw: st.DrawFn) -> tuple[TopicMap, set[int]]:
    """Draw a topic of ledgers cut into segments anywhere, and those of its ledgers that may go."""
    lengths = draw(st.lists(st.integers(1, 4), min_size=1, max_size=8))
    entries = [(ledger, entry) for ledger, count in enumerate(lengths) for entry in range(count)]
    cuts = sorted(draw(st.sets(st.integers(1, len(entries)), max_size=6)) | {len(entries)})
    segments, at = [], 0
    for number, cut in enumerate(cuts, start=1):
        rows: dict[int, list[int]] = {}
        for ledger, entry in entries[at:cut]:
            rows.setdefault(ledger, []).append(entry)
        if rows:
            segments.append(made(number, *((ledger, row[0], row[-1]) for ledger, row in rows.items())))
        at = cut
    wanted = draw(st.sets(st.sampled_from(range(len(lengths)))))
    return built(*segments, ends=dict(enumerate(lengths))), wanted


@given(topics())
def test_every_order_can_be_carried_out_and_leaves_a_sound_map(drawn: tuple[TopicMap, set[int]]) -> None:
    """Step by step the map is one that its nodes give again; what does not go lies between ledgers that stay."""
    topic_map, wanted = drawn
    order = conversion.sequence(topic_map, wanted)
    assert len(set(order)) == len(order)
    assert set(order) <= wanted
    before = topic_map
    for ledger_id in order:
        assert conversion.sequence(topic_map, wanted - {one.begin.ledger_id for one in wholes(topic_map)}) != []
        _, topic_map = conversion.with_whole(topic_map, whole(ledger_id, topic_map.ends[ledger_id].entries), now_ms=1)
        assert TopicMap.build(TOPIC, topic_map.contexts).segments == topic_map.segments
    assert sum(one.entries for one in topic_map.segments) == sum(one.entries for one in before.segments)
    for ledger_id in wanted - set(order):
        (holder,) = conversion.holders_of(topic_map, ledger_id)
        row = [part.ledger_id for part in holder.slices]
        at = row.index(ledger_id)
        assert set(row[:at]) - wanted
        assert set(row[at + 1 :]) - wanted


def wholes(topic_map: TopicMap) -> list[CommittedSegment]:
    """Return the objects of whole ledgers."""
    return [one for one in topic_map.segments if one.method is OffloadMethod.LEDGER_BASED]


@given(
    st.integers(0, 2**62),
    st.integers(0, 2**50),
    st.integers(0, 2**50),
    st.booleans(),
    st.dictionaries(st.integers(0, 2**62), st.text(max_size=20), max_size=5),
)
def test_orders_are_read_as_they_were_written(
    to: int, ordered: int, ended: int, stopped: bool, failures: dict[int, str]
) -> None:
    """Round trip of the record."""
    order = RollbackOrder(to_ledger_id=to, ordered_ms=ordered, ended_ms=ended, stopped=stopped, failures=failures)
    assert orders.decode_rollback(orders.encode_rollback(order), path="p") == order
    assert order.active is (ended == 0)


def test_an_order_keeps_so_many_failures_and_no_nonsense() -> None:
    """The node stays small; negative ids and foreign bytes are refused."""
    many = RollbackOrder(to_ledger_id=1, ordered_ms=1, failures=dict.fromkeys(range(3000), "x" * 1000))
    encoded = orders.encode_rollback(many)
    assert len(encoded) < 700_000
    assert len(orders.decode_rollback(encoded, path="p").failures) == FAILURES_MAX
    for wrong in (b"\xff", orders.encode_rollback(replace(many, to_ledger_id=-1, failures={}))):
        with pytest.raises(CorruptData):
            orders.decode_rollback(wrong, path="p")
