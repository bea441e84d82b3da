"""The ledger source on real bookies: ledgers of the Java client, odd ones of ours, and bookies that fail meanwhile."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from offloaderd.bookkeeper import replicas
from offloaderd.bookkeeper.connections.bookies import BookiePool
from offloaderd.bookkeeper.replicas import MissingEntry, UnsoundEntry
from offloaderd.bookkeeper.settings import BookkeeperSettings
from offloaderd.bookkeeper.wire.entry import DigestType
from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import NotFound, Transient
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import Edge, TopicName
from offloaderd.ledgers.pulsar.managed_ledger import ListedLedger, ManagedLedger
from offloaderd.ledgers.pulsar.source import BookKeeperLedgers
from offloaderd.metadata.settings import MetadataSettings
from offloaderd.metadata.zookeeper.store import ZooKeeperStore
from offloaderd.testing import payloads
from tests.patience import PATIENCE_S
from tests.real.java_client import Ensemble
from tests.real.writer import Plan, ledger_writer
from tests.real.written_ledger import flipped
from tests.real.written_topic import written_topic

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from tests.real.bookies import BookKeeperCluster
    from tests.real.java_client import JavaClient
    from tests.real.writer import LedgerWriter
    from tests.real.written_topic import WrittenTopic

CLOCK = SystemClock()
PAIR = Plan(ensemble=2)
STRIPED = Plan(ensemble=3)
SPREAD = pytest.mark.parametrize("plan", [PAIR, STRIPED], ids=["2/2", "3/2"])


class Stage:
    """A source on a real cluster, and a writer beside it."""

    def __init__(
        self, source: BookKeeperLedgers, writer: LedgerWriter, metrics: Metrics, bookies: Sequence[str]
    ) -> None:
        self.source = source
        self.writer = writer
        self.metrics = metrics
        self._bookies = bookies

    async def topic(self, plan: Plan = PAIR) -> WrittenTopic:
        """Make a topic of a name that no test had before, on bookies that need not be registered at this moment."""
        plan = replace(plan, bookies=self._bookies[: plan.ensemble])
        return await written_topic(self.writer, f"public/default/t-{CLOCK.uuid()}", plan=plan)

    async def read(self, topic: TopicName, ledger_id: int, last: int, *, batch_bytes: int = 1 << 20) -> list[bytes]:
        """Read the beginning of a ledger, checking that it is consecutive."""
        found: list[bytes] = []
        async with aclosing(self.source.read(topic, ledger_id, 0, last, batch_bytes=batch_bytes)) as batches:
            async for batch in batches:
                assert batch.first_entry_id == len(found)
                found += batch.payloads
        return found

    async def tail(
        self, topic: TopicName, count: int, *, seen: Callable[[int], Awaitable[None]] | None = None
    ) -> list[bytes]:
        """Follow a topic from its beginning until so many entries have come; `seen` hears how many after each batch."""
        found: list[bytes] = []
        at: tuple[int, int] = (-1, 0)
        async with aclosing(self.source.watch(topic)) as changes:
            async for _ in changes:
                try:
                    for info in await self.source.ledgers(topic):
                        if info.ledger_id < at[0]:
                            continue
                        first = at[1] if info.ledger_id == at[0] else 0
                        last = (await self.source.confirmed(topic, info.ledger_id)).last_entry_id
                        if first > last:
                            continue
                        batches = self.source.read(topic, info.ledger_id, first, last, batch_bytes=1 << 20)
                        async with aclosing(batches):
                            async for batch in batches:
                                assert batch.first_entry_id == first
                                first += len(batch.payloads)
                                found += batch.payloads
                                at = (info.ledger_id, first)
                                if seen is not None:
                                    await seen(len(found))
                except Transient:
                    await CLOCK.sleep(0.1)
                if len(found) >= count:
                    return found
        raise AssertionError("a watch has no end")

    def counted(self, name: str) -> float:
        """Return a counter's value."""
        return self.metrics.registry.get_sample_value(f"offloaderd_{name}_total") or 0.0


@pytest.fixture
async def stage(bookkeeper: BookKeeperCluster, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    """A source that is less patient than a daemon's, so that faults show sooner."""
    metrics = Metrics()
    options = BookkeeperSettings(hedge_s=0.5, poll_max_s=0.5)
    monkeypatch.setattr(replicas, "PAUSE_MIN_S", 0.2)
    monkeypatch.setattr(replicas, "ROUNDS", 3)
    async with (
        ZooKeeperStore(bookkeeper.zookeeper, "/", MetadataSettings(session_timeout_s=5)) as znodes,
        BookiePool(znodes, clock=CLOCK, metrics=metrics, options=BookkeeperSettings(request_timeout_s=2)) as bookies,
        BookKeeperLedgers(znodes, bookies, clock=CLOCK, metrics=metrics, options=options) as source,
        ledger_writer(bookkeeper.zookeeper, CLOCK) as writer,
    ):
        yield Stage(source, writer, metrics, [bookie.bookie_id for bookie in bookkeeper.bookies])


async def together(*works: Awaitable[object]) -> None:
    """Run all of them side by side."""

    async def run(work: Awaitable[object]) -> None:
        await work

    async with asyncio.TaskGroup() as group:
        for work in works:
            group.create_task(run(work))


async def test_a_cluster_says_which_it_is_and_when_its_ledgers_were_made(
    stage: Stage, java_ledgers: JavaClient
) -> None:
    """By the INSTANCEID of its BookKeeper; BookKeeper's own client leaves the time of a ledger to its node."""
    found = await stage.source.identity()
    assert found is not None
    assert str(UUID(found)) == found
    assert await stage.source.moved(TopicName.parse("t")) is None
    before_ms = CLOCK.wall_ms()
    java = java_ledgers.create(Ensemble(size=2, digest="CRC32C"))
    java.add(3, 10)
    topic = await stage.topic()
    await topic.write(ManagedLedger(ledgers=(ListedLedger(ledger_id=java.ledger_id),)))
    (info,) = await stage.source.ledgers(topic.name)
    assert info.created_ms is not None
    assert before_ms - 60_000 <= info.created_ms <= CLOCK.wall_ms() + 60_000
    java.close()
    stored = await stage.source.inspected(topic.name, java.ledger_id)
    assert (stored.closed, stored.entries, stored.created_ms) == (True, 3, info.created_ms)


@pytest.mark.parametrize(
    "how",
    [
        Ensemble(size=2, digest="CRC32C"),
        Ensemble(size=3, digest="CRC32"),
        Ensemble(size=3, write_quorum=3, digest="MAC", password=b"pw"),
        Ensemble(size=1, write_quorum=1, ack_quorum=1, digest="DUMMY"),
    ],
    ids=["2/2 CRC32C", "3/2 CRC32", "3/3 HMAC", "1/1 DUMMY"],
)
async def test_ledgers_of_the_java_client(stage: Stage, java_ledgers: JavaClient, how: Ensemble) -> None:
    """Open and closed ones of BookKeeper's own client are read to the byte, as far as its own readers may."""
    java = java_ledgers.create(how)
    written = java.add(3000, 1000)
    topic = await stage.topic()
    await topic.write(ManagedLedger(ledgers=(ListedLedger(ledger_id=java.ledger_id),)))
    confirmed = await stage.source.confirmed(topic.name, java.ledger_id)
    assert not confirmed.closed
    assert confirmed.last_entry_id == java_ledgers.confirmed(java.ledger_id, how)
    assert confirmed.last_entry_id + confirmed.hidden == 2999
    found = await stage.read(topic.name, java.ledger_id, confirmed.last_entry_id)
    assert found == written[: confirmed.last_entry_id + 1]
    java.close()
    assert (await stage.source.confirmed(topic.name, java.ledger_id))[:2] == (2999, True)
    assert await stage.read(topic.name, java.ledger_id, 2999) == written
    assert await stage.source.length_at(topic.name, java.ledger_id, 2999) == java.length_bytes


async def test_another_client_recovers_the_open_ledger(stage: Stage, java_ledgers: JavaClient) -> None:
    """What was hidden shows when somebody else closes the ledger; the watch tells of it."""
    topic = await stage.topic()
    java = java_ledgers.create(Ensemble(size=2))
    written = java.add(100)
    await topic.write(ManagedLedger(ledgers=(ListedLedger(ledger_id=java.ledger_id),)))

    async def recover() -> None:
        await CLOCK.sleep(0.5)
        assert await asyncio.to_thread(java_ledgers.recover, java.ledger_id) == 99

    found: list[bytes] = []

    async def tail() -> None:
        found.extend(await stage.tail(topic.name, 100))

    await together(recover(), tail())
    assert found == written
    infos = await stage.source.ledgers(topic.name)
    assert [(info.closed, info.entries) for info in infos] == [(True, 100)]


@SPREAD
async def test_tailing_while_ledgers_roll(stage: Stage, plan: Plan) -> None:
    """Entries of several ledgers come in order while they are written, the last ones at the close."""
    topic = await stage.topic(plan)
    written = payloads(3000, 300)

    async def write() -> None:
        for start in range(0, 3000, 100):
            await topic.add(written[start : start + 100])
            if start % 1000 == 900:
                await topic.roll()
            await CLOCK.sleep(0.01)

    found: list[bytes] = []

    async def tail() -> None:
        found.extend(await stage.tail(topic.name, 3000))

    await together(write(), tail())
    assert found == written


@SPREAD
@pytest.mark.parametrize("fault", ["kill", "freeze"])
async def test_a_bookie_fails_while_tailing(
    stage: Stage, bookkeeper: BookKeeperCluster, plan: Plan, fault: str
) -> None:
    """Everything that was written before goes on coming from the other replicas."""
    topic = await stage.topic(plan)
    written = payloads(5000, 1000)
    await topic.add(written)
    ledger = topic.ledger
    await topic.roll()
    victim = bookkeeper.bookie(ledger.metadata.ensembles[0].bookies[ledger.ledger_id % 2])

    async def seen(count: int) -> None:
        if 0 < count < 5000 and not done:
            done.append(count)
            if fault == "kill":
                await victim.kill()
            else:
                victim.freeze()

    done: list[int] = []
    assert await stage.tail(topic.name, 5000, seen=seen) == written
    assert done
    assert await stage.read(topic.name, ledger.ledger_id, 4999, batch_bytes=100_000) == written


@SPREAD
async def test_all_replicas_down_and_back(stage: Stage, bookkeeper: BookKeeperCluster, plan: Plan) -> None:
    """Nothing can be read while they are down; Transient is all that is said, and then it goes on."""
    topic = await stage.topic(plan)
    written = payloads(200, 1000)
    await topic.add(written)
    ledger_id = topic.ledger.ledger_id
    await topic.roll()
    for bookie in bookkeeper.bookies:
        await bookie.kill()
    with pytest.raises(Transient, match="no bookie gave"):
        await stage.read(topic.name, ledger_id, 199)
    with pytest.raises(Transient, match="no bookie answered"):
        await stage.source.confirmed(topic.name, topic.ledger.ledger_id)

    found: list[bytes] = []

    async def tail() -> None:
        found.extend(await stage.tail(topic.name, 200))

    await together(tail(), bookkeeper.heal())
    assert found == written


@SPREAD
async def test_a_bad_digest_on_one_replica_and_on_all(stage: Stage, plan: Plan) -> None:
    """One is made up for and counted; all of them stop the read at that entry."""
    topic = await stage.topic(plan)
    ledger = topic.ledger
    written = payloads(100, 500)
    await ledger.add(written[:50])
    replicas = ledger.metadata.replicas(50)
    length = ledger.length + 500
    await ledger.put(written[50], to=replicas[:1], spoil=flipped)
    await ledger.put(written[50], entry_id=50, length=length, to=replicas[1:])
    await ledger.add(written[51:])
    await topic.roll()
    assert await stage.read(topic.name, ledger.ledger_id, 99) == written
    for replica in replicas:
        await ledger.put(written[50], entry_id=50, length=length, to=[replica], spoil=flipped)
    with pytest.raises(UnsoundEntry, match=f"ledger {ledger.ledger_id}, entry 50.*all copies agree"):
        await stage.read(topic.name, ledger.ledger_id, 99)
    assert stage.counted("bookie_bad_entries") > 0


async def test_an_entry_that_no_bookie_holds(stage: Stage) -> None:
    """It is reported as missing and never skipped."""
    topic = await stage.topic()
    ledger = topic.ledger
    await ledger.add(payloads(10))
    ledger.skip()
    await ledger.add(payloads(10))
    await ledger.close(last_entry_id=20)
    with pytest.raises(MissingEntry, match=f"ledger {ledger.ledger_id}, entry 10"):
        await stage.read(topic.name, ledger.ledger_id, 20)


async def test_the_writer_changes_its_ensemble(stage: Stage, bookkeeper: BookKeeperCluster) -> None:
    """One bookie dies under the writer, which goes on with another; the tail follows it there."""
    topic = await stage.topic()
    ledger = topic.ledger
    written = payloads(200, 500)
    gone = ledger.metadata.ensembles[0].bookies[0]
    by = next(bookie.bookie_id for bookie in bookkeeper.bookies if bookie.bookie_id not in ledger.metadata.replicas(0))

    async def write() -> None:
        await ledger.add(written[:100])
        await CLOCK.sleep(0.5)
        await bookkeeper.bookie(gone).kill()
        await ledger.replace_bookie(gone, by)
        await ledger.add(written[100:])
        await ledger.close()

    found: list[bytes] = []

    async def tail() -> None:
        found.extend(await stage.tail(topic.name, 200))

    await together(write(), tail())
    assert found == written
    assert len(ledger.metadata.ensembles) == 2


async def test_members_are_swapped_in_place(stage: Stage, bookkeeper: BookKeeperCluster) -> None:
    """Re-replication of a closed ledger is noticed when the old bookies have nothing any more."""
    topic = await stage.topic()
    ledger = topic.ledger
    written = payloads(50, 500)
    await ledger.add(written)
    await topic.roll()
    assert await stage.read(topic.name, ledger.ledger_id, 49) == written
    members = ledger.metadata.ensembles[0].bookies
    by = next(bookie.bookie_id for bookie in bookkeeper.bookies if bookie.bookie_id not in members)
    await ledger.swap_bookie(members[0], by)
    for member in members:
        await bookkeeper.bookie(member).kill()
    assert await stage.read(topic.name, ledger.ledger_id, 49) == written


@SPREAD
async def test_a_ledger_is_trimmed(stage: Stage, plan: Plan) -> None:
    """It is no longer listed, and reading it is NotFound."""
    topic = await stage.topic(plan)
    await topic.add(payloads(50))
    await topic.roll()
    gone, left = (ledger.ledger_id for ledger in topic.ledgers)
    assert [info.ledger_id for info in await stage.source.ledgers(topic.name)] == [gone, left]
    await topic.trim(1)
    assert [info.ledger_id for info in await stage.source.ledgers(topic.name)] == [left]
    with pytest.raises(NotFound):
        await stage.read(topic.name, gone, 49)


@SPREAD
async def test_an_explicit_lac_shows_what_a_quiet_writer_hides(stage: Stage, plan: Plan) -> None:
    """The last entry shows, and the way in which it is known is told."""
    topic = await stage.topic(plan)
    ledger = topic.ledger
    await ledger.add(payloads(10), window=1)
    before = await stage.source.confirmed(topic.name, ledger.ledger_id)
    assert (before.last_entry_id, before.edge, before.hidden) == (8, Edge.NEXT_WRITE, 1)
    await ledger.tell_lac()
    async with asyncio.timeout(PATIENCE_S):
        while (now := await stage.source.confirmed(topic.name, ledger.ledger_id)).edge is not Edge.EXPLICIT_LAC:
            await CLOCK.sleep(0.1)
    assert (now.last_entry_id, now.hidden) == (9, 0)


async def test_zookeeper_restarts_while_tailing(stage: Stage, bookkeeper: BookKeeperCluster) -> None:
    """Reading goes on with what is known, and news are noticed when it is back."""
    topic = await stage.topic()
    written = payloads(300, 500)
    await topic.add(written[:100])
    found: list[bytes] = []

    async def tail() -> None:
        found.extend(await stage.tail(topic.name, 300))

    async def write() -> None:
        await CLOCK.sleep(0.5)
        await bookkeeper.zookeeper_server.stop()
        await topic.add(written[100:200])
        await CLOCK.sleep(1)
        assert len(found) == 0
        await bookkeeper.heal()
        await topic.add(written[200:])
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    await topic.roll()
                    break
                except Transient:
                    await CLOCK.sleep(0.2)

    await together(tail(), write())
    assert found == written


async def test_sizes_and_ids_at_the_limits(stage: Stage) -> None:
    """Entries of 5 MiB, ledgers without and with one entry, ids above 2^31."""
    large = [bytes([number]) * (5 * 1024 * 1024 - 200) for number in range(3)]  # the frame has to hold it
    base = 2**31 + CLOCK.uuid().int % 2**40
    contents = [[], [b"one"], [b""], large]
    for plan in (PAIR, STRIPED):
        topic = await stage.topic(plan)
        for number, content in enumerate(contents):
            await topic.roll(Plan(ensemble=plan.ensemble, ledger_id=base + number, digest=DigestType.CRC32))
            await topic.add(content)
        base += 10
        await topic.roll(Plan(ensemble=plan.ensemble, ledger_id=base))
        infos = (await stage.source.ledgers(topic.name))[1:]
        assert [info.entries for info in infos] == [0, 1, 1, 3, 0]
        for info, content in zip(infos, contents, strict=False):
            if content:
                assert await stage.read(topic.name, info.ledger_id, info.entries - 1) == content
        base += 10
