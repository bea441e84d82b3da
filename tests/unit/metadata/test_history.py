"""Planned history as it is stored: records come back as they were, over as many nodes as they need."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.core.errors import CorruptData, NotFound
from offloaderd.core.model import HistoryOrder, OffloadMethod, Position, TopicName
from offloaderd.format.pb.storage import history_pb2
from offloaderd.metadata import history, paths
from offloaderd.metadata.history import HistoryRanges
from offloaderd.metadata.records import history as record
from offloaderd.metadata.records.history import RANGES_PER_NODE, HistoryPlan, HistoryRange, RangeState, Worker
from offloaderd.testing.memory.metadata import MemoryTree
from tests.virtual import LoopClock

if TYPE_CHECKING:
    from uuid import UUID

TOPIC = TopicName.parse("public/default/orders")
numbers = st.integers(0, 2**40)
small = st.integers(0, 2**31)


@st.composite
def plans(draw: st.DrawFn) -> HistoryPlan:
    """Any plan."""
    first, last, boundary = sorted(draw(st.lists(numbers, min_size=3, max_size=3, unique=True)))
    return HistoryPlan(
        boundary=boundary,
        first=draw(st.sampled_from([first, last])),
        last=Position(last, draw(numbers)),
        order=draw(st.sampled_from(HistoryOrder)),
        worker=draw(st.sampled_from(Worker)),
        planned_ms=draw(numbers),
        epoch=draw(numbers),
        daemon_id=draw(st.text(max_size=5)),
        entries=draw(numbers),
        payload_bytes=draw(numbers),
        segment_bytes=draw(numbers),
        ranges=draw(small),
        probes=draw(numbers),
        split_ms=draw(numbers),
        doubtful_ledgers=draw(small),
        done_ms=draw(numbers),
        holder=draw(st.text(max_size=5)),
        holder_until_ms=draw(numbers),
        method=draw(st.sampled_from([OffloadMethod.STREAMING, OffloadMethod.LEDGER_BASED])),
    )


def part(number: int, **rest: object) -> HistoryRange:
    """The range with the entries of ledger `number`."""
    return replace(
        HistoryRange(begin=Position(number, 0), end=Position(number, 9), entries=10, payload_bytes=100),
        **rest,  # type: ignore[arg-type]
    )


@given(plans())
def test_a_plan_comes_back_as_it_was(plan: HistoryPlan) -> None:
    """Whatever it says."""
    assert record.decode(record.encode(plan), path="p") == plan


def test_a_plan_of_one_entry_comes_back_as_it_was() -> None:
    """Its first entry is its last one."""
    plan = HistoryPlan(
        boundary=5, first=4, last=Position(4, 0), order=HistoryOrder.ALONGSIDE, worker=Worker.DAEMON, planned_ms=1,
        epoch=1, daemon_id="one", entries=1, payload_bytes=10,
    )  # fmt: skip
    assert record.decode(record.encode(plan), path="p") == plan


@given(
    st.sampled_from(RangeState),
    st.text(max_size=5),
    st.none() | st.uuids(),
    st.tuples(numbers, numbers, small),
    st.text(max_size=40),
)
def test_ranges_come_back_as_they_were(
    state: RangeState, holder: str, segment_id: UUID | None, some: tuple[int, int, int], error: str
) -> None:
    """Whoever has claimed them."""
    epoch, until, tries = some
    one = part(
        1, state=state, holder=holder, segment_id=segment_id, epoch=epoch, lease_until_ms=until, tries=tries,
        last_error=error,
    )  # fmt: skip
    assert record.decode_ranges(record.encode_ranges([one, part(2)]), path="p") == (one, part(2))


@pytest.mark.parametrize(
    "change",
    [
        {"last_ledger_id": 9},
        {"last_ledger_id": 0},
        {"boundary_ledger_id": -1},
        {"order": "sideways"},
        {"worker": "nobody"},
    ],
)
def test_a_plan_that_cannot_be_is_told(change: dict[str, object]) -> None:
    """Ends behind its boundary or before its begin, words that nobody knows."""
    message = history_pb2.HistoryPlanRecord(
        boundary_ledger_id=9, first_ledger_id=1, last_ledger_id=8, last_entry_id=3, order="alongside", worker="job"
    )
    assert record.decode(message.SerializeToString(), path="p").live_begin == Position(9, 0)
    for name, value in change.items():
        setattr(message, name, value)
    with pytest.raises(CorruptData):
        record.decode(message.SerializeToString(), path="p")


@pytest.mark.parametrize("ranges", [[part(2), part(1)], [part(1), part(1)], [part(1, end=Position(0, 3))]])
def test_ranges_that_cannot_be_are_told(ranges: list[HistoryRange]) -> None:
    """Not in order, twice the same, reversed."""
    with pytest.raises(CorruptData):
        record.decode_ranges(record.encode_ranges(ranges), path="p")
    unknown = history_pb2.HistoryRangesRecord(ranges=[history_pb2.HistoryRangeRecord()])
    with pytest.raises(CorruptData):
        record.decode_ranges(unknown.SerializeToString(), path="p")


async def test_many_ranges_are_in_nodes_of_bounded_size() -> None:
    """Each change rewrites one node; the ranges come back from all of them, and a missing one is told."""
    store = MemoryTree().connect()
    for folder in (paths.TOPICS, *_parents(), paths.history(TOPIC), paths.history_ranges(TOPIC)):
        await store.create(folder, b"")
    count = 2 * RANGES_PER_NODE + 3
    ranges = HistoryRanges.split(TOPIC, [part(n) for n in range(count)])
    for step in ranges.creations():
        assert len(step.value) < 100_000
        await store.create(step.path, step.value)
    at = RANGES_PER_NODE + 7
    claimed = part(at, state=RangeState.CLAIMED, segment_id=LoopClock().uuid())
    changes, after = ranges.with_ranges({at: claimed})
    assert [change.path for change in changes] == [paths.history_range_node(TOPIC, 1)]
    await store.transact(changes)
    assert await history.load(store, TOPIC, count) == after
    assert after.counts() == {RangeState.PLANNED: count - 1, RangeState.CLAIMED: 1, RangeState.DONE: 0}
    assert [after.at(one) for one in (Position(-1, -1), Position(at, 3), Position(at, 9))] == [0, at, at]
    assert after.at(Position(count, 0)) is None
    assert after.behind(Position(1, 9)) == [0, 1]
    with pytest.raises(NotFound):
        await history.load(store, TOPIC, count + 1)
    with pytest.raises(NotFound):
        await history.load(store, TOPIC, 4 * RANGES_PER_NODE)


def _parents() -> list[str]:
    parts = paths.topic(TOPIC).split("/")
    return ["/".join(parts[:end]) for end in range(3, len(parts) + 1)]
