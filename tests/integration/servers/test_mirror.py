"""A mirror on real servers: SeaweedFS has the first place, Azurite or Google's the mirror, and one of them is away.

Azurite comes from npm; without Node these tests are left out, and say so.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.model import TopicName
from offloaderd.objects.gcs.errors import RIGHTS
from offloaderd.protocol.v1 import policy_pb2
from tests.gcs_server import gcs_server
from tests.integration.appending import append_to
from tests.integration.processes import CLOCK, DaemonProcess, Proxy, Site
from tests.integration.servers.test_services import archive_of
from tests.integration.servers.test_upkeep import command, entries, gc, offload, read_all

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from offloaderd.client import DaemonClient
    from offloaderd.protocol.v1 import admin_pb2

TOPIC, BESIDE = (TopicName.parse(f"public/default/{name}") for name in ("mirrored", "beside"))
LEDGER_ENTRIES = 700
"""As many as the embedded store puts into a ledger."""


@pytest.fixture
def site(s3_site: Site) -> Site:
    """A site on S3 whose source deletes at once what is granted."""
    s3_site.settings["offload"] = {"segment_bytes_max": 30_000, "block_bytes": 8192}
    s3_site.settings["grants"] = {"deletion_lag_s": 0, "interval_s": 0.2}
    return s3_site


class Mirrored:
    """A topic whose policy names a mirror and demands it, and what was written to it."""

    def __init__(self, daemon: DaemonProcess, client: DaemonClient, bucket: str) -> None:
        self.daemon = daemon
        self.client = client
        self._place = f"{bucket}/moved/"
        self.sent: list[bytes] = []

    async def enable(self) -> None:
        """Enable it, and offload its first ledger, which leaves the source after it was copied."""
        demand = policy_pb2.OffloadPolicies(mirror=self._place, mirror_required="yes")
        await self.client.enable(TOPIC, policies=demand)
        await self.append(LEDGER_ENTRIES + 100)
        await offload(self.client, TOPIC)
        await self.mirror_when(lambda now: not now.lag_segments)
        await self.source_when(lambda now: now == [1])

    async def append(self, count: int) -> None:
        """Append entries that differ."""
        await append_to(self.client, TOPIC, entries(len(self.sent) + count, TOPIC)[len(self.sent) :])
        self.sent = entries(len(self.sent) + count, TOPIC)

    async def mirror_when(self, condition: Callable[[admin_pb2.MirrorSummary], bool]) -> admin_pb2.MirrorSummary:
        """Wait until the mirror in the status is as a test wants it."""
        while True:
            found = (await self.client.status(TOPIC)).topics[0].mirror
            if found.bucket and condition(found):
                return found
            await CLOCK.sleep(0.1)

    async def source_when(self, condition: Callable[[Sequence[int]], bool]) -> None:
        """Wait until the source has the ledgers that a test wants."""
        while not condition([one.ledger_id for one in (await self.client.ledgers(TOPIC)).ledgers if one.at_source]):
            await CLOCK.sleep(0.1)

    async def metric_when(self, name: str, condition: Callable[[float], bool]) -> None:
        """Wait until the sum of the series of a metric is as a test wants it: gauges are set now and then."""
        while True:
            if condition(await self.daemon.metric(name)):
                return
            await CLOCK.sleep(0.1)

    async def is_whole(self) -> None:
        """Check that every entry is offloaded and copied, as it was written, and that nothing else is stored."""
        await offload(self.client, TOPIC)
        await self.mirror_when(lambda now: not now.lag_segments and not now.failure)
        await self.source_when(lambda now: len(now) <= 1)  # the open one
        assert await read_all(self.client, TOPIC) == self.sent
        assert await gc(self.client, apply=True) == {}
        code, found = await command(self.daemon.site, "verify", "--level", "full", "--against-map")
        assert code == 0, found


@pytest.mark.parametrize("elsewhere", ["azure", "gcs"], indirect=True)
async def test_a_mirror_that_is_away_holds_up_grants_alone_and_catches_up(
    site: Site, elsewhere: dict[str, str]
) -> None:
    """Entries are offloaded and the lag shows; the source keeps the ledgers until the mirror is back, by itself."""
    async with (
        Proxy(elsewhere["endpoint"]) as line,
        archive_of(site, {**elsewhere, "endpoint": line.endpoint}),
        DaemonProcess(site) as daemon,
        daemon.client() as client,
    ):
        topic = Mirrored(daemon, client, elsewhere["bucket"])
        await topic.enable()
        line.cut()
        await topic.append(2 * LEDGER_ENTRIES)
        await offload(client, TOPIC)
        found = await topic.mirror_when(lambda now: bool(now.failure) and len(now.waiting_ledgers) == 2)
        assert (list(found.waiting_ledgers), found.lag_entries) == ([1, 2], 2 * LEDGER_ENTRIES)
        await topic.mirror_when(lambda now: now.lag_seconds > found.lag_seconds + 1)
        await topic.metric_when("offloaderd_mirror_lag_entries", lambda now: now == found.lag_entries)
        await topic.metric_when("offloaderd_mirror_lag_seconds", lambda now: now > found.lag_seconds)
        await topic.metric_when("offloaderd_mirror_waiting_ledgers", lambda now: now == 2)
        await topic.source_when(lambda now: now == [1, 2, 3])
        assert await read_all(client, TOPIC) == topic.sent
        line.mend()
        await topic.mirror_when(lambda now: not now.lag_segments and not now.waiting_ledgers)
        await topic.metric_when("offloaderd_mirror_lag_entries", lambda now: now == 0)
        await topic.is_whole()


@pytest.mark.parametrize(
    "elsewhere", [pytest.param("azure", marks=pytest.mark.witness("zookeeper")), "gcs"], indirect=True
)
async def test_a_first_place_that_is_away_is_read_in_the_mirror_and_stops_no_other(
    site: Site, elsewhere: dict[str, str]
) -> None:
    """What the source has no more is read, by the next daemon as well; a topic of the other service is offloaded."""
    async with Proxy(site.endpoint) as line, archive_of(site, elsewhere):
        site.endpoint = line.endpoint
        beside: list[bytes] = []

        async def goes_on(client: DaemonClient) -> None:
            more = entries(len(beside) + 200, BESIDE)[len(beside) :]
            await append_to(client, BESIDE, more)
            beside.extend(more)
            await offload(client, BESIDE)
            assert await read_all(client, BESIDE) == beside

        async with DaemonProcess(site) as daemon, daemon.client() as client:
            topic = Mirrored(daemon, client, elsewhere["bucket"])
            await topic.enable()
            there = policy_pb2.OffloadPolicies(bucket=elsewhere["bucket"], prefix="moved/")
            await client.enable(BESIDE, policies=there)
            await goes_on(client)
            line.cut()
            assert await read_all(client, TOPIC) == topic.sent
            await topic.metric_when("offloaderd_read_fallbacks_total", lambda now: now > 0)
            await goes_on(client)
            await topic.append(300)
            await client.roll(TOPIC)
            while not (await client.status(TOPIC)).topics[0].stalled_reason:
                await CLOCK.sleep(0.1)
            assert await read_all(client, TOPIC) == topic.sent
            daemon.signal(signal.SIGKILL)
            await daemon.ended()
        async with DaemonProcess(site) as daemon, daemon.client() as client:
            topic.daemon, topic.client = daemon, client
            assert await read_all(client, TOPIC) == topic.sent
            await goes_on(client)
            await topic.append(LEDGER_ENTRIES)
            while (await client.status(TOPIC)).topics[0].lag_entries < LEDGER_ENTRIES + 300:
                await CLOCK.sleep(0.1)
            line.mend()
            await topic.is_whole()


@pytest.mark.parametrize("right", ["storage.objects.create", "storage.objects.delete"])
async def test_a_mirror_that_lacks_a_right_is_read_and_holds_up_grants_alone(site: Site, right: str) -> None:
    """Nothing can be written there, or nothing deleted: the status names the right, and with it all is copied."""
    rights = frozenset(RIGHTS.values())
    async with gcs_server() as server, Proxy(site.endpoint) as line:
        server.anonymous, server.tokens = True, {"": rights}
        site.endpoint, elsewhere = line.endpoint, {"kind": "gcs", "bucket": "mirror", "endpoint": server.endpoint}
        async with archive_of(site, elsewhere), DaemonProcess(site) as daemon, daemon.client() as client:
            topic = Mirrored(daemon, client, elsewhere["bucket"])
            await topic.enable()
            server.tokens = {"": rights - {right}}
            await topic.append(2 * LEDGER_ENTRIES)
            await offload(client, TOPIC)
            await topic.mirror_when(lambda now: f"allow {right} " in now.failure and len(now.waiting_ledgers) == 2)
            await topic.source_when(lambda now: now == [1, 2, 3])
            line.cut()
            assert await read_all(client, TOPIC) == topic.sent
            await topic.metric_when("offloaderd_read_fallbacks_total", lambda now: now > 0)
            line.mend()
            server.tokens = {"": rights}
            await topic.is_whole()
