"""One session for all looks of a stream: opened by the first, closed at its end, and after what failed."""

from __future__ import annotations

from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from offloaderd.core.errors import NotFound
from offloaderd.metadata import paths
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.objects import opening
from offloaderd.spark.scan import snapshot
from offloaderd.spark.stream import SegmentsStream
from offloaderd.testing.builders import payloads
from offloaderd.testing.memory.metadata import MemoryTree
from tests.unit.read.build import TOPIC, Piece, put_segment
from tests.unit.spark.lake import CountingStore, options
from tests.virtual import LoopClock, virtually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from offloaderd.daemon.settings import Settings
    from offloaderd.testing.memory.metadata import MemoryMetadata

EVERYTHING = ReadAllAvailable()


class Site:
    """A bucket, and metadata with a count of the sessions that it has and has had."""

    def __init__(self) -> None:
        self.tree = MemoryTree()
        self.objects = CountingStore()
        self.opened = self.closed = 0

    @asynccontextmanager
    async def session(self, _: Settings) -> AsyncIterator[MemoryMetadata]:
        """Have a session."""
        self.opened += 1
        async with self.tree.connect() as store:
            yield store
        self.closed += 1

    async def commit(self, first: int) -> None:
        """Store ten entries, and commit them."""
        async with self.tree.connect() as metadata:
            if not await metadata.children(paths.TOPICS):
                for folder in paths.folders(TOPIC):
                    await metadata.create(folder, b"")
            held = payloads(30, ledger_id=1)[first : first + 10]
            segment = await put_segment(self.objects, [Piece(1, first, held)], segment_id=LoopClock().uuid())
            steps, _ = (await catalog.load(metadata, TOPIC)).with_commit(segment)
            await metadata.transact(steps)


def test_a_stream_has_one_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps and their tasks are planned in it; what failed opens another the next time, and stop() leaves none."""
    site = Site()
    monkeypatch.setattr(opening, "bucket_store", lambda *_: nullcontext(site.objects))
    monkeypatch.setattr(snapshot, "metadata_store", site.session)
    stream = SegmentsStream(options(), options().columns)
    with pytest.raises(NotFound, match="no topic matches"):
        stream.initialOffset()
    assert (site.opened, site.closed) == (1, 1)
    virtually(site.commit(0))
    offset = stream.initialOffset()
    for last in (9, 19, 29):
        start, offset = offset, stream.latestOffset(offset, EVERYTHING)
        assert offset == {str(TOPIC): f"1:{last}"}, "each look is a new one"
        assert len(stream.partitions(start, offset)) == 1
        if last < 29:
            virtually(site.commit(last + 1))
    stream.prepareForTriggerAvailableNow()
    assert stream.partitions({}, offset), "as a checkpoint repeats it"
    assert (site.opened, site.closed) == (2, 1)
    stream.stop()
    stream.stop()
    assert (site.opened, site.closed) == (2, 2)
