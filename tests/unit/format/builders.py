"""Whole objects for the tests of the formats: small segments and ledgers, and ways to spoil them."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING
from uuid import UUID

import google_crc32c
from hypothesis import strategies as st

from offloaderd.format import v1, v2
from offloaderd.format.manifest import BlockInfo, LedgerPart, SegmentManifest
from offloaderd.format.pb.bookkeeper.data_formats_pb2 import LedgerMetadataFormat
from offloaderd.format.pb.pulsar.ml_data_formats_pb2 import LedgerInfo
from offloaderd.format.pulsar.entry_time import block_times
from offloaderd.format.v1_and_v2 import IndexEntry
from offloaderd.testing.builders import Block, encode_ledger

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

KEY = "some/object"
SEGMENT_ID = UUID("11223344-5566-7788-99aa-bbccddeeff00")


@dataclass(frozen=True, slots=True)
class Run:
    """Entries for one block."""

    ledger_id: int
    first_entry_id: int
    payloads: list[bytes]


@dataclass(frozen=True, slots=True)
class Segment:
    """All three objects of a V2 segment, and what went in."""

    runs: tuple[Run, ...]
    data: bytes
    index: bytes
    manifest: SegmentManifest


def build_segment(
    runs: Sequence[Run], *, block_bytes_min: int = 0, preamble: bool = False, times: bool = True, chunk_bytes: int = 0
) -> Segment:
    """Write the objects of a segment whose blocks are `runs`.

    Without `times`, and without `chunk_bytes`, the manifest is one of older versions.
    """
    data = v2.PREAMBLE if preamble else b""
    blocks: list[BlockInfo] = []
    for run in runs:
        encoded = v2.encode_block(run.ledger_id, run.first_entry_id, run.payloads, block_bytes_min=block_bytes_min)
        block = b"".join(encoded.chunks)
        described = _describe(run, len(data), block, chunk_bytes)
        blocks.append(replace(described, **block_times(run.payloads)._asdict()) if times else described)
        data += block
    parts = tuple(
        _part([run for run in runs if run.ledger_id == ledger_id])
        for ledger_id in dict.fromkeys(run.ledger_id for run in runs)
    )
    index = v2.encode_index(len(data), index_groups(blocks))
    manifest = SegmentManifest(
        segment_id=SEGMENT_ID,
        managed_ledger="public/default/persistent/flights",
        cluster="standalone",
        epoch=3,
        assigned_ms=1_700_000_000_000,
        sealed_ms=1_700_000_600_000,
        data_bytes=len(data),
        preamble_bytes=len(v2.PREAMBLE) if preamble else 0,
        index_bytes=len(index),
        index_crc32c=google_crc32c.value(index),
        ledgers=parts,
        blocks=tuple(blocks),
        software_version="0.1.0",
        chunk_bytes=chunk_bytes if any(block.chunks for block in blocks) else 0,
    )
    return Segment(tuple(runs), data, index, manifest)


def index_groups(blocks: Sequence[BlockInfo]) -> list[v2.LedgerIndex]:
    """Return an index group for each ledger of the blocks."""
    groups = []
    for ledger_id in dict.fromkeys(block.ledger_id for block in blocks):
        entries = tuple(
            IndexEntry(block.first_entry_id, number, block.offset)
            for number, block in enumerate(blocks, start=1)
            if block.ledger_id == ledger_id
        )
        groups.append(v2.LedgerIndex(ledger_id, ledger_info(ledger_id), entries))
    return groups


def ledger_info(ledger_id: int) -> bytes:
    """Return an encoded LedgerInfo."""
    return LedgerInfo(ledgerId=ledger_id, entries=2, size=5, timestamp=1_700_000_000_000).SerializeToString()


def _describe(run: Run, offset: int, block: bytes, chunk_bytes: int) -> BlockInfo:
    starts = list(accumulate(run.payloads, lambda at, payload: at + len(payload) + 12, initial=128))
    end = starts.pop()
    sparse = tuple((entry, starts[entry]) for entry in range(1, len(run.payloads), 2))
    chunks = b""
    if 0 < chunk_bytes < len(block):
        pieces = [block[at : at + chunk_bytes] for at in range(0, len(block), chunk_bytes)]
        chunks = b"".join(google_crc32c.value(piece).to_bytes(4, "big") for piece in pieces)
        numbers = [start // chunk_bytes for start in starts]
        firsts = [entry for entry in range(1, len(starts)) if numbers[entry] > numbers[entry - 1]]
        sparse = tuple((entry, starts[entry]) for entry in firsts)
    return BlockInfo(
        ledger_id=run.ledger_id,
        first_entry_id=run.first_entry_id,
        entry_count=len(run.payloads),
        offset=offset,
        length=len(block),
        crc32c=google_crc32c.value(block),
        sparse=sparse,
        first_broker_timestamp=1_700_000_000_000,
        first_index=offset,
        pad_bytes=len(block) - end,
        chunks=chunks,
    )


def _part(runs: Sequence[Run]) -> LedgerPart:
    last_entry_id = runs[-1].first_entry_id + len(runs[-1].payloads) - 1
    return LedgerPart(
        ledger_id=runs[0].ledger_id,
        first_entry_id=runs[0].first_entry_id,
        last_entry_id=last_entry_id,
        payload_bytes=sum(len(payload) for run in runs for payload in run.payloads),
        closed=True,
        ledger_entries=last_entry_id + 1,
        ledger_bytes=10**6,
        closed_ms=1_700_000_500_000,
    )


def small_segment(*, preamble: bool = False) -> Segment:
    """Three blocks over two ledgers, the first of which begins before the segment."""
    runs = (Run(7, 41, [b"abc", b"", b"de"]), Run(7, 44, [b"f"]), Run(9, 0, [b"xyz!", b"0123456789"]))
    return build_segment(runs, preamble=preamble, times=False)


def chunked_segment() -> Segment:
    """One block in chunks of 64 bytes."""
    return build_segment([Run(7, 41, [b"a" * 30, b"", b"b" * 90, b"c" * 5, b"d" * 50])], chunk_bytes=64)


def ledger_metadata(entry_count: int, payload_bytes: int) -> bytes:
    """Return an encoded LedgerMetadataFormat of a closed ledger on one bookie."""
    message = LedgerMetadataFormat(
        quorumSize=1,
        ensembleSize=1,
        length=payload_bytes,
        lastEntryId=entry_count - 1,
        state=LedgerMetadataFormat.CLOSED,
        digestType=LedgerMetadataFormat.CRC32C,
        ackQuorumSize=1,
        ctime=1_700_000_000_000,
    )
    message.segment.add(ensembleMember=["127.0.0.1:3181"], firstEntryId=0)
    message.customMetadata.add(key="application", value=b"pulsar")
    return message.SerializeToString(deterministic=True)


def build_ledger(payloads: Sequence[bytes], *, block_bytes_max: int) -> tuple[list[Block], bytes, bytes]:
    """Write the V1 objects of a ledger: blocks, data and index."""
    size = sum(map(len, payloads))
    blocks = list(
        encode_ledger(payloads, entry_count=len(payloads), payload_bytes=size, block_bytes_max=block_bytes_max)
    )
    data = b"".join(chunk for block in blocks for chunk in block.chunks)
    entries = [block.index_entry for block in blocks]
    return blocks, data, v1.encode_index(len(data), ledger_metadata(len(payloads), size), entries)


def sealed(body: bytes) -> bytes:
    """Return a manifest object with a right header round any body."""
    head = struct.pack(">IIQI", 0x8F4F464D, 1, len(body), 0)
    return head + struct.pack(">I", google_crc32c.value(head + body)) + body


def flips(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, copy) for every copy of `data` with one bit flipped."""
    for offset in range(len(data)):
        for bit in range(8):
            copy = bytearray(data)
            copy[offset] ^= 1 << bit
            yield offset, bytes(copy)


payload_lists = st.lists(st.binary(max_size=40), min_size=1, max_size=12)


@st.composite
def run_lists(draw: st.DrawFn) -> list[Run]:
    """Draw blocks as a segment has them: ledgers ascending, entries consecutive in each."""
    runs: list[Run] = []
    ledger_ids = draw(st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=3, unique=True))
    for ledger_id in sorted(ledger_ids):
        entry_id = draw(st.integers(0, 2**62))
        for payloads in draw(st.lists(payload_lists, min_size=1, max_size=3)):
            runs.append(Run(ledger_id, entry_id, payloads))
            entry_id += len(payloads)
    return runs


segments = st.builds(
    build_segment,
    run_lists(),
    block_bytes_min=st.sampled_from([0, 192, 500]),
    preamble=st.booleans(),
    chunk_bytes=st.sampled_from([0, 1, 20, 64, 200]),
)
