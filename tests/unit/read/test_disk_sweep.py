"""What leaves the disk because no map has it any more, and what an operator purges."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import Transient
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.metadata import paths
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map import removal
from offloaderd.read.disk.cache import DiskCache, DiskOptions, Dropped
from offloaderd.read.disk.files import file_bytes, owner_of, place_of
from offloaderd.read.disk.sweep import FIRST_S, PAUSE_S, keep_swept, known_topics, purge, sweep
from tests.unit.read.build import sample, turns
from tests.unit.upkeep.site import BUCKET, TOPIC, Ground, data_key, runs, segment_id
from tests.virtual import LoopClock

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator
    from pathlib import Path

    from offloaderd.core.model import TopicName
    from offloaderd.metadata.port import MetadataStore
    from offloaderd.metadata.topic_map.map import TopicMap

OTHER = replace(TOPIC, local="other")
DATA = b"some data"
FILE_BYTES = file_bytes(len(DATA))
RANGES = 3


@pytest.fixture
async def ground() -> Ground:
    """Two topics: one of two segments, one of one."""
    site = Ground()
    for topic in (TOPIC, OTHER):
        await site.enable(topic)
    await site.segment(1, runs(1, 0, 10))
    await site.segment(2, runs(2, 0, 10))
    await site.segment(3, runs(3, 0, 10), OTHER)
    return site


@pytest.fixture
async def disk(tmp_path: Path) -> AsyncIterator[DiskCache]:
    """Some ranges of each segment."""
    options = DiskOptions(directory=tmp_path, limit_bytes=64 << 20)
    async with DiskCache(options, clock=LoopClock(), metrics=Metrics()) as made:
        await turns(5)
        for topic, number in ((TOPIC, 1), (TOPIC, 2), (OTHER, 3)):
            owner = owner_of(topic.managed_ledger, segment_id(number))
            for offset in range(RANGES):
                made.put(place_of(owner, BUCKET, data_key(number), offset), DATA)
        while made.waiting_bytes:
            await turns()
        yield made


def held(disk: DiskCache, topic: TopicName, number: int) -> int:
    """Return the files of a segment on the disk."""
    begin = owner_of(topic.managed_ledger, segment_id(number)).hex()
    found = len(list(disk.options.directory.glob(f"{begin}*.block")))
    assert found == sum(place.hex().startswith(begin) for place in disk.table.places)
    return found


async def delete_oldest(ground: Ground) -> None:
    """Remove the first segment of the topic, as retention does."""
    found = await ground.map()
    steps, _ = removal.without_oldest(found, found.segments[0], reason="age", now_ms=1)
    await ground.metadata.transact(steps)


async def delete_topic(ground: Ground, folder: str) -> None:
    """Delete all nodes of a topic."""
    for name in await ground.metadata.children(folder):
        await delete_topic(ground, f"{folder}/{name}")
    await ground.metadata.delete(folder)


async def swept(disk: DiskCache, metadata: MetadataStore) -> Dropped:
    """Sweep by the maps in a metadata store."""
    return await sweep(disk, partial(known_topics, metadata), lambda topic: catalog.load(metadata, topic))


async def test_what_no_map_has_goes(ground: Ground, disk: DiskCache) -> None:
    """A segment that another daemon deleted, and a topic that is gone; what the maps have stays."""
    assert await swept(disk, ground.metadata) == Dropped(0, 0)
    await delete_oldest(ground)
    await delete_topic(ground, paths.topic(OTHER))
    assert await swept(disk, ground.metadata) == Dropped(2 * RANGES, 2 * RANGES * FILE_BYTES)
    assert [held(disk, TOPIC, 1), held(disk, TOPIC, 2), held(disk, OTHER, 3)] == [0, RANGES, 0]
    labels = {"cache": "disk", "cause": "gone"}
    assert sample(disk._metrics, "offloaderd_cache_evictions_total", labels) == 2 * RANGES
    assert sample(disk._metrics, "offloaderd_cache_bytes", {"cache": "disk"}) == RANGES * FILE_BYTES


async def test_a_map_that_cannot_be_read_says_nothing(
    ground: Ground, disk: DiskCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its topic has on the disk stays, and others are swept all the same."""
    await delete_oldest(ground)
    await delete_topic(ground, paths.topic(OTHER))
    load = catalog.load

    async def failing(store: object, topic: TopicName) -> TopicMap:
        if topic == TOPIC:
            raise Transient("not now")
        return await load(store, topic)  # type: ignore[arg-type]

    monkeypatch.setattr(catalog, "load", failing)
    assert (await swept(disk, ground.metadata)).ranges == RANGES
    assert [held(disk, TOPIC, 1), held(disk, TOPIC, 2), held(disk, OTHER, 3)] == [RANGES, RANGES, 0]


async def test_a_sweep_comes_after_the_start_and_every_hour(
    ground: Ground, disk: DiskCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A metadata store that does not answer is asked the next time."""
    await delete_oldest(ground)
    clock = LoopClock()
    children = ground.metadata.children
    failing = True

    async def answer(path: str) -> list[str]:
        if failing:
            raise Transient("not now")
        return list(await children(path))

    monkeypatch.setattr(ground.metadata, "children", answer)
    topics, load = partial(known_topics, ground.metadata), partial(catalog.load, ground.metadata)
    loop: asyncio.Task[None] = disk._tasks.start(keep_swept(disk, clock, topics, load), name="sweep")
    await clock.sleep(FIRST_S + 1)
    assert held(disk, TOPIC, 1) == RANGES
    failing = False
    await clock.sleep(PAUSE_S)
    assert [held(disk, TOPIC, 1), held(disk, TOPIC, 2)] == [0, RANGES]
    assert not loop.done()


@pytest.mark.parametrize("topic", [OTHER, None])
async def test_an_operator_purges_a_topic_or_everything(
    ground: Ground, disk: DiskCache, topic: TopicName | None
) -> None:
    """A topic that is gone as well; a dry run says how much, and deletes nothing."""
    await delete_topic(ground, paths.topic(OTHER))
    count = RANGES if topic is not None else 3 * RANGES
    wanted = Dropped(count, count * FILE_BYTES)
    assert await purge(disk, topic, dry_run=True) == wanted
    assert len(disk.table) == 3 * RANGES
    assert await purge(disk, topic, dry_run=False) == wanted
    assert len(list(disk.options.directory.glob("*.block"))) == len(disk.table) == 3 * RANGES - count
    assert await purge(disk, topic, dry_run=False) == Dropped(0, 0)
