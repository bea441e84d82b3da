"""The builder of a whole ledger's object, against the plain description of the format and across restarts."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.core.errors import InvalidInput
from offloaderd.core.model import EntryBatch, OffloadMethod
from offloaderd.format import v1
from offloaderd.format.v1 import LedgerLayout
from offloaderd.format.verify import decode_verified_block
from offloaderd.metadata.records.attempt import stored_part
from offloaderd.segment.builder import PART_COUNT_MAX, LedgerBuilder, LedgerCut
from offloaderd.testing.builders import encode_ledger

if TYPE_CHECKING:
    from offloaderd.segment.builder import CutPart

UUID_1 = UUID(int=1)
ledgers = st.lists(st.binary(max_size=60), min_size=1, max_size=60)


def layout(payloads: list[bytes], *, block: int = 400, run: int = 90, part: int = 200, extra: int = 0) -> LedgerLayout:
    """Describe a ledger of these payloads, with `extra` bytes that it does not have."""
    size = sum(map(len, payloads)) + extra
    return LedgerLayout(
        block_bytes=block,
        part_bytes=part,
        run_bytes=run,
        dense_index=False,
        entries=len(payloads),
        payload_bytes=size,
        metadata=b"",
    )


def cut(builder: LedgerBuilder, payloads: list[bytes], steps: list[int], *, first: int = 0) -> list[CutPart]:
    """Fill a builder in batches of these sizes, cutting parts as soon as they are ready; returns all of them."""
    parts = []
    at, step = first, 0
    while at < len(payloads):
        count = steps[step % len(steps)]
        builder.add(EntryBatch(12, at, payloads[at : at + count]))
        at, step = min(at + count, len(payloads)), step + 1
        while builder.part_ready:
            parts.append(builder.cut_part())
    builder.finish_blocks()
    while builder.pending_bytes:
        parts.append(builder.cut_part(last=not builder.part_ready))
    return parts


@given(ledgers, st.integers(130, 500), st.integers(13, 300), st.lists(st.integers(1, 9), min_size=1, max_size=3))
def test_the_object_is_pulsars_however_it_is_cut(payloads: list[bytes], block: int, run: int, steps: list[int]) -> None:
    """Blocks, padding and index equal those of whole blocks written one after the other; runs decode to the entries."""
    blocks = list(
        encode_ledger(payloads, entry_count=len(payloads), payload_bytes=sum(map(len, payloads)), block_bytes_max=block)
    )
    builder = LedgerBuilder(UUID_1, layout(payloads, block=block, run=run), assigned_ms=1)
    parts = cut(builder, payloads, steps)
    data = b"".join(piece for part in parts for piece in part.pieces)
    assert data == b"".join(chunk for one in blocks for chunk in one.chunks)
    assert v1.index_entries(builder.blocks, dense=False) == [one.index_entry for one in blocks]
    dense = v1.index_entries(builder.blocks, dense=True)
    assert [entry.first_entry_id for entry in dense] == [one.first_entry_id for one in builder.blocks]
    assert all(before.part_id <= after.part_id for before, after in pairwise(dense))
    found: list[bytes] = []
    for one in builder.blocks:
        piece = data[one.offset : one.offset + one.length]
        found += decode_verified_block(piece, one, key="k", method=OffloadMethod.LEDGER_BASED).payloads
    assert found == payloads


@given(ledgers, st.integers(130, 500), st.integers(0, 40))
def test_a_new_owner_goes_on_with_the_same_bytes(payloads: list[bytes], block: int, stored: int) -> None:
    """Restored from the first parts' records, the builder cuts the rest as the first one did."""
    whole = layout(payloads, block=block)
    parts = cut(LedgerBuilder(UUID_1, whole, assigned_ms=1), payloads, [5])
    kept = parts[: stored % len(parts)]
    builder = LedgerBuilder(UUID_1, whole, assigned_ms=1)
    builder.restore([stored_part("e", part.size_bytes, part.blocks) for part in kept])
    first = kept[-1].end.entry_id + 1 if kept else 0
    assert cut(builder, payloads, [3], first=first) == parts[len(kept) :]


def test_a_ledger_of_too_many_parts_has_longer_ones() -> None:
    """A store takes 10,000 parts of an object: without longer ones the ledger could never be completed."""
    payloads = [b"x" * 60] * (PART_COUNT_MAX + 100)
    sizes = LedgerCut(block_bytes=400, part_bytes=50, run_bytes=72)
    told = sizes.layout(entries=len(payloads), payload_bytes=sum(map(len, payloads)), metadata=b"")
    parts = cut(LedgerBuilder(UUID_1, told, assigned_ms=1), payloads, [100])
    assert len(parts) < PART_COUNT_MAX
    assert parts[-1].end.entry_id == len(payloads) - 1
    assert sizes.layout(entries=3, payload_bytes=180, metadata=b"").part_bytes == 50


@pytest.mark.parametrize(("extra", "text"), [(1, "less"), (-1, "more")])
def test_a_ledger_of_another_length_is_refused(extra: int, text: str) -> None:
    """Pulsar's writer would cut it short and report success."""
    payloads = [b"x" * 50] * 9
    builder = LedgerBuilder(UUID_1, layout(payloads, extra=extra), assigned_ms=1)
    with pytest.raises(InvalidInput, match=f"the ledger has {text} than the 9 entries of {450 + extra} bytes"):
        cut(builder, payloads, [4])


def test_fewer_and_more_entries_are_refused() -> None:
    """The number of entries counts as well, also where the bytes are right."""
    payloads = [b"", b"x", b""]
    for count, text in ((2, "more"), (4, "less")):
        told = layout(payloads)
        builder = LedgerBuilder(UUID_1, replace(told, entries=count), assigned_ms=1)
        with pytest.raises(InvalidInput, match=f"the ledger has {text}"):
            cut(builder, payloads, [3])


@pytest.mark.parametrize("change", [{"head_bytes": 0}, {"pad_bytes": 3}, {"offset": 5}])
def test_records_that_contradict_each_other_are_refused(change: dict[str, int]) -> None:
    """An attempt whose parts are not a row of runs in blocks cannot be resumed."""
    payloads = [b"y" * 40] * 20
    parts = cut(LedgerBuilder(UUID_1, layout(payloads), assigned_ms=1), payloads, [20])
    first = parts[0].blocks[0]
    broken = replace(first, **change)  # type: ignore[arg-type]
    builder = LedgerBuilder(UUID_1, layout(payloads), assigned_ms=1)
    with pytest.raises(InvalidInput):
        builder.restore([stored_part("e", parts[0].size_bytes, (broken, *parts[0].blocks[1:]))])
