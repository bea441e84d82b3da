"""A daemon as people see it, on real servers: the page and `offloadctl top` tell the same, and what is so."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import TYPE_CHECKING, Any

import html5lib
import pytest

from tests.integration.processes import CLOCK, DaemonProcess, Site
from tests.integration.servers.test_daemon import TOPIC, append, entries, offload, read_all, taken

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers import S3Server


@pytest.fixture
def site(tmp_path: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str) -> Site:
    """A site on the test's servers."""
    return Site.at(tmp_path, zookeeper, s3_server, s3_bucket)


async def top(address: str) -> Any:  # noqa: ANN401 - JSON
    """Return what `offloadctl top --once --json` says."""
    words = [
        "-m",
        "offloaderd.cli.offloadctl.__main__",
        "top",
        "--once",
        "--json",
        "--interval",
        "0.2",
        "--address",
        address,
    ]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, env=dict(os.environ), stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    assert process.returncode == 0
    return json.loads(said)


async def test_the_page_and_top_say_what_is_so(site: Site) -> None:
    """An open segment with its lag, then everything durable and read back: seen by both, with method and owner."""
    async with DaemonProcess(site) as daemon, daemon.client() as client:
        code, body = await daemon.http("/status")
        assert (code, "No topic." in body) == (200, True)
        await client.enable(TOPIC)
        await append(client, entries(500))
        await taken(client, 500)

        async def shown() -> Any:  # noqa: ANN401 - JSON
            code, body = await daemon.http("/status.json")
            assert code == 200
            return json.loads(body)

        while not (page := await shown())["topics"] or not page["topics"][0]["open_segment"]:
            await CLOCK.sleep(0.1)
        (topic,), seen = page["topics"], (await top(daemon.address))["topics"]
        for one in (topic, seen[0]):
            assert (one["owner"], one["method"], one["lag_entries"]) == (site.daemon_id, "streaming", 500)
            assert one["open_segment"]["entries"] == one["taken_entries"] == 500
        await offload(client)
        assert len(await read_all(client)) == 500
        while (page := await shown())["topics"][0]["lag_entries"]:
            await CLOCK.sleep(0.1)
        assert page["topics"][0]["open_segment"] is None
        assert sum(one["entries"] for one in page["reads"]) == 500
        for path in ("/status", f"/status?topic={TOPIC}"):
            code, body = await daemon.http(path)
            assert code == 200
            html5lib.HTMLParser(strict=True).parse(body)
            assert str(TOPIC) in body
