"""Several processes of one host: one address, one page of metrics, one drain; a killed one is replaced."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.model import EntryBatch, Position, TopicName
from offloaderd.objects.port import PART_BYTES_MIN
from offloaderd.standalone.ports import free_ports, is_free
from tests.integration.commands.test_doctor import administrator
from tests.integration.processes import CLOCK, DaemonProcess, Site
from tests.real.proof import at_rest
from tests.real.pusher import Pusher
from tests.real.workload import Workload

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from offloaderd.client import DaemonClient
    from tests.servers import S3Server

TOPICS = [TopicName.parse(f"public/default/t{number}") for number in range(8)]
NUMBERS = ("1", "2")
WITHIN_S = 90.0


@pytest.fixture
def site(tmp_path: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str) -> Site:
    """A site of two processes without a ledger source; a session outlives its process by far."""
    site = Site.at(tmp_path, zookeeper, s3_server, s3_bucket)
    site.settings["daemon"] = {"processes": len(NUMBERS)}
    site.settings["grpc"] = {"process_port": free_row(len(NUMBERS))}
    site.settings["metadata"] = {"session_timeout_s": 40}
    site.settings["ledgers"] = {"kind": "none"}
    site.settings["placement"] = {"settle_s": 1, "grace_s": 30}
    site.settings["offload"] = {
        "segment_bytes_max": 12 << 20,
        "segment_age_max_s": 1.5,
        "block_bytes": 256 << 10,
        "part_bytes": PART_BYTES_MIN,
    }
    return site


def free_row(count: int) -> int:
    """Return a port behind which so many are free."""
    while True:
        first = free_ports(1, CLOCK)[0]
        if all(is_free(port) for port in range(first + 1, first + count + 1)):
            return first


async def until(host: DaemonProcess, path: str, good: Callable[[int, str], bool]) -> str:
    """Ask for a page until it is good; returns it."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            try:
                code, body = await host.http(path)
                if good(code, body):
                    return body
            except OSError:
                assert host.process.returncode is None, host.said()
            await CLOCK.sleep(0.1)


def process_ids(host: DaemonProcess) -> dict[str, int]:
    """Return the ids of the processes below the parent, by their numbers."""
    parent = host.process.pid
    found = {}
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        words = Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0")
        found[words[words.index("--as-process") + 1]] = int(child)
    return found


async def owners(client: DaemonClient) -> dict[TopicName, str]:
    """Return the number of the process that owns each topic, once both have some."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            found = {TopicName.parse(one.topic): one.owner.rpartition(".")[2] for one in await client.topics()}
            if set(found.values()) == set(NUMBERS):
                return found
            await CLOCK.sleep(0.1)


async def reaches_the_owner(client: DaemonClient, topic: TopicName) -> bool:
    """Push through the client, which begins at the common address; return whether it was led to the owner's own."""

    async def entries(after: Position | None) -> AsyncGenerator[EntryBatch, None]:
        if after is None:
            yield EntryBatch(1, 0, [b"one", b"two"])

    assert await client.push(topic, entries, resume_s=WITHIN_S) == Position(1, 1)
    found = await client.daemons(topic)
    owner = next(one for one in found.daemons if one.daemon_id == found.owner)
    assert owner.asked
    return client.address == owner.address


@pytest.mark.witness("zookeeper", "s3")
async def test_a_killed_process_is_replaced_and_its_topics_go_on_there(site: Site) -> None:
    """Everything that concerns the host goes through its two ports; what was pushed is stored, and once."""
    host = DaemonProcess(site)
    async with host:
        await until(host, "/readyz", lambda code, _: code == 200)
        async with host.client() as client:
            for topic in TOPICS:
                await client.enable(topic)
            owned = await owners(client)
            pushed = [next(one for one in TOPICS[1:] if owned[one] == number) for number in NUMBERS]
            led = []
            for topic in pushed:
                async with host.client() as other:
                    led.append(await reaches_the_owner(other, topic))
            assert any(led)
            victim = owned[TOPICS[0]]
            workload = Workload(TOPICS[0], entry_bytes=10_000)
            pusher = Pusher(workload, lambda: [host.address])
            before = process_ids(host)
            async with asyncio.TaskGroup() as group:
                pushing = group.create_task(pusher.run(), name="broker")
                await pusher.progress()
                os.kill(before[victim], signal.SIGKILL)
                killed = pusher.durable
                await host.logged('"process.ended"')
                await pusher.progress(beyond=killed)
                pusher.end()
                await pushing
        after = process_ids(host)
        assert after.keys() == before.keys()
        assert {number for number in NUMBERS if after[number] != before[number]} == {victim}
        assert '"daemon.succeeded"' in host.said()
        async with host.client() as client:
            assert (await owners(client))[TOPICS[0]] == victim
            await workload.read(client)
            history = workload.history
            assert history.acked == history.offered > 50
        await one_host(host, victim)
        found = await at_rest(site, [TOPICS[0], *pushed])
        assert not found.problems
        assert not workload.history.problems(found.stored[TOPICS[0]], found.floors[TOPICS[0]])
        host.signal(signal.SIGTERM)
        assert await host.ended() == 0
        drained = [line for line in lines(host) if line["event"] == "daemon.drained"]
        assert {str(line["process"]) for line in drained} == set(NUMBERS)
    with administrator(site.zookeeper) as zookeeper:
        assert zookeeper.get_children(f"/offloaderd/{site.cluster}/daemons") == []


def lines(host: DaemonProcess) -> list[dict[str, object]]:
    """Return the log of parent and processes."""
    return [json.loads(line) for line in host.said().splitlines() if line.startswith("{")]


async def one_host(host: DaemonProcess, replaced: str) -> None:
    """Metrics, log levels, settings and the status page are those of the host, through whichever process."""
    up = [f'offloaderd_process_up{{process="{number}"}} 1.0' for number in NUMBERS]
    page = await until(host, "/metrics", lambda _, body: all(line in body for line in up))
    assert f'offloaderd_process_replacements_total{{process="{replaced}"}} 1.0' in page
    assert all(page.count(f'\noffloaderd_ready{{process="{number}"}} 1.0') == 1 for number in NUMBERS)
    assert page.count("# TYPE offloaderd_ready gauge") == 1
    async with host.client() as client:
        await client.set_log_level("topic.tailer", "debug", 600)
        raised = [f'offloaderd_log_levels_raised{{process="{number}"}} 1.0' for number in NUMBERS]
        await until(host, "/metrics", lambda _, body: all(line in body for line in raised))
        await client.reload()
    async with asyncio.timeout(WITHIN_S):
        while {str(one.get("process")) for one in lines(host) if one["event"] == "settings.reloaded"} < {
            *NUMBERS,
            "None",
        }:
            await CLOCK.sleep(0.1)
    assert (await host.http("/status"))[0] == 302
    for number in NUMBERS:
        code, status = await host.http(f"/processes/{number}/status")
        assert code == 200
        assert f"{host.site.daemon_id}.{number}" in status
        assert f"<strong>{number}</strong>" in status
