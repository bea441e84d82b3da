"""Rows of messages, filesystem stores read as a task reads them, and maps that are made from the bucket alone."""

from __future__ import annotations

import traceback
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.datasource import InputPartition

from offloaderd.core.errors import NotFound
from offloaderd.core.model import TopicName
from offloaderd.core.names.patterns import TopicPattern
from offloaderd.format.pulsar import broker_entry
from offloaderd.metadata import paths
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.objects.filesystem import FilesystemStore
from offloaderd.spark.scan import plan as source_plan
from offloaderd.spark.scan import snapshot as source_snapshot
from offloaderd.spark.scan.query import EntryQuery
from offloaderd.spark.scan.snapshot import Stores
from offloaderd.spark.source import SegmentSource
from offloaderd.testing.builders import payloads
from offloaderd.testing.memory.metadata import MemoryTree
from offloaderd.upkeep.stored import Site
from tests.unit.format.test_pulsar_message import batch, entry
from tests.unit.read.build import PREFIX, TOPIC, Piece, put_segment
from tests.unit.spark.lake import BASE_MS, CountingStore, entries, options, read_all, snapshot
from tests.virtual import LoopClock, virtually

if TYPE_CHECKING:
    from offloaderd.metadata.port import MetadataStore

ONE, TWO = uuid.UUID(int=1), uuid.UUID(int=2)
SITE = Site(cluster="test", bucket="bucket", prefix=PREFIX)


async def test_messages_of_entries() -> None:
    """A batch gives a row for each message; what is no message comes as it is stored, with the reason."""
    head = broker_entry.encode_head(broker_timestamp=BASE_MS, index=41)
    content = batch(
        (b"one", {"partition_key": "k", "properties": [{"key": "a", "value": "b"}], "event_time": 5}),
        (b"", {"null_value": True}),
    )
    held = [entry(content, head=head, num_messages_in_batch=2), entry(b"alone"), b"\x00nothing that a producer sends"]
    store = CountingStore()
    segment = await put_segment(store, [Piece(1, 0, held)], segment_id=ONE)
    rows = await read_all(store, snapshot([segment]), options(messages=True))
    assert [(row["entry_id"], row["batch_index"], row["value"], row["state"]) for row in rows] == [
        (0, 0, b"one", "plain"),
        (0, 1, None, "plain"),
        (1, None, b"alone", "plain"),
        (2, None, held[2], "raw"),
    ]
    assert [row["payload"] for row in rows] == [held[0], None, held[1], held[2]], "once for each entry"
    assert (rows[0]["key"], rows[0]["properties"], rows[0]["index"], rows[1]["index"]) == (b"k", [("a", "b")], 40, 41)
    assert rows[0]["broker_timestamp"] == rows[0]["time"] == datetime.fromtimestamp(BASE_MS / 1000, UTC)
    assert rows[2]["publish_time"] == rows[2]["time"] == datetime.fromtimestamp(1, UTC)
    assert rows[0]["event_time"] == datetime.fromtimestamp(0.005, UTC)
    assert (rows[2]["producer"], rows[2]["sequence_id"], rows[3]["producer"]) == ("p", 5, None)
    assert rows[3]["reason"]


async def test_heads_of_all_sorts() -> None:
    """Entries with and without what brokers put before them may be mixed; each tells for itself."""
    store = CountingStore()
    both = broker_entry.encode_head(broker_timestamp=BASE_MS, index=7) + b"x"
    only_index = broker_entry.encode_head(index=8) + entry(b"y")
    for number, held in enumerate(([both, entry(b"z"), only_index], [both, both], [only_index])):
        segment = await put_segment(store, [Piece(1, 0, held)], segment_id=uuid.UUID(int=number), block_entries=9)
        rows = await read_all(store, snapshot([segment]), options())
        by_payload = {both: (BASE_MS, BASE_MS, 7), entry(b"z"): (1000, None, None), only_index: (1000, None, 8)}
        assert [(ms(row["time"]), ms(row["broker_timestamp"]), row["index"]) for row in rows] == [
            by_payload[payload] for payload in held
        ]


def ms(time: datetime | None) -> int | None:
    """Return milliseconds since 1970."""
    return None if time is None else round(time.timestamp() * 1000)


async def test_times_beyond_all_calendars() -> None:
    """A clock that says nonsense gives no time; the entry is there all the same."""
    store = CountingStore()
    held = [broker_entry.encode_head(broker_timestamp=2**63, index=2**64 - 1) + b"x"]
    segment = await put_segment(store, [Piece(1, 0, held)], segment_id=ONE, surveyed=True)
    (row,) = await read_all(store, snapshot([segment]), options())
    assert (row["payload"], row["broker_timestamp"], row["index"]) == (held[0], None, None)


def test_read_as_a_task_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planned from the bucket alone and read by plain iteration, out of a filesystem store, with fewer columns."""
    held = payloads(500, ledger_id=4)

    async def prepare() -> None:
        async with FilesystemStore(tmp_path) as store:
            await put_segment(store, [Piece(4, 0, held)], segment_id=ONE, block_entries=50)

    virtually(prepare())
    for name in ("KIND", "DIRECTORY"):
        monkeypatch.delenv(f"OFFLOADERD__OBJECTS__{name}", raising=False)
    source = SegmentSource(
        {
            "path": "orders",
            "metadata": "bucket",
            "objects.kind": "filesystem",
            "objects.directory": str(tmp_path),
            "objects.prefix": PREFIX,
            "daemon.cluster": "test",
            "partition_bytes": "20000",
        }
    )
    schema = source.schema()
    reader = source.reader(type(schema)([schema["payload"], schema["entry_id"]]))
    shares = reader.partitions()
    assert len(shares) >= 3
    rows = [row for share in shares for found in reader.read(share) for row in found.to_pylist()]  # type: ignore[union-attr]
    assert [(row["entry_id"], row["payload"]) for row in rows] == list(enumerate(held))
    assert rows[0].keys() == {"payload", "entry_id"}
    assert list(reader.read(InputPartition(None))) == []
    beginning = reader.read(shares[0])
    next(beginning)
    beginning.close()  # type: ignore[union-attr] # a query with a limit stops in the middle


def test_a_query_for_no_topic_says_so_in_few_lines(tmp_path: Path) -> None:
    """Spark shows frames and causes before the message: there is one frame of ours, and no cause."""
    given = {"path": "orders", "metadata": "bucket", "objects.kind": "filesystem", "objects.directory": str(tmp_path)}
    source = SegmentSource({**given, "daemon.cluster": "test"})
    with pytest.raises(NotFound, match="no segment of") as caught:
        source.reader(source.schema()).partitions()
    frames = [Path(one.filename).name for one in traceback.extract_tb(caught.tb)]
    assert frames == [Path(__file__).name, "errors.py"]
    assert caught.value.__suppress_context__


async def test_maps_from_the_bucket() -> None:
    """Without any ZooKeeper the same segments are found; what the manifests say is missing ends it, or is told."""
    store = CountingStore()
    held = payloads(30, ledger_id=1)
    for number, segment_id in ((0, ONE), (20, TWO)):
        await put_segment(store, [Piece(1, number, held[number : number + 10])], segment_id=segment_id)
    pattern = TopicPattern.parse("orders")
    with pytest.raises(NotFound, match="does not hold all of"):
        await source_snapshot.from_buckets(store, [SITE], pattern)
    (lenient,) = await source_snapshot.from_buckets(store, [SITE], pattern, lenient=True)
    assert [one.reason for one in lenient.holes]
    await put_segment(store, [Piece(1, 10, held[10:20])], segment_id=uuid.UUID(int=3))
    (found,) = await source_snapshot.from_buckets(store, [SITE], pattern)
    assert entries(await read_all(store, found, options())) == [(1, entry, data) for entry, data in enumerate(held)]
    with pytest.raises(NotFound, match="no segment of"):
        await source_snapshot.from_buckets(store, [SITE], TopicPattern.parse("returns"))


async def test_topics_of_a_pattern() -> None:
    """A pattern takes in partitions and namespaces, as the metadata knows them; no match is an error."""
    names = ["public/default/orders-partition-0", "public/default/orders-partition-1", "public/other/orders", "a/b/c"]
    async with MemoryTree().connect() as metadata:
        for name in names:
            for folder in paths.folders(TopicName.parse(name)):
                await metadata.create(folder, b"")

        async def of(text: str) -> list[str]:
            found = await source_snapshot.from_metadata(metadata, TopicPattern.parse(text))
            return [str(one.topic).removeprefix("persistent://") for one in found]

        assert await of("orders") == names[:2]
        assert await of("public/*") == names[:3]
        assert await of("re:.*/c") == ["a/b/c"]
        with pytest.raises(NotFound, match="no topic matches"):
            await of("public/default/nothing")


async def test_an_excluded_topic_has_no_rows() -> None:
    """`without` excludes a topic from a query, as from a stream."""
    store = CountingStore()
    async with MemoryTree().connect() as metadata:
        for folder in paths.folders(TOPIC):
            await metadata.create(folder, b"")
        segment = await put_segment(store, [Piece(1, 0, payloads(10, ledger_id=1))], segment_id=LoopClock().uuid())
        steps, _ = (await catalog.load(metadata, TOPIC)).with_commit(segment)
        await metadata.transact(steps)
        stores = Stores(store, metadata)
        (share,) = await source_plan.plan(options(), EntryQuery(), stores)
        assert [one.topic for one in share] == [TOPIC]
        excluding = options(without=(TopicPattern.parse("orders"),))
        assert await source_plan.plan(excluding, EntryQuery(), stores) == []


async def test_topics_that_go_or_have_nothing_yet() -> None:
    """One of which nothing is offloaded has no rows; one that is deleted while the plan is made is told."""
    tree = MemoryTree()
    async with tree.connect() as metadata:
        folders = paths.folders(TOPIC)
        for folder in folders:
            await metadata.create(folder, b"")
        (empty,) = await source_snapshot.from_metadata(metadata, TopicPattern.parse("orders"))
        assert await read_all(CountingStore(), empty, options()) == []
        known_topics = source_snapshot.known_topics

        async def then_deleted(store: MetadataStore, pattern: TopicPattern) -> list[TopicName]:
            found = await known_topics(store, pattern)
            for folder in reversed(folders):
                await store.delete(folder)
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(source_snapshot, "known_topics", then_deleted)
            with pytest.raises(NotFound, match="orders: deleted while the query was planned"):
                await source_snapshot.from_metadata(metadata, TopicPattern.parse("orders"))
        with pytest.raises(NotFound, match="no topic matches"):
            await source_snapshot.from_metadata(metadata, TopicPattern.parse("orders"))


async def test_snapshot_is_one_moment() -> None:
    """What is committed after the snapshot is not part of a query."""
    clock = LoopClock()
    store = CountingStore()
    async with MemoryTree().connect() as metadata:
        for folder in paths.folders(TOPIC):
            await metadata.create(folder, b"")
        held = payloads(20, ledger_id=1)
        snapshots = []
        for first in (0, 10):
            segment = await put_segment(store, [Piece(1, first, held[first : first + 10])], segment_id=clock.uuid())
            steps, _ = (await catalog.load(metadata, TOPIC)).with_commit(segment)
            snapshots += await source_snapshot.from_metadata(metadata, TopicPattern.parse("orders"))
            await metadata.transact(steps)
        rows = await read_all(store, snapshots[1], options())
        assert [row["entry_id"] for row in rows] == list(range(10))
