"""Where a live segment ends: by its policy, by what is asked for, and by what follows it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from offloaderd.core.model import START, LedgerInfo, OffloadMethod, Position
from offloaderd.ledgers.chain import LedgerChain
from offloaderd.segment.roll import LiveStop, Requested, RollPolicy, TopicView

POLICY = RollPolicy(segment_bytes_max=1000, segment_age_max_s=60, segment_age_min_s=5)
NONE = replace(POLICY, method=OffloadMethod.NONE)
WHOLE = replace(POLICY, method=OffloadMethod.LEDGER_BASED)
CHAIN = LedgerChain(START, end=None)
CHAIN.update([LedgerInfo(ledger_id=one, closed=one == 1, entries=10, size_bytes=1) for one in (1, 2)])
LAST = Position(1, 9)
"""The last entry of the closed ledger, behind which the open one follows."""
NOTHING_DUE = TopicView(Requested(), policy=POLICY, chain=CHAIN, buffer_bytes=100)


def progress(*, age_s: float = 10.0, **found: object) -> Any:  # noqa: ANN401 - stands for a SegmentProgress
    """A segment that holds a little, in the middle of the closed ledger."""
    held = {"end": Position(1, 4), "entries": 5, "payload_bytes": 10, "full": False, "catching_up": False, **found}
    return SimpleNamespace(opened_s=-age_s, **held)


def asked(position: Position | None = None, *, memory: bool = False) -> TopicView:
    """A topic of which something is wanted."""
    return NOTHING_DUE._replace(requested=Requested(seal_to=position, memory=memory))


@pytest.mark.parametrize(
    ("reason", "found", "view"),
    [
        (None, {}, NOTHING_DUE),
        (None, {"end": None, "entries": 0, "age_s": 99.0}, NOTHING_DUE._replace(may_stop=True)),
        ("shutdown", {}, NOTHING_DUE._replace(may_stop=True)),
        ("manual", {}, asked(Position(1, 4))),
        (None, {}, asked(Position(1, 5))),
        ("switch", {}, NOTHING_DUE._replace(policy=NONE)),
        (None, {}, NOTHING_DUE._replace(policy=WHOLE, whole_ledgers=True)),
        ("switch", {"end": LAST}, NOTHING_DUE._replace(policy=WHOLE, whole_ledgers=True)),
        (None, {"end": LAST}, NOTHING_DUE._replace(policy=WHOLE)),
        ("switch", {"end": LAST}, NOTHING_DUE._replace(adoptable=[2])),
        (None, {"end": LAST}, NOTHING_DUE._replace(adoptable=[3])),
        (None, {}, NOTHING_DUE._replace(adoptable=[1])),
        ("size", {"payload_bytes": 1000}, NOTHING_DUE),
        (None, {"payload_bytes": 1000, "age_s": 4.0}, NOTHING_DUE),
        ("size", {"full": True, "age_s": 4.0}, NOTHING_DUE),
        ("age", {"age_s": 60.0}, NOTHING_DUE),
        ("memory", {"payload_bytes": 50}, asked(memory=True)._replace(first=Position(1, 5))),
        (None, {"payload_bytes": 49}, asked(memory=True)._replace(first=Position(1, 5))),
        ("memory", {"payload_bytes": 49}, asked(memory=True)),
        ("age", {"catching_up": True, "age_s": 60.0}, NOTHING_DUE),
        (None, {"catching_up": True, "age_s": 60.0}, NOTHING_DUE._replace(more_may_come=True)),
        (None, {"catching_up": True}, asked(Position(1, 4))._replace(more_may_come=True)),
        ("size", {"catching_up": True, "payload_bytes": 1000}, NOTHING_DUE._replace(more_may_come=True)),
    ],
)
def test_a_live_segment_ends(reason: str | None, found: dict[str, Any], view: TopicView) -> None:
    """For the first of the reasons that there are."""
    assert LiveStop().decide(progress(**found), view, 0.0) == reason


def test_it_takes_no_more_than_its_size_unless_it_is_too_young_for_that() -> None:
    """And nothing once it is full, or before what goes another way, which is asked before each batch."""
    rule = LiveStop()
    assert rule.limit(progress(), NOTHING_DUE, 0.0) == 1000
    assert rule.limit(progress(age_s=4.0), NOTHING_DUE, 0.0) is None
    assert rule.limit(progress(full=True, age_s=4.0), NOTHING_DUE, 0.0) == 10
    assert rule.limit(progress(end=LAST), NOTHING_DUE._replace(adoptable=[2]), 0.0) == 10
    assert rule.limit(progress(end=None, entries=0, payload_bytes=0), NOTHING_DUE._replace(policy=NONE), 0.0) == 1000


def test_the_next_look_is_when_its_age_makes_a_difference() -> None:
    """First when it is old enough for its size, then when it is as old as it may be."""
    rule = LiveStop()
    ages_s = (4.0, 5.0, 59.0, 60.0)
    assert [rule.next_check_s(progress(age_s=age_s), NOTHING_DUE, 0.0) for age_s in ages_s] == [1.0, 55.0, 1.0, 1.0]
