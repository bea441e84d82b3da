"""A direct read in a process of its own: a plan from the daemon, the bytes from the bucket.

`python -m bench.direct` reads a task as JSON from standard input and prints what it took; `measure` runs it as a child.
Starting the clients and their first requests are not measured.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import aclosing
from typing import TYPE_CHECKING, TypedDict

from bench.child import Took, in_child, peak_bytes, used_s
from bench.load import DEADLINE_S
from bench.site import said
from offloaderd.client import DaemonClient
from offloaderd.core.clock import SystemClock
from offloaderd.core.read_options import ReadPriority
from offloaderd.daemon import log
from offloaderd.direct.bucket import segments_of
from offloaderd.objects.opening import bucket_store
from offloaderd.objects.settings import ObjectsSettings

if TYPE_CHECKING:
    from bench.site import Daemon, Site
    from offloaderd.core.model import TopicName

CLOCK = SystemClock()


class Task(TypedDict):
    """Which topic, which daemon, where its objects are, and how many entries it has."""

    address: str
    objects: dict[str, object]
    """The settings of the bucket."""
    topic: str
    count: int


async def measure(site: Site, daemon: Daemon, topic: TopicName, count: int) -> Took:
    """Read a topic by the plan of a daemon."""
    task = Task(
        address=daemon.client.address,
        objects=said(site.s3),
        topic=str(topic),
        count=count,
    )
    return await in_child("bench.direct", task)


async def run(task: Task) -> Took:
    """Read a topic from its first entry to its last."""
    async with (
        DaemonClient(task["address"], timeout_s=DEADLINE_S) as client,
        bucket_store(ObjectsSettings.model_validate(task["objects"]), CLOCK) as store,
        segments_of(store, CLOCK) as bucket,
    ):
        await store.get("warm", 0, 1)
        before, started, count = used_s(), CLOCK.monotonic(), 0
        first = ReadPriority.TIERED_STORAGE_FIRST
        async with aclosing(client.read(task["topic"], direct=bucket, read_priority=first)) as answers:
            async for answer in answers:
                count += len(answer.batch.payloads)
        took = Took(CLOCK.monotonic() - started, used_s() - before, peak_bytes())
    if count != task["count"]:
        raise RuntimeError(f"{count} entries were read, not {task['count']}")
    return took


if __name__ == "__main__":
    log.configure("warning", "json")
    print(json.dumps(asyncio.run(run(json.load(sys.stdin)))))
