"""Objects that Pulsar's own classes wrote, and the first of our own: added to, never edited.

The files are hexadecimal. Those of V1 and V2 carry the SHA-256 that Pulsar's output had.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from uuid import UUID

import pytest

from offloaderd.core.errors import CorruptData
from offloaderd.core.model import EntryBatch, Position
from offloaderd.format import head, manifest_bytes, v1, v2
from offloaderd.format.head import HeadSegment, PlaceMarker, TopicHead
from offloaderd.format.pb.bookkeeper.data_formats_pb2 import LedgerMetadataFormat
from offloaderd.format.pb.pulsar.ml_data_formats_pb2 import LedgerInfo
from offloaderd.format.pulsar import broker_entry
from offloaderd.format.v1_and_v2 import IndexEntry
from offloaderd.testing.builders import decode_block, encode_ledger
from tests.unit.format import builders

SHA256 = {
    "v1-data": "85e6832f8ba5f4bb25d2c071898e2b68236d0c44c64dd0717970755b2c123946",
    "v1-index": "412cfbf89b1123d3b5669e3f7ed7e5e3370336b43316f18aa681ee32735e0d82",
    "v2-data": "71e603fe83eb99ea920c26b2b7d833d9d4d908f4aeaf3f5982bb5c9cf5a4f483",
    "v2-index": "2d93638fd6dbf8fef93b0b38537bc8d6dfcf16fb069a83c1d03883d5f0a716a5",
}
V1_PAYLOADS = [bytes((31 * i + k) % 256 for k in range(size)) for i, size in enumerate((3, 2, 10, 20, 1))]
PIP70_HEAD = bytes.fromhex("0e 02 00 00 00 09 08 80 d0 95 ff bc 31 10 00")


def golden(name: str) -> bytes:
    """Return the bytes of a golden file."""
    return bytes.fromhex((Path(__file__).parent / f"{name}.hex").read_text(encoding="ascii"))


@pytest.mark.parametrize("name", SHA256)
def test_golden_files_are_what_pulsar_wrote(name: str) -> None:
    """The files still have the checksums that Pulsar's output had."""
    assert hashlib.sha256(golden(name)).hexdigest() == SHA256[name]


def test_v1_data_is_written_as_by_pulsar() -> None:
    """Five entries under a greatest block of 180 bytes give the two blocks that Pulsar gives."""
    blocks = list(encode_ledger(V1_PAYLOADS, entry_count=5, payload_bytes=36, block_bytes_max=180))
    assert [block.length for block in blocks] == [180, 173]
    assert b"".join(chunk for block in blocks for chunk in block.chunks) == golden("v1-data")


def test_v1_index_is_written_as_by_pulsar() -> None:
    """The index with BookKeeper's metadata has Pulsar's bytes."""
    metadata = builders.ledger_metadata(5, 36)
    entries = [IndexEntry(0, 1, 0), IndexEntry(3, 2, 180)]
    assert v1.encode_index(353, metadata, entries) == golden("v1-index")


def test_v1_objects_of_pulsar_are_read() -> None:
    """Pulsar's V1 index leads to Pulsar's V1 blocks and their entries."""
    index, data = v1.decode_index(golden("v1-index"), key="i"), golden("v1-data")
    assert index.data_bytes == len(data)
    assert index.entries == ((0, 1, 0), (3, 2, 180))
    assert index.ledger().lastEntryId == 4
    assert index.ledger().state == LedgerMetadataFormat.CLOSED
    assert decode_block(data[:180], ledger_id=12, key="d", at=0) == EntryBatch(12, 0, V1_PAYLOADS[:3])
    assert decode_block(data[180:], ledger_id=12, key="d", at=180) == EntryBatch(12, 3, V1_PAYLOADS[3:])


def test_v2_data_is_written_as_by_pulsar() -> None:
    """Two short blocks under a least block of 192 bytes have Pulsar's bytes."""
    blocks = [
        v2.encode_block(7, 0, [b"abc", b"de"], block_bytes_min=192),
        v2.encode_block(9, 0, [b"xyz!"], block_bytes_min=192),
    ]
    assert [block.length for block in blocks] == [192, 192]
    assert b"".join(chunk for block in blocks for chunk in block.chunks) == golden("v2-data")


def test_v2_index_is_written_as_by_pulsar() -> None:
    """One closed and one open ledger give Pulsar's 115 bytes."""
    closed = LedgerInfo(ledgerId=7, entries=2, size=5, timestamp=1_700_000_000_000).SerializeToString()
    still_open = LedgerInfo(ledgerId=9, entries=1, timestamp=0).SerializeToString()
    groups = [
        v2.LedgerIndex(9, still_open, (IndexEntry(0, 2, 192),)),
        v2.LedgerIndex(7, closed, (IndexEntry(0, 1, 0),)),
    ]
    assert v2.encode_index(384, groups) == golden("v2-index")


def test_v2_objects_of_pulsar_are_read() -> None:
    """Pulsar's V2 index leads to Pulsar's V2 blocks and their entries."""
    index, data = v2.decode_index(golden("v2-index"), key="i"), golden("v2-data")
    assert index.extents() == [(7, 0, 0, 192), (9, 0, 192, 192)]
    assert index.floor(Position(9, 0)) == IndexEntry(0, 2, 192)
    assert [group.info().entries for group in index.groups] == [2, 1]
    assert v2.decode_block(data[:192], key="d", at=0) == EntryBatch(7, 0, [b"abc", b"de"])
    assert v2.decode_block(data[192:], key="d", at=192) == EntryBatch(9, 0, [b"xyz!"])


def test_broker_entry_metadata_example() -> None:
    """The PIP-70 example is written and read, with the client's bytes after it."""
    assert broker_entry.encode_head(broker_timestamp=1_700_000_000_000, index=0) == PIP70_HEAD
    assert broker_entry.read_head(PIP70_HEAD + b"\x0e\x01rest") == broker_entry.BrokerEntry(1_700_000_000_000, 0)


def test_first_version_of_the_manifest_stays_readable() -> None:
    """The manifest as version 1 wrote it is still written and read the same."""
    described = builders.small_segment(preamble=True).manifest
    assert manifest_bytes.decode(golden("manifest-1"), key="m") == described
    assert manifest_bytes.encode(described) == golden("manifest-1")


def test_first_manifest_with_chunks_stays_readable() -> None:
    """The first manifest with checksums of chunks is still written and read the same."""
    described = builders.chunked_segment().manifest
    assert manifest_bytes.decode(golden("manifest-chunks"), key="m") == described
    assert manifest_bytes.encode(described) == golden("manifest-chunks")


def test_preamble_shifts_every_offset() -> None:
    """With the preamble the object begins with a negative number and its first block is at byte 4."""
    with_it, without = builders.small_segment(preamble=True), builders.small_segment()
    assert with_it.data == bytes.fromhex("fe dc de ad") + without.data
    offsets = [extent.offset for extent in v2.decode_index(with_it.index, key="i").extents()]
    assert offsets == [extent.offset + 4 for extent in v2.decode_index(without.index, key="i").extents()]
    assert v2.decode_index(with_it.index, key="i").data_bytes == len(with_it.data)


HEAD = TopicHead(
    managed_ledger="public/default/persistent/orders",
    cluster="pulsar",
    epoch=4,
    newest=HeadSegment(
        segment_id=UUID("11223344-5566-7788-99aa-bbccddeeff00"),
        begin=Position(7, 3),
        end=Position(9, 1),
        bucket="offload",
        prefix="seg/",
    ),
    history=HeadSegment(
        segment_id=UUID("00ffeedd-ccbb-aa99-8877-665544332211"),
        begin=Position(2, 0),
        end=Position(3, 9),
        bucket="offload",
        prefix="",
        ledger_based=True,
    ),
    deployment_id="00ffeedd-ccbb-aa99-8877-665544332211",
    put_ms=1_700_000_000_000,
)
MARKER = PlaceMarker(
    deployment_id="00ffeedd-ccbb-aa99-8877-665544332211",
    cluster="pulsar",
    daemon_id="d-1",
    since_ms=1_700_000_000_000,
    before="11223344-5566-7788-99aa-bbccddeeff00",
)


def test_the_first_head_is_read_and_written_as_it_was() -> None:
    """What a release has put lies in somebody's bucket, and an older one reads it during an upgrade."""
    assert head.decode_head(golden("head-1"), key="k") == HEAD
    assert head.encode_head(HEAD) == golden("head-1")


def test_the_first_marker_is_read_and_written_as_it_was() -> None:
    """Else a deployment would not know its own place."""
    assert head.decode_marker(golden("marker-1"), key="k") == MARKER
    for decode, other in ((head.decode_head, "marker-1"), (head.decode_marker, "head-1")):
        with pytest.raises(CorruptData, match="magic"):
            decode(golden(other), key="k")
    assert head.encode_marker(MARKER) == golden("marker-1")
