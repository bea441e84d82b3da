"""Blocks against their manifest: what is handed out is what was written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.core.entries import PAD, frame, framed_bytes, padding
from offloaderd.core.errors import CorruptData
from offloaderd.core.model import EntryBatch, OffloadMethod
from offloaderd.format import v1, v2, verify
from offloaderd.format.manifest import BlockInfo
from tests.unit.format import builders
from tests.unit.format.builders import KEY

Way = Callable[..., EntryBatch]

STREAMING = OffloadMethod.STREAMING
SEGMENT = builders.small_segment()
INFO = SEGMENT.manifest.blocks[1]
DATA = SEGMENT.data[INFO.offset : INFO.offset + INFO.length]


def _decoded(data: bytes, info: BlockInfo, method: OffloadMethod = STREAMING) -> EntryBatch:
    return verify.decode_verified_block(data, info, key=KEY, method=method)


def _framed(data: bytes, info: BlockInfo, method: OffloadMethod = STREAMING) -> EntryBatch:
    return verify.framed_block(data, info, key=KEY, method=method).decoded()


ways = pytest.mark.parametrize("way", [_decoded, _framed])


@ways
@given(builders.segments)
def test_every_block_is_read(way: Way, segment: builders.Segment) -> None:
    """The manifest leads to each block, and each block gives its entries."""
    for info, run in zip(segment.manifest.blocks, segment.runs, strict=True):
        data = segment.data[info.offset : info.offset + info.length]
        assert way(data, info) == EntryBatch(run.ledger_id, run.first_entry_id, run.payloads)


@given(builders.segments, st.integers(0, 2000))
def test_runs_of_blocks_are_all_blocks_in_requests_of_a_bounded_size(segment: builders.Segment, run_bytes: int) -> None:
    """Each holds what one request brings; it is longer than asked for only where one block is, and never too short."""
    found = [*verify.runs(segment.manifest.blocks, run_bytes)]
    assert [block for run in found for block in run.blocks] == [*segment.manifest.blocks]
    for number, run in enumerate(found):
        batches = run.decoded(segment.data[run.offset : run.offset + run.length], key=KEY, method=STREAMING)
        assert [batch.first_entry_id for batch in batches] == [block.first_entry_id for block in run.blocks]
        assert run.length <= run_bytes or len(run.blocks) == 1
        assert number + 1 == len(found) or run.length + found[number + 1].blocks[0].length > run_bytes


@ways
def test_every_flipped_bit_is_found(way: Way) -> None:
    """No single bit of a block can change unseen, padding and reserved bytes included."""
    for offset, spoilt in builders.flips(DATA):
        with pytest.raises(CorruptData, match="checksum") as caught:
            way(spoilt, INFO)
        assert caught.value.offset == INFO.offset, offset


@ways
@pytest.mark.parametrize("data", [b"", DATA[:-1], DATA + b"\0"])
def test_length_is_checked(way: Way, data: bytes) -> None:
    """Fewer or more bytes than the manifest says are corrupt."""
    with pytest.raises(CorruptData, match=f"expected a block of {len(DATA)} bytes, found {len(data)} bytes"):
        way(data, INFO)


@ways
@pytest.mark.parametrize("changes", [{"ledger_id": 8}, {"first_entry_id": 43}, {"entry_count": 2}])
def test_manifest_of_another_object(way: Way, changes: dict[str, int]) -> None:
    """A right checksum does not excuse other entries than the manifest says."""
    with pytest.raises(CorruptData, match=r"found (1 from )?7:44"):
        way(DATA, replace(INFO, **changes))  # type: ignore[arg-type]


@ways
def test_checksum_of_what_is_no_block(way: Way) -> None:
    """A right checksum does not excuse bytes that are no block."""
    info = replace(INFO, length=128, crc32c=google_crc32c.value(b"x" * 128))
    with pytest.raises(CorruptData, match="magic"):
        way(b"x" * 128, info)


def test_a_block_is_framed_without_a_look_at_its_entries() -> None:
    """Where header, first head and padding are right, the frames are handed out as they lie there."""
    found = verify.framed_block(DATA, INFO, key=KEY, method=STREAMING)
    assert found.data is DATA
    assert (found.start, found.end) == (v2.BLOCK_HEADER_BYTES, len(DATA) - INFO.pad_bytes)
    spoilt = bytearray(DATA)
    spoilt[v2.BLOCK_HEADER_BYTES + 11] ^= 1
    info = replace(INFO, crc32c=google_crc32c.value(bytes(spoilt)))
    with pytest.raises(CorruptData, match="entry 45"):
        verify.framed_block(bytes(spoilt), info, key=KEY, method=STREAMING)


@given(
    payloads=st.lists(st.sampled_from([b"", b"abc", PAD, b"x" + PAD[:1], PAD * 3]), min_size=1, max_size=4),
    pad_bytes=st.integers(4, 20),
)
def test_padding_that_the_manifest_does_not_tell_of(payloads: list[bytes], pad_bytes: int) -> None:
    """Older manifests tell of 4 bytes of padding, whatever there is; entries may end like padding."""
    used = v2.BLOCK_HEADER_BYTES + framed_bytes(sum(map(len, payloads)), len(payloads))
    data = b"".join(v2.encode_block(7, 44, payloads, block_bytes_min=used + pad_bytes).chunks)
    info = BlockInfo(
        ledger_id=7,
        first_entry_id=44,
        entry_count=len(payloads),
        offset=500,
        length=len(data),
        crc32c=google_crc32c.value(data),
    )
    found = verify.framed_block(data, info, key=KEY, method=STREAMING)
    assert found.end == used
    assert found.decoded().payloads == payloads


@pytest.mark.parametrize(("head", "pad_bytes"), [(True, 0), (False, 0), (False, 9), (True, 300)])
def test_runs_of_a_ledgers_object(pad_bytes: int, *, head: bool) -> None:
    """A run of a V1 block is framed with its block's header before it or not, and with any padding."""
    payloads = [b"abc", b"", b"x" * 50]
    entries = b"".join(frame(44, payloads)) + padding(pad_bytes)
    data = (v1.encode_header(v1.BlockHeader(1 << 20, 44)) if head else b"") + entries
    info = BlockInfo(
        ledger_id=7,
        first_entry_id=44,
        entry_count=3,
        offset=500,
        length=len(data),
        crc32c=google_crc32c.value(data),
        head_bytes=len(data) - len(entries),
        pad_bytes=pad_bytes,
    )
    for way in (_decoded, _framed):
        assert way(data, info, OffloadMethod.LEDGER_BASED) == EntryBatch(7, 44, payloads)
    for changes in ({"first_entry_id": 45}, {"entry_count": 2}):
        with pytest.raises(CorruptData):
            _framed(data, replace(info, **changes), OffloadMethod.LEDGER_BASED)  # type: ignore[arg-type]
