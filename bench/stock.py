"""Pulsar's own offloader, beside ours: the same closed ledger from the same bookies to the same S3 server, and back.

Pulsar's classes run as in a broker (PIP-17, blocks of 64 MiB, read buffer of 1 MiB), in a JVM with a compiler that goes
all the way and a round that nobody counts. Its handle is asked for batches of 1 MiB, which stay in the JVM. Sequential
reads of ours are those inside a process, as Pulsar's are; random reads go over gRPC.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from typing import TYPE_CHECKING, NamedTuple

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from bench import direct, goals
from bench.appending import everything_offloaded
from bench.durable import quantile
from bench.machine import cpu_s, forget_peak, memory_bytes
from bench.report import Figure, spread
from bench.site import CLOCK, secret_of
from bench.tailing import PLAN, beside, distinct_entries
from bench.usage import GIB, MIB, Measured, measured, process_figures, used_figures
from offloaderd.core.model import Position
from offloaderd.core.read_options import ReadPriority
from tests.real.pulsar_offloader import OffloadTo, pulsar_offloader, refused
from tests.real.writer import ledger_writer
from tests.real.written_topic import written_topic
from tests.servers import S3Server

if TYPE_CHECKING:
    from uuid import UUID

    from bench.child import Took
    from bench.scale import Scale
    from bench.site import Daemon, Sections, Site
    from tests.real.bookies import BookKeeperCluster
    from tests.real.pulsar_offloader import PulsarOffloader, PulsarReadHandle
    from tests.real.written_topic import WrittenTopic

JVM_FLAGS = ("-XX:TieredStopAtLevel=4", "-Xmx1g")
BLOCK_BYTES = 64 * MIB


class Ledger(NamedTuple):
    """The ledger to offload."""

    topic: WrittenTopic
    ledger_id: int
    entries: int
    entry_bytes: int
    random: list[int]
    """Entries that are read by themselves."""


class Stock(NamedTuple):
    """One round of Pulsar's, in seconds; the last is each random read, ascending."""

    offload_s: float
    cpu_s: float
    peak_bytes: int
    read_s: float
    random_s: list[float]


class Ours(NamedTuple):
    """One round of ours."""

    offload: Measured
    read: Took
    random_s: list[float]


async def stock(site: Site, size: Scale, cluster: BookKeeperCluster) -> list[Figure]:
    """Measure both in turns."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it reports every object that is left when the JVM ends
    figures: list[Figure] = []
    directory = site.directory / "stock"
    async with (
        ledger_writer(cluster.zookeeper, CLOCK) as writer,
        pulsar_offloader(cluster.metadata_uri, directory, CLOCK, flags=JVM_FLAGS) as theirs,
    ):
        for label, entry_bytes in size.ledger_sizes.items():
            count = size.stock_bytes // entry_bytes
            topic = await written_topic(writer, f"stock-{entry_bytes}", plan=PLAN)
            await topic.add(distinct_entries(count, entry_bytes), window=256)
            await topic.roll()
            random = [number * 7919 % count for number in range(1, max(5, size.random_reads // 5) + 1)]
            ledger = Ledger(topic, topic.ledgers[0].ledger_id, count, entry_bytes, random)
            await _stock_round(site, theirs, ledger)  # warms the JVM and the bookies' caches
            rounds = [
                (await _our_round(beside(site, cluster), cluster, ledger), await _stock_round(site, theirs, ledger))
                for _ in range(size.runs)
            ]
            figures += _figures(label, ledger, rounds)
    return figures


async def _stock_round(site: Site, theirs: PulsarOffloader, ledger: Ledger) -> Stock:
    async with site.bucket() as place:
        server = S3Server(place.s3.endpoint or "", place.s3.access_key or "", secret_of(place.s3))
        to = OffloadTo.s3(server, place.s3.bucket, block_bytes_max=BLOCK_BYTES)
        try:
            return await asyncio.to_thread(_in_jvm, theirs, ledger, to, CLOCK.uuid())
        except Py4JJavaError as error:
            raise RuntimeError(" | ".join(refused(error))) from None  # while there is a JVM that can say it


def _in_jvm(theirs: PulsarOffloader, ledger: Ledger, to: OffloadTo, object_id: UUID) -> Stock:
    pid = theirs.server.child.pid or 0
    forget_peak(pid)
    before, started = cpu_s(pid), CLOCK.monotonic()
    theirs.offload(ledger.ledger_id, object_id, ledger.topic.name.managed_ledger, to)
    offload_s, used = CLOCK.monotonic() - started, cpu_s(pid) - before
    handle = theirs.open_v1(ledger.ledger_id, object_id, to)
    random_s = sorted(_skimmed(handle, entry_id, entry_id) for entry_id in ledger.random)
    handle.close()
    handle = theirs.open_v1(ledger.ledger_id, object_id, to)
    per_read, last = MIB // ledger.entry_bytes, ledger.entries - 1
    read_s = sum(
        _skimmed(handle, first, min(first + per_read - 1, last)) for first in range(0, ledger.entries, per_read)
    )
    handle.close()
    return Stock(offload_s, used, memory_bytes(pid)[1], read_s, random_s)


def _skimmed(handle: PulsarReadHandle, first: int, last: int) -> float:
    started = CLOCK.monotonic()
    handle.skim(first, last)
    return CLOCK.monotonic() - started


async def _our_round(site: Site, cluster: BookKeeperCluster, ledger: Ledger) -> Ours:
    sections: Sections = {"ledgers": {"kind": "bookkeeper"}, "bookkeeper": {"servers": cluster.zookeeper}}
    name = f"stock{CLOCK.uuid().hex[:6]}"
    async with site.bucket() as place:
        async with place.daemon(sections, name=name) as daemon, measured(daemon) as offload:
            await daemon.client.enable(ledger.topic.name)
            await daemon.claimed(ledger.topic.name)
            await everything_offloaded(daemon, ledger.topic.name)
        async with place.daemon(sections, name=name) as daemon:
            await daemon.claimed(ledger.topic.name)
            await _read_one(daemon, ledger, ledger.entries - 1)  # index and manifest; Pulsar's handle has read its own
            random_s = sorted([await _read_one(daemon, ledger, entry_id) for entry_id in ledger.random])
            read = await direct.measure(place, daemon, ledger.topic.name, ledger.entries)
    return Ours(offload, read, random_s)


async def _read_one(daemon: Daemon, ledger: Ledger, entry_id: int) -> float:
    started, position = CLOCK.monotonic(), Position(ledger.ledger_id, entry_id)
    one = daemon.client.read(
        ledger.topic.name, first=position, last=position, read_priority=ReadPriority.TIERED_STORAGE_FIRST
    )
    async with aclosing(one) as responses:
        if sum([len(response.batch.payloads) async for response in responses]) != 1:
            raise RuntimeError(f"entry {entry_id} did not come")
    return CLOCK.monotonic() - started


def _figures(label: str, ledger: Ledger, rounds: list[tuple[Ours, Stock]]) -> list[Figure]:
    name = f"beside Pulsar's own offloader, {label}"
    mib = ledger.entries * ledger.entry_bytes / MIB
    medians = [(1000 * quantile(ours.random_s, 0.5), 1000 * quantile(theirs.random_s, 0.5)) for ours, theirs in rounds]
    return [
        Figure(
            benchmark=name,
            figure="offload, times as fast",
            values=[theirs.offload_s / ours.offload.seconds for ours, theirs in rounds],
            goal=goals.STOCK_OFFLOAD[label],
            notes={
                "ours": spread([mib / ours.offload.seconds for ours, _ in rounds], "MiB/s"),
                "Pulsar's": spread([mib / theirs.offload_s for _, theirs in rounds], "MiB/s"),
            },
        ),
        Figure(
            benchmark=name,
            figure="sequential read, times as fast",
            values=[theirs.read_s / ours.read.seconds for ours, theirs in rounds],
            goal=goals.STOCK_READ,
            notes={
                "ours": spread([mib / ours.read.seconds for ours, _ in rounds], "MiB/s"),
                "Pulsar's": spread([mib / theirs.read_s for _, theirs in rounds], "MiB/s"),
            },
        ),
        Figure(
            benchmark=name,
            figure="random read of one entry, p50, times as fast",
            values=[theirs / ours for ours, theirs in medians],
            goal=goals.STOCK_RANDOM,
            notes={
                "ours": spread([ours for ours, _ in medians], "ms"),
                "Pulsar's": spread([theirs for _, theirs in medians], "ms"),
            },
        ),
        *process_figures(name, mib * MIB / GIB, [ours.offload for ours, _ in rounds]),
        *used_figures(
            name,
            "JVM of Pulsar's offloader",
            cpu=[theirs.cpu_s / (mib * MIB / GIB) for _, theirs in rounds],
            peak=[theirs.peak_bytes for _, theirs in rounds],
        ),
    ]
