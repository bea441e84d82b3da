"""A committed segment is what its manifest says, whoever asks: the commit, a rebuild, a check."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from offloaderd.core.errors import CorruptData
from offloaderd.core.model import OffloadMethod
from offloaderd.metadata.committed import CommittedSegment
from tests.unit.format import builders

if TYPE_CHECKING:
    from offloaderd.format.manifest import SegmentManifest

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


OTHERS = {
    "segment": replace(MANIFEST, segment_id=UUID(int=5)),
    "managed ledger": replace(MANIFEST, managed_ledger="public/default/persistent/another"),
    "cluster": replace(MANIFEST, cluster="another"),
    "bytes of the data": replace(MANIFEST, data_bytes=MANIFEST.data_bytes + 1),
    "entries": replace(MANIFEST, ledgers=(replace(MANIFEST.ledgers[0], ledger_id=77), *MANIFEST.ledgers[1:])),
}


@pytest.mark.parametrize(("what", "found"), OTHERS.items(), ids=OTHERS)
def test_a_manifest_that_differs_from_the_commit_is_damage(what: str, found: SegmentManifest) -> None:
    """Whichever of these facts it is, the error names it with the key; its own manifest passes."""
    segment = CommittedSegment.described(MANIFEST, bucket="b", prefix="p/")
    segment.check_manifest(MANIFEST, managed_ledger=MANIFEST.managed_ledger, cluster=MANIFEST.cluster)
    with pytest.raises(CorruptData, match=rf"p/{MANIFEST.segment_id}.*expected {what}"):
        segment.check_manifest(found, managed_ledger=MANIFEST.managed_ledger, cluster=MANIFEST.cluster)
