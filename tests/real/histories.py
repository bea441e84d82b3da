"""Topics of ten sorts for `restore_run`: what producers write, what readers get, what subscriptions have acknowledged.

A history is compared without being kept: SHA-256 over all that a reader is given of each message, and another one over
the message ids, in order. Both are noted at each of the last messages, since the bucket may end at any of them.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

import pulsar
from pulsar.schema import AvroSchema

from tests.real.driven import RECEIVE_MS
from tests.real.mounting import in_transactions
from tests.real.pulsar_topics import KINDS, produce, pulsar_client
from tests.real.pulsar_transactions import NOTHING_MS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.real.pulsar_transactions import TransactionalClient

BATCH = 20
LEAST = 120
"""Messages of a topic, however few are to be written in all."""
PARTITIONS = 3
SUBSCRIPTION = "billing & more"
CHUNKED_AT_ONCE = 100
"""Chunked messages that one producer sends: their chunks fit into its queue, for a full one never empties again."""
TAIL = 40
"""Newest messages of a topic, at each of which its history is noted."""
VERSIONS = ("a", "ab", "abc")
"""The fields of each version of the schema."""
SINGLE_MAX = 300
"""Messages among whose first ones a subscription acknowledges each third alone."""

Place = tuple[int, int, int]
"""Ledger, entry and index in the batch of a message."""


class Sort(NamedTuple):
    """A topic: its name, thousandths of all messages, the kind of its producer (of `KINDS`), and what else it is."""

    name: str
    share: int
    kind: str
    partitions: int = 0
    subscribed: bool = True


SORTS = (
    Sort("unbatched", 50, "unbatched", subscribed=False),
    Sort("batched", 200, "batched"),
    Sort("compressed", 200, "batched zstd"),
    Sort("lz4", 147, "batched lz4"),
    Sort("keyed", 100, "batched by key"),
    Sort("chunked", 1, "chunked"),
    Sort("partitioned", 200, "batched", partitions=PARTITIONS),
    Sort("versions", 50, "schema"),
    Sort("transactions", 10, "transaction"),
    Sort("holes", 42, "batched"),
)
"""`versions` has a schema in three versions, `transactions` has aborted and committed ones, and the subscription of
`holes` has acknowledged single messages alone."""


def count_of(sort: Sort, messages: int) -> int:
    """Return how many messages a topic gets of all."""
    return max(LEAST, messages * sort.share // 1000)


def avro(*fields: str) -> str:
    """Return the schema of a record with these optional fields."""
    found = [{"name": name, "type": ["null", "string"], "default": None} for name in fields]
    return json.dumps({"type": "record", "name": "R", "fields": found})


def write(url: str, topic: str, kind: str, numbers: range, versions: Sequence[str] = VERSIONS) -> None:
    """Send messages of a kind; with `schema` a part of them in each version, by its fields. Raises AssertionError."""
    with pulsar_client(url) as client:
        if kind == "schema":
            bounds = [numbers.start + len(numbers) * part // len(versions) for part in range(len(versions) + 1)]
            for version, first, end in zip(versions, bounds, bounds[1:], strict=False):
                _write_records(client, topic, version, range(first, end))
            return
        given = KINDS[kind]
        settings = {**given.settings, "batching_max_messages": BATCH} if "batch" in kind else given.settings
        step = CHUNKED_AT_ONCE if kind == "chunked" else len(numbers)
        for first in range(0, len(numbers), step):
            produce(client, topic, replace(given, settings=settings), numbers[first : first + step])


def _write_records(client: pulsar.Client, topic: str, fields: str, numbers: range) -> None:
    producer = client.create_producer(
        topic,
        schema=AvroSchema(None, json.loads(avro(*fields))),
        block_if_queue_full=True,
        batching_enabled=True,
        batching_max_messages=BATCH,
    )
    results: list[pulsar.Result] = []
    for number in numbers:
        record = {name: f"{name}-{number}" for name in fields}
        producer.send_async(record, lambda result, _place: results.append(result))
    producer.flush()
    producer.close()
    assert results == [pulsar.Result.Ok] * len(numbers)


def write_in_transactions(client: TransactionalClient, topic: str, numbers: range) -> None:
    """Send messages that are committed, and half as many that are aborted."""
    in_transactions(client, topic, [b"kept %d" % number for number in numbers], [b"gone"] * (len(numbers) // 2))


class Note(NamedTuple):
    """A history up to a message: how many there are, digests of what is in them and of their ids, and the last id."""

    messages: int
    contents: str
    places: str
    last: Place


@dataclass
class History:
    """What somebody gets of a topic, message by message."""

    wanted: frozenset[int] = frozenset()
    """Counts of messages at which it is noted, whatever they are."""
    noting: bool = False
    """Whether it is noted at each of the newest messages."""
    notes: dict[int, Note] = field(default_factory=dict)
    newest: deque[Note] = field(default_factory=lambda: deque(maxlen=TAIL))
    first: Place | None = None
    _messages: int = 0
    _last: Place = (-1, -1, -1)

    def __post_init__(self) -> None:
        """Begin with nothing."""
        self._contents, self._places = sha256(), sha256()

    def add(self, message: pulsar.Message) -> None:
        """Add the next one. Raises AssertionError if it is not behind the one before."""
        place = place_of(message)
        assert place > self._last, f"{place} came behind {self._last}"
        self._last = place
        self.first = self.first or place
        told = (
            message.partition_key(),
            sorted(message.properties().items()),
            message.schema_version(),
            message.publish_timestamp(),
            message.producer_name(),
        )
        data = message.data()
        self._messages += 1
        self._contents.update(b"%d|%r|%s" % (len(data), told, data))
        self._places.update(b"%d:%d:%d|" % place)
        if self._messages in self.wanted:
            self.notes[self._messages] = self.note()
        if self.noting:
            self.newest.append(self.note())

    def note(self) -> Note:
        """Return it as it is now."""
        return Note(self._messages, self._contents.hexdigest(), self._places.hexdigest(), self._last)

    def up_to(self, end: tuple[int, int]) -> Note:
        """Return it up to an entry. Raises StopIteration where that is before the newest messages."""
        return next(note for note in reversed(self.newest) if note.last[:2] <= end)


def place_of(message: pulsar.Message) -> Place:
    """Return where a message is."""
    at = message.message_id()
    return at.ledger_id(), at.entry_id(), at.batch_index()


def read(url: str, topic: str, history: History, count: int | None = None) -> None:
    """Read a topic from the earliest message on: so many, or all that there are."""
    with pulsar_client(url) as client:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        number = 0
        while reader.has_message_available() if count is None else number < count:
            history.add(reader.read_next(RECEIVE_MS))
            number += 1


def stand(url: str, topic: str, history: History, last: Place) -> None:
    """Receive what the subscription is given up to the last message, and acknowledge nothing."""
    with pulsar_client(url) as client:
        consumer = client.subscribe(topic, SUBSCRIPTION)
        while history.note().last < last:
            history.add(consumer.receive(RECEIVE_MS))


def receive(url: str, topic: str, count: int) -> dict[str, Note]:
    """Return what the subscription is given and does not acknowledge: so many messages and no more; by partition."""
    found: defaultdict[str, History] = defaultdict(History)
    with pulsar_client(url) as client:
        consumer = client.subscribe(topic, SUBSCRIPTION)
        for _ in range(count):
            message = consumer.receive(RECEIVE_MS)
            found[message.topic_name()].add(message)
        try:
            more = consumer.receive(NOTHING_MS)
        except pulsar.Timeout:
            return {name: history.note() for name, history in found.items()}
    raise AssertionError(f"the subscription of {topic} is given more than {count}: {place_of(more)}")


def acknowledge(url: str, topic: str, count: int, *, single: bool) -> None:
    """Have the subscription acknowledge all of its next messages but three of the last five.

    `single`: each third of the first ones instead, one by one, and all of some whole batches behind these.
    """
    with pulsar_client(url) as client:
        earliest = pulsar.InitialPosition.Earliest
        consumer = client.subscribe(topic, SUBSCRIPTION, initial_position=earliest, batch_index_ack_enabled=True)
        thirds = min(SINGLE_MAX, count // 2)
        for number in range(count):
            message = consumer.receive(RECEIVE_MS)
            alone = not number % 3 if number < thirds else number < thirds + 3 * BATCH
            if not single and number == count - 5:
                consumer.acknowledge_cumulative(message)
            elif alone if single else number in {count - 3, count - 1}:
                consumer.acknowledge(message)
        consumer.close()
