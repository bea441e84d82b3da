"""Values by a schema, and messages in chunks, as rows of the data source."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from offloaderd.format.pulsar.compression import Compression
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.spark.scan import messages as source_messages
from offloaderd.spark.scan import plan as source_plan
from offloaderd.spark.scan.columns import BrokenValue
from offloaderd.spark.scan.options import Mode
from offloaderd.spark.scan.query import EntryQuery
from offloaderd.spark.scan.share import BrokenSegment
from offloaderd.spark.scan.snapshot import Snapshot
from offloaderd.spark.value_schema import read_schema
from tests.unit.broker_objects import BrokerLedger
from tests.unit.format.test_pulsar_message import COMPRESSED, batch, entry
from tests.unit.read.build import PREFIX, TOPIC, Piece, put_segment
from tests.unit.spark.lake import CountingStore, options, read_all, snapshot
from tests.unit.spark.test_source_offsets import HISTORY
from tests.unit.spark.test_value_schema import record, written

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.metadata.committed import CommittedSegment
    from offloaderd.metadata.records.history import HistoryPlan
    from offloaderd.spark.scan.options import SourceOptions

ONE, TWO = uuid.UUID(int=1), uuid.UUID(int=2)
ORDER = record(("id", "int"))


async def test_values_are_decoded() -> None:
    """Plain values are structs; tombstones, and what nobody can look into, are null and say so by their state."""
    store = CountingStore()
    held = [
        entry(batch((written(ORDER, {"id": 1}), {}), (b"", {"null_value": True})), num_messages_in_batch=2),
        entry(COMPRESSED[Compression.ZSTD](written(ORDER, {"id": 2})), compression=3, uncompressed_size=1),
        entry(b"secret", encryption_keys=[{"key": "k"}]),
        b"no message",
    ]
    segment = await put_segment(store, [Piece(1, 0, held)], segment_id=ONE)
    rows = await read_all(
        store, snapshot([segment]), options(messages=True, values=read_schema(json.dumps(ORDER)), mode=Mode.FAIL)
    )
    assert [(row["entry_id"], row["value"], row["state"]) for row in rows] == [
        (0, {"id": 1}, "plain"),
        (0, None, "plain"),
        (1, {"id": 2}, "plain"),
        (2, None, "encrypted"),
        (3, None, "raw"),
    ]
    assert [row["undecoded"] for row in rows] == [None, None, None, b"secret", b"no message"]


async def test_values_that_do_not_fit() -> None:
    """The first ends the query, named by its position; with mode=skip each is null, with its state and the reason."""
    store = CountingStore()
    good, bad = written(ORDER, {"id": 1}), b"\x80"
    held = [entry(good), entry(batch((good, {}), (bad, {})), num_messages_in_batch=2), entry(bad)]
    segment = await put_segment(store, [Piece(1, 0, held)], segment_id=ONE)
    wish: dict[str, Any] = {"messages": True, "values": read_schema(json.dumps(ORDER))}
    with pytest.raises(BrokenValue, match="orders, message 1:1:1: its value does not fit the schema: 1 bytes are no"):
        await read_all(store, snapshot([segment]), options(**wish))
    rows = await read_all(store, snapshot([segment]), options(**wish, mode=Mode.SKIP))
    assert [(row["value"], row["state"], bool(row["reason"])) for row in rows] == [
        ({"id": 1}, "plain", False),
        ({"id": 1}, "plain", False),
        (None, "malformed", True),
        (None, "malformed", True),
    ]
    assert [row["payload"] for row in rows] == [held[0], held[1], None, held[2]], "nothing is lost"
    assert [row["undecoded"] for row in rows] == [None, None, bad, bad]


def cut(name: str, data: bytes, count: int, method: Compression = Compression.NONE, **fields: Any) -> list[bytes]:  # noqa: ANN401 - what protobuf takes
    """Return the entries of a message that was compressed and then cut."""
    content = COMPRESSED[method](data)
    size = -(-len(content) // count)
    return [
        entry(
            content[number * size : (number + 1) * size],
            uuid=name,
            chunk_id=number,
            num_chunks_from_msg=count,
            total_chunk_msg_size=len(content),
            compression=method,
            uncompressed_size=len(data),
            **fields,
        )
        for number in range(count)
    ]


def seen(rows: Sequence[Any]) -> list[tuple[int, int, str, int | None, int | None]]:
    """Return position, state and the chunk's place of each row."""
    return [(row["ledger_id"], row["entry_id"], row["state"], row["chunk_id"], row["num_chunks"]) for row in rows]


async def cut_topic(store: CountingStore) -> tuple[Snapshot, bytes]:
    """Store two messages in chunks that come mixed, over two segments and two ledgers; returns the first message."""
    whole = bytes(range(256)) * 20
    a, b = cut("a", whole, 4, Compression.ZSTD), cut("b", b"xyz" * 500, 2)
    filler = [entry(b"#" * 300) for _ in range(6)]
    one = [*filler[:3], a[0], b[0], *filler[3:], a[1]]
    two = [a[2], b[1], *filler, a[3], entry(b"end")]
    segments = [
        await put_segment(store, [Piece(1, 0, one, len(one))], segment_id=ONE, block_entries=2),
        await put_segment(store, [Piece(2, 0, two)], segment_id=TWO, block_entries=2),
    ]
    return snapshot(segments), whole


@pytest.mark.parametrize("partition_bytes", [300, 2000, 10**9])
async def test_chunks_are_joined_over_shares_and_segments(partition_bytes: int) -> None:
    """However the topic is shared out, the row of the last chunk has the message, and each entry has its row."""
    store = CountingStore()
    found, whole = await cut_topic(store)
    rows = await read_all(store, found, options(messages=True, partition_bytes=partition_bytes))
    assert [at for at in seen(rows) if at[3] is not None] == [
        (1, 3, "chunk", 0, 4),
        (1, 4, "chunk", 0, 2),
        (1, 8, "chunk", 1, 4),
        (2, 0, "chunk", 2, 4),
        (2, 1, "plain", 1, 2),
        (2, 8, "plain", 3, 4),
    ]
    values = {(row["ledger_id"], row["entry_id"]): row["value"] for row in rows}
    assert (values[2, 8], values[2, 1]) == (whole, b"xyz" * 500)
    assert len(rows) == sum(row["payload"] is not None for row in rows) == 19, "every entry once"
    assert {row["chunk_uuid"] for row in rows} == {"a", "b", None}


async def test_a_message_is_whole_whatever_a_query_is_about() -> None:
    """Blocks that a filter leaves out, and positions before the range, are looked into for its chunks alone."""
    store = CountingStore()
    found, whole = await cut_topic(store)
    last = found.map.segments[-1].end
    narrow = EntryQuery(first=last._replace(entry_id=last.entry_id - 1), last=last)
    rows = await read_all(store, found, options(messages=True, query=narrow))
    assert [(row["entry_id"], row["value"]) for row in rows] == [(8, whole), (9, b"end")]


async def test_chunks_that_cannot_be_joined_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing, sent again, encrypted, and too large: the last is incomplete if no other has the message."""
    store = CountingStore()
    twice, partial = cut("twice", b"0123456789", 3), cut("partial", b"0123456789", 3)
    secret = cut("secret", b"0123456789", 2, encryption_keys=[{"key": "k"}])
    vast = cut("vast", b"0123456789", 2)
    held = [twice[0], twice[1], twice[1], twice[2], *partial[1:], *secret, *vast, twice[2]]
    segment = await put_segment(store, [Piece(1, 0, held)], segment_id=ONE)
    rows = await read_all(store, snapshot([segment]), options(messages=True))
    states = [row["state"] for row in rows]
    assert states == ["chunk"] * 3 + ["plain", "chunk", "incomplete"] + ["encrypted"] * 2 + ["chunk", "plain", "chunk"]
    assert rows[3]["value"] == b"0123456789"
    assert rows[5]["reason"] == "chunk 3 of 3: those before it are missing"
    assert rows[10]["reason"] == "chunk 3 of 3: the message was complete before it"
    assert [row["num_chunks"] for row in rows] == [3] * 6 + [2] * 4 + [3]
    monkeypatch.setattr(source_messages, "CONTENT_BYTES_MAX", 9)
    rows = await read_all(store, snapshot([segment]), options(messages=True))
    assert (rows[9]["state"], rows[9]["reason"]) == ("incomplete", "chunk 2 of 2: the whole would be 10 bytes")


async def test_a_message_that_began_in_history_to_come() -> None:
    """A step fails before it, whichever segments of the history are there, until the first chunk is, or all history."""
    store = CountingStore()
    parts = cut("a", b"0123456789", 2)
    contents = ([entry(b"x")], parts[:1], [entry(b"y")], [entry(b"z"), parts[1]])
    one, two, three, four = [
        await put_segment(store, [Piece(number, 0, held, len(held))], segment_id=uuid.UUID(int=number))
        for number, held in enumerate(contents, 1)
    ]
    wish = options(messages=True, step=({}, {}))
    plan = replace(HISTORY, boundary=3)

    async def last(*segments: CommittedSegment, history: HistoryPlan, found: SourceOptions = wish) -> list[Any]:
        topic_map = TopicMap(TOPIC, segments, history=history)
        query = EntryQuery(first=three.begin, last=four.end)
        return await read_all(store, Snapshot(topic_map, beside=True), found, query)

    for there in ((three, four), (one, three, four)):
        with pytest.raises(BrokenSegment, match=r"UNFINISHED.* that ends at 4:1 may have begun in history before 3:0"):
            await last(*there, history=plan)
        rows = await last(*there, history=plan, found=options(messages=True))
        assert rows[-1]["state"] == "incomplete", "a query of that range is asked again by who wants to know"
        assert (await last(*there, history=replace(plan, done_ms=1)))[-1]["state"] == "incomplete"
    rows = await last(one, two, three, four, history=replace(plan, done_ms=1))
    assert rows[-1]["value"] == b"0123456789"


async def test_looking_back_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only so many bytes and segments are looked through for what comes before a chunk."""
    store = CountingStore()
    parts = cut("far", b"0123456789", 2)
    filler = [entry(b"#" * 300) for _ in range(20)]
    segments = [
        await put_segment(store, [Piece(number, 0, held, len(held))], segment_id=uuid.UUID(int=number), block_entries=2)
        for number, held in ((1, [parts[0], *filler]), (2, filler), (3, [*filler, parts[1]]))
    ]
    whole = await read_all(store, snapshot(segments), options(messages=True, partition_bytes=3000))
    assert whole[-1]["value"] == b"0123456789"
    store.asked.clear()
    monkeypatch.setattr(source_messages, "LOOK_BACK_BYTES", 3000)
    monkeypatch.setattr(source_plan, "LOOK_BACK_SEGMENTS", 1)
    rows = await read_all(store, snapshot(segments), options(messages=True, partition_bytes=3000))
    assert (rows[-1]["state"], rows[-1]["reason"]) == ("incomplete", "chunk 2 of 2: those before it are missing")


async def test_damage_before_a_chunk() -> None:
    """It ends the query by the segment's name; with mode=skip the chunk is given out with the reason."""
    store = CountingStore()
    found, _ = await cut_topic(store)
    first = found.map.segments[0]
    await store.delete([f"{PREFIX}{ONE}"])
    query = EntryQuery(first=found.map.segments[1].begin)
    with pytest.raises(BrokenSegment, match=f"segment {first.segment_id} of .*, entries before 2:0, cannot be read"):
        await read_all(store, found, options(messages=True, query=query))
    rows = await read_all(store, found, options(messages=True, query=query, mode=Mode.SKIP))
    assert seen(rows)[1] == (2, 1, "incomplete", 1, 2)
    assert "those before it cannot be read" in rows[1]["reason"]


async def test_chunks_in_a_ledger_of_a_broker() -> None:
    """Whole ledgers that a broker or the daemon offloaded are looked through as well."""
    store = CountingStore()
    parts = cut("a", b"0123456789" * 30, 3)
    held = [entry(b"#" * 300), parts[0], entry(b"#" * 700), parts[1], entry(b"#" * 800), parts[2]]
    ledger = BrokerLedger(topic=TOPIC, ledger_id=3, object_id=ONE, payloads=held, block_bytes_max=1000)
    await ledger.put(store)
    rows = await read_all(store, snapshot([ledger.adopted]), options(messages=True, partition_bytes=900))
    assert rows[-1]["value"] == b"0123456789" * 30
