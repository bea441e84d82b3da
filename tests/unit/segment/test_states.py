"""Each segment's state follows from its record, and only what the table has may follow it."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import cast
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.core.model import Position
from offloaderd.format.manifest import BlockInfo, LedgerPart
from offloaderd.format.v2 import SegmentLayout
from offloaderd.metadata.records import attempt as attempt_record
from offloaderd.metadata.records.attempt import Attempt, AttemptStatus, Seal, stored_part
from offloaderd.segment.states import TRANSITIONS, SegmentState, diagram, follow, state_of
from tests.golden.records import VALUES

PAGE = Path(__file__).parents[3] / "docs" / "how-it-works.md"

RECORDED = {
    SegmentState.ASSIGNED: SegmentState.ASSIGNED,
    SegmentState.UPLOADING: SegmentState.UPLOADING,
    SegmentState.SEALED: SegmentState.SEALED,
    SegmentState.COMPLETED: SegmentState.SEALED,
    SegmentState.VERIFIED: SegmentState.VERIFIED,
    SegmentState.FAILED: SegmentState.FAILED,
}
"""What the record says in each state; a segment that is committed has none."""


def seal(entries: int) -> Seal:
    """A segment that ends with so many entries."""
    part = LedgerPart(
        ledger_id=7, first_entry_id=0, last_entry_id=entries - 1, payload_bytes=entries, closed=False,
        ledger_entries=entries, ledger_bytes=0, closed_ms=0,
    )  # fmt: skip
    return Seal(sealed_ms=9, epoch=1, software_version="1", data_bytes=100, part_count=1, ledgers=(part,))


ATTEMPT = Attempt(
    segment_id=UUID(int=1),
    begin=Position(7, 0),
    assigned_ms=5,
    epoch=1,
    status=AttemptStatus.ASSIGNED,
    layout=SegmentLayout(block_bytes=4096, part_bytes=8192),
)
PART = stored_part(
    "etag",
    100,
    (BlockInfo(ledger_id=7, first_entry_id=0, entry_count=4, offset=0, length=100, crc32c=1),),
)


def recorded(attempt: Attempt, after: SegmentState, *, again: bool) -> Attempt:
    """The record as whoever carries the transition out leaves it."""
    if after is SegmentState.UPLOADING:
        return replace(attempt, upload_id="u", parts=(PART,) if again else ())
    if after is SegmentState.SEALED:
        return replace(attempt, seal=seal(3 if attempt.seal is not None else 4))
    if after is SegmentState.VERIFIED:
        if again:  # an executor says so
            return replace(attempt, status=AttemptStatus.OFFLOADED, parts=())
        return replace(attempt, seal=attempt.seal or seal(4), parts=(PART,), proven=True)
    return replace(attempt, status=AttemptStatus.FAILED) if after is SegmentState.FAILED else attempt


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=10))
def test_the_record_says_the_state_after_each_transition(choices: list[tuple[int, bool]]) -> None:
    """Whatever way a segment takes through the table; reading the record back loses nothing but what was proven."""
    state, attempt = SegmentState.ASSIGNED, ATTEMPT
    for choice, again in choices:
        following = [one.after for one in TRANSITIONS if one.before is state]
        if not following:
            return
        state = follow(state, following[choice % len(following)])
        if state is SegmentState.COMMITTED:
            return
        attempt = recorded(attempt, state, again=again)
        assert state_of(attempt) is RECORDED[state]
        read = attempt_record.decode(attempt_record.encode(attempt), path="/p")
        assert state_of(read) is state_of(replace(attempt, proven=False))


@pytest.mark.parametrize("before", SegmentState)
@pytest.mark.parametrize("after", SegmentState)
def test_nothing_else_follows(before: SegmentState, after: SegmentState) -> None:
    """Every pair that is not in the table is a defect; what ended stays so."""
    if any((one.before, one.after) == (before, after) for one in TRANSITIONS):
        assert follow(before, after) is after
    else:
        with pytest.raises(AssertionError):
            follow(before, after)
    assert not any(one.before in {SegmentState.COMMITTED, SegmentState.FAILED} for one in TRANSITIONS)


def test_a_state_is_assigned_by_the_table_alone() -> None:
    """Every assignment of a segment's state takes what `follow` or, of a record, `state_of` returns."""
    package, assigned = Path(__file__).parents[3] / "offloaderd", []
    for path in package.rglob("*.py"):
        text = path.read_text()
        if "SegmentState" not in text or path.name == "states.py" or path.is_relative_to(package / "api"):
            continue  # the messages of the API have states of topics
        for node in ast.walk(ast.parse(text)):
            targets = node.targets if isinstance(node, ast.Assign) else []
            if any(isinstance(one, ast.Attribute) and one.attr == "state" for one in targets):
                assigned.append(ast.unparse(cast("ast.Assign", node).value).partition("(")[0])
    assert set(assigned) == {"follow", "state_of"}


def test_records_of_earlier_releases_have_a_state() -> None:
    """None of them is one that this release cannot go on from."""
    attempts = [value for _, _, value in VALUES.values() if isinstance(value, Attempt)]
    assert attempts
    assert {state_of(one) for one in attempts} <= set(RECORDED.values())


def test_the_documentation_shows_the_table() -> None:
    """The diagram of docs/how-it-works.md is drawn from it."""
    assert f"```mermaid\n{diagram()}\n```" in PAGE.read_text()
