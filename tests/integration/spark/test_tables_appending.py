"""Rows that Spark's tasks write themselves: the same as Spark SQL makes of any messages, and each of them once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
import threading
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from pyspark import TaskContext
from pyspark.sql import functions
from pyspark.sql.types import StructType

from offloaderd.core.errors import InvalidInput
from offloaderd.core.model import Position, TopicName
from offloaderd.format.pulsar import broker_entry
from offloaderd.spark.export.export import own_session, write
from offloaderd.spark.scan.columns import Columns
from offloaderd.spark.scan.read import record_batches
from offloaderd.spark.scan.segments import LateReader, segment_reader
from offloaderd.spark.scan.share import Condition, Hole, Missing
from offloaderd.spark.scan.share import Piece as SharePiece
from offloaderd.spark.session import spark_session
from offloaderd.spark.tables import appending, writer
from offloaderd.spark.tables.application import Application
from offloaderd.spark.tables.rows import TableRows
from offloaderd.spark.value_schema import Encoding, KeyValueSchema, Schema, ValueSchema
from offloaderd.tables.declaration import OnError, TableFormat
from offloaderd.tables.layout import Layout, Partition
from tests.integration.spark.site import CLOCK
from tests.integration.spark.tables import ORDER, TOPIC, declare, order, run
from tests.patience import PATIENCE_S
from tests.real.table_rows import rows_of
from tests.unit.format.test_pulsar_message import batch, entry
from tests.unit.read.build import Piece, put_segment
from tests.unit.spark.lake import CountingStore, options, snapshot
from tests.unit.spark.test_tables_appending import renamed
from tests.unit.spark.test_value_columns import Typed, nested
from tests.unit.spark.test_value_schema import inline, written

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from offloaderd.spark.export.commit import ExportTarget
    from offloaderd.spark.scan.options import SourceOptions
    from offloaderd.spark.scan.share import Share
    from offloaderd.spark.scan.snapshot import Snapshot
    from offloaderd.spark.tables.appending import Appending, Wrote
    from tests.integration.spark.site import Site

pytestmark = pytest.mark.usefixtures("pools")
TRIES = 3
"""Of a task, as on a cluster."""


@pytest.fixture(scope="module", autouse=True)
def spark() -> Iterator[SparkSession]:
    """A session whose tasks are tried again, in a time zone whose days are others."""
    given_options = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "America/New_York",
    }
    with spark_session("tests", master=f"local[2,{TRIES}]", options=given_options) as session:
        server = session.sparkContext._accumulatorServer
        yield own_session(session, ordered=True)
    server.server_close()  # which Spark leaves to the end of the process


class Sent(NamedTuple):
    """A schema, and the contents of messages that fit it, or are near to it."""

    schema: Schema | None
    contents: st.SearchStrategy[bytes]


def avro(one: Typed) -> ValueSchema:
    """Return a schema of values."""
    return ValueSchema(encoding=Encoding.AVRO, newest=one.avro, versions={})


@st.composite
def schemas(draw: st.DrawFn) -> Sent:
    """Draw a schema: none, of values, or of pairs."""
    kind = draw(st.sampled_from(["none", "values", "values", "pairs"]))
    one = nested(draw, 3)
    contents = one.values.map(lambda value: written(one.avro, value))
    if kind == "none":
        return Sent(None, st.binary(max_size=5))
    if kind == "values":
        return Sent(avro(one), contents)
    key = draw(st.sampled_from([Typed("long", st.integers(0, 9)), one]))
    keys = key.values.map(lambda value: written(key.avro, value))
    pairs = st.builds(inline, st.none() | keys, st.none() | contents)
    return Sent(KeyValueSchema(key=avro(key), value=avro(one), separated=False), pairs)


MOMENTS = [
    None,
    *(int(datetime(2026, *at, tzinfo=UTC).timestamp() * 1000) for at in ((1, 31, 23), (2, 1, 0), (2, 1, 1), (2, 3, 1))),
    2**63,
]
"""Times of a broker: none, around the end of a month and of a day, and one that Spark does not have."""
OF_MESSAGE = st.fixed_dictionaries(
    {},
    optional={
        "partition_key": st.text("ab", max_size=1),
        "event_time": st.integers(1, 10**12),
        "null_value": st.just(True),
        "properties": st.dictionaries(st.text("ab", max_size=1), st.text(max_size=3), max_size=2).map(
            lambda found: [{"key": key, "value": value} for key, value in found.items()]
        ),
    },
)


@st.composite
def entries(draw: st.DrawFn, sent: Sent) -> bytes:
    """Draw an entry: a message, a batch, or what is no row."""
    moment = draw(st.sampled_from(MOMENTS))
    head = b"" if moment is None else broker_entry.encode_head(broker_timestamp=moment, index=7)
    contents = sent.contents | st.binary(max_size=3)
    match draw(st.sampled_from(["message", "batch", "batch", "encrypted", "chunk", "raw"])):
        case "message":
            fields: dict[str, Any] = draw(OF_MESSAGE)
            return entry(draw(contents), head=head, **fields)
        case "batch":
            inside = draw(st.lists(st.tuples(contents, OF_MESSAGE), min_size=1, max_size=5))
            return entry(batch(*inside), head=head, num_messages_in_batch=len(inside))
        case "encrypted":
            return entry(draw(contents), head=head, encryption_keys=[{"key": "k"}])
        case "chunk":
            return entry(b"c", head=head, uuid="u", chunk_id=0, num_chunks_from_msg=2, total_chunk_msg_size=2)
    return b"\x00nothing that a producer sends"


class Target:
    """What a table has for columns."""

    def __init__(self, *, other_names: bool) -> None:
        self._other_names = other_names

    def named(self, columns: StructType) -> StructType:
        """See ExportTarget."""
        found = renamed(columns) if self._other_names else columns
        assert isinstance(found, StructType)
        return found


async def batches_of(share: Share, store: CountingStore, wish: SourceOptions, columns: StructType) -> list[Any]:
    """Return what a task reads of a share."""
    task = wish.task(columns)
    made = Columns(task.schema, values=task.values, skip=task.skip)

    async def current(_: TopicName) -> Snapshot:
        return snapshot([])

    async with segment_reader(store) as reader:
        late = LateReader(reader, current)
        return [one async for one in record_batches(late, share, wish.query, made, task)]


class Files(NamedTuple):
    """The files of each partition, and the columns of all, as Parquet has them."""

    tables: dict[str, list[pa.Table]]
    kinds: set[str]


def files_in(folder: Path) -> Files:
    """Return the files in a folder that have rows."""
    found = Files({}, set())
    for path in sorted(folder.rglob("*.parquet")):
        file = pq.ParquetFile(path)
        if not file.metadata.num_rows:
            continue
        found.tables.setdefault(str(path.parent.relative_to(folder)), []).append(file.read())
        _, _, columns = str(file.schema).partition("{")  # its first line is a name
        found.kinds.add(columns.replace("\n  required", "\n  optional"))  # as Spark has what it knows to be no null
    return found


def texts(tables: Sequence[pa.Table]) -> Counter[str]:
    """Return rows as texts, in which a NaN equals itself."""
    return Counter(repr(row) for one in tables for row in one.to_pylist())


@given(st.data())
@settings(max_examples=25, phases=set(Phase) - {Phase.shrink, Phase.explain})  # an example takes a second
def test_rows_are_those_of_spark(spark: SparkSession, data: st.DataObject) -> None:
    """Of any messages: the same rows, names, types, counts and partitions, and files in their order."""
    sent = data.draw(schemas())
    held = data.draw(st.lists(entries(sent), min_size=1, max_size=12))
    partition = data.draw(st.sampled_from([one for one in Partition if one is not Partition.BUCKET]))
    sort = data.draw(st.sampled_from([(), ("_key", "_event_time"), ("_time",), ("_deleted", "_entry_id")]))
    rows = TableRows(sent.schema, (), Layout(partition=partition, sort=sort))
    try:
        assert rows.fields
    except InvalidInput:  # a pair with two fields of one name
        return
    topic = TopicName(
        "public", "default", data.draw(st.sampled_from(["orders", "orders-partition-12", "x-partition-01"]))
    )
    store = CountingStore()
    skip = frozenset({Condition.LOSSES, Condition.RETENTION, Condition.MALFORMED})
    wish = options(messages=True, values=sent.schema, skip=skip)
    segment = asyncio.run(put_segment(store, [Piece(1, 0, held)], segment_id=uuid.UUID(int=1), topic=topic))
    hole = Hole(after=Position(0, 1), before=None, reason="gone", entries=3)
    share = Missing(topic, hole), SharePiece(topic, segment, segment.begin, segment.end, segment.object_bytes)
    target = Target(other_names=data.draw(st.booleans()))
    named = target.named(rows.columns)
    with tempfile.TemporaryDirectory() as place:
        ours, theirs = Path(place) / "ours", Path(place) / "theirs"
        ours.mkdir()
        work = rows.appending(wish, named, ours, "snappy")
        wrote = work.write(asyncio.run(batches_of(share, store, wish, work.task.schema)))
        source = asyncio.run(batches_of(share, store, wish, rows.read(wish.columns)))
        read = spark.createDataFrame(pa.Table.from_batches(source), rows.read(wish.columns)).coalesce(1)
        write(rows.of(read), cast("ExportTarget", target), theirs.as_uri(), rows.layout)
        mine, others = files_in(ours), files_in(theirs)
        (apart,) = read.select(functions.count_if(rows.apart())).collect()
    both = [{one: texts(tables) for one, tables in found.tables.items()} for found in (mine, others)]
    assert both[0] == both[1]
    assert mine.kinds == others.kinds
    assert (wrote.rows, wrote.apart) == (sum(found.total() for found in both[1].values()), apart[0])
    assert len(wrote.files or ()) == sum(map(len, mine.tables.values()))
    names = [named.names[rows.columns.names.index(name)] for name in sort]
    if names:
        for tables in mine.tables.values():
            for table in tables:
                assert table.equals(table.sort_by([(name, "ascending") for name in names]))


class Attempts:
    """The work of tasks whose first attempt writes its rows, or some of them, and ends without having said so."""

    def __init__(self, work: Appending, how: str) -> None:
        self._work, self._how = work, how
        self.folder = work.folder

    def __call__(self, shares: Iterable[Share]) -> Iterator[Wrote]:
        """Write the rows of shares."""
        context = TaskContext.get()
        assert context is not None
        first = context.attemptNumber() == 0
        for share in shares:
            if first and self._how == "killed":
                self._killed(share)
            wrote = self._work.write(self._work.batches(share))
            if first:
                raise RuntimeError("its rows are written")
            yield wrote

    def _killed(self, share: Share) -> None:
        """End the process in the middle of the rows."""

        def begun() -> Iterator[pa.RecordBatch]:
            for rows in self._work.batches(share):
                yield rows
                os.kill(os.getpid(), signal.SIGKILL)

        appending.HELD_BYTES = 0  # each batch is written at once
        self._work.write(begun())


@pytest.mark.parametrize("form", TableFormat)
@pytest.mark.parametrize("how", ["failed", "killed"])
def test_what_other_attempts_wrote_is_not_in_the_table(
    spark: SparkSession, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: TableFormat, how: str
) -> None:
    """Attempts that ended behind their last row, or in the middle: each message is once in the table, and in files."""
    held = [order(ORDER, {"id": number, "item": "x"}) for number in range(6)]
    asyncio.run(site.commit(TOPIC, [Piece(1, 0, held, 6)]))
    declare(site, to=str(tmp_path), format=form, schema=json.dumps(ORDER))
    before: list[int] = []

    def append(given_spark: SparkSession, work: Appending, shares: Sequence[Share]) -> Wrote:
        found = appending.append(given_spark, cast("Appending", Attempts(work, how)), shares)
        before.append(len([*work.folder.rglob("*.parquet")]))
        return found

    monkeypatch.setattr(writer, "append", append)
    sound, (state,) = run(spark, site)
    assert (sound, state.error, state.rows) == (True, "", 6)
    assert before == [2], "of both attempts"
    assert [row["id"] for row in rows_of(form, tmp_path, "orders")] == list(range(6))
    (file,) = tmp_path.rglob("data/*/*/*.parquet")
    if form is TableFormat.DELTA:
        (named,) = DeltaTable(str(tmp_path / "orders")).file_uris()
        assert named.endswith(str(file))


def test_a_task_that_fails_adds_nothing(spark: SparkSession, site: Site, tmp_path: Path) -> None:
    """Its error is told without frames, and no file is left of those that were begun."""
    held = [order(ORDER, {"id": number, "item": "x"}) for number in range(3)]
    asyncio.run(site.commit(TOPIC, [Piece(1, 0, [*held, entry(b"\x80")], 4)]))
    asyncio.run(site.commit(TOPIC, [Piece(2, 0, held, 3)]))
    declare(site, to=str(tmp_path), format=TableFormat.DELTA, schema=json.dumps(ORDER), on_error=OnError.FAIL)
    sound, (state,) = run(spark, site)
    assert (sound, state.rows) == (False, 0)
    begin = f"step 1 failed, and nothing of it was added: [OFFLOAD_MALFORMED] {TOPIC}, message 1:3: its value does not"
    assert state.error.startswith(begin)
    assert "Traceback" not in state.error
    assert [*(tmp_path / "orders" / "data").iterdir()] == []


def test_what_changes_between_rows_and_dead_letters(
    spark: SparkSession, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step adds nothing, and is taken again: a message that was no row may be none of the dead letters now."""
    asyncio.run(site.commit(TOPIC, [Piece(1, 0, [order(ORDER, {"id": 1, "item": "x"}), entry(b"\x80")], 2)]))
    declare(site, to=str(tmp_path), format=TableFormat.DELTA, schema=json.dumps(ORDER))

    def append(given_spark: SparkSession, work: Appending, shares: Sequence[Share]) -> Wrote:
        found = appending.append(given_spark, work, shares)
        return found._replace(apart=found.apart + 1)

    with monkeypatch.context() as patch:
        patch.setattr(writer, "append", append)
        sound, (state,) = run(spark, site)
    assert (sound, state.rows) == (False, 0)
    assert state.error.startswith("step 1 left 2 rows apart, and 1 when read for dead letters")
    assert [*(tmp_path / "orders" / "data").iterdir()] == [*(tmp_path / "orders_dead_letters" / "data").iterdir()] == []
    sound, (state,) = run(spark, site)
    assert (sound, state.rows, state.apart) == (True, 1, 1)
    assert [row["message"] for row in rows_of(TableFormat.DELTA, tmp_path, "orders_dead_letters")] == [b"\x80"]


def test_steps_that_run_are_ended(
    spark: SparkSession, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The application is stopped twice while a task writes: its job ends, and nothing of it stays."""
    asyncio.run(site.commit(TOPIC, [Piece(1, 0, [order(ORDER, {"id": 1, "item": "x"})], 1)]))
    declare(site, to=str(tmp_path / "lake"), format=TableFormat.DELTA, schema=json.dumps(ORDER))
    begun, said = tmp_path / "begun", []

    class Waiting:
        def __init__(self, work: Appending) -> None:
            self._work = work
            self.folder = work.folder

        def __call__(self, shares: Iterable[Share]) -> Iterator[Wrote]:
            for share in shares:
                yield self._work.write(self._work.batches(share))
            begun.touch()
            threading.Event().wait(PATIENCE_S)  # until Spark ends this process

    def append(given_spark: SparkSession, work: Appending, shares: Sequence[Share]) -> Wrote:
        return appending.append(given_spark, cast("Appending", Waiting(work)), shares)

    def stop() -> None:
        while not begun.exists():
            threading.Event().wait(0.05)
        application.stop()
        application.stop()

    monkeypatch.setattr(writer, "append", append)
    application = Application(
        spark, site.options(), clock=CLOCK, registry=CollectorRegistry(), tell=lambda _, state: said.append(state)
    )
    with ThreadPoolExecutor(1) as pool:
        stopped = pool.submit(stop)
        assert not application.run(once=True)
        stopped.result()
    assert "cancelled" in said[-1].error
    assert said[-1].error.startswith("step 1 failed, and nothing of it was added: ")
    assert [*(tmp_path / "lake" / "orders" / "data").iterdir()] == []
