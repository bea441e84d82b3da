"""Each kind of store behind a line that breaks: nothing is lost, nothing is left."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.model import TopicName
from offloaderd.drill.tcp_proxy import Link
from offloaderd.objects.port import PART_BYTES_MIN
from tests.integration.processes import CLOCK, DaemonProcess
from tests.real.proof import check
from tests.real.workload import Workload

if TYPE_CHECKING:
    from tests.integration.processes import Site


TOPIC = TopicName.parse("public/default/broken")
ROUNDS, CUTS = 4, 25


async def cut_again_and_again(link: Link) -> None:
    """Abort all connections, at other moments of the requests each time; now and then nothing answers for a while.

    A busy machine may need longer to connect again, so each cut waits for a connection that is new.
    """
    broken = 0
    for number in range(CUTS):
        await CLOCK.sleep(0.05 + CLOCK.jitter(0.1))
        while link.connections == broken:
            await CLOCK.sleep(0.01)
        broken = link.connections
        link.break_off()
        if number % 5 == 4:
            link.cut()
            await CLOCK.sleep(0.3)
            link.mend()


@pytest.fixture(params=["s3", "azure", "gcs"])
def site(request: pytest.FixtureRequest) -> Site:
    """A site on each kind of store, that reads back what it has written."""
    found: Site = request.getfixturevalue(f"{request.param}_site")
    found.settings["offload"] = {
        "segment_bytes_max": 12 << 20,
        "block_bytes": 256 << 10,
        "part_bytes": PART_BYTES_MIN,
        "verify": "readback",
    }
    return found


async def test_connections_that_break_lose_and_leave_nothing(site: Site) -> None:
    """Requests are cut off before, in and behind their work while segments are sent, committed and read."""
    workload = Workload(TOPIC, entry_bytes=40_000)
    async with Link(site.endpoint) as link, DaemonProcess(replace(site, endpoint=link.endpoint)) as daemon:
        async with daemon.client() as client:
            await client.enable(TOPIC)
            async with asyncio.TaskGroup() as group:
                breaking = group.create_task(cut_again_and_again(link))
                for number in range(ROUNDS):
                    await workload.append(client, 100 + 100 * (number % 2))  # one part, or two
                    await workload.offload(client)
                    await workload.read_at_last(client)
                await breaking
            await workload.append(client, 40)
            await workload.offload(client)
            await workload.read_at_last(client)
            await check(site, client, workload)
        assert link.connections >= CUTS, "connections were made again and again"
