"""A stock Pulsar broker with our LedgerOffloader, real bookies, a real S3 server and daemons: PIP-76's loop, closed.

Every test has a namespace, a daemon and a bucket of its own.
"""

from __future__ import annotations

import asyncio
import os
import signal
from base64 import b64encode
from typing import TYPE_CHECKING

import pytest

from offloaderd.client import Trust
from offloaderd.core.clock import SystemClock
from offloaderd.core.names.managed_ledgers import SHADOW_SOURCE
from offloaderd.ledgers.pulsar.managed_ledger import decode
from offloaderd.objects import keys
from offloaderd.protocol.v1 import policy_pb2
from tests.authority import Authority, token
from tests.integration.processes import DaemonProcess, Proxy, Site
from tests.patience import PATIENCE_S
from tests.real.broker_servers import OURS
from tests.real.broker_speed import ledgers_of
from tests.real.driven import Driven, Reader
from tests.real.tiered_handles import tiered_handles
from tests.servers import s3_client

if TYPE_CHECKING:
    from pathlib import Path

    from tests.real.bookies import BookKeeperCluster
    from tests.real.broker import PulsarBroker
    from tests.servers import S3Server

CLOCK = SystemClock()
KINDS = ("unbatched", "batched", "batched zstd", "keyed", "chunked")
SECRET = b"a-secret-for-tokens-of-brokers-0123456789"
OUTAGE_S = 3.0


@pytest.fixture
def site(tmp_path: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str, bookkeeper: BookKeeperCluster) -> Site:
    """A daemon that follows the cluster, and keeps what the broker keeps."""
    found = Site.at(tmp_path, zookeeper, s3_server, s3_bucket)
    found.settings["ledgers"] = {"kind": "bookkeeper"}
    found.settings["bookkeeper"] = {"servers": bookkeeper.zookeeper}
    found.settings["retention"] = {"kind": "follow", "follow_lag_s": 1, "interval_s": 1}
    return found


def again(daemon: DaemonProcess, site: Site) -> DaemonProcess:
    """Return the daemon's next run, at the same address."""
    following = DaemonProcess(site)
    following.grpc_port, following.http_port = daemon.grpc_port, daemon.http_port
    return following


async def killed(daemon: DaemonProcess) -> None:
    """End a daemon as a crash does."""
    daemon.signal(signal.SIGKILL)
    await daemon.ended()


def keys_in(server: S3Server, bucket: str) -> set[str]:
    """Return the keys of all objects but heads and markers, which stay when their topics are gone."""
    with s3_client(server) as client:
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        found = {one["Key"] for page in pages for one in page.get("Contents", [])}
    return {key for key in found if not keys.is_beside("", key)}


def stock(server: S3Server, bucket: str) -> dict[str, object]:
    """Return the policies of Pulsar's own driver."""
    return {
        "managedLedgerOffloadDriver": "S3",
        "managedLedgerOffloadBucket": bucket,
        "managedLedgerOffloadServiceEndpoint": server.endpoint,
        "managedLedgerOffloadMaxBlockSizeInBytes": 5 * 1024 * 1024,
        "managedLedgerExtraConfigurations": {},
    }


async def emptied(server: S3Server, bucket: str) -> None:
    """Wait until a bucket has no object of a segment or a ledger."""
    async with asyncio.timeout(PATIENCE_S):
        while await asyncio.to_thread(keys_in, server, bucket):
            await CLOCK.sleep(0.2)


@pytest.mark.witness("broker")
async def test_consumers_read_what_was_offloaded_and_bookkeeper_is_freed(
    site: Site, driven_broker: PulsarBroker, bookkeeper: BookKeeperCluster, s3_server: S3Server, s3_bucket: str
) -> None:
    """Messages are the same before and after BookKeeper's copies are gone; the namespace's end deletes the copies."""
    async with DaemonProcess(site) as daemon:
        await daemon.serving()
        driven = Driven(driven_broker, bookkeeper, daemon.address)
        await driven.create()
        await driven.offload()
        await driven.write(*KINDS)
        written = await driven.read(60 * len(KINDS))
        freed = await driven.freed(5)
        await driven.unload()
        assert await driven.read(len(written)) == written
        assert set(freed) <= set(await driven.opened_in_tier())
        assert await driven_broker.send("DELETE", f"namespaces/public/{driven.namespace}?force=true") == 204
        await emptied(s3_server, s3_bucket)


async def test_direct_reads_go_past_the_daemon(
    site: Site, driven_broker: PulsarBroker, bookkeeper: BookKeeperCluster, tmp_path: Path
) -> None:
    """Handles as a broker opens them get all entries by signed URLs, and ask the daemon for none."""
    async with DaemonProcess(site) as daemon:
        await daemon.serving()
        driven = Driven(driven_broker, bookkeeper, daemon.address)
        await driven.create()
        await driven.offload()
        await driven.write("unbatched", "keyed")
        await driven.freed(2)
        ledgers = ledgers_of(bookkeeper, driven)
        flags = ["-Doffloaderd.DirectReads=true"]
        async with tiered_handles(tmp_path / "handles", CLOCK, flags=flags, environment={}) as handles:
            ours = {"managedLedgerOffloadDriver": OURS}
            offloader = await asyncio.to_thread(handles.offloader, ours, {"Address": daemon.address})
            await asyncio.to_thread(handles.skim, offloader, ledgers)
        assert await daemon.metric("grpc_server_handled_total", 'grpc_method="PlanLedger"') >= len(ledgers)
        assert await daemon.metric("grpc_server_handled_total", 'grpc_method="ReadLedger"') == 0


async def test_the_read_priority_of_the_namespace_counts(
    site: Site, driven_broker: PulsarBroker, bookkeeper: BookKeeperCluster
) -> None:
    """While both have a ledger it is read from BookKeeper or from the tier, as the namespace says."""
    async with DaemonProcess(site) as daemon:
        await daemon.serving()
        driven = Driven(driven_broker, bookkeeper, daemon.address)
        await driven.create()
        both: dict[str, object] = {"managedLedgerOffloadDeletionLagInMillis": -1}
        await driven.offload(**both, managedLedgerOffloadedReadPriority="BOOKKEEPER_FIRST")
        await driven.write("unbatched", "keyed")
        ledgers = await driven.offloaded(2)
        await driven.unload()
        written = await driven.read(120)
        assert await driven.opened_in_tier() == []
        await driven.offload(**both, managedLedgerOffloadedReadPriority="TIERED_STORAGE_FIRST")
        await driven.unload()
        assert await driven.read(120) == written
        assert set(await driven.opened_in_tier()) >= set(ledgers)
        assert await driven.in_bookkeeper(ledgers) == ledgers


async def test_a_shadow_topic_reads_what_its_source_has_offloaded(
    site: Site, driven_broker: PulsarBroker, bookkeeper: BookKeeperCluster
) -> None:
    """Its broker knows the ledgers by the shadow's name alone, and BookKeeper has them no more."""
    async with DaemonProcess(site) as daemon:
        await daemon.serving()
        driven = Driven(driven_broker, bookkeeper, daemon.address)
        await driven.create()
        await driven.offload()
        await driven.write("unbatched", "keyed")
        written = await driven.read(120)
        freed = await driven.freed(2)
        shadow = f"public/{driven.namespace}/shadow"
        assert await driven_broker.put(f"persistent/{shadow}", {SHADOW_SOURCE: str(driven.topic)}) == 204
        there = [message for message in written if message[0][0] in freed]  # type: ignore[index]

        def receive() -> list[tuple[object, bytes, str]]:
            with Reader(driven_broker.service_url, f"persistent://{shadow}") as reader:
                return [next(reader) for _ in there]

        assert await asyncio.to_thread(receive) == there != []


async def test_crashes_and_outages_lose_nothing(
    site: Site, driven_broker: PulsarBroker, bookkeeper: BookKeeperCluster
) -> None:
    """Without S3 nothing is called offloaded; daemon and broker are killed while they offload, and while one reads."""
    async with Proxy(site.endpoint) as proxy:
        site.endpoint = f"http://{proxy.address}"
        async with DaemonProcess(site) as daemon:
            await daemon.serving()
            driven = Driven(driven_broker, bookkeeper, daemon.address)
            await driven.create()
            await driven.offload()
            await driven.write("unbatched")
            await driven.freed()
            proxy.cut()
            await driven.write("batched", "keyed", "unbatched")
            reading = asyncio.create_task(driven.read(240))  # noqa: TID251 - it waits for what only the tier has
            await CLOCK.sleep(OUTAGE_S)
            ledgers = await driven.ledgers()
            assert [one["offloaded"] for one in ledgers].count(False) >= 3
            held = [int(one["ledgerId"]) for one in ledgers if not one["offloaded"]]
            assert await driven.in_bookkeeper(held) == held
            await killed(daemon)
        proxy.mend()
        async with again(daemon, site) as daemon:
            await daemon.serving()
            written = await reading
            await driven_broker.kill()
            await driven_broker.start()
            assert await driven.read(240) == written
            await driven.offloaded(4)
            await driven.unload()
            with driven.reader() as reader:
                found = [await asyncio.to_thread(next, reader) for _ in range(30)]
                await killed(daemon)
                async with again(daemon, site):
                    while len(found) < len(written):
                        found.append(await asyncio.to_thread(next, reader))
                        if len(found) == 150:
                            await driven_broker.kill()
                            await driven_broker.start()
            assert found == written


async def test_what_is_not_streamed_is_pushed(
    site: Site, driven_broker: PulsarBroker, bookkeeper: BookKeeperCluster, tmp_path: Path
) -> None:
    """A ledger begun by a daemon with bookies and ended by one without is whole; by TLS, with a token."""
    ca, token_file = Authority(tmp_path), tmp_path / "token"
    server = ca.server()
    token_file.write_text(token(SECRET, "broker"))
    site.settings["tls"] = {"cert_file": server.cert, "key_file": server.key}
    site.settings["access"] = {
        "grants": "admin broker *",
        "token_secret_key": b64encode(SECRET).decode(),
    }
    trust = Trust(tls=True, ca_file=ca.file, token_file=token_file)
    async with DaemonProcess(site) as daemon, daemon.client(trust) as client:
        shown = {"Tls": "true", "TlsTrustCertsFile": str(ca.file), "TokenFile": str(token_file)}
        driven = Driven(driven_broker, bookkeeper, daemon.address, shown)
        await driven.create()
        await driven.offload()
        for _ in range(2):  # the second burst shows what of the first was in flight
            await driven.write("unbatched", count=10)
        await client.enable(driven.topic)
        async for _ in client.offload(driven.topic, wait=True):
            pass
        streamed = [one for one in await client.segments(driven.topic) if one.status == "Offloaded"]
        daemon.signal(signal.SIGTERM)
        assert await daemon.ended() == 0
    site.settings["ledgers"] = {"kind": "none"}
    del site.settings["retention"], site.settings["bookkeeper"]
    async with again(daemon, site) as daemon, daemon.client(trust) as client:
        await driven.write("unbatched", "keyed")
        written = await driven.read(140)
        first = (await driven.freed(2))[0]
        segments = [one for one in await client.segments(driven.topic) if one.status == "Offloaded"]
        assert [one.segment_id for one in segments][: len(streamed)] == [one.segment_id for one in streamed]
        assert {one.end.ledger_id for one in streamed} == {first}
        assert {one.begin.ledger_id for one in segments[len(streamed) :]} >= {first}
        await driven.unload()
        assert await driven.read(140) == written


async def test_ledgers_of_pulsars_own_driver_are_read_and_deleted(
    site: Site, driven_broker: PulsarBroker, bookkeeper: BookKeeperCluster, s3_server: S3Server, s3_bucket: str
) -> None:
    """What was offloaded by Pulsar's driver for S3 is read through the daemon, before and after it has adopted it."""
    async with DaemonProcess(site) as daemon, daemon.client() as client:
        driven = Driven(driven_broker, bookkeeper, daemon.address)
        await driven.create()
        await driven.offload(**stock(s3_server, s3_bucket))
        await driven.write("unbatched", "batched")
        written = await driven.read(120)
        theirs = await driven.freed()
        assert len(await asyncio.to_thread(keys_in, s3_server, s3_bucket)) == 2 * len(theirs)
        await driven.offload()
        await driven.unload()
        assert await driven.read(120) == written
        await driven.write("keyed")
        written = await driven.read(180)
        await driven.freed(len(theirs) + 1)
        await driven.unload()
        assert await driven.read(180) == written
        writers = {one.writer for one in await client.segments(driven.topic)}
        assert writers == {"S3", "offloaderd"}
        assert await driven_broker.send("DELETE", f"{driven.path}?force=true") == 204
        await emptied(s3_server, s3_bucket)


@pytest.mark.skipif(
    os.environ.get("PULSAR_VERSION", "").startswith("5."), reason="Pulsar's own driver is here that of 4.0 alone"
)
async def test_going_back_leaves_every_ledger_readable(
    site: Site, driven_broker: PulsarBroker, bookkeeper: BookKeeperCluster, s3_server: S3Server, s3_bucket: str
) -> None:
    """Ledgers are rewritten and copied to the broker's names; then Pulsar's own driver reads them, without a daemon."""
    site.settings["objects"] = {"prefix": ""}
    async with DaemonProcess(site) as daemon, daemon.client() as client:
        driven = Driven(driven_broker, bookkeeper, daemon.address)
        await driven.create()
        await driven.offload(managedLedgerOffloadBucket=s3_bucket)
        await driven.write("unbatched", "batched zstd")
        written = await driven.read(120)
        ledgers = await driven.freed()
        await client.enable(driven.topic, policies=policy_pb2.OffloadPolicies(method="none"))
        await client.convert_topic(driven.topic)
        progress = [one async for one in client.follow_rollback(driven.topic, timeout_s=PATIENCE_S)]
        assert not progress[-1].order.failures
        ours = {one.begin.ledger_id: one.segment_id for one in await client.segments(driven.topic)}
    with bookkeeper.zookeeper_client() as znodes:
        node, _ = znodes.get(f"/managed-ledgers/{driven.topic.managed_ledger}")
    with s3_client(s3_server) as objects:
        for one in decode(node, key="list").ledgers:
            if one.ledger_id in ledgers:
                assert one.offload is not None
                for part in ("", "-index"):
                    source = f"{ours[one.ledger_id]}-ledger-{one.ledger_id}{part}"
                    name = f"{one.offload.object_id}-ledger-{one.ledger_id}{part}"
                    objects.copy_object(Bucket=s3_bucket, Key=name, CopySource={"Bucket": s3_bucket, "Key": source})
    await driven.offload(**stock(s3_server, s3_bucket))
    await driven.unload()
    assert await driven.read(120) == written
