"""Pulsar's own classes and ours write the same V1 objects, and each reads what the other has written."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from offloaderd.bookkeeper.metadata import index_metadata
from offloaderd.bookkeeper.wire.entry import DigestType
from offloaderd.core.clock import SystemClock
from offloaderd.core.entries import ENTRY_OVERHEAD_BYTES
from offloaderd.drill.s3_proxy import S3Proxy
from offloaderd.format import v1
from offloaderd.format.v1_and_v2 import IndexEntry
from offloaderd.objects import keys
from offloaderd.objects.s3.store import S3Store
from offloaderd.objects.settings import ObjectsSettings
from offloaderd.testing.builders import Block, encode_ledger
from tests.real.java_client import Ensemble
from tests.real.pulsar_offloader import BLOCK_BYTES_MIN, CLUSTER, OffloadTo, refused
from tests.real.pulsar_offloader import SOFTWARE_REVISION as REVISION
from tests.real.pulsar_offloader import SOFTWARE_VERSION as VERSION
from tests.real.writer import Plan, ledger_writer

if TYPE_CHECKING:
    import uuid
    from collections.abc import AsyncIterator, Callable, Sequence

    from tests.real.bookies import BookKeeperCluster
    from tests.real.java_client import DigestType as JavaDigest
    from tests.real.pulsar_offloader import PulsarOffloader
    from tests.real.writer import LedgerWriter
    from tests.servers import S3Server

CLOCK = SystemClock()
MANAGED_LEDGER = "public/default/persistent/orders%2F2"
CUSTOM = {
    "application": b"pulsar",
    "component": b"managed-ledger",
    "pulsar/managed-ledger": MANAGED_LEDGER.encode(),
    **{f"key-{number}": bytes([number]) for number in range(12)},
}
"""What brokers write, and more, so that the order of a table that has grown shows."""
SOFTWARE = {keys.SOFTWARE_VERSION_KEY: VERSION, keys.SOFTWARE_REVISION_KEY: REVISION}
JAVA_DIGESTS: dict[DigestType, JavaDigest] = {
    DigestType.CRC32: "CRC32",
    DigestType.HMAC: "MAC",
    DigestType.CRC32C: "CRC32C",
    DigestType.DUMMY: "DUMMY",
}
T = TypeVar("T")


@dataclass
class Closed:
    """A closed ledger of the cluster."""

    ledger_id: int
    payloads: list[bytes]
    metadata: bytes
    path: str

    @property
    def payload_bytes(self) -> int:
        """Its length."""
        return sum(map(len, self.payloads))

    def objects(self, block_bytes_max: int) -> tuple[bytes, bytes, list[Block]]:
        """Return data and index as we write them, and the blocks."""
        blocks = list(
            encode_ledger(
                self.payloads,
                entry_count=len(self.payloads),
                payload_bytes=self.payload_bytes,
                block_bytes_max=block_bytes_max,
            )
        )
        data = b"".join(chunk for block in blocks for chunk in block.chunks)
        return data, v1.encode_index(len(data), self.metadata, [block.index_entry for block in blocks]), blocks


@pytest.fixture
async def writer(bookkeeper: BookKeeperCluster) -> AsyncIterator[LedgerWriter]:
    """A writer of ledgers on the cluster."""
    async with ledger_writer(bookkeeper.zookeeper, CLOCK) as made:
        yield made


@pytest.fixture
async def store(s3_server: S3Server, s3_bucket: str) -> AsyncIterator[S3Store]:
    """The bucket."""
    options = ObjectsSettings(
        bucket=s3_bucket,
        endpoint=s3_server.endpoint,
        access_key=s3_server.access_key,
        secret_key=s3_server.secret_key,
    )
    async with S3Store(options) as made:
        yield made


@pytest.fixture
def to(s3_server: S3Server, s3_bucket: str) -> OffloadTo:
    """Where Pulsar's offloader works: the same bucket."""
    return OffloadTo.s3(s3_server, s3_bucket)


def some_bytes(number: int, length: int) -> bytes:
    """Return content that nobody mixes up."""
    return bytes((31 * number + k) % 256 for k in range(min(length, 256))) * (length // 256 + 1)


async def closed(writer: LedgerWriter, sizes: Sequence[int], plan: Plan | None = None) -> Closed:
    """Write a ledger with entries of these sizes and close it."""
    ledger = await writer.create(plan or Plan(custom=CUSTOM, ctime_ms=1_700_000_000_000))
    payloads = [some_bytes(number, size)[:size] for number, size in enumerate(sizes)]
    await ledger.add(payloads)
    await ledger.close()
    node = await writer.open(ledger.ledger_id)
    return Closed(ledger.ledger_id, payloads, index_metadata(node.metadata, node_created_ms=0), node.path)


def full_with(pad: int, block_bytes_max: int) -> list[int]:
    """Return sizes of three entries that leave so many pad bytes in the first of two blocks."""
    room = block_bytes_max - v1.BLOCK_HEADER_BYTES - pad
    return [room // 2 - 12, room - room // 2 - 12, max(pad, 40)]


SMALL: dict[str, tuple[int, list[int]]] = {
    "the worked example": (180, [3, 2, 10, 20, 1]),
    "one block": (1 << 20, [100] * 50),
    "an entry a block": (200, [50] * 9),
    "empty entries": (300, [0] * 40),
    "mixed sizes": (4096, [(number * 997) % 3900 for number in range(300)]),
    "more entries than one read": (5_000, [10] * 1_000),
    **{f"{pad} pad bytes": (1000, full_with(pad, 1000)) for pad in (0, 1, 2, 3, 4, 5, 11, 12, 13)},
    "the last block exactly full": (1000, [*full_with(0, 1000)[:2], 1000 - 128 - 12]),
}


@pytest.mark.parametrize("case", SMALL)
async def test_blocks_equal_pulsar(case: str, writer: LedgerWriter, stock_offloader: PulsarOffloader) -> None:
    """For the same ledger and block size, data and index are the same bytes: header, entries, padding and metadata."""
    block_bytes_max, sizes = SMALL[case]
    ledger = await closed(writer, sizes)
    data, index, blocks = ledger.objects(block_bytes_max)
    theirs = stock_offloader.blocks(ledger.ledger_id, block_bytes_max=block_bytes_max)
    assert data == theirs.data
    assert index == theirs.index
    assert len(blocks) > 1 or case == "one block"


@pytest.mark.parametrize("digest", list(DigestType))
async def test_index_metadata_equals_pulsar(
    digest: DigestType, writer: LedgerWriter, stock_offloader: PulsarOffloader
) -> None:
    """Digest type, quorums, a ledger without custom metadata, created when its node was."""
    plan = Plan(ensemble=3, write_quorum=3, ack_quorum=2, digest=digest)
    ledger = await closed(writer, [5, 6], plan)
    created = (await writer.store.get(ledger.path)).created_ms
    assert created
    ledger.metadata = index_metadata((await writer.open(ledger.ledger_id)).metadata, node_created_ms=created)
    assert (
        ledger.objects(1000)[1]
        == stock_offloader.blocks(
            ledger.ledger_id, block_bytes_max=1000, ensemble=Ensemble(digest=JAVA_DIGESTS[digest])
        ).index
    )


@pytest.mark.parametrize("pad", [0, 1, 3, 4])
async def test_objects_equal_pulsar(
    pad: int, writer: LedgerWriter, stock_offloader: PulsarOffloader, store: S3Store, to: OffloadTo
) -> None:
    """What Pulsar's offloader stores in S3 has our bytes, keys and user metadata, and reads back by its own handle."""
    ledger = await closed(writer, full_with(pad, BLOCK_BYTES_MIN))
    object_id = CLOCK.uuid()
    stock_offloader.offload(ledger.ledger_id, object_id, MANAGED_LEDGER, to)
    data, index, _ = ledger.objects(BLOCK_BYTES_MIN)
    named = keys.SegmentKeys("", object_id, ledger.ledger_id)
    for key, ours, is_index in ((named.data, data, False), (named.index, index, True)):
        assert await store.get(key) == ours
        metadata = {**keys.ledger_metadata(CLUSTER, MANAGED_LEDGER, index=is_index), **SOFTWARE}
        assert (await store.head(key)).metadata == metadata
    decoded = v1.decode_index(index, key="index")
    assert decoded.ledger().lastEntryId == len(ledger.payloads) - 1
    with closing(stock_offloader.open_v1(ledger.ledger_id, object_id, to)) as handle:
        assert handle.read(0, 2) == list(enumerate(ledger.payloads))


async def test_pulsar_reads_our_ledger_object(
    writer: LedgerWriter, stock_offloader: PulsarOffloader, store: S3Store, to: OffloadTo
) -> None:
    """A ledger that we wrote as V1 is read by Pulsar's handle: in order, from every entry on, and one by one."""
    ledger = await closed(writer, [(number * 7919) % 60_000 for number in range(250)])
    object_id = await put(store, ledger, ledger.objects(BLOCK_BYTES_MIN))
    with closing(stock_offloader.open_v1(ledger.ledger_id, object_id, to)) as handle:
        assert handle.last_add_confirmed == 249
        assert handle.length_bytes == ledger.payload_bytes
        everything = list(enumerate(ledger.payloads))
        assert [one for first in range(0, 250, 50) for one in handle.read(first, first + 49)] == everything
        for entry_id in (249, 0, 200, 199, 248, 1, 130, 129, 128, 127):
            assert handle.read(entry_id, entry_id) == [everything[entry_id]]


async def test_denser_index_spares_requests(
    writer: LedgerWriter, stock_offloader: PulsarOffloader, store: S3Store, to: OffloadTo
) -> None:
    """With an index entry for every fifty entries Pulsar's handle reads right, and finds an entry with one request."""
    ledger = await closed(writer, [1000 + number % 7 for number in range(5000)])
    data, index, blocks = ledger.objects(BLOCK_BYTES_MIN)
    dense = v1.encode_index(len(data), ledger.metadata, denser(ledger, blocks, every=50))
    assert len(dense) > len(index)
    wanted = [(number * 1777) % 5000 for number in range(12)]
    requests = {}
    async with S3Proxy(to.endpoint) as proxy:
        for name, one in (("sparse", index), ("dense", dense)):
            object_id = await put(store, ledger, (data, one, blocks))
            proxy.counts.requests.clear()
            through = replace(to, endpoint=proxy.endpoint, read_buffer_bytes=64 * 1024)
            found = await aside(
                lambda through=through, object_id=object_id: read_each(  # type: ignore[misc]
                    stock_offloader, ledger.ledger_id, object_id, through, wanted
                )
            )
            assert found == [(entry_id, ledger.payloads[entry_id]) for entry_id in wanted]
            requests[name] = proxy.counts.requests["get data"]
    assert requests["dense"] == len(wanted)
    assert requests["sparse"] > 5 * requests["dense"]


async def test_refuses_what_pulsar_refuses(
    writer: LedgerWriter, stock_offloader: PulsarOffloader, store: S3Store, to: OffloadTo
) -> None:
    """Without the version in the user metadata Pulsar does not read an object, so every object of ours carries it."""
    ledger = await closed(writer, [10, 20])
    data, index, _ = ledger.objects(BLOCK_BYTES_MIN)
    object_id = CLOCK.uuid()
    named = keys.SegmentKeys("", object_id, ledger.ledger_id)
    await store.put(named.data, data)
    await store.put(named.index, index)
    with pytest.raises(Py4JJavaError) as error:
        stock_offloader.open_v1(ledger.ledger_id, object_id, to)
    assert any("version" in said for said in refused(error.value))


async def put(store: S3Store, ledger: Closed, objects: tuple[bytes, bytes, list[Block]]) -> uuid.UUID:
    """Store a ledger's objects as we do."""
    object_id = CLOCK.uuid()
    data, index, _ = objects
    named = keys.SegmentKeys("", object_id, ledger.ledger_id)
    for key, content, is_index in ((named.data, data, False), (named.index, index, True)):
        await store.put(key, content, metadata=keys.ledger_metadata(CLUSTER, MANAGED_LEDGER, index=is_index))
    return object_id


def denser(ledger: Closed, blocks: Sequence[Block], *, every: int) -> list[IndexEntry]:
    """Return an index with an entry more for every so many entries."""
    found = []
    firsts = {block.index_entry.first_entry_id: block.index_entry for block in blocks}
    part, at = 0, 0
    for entry_id, payload in enumerate(ledger.payloads):
        if entry_id in firsts:
            part, at = firsts[entry_id].part_id, firsts[entry_id].offset + v1.BLOCK_HEADER_BYTES
            found.append(firsts[entry_id])
        elif entry_id % every == 0:
            found.append(IndexEntry(entry_id, part, at - v1.BLOCK_HEADER_BYTES))
        at += ENTRY_OVERHEAD_BYTES + len(payload)
    return found


def read_each(
    offloader: PulsarOffloader, ledger_id: int, object_id: uuid.UUID, to: OffloadTo, wanted: Sequence[int]
) -> list[tuple[int, bytes]]:
    """Read entries one by one with a handle of their own."""
    with closing(offloader.open_v1(ledger_id, object_id, to)) as handle:
        return [one for entry_id in wanted for one in handle.read(entry_id, entry_id)]


async def aside(work: Callable[[], T]) -> T:
    """Run what blocks in a thread, so that the loop serves it meanwhile."""
    with ThreadPoolExecutor(1) as threads:
        return await asyncio.get_running_loop().run_in_executor(threads, work)
