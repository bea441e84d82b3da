"""Single entries out of a real S3 server: what a daemon that has nothing in its cache fetches for them."""

from __future__ import annotations

import asyncio
import re
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.model import Position, TopicName
from offloaderd.core.read_options import ReadPriority
from tests.integration.appending import append_to
from tests.integration.processes import CLOCK, DaemonProcess, Site
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

    from offloaderd.client import DaemonClient
    from tests.servers import S3Server

TOPIC = TopicName.parse("public/default/orders")
MIB = 1 << 20
BLOCK_ENTRIES = MIB // 1036
SENT = [f"{number}/".encode().ljust(1024, b"#") for number in range(12 * BLOCK_ENTRIES)]
LARGE = [b"small", b"L" * (3 * MIB + 17), b"small again"]
AT_FIRST = 5
"""What is fetched before the reads that count. Beside its reads the daemon gets the place's marker when it starts, and
the topic's head when it has claimed the topic; a first read gets index, manifest and its entry's chunk."""


@pytest.fixture
def site(tmp_path: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str) -> Site:
    """A site on the test's servers, with the blocks and parts of the default settings."""
    found = Site.at(tmp_path, zookeeper, s3_server, s3_bucket)
    # A topic that wakes has its head read again, at a time of its own: none sleeps.
    found.settings["offload"] = {"block_bytes": MIB, "part_bytes": 8 * MIB, "suspend_after_s": 0}
    found.settings["ledgers"] = {"ledger_entries_max": 2 * len(SENT)}
    found.settings["scrub"] = found.settings["grants"] = {"enabled": False}
    return found


async def read_from_bucket(client: DaemonClient, ledger_id: int, first: int, count: int = 1) -> list[bytes]:
    """Read some entries from one on, and say of no end."""
    one = client.read(
        TOPIC,
        first=Position(ledger_id, first),
        entries_max=count,
        read_priority=ReadPriority.TIERED_STORAGE_FIRST,
    )
    async with aclosing(one) as responses:
        return [payload async for response in responses for payload in response.batch.payloads]


async def fetched(daemon: DaemonProcess) -> tuple[float, float]:
    """Return how many objects or ranges were fetched so far, and their bytes."""
    _, text = await daemon.http("/metrics")

    def total(name: str, label: str) -> float:
        found = re.findall(rf"^{name}{{[^}}]*{label}[^}}]*}} (\S+)$", text, re.MULTILINE)
        return sum(map(float, found))

    return total("offloaderd_objects_requests_total", 'operation="GetObject"'), total(
        "offloaderd_objects_bytes_total", 'direction="in"'
    )


async def until_fetched(daemon: DaemonProcess, count: int) -> None:
    """Wait until so many objects or ranges were fetched."""
    async with asyncio.timeout(PATIENCE_S):
        while (await fetched(daemon))[0] < count:
            await CLOCK.sleep(0.02)


async def test_a_cold_read_of_an_entry_gets_its_chunk(site: Site) -> None:
    """One request of 64 KiB, 128 for the few that lie in two chunks; who reads on gets whole blocks; all is right."""
    async with DaemonProcess(site) as daemon, daemon.client() as client:
        await client.enable(TOPIC)
        await append_to(client, TOPIC, [*SENT, *LARGE])
        async for _ in client.offload(TOPIC, wait=True, timeout_s=PATIENCE_S):
            pass
        ledger_id = (await client.segments(TOPIC))[0].begin.ledger_id
    async with DaemonProcess(site) as daemon, daemon.client() as client:
        count = len(SENT)
        assert await read_from_bucket(client, ledger_id, count + 2) == [LARGE[2]]
        await until_fetched(daemon, AT_FIRST)
        for block in range(0, 10, 2):
            before = await fetched(daemon)
            first = block * BLOCK_ENTRIES + 131 * block + 7
            assert await read_from_bucket(client, ledger_id, first) == SENT[first : first + 1]
            after = await fetched(daemon)
            assert after[0] - before[0] == 1
            assert 0 < after[1] - before[1] <= 128 * 1024
            assert await read_from_bucket(client, ledger_id, first) == SENT[first : first + 1]
            assert await fetched(daemon) == after
        before = await fetched(daemon)
        for first in range(11 * BLOCK_ENTRIES, count - 50, 50):
            assert await read_from_bucket(client, ledger_id, first, 50) == SENT[first : first + 50]
        after = await fetched(daemon)
        assert after[0] - before[0] <= 4
        assert after[1] - before[1] <= 2.5 * MIB
        assert await read_from_bucket(client, ledger_id, count, 3) == LARGE
        assert await read_from_bucket(client, ledger_id, 0, count + 3) == [*SENT, *LARGE]
        async with aclosing(client.verify(TOPIC)) as events:
            assert not [flaw async for event in events for flaw in event.segment.flaws]
