"""Offloading by hand on real servers, by offloadctl: parts of a topic, what became of it, and an owner that dies."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from offloaderd.core.model import TopicName
from offloaderd.protocol.v1 import policy_pb2
from tests.integration.appending import append_to
from tests.integration.processes import CLOCK, DaemonProcess, Proxy, Site

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.client import DaemonClient
    from tests.servers import S3Server


TOPIC = TopicName.parse("public/default/orders")
LEDGER_ENTRIES = 100
ENTRIES = [f"{number}/".encode().ljust(200, b"#") for number in range(450)]


@dataclass(frozen=True)
class Ctl:
    """offloadctl against one daemon."""

    address: str

    async def __call__(self, *words: str) -> tuple[int, str, str]:
        """Run it; returns exit code, stdout and stderr."""
        program = str(Path(sys.executable).with_name("offloadctl"))
        process = await asyncio.create_subprocess_exec(
            program,
            *words,
            "--address",
            self.address,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()

    async def json(self, *words: str) -> tuple[int, Any]:
        """Run it; returns exit code and the document."""
        code, out, err = await self(*words, "--json")
        assert out, err
        return code, json.loads(out)


@pytest.fixture
def site(tmp_path: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str) -> Site:
    """A site with ledgers of a hundred entries."""
    site = Site.at(tmp_path, zookeeper, s3_server, s3_bucket)
    site.settings["metadata"] = {"session_timeout_s": 2}
    site.settings["ledgers"] = {"ledger_entries_max": LEDGER_ENTRIES}
    return site


async def append(client: DaemonClient, payloads: Sequence[bytes]) -> None:
    """Append entries."""
    await append_to(client, TOPIC, payloads)


async def written(client: DaemonClient) -> list[int]:
    """Append everything and have whole ledgers offloaded by hand alone; returns the ledgers' ids."""
    await append(client, ENTRIES)
    positions = await client.last_positions(TOPIC)
    policies = policy_pb2.OffloadPolicies(method="ledger-based", threshold_bytes=-1)
    await client.enable(TOPIC, policies=policies)
    first, last = positions.first.ledger_id, positions.confirmed.ledger_id
    assert last - first == 4
    return list(range(first, last + 1))


async def test_offloading_by_hand(site: Site) -> None:
    """A dry run, a part of the topic, all of it, nothing more, and what is refused: in tables and in JSON."""
    async with DaemonProcess(site) as daemon, daemon.client() as client:
        ctl, ids = Ctl(daemon.address), await written(client)
        while (await client.status(TOPIC)).topics[0].state != "offloading":
            await CLOCK.sleep(0.05)
        code, found = await ctl.json("topics", "offload-status", "orders")
        assert (code, found["outcome"], found["wanted"]) == (0, "nothing", None)
        assert "no request includes the rest" in found["reason"]

        code, found = await ctl.json("topics", "offload", "orders", "--dry-run", "-s", "30000")
        assert (code, found["outcome"], found["target"]) == (0, "planned", f"{ids[2]}:99")
        assert [(one["ledger_id"], one["payload_bytes"]) for one in found["plan"]] == [(id_, 20_000) for id_ in ids[:3]]

        code, out, _ = await ctl("topics", "offload", "orders", "--to", f"{ids[2]}:50")
        assert (code, out.startswith(f"offloading {TOPIC} up to {ids[1]}:99")) == (0, True)
        code, out, _ = await ctl("topics", "offload-status", "orders", "--wait", "--timeout", "60")
        assert code == 0
        facts = dict(line.split(maxsplit=1) for line in out.splitlines())
        assert (facts["outcome"], facts["target"], facts["wanted"]) == (
            "done",
            f"{ids[1]}:99",
            f"everything up to {ids[2]}:50",
        )
        assert out.splitlines()[-1].startswith(f"offloaded {TOPIC} up to {ids[1]}:99 at 20")

        code, found = await ctl.json("topics", "offload", "orders", "--wait", "--timeout", "60")
        assert (code, found["outcome"], found["offloaded"]) == (0, "done", f"{ids[3]}:99")
        code, out, _ = await ctl("offload", "orders", "--wait", "--timeout", "60")
        assert (code, out.startswith(f"nothing to offload of {TOPIC}: the rest is in the open ledger")) == (0, True)

        for words, expected in (
            (("--to", f"{ids[4]}:50"), 2),
            (("--to", f"{ids[4] + 50}:0"), 2),
            (("--to", f"{ids[3]}:100"), 2),
            (("-s", "-1"), 2),
            (("-s", "1X"), 2),
        ):
            code, out, err = await ctl("topics", "offload", "orders", *words)
            assert (code, out) == (expected, ""), err
        assert (await ctl("topics", "offload", "nowhere"))[0] == 4
        assert (await ctl("topics", "offload-status", "nowhere"))[0] == 4

        await client.enable(TOPIC, policies=policy_pb2.OffloadPolicies(method="none"))
        while (code := (await ctl("topics", "offload", "orders"))[0]) == 0:
            await CLOCK.sleep(0.05)
        code, _, err = await ctl("topics", "offload", "orders")
        assert (code, "method none" in err) == (1, True)
        read = [payload async for response in client.read(TOPIC) for payload in response.batch.payloads]
        assert read == ENTRIES
        segments = await client.segments(TOPIC)
        assert [segment.entries for segment in segments] == [100] * 4
        assert all(segment.data_key.endswith(f"-ledger-{segment.begin.ledger_id}") for segment in segments)


async def test_a_request_outlives_the_daemon_that_took_it(site: Site) -> None:
    """The store is away and the owner is killed: the next one goes on, and the status says the same of the request."""
    async with Proxy(site.endpoint) as proxy:
        site = replace(site, endpoint=f"http://{proxy.address}")
        async with DaemonProcess(site) as daemon, daemon.client() as client:
            ctl, ids = Ctl(daemon.address), await written(client)
            proxy.cut()
            code, found = await ctl.json("topics", "offload", "orders", "--to", f"{ids[3]}:99")
            assert (code, found["outcome"], found["remaining_entries"]) == (0, "running", 400)
            asked_ms = found["asked_ms"]
            code, out, err = await ctl("topics", "offload-status", "orders", "--wait", "--timeout", "2")
            assert (code, out) == (6, ""), err
            daemon.signal(signal.SIGKILL)
            await daemon.ended()
        proxy.mend()
        async with DaemonProcess(replace(site, daemon_id="two")) as daemon, daemon.client() as client:
            ctl = Ctl(daemon.address)
            code, found = await ctl.json("topics", "offload-status", "orders", "--wait", "--timeout", "120")
            assert (code, found["outcome"], found["target"]) == (0, "done", f"{ids[3]}:99")
            assert (found["asked_ms"], found["wanted"]) == (asked_ms, f"everything up to {ids[3]}:99")
            assert found["done_ms"] > asked_ms
            read = [payload async for response in client.read(TOPIC) for payload in response.batch.payloads]
            assert read == ENTRIES
