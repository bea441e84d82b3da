"""A topic whose history a Spark job offloads while its daemon streams what is new: real servers, local executors."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from pyarrow import parquet

from offloaderd.core.model import OffloadMethod
from offloaderd.metadata import paths
from offloaderd.metadata.zookeeper.store import ZooKeeperStore
from offloaderd.objects.port import PART_BYTES_MIN
from offloaderd.protocol.v1 import policy_pb2
from tests.integration.bookies.test_history import (
    OLD,
    TOPIC,
    append,
    digest,
    enable,
    entries,
    expected,
    look,
    until_done,
)
from tests.integration.command_line import ran, started
from tests.integration.processes import CLOCK, DaemonProcess, Site
from tests.patience import PATIENCE_S
from tests.real.audit import audit, bucket_of, stored_keys
from tests.real.writer import Plan, ledger_writer
from tests.real.written_topic import written_topic

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from tests.integration.command_line import Command
    from tests.real.bookies import BookKeeperCluster
    from tests.servers import S3Server


@pytest.fixture
def site(request: pytest.FixtureRequest) -> Site:
    """A site with ledgers of 7.5 MB and segments of 6 MiB, whose daemon leaves all history to a job."""
    site: Site = request.getfixturevalue(f"{getattr(request, 'param', 's3')}_site")
    site.settings["metadata"] = {"session_timeout_s": 4}
    site.settings["ledgers"] = {"ledger_entries_max": 150}
    site.settings["history"] = {"daemon_bytes_max": 0}
    site.settings["offload"] = {
        "segment_bytes_max": 6 << 20,
        "segment_age_max_s": 3600,
        "block_bytes": 1 << 20,
        "part_bytes": PART_BYTES_MIN,
    }
    return site


def backfill(site: Site, *words: str) -> AbstractAsyncContextManager[Command]:
    """Start `offloadctl backfill`; what still runs at the end is killed."""
    return started(site, "offloadctl", "backfill", *words, "--json")


async def answered(site: Site, *words: str) -> tuple[int, Any]:
    """Run a command to its end."""
    async with backfill(site, *words) as command:
        return await command.answer()


async def until(condition: Callable[[], Any]) -> None:
    """Wait until something holds that nobody announces."""
    while not await condition():
        await CLOCK.sleep(0.2)


async def begun(site: Site) -> int:
    """Return how many segments of the job are recorded and not committed."""
    async with ZooKeeperStore(site.zookeeper, f"/offloaderd/{site.cluster}") as store:
        return len(await store.children(paths.history_attempts(TOPIC)))


@pytest.mark.parametrize("site", ["s3", "azure", "gcs"], indirect=True)
async def test_a_job_that_is_killed_and_run_again_beside_the_live_edge_makes_one_topic(site: Site) -> None:
    """Planned, begun, killed with its executors, refused twice at once, resumed: gap-free, equal hashes."""
    async with DaemonProcess(site) as daemon, daemon.client() as client:
        await append(client, entries(0, OLD))
        await enable(client)

        async def committed() -> int:
            topic_map, _ = await look(site)
            return sum(one.begin.ledger_id < 6 for one in topic_map.segments)

        async def planned() -> bool:
            return (await look(site))[0].history is not None

        await until(planned)
        code, plan = await answered(site, "plan", str(TOPIC))
        (found,) = plan["topics"]
        assert (code, found["segments"], found["entries"]) == (0, 8, 900)
        assert found["probes"] <= found["boundaries"] * 9
        async with backfill(site, "run", str(TOPIC), "--master", "local[2]", "--upload-rate", "1MiB") as first:

            async def going() -> bool:
                assert first.process.returncode is None, first.told()
                return await committed() >= 1 and await begun(site) >= 1

            await until(going)
            code, status = await answered(site, "status", str(TOPIC))
            assert status["topics"][0]["history"]["driver"]
            async with backfill(site, "run", str(TOPIC)) as refused:
                assert await refused.answer() == (1, None)
                assert "works on the history" in refused.told()
            await first.kill()
        kept = {one.segment_id for one in (await look(site))[0].segments}
        await append(client, entries(OLD, 60))
        assert await digest(client) == expected(OLD + 60)
        async with ZooKeeperStore(site.zookeeper, f"/offloaderd/{site.cluster}") as store:
            await until(lambda: _gone(store))
        async with backfill(site, "run", str(TOPIC), "--master", "local[2]") as second:
            await append(client, entries(OLD + 60, 40))
            code, done = await second.answer()
            assert (code, done["topics"][0]["done"]) == (0, True), second.told()
        topic_map = await until_done(site, client, OLD + 100)
        assert kept <= {one.segment_id for one in topic_map.segments}
        assert all(topic_map.joined(one.end, two.begin) for one, two in pairwise(topic_map.segments))
        assert await digest(client) == expected(OLD + 100)
        assert await digest_by_spark(site) == expected(OLD + 100)
        status = await client.status(TOPIC)
        assert not status.topics[0].HasField("history")
        assert await answered(site, "run", str(TOPIC)) == (
            0,
            {"topics": [{"topic": str(TOPIC), "done": True, "committed": 0, "losses": 0, "retries": 0, "error": None}]},
        )
    proof = await audit(site, [TOPIC])
    assert proof.problems == []
    assert list(proof.stored[TOPIC].values()) == entries(0, OLD + 100)


async def test_whole_ledgers_are_taken_over_from_a_daemon_by_a_job(site: Site) -> None:
    """It offloads none by itself; the job writes all closed ones but the newest, and the daemon goes on behind them."""
    async with DaemonProcess(site) as daemon, daemon.client() as client:
        await append(client, entries(0, 400))
        await client.enable(TOPIC, policies=policy_pb2.OffloadPolicies(method="ledger-based"))

        async def claimed() -> bool:
            return bool((await client.status(TOPIC)).topics[0].owner)

        await until(claimed)
        async with backfill(site, "run", str(TOPIC), "--master", "local[2]") as job:
            code, done = await job.answer()
            assert (code, done["topics"][0]["committed"]) == (0, 2), job.told()
        code, status = await answered(site, "status", str(TOPIC))
        told = status["topics"][0]["history"]
        assert (code, told["method"], told["done"]) == (0, "ledger-based", True)
        await append(client, entries(400, 100))

        async def committed() -> bool:
            async for _ in client.offload(TOPIC, wait=True, timeout_s=PATIENCE_S):
                pass
            return [one.begin.ledger_id for one in (await look(site))[0].segments] == [0, 1, 2]

        await until(committed)
        topic_map, _ = await look(site)
        assert {one.method for one in topic_map.segments} == {OffloadMethod.LEDGER_BASED}
        assert await digest(client) == expected(500)
    async with bucket_of(site) as store:
        stored = await stored_keys(store)
    assert stored == {key for one in topic_map.segments for key in one.keys.all}


async def digest_by_spark(site: Site) -> tuple[int, str]:
    """Export the topic by Spark; returns the number of entries and their hash, in the order of positions."""
    target = site.directory / "exported"
    code, _, told = await ran(site, "offloaderd", "spark", "export", str(TOPIC), str(target))
    assert code == 0, told
    rows = parquet.read_table(target, columns=["ledger_id", "entry_id", "payload"], partitioning=None)
    found = sha256()
    for payload in rows.sort_by([("ledger_id", "ascending"), ("entry_id", "ascending")])["payload"]:
        found.update(payload.as_buffer())
    return len(rows), found.hexdigest()


async def _gone(store: ZooKeeperStore) -> bool:
    """Whether the driver that was killed is forgotten."""
    return "holder" not in await store.children(paths.history(TOPIC))


async def test_history_on_real_bookies_is_offloaded_by_a_job_with_one_of_them_down(
    tmp_path: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str, bookkeeper: BookKeeperCluster
) -> None:
    """Executors read the replicas that are there, within their share of a limit; the live edge is the daemon's."""
    site = Site.at(tmp_path, zookeeper, s3_server, s3_bucket)
    site.settings["ledgers"] = {"kind": "bookkeeper"}
    site.settings["history"] = {"daemon_bytes_max": 0}
    site.settings["bookkeeper"] = {"servers": bookkeeper.zookeeper, "request_timeout_s": 2, "hedge_s": 0.5}
    site.settings["offload"] = {"segment_bytes_max": 70_000, "segment_age_max_s": 3600}
    async with ledger_writer(bookkeeper.zookeeper, CLOCK) as writer:
        bookies = bookkeeper.ids[:2]
        plan = replace(Plan(ensemble=2), bookies=bookies)
        topic = await written_topic(writer, f"public/default/d-{CLOCK.uuid().hex}", plan=plan)
        made = [f"{number}/".encode().ljust(300, b"#") for number in range(650)]
        for first in range(0, 600, 200):
            await topic.add(made[first : first + 200])
            await topic.roll()
        await topic.add(made[600:])
        async with DaemonProcess(site) as daemon, daemon.client() as client:
            await client.enable(topic.name, policies=policy_pb2.OffloadPolicies(history_order="alongside"))
            while not (await client.history(topic.name)).HasField("plan"):
                await CLOCK.sleep(0.1)
            await topic.roll()
            await bookkeeper.bookie(bookies[0]).kill()
            name, slow = str(topic.name), ("--source-rate", "1MiB", "--parallel", "2")
            async with backfill(site, "run", name, "--master", "local[2]", *slow) as job:
                code, done = await job.answer()
                assert (code, done["topics"][0]["committed"]) == (0, 3), job.told()
            found = await client.history(topic.name, ranges_max=10)
            assert found.plan.done_ms
            assert [one.state for one in found.ranges] == ["done"] * 3
            await bookkeeper.heal()
            async for _ in client.offload(topic.name, wait=True, timeout_s=PATIENCE_S):
                pass
            read: list[bytes] = []
            async for response in client.read(topic.name):
                read += response.batch.payloads
            assert read == made
