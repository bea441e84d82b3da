"""The whole way from bookies to S3: what it costs the daemon, by parts, beside its two ends.

A closed ledger of messages as Pulsar's producers write them is offloaded as one segment, by a daemon that has offloaded
another one before: what happens once for a daemon is nobody's cost for a GiB. What happens once for a topic is in it,
and shown beside it: the CPU that a topic of one entry takes. In turns with it the same ledger is read
by the bare loop of the wire codec, and the object is uploaded by a bare client. No daemon can be faster than the slower
of the two.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from bench import goals
from bench.appending import everything_offloaded, objects_of, uploads
from bench.bookie_reader import Task
from bench.bookie_reader import measure as read_bare
from bench.load import MIB, Entries
from bench.report import Figure, spread
from bench.sampled import Account, Sampled
from bench.scale import bytes_of
from bench.site import CLOCK
from bench.tailing import PLAN, beside
from bench.usage import GIB, Measured, measured, process_figures, used_figures
from tests.real.writer import ledger_writer
from tests.real.written_topic import written_topic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.child import Took
    from bench.scale import Scale
    from bench.site import Daemon, Sections, Site
    from offloaderd.core.model import TopicName
    from tests.real.bookies import BookKeeperCluster
    from tests.real.writer import LedgerWriter

SIZES = {"1 KiB": 1024, "10 KiB": 10 * 1024, "100 B": 100, "100 KiB": 100 * 1024}
WARM_BYTES = 8 * MIB
DISTINCT = 16
"""Batches with entries of their own."""


class Way(NamedTuple):
    """What one round took: ours with its account, the wire codec alone, the bare uploads by two clients."""

    ours: Measured
    account: Account
    codec: Took
    bare: Took
    fastest: Took

    @property
    def slower_s(self) -> float:
        """Seconds of the slower end."""
        return max(self.codec.seconds, self.bare.seconds)


class Written(NamedTuple):
    """A topic with one closed ledger on bookies, and the task of reading it."""

    topic: TopicName
    entries: Entries
    task: Task


async def whole(site: Site, size: Scale, cluster: BookKeeperCluster) -> list[Figure]:
    """Measure every size of entries."""
    sections: Sections = {"ledgers": {"kind": "bookkeeper"}, "bookkeeper": {"servers": cluster.zookeeper}}
    sizes = dict(list(SIZES.items())[:2]) if size.quick else SIZES
    async with ledger_writer(cluster.zookeeper, CLOCK) as writer:
        one_entry = await _written(writer, cluster, "whole-one", 1024, 1024)
        warm = await _written(writer, cluster, "whole-warm", 10 * 1024, WARM_BYTES)
        ledgers = {
            label: await _written(
                writer,
                cluster,
                f"whole-{entry_bytes}",
                entry_bytes,
                size.way_bytes if label in goals.WHOLE_CPU else size.segment_bytes,
            )
            for label, entry_bytes in sizes.items()
        }
    ways: dict[str, list[Way]] = {label: [] for label in ledgers}
    once: list[float] = []
    for _ in range(size.runs):
        name = f"whole{CLOCK.uuid().hex[:6]}"
        path = site.directory / f"{name}.json"
        async with site.bucket() as place, beside(place, cluster).daemon(sections, name=name, sampled=path) as daemon:
            sampled = Sampled(daemon, path)
            await _offloaded(sampled, warm)
            once.append((await _offloaded(sampled, one_entry))[0].cpu_s["daemon"])
            for label, ledger in ledgers.items():
                ours, account = await _offloaded(sampled, ledger)
                codec = await read_bare(ledger.task)
                bare, fastest = await uploads(place, await objects_of(daemon, ledger.topic))
                ways[label].append(Way(ours, account, codec, bare, fastest))
    fixed = Figure(
        benchmark="from bookies to S3, one entry",
        figure="CPU of the daemon",
        values=once,
        unit="s",
        more_is_better=False,
    )
    return [fixed, *chain.from_iterable(_figures(label, ledgers[label].entries, one) for label, one in ways.items())]


async def _written(
    writer: LedgerWriter, cluster: BookKeeperCluster, name: str, entry_bytes: int, total_bytes: int
) -> Written:
    """Write a ledger to bookies, and read it once: that warms their caches, and is nobody's."""
    distinct = min(DISTINCT, -(-total_bytes // MIB))
    entries = Entries(entry_bytes, bytes_of(total_bytes, entry_bytes), distinct=distinct)
    topic = await written_topic(writer, name, plan=PLAN)
    await topic.add(chain.from_iterable(payloads for _, payloads in entries.batches()), window=256)
    await topic.roll()
    ledger = topic.ledgers[0]
    task = Task(
        how="codec",
        zookeeper=cluster.zookeeper,
        topic=str(topic.name),
        bookie=ledger.metadata.replicas(0)[0],
        ledger_id=ledger.ledger_id,
        last_entry_id=entries.count - 1,
    )
    await read_bare(task)
    return Written(topic.name, entries, task)


async def _offloaded(sampled: Sampled, ledger: Written) -> tuple[Measured, Account]:
    """Offload a topic, and account for it."""
    daemon: Daemon = sampled.daemon
    async with measured(daemon) as took:
        sampled.begin()
        await daemon.client.enable(ledger.topic, segment_bytes_max=ledger.entries.segment_bytes)
        await daemon.claimed(ledger.topic)
        await everything_offloaded(daemon, ledger.topic)
        account = await sampled.end()
    return took, account


def _figures(label: str, entries: Entries, rounds: Sequence[Way]) -> list[Figure]:
    name, gib = f"from bookies to S3, {label}", entries.payload_bytes / GIB
    mib = entries.payload_bytes / MIB
    parts = {part: None for one in rounds for part in one.account["parts"]}

    found = [
        Figure(
            benchmark=name,
            figure="rate over the slower of codec and bare upload",
            values=[one.slower_s / one.ours.seconds for one in rounds],
            goal=goals.WHOLE_RATE.get(label),
            notes={
                "ours": spread([mib / one.ours.seconds for one in rounds], "MiB/s"),
                "codec": spread([mib / one.codec.seconds for one in rounds], "MiB/s"),
                "aiobotocore": spread([mib / one.bare.seconds for one in rounds], "MiB/s"),
            },
        ),
        Figure(
            benchmark=name,
            figure="CPU of the daemon",
            values=[one.ours.cpu_s["daemon"] / gib for one in rounds],
            unit="s/GiB",
            goal=goals.WHOLE_CPU.get(label),
            more_is_better=False,
            notes={
                "codec": spread([one.codec.cpu_s / gib for one in rounds], "s/GiB"),
                "aiobotocore": spread([one.bare.cpu_s / gib for one in rounds], "s/GiB"),
                "most in": _most([one.account for one in rounds], gib),
            },
        ),
        *process_figures(name, gib, [one.ours for one in rounds]),
    ]
    for part in parts:
        cpu = [one.account["parts"].get(part, 0.0) / gib for one in rounds]
        found += used_figures(name, f"daemon: {part}", cpu=cpu)
    bare_peak = [one.bare.peak_bytes for one in rounds]
    return [
        *found,
        *used_figures(name, "codec alone", cpu=[one.codec.cpu_s / gib for one in rounds]),
        *used_figures(name, "bare client (aiobotocore)", cpu=[one.bare.cpu_s / gib for one in rounds], peak=bare_peak),
    ]


def _most(accounts: Sequence[Account], gib: float) -> str:
    """Return the functions in which most CPU was used, with its seconds a GiB."""
    used: Counter[str] = Counter()
    for account in accounts:
        for function, seconds in account["functions"].items():
            used[function] += round(1e6 * seconds / len(accounts) / gib)
    return ", ".join(f"{function} {micros / 1e6:.2f}" for function, micros in used.most_common(12))
