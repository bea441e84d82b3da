"""Reading segments inside a process, without a daemon: the map from ZooKeeper, the bytes from S3, nothing in between.

`python -m bench.library` reads a task as JSON from standard input and prints what it took; `measure` runs it as a
child. Starting the clients and their first requests are not measured.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import aclosing
from typing import TYPE_CHECKING, TypedDict

from bench.child import Took, in_child, peak_bytes, used_s
from bench.site import secret_of
from offloaderd.core.clock import SystemClock
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import TopicName
from offloaderd.daemon import log
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.zookeeper.store import ZooKeeperStore
from offloaderd.objects.s3.store import S3Store
from offloaderd.objects.settings import ObjectsSettings
from offloaderd.read.segments import SegmentOptions, SegmentReader

if TYPE_CHECKING:
    from bench.site import Site

CLOCK = SystemClock()


class Task(TypedDict):
    """Which topic, where its map is, where its objects are, and how many entries it has."""

    zookeeper: str
    root: str
    endpoint: str
    access_key: str
    secret_key: str
    bucket: str
    topic: str
    count: int


async def measure(site: Site, name: str, topic: TopicName, count: int) -> Took:
    """Read a topic of the daemon of that name in a process of its own."""
    task = Task(
        zookeeper=site.zookeeper,
        root=site.metadata_root(name),
        endpoint=site.s3.endpoint or "",
        access_key=site.s3.access_key or "",
        secret_key=secret_of(site.s3),
        bucket=site.s3.bucket,
        topic=str(topic),
        count=count,
    )
    return await in_child("bench.library", task)


async def run(task: Task) -> Took:
    """Read every segment, from its first entry to its last."""
    options = ObjectsSettings(
        bucket=task["bucket"],
        endpoint=task["endpoint"],
        access_key=task["access_key"],
        secret_key=task["secret_key"],
    )
    topic = TopicName.parse(task["topic"])
    async with ZooKeeperStore(task["zookeeper"], task["root"]) as metadata, S3Store(options) as store:
        segments = (await catalog.load(metadata, topic)).segments
        await store.get("warm", 0, 1)
        async with SegmentReader(store, clock=CLOCK, metrics=Metrics(), options=SegmentOptions()) as reader:
            before, started, count = used_s(), CLOCK.monotonic(), 0
            for segment in segments:
                async with aclosing(reader.read(topic, segment, segment.range.begin, segment.range.end)) as batches:
                    async for batch in batches:
                        count += len(batch.payloads)
            took = Took(CLOCK.monotonic() - started, used_s() - before, peak_bytes())
    if count != task["count"]:
        raise RuntimeError(f"{count} entries were read, not {task['count']}")
    return took


if __name__ == "__main__":
    log.configure("warning", "json")
    print(json.dumps(asyncio.run(run(json.load(sys.stdin)))))
