"""V1 objects as releases of Pulsar since 2.2 wrote them: one layout, with more and more said in the index.

Put together by hand after `OffloadIndexBlockImpl.toStream` and `buildLedgerMetadataFormat` of each release.
"""

from __future__ import annotations

import struct

import pytest

from offloaderd.core.errors import CorruptData
from offloaderd.format.pb.bookkeeper.data_formats_pb2 import LedgerMetadataFormat
from offloaderd.format.v1 import decode_index
from offloaderd.testing.builders import decode_block

DATA = (
    struct.pack(">Iqqq100x", 0xFBDBABCB, 128, 180, 0)
    + struct.pack(">iq3s", 3, 0, b"abc")
    + struct.pack(">iq12s", 12, 1, b"0123456789ab")
    + bytes.fromhex("fedcdead fedcdead fedcdead fe")
    + struct.pack(">Iqqq100x", 0xFBDBABCB, 128, 141, 2)
    + struct.pack(">iqs", 1, 2, b"z")
)
CUSTOM: dict[str, dict[str, bytes]] = {
    "2.2": {},  # BookKeeper 4.7: nothing is said of whose ledger it is
    "2.5": {"application": b"pulsar", "component": b"managed-ledger", "pulsar/managed-ledger": b"a/b/persistent/c"},
    "2.8": {
        "application": b"pulsar",
        "component": b"managed-ledger",
        "pulsar/managed-ledger": b"a/b/persistent/c",
        "pulsar/cursor": b"",
    },
}


def metadata(release: str) -> bytes:
    """Return the ledger's metadata by that release."""
    message = LedgerMetadataFormat(
        quorumSize=2,
        ensembleSize=2,
        length=16,
        lastEntryId=2,
        state=LedgerMetadataFormat.CLOSED,
        digestType=LedgerMetadataFormat.CRC32C if release != "2.2" else LedgerMetadataFormat.CRC32,
        ackQuorumSize=2,
        ctime=1_540_000_000_000,
    )
    # a bookie's id was its address before 2.8, and may be anything since
    members = ["bookie-0", "bookie-1"] if release == "2.8" else ["10.0.0.1:3181", "10.0.0.2:3181"]
    message.segment.add(firstEntryId=0, ensembleMember=members)
    for key, value in CUSTOM[release].items():
        message.customMetadata.add(key=key, value=value)
    return message.SerializeToString()


def index(release: str) -> bytes:
    """Return the index by that release."""
    said = metadata(release)
    head = struct.pack(">IiqqII", 0xDE47DE47, 32 + len(said) + 40, len(DATA), 128, 2, len(said))
    return head + said + struct.pack(">qiq", 0, 1, 0) + struct.pack(">qiq", 2, 2, 180)


@pytest.mark.parametrize("release", CUSTOM)
def test_objects_of_a_release(release: str) -> None:
    """Index and blocks are read, whatever the metadata leaves out."""
    found = decode_index(index(release), key="index")
    assert (found.data_bytes, found.ledger().lastEntryId, found.ledger().length) == (len(DATA), 2, 16)
    ends = [*(entry.offset for entry in found.entries[1:]), found.data_bytes]
    payloads: list[bytes] = []
    for entry, end in zip(found.entries, ends, strict=True):
        batch = decode_block(DATA[entry.offset : end], ledger_id=9, key="data", at=entry.offset)
        assert batch.first_entry_id == len(payloads)
        payloads += batch.payloads
    assert payloads == [b"abc", b"0123456789ab", b"z"]


def test_layout_before_any_release() -> None:
    """The drafts of 2018 had neither the length of the data nor that of the header: they are refused."""
    said = metadata("2.2")
    draft = struct.pack(">IiII", 0xDE47DE47, 16 + len(said) + 20, len(said), 1) + said + struct.pack(">qiq", 0, 1, 0)
    with pytest.raises(CorruptData) as error:
        decode_index(draft, key="index")
    assert error.value.key == "index"
