"""Transactions of a real broker: what the daemon and the Spark source give is what Pulsar's Java consumer is given."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from offloaderd.client import Transactions
from offloaderd.core.clock import SystemClock
from offloaderd.core.names.patterns import TopicPattern
from offloaderd.protocol.v1 import read_pb2
from offloaderd.spark.source import SegmentSource
from tests.bookkeeper_servers import started
from tests.integration.processes import DaemonProcess, Site
from tests.patience import PATIENCE_S
from tests.real.pulsar import PulsarOptions, PulsarServer, pulsar_standalone
from tests.real.pulsar_messages import Place
from tests.real.pulsar_topics import TOPIC_SETTINGS
from tests.real.pulsar_transactions import TRANSACTION_SETTINGS, Received, transactional

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from offloaderd.client import DaemonClient
    from tests.real.pulsar_transactions import JavaProducer, TransactionalClient
    from tests.servers import S3Server

CLOCK = SystemClock()
ROUNDS = 6
PER_SEND = 6
LEDGER_ENTRIES = 15


@pytest.fixture(scope="module")
def pulsar_coordinated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarServer]:
    """A Pulsar with a transaction coordinator, whose topics roll over often."""
    settings = {**TOPIC_SETTINGS, **TRANSACTION_SETTINGS, "managedLedgerMaxEntriesPerLedger": LEDGER_ENTRIES}
    options = PulsarOptions(directory=tmp_path_factory.mktemp("pulsar"), settings=settings)
    yield from started(lambda: pulsar_standalone(options, CLOCK))


@pytest.fixture
def site(tmp_path: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str, pulsar_coordinated: PulsarServer) -> Site:
    """A daemon's surroundings: that Pulsar, and a ZooKeeper and a bucket of its own."""
    site = Site.at(tmp_path, zookeeper, s3_server, s3_bucket)
    site.settings["ledgers"] = {"kind": "bookkeeper"}
    site.settings["bookkeeper"] = {"servers": pulsar_coordinated.zookeeper}
    site.settings["pulsar"] = {"admin_url": pulsar_coordinated.admin_url}
    return site


class Left(NamedTuple):
    """Transactions that were left open."""

    to_commit: Any
    to_abort: Any


def first_half(producers: Sequence[JavaProducer], client: TransactionalClient) -> Left:
    """Commit, abort and let time out over several topics, in batches and without; leave two open."""
    for number in range(ROUNDS):
        kept, dropped = client.begin(), client.begin()
        for producer in producers:
            producer.send(contents(f"kept {number}"), kept)
            producer.send(contents(f"dropped {number}"), dropped)
            producer.send(contents(f"plain {number}"))
            producer.send(contents(f"kept again {number}"), kept)
        client.abort(dropped)
        client.commit(kept)
    slow = client.begin(timeout_s=2)
    client.commit(client.begin())  # one without a message
    for producer in producers:
        producer.send(contents("timed out"), slow)
    left = Left(client.begin(), client.begin())
    for producer in producers:
        producer.send(contents("later"), left.to_commit)
        producer.send(contents("aborted later"), left.to_abort)
        producer.send(contents("behind it"))
    return left


def second_half(producers: Sequence[JavaProducer], client: TransactionalClient, left: Left) -> None:
    """End what was open, and leave another one open, with messages behind it."""
    client.commit(left.to_commit)
    client.abort(left.to_abort)
    never_ends = client.begin()
    for producer in producers:
        producer.send(contents("between"))
    for producer in producers:
        producer.send(contents("open"), never_ends)
        producer.send(contents("hidden"))


def contents(what: str) -> list[bytes]:
    """Return some messages."""
    return [f"{what}: {number}".encode() for number in range(PER_SEND)]


async def given_by_the_daemon(client: DaemonClient, topic: str) -> tuple[list[Received], bool]:
    """Return what ReadMessages gives, and whether it says that more is held back."""
    received, held = [], False
    async for answer in client.read_messages(topic):
        held = answer.HasField("held_back")
        for one in answer.messages:
            assert one.state == read_pb2.MESSAGE_STATE_PLAIN
            received.append(Received(Place(one.position.ledger_id, one.position.entry_id, one.batch_index), one.data))
    return received, held


def given_by_the_source(site: Site, topic: str) -> list[Received]:
    """Return what a query of the Spark source gives, read as its tasks do."""
    source = SegmentSource(options_of(site, topic))
    reader = source.reader(source.schema())
    return [one for share in reader.partitions() for one in rows_of(reader.read(share))]


class Stream:
    """A stream of the Spark source, step by step."""

    def __init__(self, site: Site, topic: str) -> None:
        source = SegmentSource(options_of(site, topic))
        self._reader = source.streamReader(source.schema())
        self._offset = self._reader.initialOffset()

    def step(self) -> list[Received]:
        """Return what is new."""
        end = self._reader.latestOffset(self._offset, ReadAllAvailable())
        shares = self._reader.partitions(self._offset, end)
        self._offset = end
        return [one for share in shares for one in rows_of(self._reader.read(share))]

    def stop(self) -> None:
        """End it, with its session of ZooKeeper, as Spark does."""
        self._reader.stop()


def rows_of(batches: Iterator[Any]) -> Iterator[Received]:
    """Yield the messages in a task's rows."""
    for batch in batches:
        for row in batch.to_pylist():
            index = -1 if row["batch_index"] is None else row["batch_index"]
            yield Received(Place(row["ledger_id"], row["entry_id"], index), row["value"])


def options_of(site: Site, topic: str) -> dict[str, str]:
    """Return what a query is told."""
    return {
        "topic": topic,
        "messages": "true",
        "partition_bytes": "4KiB",
        "metadata.servers": site.zookeeper,
        "daemon.cluster": site.cluster,
        "objects.bucket": site.bucket,
        "objects.endpoint": site.endpoint,
        "objects.access_key": site.access_key,
        "objects.secret_key": site.secret_key,
    }


async def offload(client: DaemonClient, topics: Sequence[str]) -> None:
    """Have everything offloaded, as a segment of its own."""
    for topic in topics:
        async for _ in client.offload(topic, wait=True, timeout_s=PATIENCE_S):
            pass


async def test_what_consumers_are_given(site: Site, pulsar_coordinated: PulsarServer, tmp_path: Path) -> None:
    """Over topics, partitions, ledgers and segments: the same messages under the same ids, and none beyond the open."""
    name = f"t-{CLOCK.uuid().hex}"
    assert await pulsar_coordinated.put(f"persistent/public/default/{name}/partitions", 2) == 204
    topics = [f"{name}-partition-0", f"{name}-partition-1", f"other-{name}"]
    run = asyncio.to_thread
    async with AsyncExitStack() as stack:
        java = await stack.enter_async_context(transactional(pulsar_coordinated, tmp_path / "java", CLOCK))
        daemon = await stack.enter_async_context(DaemonProcess(site))
        client = await stack.enter_async_context(daemon.client())
        for topic in topics:
            await client.enable(TopicPattern.parse(topic))
        producers = [
            stack.enter_context(java.producer(topic, batch=batch)) for topic in topics for batch in (0, PER_SEND - 2)
        ]
        left = await run(first_half, producers, java)
        await offload(client, topics)
        first = {topic: await run(java.receive, topic, 2 * 3 * PER_SEND * ROUNDS) for topic in topics}
        streams = {topic: await run(Stream, site, topic) for topic in topics}
        for stream in streams.values():
            stack.push_async_callback(run, stream.stop)
        streamed = {}
        for topic in topics:
            assert await given_by_the_daemon(client, topic) == (first[topic], True)
            assert await run(given_by_the_source, site, topic) == first[topic]
            streamed[topic] = await run(streams[topic].step)
            assert streamed[topic] == first[topic]
        await run(second_half, producers, java, left)
        await offload(client, topics)
        for topic in topics:
            received = await run(java.receive, topic, len(first[topic]) + 2 * 3 * PER_SEND)
            assert await given_by_the_daemon(client, topic) == (received, True)
            assert await run(given_by_the_source, site, topic) == received
            assert streamed[topic] + await run(streams[topic].step) == received
            assert len({one.place.ledger_id for one in received}) > 2
            await check_all(client, topic, received)


async def check_all(client: DaemonClient, topic: str, received: Sequence[Received]) -> None:
    """Look at all messages of a topic: those that are not given out are aborted, open, behind that, or markers.

    Those of a batch in a transaction have no index: the broker has counted the whole batch as one.
    """
    words: Counter[tuple[str, int]] = Counter()
    indexes = []
    async for answer in client.read_messages(topic, transactions=Transactions.ALL):
        for one in answer.messages:
            assert one.HasField("index") == (not one.HasField("transaction") or one.batch_index < 0)
            indexes += [one.index] if one.HasField("index") else []
            if one.state == read_pb2.MESSAGE_STATE_MARKER:
                continue
            what = one.data.decode().partition(":")[0].rstrip(" 0123456789")
            words[what, one.transaction.state if one.HasField("transaction") else 0] += 1
    each = 2 * PER_SEND
    assert words == {
        ("kept", read_pb2.TRANSACTION_STATE_COMMITTED): ROUNDS * each,
        ("kept again", read_pb2.TRANSACTION_STATE_COMMITTED): ROUNDS * each,
        ("dropped", read_pb2.TRANSACTION_STATE_ABORTED): ROUNDS * each,
        ("plain", 0): ROUNDS * each,
        ("timed out", read_pb2.TRANSACTION_STATE_ABORTED): each,
        ("later", read_pb2.TRANSACTION_STATE_COMMITTED): each,
        ("aborted later", read_pb2.TRANSACTION_STATE_ABORTED): each,
        ("behind it", 0): each,
        ("between", 0): each,
        ("open", read_pb2.TRANSACTION_STATE_OPEN): each,
        ("hidden", 0): each,
    }
    assert len(received) == (3 * ROUNDS + 3) * each
    assert indexes == sorted(set(indexes)), "numbers of the broker's, each once"
