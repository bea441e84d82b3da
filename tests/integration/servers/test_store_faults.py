"""A store of each kind behind a proxy that spoils requests and answers: nothing is lost, nothing is left."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.model import TopicName
from offloaderd.drill.s3_proxy import Fault, S3Proxy, suits
from offloaderd.objects.port import PART_BYTES_MIN
from tests.integration.processes import DaemonProcess
from tests.real.audit import bucket_of, parts_stored
from tests.real.proof import check, ends_well
from tests.real.store_requests import OPERATION_OF
from tests.real.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.integration.processes import Site


TOPIC = TopicName.parse("public/default/spoilt")

EXERCISED = (
    "create_upload",
    "upload_part",
    "complete_upload",
    "abort_upload",
    "list_uploads",
    "delete",
    "put data",
    "put index",
    "put manifest",
    "head data",
    "get data",
    "get index",
    "get manifest",
)
"""What a daemon asks of the bucket that offloads, gives a segment up and serves reads."""

ONCE = {Fault.SLOW_DOWN, Fault.SILENT, Fault.SLOW, Fault.TWICE}
"""Done once, not twice: those that take long, and those after which nothing is asked again."""


OF_REQUESTS = (Fault.ERROR, Fault.SLOW_DOWN, Fault.RESET, Fault.CUT, Fault.LOST, Fault.SLOW, Fault.TWICE)
"""Faults that change no answer, and are the same for every kind of store."""


def on_each_store(faults: Iterable[Fault]) -> pytest.MarkDecorator:
    """Return the parameters of a test with faults: all of them on S3, those of requests on the other kinds."""
    pairs = [(kind, fault) for kind in OPERATION_OF for fault in faults if kind == "s3" or fault in OF_REQUESTS]
    return pytest.mark.parametrize(("kind", "fault"), pairs)


@pytest.fixture
def site(request: pytest.FixtureRequest, kind: str, fault: Fault) -> Site:
    """A site that reads back what it has written, and does not wait long for an answer that will not come."""
    site: Site = request.getfixturevalue(f"{kind}_site")
    site.settings["ledgers"] = {"ledger_entries_max": 170}
    if fault is Fault.SILENT:
        site.settings["objects"] = {"read_timeout_s": 1}
    site.settings["offload"] = {
        "segment_bytes_max": 12 << 20,
        "block_bytes": 256 << 10,
        "part_bytes": PART_BYTES_MIN,
        "verify": "readback",
    }
    return site


@pytest.fixture
def proxy(site: Site, kind: str) -> S3Proxy:
    """A proxy in front of its store."""
    return S3Proxy(site.endpoint, operation=OPERATION_OF[kind])


async def lose_upload(site: Site) -> None:
    """Abort the open upload behind the daemon's back, once it has a part."""
    upload, _ = await parts_stored(site, 1)
    async with bucket_of(site) as bucket:
        await bucket.abort_upload(upload.key, upload.upload_id)


def spoil_a_read(proxy: S3Proxy, fault: Fault) -> None:
    """Spoil the next request for entries, now that everything has been verified."""
    if suits(fault, "get data"):
        proxy.spoil("get data", fault)


@on_each_store(Fault)
async def test_no_fault_of_the_store_loses_or_leaves_anything(site: Site, proxy: S3Proxy, fault: Fault) -> None:
    """Each operation is spoilt once or twice in this way while segments are sent, given up, committed and read."""
    workload = Workload(TOPIC, entry_bytes=40_000)
    spoilt = [operation for operation in EXERCISED if suits(fault, operation)]
    times = 1 if fault in ONCE else 2
    async with proxy:
        for operation in spoilt:
            proxy.spoil(operation, fault, times=times)
        behind = replace(site, endpoint=proxy.endpoint)
        async with DaemonProcess(behind) as daemon, daemon.client() as client:
            await client.enable(TOPIC)
            await workload.append(client, 160)
            await lose_upload(site)
            await workload.append(client, 240)
            await workload.offload(client)
            spoil_a_read(proxy, fault)
            await workload.read_at_last(client)
            for count in (200, 60):  # of two parts, and of one, which is put
                await workload.append(client, count)
                await workload.offload(client)
                spoil_a_read(proxy, fault)
                await workload.read_at_last(client)
            await check(site, client, workload)
        assert proxy.planned == []
        happened = sum(count for (_, one), count in proxy.counts.faults.items() if one is fault)
        assert happened >= times * len(spoilt) + 2 * suits(fault, "get data")


@on_each_store([fault for fault in Fault if suits(fault, "list_parts")])
async def test_no_fault_stops_a_daemon_from_continuing(site: Site, proxy: S3Proxy, fault: Fault) -> None:
    """Killed with two parts stored, it is followed by one that hears of them with a fault, and sends them not again."""
    workload = Workload(TOPIC, entry_bytes=40_000)
    async with proxy:
        behind = replace(site, endpoint=proxy.endpoint)
        async with DaemonProcess(behind) as daemon:
            async with daemon.client() as client:
                await client.enable(TOPIC)
                await workload.append(client, 280)
                _, stored_bytes = await parts_stored(site, 2)
            daemon.signal(signal.SIGKILL)
            await daemon.ended()
        sent_bytes = proxy.counts.part_bytes
        proxy.spoil("list_parts", fault)
        found = await ends_well(behind, workload, entries=20)
        assert proxy.planned == []
    if fault is not Fault.WRONG_ETAG:
        assert proxy.counts.part_bytes - sent_bytes == found.object_bytes - stored_bytes
