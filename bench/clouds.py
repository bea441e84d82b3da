"""Push to Azure Blob and Google Cloud Storage, and read back: emulators on loopback, each beside its bare client.

Azurite (Node) and fake-gcs-server (Go) serve; where one cannot be had, its figures are missing and say why. What an
emulator is slow at, it is slow at for both: the ratios say what the daemon adds, not how fast the services are.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from bench import direct, goals, raw
from bench.appending import PARALLEL, PART_BYTES, PUSHED, objects_of, push_whole, warm_up
from bench.load import MIB, Entries
from bench.reading import REQUEST_BYTES, read_all
from bench.report import Figure, spread
from bench.site import CLOCK
from bench.usage import GIB, measured, process_figures, used_figures
from offloaderd.core.model import TopicName
from offloaderd.objects.azure.store import AzureStore
from offloaderd.objects.gcs.store import GcsStore
from offloaderd.objects.settings import ObjectsSettings
from tests.azure import azurite
from tests.azure.service import options as azure_options
from tests.real import gcs_emulator

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from bench.child import Took
    from bench.raw import ClientName
    from bench.scale import Scale
    from bench.site import Site
    from bench.usage import Measured

ENTRY_BYTES = 10 * 1024
SEGMENT_BYTES_MAX = 128 * MIB
"""The bare client composes no more than 32 parts."""


class Cloud(NamedTuple):
    """A kind of store, its emulator, and its bare client."""

    kind: str
    emulator: str
    client: ClientName


CLOUDS = (Cloud("azure", "Azurite", "azure"), Cloud("gcs", "fake-gcs-server", "google"))


class Round(NamedTuple):
    """A topic that was pushed and read, and its objects by the bare client."""

    pushed: Measured
    uploaded: Took
    read: Measured
    direct: Took
    got: Took


async def clouds(site: Site, size: Scale) -> list[Figure]:
    """Measure both kinds."""
    figures: list[Figure] = []
    entries = Entries(ENTRY_BYTES, min(size.segment_bytes, SEGMENT_BYTES_MAX))
    for cloud in CLOUDS:
        if why := azurite.lacking() if cloud.kind == "azure" else gcs_emulator.lacking():
            name = f"append to {cloud.emulator}, pushed, 10 KiB"
            figures.append(Figure(benchmark=name, figure="rate over the bare client's", values=[], missing=why))
            continue
        async with _bucket(site, cloud) as place:
            rounds = [await _round(place, cloud, entries) for _ in range(size.runs)]
        figures += _figures(cloud, entries, rounds)
    return figures


@asynccontextmanager
async def _bucket(site: Site, cloud: Cloud) -> AsyncIterator[Site]:
    """Give the site with a new bucket of an emulator."""
    name, directory = f"bench-{CLOCK.uuid().hex[:16]}", site.directory / cloud.kind
    directory.mkdir()
    async with AsyncExitStack() as stack:
        store: AzureStore | GcsStore
        if cloud.kind == "azure":
            endpoint = await stack.enter_async_context(azurite.azurite_in(directory))
            options = azure_options(endpoint, name)
            store = await stack.enter_async_context(AzureStore(options))
        else:
            endpoint = await stack.enter_async_context(gcs_emulator.gcs_emulator(directory, CLOCK))
            options = ObjectsSettings(kind="gcs", bucket=name, endpoint=endpoint)
            store = await stack.enter_async_context(GcsStore(options))
        await store.create_bucket()
        await store.put("warm", bytes(1024))
        yield replace(site, s3=options)


async def _round(place: Site, cloud: Cloud, entries: Entries) -> Round:
    topic, name = TopicName.parse(f"cloud-{CLOCK.uuid().hex[:8]}"), f"{cloud.kind}{CLOCK.uuid().hex[:6]}"
    async with place.daemon(PUSHED, name=name) as daemon:
        await warm_up(daemon)
        pushed = await push_whole(daemon, topic, entries)
        objects = await objects_of(daemon, topic)
    uploaded = await raw.measure(
        "upload", place.s3, objects, client=cloud.client, request_bytes=PART_BYTES, parallel=PARALLEL
    )
    async with place.daemon(PUSHED, name=name) as daemon:
        await daemon.claimed(topic)
        async with measured(daemon) as read:
            await read_all(daemon, topic, entries)
        straight = await direct.measure(place, daemon, topic, entries.count)
    got = await raw.measure("get", place.s3, objects, client=cloud.client, request_bytes=REQUEST_BYTES, parallel=2)
    return Round(pushed, uploaded, read, straight, got)


def _figures(cloud: Cloud, entries: Entries, rounds: list[Round]) -> list[Figure]:
    mib, gib = entries.payload_bytes / MIB, entries.payload_bytes / GIB
    found: list[Figure] = []
    for name, ours, bare in (
        (
            f"append to {cloud.emulator}, pushed, 10 KiB",
            [one.pushed for one in rounds],
            [one.uploaded for one in rounds],
        ),
        (f"read back from {cloud.emulator}, 10 KiB", [one.read for one in rounds], [one.got for one in rounds]),
    ):
        both = list(zip(ours, bare, strict=True))
        found += [
            Figure(
                benchmark=name,
                figure="rate over the bare client's",
                values=[reference.seconds / one.seconds for one, reference in both],
                goal=goals.CLOUD_RATE,
                notes={
                    "ours": spread([mib / one.seconds for one in ours], "MiB/s"),
                    "bare": spread([mib / one.seconds for one in bare], "MiB/s"),
                },
            ),
            Figure(
                benchmark=name,
                figure="CPU of the daemon over the bare client's",
                values=[one.cpu_s["daemon"] / reference.cpu_s for one, reference in both],
                more_is_better=False,
            ),
            *process_figures(name, gib, ours),
            *used_figures(
                name,
                f"bare client ({cloud.client})",
                cpu=[one.cpu_s / gib for one in bare],
                peak=[one.peak_bytes for one in bare],
            ),
        ]
    name = f"direct read from {cloud.emulator}, 10 KiB"
    straight = [one.direct for one in rounds]
    found += [
        Figure(
            benchmark=name,
            figure="rate over the bare client's",
            values=[one.got.seconds / one.direct.seconds for one in rounds],
            notes={"ours": spread([mib / one.seconds for one in straight], "MiB/s")},
        ),
        *used_figures(
            name, "reader", cpu=[one.cpu_s / gib for one in straight], peak=[one.peak_bytes for one in straight]
        ),
    ]
    return found
