"""What the scrub records of a topic's segments."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.core.errors import CorruptData
from offloaderd.metadata.records import verified
from offloaderd.metadata.records.verified import Cursor, SegmentVerified, Verified
from tests.unit.rigs import many_segments

numbers = st.integers(0, 2**40)
looks = st.builds(
    SegmentVerified,
    verified_ms=numbers,
    level=st.sampled_from(["metadata", "headers", "full"]),
    flaws=st.integers(0, 9),
    flaw=st.text(max_size=30),
)


@given(st.dictionaries(st.uuids(), looks, max_size=5), st.none() | st.builds(Cursor, st.uuids(), numbers))
def test_it_comes_back_as_it_was(segments: dict[UUID, SegmentVerified], cursor: Cursor | None) -> None:
    """Whatever was recorded."""
    value = Verified(segments, cursor)
    assert verified.decode(verified.encode(value), path="p") == value


def test_of_too_many_segments_none_counts_as_never_verified() -> None:
    """A node has an end; what was looked at in turn shares a time, no later than it was, and damage keeps its words."""
    segments = [many_segments.segment(number) for number in range(20_000)]
    start_ms = segments[-1].offloaded_ms
    looks = {
        one.segment_id: SegmentVerified(verified_ms=start_ms + 6000 * number, level="full")
        for number, one in enumerate(segments)
    }
    damaged = segments[100].segment_id
    looks[damaged] = SegmentVerified(verified_ms=start_ms, level="full", flaws=1, flaw="x" * 1000)
    data = verified.encode(verified.fitting(looks, segments))
    assert len(data) < 700_000
    kept = verified.decode(data, path="p").of(segments)
    assert kept[damaged].flaw == "x" * verified.FLAW_CHARS_MAX
    assert kept.keys() == looks.keys()
    assert all(0 <= looks[one].verified_ms - kept[one].verified_ms <= verified.RUN_MS for one in looks)


def test_a_run_holds_only_what_was_looked_at() -> None:
    """Not what nobody has looked at yet, nor what was written in the place of others since."""
    segments = [many_segments.segment(number) for number in range(verified.SEGMENTS_MAX + 3)]
    now_ms = segments[-1].offloaded_ms
    looks = {
        one.segment_id: SegmentVerified(verified_ms=now_ms + number, level="full")
        for number, one in enumerate(segments)
    }
    del looks[segments[0].segment_id]
    known = verified.fitting(looks, segments)
    assert known.segments.keys() == looks.keys() - {segments[1].segment_id, segments[2].segment_id}
    again = replace(segments[1], segment_id=UUID(int=7), offloaded_ms=now_ms + 2)
    assert known.of([segments[0], again, segments[2]]).keys() == {segments[2].segment_id}


@pytest.mark.parametrize(
    "data", [b"\xff", b"\x0a\x03\x0a\x01x", b"\x12\x03\x0a\x01x", b"\x1a\x0b\x08" + b"\xff" * 9 + b"\x01"]
)
def test_what_is_no_such_record_is_told(data: bytes) -> None:
    """Rubbish, and ids that are none."""
    with pytest.raises(CorruptData):
        verified.decode(data, path="p")
