"""A daemon of one topic for tests of live ends: its own reader over a bucket, a ledger source and a buffer.

It has the calls of the client that the data source makes, and what a test does to the topic: entries come, are
committed, merged and deleted. Queries are planned on its map, as it is at that moment.
"""

from __future__ import annotations

import uuid
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

from offloaderd.client import DaemonClient, Trust
from offloaderd.client.reading import ReadAnswer
from offloaderd.core.entries import FramedEntries
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import EntryBatch, LedgerEnd, Position, TopicName
from offloaderd.core.retry import RetryPolicy
from offloaderd.format.parsing import filled
from offloaderd.metadata import paths
from offloaderd.metadata.pieces import joined
from offloaderd.metadata.topic_map import removal
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.protocol.v1 import common_pb2, identity_pb2, read_pb2, retention_pb2
from offloaderd.read.reader import ReadOptions, TopicReader
from offloaderd.read.segments import SegmentOptions
from offloaderd.spark.scan import plan as source_plan
from offloaderd.spark.scan.live import LiveReader
from offloaderd.spark.scan.live_end import with_live_ends
from offloaderd.spark.scan.segments import segment_reader
from offloaderd.spark.scan.share import Daemon
from offloaderd.spark.scan.snapshot import Snapshot, Stores, holes_of
from offloaderd.spark.scan.transactions import with_held
from offloaderd.testing.memory.ledgers import MemoryLedgers
from offloaderd.upkeep.retention import ledger_rows
from tests.unit.read.build import TOPIC, FastClock, Hot, Map, Piece, put_segment
from tests.unit.spark.lake import CountingStore, read_share

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Sequence

    from offloaderd.core.model import Loss
    from offloaderd.metadata.records.history import HistoryPlan
    from offloaderd.spark.scan.options import SourceOptions
    from offloaderd.spark.scan.query import EntryQuery
    from offloaderd.spark.scan.share import Share


class LiveTopic(DaemonClient):
    """The topic, and the client of its daemon. Enter `reader` before use.

    Without a source the entries that are not committed are in the buffer alone.
    """

    def __init__(self, *, ledger_entries_max: int = 7, sourced: bool = True) -> None:
        super().__init__("127.0.0.1:1")
        clock = FastClock()
        self.store = CountingStore()
        self.map = TopicMap(TOPIC)
        self.source = MemoryLedgers(clock=clock, ledger_entries_max=ledger_entries_max)
        self.sourced = sourced
        self.hot = Hot()
        self.entries: list[tuple[Position, bytes]] = []
        self.deployment_id = ""
        self.gone = False
        """Whether the source has deleted a ledger that may not be committed."""
        self._made = 0
        self._ends: dict[int, LedgerEnd] = {}
        self.ranges: list[tuple[Position, Position]] = []
        """The ranges that were read."""
        retry = RetryPolicy(tries_max=2, pause_s=0.1, pause_max_s=0.1)
        self.reader = TopicReader(
            maps=self,
            policies=Map(enabled=True),
            objects=self.store,
            source=self.source if sourced else None,
            hot=self.hot,
            clock=clock,
            metrics=Metrics(),
            options=ReadOptions(batch_bytes=300, segments=SegmentOptions(retry=retry)),
        )

    async def topic_map(self, topic: TopicName) -> TopicMap:
        """Return the map; see Maps."""
        return self.map

    async def arrive(self, payloads: Iterable[bytes]) -> None:
        """Have more entries."""
        for one in payloads:
            at = await self.source.append(TOPIC, [one])
            if not self.sourced:
                last = self.entries[-1][0] if self.entries else None
                self.hot.add(EntryBatch(at.ledger_id, at.entry_id, [one]), last)
            self.entries.append((at, one))

    async def commit(self, count: int) -> None:
        """Commit so many entries behind the offloaded ones, or as many as there are, as one segment."""
        behind = [one for one in self.entries if self.map.offloaded is None or one[0] > self.map.offloaded]
        await self.commit_these(behind[:count])

    async def commit_these(self, chosen: Sequence[tuple[Position, bytes]]) -> None:
        """Commit entries as one segment."""
        if not chosen:
            return
        infos = await self.source.ledgers(TOPIC)
        self._ends |= {
            info.ledger_id: LedgerEnd(info.entries, following.ledger_id)
            for info, following in pairwise(infos)
            if info.closed
        }
        pieces = [
            Piece(ledger_id, held[0][0].entry_id, [data for _, data in held])
            for ledger_id, group in groupby(chosen, key=lambda one: one[0].ledger_id)
            if (held := list(group))
        ]
        self._made += 1
        segment = await put_segment(self.store, pieces, segment_id=uuid.UUID(int=self._made))
        _, self.map = self.map.with_commit(segment, self._ends)

    async def merge(self) -> None:
        """Replace all segments by one, and delete them."""
        old = self.map.segments
        kept = [one for one in self.entries if any(segment.holds(one[0]) for segment in old)]
        before, self.map = self.map, TopicMap(TOPIC, base=self.map.base, losses=self.map.losses)
        await self.commit_these(kept)
        await self.store.delete([key for one in before.segments for key in one.keys.every])

    async def retire(self) -> None:
        """Delete the oldest segment, as retention does, and its ledgers at the source."""
        oldest = self.map.segments[0]
        _, self.map = removal.without_oldest(self.map, oldest, reason="age", now_ms=1)
        await self.store.delete(oldest.keys.every)
        await self.trim()

    async def trim(self) -> None:
        """Delete the ledgers at the source that are committed to their end."""
        for ledger_id in self.map.ends:
            if ledger_id in await self.source.listed(TOPIC):
                await self.source.delete(TOPIC, ledger_id)

    async def lose_ledger(self, ledger_id: int) -> None:
        """Delete a ledger at the source unless it is the last, whether it is committed or not; nobody notices it."""
        known = await self.source.ledgers(TOPIC)
        if any(one.ledger_id == ledger_id for one in known[:-1]):
            await self.source.delete(TOPIC, ledger_id)
            self.gone = True

    def lose(self, *losses: Loss) -> None:
        """Record losses."""
        self.map = TopicMap(TOPIC, self.map.segments, self.map.contexts, self.map.ends, losses, base=self.map.base)

    def begin_history(self, plan: HistoryPlan) -> None:
        """Have a plan of history."""
        self.map = TopicMap(TOPIC, self.map.segments, self.map.contexts, self.map.ends, history=plan)

    async def last_positions(self, topic: TopicName | str) -> read_pb2.LastPositionsResponse:
        """Answer as ReadService."""
        return filled(read_pb2.LastPositionsResponse, await self.reader.last_positions(TOPIC))

    async def ledgers(self, topic: TopicName | str) -> retention_pb2.ListLedgersResponse:
        """Answer as RetentionService."""
        source = await self.source.ledgers(TOPIC) if self.sourced else None
        contexts = {one: joined(stored, paths.ledger(TOPIC, one)) for one, stored in self.map.contexts.items()}
        known = sorted({*contexts, *(one.ledger_id for one in source or ())})
        rows = ledger_rows(known, contexts, source, {}, newest=max(contexts, default=-1))
        return retention_pb2.ListLedgersResponse(ledgers=[filled(retention_pb2.Ledger, row) for row in rows])

    async def identity(self, topic: TopicName | str = "") -> identity_pb2.ShowIdentityResponse:
        """Answer as IdentityService."""
        return identity_pb2.ShowIdentityResponse(deployment_id=self.deployment_id)

    async def read(self, topic: TopicName | str, **wanted: Any) -> AsyncGenerator[ReadAnswer, None]:  # noqa: ANN401
        """Answer as ReadService."""
        self.ranges.append((wanted["first"], wanted["last"]))
        async for batch, _ in self.reader.read(TOPIC, first=wanted["first"], last=wanted["last"]):
            assert not isinstance(batch, FramedEntries)
            yield ReadAnswer(batch, common_pb2.TIER_SOURCE)

    @property
    def live(self) -> LiveReader:
        """The reader of live segments, connected to this daemon."""
        return Connected(self)

    async def snapshot(self, query: EntryQuery) -> Snapshot:
        """Return the topic at this moment, with its live end."""
        found = Snapshot(self.map, holes_of(self.map))
        (ended,) = await with_live_ends([found], query, self, Stores(self.store, None))
        return ended

    async def planned(self, wish: SourceOptions, query: EntryQuery | None = None) -> list[Share]:
        """Return the shares of a query that is planned now."""
        query = query or wish.query
        async with segment_reader(self.store) as reader:
            found = [await self.snapshot(query)]
            if wish.holds_back:
                found = await with_held(found, reader, live=self.live)
            return await source_plan.shares(found, wish, query, reader)

    async def read_share(self, share: Share, wish: SourceOptions, query: EntryQuery | None = None) -> list[Any]:
        """Return the rows of a share, read now."""
        now = Snapshot(self.map, holes_of(self.map))
        return await read_share(self.store, share, wish, query, now=now, live=self.live)

    async def rows(self, wish: SourceOptions, query: EntryQuery | None = None) -> list[Any]:
        """Return the rows of a query."""
        return [row for share in await self.planned(wish, query) for row in await self.read_share(share, wish, query)]


class Connected(LiveReader):
    """A reader that is connected to a daemon of the test."""

    def __init__(self, topic: LiveTopic) -> None:
        super().__init__(Daemon((topic.address,), Trust()))
        self._client = topic
