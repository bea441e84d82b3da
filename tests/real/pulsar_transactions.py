"""Pulsar's Java client, the one that knows transactions, driven from Python: what it sends, and what it receives.

    async with transactional(server, directory, clock) as client:
        transaction = client.begin()
        with client.producer(topic) as producer:
            producer.send([b"1", b"2"], transaction)
        client.commit(transaction)
        received = client.receive(topic, 2)

Calls block: run them in threads beside an event loop.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.real.gateway import java_gateway
from tests.real.jars import server_jars
from tests.real.pulsar_messages import Place

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence
    from pathlib import Path

    from offloaderd.core.clock import Clock
    from tests.real.broker import PulsarBroker
    from tests.real.pulsar import PulsarServer

TRANSACTION_SETTINGS = {"transactionCoordinatorEnabled": True, "systemTopicEnabled": True}
RECEIVE_S = 60
NOTHING_MS = 1500
"""A consumer that got nothing for this long, behind all that it was to get, is given nothing."""
OPEN_S = 600


class Received(NamedTuple):
    """A message as the consumer got it."""

    place: Place
    data: bytes


class JavaProducer:
    """A producer in Java."""

    def __init__(self, producer: Any) -> None:  # noqa: ANN401 - a Java object
        self._producer = producer

    def send(self, contents: Sequence[bytes], transaction: Any = None) -> None:  # noqa: ANN401 - a Java object
        """Send messages, in a transaction if one is given; returns once all are acknowledged."""
        sent = []
        for content in contents:
            message = self._producer.newMessage() if transaction is None else self._producer.newMessage(transaction)
            sent.append(message.value(content).sendAsync())
        self._producer.flush()
        for future in sent:
            future.get()


class TransactionalClient:
    """A client with transactions. Use `transactional` to make one."""

    def __init__(self, jvm: Any, service_url: str) -> None:  # noqa: ANN401 - Java's packages
        self._api = jvm.org.apache.pulsar.client.api
        self._list = jvm.java.util.ArrayList
        self._units = jvm.java.util.concurrent.TimeUnit
        self._client = self._api.PulsarClient.builder().serviceUrl(service_url).enableTransaction(True).build()

    def begin(self, timeout_s: int = OPEN_S) -> Any:  # noqa: ANN401 - a Java object
        """Begin a transaction, which is aborted if it lasts longer than that."""
        builder = self._client.newTransaction().withTransactionTimeout(timeout_s, self._units.SECONDS)
        return builder.build().get()

    def commit(self, transaction: Any) -> None:  # noqa: ANN401 - a Java object
        """Commit it; returns once the coordinator has."""
        transaction.commit().get()

    def abort(self, transaction: Any) -> None:  # noqa: ANN401 - a Java object
        """Abort it; returns once the coordinator has."""
        transaction.abort().get()

    @contextmanager
    def producer(self, topic: str, *, batch: int = 0) -> Iterator[JavaProducer]:
        """Have a producer; `batch` messages are in a batch."""
        builder = self._client.newProducer(self._api.Schema.BYTES).topic(topic).sendTimeout(0, self._units.SECONDS)
        builder.enableBatching(batch > 0)
        if batch:
            builder.batchingMaxMessages(batch).batchingMaxPublishDelay(1, self._units.SECONDS)
        producer = builder.create()
        try:
            yield JavaProducer(producer)
        finally:
            producer.close()

    def receive(self, topic: str, count: int) -> list[Received]:
        """Return all that a new consumer is given from the beginning on: that many messages, and then nothing."""
        topics = self._list()
        topics.add(topic)
        builder = self._client.newConsumer(self._api.Schema.BYTES).topics(topics).subscriptionName(f"all-{count}")
        consumer = builder.subscriptionInitialPosition(self._api.SubscriptionInitialPosition.Earliest).subscribe()
        received: list[Received] = []
        try:
            while len(received) < count:
                received.append(self._next(consumer, RECEIVE_S * 1000))
            assert consumer.receive(NOTHING_MS, self._units.MILLISECONDS) is None, "more than was sent and committed"
        finally:
            consumer.close()
        return received

    def close(self) -> None:
        """Close it."""
        self._client.close()

    def _next(self, consumer: Any, timeout_ms: int) -> Received:  # noqa: ANN401 - a Java object
        message = consumer.receive(timeout_ms, self._units.MILLISECONDS)
        assert message is not None, f"nothing came for {timeout_ms} ms"
        at = message.getMessageId()
        place = Place(at.getLedgerId(), at.getEntryId(), at.getBatchIndex())
        return Received(place, bytes(message.getData()))


@asynccontextmanager
async def transactional(
    server: PulsarServer | PulsarBroker, directory: Path, clock: Clock
) -> AsyncIterator[TransactionalClient]:
    """Run a JVM with a client of this Pulsar. Raises FetchFailed (no jars), InvalidConfig (no Java), ServerDied."""
    async with java_gateway(directory, clock, [f"{server_jars('pulsar')}/*"]) as gateway:
        client = TransactionalClient(gateway.java.jvm, server.service_url)
        try:
            yield client
        finally:
            client.close()
