"""A bucket and a map for tests of the data source, a counter of requests, and readers that need no Spark."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from offloaderd.core.names.patterns import of_topic
from offloaderd.daemon.settings import load
from offloaderd.format.pulsar import broker_entry
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.spark.scan import plan as source_plan
from offloaderd.spark.scan.columns import Columns
from offloaderd.spark.scan.options import SourceOptions
from offloaderd.spark.scan.read import record_batches
from offloaderd.spark.scan.segments import LateReader, segment_reader
from offloaderd.spark.scan.share import Piece
from offloaderd.spark.scan.snapshot import Snapshot, holes_of
from offloaderd.testing.builders import payload
from offloaderd.testing.memory.objects import MemoryStore
from tests.unit.read.build import TOPIC, FastClock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.core.model import Loss, TopicName
    from offloaderd.objects.port import SegmentStore
    from offloaderd.spark.scan.live import LiveReader
    from offloaderd.spark.scan.query import EntryQuery
    from offloaderd.spark.scan.share import Share

BASE_MS = 1_760_000_000_000
ENVIRONMENT = {"OFFLOADERD__OBJECTS__BUCKET": "bucket", "OFFLOADERD__OBJECTS__PREFIX": "p/"}


class CountingStore(MemoryStore):
    """Counts which bytes of which objects are asked for."""

    def __init__(self) -> None:
        super().__init__(FastClock())
        self.asked: list[tuple[str, int, int | None]] = []

    async def get(self, key: str, first: int = 0, length: int | None = None) -> bytes:
        """Count, and answer."""
        self.asked.append((key, first, length))
        return await super().get(key, first, length)

    async def get_pieces(self, key: str, first: int, lengths: Sequence[int]) -> Sequence[bytes]:
        """Count, and answer."""
        self.asked.append((key, first, sum(lengths)))
        return await super().get_pieces(key, first, lengths)

    def by_key(self) -> Counter[str]:
        """Return how often each object was asked for."""
        return Counter(key for key, _, _ in self.asked)


def timed(ledger_id: int, entry_id: int, time_ms: int, payload_bytes: int = 50) -> bytes:
    """Return an entry to which a broker has put its time and an index."""
    head = broker_entry.encode_head(broker_timestamp=time_ms, index=entry_id)
    return head + payload(ledger_id, entry_id, payload_bytes)


def options(**given: Any) -> SourceOptions:  # noqa: ANN401 - whatever the options are
    """Return the options of a query for the topic of the tests."""
    return SourceOptions(**{"settings": load(None, ENVIRONMENT), "topic": of_topic(TOPIC), **given})


def snapshot(segments: Sequence[CommittedSegment], losses: Sequence[Loss] = ()) -> Snapshot:
    """Return the snapshot of a topic with these segments."""
    topic_map = TopicMap(TOPIC, tuple(segments), losses=tuple(losses))
    return Snapshot(topic_map, holes_of(topic_map))


async def planned(
    store: SegmentStore, found: Snapshot, wish: SourceOptions, query: EntryQuery | None = None
) -> list[Share]:
    """Return the shares of a query."""
    async with segment_reader(store) as reader:
        return await source_plan.shares([found], wish, query or wish.query, reader)


async def read_share(
    store: SegmentStore,
    share: Share,
    wish: SourceOptions,
    query: EntryQuery | None = None,
    *,
    now: Snapshot | None = None,
    live: LiveReader | None = None,
) -> list[Any]:
    """Return the rows of a share as dictionaries, read in the loop of the test; `now` is what the map has by then.

    Without it the map has what the share was made of. `live` reads live segments.
    """
    rows: list[Any] = []
    task = wish.task(wish.columns)
    columns = Columns(task.schema, values=task.values, skip=task.skip)
    pieces = [one for one in share if isinstance(one, Piece)]
    held = (held for one in pieces for held in (*one.before, one.segment, *one.after))
    planned = {one.begin: one for one in held if isinstance(one, CommittedSegment)}

    async def current(_: TopicName) -> Snapshot:
        return now or snapshot([planned[begin] for begin in sorted(planned)])

    async with segment_reader(store) as reader:
        late = LateReader(reader, current, live)
        async for batch in record_batches(late, share, query or wish.query, columns, task):
            rows += batch.to_pylist()
    return rows


async def read_all(
    store: SegmentStore, found: Snapshot, wish: SourceOptions, query: EntryQuery | None = None
) -> list[Any]:
    """Return all rows of a query, share by share."""
    rows: list[Any] = []
    for share in await planned(store, found, wish, query):
        rows += await read_share(store, share, wish, query, now=found)
    return rows


def entries(rows: Sequence[Any]) -> list[tuple[int, int, bytes]]:
    """Return ledger, entry and payload of each row."""
    return [(row["ledger_id"], row["entry_id"], row["payload"]) for row in rows]
