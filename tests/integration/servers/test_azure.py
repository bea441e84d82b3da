"""A daemon on Azurite: killed in the middle of an upload, it is followed by one that sends no stored part again."""

from __future__ import annotations

import signal

import pytest

from offloaderd.core.model import TopicName
from offloaderd.objects.azure.store import AzureStore
from tests.azure.service import options
from tests.integration.command_line import started
from tests.integration.processes import DaemonProcess, Site
from tests.real.audit import parts_stored
from tests.real.proof import ends_well
from tests.real.workload import Workload

pytestmark = pytest.mark.witness("zookeeper")

TOPIC = TopicName.parse("public/default/azure")
ENTRY_BYTES, TWO_PARTS = 40_000, 280


@pytest.fixture
def site(azure_site: Site) -> Site:
    """A site on Azurite, whose segments have several parts."""
    azure_site.settings["offload"] = {"segment_bytes_max": 12 << 20, "block_bytes": 256 << 10, "part_bytes": 5 << 20}
    return azure_site


async def test_a_killed_daemon_is_followed_by_one_that_sends_no_stored_part_again(site: Site) -> None:
    """Killed with two parts staged; the object is made of those very blocks, nothing is lost and nothing left."""
    workload = Workload(TOPIC, entry_bytes=ENTRY_BYTES)
    async with DaemonProcess(site) as daemon:
        async with daemon.client() as client:
            await client.enable(TOPIC)
            await workload.append(client, TWO_PARTS)
            upload, _ = await parts_stored(site, 2)
        daemon.signal(signal.SIGKILL)
        await daemon.ended()
    async with AzureStore(options(site.endpoint, site.bucket)) as store:
        _, staged = await store._block_list(upload.key)
        found = await ends_well(site, workload, entries=20)
        committed, left = await store._block_list(upload.key)
    assert found.segments == 1
    assert len(staged) == 2
    assert list(committed[:2]) == sorted(staged)  # they were staged side by side, and are listed as they came
    assert not left


async def test_the_doctor_finds_the_container_in_order(site: Site) -> None:
    """Every request of a daemon is tried, and nothing stays."""
    async with started(site, "offloaderd", "doctor") as doctor:
        code, said = await doctor.ended()
    assert (code, "bucket multipart" in said) == (0, True), said
    assert "az storage account management-policy show --account-name" in said
    async with AzureStore(options(site.endpoint, site.bucket)) as store:
        assert [info.key async for info in store.list()] == []
