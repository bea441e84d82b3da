"""Collecting without a grace age beside engines that write and fail: what is referred to is never touched."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from offloaderd.core.errors import OffloaderError
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.segment.roll import RollPolicy
from offloaderd.testing.faults import Faults, FaultyMetadata, FaultyStore
from offloaderd.upkeep.gc.collector import Collector
from offloaderd.upkeep.gc.findings import ALARMS, Finding, Summary
from offloaderd.upkeep.stored import Site
from tests.unit.rigs.rig import TOPIC, Rig, enabled, memory_ledgers, offloader_of, payloads, turn

SITE = Site(cluster="test", bucket="b", prefix="seg/")


def collector(rig: Rig) -> Collector:
    """Return a collector over the stores of a rig."""
    return Collector(rig.store, rig.tree.connect(), [SITE], clock=rig.clock, metrics=Metrics())


async def collect(one: Collector) -> list[Finding]:
    """Delete what nobody refers to, however young; a failure is as good as a pause."""
    finds = []
    try:
        async with aclosing(one.collect(grace_s=0, apply=True)) as found:
            finds = [find async for find in found if not isinstance(find, Summary)]
    except OffloaderError:
        pass
    return finds


async def collecting(rig: Rig, done: asyncio.Event) -> int:
    """Collect again and again, two at a time, as two daemons do that both think they are the one who should."""
    runs, one, two = 0, collector(rig), collector(rig)
    while not done.is_set():
        async with asyncio.TaskGroup() as group:
            found = [group.create_task(collect(each)) for each in (one, two)]
        assert not [find for task in found for find in task.result() if find.kind in ALARMS]
        runs += 1
        await turn()
    return runs


@pytest.mark.parametrize("operation", ["", "create_upload", "upload_part", "complete_upload", "put", "transact"])
async def test_nothing_that_is_referred_to_goes(operation: str) -> None:
    """Through segments, lost answers and changes of owner every entry stays; in the end nothing is left over."""
    rig = Rig(policy=RollPolicy(segment_bytes_max=20_000, segment_age_max_s=3600.0))
    rig.ledgers = memory_ledgers(rig.clock, ledger_entries_max=150)
    bucket, faults, done = rig.store, Faults(), asyncio.Event()
    rig.objects = FaultyStore(bucket, faults)
    clean = Rig(clock=rig.clock, tree=rig.tree, ledgers=rig.ledgers, objects=bucket)
    sent: list[bytes] = []
    async with asyncio.TaskGroup() as group:
        runs = group.create_task(collecting(clean, done))
        for name in ("one", "two", "three"):
            async with rig.engine(name, metadata=FaultyMetadata(rig.tree.connect(), faults)) as engine:
                topic = await (enabled(engine) if name == "one" else offloader_of(engine))
                if operation:
                    faults.lose_answer(operation, times=2)
                batch = payloads(400, 300, seed=len(sent))
                sent += batch
                for first in range(0, len(batch), 50):
                    await rig.ledgers.append(TOPIC, batch[first : first + 50])
                    await turn()
                while len(await clean.committed()) < len(sent) - 100:
                    await topic.changed.wait_at_most(rig.clock, 0.01)
        done.set()
    assert runs.result() > 5
    assert faults.fired == (6 if operation else 0)
    assert [payload for _, payload in await clean.committed()] == sent
    await collect(collector(clean))
    assert await clean.leftovers() == []
