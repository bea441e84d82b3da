"""SIGKILL at every step: a daemon dies at a labelled request, the next one ends with nothing lost and nothing left.

Each test is one history: a client appends, asks for everything to be offloaded and reads, over one daemon that dies at
its kill point (some over two that do) and one that does not. At the end the history is checked, and the bucket is
compared with the metadata. The points are those of `tests/real/points.py`, on each kind of store.
"""

from __future__ import annotations

import contextlib
import signal
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import OffloaderError
from offloaderd.core.model import TopicName
from offloaderd.drill.s3_proxy import S3Proxy
from offloaderd.objects.port import PART_BYTES_MIN
from tests.integration.processes import CLOCK, DaemonProcess
from tests.real import points
from tests.real.audit import bucket_of, parts_stored
from tests.real.mortal import dies, killed_at
from tests.real.proof import ends_well
from tests.real.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from offloaderd.client import DaemonClient
    from tests.integration.processes import Site
    from tests.servers import S3Server


TOPIC = TopicName.parse("public/default/killed")
ENTRIES, ENTRY_BYTES = 400, 40_000
"""Enough for one segment that is full, of three parts, and one that is not."""
ONE_PART = 60
"""Enough for less than one part."""
MORE = 200
"""Enough, behind these, for two parts of a further segment."""
TWO_PARTS = 280
"""Enough for two parts of a segment that is not full."""


@pytest.fixture
def site(request: pytest.FixtureRequest) -> Site:
    """A site on a kind of store, S3 unless the test names one; its segments have several parts."""
    site: Site = request.getfixturevalue(f"{getattr(request, 'param', 's3')}_site")
    site.settings["ledgers"] = {"ledger_entries_max": 170}
    site.settings["offload"] = {"segment_bytes_max": 12 << 20, "block_bytes": 256 << 10, "part_bytes": PART_BYTES_MIN}
    return site


async def taken(client: DaemonClient, count: int) -> None:
    """Wait until the open segment holds that many entries."""
    while (await client.status(TOPIC)).topics[0].open_segment_entries < count:
        await CLOCK.sleep(0.02)


STORES = ("s3", "azure", "gcs")
UNHEARD_COMMIT = frozenset({("s3", "commit:midway")})
UNHEARD_COMPLETIONS = frozenset({(store, "complete_upload:midway") for store in STORES})
"""Points that `make test` has on real servers: an answer that nobody hears, of ZooKeeper and of each kind of store."""


def on_each_store(names: Sequence[str], witnesses: Collection[tuple[str, str]] = frozenset()) -> pytest.MarkDecorator:
    """Return the parameters of a test that runs at each point, on each kind of store; the witnesses are marked."""
    mark = pytest.mark.witness("zookeeper", "s3")
    pairs = [
        pytest.param(store, name, marks=[mark] if (store, name) in witnesses else [])
        for store in STORES
        for name in names
    ]
    return pytest.mark.parametrize(("site", "point"), pairs, indirect=["site"])


@on_each_store(points.FIRST_LIFE, UNHEARD_COMMIT)
async def test_a_daemon_that_dies_loses_and_leaves_nothing(site: Site, point: str) -> None:
    """Killed at this step of a topic's first segments, it is followed by one that completes them."""
    workload = Workload(TOPIC, entry_bytes=ENTRY_BYTES)
    await dies(killed_at(site, point), workload, entries=ENTRIES)
    assert not (await ends_well(site, workload)).collected


@on_each_store(points.ONE_PART)
async def test_a_daemon_that_dies_with_one_part_loses_and_leaves_nothing(site: Site, point: str) -> None:
    """Killed at this step of a segment that takes no upload, it is followed by one that commits it."""
    workload = Workload(TOPIC, entry_bytes=ENTRY_BYTES)
    await dies(killed_at(site, point), workload, entries=ONE_PART)
    assert not (await ends_well(site, workload)).collected


@on_each_store(points.AT_THE_END)
async def test_a_daemon_that_dies_while_it_drains_loses_and_leaves_nothing(site: Site, point: str) -> None:
    """Told to stop with a segment open, it is killed at this step of completing it."""
    workload = Workload(TOPIC)
    async with killed_at(site, point) as daemon:
        async with daemon.client() as client:
            await client.enable(TOPIC)
            await workload.append(client, ENTRIES)
            await taken(client, ENTRIES)
        daemon.signal(signal.SIGTERM)
        assert await daemon.ended() == -signal.SIGKILL, "the kill point was never reached"
    assert not (await ends_well(site, workload)).collected


@on_each_store(points.WHILE_OPEN)
async def test_a_daemon_that_dies_with_a_segment_open_loses_and_leaves_nothing(site: Site, point: str) -> None:
    """Two parts are in the bucket, nobody asks for more, and it is killed when it notes that."""
    workload = Workload(TOPIC, entry_bytes=ENTRY_BYTES)
    async with killed_at(site, point) as daemon:
        with contextlib.suppress(OffloaderError):
            async with daemon.client() as client:
                await client.enable(TOPIC)
                await workload.append(client, TWO_PARTS)
                await daemon.ended()
        assert await daemon.ended() == -signal.SIGKILL, "the kill point was never reached"
    assert not (await ends_well(site, workload)).collected


async def test_a_part_that_is_stored_is_never_sent_again(site: Site, s3_server: S3Server) -> None:
    """Killed with two parts in the bucket, the daemon is followed by one that sends only what comes after them."""
    workload = Workload(TOPIC, entry_bytes=ENTRY_BYTES)
    async with S3Proxy(s3_server.endpoint) as proxy:
        behind = replace(site, endpoint=proxy.endpoint)
        async with DaemonProcess(behind) as daemon:
            async with daemon.client() as client:
                await client.enable(TOPIC)
                await workload.append(client, TWO_PARTS)
                _, stored_bytes = await parts_stored(site, 2)
            daemon.signal(signal.SIGKILL)
            await daemon.ended()
        sent_bytes = proxy.counts.part_bytes
        found = await ends_well(behind, workload, entries=20)
    assert found.segments == 1
    assert stored_bytes >= 2 * PART_BYTES_MIN
    assert proxy.counts.part_bytes - sent_bytes == found.object_bytes - stored_bytes


@on_each_store(points.CONTINUED, UNHEARD_COMPLETIONS)
async def test_a_daemon_that_dies_while_it_continues_loses_and_leaves_nothing(site: Site, point: str) -> None:
    """The first owner dies in the middle of a segment, the next one goes on with it and is killed at this step."""
    workload = Workload(TOPIC, entry_bytes=ENTRY_BYTES)
    await dies(killed_at(site, points.TWO_PARTS_STORED), workload, entries=ENTRIES)
    await dies(killed_at(site, point), workload, entries=MORE)
    assert not (await ends_well(site, workload)).collected


@on_each_store(points.AFTER_A_FAILURE)
async def test_a_daemon_that_dies_while_it_gives_up_loses_and_leaves_nothing(site: Site, point: str) -> None:
    """The first owner dies in the middle of a segment, its upload vanishes, the next one is killed at this step."""
    workload = Workload(TOPIC, entry_bytes=ENTRY_BYTES)
    await dies(killed_at(site, points.TWO_PARTS_STORED), workload, entries=ENTRIES)
    async with bucket_of(site) as bucket:
        async for upload in bucket.list_uploads():
            await bucket.abort_upload(upload.key, upload.upload_id)
    await dies(killed_at(site, point), workload, entries=MORE)
    assert not (await ends_well(site, workload)).collected


@on_each_store(points.GRANTED)
async def test_a_daemon_that_dies_while_the_source_is_deleted_loses_nothing(site: Site, point: str) -> None:
    """Ledgers go from their source as soon as their copies are verified; every entry is still there for readers."""
    workload = Workload(TOPIC, entry_bytes=ENTRY_BYTES)
    eager = replace(site, settings={**site.settings, "grants": {"deletion_lag_s": 0, "interval_s": 0.2}})
    await dies(killed_at(eager, point), workload, entries=ENTRIES)
    assert not (await ends_well(eager, workload)).collected


@on_each_store(points.RETIRED)
async def test_a_daemon_that_dies_while_segments_are_retired_leaves_nothing(site: Site, point: str) -> None:
    """Only the newest segment is to be kept; what is above the floor is all there, what is below leaves no object."""
    workload = Workload(TOPIC, entry_bytes=ENTRY_BYTES)
    sections: dict[str, dict[str, object]] = {
        "grants": {"deletion_lag_s": 0, "interval_s": 0.2},
        "retention": {"kind": "limited", "size_bytes": 1, "interval_s": 0.2},
    }
    await dies(killed_at(replace(site, settings={**site.settings, **sections}), point), workload, entries=ENTRIES)
    found = await ends_well(site, workload)
    assert not found.collected
    assert found.floors[TOPIC] is not None or point.startswith("remove")
