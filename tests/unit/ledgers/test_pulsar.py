"""Pulsar's list of ledgers: every form that brokers write is read, and hostile bytes give CorruptData alone."""

from __future__ import annotations

import zlib
from contextlib import suppress
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.core.errors import CorruptData
from offloaderd.core.model import LedgerOffload, Position
from offloaderd.format.pb.pulsar import ml_data_formats_pb2 as pb
from offloaderd.ledgers.pulsar.managed_ledger import (
    MAGIC,
    ListedLedger,
    ManagedLedger,
    PulsarOffload,
    content_of,
    decode,
)
from tests.real.pulsar_nodes import Compression, compressed, encode, zlib_unfinished

KEY = "/managed-ledgers/a/b/persistent/c"

FROM_A_BROKER = {
    "LZ4": "47780000000408011022f0130a0e0802100518840220bceb84ea9f340a04080320001a0a0a05696e646578120134",
    "ZSTD": "4778000000040803102228b52ffd24221101000a0e0802100518840220d8cd85ea9f340a04080320001a0a0a05696e646578120134"
    "ec70f112",
    "SNAPPY": "4778000000040804102222840a0e0802100518840220f9bd86ea9f340a04080320001a0a0a05696e646578120134",
    "ZLIB": "47780000000408021022789ce2e2e360126095686152b8b1b9fdd57c132e160e660506292e2ed6ccbc"
    "94d40a21461300000000ffff",
}
"""Nodes that a broker of Pulsar 4.0.7 wrote: one closed ledger, one open, `index` 4."""


def listing(ledgers: int = 3) -> pb.ManagedLedgerInfo:
    """Return a list whose last ledger is open."""
    message = pb.ManagedLedgerInfo()
    for number in range(1, ledgers):
        message.ledgerInfo.add(ledgerId=10 * number, entries=5, size=100, timestamp=1_700_000_000_000)
    message.ledgerInfo.add(ledgerId=10 * ledgers, timestamp=0)
    return message


def test_plain() -> None:
    """All that the list says of a ledger arrives, and what it does not say is None and not 0."""
    message = listing(2)
    message.ledgerInfo[0].offloadContext.complete = True
    message.ledgerInfo[0].offloadContext.bookkeeperDeleted = True
    message.ledgerInfo[0].offloadContext.offloadSegment.add(uidMsb=1)
    message.ledgerInfo[0].properties.add(key="k", value="v")
    message.terminatedPosition.ledgerId, message.terminatedPosition.entryId = 10, 4
    message.properties.add(key="index", value="-1")
    first = ListedLedger(
        ledger_id=10,
        entries=5,
        size_bytes=100,
        closed_at_ms=1_700_000_000_000,
        offload=PulsarOffload(complete=True, bookkeeper_deleted=True, segments=1),
        properties={"k": "v"},
    )
    found = decode(message.SerializeToString(), key=KEY)
    assert found == ManagedLedger(
        ledgers=(first, ListedLedger(ledger_id=20)), terminated_at=Position(10, 4), properties={"index": "-1"}
    )
    assert [ledger.closed for ledger in found.ledgers] == [True, False]


def test_bytes_of_pulsar() -> None:
    """The field numbers are Pulsar's: bytes put together by hand are read."""
    node = bytes.fromhex("0a0d 0807 1002 1805 2080d095ffbc31 0a04 0809 2000")
    assert decode(node, key=KEY).ledgers == (
        ListedLedger(ledger_id=7, entries=2, size_bytes=5, closed_at_ms=1_700_000_000_000),
        ListedLedger(ledger_id=9),
    )


def test_whole_ledger_that_a_broker_offloaded() -> None:
    """Its object, its driver and when; one that is under way, of segments, or of no object is not offloaded whole."""
    message = listing(2)
    context = message.ledgerInfo[0].offloadContext
    context.complete, context.timestamp = True, 1_700_000_000_001
    context.uidMsb, context.uidLsb = 0x1122334455667788, -0x6655443322110100
    context.driverMetadata.name = "aws-s3"
    context.driverMetadata.properties.add(key="bucket", value="b")
    (first, second) = decode(message.SerializeToString(), key=KEY).ledgers
    assert first.offloaded == LedgerOffload(
        object_id=UUID("11223344-5566-7788-99aa-bbccddeeff00"),
        driver="aws-s3",
        properties={"bucket": "b"},
        offloaded_ms=1_700_000_000_001,
        source_deleted=False,
    )
    assert second.offloaded is None
    node = encode(ManagedLedger(ledgers=(first, second)))
    assert decode(node, key=KEY).ledgers == (first, second), "what tests write is what brokers write"
    context.offloadSegment.add(uidMsb=1)
    assert decode(message.SerializeToString(), key=KEY).ledgers[0].offloaded is None
    context.ClearField("offloadSegment")
    context.complete = False
    assert decode(message.SerializeToString(), key=KEY).ledgers[0].offloaded is None
    context.complete = True
    context.ClearField("uidMsb")
    assert decode(message.SerializeToString(), key=KEY).ledgers[0].offloaded is None


def test_empty() -> None:
    """An empty node is a topic without ledgers."""
    assert decode(b"", key=KEY) == ManagedLedger()


@pytest.mark.parametrize("kind", ["NONE", "ZLIB", "LZ4", "ZSTD", "SNAPPY"])
class TestCompression:
    """Every type of compression."""

    def test_from_a_broker(self, kind: Compression) -> None:
        """What a real broker wrote is read, and what the tests write in its place is the same to the byte."""
        if kind in FROM_A_BROKER:
            node = bytes.fromhex(FROM_A_BROKER[kind])
            if kind != "ZSTD":  # there another library writes another frame
                assert compressed(content_of(node, key=KEY)[0], kind) == node
            found = decode(node, key=KEY)
            assert [(each.ledger_id, each.entries, each.size_bytes) for each in found.ledgers] == [
                (2, 5, 260),
                (3, None, None),
            ]
            assert [each.closed for each in found.ledgers] == [True, False]
            assert found.properties == {"index": "4"}

    def test_round_trip(self, kind: Compression) -> None:
        """The content is the same as of the plain node."""
        plain = listing(2000).SerializeToString()
        node = compressed(plain, kind)
        assert (len(node) < len(plain)) == (kind != "NONE")
        assert decode(node, key=KEY) == decode(plain, key=KEY)

    @pytest.mark.parametrize("excess", [-1, 1, 1000])
    def test_wrong_size(self, kind: Compression, excess: int) -> None:
        """A content of another length than declared is corrupt, with the place where it begins."""
        plain = listing().SerializeToString()
        node = compressed(plain, kind, len(plain) + excess)
        with pytest.raises(CorruptData, match=f"bytes compressed by {kind}") as caught:
            decode(node, key=KEY)
        assert caught.value.offset == 6 + node[5]
        assert caught.value.key == KEY

    def test_bomb(self, kind: Compression) -> None:
        """More than the cap is not even tried, whatever the head declares."""
        plain = listing(100).SerializeToString()
        with pytest.raises(CorruptData, match="at most 1000 bytes") as caught:
            decode(compressed(plain, kind), key=KEY, content_bytes_max=1000)
        assert caught.value.offset == 6

    def test_any_damage(self, kind: Compression) -> None:
        """Cut anywhere or with any one byte changed, a node is read or is corrupt, and nothing else happens."""
        node = compressed(listing().SerializeToString(), kind)
        for at in range(len(node)):
            for damaged in (node[:at], node[:at] + bytes([node[at] ^ 0x55]) + node[at + 1 :]):
                with suppress(CorruptData):
                    decode(damaged, key=KEY)


@given(st.binary(max_size=200))
def test_noise(noise: bytes) -> None:
    """Bytes of no meaning are corrupt or an odd list, never another error, with and without the magic."""
    for node in (noise, MAGIC + noise, MAGIC + b"\0\0\0\4\x08\2\x10\x40" + noise):
        caught = None
        try:
            decode(node, key=KEY)
        except CorruptData as error:
            caught = error
        assert caught is None or (caught.key == KEY and 0 <= caught.offset <= len(node))


@pytest.mark.parametrize(
    ("node", "offset", "message"),
    [
        (MAGIC, 2, "a head of at most 0 bytes"),
        (MAGIC + b"\0\0\0\5\x08\0\x10\0", 2, "found 5"),
        (MAGIC + b"\xff\xff\xff\xff\x08\0\x10\0", 2, "found -1"),
        (MAGIC + b"\0\0\0\2\x08\0", 6, "all required fields"),
        (MAGIC + b"\0\0\0\4\x08\x09\x10\0", 6, "all required fields"),
        (MAGIC + b"\0\0\0\4\x08\0\x10\2\xff\xff", 10, "ManagedLedgerInfo"),
    ],
)
def test_where_it_is_broken(node: bytes, offset: int, message: str) -> None:
    """The offset is that of the field that is wrong."""
    with pytest.raises(CorruptData, match=message) as caught:
        decode(node, key=KEY)
    assert caught.value.offset == offset


def test_finished_zlib() -> None:
    """A stream that was finished is read too; bytes behind its end are not overlooked."""
    plain = listing().SerializeToString()
    head = compressed(plain, "ZLIB")[: -len(zlib_unfinished(plain))]
    assert len(decode(head + zlib.compress(plain), key=KEY).ledgers) == 3
    with pytest.raises(CorruptData, match="behind the end"):
        decode(head + zlib.compress(plain) + b"x", key=KEY)


@pytest.mark.parametrize("field", ["ledgerId", "entries", "size", "timestamp"])
def test_negative_numbers(field: str) -> None:
    """A negative number is corrupt, and the message names it."""
    message = listing()
    setattr(message.ledgerInfo[0], field, -1)
    with pytest.raises(CorruptData, match=field):
        decode(message.SerializeToString(), key=KEY)


def test_where_a_compressed_list_is_broken() -> None:
    """Of a compressed list the offset is where its content begins: there are no finer places in the node."""
    message = listing()
    message.ledgerInfo[1].entries = -1
    node = compressed(message.SerializeToString(), "ZLIB")
    with pytest.raises(CorruptData, match="entries of ledger 20") as caught:
        decode(node, key=KEY)
    assert caught.value.offset == 6 + node[5]


def test_a_ledger_that_is_there_twice_is_corrupt() -> None:
    """One of the two would be lost, or read again."""
    message = listing(2)
    message.ledgerInfo[1].ledgerId = 10
    with pytest.raises(CorruptData, match="above 10"):
        decode(message.SerializeToString(), key=KEY)


def test_a_list_in_the_order_of_a_hash_table_is_sorted() -> None:
    """So a broker writes it when it notes that a ledger is offloaded."""
    message = listing(2)
    message.ledgerInfo[1].ledgerId = 9
    assert [one.ledger_id for one in decode(message.SerializeToString(), key=KEY).ledgers] == [9, 10]
