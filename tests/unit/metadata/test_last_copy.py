"""Which entries only one segment holds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from offloaderd.core.model import Position, TopicName
from offloaderd.metadata.records.deletion import Floor
from offloaderd.metadata.topic_map.last_copy import first_uncovered
from offloaderd.metadata.topic_map.map import TopicMap
from tests.unit.metadata.segments import made

if TYPE_CHECKING:
    from offloaderd.format.manifest import SegmentManifest

TOPIC = TopicName("public", "default", "orders")


def described(*parts: tuple[int, int, int]) -> SegmentManifest:
    """Return a manifest of (ledger, first, last)."""
    ledgers = [SimpleNamespace(ledger_id=one, first_entry_id=low, last_entry_id=high) for one, low, high in parts]
    return cast("SegmentManifest", SimpleNamespace(ledgers=ledgers))


@pytest.mark.parametrize(
    ("floor", "found"),
    [
        (None, (5, 0)),
        ((4, 9), (5, 0)),
        ((5, 3), (5, 4)),
        ((5, 8), (5, 9)),
        ((5, 9), None),
        ((6, 0), None),
    ],
)
def test_entries_behind_the_floor_that_no_other_segment_holds_are_a_last_copy(
    floor: tuple[int, int] | None, found: tuple[int, int] | None
) -> None:
    """Also a single one, which directly follows what retention has deleted."""
    topic_map = TopicMap(TOPIC)
    if floor is not None:
        end = Position(*floor)
        risen = Floor(position=end, end=None, deleted_ms=1, segments=1, object_bytes=1, reason="age")
        topic_map = TopicMap(TOPIC, base=risen)
    assert first_uncovered(described((5, 0, 9)), topic_map, ()) == (Position(*found) if found is not None else None)


def test_a_sound_segment_covers_what_it_holds_and_a_broken_one_nothing() -> None:
    """The first entry behind another segment is found, however the ledger is divided."""
    one, two = made(1, (5, 0, 3)), made(2, (5, 4, 8), (6, 0, 1))
    topic_map = TopicMap(TOPIC, segments=(one, two))
    assert first_uncovered(described((5, 0, 8), (6, 0, 1)), topic_map, ()) is None
    assert first_uncovered(described((5, 0, 9)), topic_map, ()) == Position(5, 9)
    assert first_uncovered(described((5, 2, 8)), topic_map, {two.segment_id}) == Position(5, 4)
