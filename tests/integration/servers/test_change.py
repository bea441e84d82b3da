"""Daemons as processes that change while they run: new settings, paused topics, a rolling upgrade under load."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from offloaderd.client import DaemonClient
from offloaderd.core.errors import InvalidConfig, OffloaderError
from offloaderd.core.model import Position, TopicName
from offloaderd.objects.port import PART_BYTES_MIN
from tests.integration.processes import CLOCK, DaemonProcess, Site
from tests.patience import PATIENCE_S
from tests.real.proof import check
from tests.real.pusher import Pusher
from tests.real.workload import Workload

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from tests.servers import S3Server

TOPIC = TopicName.parse("public/default/orders")
NEXT_RELEASE = [
    sys.executable,
    "-c",
    "import offloaderd; offloaderd.__version__ = '99.0.0'; from offloaderd.cli.offloaderd.__main__ import main; main()",
]
"""The same daemon under another version's name."""


@pytest.fixture
def site(tmp_path: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str) -> Site:
    """A site without a ledger source: what is not durable exists at the broker alone."""
    site = Site.at(tmp_path, zookeeper, s3_server, s3_bucket)
    site.settings["ledgers"] = {"kind": "none"}
    site.settings["placement"] = {"settle_s": 1, "grace_s": 2}
    site.settings["offload"] = {"segment_age_max_s": 1.0, "block_bytes": 64 << 10, "part_bytes": PART_BYTES_MIN}
    return site


async def until(condition: Callable[[], object]) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await CLOCK.sleep(0.05)


async def owned_by(client: DaemonClient, *, other_than: str = "") -> str:
    """Wait until the topic has an owner (another one); returns it."""
    async with asyncio.timeout(PATIENCE_S):
        while (owner := (await client.daemons(TOPIC)).owner) in {"", other_than}:
            await CLOCK.sleep(0.1)
    return owner


async def test_a_daemon_follows_its_settings_by_a_signal_and_by_a_call(site: Site, tmp_path: Path) -> None:
    """What is right holds at once; what is wrong anywhere changes nothing, and is told with every mistake."""
    path = tmp_path / "offloaderd.toml"
    path.write_text("")
    site.settings["offload"] = {}
    async with DaemonProcess(site, environment={"OFFLOADERD_CONFIG": str(path)}) as daemon, daemon.client() as client:
        assert not (await client.reload()).changes
        path.write_text(
            '[log]\nlevel = "debug"\n[read]\nreaders_max = 7\nbatch_bytes = "2MiB"\n[spill]\nbytes_max = "1GiB"\n'
        )
        planned = await client.reload(dry_run=True)
        assert [(one.key, one.needs_restart) for one in planned.changes] == [
            ("spill.bytes_max", True),
            ("read.batch_bytes", False),
            ("read.readers_max", False),
            ("log.level", False),
        ]
        assert [(one.module, one.level) for one in await client.log_levels()] == [("", "info")]
        daemon.signal(signal.SIGHUP)
        await daemon.logged('"settings.reloaded"')
        assert [one.level for one in await client.log_levels()] == ["debug"]
        path.write_text('[log]\nlevel = "loud"\n[read]\nreaders_max = -1\n')
        with pytest.raises(InvalidConfig, match="2 mistakes") as caught:
            await client.reload()
        assert "log.level" in caught.value.message
        assert "read.readers_max" in caught.value.message
        daemon.signal(signal.SIGHUP)
        await daemon.logged('"settings.not_reloaded"')
        assert [one.level for one in await client.log_levels()] == ["debug"]
        _, page = await daemon.http("/metrics")
        assert "offloaderd_reload_success 0.0" in page
        assert "offloaderd_reload_waiting_settings 1.0" in page
        path.unlink()
        with pytest.raises(InvalidConfig, match="cannot read the settings file"):
            await client.reload()
        assert daemon.said().count('"audit.reload"') == 6
        daemon.signal(signal.SIGTERM)
        assert await daemon.ended() == 0


async def test_a_pause_outlives_the_owner_that_was_told(site: Site) -> None:
    """The broker is held back by whoever owns the topic, until somebody has it go on; nothing is lost or doubled."""
    site.settings["metadata"] = {"session_timeout_s": 2}
    daemons = {name: DaemonProcess(replace(site, daemon_id=name)) for name in ("one", "two")}
    one, two = daemons.values()
    async with one, two, one.client() as first, two.client() as second:
        clients = {"one": first, "two": second}
        await first.enable(TOPIC)
        owner = await owned_by(first)
        left = "two" if owner == "one" else "one"
        workload = Workload(TOPIC)
        pusher = Pusher(workload, lambda: [daemon.address for daemon in daemons.values()])
        async with asyncio.TaskGroup() as group:
            pushing = group.create_task(pusher.run(), name="broker")
            await pusher.progress()
            (paused,) = await clients[left].pause(TOPIC)
            assert paused.changed
            async with asyncio.timeout(PATIENCE_S):
                while (await clients[owner].status(TOPIC)).topics[0].state != "paused":
                    await CLOCK.sleep(0.05)
            assert (await first.topics())[0].paused_ms == paused.paused_ms
            daemons[owner].signal(signal.SIGKILL)
            await daemons[owner].ended()
            assert await owned_by(clients[left], other_than=owner) == left
            async with asyncio.timeout(PATIENCE_S):
                while (found := (await clients[left].status(TOPIC)).topics[0]).state != "paused":
                    await CLOCK.sleep(0.05)
            assert (found.paused_ms, found.paused_by) == (paused.paused_ms, paused.paused_by)
            before = pusher.durable
            read = workload.history.reads
            await workload.read(clients[left])
            assert read[-1].whole
            await clients[left].pause(TOPIC, undo=True)
            async with asyncio.timeout(PATIENCE_S):
                await pusher.progress(beyond=before)
            pusher.end()
            await pushing
        await workload.read(clients[left])
        await check(site, clients[left], workload)


class Follower:
    """Reads a topic as it grows, from whichever daemon answers, going on behind the last entry that it has."""

    def __init__(self, addresses: Callable[[], Sequence[str]]) -> None:
        self.entries: list[tuple[Position, bytes]] = []
        self._addresses = addresses

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            for address in self._addresses():
                try:
                    async with DaemonClient(address, connect_s=2) as client:
                        async for position, payload in self._entries(client):
                            self.entries.append((position, payload))
                except OffloaderError:
                    await CLOCK.sleep(0.1)

    async def _entries(self, client: DaemonClient) -> AsyncIterator[tuple[Position, bytes]]:
        last = self.entries[-1][0] if self.entries else None
        async for response in client.read(TOPIC, first=last, follow=True, timeout_s=10):
            for number, payload in enumerate(response.batch.payloads):
                position = Position(response.batch.ledger_id, response.batch.first_entry_id + number)
                if last is None or position > last:
                    yield position, payload


async def test_two_daemons_are_replaced_one_after_the_other_under_load(site: Site) -> None:
    """Each is drained, told to stop and comes back as the next release, while a broker writes and a reader follows.

    The reader gets every entry once and in order, the broker hears of each that it is durable, and no segment, object
    or record is left that does not belong.
    """
    running = {name: DaemonProcess(replace(site, daemon_id=name)) for name in ("one", "two")}
    workload = Workload(TOPIC)

    def addresses() -> list[str]:
        return [daemon.address for daemon in running.values()]

    pusher, follower = Pusher(workload, addresses), Follower(addresses)
    async with AsyncExitStack() as stack:
        for daemon in list(running.values()):
            await stack.enter_async_context(daemon)
        async with running["one"].client() as client:
            await running["two"].serving()
            await client.enable(TOPIC)
            await owned_by(client)
        async with asyncio.TaskGroup() as group:
            pushing = group.create_task(pusher.run(), name="broker")
            following = group.create_task(follower.run(), name="reader")
            await pusher.progress()
            for name in ("one", "two"):
                old = running[name]
                async with old.client() as client:
                    reports = [report async for report in client.drain(timeout_s=PATIENCE_S)]
                    assert reports[-1].done
                old.signal(signal.SIGTERM)
                assert await old.ended() == 0
                before = pusher.durable
                running[name] = new = DaemonProcess(old.site, program=NEXT_RELEASE)
                await stack.enter_async_context(new)
                async with new.client() as client:
                    await until_working(client, 2)
                    async with asyncio.timeout(PATIENCE_S):
                        await pusher.progress(beyond=before)
            pusher.end()
            await pushing
            await until(lambda: len(follower.entries) >= workload.history.offered)
            following.cancel()
        async with running["one"].client() as client:
            assert {one.version for one in (await client.daemons()).daemons} == {"99.0.0"}
            await workload.read(client)
            audit = await check(site, client, workload)
    assert follower.entries == workload.history.reads[-1].entries
    assert workload.history.acked == workload.history.offered == len(follower.entries) > 100
    assert len(audit.stored[TOPIC]) == len(follower.entries)


async def until_working(client: DaemonClient, count: int) -> None:
    """Wait until so many daemons take topics."""
    async with asyncio.timeout(PATIENCE_S):
        while [one.standing for one in (await client.daemons()).daemons].count("working") < count:
            await CLOCK.sleep(0.1)
