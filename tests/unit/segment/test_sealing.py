"""Reading back what was sealed: a manifest may say more or less of chunks, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import CorruptData
from offloaderd.format import manifest_bytes
from offloaderd.segment.complete import same_manifest, without_chunks
from tests.unit.format import builders

if TYPE_CHECKING:
    from offloaderd.format.manifest import SegmentManifest

SENT = builders.chunked_segment().manifest


def read_back(found: SegmentManifest) -> None:
    """Compare a manifest with the one that was sent."""
    same_manifest("m", manifest_bytes.encode(found), manifest_bytes.encode(SENT))


def test_chunks_of_another_owner_are_as_good() -> None:
    """A deposed owner that puts its manifest meanwhile knows other chunks: those of the blocks that it has cut."""
    read_back(SENT)
    read_back(without_chunks(SENT))
    same_manifest("m", manifest_bytes.encode(SENT), manifest_bytes.encode(without_chunks(SENT)))


@pytest.mark.parametrize("changes", [{"epoch": 9}, {"cluster": "other"}, {"index_crc32c": 1}])
def test_anything_else_is_not_what_was_sent(changes: dict[str, object]) -> None:
    """The attempt is given up: somebody else writes there."""
    with pytest.raises(CorruptData, match="expected what was sent, found something else"):
        read_back(replace(SENT, **changes))  # type: ignore[arg-type]


def test_what_is_no_manifest_is_not_what_was_sent() -> None:
    """A changed byte is told by the manifest's own checksum."""
    sent = manifest_bytes.encode(SENT)
    with pytest.raises(CorruptData, match="in m at byte"):
        same_manifest("m", sent[:-1] + b"\x00", sent)
