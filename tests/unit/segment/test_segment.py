"""Entries to blocks and parts: sizes, ledger changes, oversized entries, and what the manifest will say."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

import google_crc32c
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from offloaderd.core.errors import InvalidInput
from offloaderd.core.model import EntryBatch, LedgerInfo, Position
from offloaderd.format import v2
from offloaderd.format.chunks import checksums
from offloaderd.format.pulsar.broker_entry import encode_head
from offloaderd.format.pulsar.entry_time import Survey
from offloaderd.metadata.records.attempt import stored_part
from offloaderd.objects.port import md5
from offloaderd.segment.builder import CutPart, SegmentBuilder, SegmentLayout

if TYPE_CHECKING:
    from offloaderd.metadata.records.attempt import StoredPart

ID = UUID("11223344-5566-7788-99aa-bbccddeeff00")


def build(layout: SegmentLayout, batches: list[EntryBatch]) -> tuple[SegmentBuilder, list[CutPart]]:
    """Make a whole segment of batches."""
    builder, parts = SegmentBuilder(ID, layout, assigned_ms=1), []
    for batch in batches:
        assert builder.add(batch) == batch
        while builder.part_ready:
            parts.append(builder.cut_part())
    builder.finish_blocks()
    while builder.pending_bytes:
        parts.append(builder.cut_part(last=not builder.part_ready))
    return builder, parts


def read_back(builder: SegmentBuilder, parts: list[CutPart]) -> list[tuple[int, int, bytes]]:
    """Decode every block where the manifest's blocks say it is, checking its checksum."""
    data, found = b"".join(piece for part in parts for piece in part.pieces), []
    assert len(data) == builder.object_bytes
    for block in builder.blocks:
        raw = data[block.offset : block.offset + block.length]
        assert google_crc32c.value(raw) == block.crc32c
        batch = v2.decode_block(raw, key="k", at=block.offset)
        assert len(batch.payloads) == block.entry_count
        found += [(batch.ledger_id, batch.first_entry_id + i, payload) for i, payload in enumerate(batch.payloads)]
    return found


sizes = st.lists(st.lists(st.integers(0, 300), min_size=1, max_size=30), min_size=1, max_size=8)


@given(
    ledgers=sizes,
    block=st.integers(200, 700),
    part=st.integers(300, 2000),
    preamble=st.booleans(),
    step=st.integers(1, 9),
)
def test_any_entries_come_back_from_where_the_manifest_says(
    ledgers: list[list[int]], block: int, part: int, preamble: bool, step: int
) -> None:
    """Blocks keep to one ledger and to their size, parts to theirs, and the bytes do not depend on batching."""
    layout = SegmentLayout(block_bytes=block, part_bytes=part, preamble=preamble)
    entries = [[bytes([number % 256]) * size for number, size in enumerate(lengths)] for lengths in ledgers]
    whole = [EntryBatch(ledger, 0, payloads) for ledger, payloads in enumerate(entries)]
    pieces = [
        EntryBatch(ledger, first, payloads[first : first + step])
        for ledger, payloads in enumerate(entries)
        for first in range(0, len(payloads), step)
    ]
    builder, parts = build(layout, whole)
    again, same = build(layout, pieces)
    assert [b"".join(one.pieces) for one in parts] == [b"".join(one.pieces) for one in same]
    assert builder.blocks == again.blocks
    assert read_back(builder, parts) == [
        (ledger, entry, payload) for ledger, payloads in enumerate(entries) for entry, payload in enumerate(payloads)
    ]
    assert all(one.length <= block or one.entry_count == 1 for one in builder.blocks)
    assert all(one.size_bytes >= part for one in parts[:-1])
    assert [one.part_number for one in parts] == list(range(1, len(parts) + 1))
    assert parts[-1].end == builder.range.end == Position(len(entries) - 1, len(entries[-1]) - 1)


def test_an_entry_larger_than_a_block_gets_one_of_its_own() -> None:
    """The target size is soft: nothing is refused or cut (Pulsar's V1 writer loses such an entry)."""
    layout = SegmentLayout(block_bytes=1000, part_bytes=4000)
    payloads = [b"a" * 10, b"b" * 5000, b"c" * 10]
    builder, parts = build(layout, [EntryBatch(1, 0, payloads)])
    assert [block.entry_count for block in builder.blocks] == [1, 1, 1]
    assert builder.blocks[1].length == 5000 + 12 + 128 + 4
    assert [payload for _, _, payload in read_back(builder, parts)] == payloads


def test_every_block_ends_in_at_least_four_pad_bytes() -> None:
    """Trap T1 and T2: Pulsar's reader needs padding behind the last entry of every block."""
    builder, parts = build(SegmentLayout(block_bytes=500, part_bytes=900), [EntryBatch(1, 0, [b"x" * 90] * 20)])
    data = b"".join(piece for part in parts for piece in part.pieces)
    assert len(builder.blocks) > 2
    assert all(data[: block.offset + block.length].endswith(b"\xfe\xdc\xde\xad") for block in builder.blocks)


def test_a_limit_takes_up_to_the_entry_that_reaches_it() -> None:
    """A segment is cut at an entry: the first that brings it to its size, however large the batch."""
    builder = SegmentBuilder(ID, SegmentLayout(block_bytes=4096, part_bytes=8192), assigned_ms=1)
    batch = EntryBatch(1, 0, [b"x" * 100] * 50)
    assert builder.add(batch, 1_050).last_entry_id == 10
    assert builder.payload_bytes == 1100
    assert builder.entries == 11


def test_the_manifest_parts_tell_open_from_closed_ledgers() -> None:
    """A closed ledger is described whole, an open one up to the last entry that the segment holds."""
    batches = [EntryBatch(3, 40, [b"ab"] * 10), EntryBatch(9, 0, [b"c"])]
    builder, _ = build(SegmentLayout(block_bytes=500, part_bytes=900), batches)
    known = {3: LedgerInfo(ledger_id=3, closed=True, entries=50, size_bytes=777, closed_at_ms=5)}
    first, second = builder.ledgers(known.get)
    assert (first.first_entry_id, first.last_entry_id, first.payload_bytes) == (40, 49, 20)
    assert (first.closed, first.ledger_entries, first.ledger_bytes, first.closed_ms) == (True, 50, 777, 5)
    assert (second.closed, second.ledger_entries, second.ledger_bytes, second.closed_ms) == (False, 1, 0, 0)


def test_blocks_carry_broker_timestamps_and_indexes() -> None:
    """PIP-70: first and last of each block; entries without the head leave them out."""
    entries = [encode_head(broker_timestamp=1000 + i, index=i) + b"message" for i in range(4)]
    builder, _ = build(SegmentLayout(block_bytes=5000, part_bytes=9000), [EntryBatch(1, 0, [*entries, b"plain"])])
    block = builder.blocks[0]
    assert (block.first_broker_timestamp, block.first_index) == (1000, 0)
    assert (block.last_broker_timestamp, block.last_index) == (None, None)
    assert block.survey == Survey(time_min=1000, time_max=1003, untimed=1, index_max=3)
    assert (block.first_time, block.first_publish_time) == (1000, None)


def test_sparse_positions_point_at_entries() -> None:
    """Inside a large block the manifest names the first entry of each chunk of 64 KiB, with its byte."""
    builder, parts = build(
        SegmentLayout(block_bytes=1 << 20, part_bytes=2 << 20), [EntryBatch(1, 7, [b"z" * 1000] * 900)]
    )
    block = builder.blocks[0]
    data = b"".join(parts[0].pieces)
    assert [at // (64 << 10) for _, at in block.sparse] == list(range(1, 14))
    for entry, at in block.sparse:
        assert data[at : at + 12] == (1000).to_bytes(4, "big") + (7 + entry).to_bytes(8, "big")


def test_blocks_have_their_chunks_and_records_do_not() -> None:
    """Who has cut a block says of each chunk what it holds; of one that is recorded only the whole is known."""
    layout = SegmentLayout(block_bytes=1000, part_bytes=900)
    builder, parts = SegmentBuilder(ID, layout, assigned_ms=1, chunk_bytes=300), []
    builder.add(EntryBatch(1, 0, [b"x" * 150] * 20))
    builder.finish_blocks()
    while builder.pending_bytes:
        parts.append(builder.cut_part(last=not builder.part_ready))
    assert len(builder.blocks) > 3
    for part in parts:
        (block,) = part.blocks
        assert checksums(part.pieces[0], 0, block.length, 300) == (block.crc32c, block.chunks)
        assert bool(block.chunks) == (block.length > 300)
        (recorded,) = stored_part("e", part.size_bytes, (block,)).blocks
        assert recorded == replace(block, chunks=b"")
        assert b"\xb2\x01" not in stored_part("e", part.size_bytes, (block,)).encoded  # the field's tag
    again = SegmentBuilder(ID, layout, assigned_ms=1, chunk_bytes=300)
    again.restore(stored(parts[:2]))
    assert [bool(block.chunks) for block in again.blocks] == [False, False]


def stored(parts: list[CutPart]) -> list[StoredPart]:
    """Return parts as they are recorded once they are in the bucket."""
    return [stored_part(md5(*part.pieces), part.size_bytes, part.blocks) for part in parts]


@given(
    ledgers=sizes,
    block=st.integers(200, 700),
    part=st.integers(300, 2000),
    preamble=st.booleans(),
    kept=st.integers(0, 9),
)
@example(ledgers=[[56] * 5], block=200, part=400, preamble=False, kept=1)  # blocks that fill their parts exactly
def test_a_segment_goes_on_behind_any_part(
    ledgers: list[list[int]], block: int, part: int, preamble: bool, kept: int
) -> None:
    """Restored from its first parts and given what follows them, it is what it would have been: bytes, blocks, sums."""
    layout = SegmentLayout(block_bytes=block, part_bytes=part, preamble=preamble)
    batches = [
        EntryBatch(ledger, 0, [bytes([number % 256]) * size for number, size in enumerate(lengths)])
        for ledger, lengths in enumerate(ledgers)
    ]
    whole, parts = build(layout, batches)
    kept = min(kept, len(parts))
    again = SegmentBuilder(ID, layout, assigned_ms=1)
    again.restore(stored(parts[:kept]))
    assert again.end == (parts[kept - 1].end if kept else None)
    for batch in batches:
        behind = 0
        if again.end is not None and again.end.ledger_id >= batch.ledger_id:
            behind = again.end.entry_id + 1 if again.end.ledger_id == batch.ledger_id else len(batch.payloads)
        if behind < len(batch.payloads):
            again.add(batch.between(behind, batch.last_entry_id))
    again.finish_blocks()
    planned, rest = again.planned(), []
    while again.pending_bytes:
        rest.append(again.cut_part(last=not again.part_ready))
    assert planned == (whole.object_bytes, len(parts)) == (again.object_bytes, again.part_count)
    assert [b"".join(one.pieces) for one in rest] == [b"".join(one.pieces) for one in parts[kept:]]
    assert [one.part_number for one in rest] == [one.part_number for one in parts[kept:]]
    assert again.blocks == whole.blocks
    assert again.ledgers(lambda _: None) == whole.ledgers(lambda _: None)
    assert (again.payload_bytes, again.entries, again.range) == (whole.payload_bytes, whole.entries, whole.range)


def test_parts_that_are_no_beginning_of_a_segment_are_refused() -> None:
    """In another order, with a gap, of another size or of nothing: told before anything is built on them."""
    layout = SegmentLayout(block_bytes=500, part_bytes=900)
    _, parts = build(layout, [EntryBatch(1, 0, [b"x" * 90] * 40)])
    first, second, third, *_ = stored(parts)
    block, gap = replace(first.blocks[0], entry_count=0), replace(first.blocks[1], first_entry_id=5)
    wrong = [
        [second],
        [first, third],
        [first, first],
        [stored_part(first.etag, first.size_bytes + 1, first.blocks)],
        [stored_part(first.etag, first.size_bytes, (block, *first.blocks[1:]))],
        [stored_part(first.etag, first.size_bytes, (first.blocks[0], gap, *first.blocks[2:]))],
        [stored_part(first.etag, first.size_bytes, (replace(first.blocks[0], length=100), *first.blocks[1:]))],
    ]
    for parts_of_nothing in wrong:
        with pytest.raises(InvalidInput):
            SegmentBuilder(ID, layout, assigned_ms=1).restore(parts_of_nothing)
