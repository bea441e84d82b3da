"""What a read does next at and behind a gap in a topic's history, as a pure function."""

from __future__ import annotations

from dataclasses import replace

import pytest

from offloaderd.core.errors import EntriesMissing
from offloaderd.core.model import LedgerEnd, Position
from offloaderd.read.plan import Hop, TopicView
from tests.unit.read.test_plan import A, B, segment, step


def test_a_gap_in_the_history_keeps_no_reader_behind_it() -> None:
    """The ledger at the boundary, and later ones, are left as in any other topic."""
    boundary, after = segment(1, (5, 0, 4), (8, 0, 2)), segment(2, (9, 0, 3))
    view = TopicView(segments=(boundary, after), unfinished=(Position(3, 9), Position(5, 0)))
    open_when_sealed = {(boundary.segment_id, 5): None, (boundary.segment_id, 8): None}
    assert step(replace(view, ends=open_when_sealed), Position(5, 5)) == Hop(Position(8, 0))
    assert step(replace(view, ends=open_when_sealed), Position(8, 3)) == Hop(Position(9, 0))


def test_a_ledger_that_its_segment_goes_on_behind_has_ended() -> None:
    """Also where that is the newest segment, and the manifest does not say how the ledger ended."""
    view = TopicView(segments=(A, B), ends={(B.segment_id, 3): None})
    assert step(view, Position(3, 10)) == Hop(Position(5, 0))


def test_a_gap_that_nothing_is_known_behind_is_an_error() -> None:
    """No commit and no source will show what followed: a reader that waits would wait for ever."""
    view = TopicView(segments=(A,), complete={3: LedgerEnd(5, 5)}, unfinished=(Position(3, 4), Position(8, 0)))
    with pytest.raises(EntriesMissing, match="not offloaded yet, and not at the source"):
        step(view, Position(3, 5))
