"""SIGKILL at every write of a mount, on a real ZooKeeper: the same command again completes it."""

from __future__ import annotations

import asyncio
import json
import signal
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

from kazoo.client import KazooClient

from offloaderd.bookkeeper.metadata import instance_path
from offloaderd.capture import storage
from offloaderd.capture.records import Capture, Key, Kind, cursor_value
from offloaderd.core.clock import SystemClock
from offloaderd.core.model import Position
from offloaderd.ledgers.pulsar.cursors import Cursor
from offloaderd.objects.filesystem import FilesystemStore
from offloaderd.upkeep.stored import Site as Place
from tests.integration.processes import Site
from tests.real.mounting import applied, nodes
from tests.unit.upkeep.site import CLUSTER, PREFIX, TOPIC, Ground, runs

if TYPE_CHECKING:
    from pathlib import Path

CLOCK = SystemClock()
PARTITIONS = [replace(TOPIC, local=f"parts-partition-{number}") for number in range(2)]
CHOSEN = f"{TOPIC.tenant}/*"
NAMESPACE = f"{TOPIC.tenant}/{TOPIC.namespace}"
WRITES = 7
"""At least so many: ids, tenant, namespace, a folder, three lists, a partitioned topic."""


async def fill(directory: Path) -> None:
    """Store a segment of each topic, and a capture with their namespace and two subscriptions."""
    store = FilesystemStore(directory, CLOCK)
    await store.create_bucket()
    ground = Ground()
    ground.objects = store
    for number, topic in enumerate([TOPIC, *PARTITIONS], 1):
        await ground.store(number, runs(number, 0, 5), topic=topic)
    cursor = cursor_value(Cursor(mark_delete=Position(1, 2)))
    records: dict[Key, object] = {
        (Kind.NAMESPACE, NAMESPACE, ""): {"replication_clusters": ["old"]},
        **{(Kind.SUBSCRIPTION, str(TOPIC), name): cursor for name in ("one", "two")},
    }
    capture = Capture(cluster=CLUSTER, deployment_id="", taken_ms=5, records=records)
    await storage.write(store, Place(cluster=CLUSTER, bucket="segments", prefix=PREFIX), capture)


def site_at(directory: Path, zookeeper: str) -> Site:
    """Return the settings of the mount, but the nodes that it writes below."""
    site = Site(directory, zookeeper, "", "", "", "segments", cluster=CLUSTER)
    site.settings["objects"] = {"kind": "filesystem", "directory": str(directory / "bucket"), "prefix": PREFIX}
    return site


def environment(site: Site, root: str) -> dict[str, str]:
    """Return the environment of a command whose cluster is below a node."""
    at: dict[str, object] = {
        "ledgers_root": f"{root}/ledgers",
        "managed_ledgers_root": f"{root}/managed-ledgers",
        "servers": site.zookeeper,
    }
    found = replace(site, settings={**site.settings, "bookkeeper": at}).process_environment(1, 2)
    for name in ("ENDPOINT", "ACCESS_KEY", "SECRET_KEY", "CONNECT_TIMEOUT_S", "READ_TIMEOUT_S"):
        found.pop(f"OFFLOADERD__OBJECTS__{name}")
    return found


def empty_cluster(client: KazooClient, root: str) -> None:
    """Write what an empty cluster has."""
    client.create(f"{root}{instance_path('/ledgers')}", b"an instance", makepath=True)
    client.create(f"{root}/admin/policies/other", b"{}", makepath=True)
    client.create(f"{root}/admin/clusters/new", b"{}", makepath=True)


async def test_a_mount_that_is_killed_at_any_write_is_completed_by_the_next(tmp_path: Path, zookeeper: str) -> None:
    """While a write is on its way, and after it: the same nodes in the end as without a kill."""
    await fill(tmp_path / "bucket")
    site = site_at(tmp_path, zookeeper)
    client = KazooClient(hosts=zookeeper)
    await asyncio.to_thread(client.start)
    try:
        whole = f"/whole{CLOCK.uuid().hex}"
        await asyncio.to_thread(empty_cluster, client, whole)
        assert await applied(environment(site, whole), CHOSEN) == 0
        expected = await asyncio.to_thread(nodes, client, whole)
        assert json.loads(expected[f"/admin/policies/{NAMESPACE}"])["replication_clusters"] == ["new"]
        assert f"/managed-ledgers/{TOPIC.managed_ledger}/two" in expected
        for number, moment in product(range(1, 100), ("midway", "after")):
            root = f"/killed{CLOCK.uuid().hex}"
            await asyncio.to_thread(empty_cluster, client, root)
            code = await applied(environment(site, root), CHOSEN, kill_at=f"create {root[1:]}:{moment}:{number}")
            if code == 0:
                assert number > WRITES
                return
            assert code == -signal.SIGKILL
            assert await applied(environment(site, root), CHOSEN) == 0
            assert await asyncio.to_thread(nodes, client, root) == expected, f"write {number}, {moment}"
        raise AssertionError("it never came to its end")
    finally:
        client.stop()
        client.close()
