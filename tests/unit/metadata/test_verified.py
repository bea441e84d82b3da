"""What the scrub records of a topic's segments."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.errors import CorruptData
from offloaderd.metadata.records import verified
from offloaderd.metadata.records.verified import Cursor, SegmentVerified, Verified

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


def test_too_many_segments_keep_the_damaged_and_the_newest() -> None:
    """A node has an end; what drops out is looked at again, and nothing that is damaged is forgotten."""
    count = verified.SEGMENTS_MAX + 10
    segments = {UUID(int=number): SegmentVerified(verified_ms=number, level="full") for number in range(count)}
    segments[UUID(int=0)] = SegmentVerified(verified_ms=0, level="full", flaws=1, flaw="x" * 1000)
    data = verified.encode(Verified(segments))
    kept = verified.decode(data, path="p").segments
    assert len(data) < 700_000
    assert len(kept) == verified.SEGMENTS_MAX
    assert kept[UUID(int=0)].flaw == "x" * verified.FLAW_CHARS_MAX
    assert kept.keys() == {UUID(int=0), *(UUID(int=number) for number in range(11, count))}


@pytest.mark.parametrize("data", [b"\xff", b"\x0a\x03\x0a\x01x", b"\x12\x03\x0a\x01x"])
def test_what_is_no_such_record_is_told(data: bytes) -> None:
    """Rubbish, and ids that are none."""
    with pytest.raises(CorruptData):
        verified.decode(data, path="p")
