"""The readers in Go and Java, made from protos/ alone, against a real daemon: entries, pages of topics, errors."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import google_crc32c
import pytest

from offloaderd.core.model import TopicName
from tests.integration.appending import append_to
from tests.integration.processes import DaemonProcess, Site
from tests.pages import ROOT
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers import S3Server

READERS = {"go": ("build/readers/go",), "java": ("java", "-jar", "build/readers/java.jar")}
TOPIC = "public/default/orders"
PAYLOADS = [b"entry %d " % number * (number % 50 + 1) for number in range(500)]
TOPICS = 230
"""More than two pages of the reader."""


async def ran(language: str, *words: str) -> tuple[int, list[str], str]:
    """Run a reader; returns its code, its lines, and its errors."""
    program = READERS[language]
    if not (ROOT / program[-1]).exists():
        pytest.skip(f"{program[-1]} was not built: make readers")
    pipe = asyncio.subprocess.PIPE
    running = await asyncio.create_subprocess_exec(*program, *words, stdout=pipe, stderr=pipe, cwd=ROOT)
    async with asyncio.timeout(PATIENCE_S):
        out, err = await running.communicate()
    assert running.returncode is not None
    return running.returncode, out.decode().splitlines(), err.decode()


@pytest.mark.parametrize("language", READERS)
async def test_a_topic_is_read_from_bucket_and_source(
    language: str, tmp_path: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str
) -> None:
    """Every entry once, in order, with its very bytes; an error has a reason, and says what to do."""
    async with DaemonProcess(Site.at(tmp_path, zookeeper, s3_server, s3_bucket)) as daemon:
        await daemon.serving()
        async with daemon.client() as client:
            await client.enable(TOPIC)
            await append_to(client, TopicName.parse(TOPIC), PAYLOADS)
            await client.roll(TOPIC)
            await append_to(client, TopicName.parse(TOPIC), PAYLOADS[:10])
        code, lines, _ = await ran(language, daemon.address, TOPIC)
        sums = [f"{len(one)} {google_crc32c.value(one):08x}" for one in [*PAYLOADS, *PAYLOADS[:10]]]
        assert (code, [line.partition(" ")[2] for line in lines]) == (0, sums)
        code, lines, said = await ran(language, daemon.address, "public/default/unknown")
        assert (code, lines) == (1, [])
        assert "TOPIC_NOT_FOUND: unknown topic" in said
        assert "offloadctl topics list" in said


async def test_topics_are_listed_page_by_page(
    tmp_path: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str
) -> None:
    """Each once, in order."""
    async with DaemonProcess(Site.at(tmp_path, zookeeper, s3_server, s3_bucket)) as daemon:
        await daemon.serving()
        names = [f"persistent://public/default/t{number:03}" for number in range(TOPICS)]
        async with daemon.client() as client:
            for name in names:
                await client.enable(name)
        code, lines, said = await ran("go", daemon.address)
        assert (code, said) == (0, "")
        assert lines == names
