"""A daemon that follows topics on real bookies: crashes, failing bookies, take-overs, and what retention deletes."""

from __future__ import annotations

import json
import signal
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import EntriesDeleted, EntriesLost
from offloaderd.core.model import Position
from offloaderd.core.read_options import ReadPriority
from offloaderd.protocol.v1 import common_pb2
from tests.integration.processes import DaemonProcess, Site
from tests.patience import PATIENCE_S
from tests.real.writer import Plan, ledger_writer
from tests.real.written_topic import written_topic

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from offloaderd.client import DaemonClient
    from offloaderd.protocol.v1 import admin_pb2
    from tests.real.bookies import BookKeeperCluster
    from tests.real.writer import LedgerWriter
    from tests.real.written_topic import WrittenTopic
    from tests.servers import S3Server

CLOCK = SystemClock()


@pytest.fixture
def site(tmp_path: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str, bookkeeper: BookKeeperCluster) -> Site:
    """A daemon's surroundings: the bookies, and a ZooKeeper and a bucket of its own."""
    site = Site.at(tmp_path, zookeeper, s3_server, s3_bucket)
    site.settings["ledgers"] = {"kind": "bookkeeper"}
    site.settings["bookkeeper"] = {"servers": bookkeeper.zookeeper, "request_timeout_s": 2, "hedge_s": 0.5}
    return site


class Written:
    """A topic on the cluster, with all that was acknowledged of it."""

    def __init__(self, topic: WrittenTopic, writer: LedgerWriter, plan: Plan) -> None:
        self.topic = topic
        self.writer = writer
        self.plan = plan
        self.entries: dict[Position, bytes] = {}

    async def add(self, count: int, *, size: int = 300, window: int = 16) -> None:
        """Add entries to the open ledger."""
        ledger = self.topic.ledger
        first = ledger.next_entry_id
        made = [f"{ledger.ledger_id}:{first + number}/".encode().ljust(size, b"#") for number in range(count)]
        await self.topic.add(made, window=window)
        self.entries |= {Position(ledger.ledger_id, first + number): one for number, one in enumerate(made)}


@pytest.fixture
async def written(bookkeeper: BookKeeperCluster) -> AsyncIterator[Written]:
    """A topic with one open ledger on two of three bookies."""
    async with ledger_writer(bookkeeper.zookeeper, CLOCK) as writer:
        plan = replace(Plan(ensemble=2), bookies=bookkeeper.ids[:2])
        topic = await written_topic(writer, f"public/default/d-{CLOCK.uuid().hex}", plan=plan)
        yield Written(topic, writer, plan)


async def status(client: DaemonClient, written: Written) -> admin_pb2.TopicStatus:
    """Return the topic's status."""
    return (await client.status(written.topic.name)).topics[0]


async def offload(client: DaemonClient, written: Written) -> None:
    """Offload everything that is confirmed, and wait."""
    async for _ in client.offload(written.topic.name, wait=True, timeout_s=PATIENCE_S):
        pass


async def confirmed(client: DaemonClient, written: Written, last: Position) -> None:
    """Wait until the daemon knows of an entry."""
    while True:
        found = (await status(client, written)).confirmed
        if (found.ledger_id, found.entry_id) >= last:
            return
        await CLOCK.sleep(0.05)


async def read(
    client: DaemonClient, written: Written, first: Position | None = None
) -> tuple[dict[Position, bytes], set[int]]:
    """Return the entries from `first` on, and the tiers that they came from."""
    found: dict[Position, bytes] = {}
    tiers: set[int] = set()
    async for response in client.read(written.topic.name, first=first):
        tiers.add(response.tier)
        batch = response.batch
        for entry_id, payload in enumerate(batch.payloads, batch.first_entry_id):
            found[Position(batch.ledger_id, entry_id)] = payload
    return found, tiers


def lost(status: admin_pb2.TopicStatus) -> Sequence[tuple[tuple[int, int], tuple[int, int], int]]:
    """Return the lost ranges of a status."""
    return [
        ((one.after.ledger_id, one.after.entry_id), (one.before.ledger_id, one.before.entry_id), one.entries)
        for one in status.losses
    ]


async def check_all_offloaded(client: DaemonClient, written: Written) -> None:
    """Offload everything: the bucket alone gives every entry that was acknowledged, and nothing counts as lost."""
    await offload(client, written)
    found, tiers = await read(client, written)
    assert found == written.entries
    assert tiers == {common_pb2.TIER_OBJECTS}
    assert lost(await status(client, written)) == []


@pytest.mark.witness("bookies")
async def test_entries_come_from_every_tier_and_survive_a_crash(site: Site, written: Written) -> None:
    """A part is offloaded, a part only on bookies, a part in memory; after kill -9 all of it is offloaded once."""
    await written.add(300)
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(DaemonProcess(site))
        client = await stack.enter_async_context(first.client())
        await client.enable(written.topic.name)
        await offload(client, written)
        await written.add(200)
        await written.topic.roll()
        await written.add(100, window=1)
        visible = max(written.entries)._replace(entry_id=98)
        await confirmed(client, written, visible)
        found, tiers = await read(client, written)
        assert found == {position: entry for position, entry in written.entries.items() if position <= visible}
        assert tiers >= {common_pb2.TIER_OBJECTS, common_pb2.TIER_BUFFER}
        shown = await status(client, written)
        assert (shown.edge, shown.hidden_entries) == ("next write", 1)
        first.signal(signal.SIGKILL)
        await first.ended()
        second = await stack.enter_async_context(DaemonProcess(replace(site, daemon_id="two")))
        client = await stack.enter_async_context(second.client())
        await written.topic.roll()
        while (await status(client, written)).state != "offloading":
            await CLOCK.sleep(0.05)  # the session of the one that was killed has to end first
        await check_all_offloaded(client, written)


async def test_bookies_fail_and_another_broker_takes_over(
    site: Site, written: Written, bookkeeper: BookKeeperCluster
) -> None:
    """A killed and a frozen bookie, an ensemble change and a recovery: nothing is lost or doubled."""
    ids = bookkeeper.ids
    async with DaemonProcess(site) as daemon, daemon.client() as client:
        await client.enable(written.topic.name)
        await written.add(200)
        await bookkeeper.bookie(ids[0]).kill()
        await written.topic.ledger.replace_bookie(ids[0], ids[2])
        await written.add(200)
        await offload(client, written)
        await bookkeeper.bookie(ids[0]).start()
        bookkeeper.bookie(ids[1]).freeze()
        await CLOCK.sleep(1)
        bookkeeper.bookie(ids[1]).thaw()
        await written.add(100)
        await written.topic.take_over()
        await written.add(50)
        await written.topic.roll()
        await confirmed(client, written, max(written.entries))
        await check_all_offloaded(client, written)


async def test_a_lost_bookie_is_replaced_by_bookkeepers_own_recovery(
    site: Site, written: Written, bookkeeper: BookKeeperCluster
) -> None:
    """`bookkeeper shell recover` copies its ledgers and swaps members in place: they are read where they are now."""
    ids = bookkeeper.ids
    async with DaemonProcess(site) as daemon, daemon.client() as client:
        await written.add(200)
        await written.topic.roll(replace(written.plan, bookies=ids[1:]))
        await client.enable(written.topic.name)
        await offload(client, written)
        await bookkeeper.bookie(ids[0]).kill()
        await CLOCK.sleep(3)  # its registration ends with its session
        await bookkeeper.shell("recover", "-f", "-l", str(written.topic.ledgers[0].ledger_id), ids[0])
        await bookkeeper.bookie(ids[1]).kill()
        found: dict[Position, bytes] = {}
        async for response in client.read(written.topic.name, read_priority=ReadPriority.BOOKKEEPER_FIRST):
            assert response.tier == common_pb2.TIER_SOURCE
            batch = response.batch
            for entry_id, payload in enumerate(batch.payloads, batch.first_entry_id):
                found[Position(batch.ledger_id, entry_id)] = payload
        assert found == written.entries


async def test_what_retention_deleted_is_reported_to_all(site: Site, written: Written) -> None:
    """A daemon that was away comes back to a shorter list: metric, log, status and readers name what is missing."""
    await written.add(50)
    await written.topic.roll()
    async with DaemonProcess(site) as daemon, daemon.client() as client:
        await client.enable(written.topic.name)
        await offload(client, written)
    last = max(written.entries)
    for _ in range(3):
        await written.add(20)
        await written.topic.roll()
    await written.topic.trim(3)
    begin = Position(written.topic.ledgers[3].ledger_id, 0)
    async with DaemonProcess(site) as daemon, daemon.client() as client:
        await offload(client, written)
        assert lost(await status(client, written)) == [(last, begin, 0)]
        with pytest.raises(EntriesLost, match=f"after {last} and before {begin}"):
            await read(client, written)
        found, _ = await read(client, written, begin)
        assert found == {position: entry for position, entry in written.entries.items() if position >= begin}
        _, metrics = await daemon.http("/metrics")
        assert 'offloaderd_source_losses_total{kind="possible"} 1.0' in metrics
        log = [json.loads(line) for line in daemon.said().splitlines()]
        (line,) = [line for line in log if line["event"] == "topic.entries_possibly_lost"]
        assert line["range"] == f"after {last} and before {begin}"


async def test_ledgers_that_were_offloaded_may_be_trimmed(site: Site, written: Written) -> None:
    """Retention does its work while a daemon runs and while it is away: no alarm, and everything stays readable."""
    async with DaemonProcess(site) as daemon, daemon.client() as client:
        await client.enable(written.topic.name)
        for _ in range(3):
            await written.add(40)
            await written.topic.roll()
        await confirmed(client, written, max(written.entries))
        await offload(client, written)
        await written.topic.trim(2)
        await written.add(10, window=1)
        await confirmed(client, written, Position(written.topic.ledger.ledger_id, 8))
    await written.topic.trim(1)
    async with DaemonProcess(site) as daemon, daemon.client() as client:
        await written.topic.roll()
        await confirmed(client, written, max(written.entries))
        await check_all_offloaded(client, written)


@pytest.mark.parametrize("expires", [False, True], ids=["restart", "session expires"])
async def test_the_clusters_zookeeper_goes_away(
    site: Site, written: Written, bookkeeper: BookKeeperCluster, expires: bool
) -> None:
    """Bookies can be read meanwhile; ledgers that were opened in between are found afterwards."""
    async with DaemonProcess(site) as daemon, daemon.client() as client:
        await client.enable(written.topic.name)
        await written.add(30)
        await offload(client, written)
        if expires:
            bookkeeper.zookeeper_server.freeze()
        else:
            await bookkeeper.zookeeper_server.kill()
        await written.add(30, window=1)
        await confirmed(client, written, Position(written.topic.ledger.ledger_id, 58))
        if expires:
            await daemon.logged('"metadata.session_lost"')
        await bookkeeper.heal()
        await written.topic.roll()
        await written.add(30)
        await written.topic.roll()
        await confirmed(client, written, max(written.entries))
        await offload(client, written)
        found, _ = await read(client, written)
        assert found == written.entries


async def test_a_topic_is_deleted_and_made_again(site: Site, written: Written) -> None:
    """What was offloaded stays readable, and the new ledgers follow behind a doubt that is told."""
    await written.add(30)
    await written.topic.roll()
    async with DaemonProcess(site) as daemon, daemon.client() as client:
        await client.enable(written.topic.name)
        await offload(client, written)
        old = dict(written.entries)
        await written.topic.delete()
        while (await status(client, written)).edge:
            await CLOCK.sleep(0.05)
        assert (await read(client, written))[0] == old
        made = await written_topic(written.writer, str(written.topic.name), plan=written.plan)
        again = Written(made, written.writer, written.plan)
        await again.add(20)
        await again.topic.roll()
        await confirmed(client, again, max(again.entries))
        await offload(client, again)
        begin = min(again.entries)
        assert (await read(client, again, begin))[0] == again.entries
        assert [before for _, before, _ in lost(await status(client, again))] in ([], [begin])


async def test_the_tier_follows_what_a_broker_trims(site: Site, written: Written) -> None:
    """A topic whose retention is `follow` loses what left the list, and no more; grants delete nothing there."""
    site.settings["retention"] = {"kind": "follow", "follow_lag_s": 0.5, "interval_s": 0.2}
    site.settings["grants"] = {"deletion_lag_s": 0, "interval_s": 0.2}
    async with DaemonProcess(site) as daemon, daemon.client() as client:
        await client.enable(written.topic.name)
        for _ in range(3):
            await written.add(40)
            await written.topic.roll()
            await offload(client, written)
        first, second = (ledger.ledger_id for ledger in written.topic.ledgers[:2])
        while {one.state for one in (await client.ledgers(written.topic.name)).ledgers} != {"granted", "open"}:
            await CLOCK.sleep(0.05)
        assert all(one.at_source for one in (await client.ledgers(written.topic.name)).ledgers)
        await written.topic.trim(1)
        while not (answer := await client.ledgers(written.topic.name)).HasField("floor"):
            await CLOCK.sleep(0.05)
        assert (answer.floor.ledger_id, answer.floor.entry_id) == (first, 39)
        found, _ = await read(client, written)
        assert found == {at: entry for at, entry in written.entries.items() if at.ledger_id > first}
        with pytest.raises(EntriesDeleted, match="deleted by retention"):
            await read(client, written, Position(first, 0))
        await CLOCK.sleep(1.5)
        assert (await client.ledgers(written.topic.name)).floor.ledger_id == first
        assert (await client.ledgers(written.topic.name)).ledgers[0].ledger_id == second
