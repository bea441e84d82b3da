"""Deleting as operators meet it: a real ZooKeeper, a real S3 server, the daemon with the embedded store, a crash."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import Conflict, NotFound
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import Position
from offloaderd.objects.s3.store import S3Store
from offloaderd.objects.settings import ObjectsSettings
from tests.integration.processes import CLOCK, DaemonProcess, Site
from tests.integration.servers.test_daemon import TOPIC, append, entries, offload, read_all
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from offloaderd.client import DaemonClient
    from offloaderd.protocol.v1 import retention_pb2
    from tests.servers import S3Server


@pytest.fixture
def site(tmp_path: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str) -> Site:
    """A site whose embedded store may delete at once what was verified."""
    found = Site.at(tmp_path, zookeeper, s3_server, s3_bucket)
    found.settings["offload"] = {"segment_bytes_max": 60_000, "block_bytes": 8192}
    found.settings["grants"] = {"deletion_lag_s": 0, "interval_s": 0.2, "readback": True}
    found.settings["retention"] = {"interval_s": 0.2}
    return found


async def ledgers_when(
    client: DaemonClient, condition: Callable[[dict[int, retention_pb2.Ledger]], bool]
) -> dict[int, retention_pb2.Ledger]:
    """Wait until the ledgers are as a test wants them."""
    while True:
        found = {one.ledger_id: one for one in (await client.ledgers(TOPIC)).ledgers}
        if condition(found):
            return found
        await CLOCK.sleep(0.05)


async def stored(site: Site) -> set[str]:
    """Return the ids of the segments that have objects in the bucket."""
    options = ObjectsSettings(
        endpoint=site.endpoint, bucket=site.bucket, access_key=site.access_key, secret_key=site.secret_key
    )
    async with S3Store(options, Metrics(), CLOCK) as store:
        return {info.key[:36] async for info in store.list() if "/" not in info.key}


async def test_a_source_is_deleted_by_grant_and_the_tier_by_word(site: Site) -> None:
    """Verified ledgers leave the embedded store, revoked ones stay; what is then deleted here is gone for good."""
    sent = entries(1500)
    async with DaemonProcess(site) as daemon, daemon.client() as client:
        await client.enable(TOPIC)
        await append(client, sent)
        await client.revoke_grant(TOPIC, 1, reason="legal hold")
        await offload(client)
        found = await ledgers_when(client, lambda now: not now[0].at_source and now[0].grant.source_deleted_ms > 0)
        assert (found[0].state, found[0].grant.readback, found[0].grant.daemon_id) == ("granted", True, "one")
        assert (found[1].state, found[1].at_source, found[1].grant.verified_ms) == ("revoked", True, 0)
        assert found[2].state == "open"
        assert await read_all(client) == sent
        with pytest.raises(Conflict, match="still has ledger 1"):
            await client.delete_ledgers(TOPIC, [0, 1])
        daemon.signal(signal.SIGKILL)
        await daemon.ended()
    async with DaemonProcess(site) as daemon, daemon.client() as client:
        await client.allow_grant(TOPIC, 1)
        await ledgers_when(client, lambda now: not now[1].at_source)
        assert await read_all(client) == sent
        segments = [one for one in await client.segments(TOPIC) if one.status == "Offloaded"]
        planned = await client.delete_ledgers(TOPIC, [0], dry_run=True)
        assert [one.segment_id for one in planned.segments] == [one.segment_id for one in segments[:2]]
        assert await stored(site) == {one.segment_id for one in segments}
        await client.delete_ledgers(TOPIC, [0])
        kept = {one.segment_id for one in segments[2:]}
        while await stored(site) != kept:
            await CLOCK.sleep(0.05)
        answer = await client.ledgers(TOPIC)
        assert (answer.floor.ledger_id, answer.deleted_segments) == (0, 2)
        first = segments[2].begin
        assert await read_all(client) == sent[700 * first.ledger_id + first.entry_id :]
        with pytest.raises(NotFound, match="deleted by retention"):
            async for _ in client.read(TOPIC, first=Position(0, 0), timeout_s=PATIENCE_S):
                pass
