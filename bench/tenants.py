"""What a tenant notices of another one on the same daemon, in its lag and its reads.

Each tenant has a quota of what it writes and reads a second, which is its share. The other tenant pushes and reads as
much as that, or tries ten times as much, with ten times as many readers, from a process of its own
(`python -m bench.tenants`). Rounds of both take turns.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import aclosing
from itertools import count
from statistics import median
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from bench import goals
from bench.child import answer_of
from bench.durable import quantile
from bench.load import MIB, PUSH_LEDGER, Entries, message
from bench.random_reads import one_entry
from bench.report import Figure
from bench.site import CLOCK
from bench.stored import stored
from offloaderd.client import DaemonClient, Pushed
from offloaderd.core.model import EntryBatch, Position, TopicName
from offloaderd.core.read_options import ReadPriority
from offloaderd.daemon import log
from offloaderd.protocol.v1 import quota_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from bench.scale import Scale
    from bench.site import Daemon, Sections, Site

MEASURED, OTHER = "measured", "other"
WRITTEN_BYTES_PER_S, READ_BYTES_PER_S = MIB, 2 * MIB
"""The share of each tenant."""
TOPICS, READERS, TIMES = 4, 2, 10
"""Topics that the other tenant pushes to, its readers at its share, and how much more it tries."""
ENTRY_BYTES, HISTORY_BYTES = 1024, 32 * MIB
ENTRIES_PER_S, READS_PER_S = 100, 20
"""What the measured tenant does, below its share: so nothing but the other tenant delays it."""
WARM_S = 2.0
"""The other tenant begins so long before anything is measured; its first seconds are paid by its quotas' reserve."""
SECTIONS: Sections = {
    "ledgers": {"kind": "none"},
    "offload": {"segment_age_max_s": 1.0},
    "memory": {"cache_bytes": 16 * MIB},
}


class Task(TypedDict):
    """What the other tenant does: on which daemon, in which topics, how many times its share, for how long."""

    address: str
    history: str
    topics: list[str]
    times: int
    seconds: float


class Round(NamedTuple):
    """Seconds until each entry of the measured tenant was committed, and seconds of each of its reads; ascending."""

    lags: list[float]
    reads: list[float]
    pushed_per_s: float
    """Bytes that the other tenant pushed meanwhile."""
    read_per_s: float
    """Bytes that it read."""


class Moved(TypedDict):
    """Bytes that the other tenant has moved."""

    pushed: int
    read: int


async def tenants(site: Site, size: Scale) -> list[Figure]:
    """Measure the lag and the reads of one tenant beside another one."""
    history = {tenant: TopicName(tenant, "bench", "history") for tenant in (MEASURED, OTHER)}
    entries = Entries(ENTRY_BYTES, HISTORY_BYTES, distinct=HISTORY_BYTES // MIB)
    rounds: dict[int, list[Round]] = {1: [], TIMES: []}
    async with stored(site, dict.fromkeys(history.values(), entries)) as there, there.daemon(SECTIONS) as daemon:
        share = quota_pb2.Quotas(write_bytes_per_s=WRITTEN_BYTES_PER_S, read_bytes_per_s=READ_BYTES_PER_S)
        for tenant in history:
            await daemon.client.set_quotas(tenant, share)
        for number in range(size.runs):
            for times, done in rounds.items():
                topics = await _enabled(daemon, f"{number}-{times}")
                done.append(await _round(daemon, history, entries.count, topics, times, size.durable_s))
    once, often = rounds.values()
    return [
        _figure("lag", once, often, lambda one: one.lags),
        _figure("reads of one entry", once, often, lambda one: one.reads),
    ]


async def _enabled(daemon: Daemon, name: str) -> dict[str, list[TopicName]]:
    """Return new topics of a round, which the daemon has claimed."""
    topics = {
        MEASURED: [TopicName(MEASURED, "bench", f"orders-{name}")],
        OTHER: [TopicName(OTHER, "bench", f"clicks-{name}-{number}") for number in range(TOPICS)],
    }
    for topic in [*topics[MEASURED], *topics[OTHER]]:
        await daemon.client.enable(topic)
        await daemon.claimed(topic)
    return topics


async def _round(
    daemon: Daemon,
    history: dict[str, TopicName],
    stored_entries: int,
    topics: dict[str, list[TopicName]],
    times: int,
    seconds: float,
) -> Round:
    """Return what the measured tenant notices of so many times the share of the other one."""
    task = Task(
        address=daemon.client.address,
        history=str(history[OTHER]),
        topics=list(map(str, topics[OTHER])),
        times=times,
        seconds=seconds + 2 * WARM_S,
    )
    lags, reads = list[float](), list[float]()
    async with asyncio.TaskGroup() as group:
        other_tenant = group.create_task(answer_of("bench.tenants", task), name="the other tenant")
        await CLOCK.sleep(WARM_S)
        group.create_task(_lags(daemon, topics[MEASURED][0], seconds, lags), name="pushes")
        group.create_task(_reads(daemon, history[MEASURED], stored_entries, seconds, reads), name="reads")
    moved: Moved = other_tenant.result()
    return Round(sorted(lags), sorted(reads), moved["pushed"] / task["seconds"], moved["read"] / task["seconds"])


async def _lags(daemon: Daemon, topic: TopicName, seconds: float, lags: list[float]) -> None:
    """Push an entry at a time, and note how long each takes until it is committed."""
    entry, sent = message(ENTRY_BYTES, 0), dict[int, float]()
    started_s = CLOCK.monotonic()

    async def entries(_: Position | None) -> AsyncGenerator[EntryBatch, None]:
        for number in range(round(seconds * ENTRIES_PER_S)):
            await _until(started_s + number / ENTRIES_PER_S)
            sent[number] = CLOCK.monotonic()
            yield EntryBatch(PUSH_LEDGER, number, [entry])

    def told(pushed: Pushed) -> None:
        now_s, offloaded = CLOCK.monotonic(), pushed.offloaded
        stored_now = [one for one in sent if offloaded is not None and one <= offloaded.entry_id]
        lags.extend(now_s - sent.pop(one) for one in stored_now)

    await daemon.client.push(topic, entries, told)


async def _reads(daemon: Daemon, topic: TopicName, stored_entries: int, seconds: float, took: list[float]) -> None:
    """Read one entry at a time, each far from the one before."""
    started_s = CLOCK.monotonic()
    for number in range(round(seconds * READS_PER_S)):
        await _until(started_s + number / READS_PER_S)
        took.append(await one_entry(daemon, topic, number * 7919 % stored_entries))


async def _until(at_s: float) -> None:
    await CLOCK.sleep(max(0.0, at_s - CLOCK.monotonic()))


async def other(task: Task) -> Moved:
    """Push to all topics and read with all readers, as much as the daemon takes and gives, until the time is over."""
    moved = Moved(pushed=0, read=0)
    began_s = CLOCK.monotonic()
    until_s, times = began_s + task["seconds"], task["times"]
    batch = Entries(ENTRY_BYTES, 64 * ENTRY_BYTES, batch_bytes=64 * ENTRY_BYTES)
    ((_, payloads),) = batch.batches()
    pushed_per_s = times * WRITTEN_BYTES_PER_S / len(task["topics"]) / batch.payload_bytes

    async def entries(_: Position | None) -> AsyncGenerator[EntryBatch, None]:
        for number in count():
            await _until(began_s + number / pushed_per_s)
            if CLOCK.monotonic() > until_s:
                return
            moved["pushed"] += batch.payload_bytes
            yield EntryBatch(PUSH_LEDGER, number * len(payloads), payloads)

    async def reads(client: DaemonClient) -> None:
        read = 0
        while CLOCK.monotonic() < until_s:
            answers = client.read(
                task["history"], read_priority=ReadPriority.TIERED_STORAGE_FIRST, batch_bytes=MIB // 4
            )
            async with aclosing(answers):
                async for answer in answers:
                    size_bytes = sum(map(len, answer.batch.payloads))
                    read, moved["read"] = read + size_bytes, moved["read"] + size_bytes
                    await _until(began_s + read * READERS / READ_BYTES_PER_S)
                    if CLOCK.monotonic() > until_s:
                        break

    async with DaemonClient(task["address"]) as client, asyncio.TaskGroup() as group:
        for topic in task["topics"]:
            group.create_task(client.push(topic, entries), name=f"push {topic}")
        for number in range(READERS * times):
            group.create_task(reads(client), name=f"reader {number}")
    return moved


def _figure(what: str, once: list[Round], often: list[Round], of: Callable[[Round], list[float]]) -> Figure:
    """Return how much longer the slowest of a hundred take when the other tenant tries ten times its share."""

    def p99(rounds: list[Round]) -> list[float]:
        return [quantile(of(one), 0.99) for one in rounds]

    def shown(rounds: list[Round]) -> str:
        middle = median(quantile(of(one), 0.5) for one in rounds)
        pushed, read = (median(getattr(one, name) for one in rounds) / MIB for name in ("pushed_per_s", "read_per_s"))
        return (
            f"p50 {1000 * middle:.1f} ms, p99 {1000 * median(p99(rounds)):.1f} ms, while the other one pushes "
            f"{pushed:.1f} MiB/s and reads {read:.1f} MiB/s"
        )

    return Figure(
        benchmark="a tenant beside one that tries ten times its share",
        figure=f"p99 of its {what}, over that beside one within its share",
        values=[ten / one for one, ten in zip(p99(once), p99(often), strict=True)],
        goal=goals.OTHER_TENANT,
        more_is_better=False,
        notes={"ten times": shown(often), "within": shown(once), "of": f"{len(of(once[0]))} a round"},
    )


if __name__ == "__main__":
    log.configure("warning", "json")
    print(json.dumps(asyncio.run(other(json.load(sys.stdin)))))
