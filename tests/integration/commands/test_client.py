"""The client library against a real daemon that is killed and started again: nothing repeated, nothing left out."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from offloaderd.client import DaemonClient, EntryBatch, OfferResult, Position, Pushed
from tests.integration.processes import DaemonProcess, Site
from tests.pages import ROOT, blocks
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from tests.servers import S3Server

TOPIC = "public/default/pushed"
COUNT, BATCH = 600, 20
LEDGER_ID = 7


def payload(number: int) -> bytes:
    """Return the content of an entry."""
    return b"entry %d " % number * 20


@pytest.mark.witness("commands")
async def test_the_pages_own_program_pushes(
    tmp_path: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str
) -> None:
    """The program of docs/client.md as it stands, against the kind of daemon that the page names for it."""
    program = next(one for one in blocks(ROOT / "docs" / "client.md") if one.info == ("python", "push")).program
    site = Site.at(tmp_path, zookeeper, s3_server, s3_bucket)
    site.settings = {"ledgers": {"kind": "none"}}
    async with DaemonProcess(site) as daemon:
        await daemon.serving()
        text = program.replace("127.0.0.1:7650", daemon.address)
        running = await asyncio.create_subprocess_exec(sys.executable, "-c", text, stdout=asyncio.subprocess.PIPE)
        async with asyncio.timeout(PATIENCE_S):
            said, _ = await running.communicate()
        assert running.returncode == 0
        assert said.decode().splitlines()[-1] == "offloaded up to 7:99"


async def test_a_push_and_a_read_live_through_a_kill(
    tmp_path: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str
) -> None:
    """A push-only topic; the daemon is killed in the middle of both, and comes back at the same address."""
    site = Site.at(tmp_path, zookeeper, s3_server, s3_bucket)
    site.settings = {"ledgers": {"kind": "none"}, "offload": {"segment_age_max_s": 1}}
    halfway = asyncio.Event()
    told: list[Pushed] = []

    async def entries(after: Position | None) -> AsyncGenerator[EntryBatch, None]:
        for first in range(0 if after is None else after.entry_id + 1, COUNT, BATCH):
            if first == COUNT // 2:
                halfway.set()
            last = min(first + BATCH, COUNT)
            yield EntryBatch(LEDGER_ID, first, [payload(number) for number in range(first, last)])

    async def read() -> list[bytes]:
        found: list[bytes] = []
        async with aclosing(client.read(TOPIC, follow=True, resume_s=PATIENCE_S)) as answers:
            async for answer in answers:
                assert answer.batch.first_entry_id == len(found)
                found += answer.batch.payloads
                if len(found) == COUNT:
                    break
        return found

    first = DaemonProcess(site)
    async with first:
        await first.serving()
        async with DaemonClient(first.address, connect_s=PATIENCE_S) as client, asyncio.TaskGroup() as group:
            await client.enable(TOPIC)
            pushing = group.create_task(client.push(TOPIC, entries, told.append, resume_s=PATIENCE_S))
            await halfway.wait()
            reading = group.create_task(read())
            first.signal(signal.SIGKILL)
            await first.ended()
            second = DaemonProcess(site)
            second.grpc_port = first.grpc_port
            async with second:
                async with asyncio.timeout(PATIENCE_S):
                    assert await pushing == Position(LEDGER_ID, COUNT - 1)
                    assert await reading == [payload(number) for number in range(COUNT)]
        assert {one.result for one in told} <= {OfferResult.ACCEPTED, None}
