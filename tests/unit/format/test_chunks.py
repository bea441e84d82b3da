"""Chunks: any entry read through them is what its block holds, and nothing else passes for it."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offloaderd.core.errors import CorruptData, InvalidInput
from offloaderd.core.model import EntryBatch
from offloaderd.format import chunks, manifest_bytes
from offloaderd.format.chunks import CHUNK_BYTES
from tests.unit.format import builders
from tests.unit.format.builders import KEY, Run, sealed

if TYPE_CHECKING:
    from collections.abc import Callable

    from offloaderd.format.manifest import BlockInfo, SegmentManifest

MIB = 1 << 20
SIZES = st.one_of(
    st.integers(0, 40),
    st.integers(500, 3000),
    st.integers(CHUNK_BYTES - 200, CHUNK_BYTES + 200),
    st.integers(0, 5 * MIB),
)
SMALL = builders.chunked_segment()
"""One block of 367 bytes: entries begin at 128, 170, 182, 284 and 301, in the third and the fifth chunk of six."""


def read(data: bytes, block: BlockInfo, chunk_bytes: int, first: int, last: int) -> tuple[EntryBatch, int]:
    """Read entries, counted from the block's first, out of `data`; returns the bytes that it took as well."""
    piece = chunks.piece_of(block, chunk_bytes, block.first_entry_id + first, block.first_entry_id + last)
    got = []
    for number in range(piece.first_chunk, piece.last_chunk + 1):
        offset, length = chunks.extent(block, chunk_bytes, number, number)
        got.append(data[offset : offset + length])
        chunks.checked_chunk(got[-1], block, chunk_bytes, number, key=KEY)
    whole = b"".join(got)
    offset, length = chunks.extent(block, chunk_bytes, piece.first_chunk, piece.last_chunk)
    assert whole == data[offset : offset + length]
    assert piece.chunk_count == len(got)
    return chunks.decode_piece(whole, block, chunk_bytes, piece, key=KEY).decoded(), length


@st.composite
def blocks(draw: st.DrawFn) -> list[bytes]:
    """Draw the entries of one block: of all sizes up to 5 MiB, and sometimes many that are alike."""
    sizes = draw(st.lists(SIZES, min_size=1, max_size=8)) + draw(st.sampled_from([0, 0, 200])) * [draw(SIZES) % 3000]
    return [bytes([number % 251]) * size for number, size in enumerate(draw(st.permutations(sizes)))]


@settings(max_examples=60)
@given(blocks(), st.data())
def test_any_entries_are_the_same_through_chunks(payloads: list[bytes], data: st.DataObject) -> None:
    """Of every size, within a chunk or over many, one entry or several, with or without bytes before the block."""
    segment = builders.build_segment([Run(7, 41, payloads)], preamble=data.draw(st.booleans()), chunk_bytes=CHUNK_BYTES)
    (block,) = segment.manifest.blocks
    assert bool(block.chunks) == (block.length > CHUNK_BYTES)
    if not block.chunks:
        return
    first = data.draw(st.integers(0, len(payloads) - 1))
    last = data.draw(st.integers(first, min(first + 3, len(payloads) - 1)))
    for low, high in ((first, last), (first, first), (last, last), (0, len(payloads) - 1)):
        batch, length = read(segment.data, block, CHUNK_BYTES, low, high)
        assert batch == EntryBatch(7, 41 + low, payloads[low : high + 1])
        wanted = sum(map(len, payloads[low : high + 1]))
        # At most one chunk more at each side, and one that the entry before the first wanted reaches into.
        before = len(payloads[low - 1]) if low else 0
        assert length <= wanted + 12 * (high - low + 1) + before + 3 * CHUNK_BYTES


@given(builders.segments)
def test_every_entry_of_small_blocks_with_small_chunks(segment: builders.Segment) -> None:
    """Chunks of a byte, of less than a header, of more than most blocks."""
    for block, run in zip(segment.manifest.blocks, segment.runs, strict=True):
        for number, payload in enumerate(run.payloads if block.chunks else []):
            batch, _ = read(segment.data, block, segment.manifest.chunk_bytes, number, number)
            assert batch == EntryBatch(run.ledger_id, run.first_entry_id + number, [payload])


def test_one_entry_of_1_kib_takes_one_chunk_or_two() -> None:
    """At most 128 KiB, and two chunks only for the few entries that lie in both."""
    payloads = [bytes([number % 251]) * 1024 for number in range(1000)]
    segment = builders.build_segment([Run(7, 0, payloads)], chunk_bytes=CHUNK_BYTES)
    (block,) = segment.manifest.blocks
    lengths = [read(segment.data, block, CHUNK_BYTES, number, number)[1] for number in range(1000)]
    assert max(lengths) == 2 * CHUNK_BYTES
    assert sum(length > CHUNK_BYTES for length in lengths) <= chunks.chunk_count(block.length, CHUNK_BYTES)


@pytest.mark.parametrize("length", [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES, MIB - 7])
def test_checksums_of_a_block_and_its_chunks(length: int) -> None:
    """The block's checksum is that of all its bytes, each chunk's that of its own; one chunk alone is not kept."""
    data = b"before" + bytes(number % 249 for number in range(length)) + b"behind"
    block = data[6 : 6 + length]
    whole, packed = chunks.checksums(data, 6, length, CHUNK_BYTES)
    each = [block[at : at + CHUNK_BYTES] for at in range(0, length, CHUNK_BYTES)]
    assert whole == google_crc32c.value(block)
    assert chunks.unpacked(packed) == (tuple(map(google_crc32c.value, each)) if length > CHUNK_BYTES else ())
    assert chunks.packed(chunks.unpacked(packed)) == packed


@given(st.lists(st.integers(0, 300), min_size=1, max_size=60), st.sampled_from([0, 128]), st.sampled_from([1, 64, 200]))
def test_sparse_positions_against_a_plain_search(lengths: list[int], head_bytes: int, chunk_bytes: int) -> None:
    """Of each chunk behind that of entry 0 the first entry that begins in it."""
    starts = list(accumulate(lengths, lambda at, size: at + size + 12, initial=head_bytes))[:-1]
    firsts: dict[int, tuple[int, int]] = {}
    for entry, at in enumerate(starts):
        firsts.setdefault(at // chunk_bytes, (entry, at))
    assert chunks.sparse_positions(lengths, head_bytes, chunk_bytes) == tuple(firsts.values())[1:]


def test_every_flipped_bit_of_what_is_read_is_found() -> None:
    """A changed bit in a chunk of an entry is found before the entry is handed out; elsewhere it is no matter."""
    (block,) = SMALL.manifest.blocks
    for entry, payload in enumerate(SMALL.runs[0].payloads):
        piece = chunks.piece_of(block, 64, 41 + entry, 41 + entry)
        for offset, spoilt in builders.flips(SMALL.data):
            if piece.first_chunk <= offset // 64 <= piece.last_chunk:
                with pytest.raises(CorruptData, match="expected a chunk of") as caught:
                    read(spoilt, block, 64, entry, entry)
                assert (caught.value.key, caught.value.offset) == (KEY, offset // 64 * 64)
            else:
                assert read(spoilt, block, 64, entry, entry)[0].payloads == [payload]


@pytest.mark.parametrize("data", [b"", b"x" * 63, b"x" * 65])
def test_another_length_has_another_checksum(data: bytes) -> None:
    """Fewer or more bytes than a chunk has are told like other bytes."""
    with pytest.raises(CorruptData, match="a chunk of 64 bytes"):
        chunks.checked_chunk(data, SMALL.manifest.blocks[0], 64, 1, key=KEY)


@pytest.mark.parametrize(
    ("changes", "entry", "expected"),
    [
        ({"first_entry_id": 42}, 0, "expected entry id 42, found 41"),
        ({"sparse": ((2, 256),)}, 2, "expected entry id 43, found"),
        ({"sparse": ((3, 192),)}, 2, "expected 3 entries from 41 on, found 2"),
        ({"sparse": ((3, 290),)}, 2, "expected the end of 3 entries, found more"),
        ({"entry_count": 6}, 5, "expected 3 entries from 44 on, found 2"),
        ({"pad_bytes": 5}, 4, "expected an entry of at most 49 bytes, found 50"),
    ],
)
def test_a_manifest_of_another_object_is_told(changes: dict[str, object], entry: int, expected: str) -> None:
    """Right checksums do not excuse other ids, or other lengths, than the manifest says."""
    block = replace(SMALL.manifest.blocks[0], **changes)  # type: ignore[arg-type]
    with pytest.raises(CorruptData, match=expected):
        read(SMALL.data, block, 64, entry, entry)


def spoilt(**changes: object) -> Callable[[SegmentManifest], SegmentManifest]:
    """Change fields of the one block; `chunk_bytes` is the manifest's."""
    size = changes.pop("chunk_bytes", 64)

    def spoil(valid: SegmentManifest) -> SegmentManifest:
        return replace(valid, chunk_bytes=size, blocks=(replace(valid.blocks[0], **changes),))  # type: ignore[arg-type]

    return spoil


BLOCK = SMALL.manifest.blocks[0]
BROKEN = [
    (spoilt(chunk_bytes=0), "chunks of 1 to 366 bytes in block 0"),
    (spoilt(chunk_bytes=367), "chunks of 1 to 366 bytes in block 0"),
    (spoilt(chunks=b""), "no length of chunks, which no block has"),
    (spoilt(chunks=BLOCK.chunks[4:]), "6 chunks of block 0"),
    (spoilt(chunks=BLOCK.chunks + b"more"), "6 chunks of block 0"),
    (spoilt(chunk_bytes=20), "19 chunks of block 0"),
    (spoilt(sparse=((3, 284), (4, 301))), "the next sparse position of block 0 from byte 320 on"),
    (spoilt(sparse=((1, 170), (3, 284))), "the next sparse position of block 0 from byte 192 on"),
    (
        spoilt(chunk_bytes=16, chunks=bytes(4 * 23), sparse=()),
        "a sparse position of block 0 for entries from byte 144 on",
    ),
    (
        spoilt(chunk_bytes=16, chunks=bytes(4 * 23), sparse=((1, 150),)),
        "a sparse position of block 0 for entries from byte 160 on",
    ),
]


@pytest.mark.parametrize(("spoil", "expected"), BROKEN)
def test_each_rule_is_kept_by_writer_and_reader(
    spoil: Callable[[SegmentManifest], SegmentManifest], expected: str
) -> None:
    """Chunks that contradict their block are neither written nor read."""
    wrong = spoil(SMALL.manifest)
    with pytest.raises(InvalidInput) as refused:
        manifest_bytes.encode(wrong)
    assert f"expected {expected}, found " in str(refused.value)
    with pytest.raises(CorruptData) as caught:
        manifest_bytes.decode(sealed(manifest_bytes._to_message(wrong).SerializeToString()), key=KEY)
    assert (caught.value.key, caught.value.expected) == (KEY, expected)


def test_a_manifest_with_chunks_is_read_back() -> None:
    """Length of the chunks, all their checksums, and where reading may begin."""
    assert SMALL.manifest.chunk_bytes == 64
    assert len(BLOCK.chunks) == 4 * 6
    assert BLOCK.sparse == ((3, 284),)
    assert manifest_bytes.decode(manifest_bytes.encode(SMALL.manifest), key=KEY) == SMALL.manifest
