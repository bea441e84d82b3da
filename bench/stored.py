"""Topics in the bucket, for benchmarks that read: pushed by a daemon that has ended, read by one that has them now.

A daemon knows the map of its own topics. For another's it asks ZooKeeper before every read, which is not measured here.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bench.appending import PUSHED, objects_of
from bench.load import push
from bench.site import CLOCK

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from bench.load import Entries
    from bench.site import Daemon, Sections, Site
    from offloaderd.core.model import TopicName


@dataclass(slots=True)
class Stored:
    """Where they are: a bucket of their own, and the length of every data object by topic and key."""

    site: Site
    name: str
    objects: dict[TopicName, dict[str, int]] = field(default_factory=dict)

    @asynccontextmanager
    async def daemon(self, sections: Sections = PUSHED) -> AsyncIterator[Daemon]:
        """Start a daemon with these settings and an empty memory that has them."""
        async with self.site.daemon(sections, name=self.name) as daemon:
            for topic in self.objects:
                await daemon.claimed(topic)
            yield daemon


@asynccontextmanager
async def stored(site: Site, topics: Mapping[TopicName, Entries]) -> AsyncIterator[Stored]:
    """Store topics in a new bucket."""
    async with site.bucket() as place:
        made = Stored(place, f"stored{CLOCK.uuid().hex[:6]}")
        async with made.daemon() as daemon:
            for topic, entries in topics.items():
                await daemon.client.enable(topic, segment_bytes_max=entries.segment_bytes)
                await daemon.claimed(topic)
                await push(daemon.client, topic, entries)
                made.objects[topic] = await objects_of(daemon, topic)
        yield made
