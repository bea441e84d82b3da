"""Segments that a job rewrites beside their live daemon: real ZooKeeper and stores, and a process that is killed."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.model import OffloadMethod
from offloaderd.daemon.settings import load
from offloaderd.metadata import paths
from offloaderd.metadata.zookeeper.store import ZooKeeperStore
from offloaderd.objects.port import PART_BYTES_MIN
from offloaderd.protocol.v1 import policy_pb2
from offloaderd.spark import convert
from offloaderd.spark.convert import Progress, Target
from offloaderd.spark.jobs.driver import Driver
from offloaderd.spark.jobs.executors import open_context
from offloaderd.spark.jobs.task import RewriteTask, rewrite_segment
from tests.integration.bookies.test_history import TOPIC, append, digest, entries, expected, look
from tests.integration.command_line import started
from tests.integration.processes import CLOCK, DaemonProcess
from tests.patience import PATIENCE_S
from tests.real.audit import bucket_of, stored_keys

if TYPE_CHECKING:
    from offloaderd.client import DaemonClient
    from offloaderd.metadata.topic_map.map import TopicMap
    from tests.integration.processes import Site

LEDGER_ENTRIES = 100


@pytest.fixture
def site(request: pytest.FixtureRequest) -> Site:
    """A site with ledgers of 5 MB and segments of 2 MiB."""
    site: Site = request.getfixturevalue(f"{getattr(request, 'param', 's3')}_site")
    site.settings["metadata"] = {"session_timeout_s": 4}
    site.settings["ledgers"] = {"ledger_entries_max": LEDGER_ENTRIES}
    site.settings["offload"] = {
        "segment_bytes_max": 2 << 20,
        "segment_age_max_s": 3600,
        "block_bytes": 1 << 20,
        "part_bytes": PART_BYTES_MIN,
    }
    return site


async def converted(site: Site, target: Target) -> Progress:
    """Run a conversion to its end in this process: segments of up to 32 MiB."""
    settings = load(None, site.environment(1, 2))
    async with open_context(settings, CLOCK, rewriting=True) as (context, book):
        driver: Driver[RewriteTask, Progress] = Driver(
            write=partial(rewrite_segment, context), slots=asyncio.Semaphore(2), me=str(CLOCK.uuid())
        )
        options = convert.Options(target=target, segment_bytes=32 << 20)
        (ended,) = await convert.drive(context, book, [TOPIC], options, driver)
    assert ended.error is None
    assert ended.progress is not None
    return ended.progress


async def clean(site: Site, client: DaemonClient) -> TopicMap:
    """Wait until all is offloaded and nothing but what the map refers to is in the bucket; returns the map."""
    async for _ in client.offload(TOPIC, wait=True, timeout_s=PATIENCE_S):
        pass
    while True:
        topic_map, _ = await look(site)
        async with bucket_of(site) as store:
            stored = await stored_keys(store)
            uploads = [upload.key async for upload in store.list_uploads()]
        if stored == {key for one in topic_map.segments for key in one.keys.all} and not uploads:
            return topic_map
        await CLOCK.sleep(0.2)


@pytest.mark.parametrize("site", ["s3", "azure", "gcs"], indirect=True)
async def test_segments_are_rewritten_twice_beside_the_live_edge_by_jobs_of_which_one_is_killed(site: Site) -> None:
    """V2 as V1, killed in the middle and resumed, V1 as one V2: equal hashes, and nothing is left over.

    The first is done by this process, the second by Spark's executors.
    """
    async with DaemonProcess(site) as daemon, daemon.client() as client:
        await append(client, entries(0, 450))
        await client.enable(TOPIC, policies=policy_pb2.OffloadPolicies(history_order="history-first"))
        async for _ in client.offload(TOPIC, wait=True, timeout_s=PATIENCE_S):
            pass
        slow = ("--parallel", "1", "--upload-rate", "2MiB")
        words = ("run", str(TOPIC), "--to", "ledger-based", "--yes", "--json", *slow)
        async with started(site, "offloadctl", "convert", *words) as first:
            while not any(one.method is OffloadMethod.LEDGER_BASED for one in (await look(site))[0].segments):
                assert first.process.returncode is None
                await CLOCK.sleep(0.05)
            await first.kill()
        await append(client, entries(450, 100))
        assert await digest(client) == expected(550)
        async for _ in client.offload(TOPIC, wait=True, timeout_s=PATIENCE_S):
            pass
        async with ZooKeeperStore(site.zookeeper, f"/offloaderd/{site.cluster}") as store:
            while "holder" in await store.children(paths.history(TOPIC)):
                await CLOCK.sleep(0.1)
        done = await converted(site, Target.LEDGER_BASED)
        assert (done.done, done.failures) == (done.goals, ())
        found = await clean(site, client)
        whole = [one.begin.ledger_id for one in found.segments if one.method is OffloadMethod.LEDGER_BASED]
        assert whole == [0, 1, 2, 3, 4]
        assert await digest(client) == expected(550)
        again = ("run", str(TOPIC), "--to", "streaming", "--yes", "--json", "--spark", "--master", "local[2]")
        async with started(site, "offloadctl", "convert", *again, "--segment-size", "32MiB") as second:
            code, said = await second.ended()
            assert code == 0
        (told,) = json.loads(said)["topics"]
        assert (told["done"], told["failures"]) == (1, [])
        found = await clean(site, client)
        assert str(found.segments[0].range) == "0:0..4:99"
        assert all(found.joined(one.end, two.begin) for one, two in pairwise(found.segments))
        assert await digest(client) == expected(550)
