"""The record of what the scrub has looked at stays small enough for one node."""

from __future__ import annotations

from uuid import UUID

from offloaderd.metadata import port
from offloaderd.metadata.records import verified
from offloaderd.metadata.records.verified import SEGMENTS_MAX, SegmentVerified, Verified


def test_a_bucket_that_is_damaged_everywhere_still_fits_into_a_node() -> None:
    """The words of the flaws become shorter the more there are of them; what is damaged stays known."""
    looked = SegmentVerified(verified_ms=1 << 41, level="metadata", flaws=9, flaw="\U0001f4a5" * 400)
    known = {UUID(int=number << 64 | 0xF << 60 | number): looked for number in range(1, SEGMENTS_MAX + 100)}
    encoded = verified.encode(verified.fitting(known, ()))
    assert len(encoded) < port.REQUEST_BYTES_MAX - 1000
    found = verified.decode(encoded, path="/x").segments.values()
    assert len(found) == SEGMENTS_MAX
    assert all(one.flaws == 9 and one.flaw for one in found)
    alone = verified.decode(verified.encode(Verified(dict(list(known.items())[:1]))), path="/x")
    assert [len(one.flaw) for one in alone.segments.values()] == [verified.FLAW_CHARS_MAX]
