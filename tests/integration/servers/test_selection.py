"""Topics by pattern on a real ZooKeeper: a daemon that picks new ones up, and several that agree over hundreds."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from offloaderd.core.clock import SystemClock
from offloaderd.core.model import TopicName
from offloaderd.core.names.patterns import TopicPattern
from offloaderd.metadata import paths
from offloaderd.metadata.zookeeper.store import ZooKeeperStore
from offloaderd.policy import discovery
from offloaderd.policy.discovery import Discovery
from offloaderd.policy.records import TopicPolicy
from offloaderd.policy.store import enabled_topics, topic_policies
from offloaderd.policy.updates import Selector
from tests.integration.appending import append_to
from tests.integration.processes import CLOCK, DaemonProcess, Site
from tests.patience import PATIENCE_S
from tests.unit.rigs.topic_source import TopicSource

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from offloaderd.client import DaemonClient
    from tests.servers import S3Server

WEB = TopicPattern.parse("acme/web/*")
POLICY = TopicPolicy(segment_bytes_max=1 << 20)


async def append(client: DaemonClient, topic: str, count: int) -> None:
    """Append entries to a topic, which makes it."""
    await append_to(client, TopicName.parse(topic), [f"{topic}/{number}".encode() for number in range(count)])


async def offloaded(client: DaemonClient, topic: str) -> int:
    """Offload a topic that some daemon is about to claim, and return how many entries are stored."""
    name = TopicName.parse(topic)
    async for _ in client.offload(name, wait=True, timeout_s=PATIENCE_S):
        pass
    return sum(segment.entries for segment in await client.segments(name))


async def state(client: DaemonClient) -> dict[str, str]:
    """Return the enabled topics with the pattern that selected each."""
    found = await client.topics("acme")
    return {one.topic.removeprefix("persistent://acme/web/"): one.selected_by for one in found if one.enabled}


async def test_a_daemon_offloads_what_a_pattern_selects_now_and_later(
    tmp_path: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str
) -> None:
    """Enabled, discovered, excepted, restarted and disabled: every topic is offloaded exactly while it should be."""
    site = Site.at(tmp_path, zookeeper, s3_server, s3_bucket)
    async with DaemonProcess(site) as daemon, daemon.client() as client:
        await append(client, "acme/web/orders", 50)
        rehearsed = await client.enable(WEB, dry_run=True)
        assert await state(client) == {}
        answer = await client.enable(WEB)
        assert answer == rehearsed
        assert [(one.topic, one.outcome) for one in answer.topics] == [("persistent://acme/web/orders", "enabled")]
        assert await offloaded(client, "acme/web/orders") == 50
        await append(client, "acme/web/late", 20)
        await append(client, "acme/other/x", 1)
        await append(client, "acme/web/parts-partition-0", 10)
        async with asyncio.timeout(PATIENCE_S):
            while len(await state(client)) < 3:
                await CLOCK.sleep(0.2)
        assert await state(client) == dict.fromkeys(["orders", "late", "parts-partition-0"], "acme/web/*")
        assert await offloaded(client, "acme/web/late") == 20
        changed = await client.disable(TopicName.parse("acme/web/parts"))
        assert [one.outcome for one in changed.topics] == ["disabled", "disabled"]
        assert [one.topics for one in await client.selections()] == [2]
    async with DaemonProcess(site) as daemon, daemon.client() as client:
        await append(client, "acme/web/late", 5)
        assert await offloaded(client, "acme/web/late") == 25
        await client.disable(WEB)
        assert await state(client) == {}
        assert await client.selections() == []
        assert (await client.enable(TopicName.parse("acme/web/parts"))).topics[1].outcome == "enabled"
        assert await offloaded(client, "acme/web/parts-partition-0") == 10


async def test_two_daemons_enable_six_hundred_topics_between_them(
    zookeeper: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Racing over one ZooKeeper, they write every policy once, in few transactions, and then leave it alone."""
    monkeypatch.setattr(discovery, "DISCOVERY_S", 0.2)
    monkeypatch.setattr(discovery, "JITTER_S", 0.001)
    names = {f"acme/web/topic-{number}" for number in range(600)}
    clock, root = SystemClock(), f"/{CLOCK.uuid().hex}"
    async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        stores = [await stack.enter_async_context(ZooKeeperStore(zookeeper, root)) for _ in range(3)]
        selectors = [Selector(store, TopicSource(names), clock) for store in stores]  # type: ignore[arg-type]
        tasks = [group.create_task(Discovery(selector).run()) for selector in selectors[:2]]
        changes = await selectors[2].enable(WEB, POLICY)
        assert len(changes) == 600
        found = await topic_policies(stores[2])
        wanted = TopicPolicy(segment_bytes_max=1 << 20, selected_by="acme/web/*")
        assert len(found) == 600
        assert set(found.values()) == {wanted}
        await clock.sleep(1)
        written = await stores[2].get(paths.TOPICS)
        await clock.sleep(1)
        assert await stores[2].get(paths.TOPICS) == written
        assert written.version <= 2 * 600 / 100
        one = paths.policy(TopicName.parse("acme/web/topic-7"))
        assert (await stores[2].get(one)).version == 0
        await selectors[2].disable(WEB)
        while await enabled_topics(stores[2]):
            await clock.sleep(0.1)
        for task in tasks:
            task.cancel()
