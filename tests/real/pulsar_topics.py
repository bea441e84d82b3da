"""Topics of a real broker: every way in which producers write, and what a consumer receives as the reference.

    with pulsar_client(server) as client:
        produce(client, topic, KINDS["batched"], range(1000))
        received = consume(client, topic, 1000)            # by message id

Calls block: run them in threads beside an event loop. What a message holds follows from its kind and number, so that
none can be mistaken for another.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pulsar

from tests.real.message_keys import KEY_NAME
from tests.real.pulsar_messages import Content, Place

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tests.real.message_keys import MessageKeys

MESSAGE_BYTES_MAX: Final = 64 * 1024
"""What the broker of `TOPIC_SETTINGS` takes as one entry; larger messages come in chunks."""
RECEIVE_MS = 20_000
OPERATION_S = 90
"""Longer than a broker takes to come back, and a topic to be loaded by another one."""

TOPIC_SETTINGS: Mapping[str, object] = {
    "maxMessageSize": MESSAGE_BYTES_MAX,
    "managedLedgerMaxEntriesPerLedger": 40,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    "defaultRetentionTimeInMinutes": -1,
    "defaultRetentionSizeInMB": -1,
}
"""For a broker whose topics have many ledgers, all of them kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One way of producing: settings of the producer, and what its messages are like."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    size_bytes: int = 200
    keyed: bool = False
    encrypted: bool = False

    def content(self, number: int) -> Content:
        """Return message `number`: its data (of another size each), its key and its properties.

        Some are empty, but none that is compressed: the client cannot read an empty one of ZLIB that it wrote itself.
        """
        head = b"%s:%d|" % (self.name.encode(), number)
        size = self.size_bytes + number % 61
        empty = number % 17 == 0 and "compression_type" not in self.settings
        data = b"" if empty else (head * (size // len(head) + 1))[:size]
        key = f"key-{number % 7}" if self.keyed else ""
        return Content(data, key, (("kind", self.name), ("number", str(number))))


_BATCHES: Mapping[str, Any] = {
    "batching_enabled": True,
    "batching_max_messages": 7,
    "batching_max_publish_delay_ms": 20,
}
_CHUNKS: Mapping[str, Any] = {"chunking_enabled": True}
_CODECS = {
    "lz4": pulsar.CompressionType.LZ4,
    "zlib": pulsar.CompressionType.ZLib,
    "zstd": pulsar.CompressionType.ZSTD,
    "snappy": pulsar.CompressionType.SNAPPY,
}


def _kinds() -> Iterator[Kind]:
    yield Kind(name="unbatched")
    yield Kind(name="batched", settings=_BATCHES)
    yield Kind(name="keyed", keyed=True)
    key_based = {**_BATCHES, "batching_type": pulsar.BatchingType.KeyBased}
    yield Kind(name="batched by key", settings=key_based, keyed=True)
    yield Kind(name="chunked", settings=_CHUNKS, size_bytes=3 * MESSAGE_BYTES_MAX)
    for name, codec in _CODECS.items():
        yield Kind(name=name, settings={"compression_type": codec})
        yield Kind(name=f"batched {name}", settings={**_BATCHES, "compression_type": codec})
    yield Kind(name="encrypted", encrypted=True)
    sealed = {**_BATCHES, "compression_type": pulsar.CompressionType.ZSTD}
    yield Kind(name="batched zstd encrypted", settings=sealed, keyed=True, encrypted=True)
    yield Kind(name="chunked encrypted", settings=_CHUNKS, size_bytes=2 * MESSAGE_BYTES_MAX, encrypted=True)


KINDS: Final = {kind.name: kind for kind in _kinds()}


@contextmanager
def pulsar_client(service_url: str) -> Iterator[pulsar.Client]:
    """Give a client that says only what goes wrong, and close it."""
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(service_url, logger=logger, operation_timeout_seconds=OPERATION_S)
    try:
        yield client
    finally:
        client.close()


def produce(
    client: pulsar.Client, topic: str, kind: Kind, numbers: Iterable[int], keys: MessageKeys | None = None
) -> None:
    """Send messages as one producer of this kind; returns once all are acknowledged."""
    secrets = {"encryption_key": KEY_NAME, "crypto_key_reader": keys.reader()} if kind.encrypted and keys else {}
    producer = client.create_producer(topic, block_if_queue_full=True, **kind.settings, **secrets)
    results: list[pulsar.Result] = []
    sent = 0
    for number in numbers:
        content = kind.content(number)
        key = content.key or None
        callback = lambda result, _place: results.append(result)  # noqa: E731 - the loop's only callback
        producer.send_async(content.data, callback, properties=dict(content.properties), partition_key=key)
        sent += 1
    producer.flush()
    producer.close()
    assert results == [pulsar.Result.Ok] * sent


def consume(client: pulsar.Client, topic: str, count: int, keys: MessageKeys | None = None) -> dict[Place, Content]:
    """Return the first `count` messages of a topic, all of its partitions together, as a consumer receives them."""
    consumer = client.subscribe(
        topic,
        f"reference-{count}",
        initial_position=pulsar.InitialPosition.Earliest,
        crypto_key_reader=keys.reader() if keys else None,
    )
    received: dict[Place, Content] = {}
    try:
        while len(received) < count:
            message = consumer.receive(RECEIVE_MS)
            place = message.message_id()
            pairs = tuple(sorted(message.properties().items()))
            content = Content(message.data(), message.partition_key(), pairs)
            at = Place(place.ledger_id(), place.entry_id(), place.batch_index())
            assert at not in received, f"{at} came twice"
            received[at] = content
            consumer.acknowledge(message)
    finally:
        consumer.close()
    return received
