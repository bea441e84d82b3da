"""Which segments may be replaced by one that holds all their entries."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest

from offloaderd.core.model import LedgerEnd, Loss, Position, TopicName
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.metadata.topic_map.merging import obstacle, runs
from tests.unit.metadata.segments import made

TOPIC = TopicName("public", "default", "orders")
ONE, NEWEST = made(1, (3, 0, 9), (4, 0, 0)), made(2, (5, 0, 9))
MAP = TopicMap(TOPIC, segments=(ONE, NEWEST))


@pytest.mark.parametrize(
    ("before", "why"),
    [((3, 0), ""), ((3, 5), "lost inside"), ((4, 0), "lost inside"), ((5, 0), "")],
    ids=["before its first entry", "inside", "before its last entry", "behind its last entry"],
)
def test_a_segment_with_a_loss_inside_is_not_replaced(before: tuple[int, int], why: str) -> None:
    """Whichever of its entries the loss precedes; one before its first entry, or behind its last, is outside."""
    loss = Loss(Position(2, 0), Position(*before), 0)
    assert why in (found := obstacle(replace(MAP, losses=(loss,)), ONE, {"bucket"}))
    assert bool(found) is bool(why)


@pytest.mark.parametrize("ledger_id", [3, 4])
def test_a_segment_with_one_ledger_that_is_marked_deleted_is_not_replaced(ledger_id: int) -> None:
    """The others of it stay."""
    marked = replace(MAP, deleted=MappingProxyType({ledger_id: 7}))
    assert "marked deleted" in obstacle(marked, ONE, {"bucket"})


def test_segments_with_a_loss_between_them_are_not_merged() -> None:
    """The records prove that nothing else is between; but entries of a loss may still come, in their own segment."""
    first, second = made(3, (5, 10, 19)), made(4, (6, 0, 9))
    loss = Loss(Position(5, 19), Position(6, 0), 3)
    current = replace(MAP, segments=(NEWEST, first, second), losses=(loss,))
    goals = runs(current, current.segments, payload_bytes=1 << 30, ledgers=100)
    assert [goal.sources for goal in goals] == [(NEWEST, first), (second,)]


@pytest.mark.parametrize(
    ("ends", "together"),
    [({}, False), ({5: LedgerEnd(25, None)}, False), ({5: LedgerEnd(20, None)}, True)],
    ids=["an end that nobody recorded", "a ledger that goes on", "a ledger that ends there"],
)
def test_segments_are_merged_only_where_nothing_can_be_between(ends: dict[int, LedgerEnd], together: bool) -> None:
    """One segment of entries that do not follow each other would hide for good what is missing between them."""
    first, second = made(3, (5, 10, 19)), made(4, (7, 0, 9))
    current = replace(MAP, segments=(first, second), ends=MappingProxyType(ends))
    goals = runs(current, current.segments, payload_bytes=1 << 30, ledgers=100)
    assert [goal.sources for goal in goals] == ([(first, second)] if together else [(first,), (second,)])
