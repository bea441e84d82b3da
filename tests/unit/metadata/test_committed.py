"""A committed segment is what its manifest says, whoever asks: the commit, a rebuild, a check."""

from __future__ import annotations

from dataclasses import replace

from offloaderd.core.model import OffloadMethod
from offloaderd.metadata.committed import CommittedSegment
from tests.unit.format import builders

MANIFEST = replace(builders.small_segment().manifest, assigned_ms=11, sealed_ms=22)


def test_a_manifest_describes_its_segment() -> None:
    """It was assigned when its attempt began and offloaded when it was sealed, with all of its slices."""
    segment = CommittedSegment.described(MANIFEST, bucket="b", prefix="p/")
    assert (segment.assigned_ms, segment.offloaded_ms) == (11, 22)
    assert (segment.range, segment.object_bytes) == (MANIFEST.range, MANIFEST.data_bytes)
    assert segment.is_run_of(MANIFEST.ledgers)
    assert (segment.method, segment.foreign) == (OffloadMethod.STREAMING, False)
    assert segment.keys.data == f"p/{MANIFEST.segment_id}"


def test_a_whole_ledgers_objects_are_named_after_it() -> None:
    """As Pulsar names them."""
    part = MANIFEST.ledgers[0]
    whole = replace(MANIFEST, ledgers=(replace(part, first_entry_id=0),), method=OffloadMethod.LEDGER_BASED)
    segment = CommittedSegment.described(whole, bucket="b", prefix="")
    assert segment.keys.index == f"{MANIFEST.segment_id}-ledger-{part.ledger_id}-index"
    assert replace(segment, driver="aws-s3").foreign
