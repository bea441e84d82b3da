"""Append to S3: from the first entry to the commit of the last, beside a bare multipart upload of the same objects.

Two ways in, measured apart: pushed over gRPC to a daemon without a ledger source (whose buffer is then all there is),
and caught up from the daemon's own ledgers, which hold everything before the topic is enabled. Beside the push goes
the same push to a gRPC server that does nothing.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING, NamedTuple

from bench import goals, raw
from bench.empty import empty_server
from bench.load import DEADLINE_S, MIB, Entries, append, push
from bench.report import Figure, spread
from bench.scale import ENTRY_SIZES, bytes_of
from bench.site import CLOCK
from bench.usage import GIB, Measured, measured, process_figures, used_figures
from offloaderd.core.model import TopicName

if TYPE_CHECKING:
    from bench.child import Took
    from bench.scale import Scale
    from bench.site import Daemon, Sections, Site

PART_BYTES = 8 * MIB
PARALLEL = 4
"""The daemon's defaults for offload.part_bytes and offload.parts_in_flight_max."""
PUSHED: Sections = {"ledgers": {"kind": "none"}}
APPENDED: Sections = {"ledgers": {"kind": "embedded"}}
CAUGHT_UP = ("1 KiB", "10 KiB")
WARM, WARM_ENTRIES = TopicName.parse("warm"), Entries(10 * 1024, MIB)


class Round(NamedTuple):
    """One measurement of ours and its references."""

    ours: Measured
    bare: Took
    fastest: Took
    empty: Took | None


async def pushed(site: Site, size: Scale) -> list[Figure]:
    """Measure a pushing client, which sends 1 MiB a batch."""
    figures: list[Figure] = []
    async with AsyncExitStack() as stack:
        empty = await stack.enter_async_context(empty_server())
        place = await stack.enter_async_context(site.bucket())
        daemon = await stack.enter_async_context(place.daemon(PUSHED, name="pushed"))
        await warm_up(daemon)
        for label, entry_bytes in size.entry_sizes.items():
            entries = Entries(entry_bytes, bytes_of(size.way_bytes, entry_bytes))
            rounds = []
            for _ in range(size.runs):
                topic = TopicName.parse(f"push-{CLOCK.uuid().hex[:8]}")
                ours = await push_whole(daemon, topic, entries)
                bare, fastest = await uploads(place, await objects_of(daemon, topic))
                rounds.append(Round(ours, bare, fastest, await empty.push(entries)))
            figures += _figures("append to S3, pushed", label, entries, rounds)
    return figures


async def caught_up(site: Site, size: Scale) -> list[Figure]:
    """Measure catching up from the daemon's own ledger store."""
    figures: list[Figure] = []
    async with site.bucket() as place, place.daemon(APPENDED, name="caught-up") as daemon:
        await _catch_up(daemon, WARM, WARM_ENTRIES)
        for label in CAUGHT_UP:
            entries = Entries(ENTRY_SIZES[label], size.segment_bytes // 2)
            rounds = []
            for _ in range(size.runs):
                topic = TopicName.parse(f"catch-up-{CLOCK.uuid().hex[:8]}")
                ours = await _catch_up(daemon, topic, entries)
                bare, fastest = await uploads(place, await objects_of(daemon, topic))
                rounds.append(Round(ours, bare, fastest, None))
            figures += _figures("append to S3, caught up", label, entries, rounds)
    return figures


async def uploads(place: Site, stored: dict[str, int], *, parallel: int = PARALLEL, together: int = 1) -> list[Took]:
    """Upload copies of these objects by the bare client and by the fastest one."""
    return [
        await raw.measure(
            "upload",
            place.s3,
            stored,
            client=client,
            request_bytes=PART_BYTES,
            parallel=parallel,
            together=together,
        )
        for client in ("aiobotocore", "obstore")
    ]


async def objects_of(daemon: Daemon, topic: TopicName) -> dict[str, int]:
    """Return key and length of the topic's data objects."""
    return {one.data_key: one.object_bytes for one in await daemon.client.segments(topic)}


async def warm_up(daemon: Daemon) -> None:
    """Push something that is not measured: a daemon's first upload opens its connections."""
    await push_whole(daemon, WARM, WARM_ENTRIES)


async def push_whole(daemon: Daemon, topic: TopicName, entries: Entries) -> Measured:
    """Enable a topic and push all entries; measured from the first one until the last is committed."""
    await daemon.client.enable(topic, segment_bytes_max=entries.segment_bytes)
    await daemon.claimed(topic)
    async with measured(daemon) as took:
        await push(daemon.client, topic, entries)
    return took


async def _catch_up(daemon: Daemon, topic: TopicName, entries: Entries) -> Measured:
    await append(daemon.client, topic, entries)
    async with measured(daemon) as took:
        await daemon.client.enable(topic, segment_bytes_max=entries.segment_bytes)
        await everything_offloaded(daemon, topic)
    return took


async def everything_offloaded(daemon: Daemon, topic: TopicName) -> None:
    """Wait until all that is confirmed now is committed."""
    async with aclosing(daemon.client.offload(topic, wait=True, timeout_s=DEADLINE_S)) as reports:
        async for _ in reports:
            pass


def _figures(what: str, label: str, entries: Entries, rounds: list[Round]) -> list[Figure]:
    name = f"{what}, {label}"
    mib, gib = entries.payload_bytes / MIB, entries.payload_bytes / GIB
    found = [
        Figure(
            benchmark=name,
            figure="rate over bare multipart upload",
            values=[one.bare.seconds / one.ours.seconds for one in rounds],
            goal=goals.PUSH_RATE.get(label),
            notes={
                "ours": spread([mib / one.ours.seconds for one in rounds], "MiB/s"),
                "aiobotocore": spread([mib / one.bare.seconds for one in rounds], "MiB/s"),
            },
        ),
        Figure(
            benchmark=name,
            figure="rate over the fastest client's",
            values=[one.fastest.seconds / one.ours.seconds for one in rounds],
            notes={"obstore": spread([mib / one.fastest.seconds for one in rounds], "MiB/s")},
        ),
        Figure(
            benchmark=name,
            figure="CPU of the daemon over the bare client's",
            values=[one.ours.cpu_s["daemon"] / one.bare.cpu_s for one in rounds],
            goal=goals.PUSH_CPU.get(label),
            more_is_better=False,
        ),
        Figure(
            benchmark=name,
            figure="CPU of the daemon",
            values=[one.ours.cpu_s["daemon"] / gib for one in rounds],
            unit="s/GiB",
            goal=goals.PUSH_CPU_S.get(label) if rounds[0].empty else None,
            more_is_better=False,
        ),
        *process_figures(name, gib, [one.ours for one in rounds]),
    ]
    references = {
        "bare client (aiobotocore)": [one.bare for one in rounds],
        "fastest client (obstore)": [one.fastest for one in rounds],
        "gRPC with empty work": [one.empty for one in rounds if one.empty],
    }
    for process, taken in references.items():
        if taken:
            cpu, peak = [one.cpu_s / gib for one in taken], [one.peak_bytes for one in taken]
            found += used_figures(name, process, cpu=cpu, peak=peak)
    empties = [mib / one.empty.seconds for one in rounds if one.empty]
    if empties:
        found.append(
            Figure(benchmark=name, figure="the same push to a server that drops it", values=empties, unit="MiB/s")
        )
    return found
