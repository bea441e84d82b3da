"""CacheService: the state of the disk cache as a message, and the progress of a warming."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from offloaderd.api.cache import CacheService
from offloaderd.core.errors import Conflict, InvalidInput
from offloaderd.protocol.v1 import cache_pb2
from tests.unit.read.build import TOPIC, turns
from tests.unit.read.test_disk_cache import written
from tests.unit.read.test_warming import disk_of, stored

if TYPE_CHECKING:
    from pathlib import Path

    from offloaderd.api.calls import Context

CALLER = cast("Context", None)


async def warmed(service: CacheService, request: cache_pb2.WarmCacheRequest) -> list[cache_pb2.WarmProgress]:
    """Return all progress."""
    return [one async for one in service.WarmCache(request, CALLER)]


async def test_a_topic_is_warmed_and_shown(tmp_path: Path) -> None:
    """Progress ends with `done`; the state has what is on the disk, and what reads of it saved."""
    rig = await stored()
    async with rig.reader, disk_of(rig, tmp_path) as disk:
        await turns(5)
        service = CacheService("d-1", rig.reader, rig.metrics)
        progress = await warmed(service, cache_pb2.WarmCacheRequest(topic=str(TOPIC)))
        await written(disk)
        assert [one.done for one in progress] == [False, False, True]
        assert progress[-1].segments == 2
        assert sum([batch.count async for batch, _ in rig.reader.read(TOPIC)]) == 400
        state = await service.ShowCache(cache_pb2.ShowCacheRequest(), CALLER)
        assert (state.daemon_id, state.open, state.state, state.directory) == ("d-1", True, "open", str(tmp_path))
        assert state.used_bytes == disk.table.used_bytes > progress[-1].fetched_bytes
        assert state.limit_bytes == 64 << 20
        assert state.ranges == len(disk.table) == 2 * (4 + 2)
        assert state.gets_saved == state.hits == 8
        assert state.read_bytes > 0
        assert state.written_bytes > 0


async def test_a_topic_is_purged(tmp_path: Path) -> None:
    """A dry run counts it, a purge deletes it, and readers read on; a disk that is off is an error."""
    rig = await stored()
    async with rig.reader:
        async with disk_of(rig, tmp_path) as disk:
            await turns(5)
            service = CacheService("d-1", rig.reader, rig.metrics)
            await warmed(service, cache_pb2.WarmCacheRequest(topic=str(TOPIC)))
            await written(disk)
            size = disk.table.used_bytes
            planned = await service.PurgeCache(cache_pb2.PurgeCacheRequest(topic=str(TOPIC), dry_run=True), CALLER)
            count = len(disk.table)
            assert planned == cache_pb2.CachePurged(daemon_id="d-1", dry_run=True, ranges=count, size_bytes=size)
            elsewhere = await service.PurgeCache(cache_pb2.PurgeCacheRequest(topic="public/default/else"), CALLER)
            assert (elsewhere.ranges, len(disk.table)) == (0, count)
            purged = await service.PurgeCache(cache_pb2.PurgeCacheRequest(topic=str(TOPIC)), CALLER)
            assert purged == cache_pb2.CachePurged(daemon_id="d-1", ranges=count, size_bytes=size)
            assert list(tmp_path.glob("*.block")) == []
            assert sum([batch.count async for batch, _ in rig.reader.read(TOPIC)]) == 400
        with pytest.raises(Conflict, match="off: closed"):
            await service.PurgeCache(cache_pb2.PurgeCacheRequest(), CALLER)


async def test_a_daemon_without_a_disk_says_so() -> None:
    """The state is an answer, the warming an error, as is a bad name or time."""
    rig = await stored()
    async with rig.reader:
        service = CacheService("d-1", rig.reader, rig.metrics)
        state = await service.ShowCache(cache_pb2.ShowCacheRequest(), CALLER)
        assert (state.open, state.state) == (False, "not set")
        with pytest.raises(Conflict, match="no disk cache"):
            await warmed(service, cache_pb2.WarmCacheRequest(topic=str(TOPIC)))
        with pytest.raises(Conflict, match="no disk cache"):
            await service.PurgeCache(cache_pb2.PurgeCacheRequest(), CALLER)
        with pytest.raises(InvalidInput):
            await warmed(service, cache_pb2.WarmCacheRequest(topic="a/b"))
