"""Our writer of ledgers makes what it says: BookKeeper's own client reads the sound ones, and the odd ones are odd."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from offloaderd.bookkeeper.metadata import Layout, LedgerState, decode_ledger
from offloaderd.bookkeeper.wire import v3
from offloaderd.bookkeeper.wire.entry import BadEntry, DigestType, EntryChecker
from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import Conflict
from offloaderd.testing.memory.metadata import MemoryTree
from tests.real.bookie_link import BookieLinks
from tests.real.java_client import Ensemble, payload
from tests.real.writer import LedgerWriter, Plan, ledger_writer
from tests.real.written_ledger import Refused, flipped

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.real.bookies import BookKeeperCluster
    from tests.real.java_client import DigestType as JavaDigest
    from tests.real.java_client import JavaClient
    from tests.real.written_ledger import WrittenLedger

CLOCK = SystemClock()
NO_ENTRY, FENCED, UNAUTHORISED = 2, 104, 102
MEBIBYTE = 1024 * 1024
ALL_THREE = Plan(ensemble=3, write_quorum=3, ack_quorum=2)


@pytest.fixture
async def writer(bookkeeper: BookKeeperCluster) -> AsyncIterator[LedgerWriter]:
    """A writer on the cluster."""
    async with ledger_writer(bookkeeper.zookeeper, CLOCK) as made:
        yield made


def contents(ledger: WrittenLedger, count: int, size_bytes: int = 100, first: int = 0) -> list[bytes]:
    """Return entries that nobody mixes up."""
    return [payload(ledger.ledger_id, first + number, size_bytes) for number in range(count)]


async def stored(writer: LedgerWriter, ledger: WrittenLedger, entry_id: int) -> list[bytes | int]:
    """Return what each replica of an entry stores, or its code."""
    links = BookieLinks(writer.store, "/ledgers")
    try:
        found: list[bytes | int] = []
        for bookie in ledger.metadata.replicas(entry_id):
            answer = await (await links.to(bookie)).read(ledger.ledger_id, entry_id)
            found.append(answer.code or answer.body)
        return found
    finally:
        links.close()


def checker(ledger: WrittenLedger) -> EntryChecker:
    """Return what checks the entries of a ledger."""
    return EntryChecker(ledger.ledger_id, ledger.digest_type, ledger.password)


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_nodes_of_all_versions(version: int) -> None:
    """What is written in any version of the metadata is read back, in every state and after every change."""
    store = MemoryTree().connect()
    writer = LedgerWriter(store, Layout.HIERARCHICAL, CLOCK)
    plan = Plan(bookies=("a:1", "b.opaque", "c:3"), metadata_version=version, password=b"pw", custom={"k": b"\xff"})
    ledger = await writer.create(plan)

    async def read_back() -> None:
        found = decode_ledger((await store.get(ledger.path)).value, path=ledger.path)
        told = ledger.metadata
        assert found.ensembles == told.ensembles
        assert (found.state, found.last_entry_id, found.length_bytes) == (
            told.state,
            told.last_entry_id,
            told.length_bytes,
        )
        if version > 1:
            assert found == told

    await read_back()
    ledger.skip(10)
    await ledger.replace_bookie("b.opaque", "d:4")
    await ledger.change(state=LedgerState.IN_RECOVERY)
    await read_back()
    await ledger.close(last_entry_id=9, length=1000)
    await read_back()
    assert [part.bookies[1] for part in ledger.metadata.ensembles] == ["b.opaque", "d:4"]


async def test_ids_of_writers() -> None:
    """Ids ascend, and one that is taken is refused; one beyond 31 bits has the long path."""
    store = MemoryTree().connect()
    writer = LedgerWriter(store, Layout.HIERARCHICAL, CLOCK)
    plan = Plan(ensemble=1, write_quorum=1, ack_quorum=1, bookies=("a:1",))
    first, second = await writer.create(plan), await writer.create(plan)
    assert 10_000_000 < first.ledger_id < second.ledger_id < 2**31
    long = Plan(ensemble=1, write_quorum=1, ack_quorum=1, bookies=("a:1",), ledger_id=2**31 + 5)
    assert (await writer.create(long)).path == "/ledgers/000/0000/0021/4748/L3653"
    with pytest.raises(Conflict):
        await writer.create(long)


@pytest.mark.parametrize(
    ("digest", "java"),
    [
        (DigestType.CRC32C, "CRC32C"),
        (DigestType.CRC32, "CRC32"),
        (DigestType.HMAC, "MAC"),
        (DigestType.DUMMY, "DUMMY"),
    ],
)
@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 2, 2), (2, 2, 1)])
async def test_java_reads_ours(
    writer: LedgerWriter,
    java_ledgers: JavaClient,
    digest: DigestType,
    java: JavaDigest,
    quorums: tuple[int, int, int],
) -> None:
    """BookKeeper's own client accepts our ledgers entry by entry, whatever digest and quorums they have."""
    size, write, ack = quorums
    plan = Plan(ensemble=size, write_quorum=write, ack_quorum=ack, digest=digest, password=b"pw")
    ledger = await writer.create(plan)
    written = contents(ledger, 300)
    await ledger.add(written, window=32)
    await ledger.close()
    assert java_ledgers.read(ledger.ledger_id, Ensemble(digest=java, password=b"pw")) == written


async def test_java_reads_odd_places(writer: LedgerWriter, java_ledgers: JavaClient) -> None:
    """Ledgers with long ids, old metadata, entries of 5 MiB, one entry and none are ledgers to the Java client too."""
    for plan in (
        Plan(ledger_id=2**31 + CLOCK.uuid().int % 2**31),
        Plan(ledger_id=2**62 + CLOCK.uuid().int % 2**61),
        Plan(metadata_version=2, ctime_ms=CLOCK.wall_ms()),
    ):
        ledger = await writer.create(plan)
        written = contents(ledger, 1)
        await ledger.add(written)
        await ledger.close()
        assert java_ledgers.read(ledger.ledger_id) == written
    empty = await writer.create()
    await empty.close()
    assert java_ledgers.read(empty.ledger_id) == []
    large = await writer.create()
    written = contents(large, 3, 5 * MEBIBYTE - 100)
    await large.add(written, window=1)
    await large.close()
    assert java_ledgers.read(large.ledger_id) == written


async def test_confirmed_edge(writer: LedgerWriter, java_ledgers: JavaClient) -> None:
    """A quiet writer hides its last entry when it wrote one at a time, and up to its window after a burst."""
    ledger = await writer.create()
    await ledger.add(contents(ledger, 10), window=1)
    assert ledger.lac == 9
    assert java_ledgers.confirmed(ledger.ledger_id) == 8
    burst = await writer.create()
    await burst.add(contents(burst, 50), window=50)
    assert java_ledgers.confirmed(burst.ledger_id) == -1


async def test_explicit_lac(writer: LedgerWriter) -> None:
    """An explicit LAC is told to readers by the bookies of the entry's write quorum, over v3."""
    ledger = await writer.create(ALL_THREE)
    await ledger.add(contents(ledger, 5), window=1)
    await ledger.tell_lac()
    host, port = ledger.metadata.replicas(4)[0].split(":")
    reader, sender = await asyncio.open_connection(host, int(port))
    sender.write(v3.encode_read(7, ledger.ledger_id, -1))
    answers: list[v3.Answer] = []
    decoder = v3.Decoder()
    while not answers:
        answers += decoder.feed(await reader.read(65536))
    sender.close()
    await sender.wait_closed()
    (answer,) = answers
    assert isinstance(answer, v3.ReadAnswer)
    assert answer.max_lac == 4
    assert answer.entry is not None
    assert checker(ledger).check(answer.entry, None).lac == 3


async def test_recovery_by_us(writer: LedgerWriter, java_ledgers: JavaClient) -> None:
    """A recovery of ours saves what the Java writer's crash would hide, and keeps that writer out."""
    theirs = java_ledgers.create()
    written = theirs.add(20, 100, window=20)
    taken = await writer.open(theirs.ledger_id)
    await taken.recover()
    assert taken.metadata.last_entry_id == 19
    assert taken.metadata.length_bytes == 2000
    assert java_ledgers.read(theirs.ledger_id) == written


async def test_fence(writer: LedgerWriter) -> None:
    """A fenced ledger refuses its writer and keeps its entries; a writer whose node was changed cannot close it."""
    ledger = await writer.create(ALL_THREE)
    await ledger.add(contents(ledger, 3), window=1)
    other = await writer.open(ledger.ledger_id)
    assert await other.fence() == 1
    with pytest.raises(Refused) as caught:
        await ledger.add([b"late"])
    assert set(caught.value.codes) == {FENCED}
    await other.change(state=LedgerState.IN_RECOVERY)
    with pytest.raises(Conflict):
        await ledger.close()


async def test_wrong_key(writer: LedgerWriter) -> None:
    """Bookies take entries of a ledger only by its own password."""
    ledger = await writer.create(Plan(password=b"right"))
    await ledger.add([b"x"])
    ledger.password = b"wrong"
    with pytest.raises(Refused) as caught:
        await ledger.add([b"y", b"z"])
    assert UNAUTHORISED in caught.value.codes


async def test_ensemble_change(writer: LedgerWriter, java_ledgers: JavaClient) -> None:
    """A ledger goes on with another bookie, and the Java client finds the entries of both ensembles."""
    one, two, three = await writer.bookies()
    ledger = await writer.create(Plan(ensemble=2, bookies=(one, two)))
    written = contents(ledger, 20)
    await ledger.add(written[:10])
    await ledger.replace_bookie(two, three)
    await ledger.add(written[10:])
    await ledger.close()
    assert [part.first_entry_id for part in ledger.metadata.ensembles] == [0, 10]
    assert java_ledgers.read(ledger.ledger_id) == written


async def test_swap(writer: LedgerWriter, java_ledgers: JavaClient) -> None:
    """A member is swapped for one that got copies: other headers, the same payloads, nothing read from the old one."""
    one, two, three = await writer.bookies()
    ledger = await writer.create(Plan(ensemble=2, bookies=(one, two)))
    written = contents(ledger, 10)
    await ledger.add(written, window=1)
    await ledger.close()
    await ledger.swap_bookie(one, three)
    assert ledger.metadata.ensembles[0].bookies == (three, two)
    copies = await stored(writer, ledger, 2)
    entries = [checker(ledger).check(copy, 2) for copy in copies if isinstance(copy, bytes)]
    assert sorted(entry.lac for entry in entries) == [1, 9]
    assert {(entry.payload, entry.length) for entry in entries} == {(written[2], 300)}
    assert java_ledgers.read(ledger.ledger_id) == written


async def test_odd_entries(writer: LedgerWriter) -> None:
    """Holes, wrong lengths, LACs and digests are where they were asked for and nowhere else."""
    ledger = await writer.create(ALL_THREE)
    await ledger.put(b"sound")
    first, *others = ledger.metadata.replicas(1)
    await ledger.put(b"spoilt", to=[first], spoil=flipped)
    await ledger.put(b"spoilt", entry_id=1, length=11, to=others)
    ledger.skip()
    await ledger.put(b"here", to=[first], lac=0, length=5)
    bad, *good = await stored(writer, ledger, 1)
    assert isinstance(bad, bytes)
    with pytest.raises(BadEntry, match="CRC32C"):
        checker(ledger).check(bad, 1)
    for copy in good:
        assert isinstance(copy, bytes)
        assert checker(ledger).check(copy, 1) == (1, -1, 11, b"spoilt")
    assert await stored(writer, ledger, 2) == [NO_ENTRY] * 3
    held = dict(zip(ledger.metadata.replicas(3), await stored(writer, ledger, 3), strict=True))
    mine = held.pop(first)
    assert isinstance(mine, bytes)
    assert checker(ledger).check(mine, 3) == (3, 0, 5, b"here")
    assert set(held.values()) == {NO_ENTRY}


async def test_bookie_down(writer: LedgerWriter, bookkeeper: BookKeeperCluster) -> None:
    """Entries go on as long as an ack quorum stands, and are refused without one."""
    ledger = await writer.create(ALL_THREE)
    first, second, _ = bookkeeper.bookies
    await ledger.add([b"x"])
    await first.kill()
    await ledger.add([b"y"] * 10, window=3)
    assert ledger.lac == 10
    await second.kill()
    with pytest.raises(Refused):
        await ledger.add([b"z"])
