"""CacheService: the disk cache of this daemon."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass

from offloaderd.api.calls import Context
from offloaderd.core.errors import Conflict
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import TopicName
from offloaderd.core.read_options import Goal, SeekKind
from offloaderd.format.parsing import filled
from offloaderd.protocol.v1 import cache_pb2, cache_pb2_grpc
from offloaderd.read.disk.sweep import purge
from offloaderd.read.reader import TopicReader
from offloaderd.read.warming import warm


@dataclass(eq=False)
class CacheService(cache_pb2_grpc.CacheServiceServicer):
    """Shows, warms and purges the disk cache of `reader`."""

    daemon_id: str
    reader: TopicReader
    metrics: Metrics

    async def ShowCache(self, request: cache_pb2.ShowCacheRequest, context: Context) -> cache_pb2.CacheState:
        """Return the state, and counts since the start."""
        disk = self.reader.segments.fetcher.disk
        if disk is None:
            return cache_pb2.CacheState(daemon_id=self.daemon_id, state="not set")
        table = disk.table
        return cache_pb2.CacheState(
            daemon_id=self.daemon_id,
            open=disk.is_open,
            state=disk.state,
            directory=str(disk.options.directory),
            used_bytes=table.used_bytes,
            limit_bytes=table.limit_bytes,
            ranges=len(table),
            hits=self._count("cache_requests", cache="disk", result="hit"),
            misses=self._count("cache_requests", cache="disk", result="miss"),
            read_bytes=self._count("disk_cache_read_bytes"),
            written_bytes=self._count("disk_cache_written_bytes"),
            gets_saved=self._count("disk_cache_gets_saved"),
            money_saved=self._value("disk_cache_money_saved"),
        )

    def _value(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"offloaderd_{name}_total", labels) or 0.0

    def _count(self, name: str, **labels: str) -> int:
        return round(self._value(name, **labels))

    async def WarmCache(
        self, request: cache_pb2.WarmCacheRequest, context: Context
    ) -> AsyncIterator[cache_pb2.WarmProgress]:
        """Yield progress. Raises TopicNotFound, InvalidInput, Conflict without a disk, and as reads do."""
        topic = TopicName.parse(request.topic)
        goal = Goal(SeekKind.TIME, request.from_time_ms) if request.HasField("from_time_ms") else None
        async with aclosing(warm(self.reader, topic, goal)) as progress:
            async for one in progress:
                yield filled(cache_pb2.WarmProgress, one)

    async def PurgeCache(self, request: cache_pb2.PurgeCacheRequest, context: Context) -> cache_pb2.CachePurged:
        """Return what was deleted. Raises InvalidInput, Conflict without a disk cache that is open."""
        topic = TopicName.parse(request.topic) if request.topic else None
        disk = self.reader.segments.fetcher.disk
        if disk is None:
            raise Conflict("this daemon has no disk cache", hint="set cache.directory, and restart it")
        if not disk.is_open:
            raise Conflict(f"the disk cache is off: {disk.state}", hint="delete the files in its directory by hand")
        found = await purge(disk, topic, dry_run=request.dry_run)
        return cache_pb2.CachePurged(daemon_id=self.daemon_id, dry_run=request.dry_run, **found._asdict())
