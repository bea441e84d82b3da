"""A site of a test: a bucket and a ZooKeeper root of its own, and what is committed in them, as a daemon does."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING, TypeVar

from offloaderd.core.clock import SystemClock
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.metadata import paths
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map import removal
from offloaderd.metadata.zookeeper.store import ZooKeeperStore
from offloaderd.objects import keys
from offloaderd.objects.opening import bucket_store
from offloaderd.objects.settings import ObjectsSettings
from offloaderd.policy.records import TopicPolicy, encode_policy
from offloaderd.policy.resolver import PolicyResolver
from offloaderd.read.reader import TopicReader
from tests.unit.read.build import PREFIX, Hot, Piece, put_segment
from tests.unit.rigs.stored_maps import StoredMaps

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping
    from contextlib import AbstractAsyncContextManager
    from uuid import UUID

    from offloaderd.core.model import TopicName
    from offloaderd.objects.buckets import BucketStore

T = TypeVar("T")

CLOCK = SystemClock()


@dataclass
class Site:
    """A bucket and a ZooKeeper root of a test's own, and what is committed in them."""

    zookeeper: str
    objects: Mapping[str, str]
    """Settings of the bucket."""
    root: str = field(default_factory=lambda: f"/t{CLOCK.uuid().hex[:12]}")

    def options(self, **more: str) -> dict[str, str]:
        """Return the options that name them, and more."""
        return {
            "metadata.servers": self.zookeeper,
            "metadata.root": self.root,
            "daemon.cluster": "test",
            "objects.prefix": PREFIX,
            **{f"objects.{name}": value for name, value in self.objects.items()},
            **more,
        }

    def bucket(self) -> BucketStore:
        """Return a client of the bucket."""
        return bucket_store(ObjectsSettings.model_validate(self.objects), CLOCK)

    @asynccontextmanager
    async def stores(self) -> AsyncIterator[tuple[ZooKeeperStore, BucketStore]]:
        """Open both."""
        metadata = ZooKeeperStore(self.zookeeper, f"{self.root}/test")
        async with metadata, self.bucket() as objects:
            yield metadata, objects

    async def commit(self, topic: TopicName, pieces: list[Piece]) -> UUID:
        """Store a segment and commit it as the daemon does."""
        async with self.stores() as (metadata, objects):
            if not await metadata.children(paths.topic(topic)):
                for folder in paths.folders(topic):
                    await metadata.create(folder, b"")
                await metadata.create(paths.policy(topic), encode_policy(TopicPolicy()))
            segment_id = CLOCK.uuid()
            segment = await put_segment(
                objects, pieces, segment_id=segment_id, block_entries=100, topic=topic, surveyed=True
            )
            for key in segment.keys.all:
                await objects.put(key, await objects.get(key), metadata=keys.segment_metadata("test"))
            segment = replace(segment, bucket=self.objects["bucket"])
            steps, _ = (await catalog.load(metadata, topic)).with_commit(segment)
            await metadata.transact(steps)
            return segment_id

    async def retire(self, topic: TopicName) -> None:
        """Take the oldest segment out of the map, as retention does."""
        async with self.stores() as (metadata, _):
            found = await catalog.load(metadata, topic)
            steps, _ = removal.without_oldest(found, found.segments[0], reason="age", now_ms=1)
            await metadata.transact(steps)

    async def spoil(self, segment_id: UUID) -> None:
        """Flip a bit in the middle of a segment's data."""
        async with self.bucket() as objects:
            key = f"{PREFIX}{segment_id}"
            data = bytearray(await objects.get(key))
            data[len(data) // 2] ^= 1
            await objects.put(key, bytes(data), metadata=keys.segment_metadata("test"))

    async def hash_of_reads(self, topic: TopicName) -> str:
        """Return the hash of all payloads as the daemon's reader gives them out."""
        found = sha256()
        async with self.stores() as (metadata, objects):
            maps, book = StoredMaps(metadata), PolicyResolver(metadata)
            reader = TopicReader(
                maps=maps, policies=book, objects=objects, source=None, hot=Hot(), clock=CLOCK, metrics=Metrics()
            )
            async with reader:
                async for batch, _ in reader.read(topic):
                    for one in batch.payloads:
                        found.update(one)
        return found.hexdigest()


async def created(site: Site) -> None:
    """Create the bucket of a site in Azure's or Google's store."""
    async with site.bucket() as store:
        await store.create_bucket()  # type: ignore[attr-defined] # of those two


@contextmanager
def in_thread(server: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """Run a server in a thread of its own, since Spark's calls block."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="server")
    thread.start()
    try:
        yield asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result()
        asyncio.run_coroutine_threadsafe(server.__aexit__(None, None, None), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
