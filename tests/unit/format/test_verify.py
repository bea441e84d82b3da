"""Blocks against their manifest: what is handed out is what was written."""

from __future__ import annotations

from dataclasses import replace

import google_crc32c
import pytest
from hypothesis import given

from offloaderd.errors import CorruptData
from offloaderd.format import verify
from offloaderd.model import EntryBatch, OffloadMethod
from tests.unit.format import builders
from tests.unit.format.builders import KEY

STREAMING = OffloadMethod.STREAMING
SEGMENT = builders.small_segment()
INFO = SEGMENT.manifest.blocks[1]
DATA = SEGMENT.data[INFO.offset : INFO.offset + INFO.length]


@given(builders.segments)
def test_every_block_is_read(segment: builders.Segment) -> None:
    """The manifest leads to each block, and each block gives its entries."""
    for info, run in zip(segment.manifest.blocks, segment.runs, strict=True):
        data = segment.data[info.offset : info.offset + info.length]
        batch = verify.decode_verified_block(data, info, key=KEY, method=STREAMING)
        assert batch == EntryBatch(run.ledger_id, run.first_entry_id, run.payloads)


def test_every_flipped_bit_is_found() -> None:
    """No single bit of a block can change unseen, padding and reserved bytes included."""
    for offset, spoilt in builders.flips(DATA):
        with pytest.raises(CorruptData, match="checksum") as caught:
            verify.decode_verified_block(spoilt, INFO, key=KEY, method=STREAMING)
        assert caught.value.offset == INFO.offset, offset


@pytest.mark.parametrize("data", [b"", DATA[:-1], DATA + b"\0"])
def test_length_is_checked(data: bytes) -> None:
    """Fewer or more bytes than the manifest says are corrupt."""
    with pytest.raises(CorruptData, match=f"expected a block of {len(DATA)} bytes, found {len(data)} bytes"):
        verify.decode_verified_block(data, INFO, key=KEY, method=STREAMING)


@pytest.mark.parametrize("changes", [{"ledger_id": 8}, {"first_entry_id": 43}, {"entry_count": 2}])
def test_manifest_of_another_object(changes: dict[str, int]) -> None:
    """A right checksum does not excuse other entries than the manifest says."""
    with pytest.raises(CorruptData, match="found 1 from 7:44"):
        verify.decode_verified_block(DATA, replace(INFO, **changes), key=KEY, method=STREAMING)  # type: ignore[arg-type]


def test_checksum_of_what_is_no_block() -> None:
    """A right checksum does not excuse bytes that are no block."""
    info = replace(INFO, length=128, crc32c=google_crc32c.value(b"x" * 128))
    with pytest.raises(CorruptData, match="magic"):
        verify.decode_verified_block(b"x" * 128, info, key=KEY, method=STREAMING)
