"""Reading a topic from real bookies, beside the bare loop of the wire codec.

Two bookies hold every entry (Pulsar's default of 2/2/2). The ledger is read in turns by the codec alone and by the
ledger source as the tailer uses it, each in a process of its own; both check every digest and every length.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from bench import goals
from bench.bookie_reader import Task, measure
from bench.load import MIB
from bench.report import Figure, spread
from bench.site import CLOCK
from tests.real.bookies import ClusterOptions, bookkeeper_cluster
from tests.real.writer import Plan, ledger_writer
from tests.real.written_topic import written_topic

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from bench.child import Took
    from bench.scale import Scale
    from bench.site import Site
    from tests.real.bookies import BookKeeperCluster

PLAN = Plan(ensemble=2, write_quorum=2, ack_quorum=2)


@asynccontextmanager
async def bookies(site: Site) -> AsyncIterator[BookKeeperCluster]:
    """Run three bookies with a ZooKeeper of their own, in the site's directory."""
    options = ClusterOptions(directory=site.directory / f"bookies-{CLOCK.uuid().hex[:6]}")
    async with bookkeeper_cluster(options, CLOCK) as cluster:
        yield cluster


def beside(site: Site, cluster: BookKeeperCluster) -> Site:
    """Give a site that measures the bookies as well."""
    return site.beside({f"bookie {number}": one.child.pid or 0 for number, one in enumerate(cluster.bookies, 1)})


async def tail(site: Site, size: Scale, cluster: BookKeeperCluster) -> list[Figure]:
    """Measure both sizes of entries."""
    figures: list[Figure] = []
    async with ledger_writer(cluster.zookeeper, CLOCK) as writer:
        for label, entry_bytes in size.ledger_sizes.items():
            count = size.stock_bytes // entry_bytes
            topic = await written_topic(writer, f"tail-{entry_bytes}", plan=PLAN)
            await topic.add(distinct_entries(count, entry_bytes), window=256)
            await topic.roll()
            ledger = topic.ledgers[0]
            task = Task(
                how="codec",
                zookeeper=cluster.zookeeper,
                topic=str(topic.name),
                bookie=ledger.metadata.replicas(0)[0],
                ledger_id=ledger.ledger_id,
                last_entry_id=count - 1,
            )
            await measure(task)  # the first read warms the bookie's caches, and is nobody's
            rounds = [
                (await measure({**task, "how": "source"}), await measure({**task, "how": "codec"}))
                for _ in range(size.runs)
            ]
            figures += _figures(f"tail from bookies, {label}", count, entry_bytes, rounds)
    return figures


def distinct_entries(count: int, entry_bytes: int) -> Iterator[bytes]:
    """Yield entries that differ in their first bytes."""
    rest = bytes(entry_bytes - 8)
    return (number.to_bytes(8, "big") + rest for number in range(count))


def _figures(name: str, count: int, entry_bytes: int, rounds: list[tuple[Took, Took]]) -> list[Figure]:
    mib = count * entry_bytes / MIB
    gib = mib / 1024
    return [
        Figure(
            benchmark=name,
            figure="rate over the codec alone",
            values=[codec.seconds / source.seconds for source, codec in rounds],
            goal=goals.TAIL_RATE,
            notes={
                "ours": _rates([source.seconds for source, _ in rounds], count, mib),
                "codec": _rates([codec.seconds for _, codec in rounds], count, mib),
            },
        ),
        Figure(
            benchmark=name,
            figure="CPU of the reader",
            values=[source.cpu_s / gib for source, _ in rounds],
            unit="s/GiB",
            notes={"codec": spread([codec.cpu_s / gib for _, codec in rounds], "s/GiB")},
        ),
    ]


def _rates(seconds: list[float], count: int, mib: float) -> str:
    per_s = spread([count / one for one in seconds], "entries/s")
    return f"{per_s}, {spread([mib / one for one in seconds], 'MiB/s')}"
