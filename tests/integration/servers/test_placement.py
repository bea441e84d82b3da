"""Daemons as processes share topics: one joins, one drains, one is cut off from ZooKeeper alone, one from S3 alone."""

from __future__ import annotations

import asyncio
import json
import signal
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.model import TopicName
from offloaderd.objects.port import PART_BYTES_MIN
from tests.integration.processes import CLOCK, DaemonProcess, Proxy, Site
from tests.patience import PATIENCE_S
from tests.real.proof import check
from tests.real.pusher import Pusher
from tests.real.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from offloaderd.client import DaemonClient
    from tests.servers import S3Server

TOPICS = [TopicName.parse(f"public/default/t{number}") for number in range(8)]


@pytest.fixture
def site(tmp_path: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str) -> Site:
    """A site without a ledger source, whose daemons soon act on what they see of each other."""
    site = Site.at(tmp_path, zookeeper, s3_server, s3_bucket)
    site.settings["metadata"] = {"session_timeout_s": 2}
    site.settings["ledgers"] = {"kind": "none"}
    site.settings["placement"] = {"settle_s": 1, "grace_s": 2, "handovers_max": 2, "impaired_s": 1}
    site.settings["offload"] = {
        "segment_bytes_max": 12 << 20,
        "segment_age_max_s": 1.5,
        "block_bytes": 256 << 10,
        "part_bytes": PART_BYTES_MIN,
    }
    return site


async def owners(client: DaemonClient) -> dict[str, str]:
    """Return who owns each topic."""
    return {one.topic: one.owner for one in await client.topics()}


async def first_choices(client: DaemonClient) -> dict[str, str]:
    """Return who should have each topic."""
    return {str(topic): (await client.daemons(topic)).daemons[0].daemon_id for topic in TOPICS}


async def until_owned(client: DaemonClient, by: set[str]) -> dict[str, str]:
    """Wait until every topic has the owner that it should have, and these daemons have some."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            now = await owners(client)
            if now == await first_choices(client) and set(now.values()) == by:
                return now
            await CLOCK.sleep(0.1)


def logged(daemon: DaemonProcess, event: str) -> list[dict[str, object]]:
    """Return a daemon's log lines of one event."""
    lines = [json.loads(line) for line in daemon.said().splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == event]


async def test_topics_move_to_who_joins_and_away_from_who_drains(site: Site) -> None:
    """Two daemons divide the topics; one drains on demand and takes part again, then is told to stop: all go over."""
    one, two = (DaemonProcess(replace(site, daemon_id=name)) for name in ("one", "two"))
    async with one, one.client() as first:
        for topic in TOPICS:
            await first.enable(topic)
        await until_owned(first, {"one"})
        async with two, two.client() as second:
            shared = await until_owned(first, {"one", "two"})
            moved = [name for name, owner in shared.items() if owner == "two"]
            plan = [report async for report in second.drain(dry_run=True)][-1]
            assert {(move.topic, move.to) for move in plan.moves} == {(name, "one") for name in moved}
            assert await owners(first) == shared
            reports = [report async for report in second.drain(timeout_s=PATIENCE_S)]
            assert (reports[-1].left, reports[-1].done) == (0, True)
            await until_owned(first, {"one"})
            assert [one.standing for one in (await first.daemons()).daemons] == ["working", "draining"]
            assert [report.done async for report in second.drain(undo=True)] == [True]
            assert await until_owned(first, {"one", "two"}) == shared
            two.signal(signal.SIGTERM)
            assert await two.ended() == 0
        await until_owned(first, {"one"})
        moves = logged(one, "topic.moved")
        assert len(moves) == 2 * len(moved)
        gaps = [float(str(line["gap_s"])) for line in (*moves, *logged(two, "topic.moved"))]
        assert max(gaps) < 1.0, gaps


class Broker:
    """One broker that pushes while something happens to the daemons."""

    def __init__(self, daemons: Sequence[DaemonProcess]) -> None:
        self.workload = Workload(TOPICS[0], entry_bytes=10_000)
        self.pusher = Pusher(self.workload, lambda: [daemon.address for daemon in daemons])

    async def moved_away_from(self, daemon: DaemonProcess) -> None:
        """Wait until another daemon has made something durable."""
        while self.pusher.owner == daemon.address:
            await CLOCK.sleep(0.05)
        await self.pusher.progress(beyond=self.pusher.durable)


async def owning(site: Site, client: DaemonClient) -> str:
    """Return the daemon that the brokers' topic belongs to, once it has it."""
    await client.enable(TOPICS[0])
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = await client.daemons(TOPICS[0])
            if len(found.daemons) == 2 and found.owner == found.daemons[0].daemon_id:
                return found.owner
            await CLOCK.sleep(0.1)


@pytest.mark.parametrize("cut_off_from", ["zookeeper", "endpoint"])
async def test_a_daemon_that_is_cut_off_from_one_server_commits_nothing_after_the_other_took_over(
    site: Site, cut_off_from: str
) -> None:
    """From ZooKeeper: its session ends. From S3: it says so and gives its topics up. One history, nothing twice."""
    async with Proxy(getattr(site, cut_off_from)) as line_one, Proxy(getattr(site, cut_off_from)) as line_two:
        lines = {"one": line_one, "two": line_two}
        sites = {name: replace(site, daemon_id=name) for name in lines}
        for name, line in lines.items():
            if cut_off_from == "zookeeper":
                sites[name].zookeeper = line.address
            else:
                sites[name].endpoint = f"http://{line.address}"
        daemons = {name: DaemonProcess(one) for name, one in sites.items()}
        one, two = daemons.values()
        async with one, two, one.client() as first, two.client() as second:
            cut = await owning(site, first)
            broker = Broker([one, two])
            async with asyncio.TaskGroup() as group:
                pushing = group.create_task(broker.pusher.run(), name="broker")
                await broker.pusher.progress()
                lines[cut].cut()
                async with asyncio.timeout(PATIENCE_S):
                    await broker.moved_away_from(daemons[cut])
                lines[cut].mend()
                await CLOCK.sleep(2.0)
                broker.pusher.end()
                await pushing
            if cut_off_from == "endpoint":
                await daemons[cut].logged('"topic.abandoned"')
            async with asyncio.timeout(PATIENCE_S):
                while (await first.daemons(TOPICS[0])).owner != cut:
                    await CLOCK.sleep(0.1)
            await broker.workload.read(first)
            await check(site, second, broker.workload)
            assert broker.workload.history.acked == broker.workload.history.offered > 50


async def test_a_killed_daemon_goes_on_at_its_restart_without_waiting_for_its_session(site: Site) -> None:
    """Its former process is proven to have ended, so what that process's session holds is taken at once."""
    site.settings["metadata"] = {"session_timeout_s": 40}
    async with DaemonProcess(site) as former, former.client() as client:
        await client.enable(TOPICS[0])
        await former.logged('"topic.claimed"')
        former.signal(signal.SIGKILL)
        await former.ended()
    async with DaemonProcess(site) as daemon, daemon.client() as client:
        serving_s = CLOCK.monotonic()
        await daemon.logged('"topic.claimed"')
        assert CLOCK.monotonic() - serving_s < 30.0
        assert logged(daemon, "daemon.succeeded")
        assert not logged(daemon, "daemon.waiting")
        assert (await client.status(TOPICS[0])).topics[0].epoch == 2
