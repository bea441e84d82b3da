"""Policies and read priority on real ZooKeeper, S3 and bookies: daemons follow at once, and each tier stands in."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import InvalidInput
from offloaderd.core.model import Position
from offloaderd.core.read_options import ReadPriority
from offloaderd.objects.s3.store import S3Store
from offloaderd.objects.settings import ObjectsSettings
from offloaderd.protocol.v1 import common_pb2, policy_pb2
from tests.integration.bookies.test_bookkeeper_daemon import Written, confirmed, offload
from tests.integration.processes import DaemonProcess, Proxy, Site
from tests.real.writer import Plan, ledger_writer
from tests.real.written_topic import written_topic

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from offloaderd.client import DaemonClient
    from tests.real.bookies import BookKeeperCluster
    from tests.servers import S3Server

CLOCK = SystemClock()
BUCKET_FIRST, SOURCE_FIRST = ReadPriority.TIERED_STORAGE_FIRST, ReadPriority.BOOKKEEPER_FIRST
OBJECTS, SOURCE = common_pb2.TIER_OBJECTS, common_pb2.TIER_SOURCE
ENTRIES = 40
BROKER = policy_pb2.PolicyLevel(broker=True)
Said = policy_pb2.OffloadPolicies


@pytest.fixture
def site(tmp_path: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str, bookkeeper: BookKeeperCluster) -> Site:
    """A daemon's surroundings: the bookies, and a ZooKeeper and a bucket of its own."""
    site = Site.at(tmp_path, zookeeper, s3_server, s3_bucket)
    site.settings["ledgers"] = {"kind": "bookkeeper"}
    site.settings["bookkeeper"] = {"servers": bookkeeper.zookeeper, "request_timeout_s": 1, "hedge_s": 0.3}
    site.settings["offload"] = {"segment_age_max_s": 3600}
    return site


@pytest.fixture
async def written(bookkeeper: BookKeeperCluster) -> AsyncIterator[Written]:
    """A topic in a namespace of its own, with one open ledger."""
    async with ledger_writer(bookkeeper.zookeeper, CLOCK) as writer:
        plan = replace(Plan(ensemble=2), bookies=bookkeeper.ids[:2])
        topic = await written_topic(writer, f"policies/n{CLOCK.uuid().hex}/orders", plan=plan)
        yield Written(topic, writer, plan)


def namespace_of(written: Written) -> policy_pb2.PolicyLevel:
    """Return the level of the topic's namespace."""
    name = written.topic.name
    return policy_pb2.PolicyLevel(namespace=f"{name.tenant}/{name.namespace}")


class Reader:
    """Reads whole ledgers of the topic and checks every byte."""

    def __init__(self, client: DaemonClient, written: Written) -> None:
        self.client = client
        self._written = written

    async def tiers(self, number: int, priority: ReadPriority | None = None) -> set[int]:
        """Return the tiers that a ledger's entries came from."""
        ledger_id = self._written.topic.ledgers[number].ledger_id
        first, last = Position(ledger_id, 0), Position(ledger_id, ENTRIES - 1)
        found: list[bytes] = []
        tiers: set[int] = set()
        async for answer in self.client.read(self._written.topic.name, first=first, last=last, read_priority=priority):
            found += answer.batch.payloads
            tiers.add(answer.tier)
        assert found == [self._written.entries[Position(ledger_id, entry_id)] for entry_id in range(ENTRIES)]
        return tiers


async def test_each_tier_stands_in_for_the_other(
    site: Site, written: Written, bookkeeper: BookKeeperCluster, s3_server: S3Server, s3_bucket: str
) -> None:
    """PIP-73: at three levels and by request; missing, corrupt and unreachable data come from the other tier."""
    async with Proxy(s3_server.endpoint) as line:
        site.endpoint = f"http://{line.address}"
        async with DaemonProcess(site) as daemon, daemon.client() as client:
            await client.enable(written.topic.name)
            for _ in range(6):
                await written.add(ENTRIES)
                await written.topic.roll()
                await confirmed(client, written, max(written.entries))
                await offload(client, written)
            reader = Reader(client, written)
            await _priorities(reader, written)
            await _damages(reader, written, s3_server, s3_bucket)
            line.cut()
            assert await reader.tiers(4, BUCKET_FIRST) == {SOURCE}
            line.mend()
            await written.topic.trim(1)
            while len((await client.ledgers(written.topic.name)).ledgers) and await _at_source(client, written, 0):
                await CLOCK.sleep(0.05)
            assert await reader.tiers(0, SOURCE_FIRST) == {OBJECTS}
            for bookie_id in written.plan.bookies or ():
                await bookkeeper.bookie(bookie_id).kill()
            assert await reader.tiers(5, SOURCE_FIRST) == {OBJECTS}
            _, metrics = await daemon.http("/metrics")
            for tier, why in (
                ("source", "chosen"), ("objects", "chosen"), ("source", "fell_back_missing"),
                ("source", "fell_back_corrupt"), ("source", "fell_back_unavailable"), ("objects", "only_here"),
            ):  # fmt: skip
                line_of = f'offloaderd_read_choice_entries_total{{source="{tier}",why="{why}"}} '
                [value] = [one.removeprefix(line_of) for one in metrics.splitlines() if one.startswith(line_of)]
                assert float(value) >= ENTRIES, (tier, why)
            fell_back = 'offloaderd_read_choice_entries_total{source="objects",why="fell_back_'
            counts = [float(one.split()[-1]) for one in metrics.splitlines() if one.startswith(fell_back)]
            assert sum(counts) == ENTRIES


async def _priorities(reader: Reader, written: Written) -> None:
    """The narrowest level decides, the request over all; each change holds for the next read."""
    client = reader.client
    topic = policy_pb2.PolicyLevel(topic=str(written.topic.name))
    assert await reader.tiers(0) == {OBJECTS}
    assert await reader.tiers(0, SOURCE_FIRST) == {SOURCE}
    said = [
        (BROKER, SOURCE_FIRST, SOURCE),
        (namespace_of(written), BUCKET_FIRST, OBJECTS),
        (topic, SOURCE_FIRST, SOURCE),
    ]
    for level, priority, tier in said:
        await client.set_policies(level, Said(read_priority=priority))
        while await reader.tiers(1) != {tier}:
            await CLOCK.sleep(0.02)
    assert await reader.tiers(1, BUCKET_FIRST) == {OBJECTS}
    origins = {one.field: one.origin for one in (await client.policies(topic)).origins}
    assert (origins["read_priority"], origins["segment_age_max_s"]) == ("topic", "settings")
    for level, _, _ in said:
        await client.remove_policies(level)


async def _damages(reader: Reader, written: Written, s3_server: S3Server, s3_bucket: str) -> None:
    """Objects that are gone or not as they were written: the bookies have the entries."""
    segments = await reader.client.segments(written.topic.name)
    keys = {one.begin.ledger_id: one.data_key for one in segments if one.status == "Offloaded"}
    options = ObjectsSettings(
        bucket=s3_bucket, endpoint=s3_server.endpoint, access_key=s3_server.access_key, secret_key=s3_server.secret_key
    )
    async with S3Store(options) as store:
        await store.delete([keys[written.topic.ledgers[2].ledger_id]])
        corrupt = keys[written.topic.ledgers[3].ledger_id]
        stored = bytearray(await store.get(corrupt))
        stored[200] ^= 1
        await store.put(corrupt, bytes(stored))
    assert await reader.tiers(2, BUCKET_FIRST) == {SOURCE}
    assert await reader.tiers(3, BUCKET_FIRST) == {SOURCE}


async def _at_source(client: DaemonClient, written: Written, number: int) -> bool:
    ledger_id = written.topic.ledgers[number].ledger_id
    found = (await client.ledgers(written.topic.name)).ledgers
    return any(one.at_source for one in found if one.ledger_id == ledger_id)


async def test_daemons_follow_a_policy_that_any_of_them_was_told(site: Site, written: Written) -> None:
    """A namespace's method enables its topics, its limits reach the open segment; mistakes change nothing."""
    level = namespace_of(written)
    async with (
        DaemonProcess(site) as one,
        DaemonProcess(replace(site, daemon_id="two")) as two,
        one.client() as first,
        two.client() as second,
    ):
        await written.add(ENTRIES)
        await written.topic.roll()
        with pytest.raises(InvalidInput) as caught:
            await first.set_policies(level, Said(method="slow", segment_bytes_max=0))
        assert len(caught.value.message.splitlines()) == 2
        rehearsed = await first.set_policies(level, Said(method="streaming"), dry_run=True)
        assert [(each.topic, each.outcome) for each in rehearsed.topics] == [(str(written.topic.name), "enabled")]
        await first.set_policies(level, Said(method="streaming", segment_age_max_s=3000.0))
        await _until_offloading(first, second, written)
        await second.set_policies(BROKER, Said(segment_age_max_s=0.1))
        await CLOCK.sleep(0.5)
        assert not await first.segments(written.topic.name) or await _committed(first, written) == 0
        await second.set_policies(level, Said(method="streaming"))
        while not await _committed(first, written):
            await CLOCK.sleep(0.05)
        held = await first.policies(policy_pb2.PolicyLevel(topic=str(written.topic.name)))
        assert {each.field: each.origin for each in held.origins}["segment_age_max_s"] == "broker"
        assert held.selected_by == level.namespace
        gone = await second.remove_policies(level)
        assert [(each.topic, each.outcome) for each in gone.topics] == [(str(written.topic.name), "disabled")]
        while (await first.policies(policy_pb2.PolicyLevel(topic=str(written.topic.name)))).enabled:
            await CLOCK.sleep(0.05)


async def _until_offloading(first: DaemonClient, second: DaemonClient, written: Written) -> None:
    """Wait until one of the daemons has taken entries of the topic into an open segment."""
    while True:
        for client in (first, second):
            for found in (await client.status()).topics:
                if found.topic == str(written.topic.name) and found.open_segment_entries:
                    return
        await CLOCK.sleep(0.05)


async def _committed(client: DaemonClient, written: Written) -> int:
    segments = await client.segments(written.topic.name)
    return sum(one.status == "Offloaded" for one in segments)
