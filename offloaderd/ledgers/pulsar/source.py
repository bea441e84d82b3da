"""The ledger source of a running Pulsar cluster: lists of ledgers from its ZooKeeper, entries from its bookies.

It only reads. Topics are those of Pulsar's managed ledgers; an open ledger is read up to what its writer confirmed.
"""

from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing
from functools import partial
from typing import Self

from offloaderd.bookkeeper.ledger_tail import Broker, TailAsker
from offloaderd.bookkeeper.long_poll import LongPolls
from offloaderd.bookkeeper.metadata import index_metadata
from offloaderd.bookkeeper.ports import Bookies, Znodes
from offloaderd.bookkeeper.rate_limits import Limits
from offloaderd.bookkeeper.replicas import BookieOrder, LedgerAt, Lengths, RangeRead, ReplicaReader, checker_for
from offloaderd.bookkeeper.settings import BookkeeperSettings
from offloaderd.core.aio import Tasks
from offloaderd.core.clock import Clock
from offloaderd.core.errors import Denied, InvalidInput, NotFound
from offloaderd.core.limits import Bounded
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import Confirmed, EntryBatch, LedgerInfo, TopicName
from offloaderd.core.names import managed_ledgers as pulsar_names
from offloaderd.ledgers.port import Changes
from offloaderd.ledgers.pulsar.directory import Directory, Nodes
from offloaderd.ledgers.pulsar.topic import Follower, Pulse, SlowPolls, Topic

TOPICS_MAX = 10_000
"""Topics in memory without watchers: those used last."""


class BookKeeperLedgers:
    """A LedgerSource over ZooKeeper and bookies. Async context manager: it owns reads ahead and watches."""

    def __init__(
        self,
        znodes: Znodes,
        bookies: Bookies,
        *,
        clock: Clock,
        metrics: Metrics,
        options: BookkeeperSettings | None = None,
        admin: Broker | None = None,
        quiet_s: float = 1.0,
    ) -> None:
        """`admin` shows the hidden entries of a ledger that has not moved for `quiet_s`."""
        options = options or BookkeeperSettings()
        order = BookieOrder(bookies, clock)
        self._clock = clock
        self._options = options
        self._background = Tasks("the ledger source")
        self._directory = Directory(znodes, Nodes(znodes, self._background, clock), options, bookies)
        self.internal = self._directory.internal
        """Reads the ledgers of cursors and schemas."""
        self.limits = Limits(options, clock, metrics)
        self._replica_reader = ReplicaReader(
            bookies,
            order,
            partial(self._directory.ledger, fresh=True),
            self.limits,
            self._background,
            clock=clock,
            metrics=metrics,
            options=options,
        )
        self._asker = TailAsker(
            bookies, order, self._background, admin, clock=clock, metrics=metrics, options=options, quiet_s=quiet_s
        )
        self._long_polls = LongPolls(bookies, self._background, clock=clock, options=options)
        self._slow_polls = SlowPolls(options, metrics)
        self._pulse = Pulse(self._background, clock)
        self._changes = Changes()
        self._topics: Bounded[TopicName, Topic] = Bounded(TOPICS_MAX)
        """Those without watchers."""
        self._followers: dict[TopicName, Follower] = {}
        self._lengths = Lengths()

    async def __aenter__(self) -> Self:
        await self._background.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        """End watches and reads; later calls raise Closed."""
        self._changes.close()
        await self._background.__aexit__(*error)

    async def topics(self, *, tenant: str | None = None, namespace: str | None = None) -> Sequence[TopicName]:
        """Return the topics that Pulsar has, in name order; see LedgerSource."""
        return await self._directory.topics(tenant, namespace)

    async def not_covered(self, *, tenant: str | None = None, namespace: str | None = None) -> Sequence[str]:
        """Return the topics of other domains; see OtherDomains."""
        return await self._directory.not_covered(tenant, namespace)

    async def reserved(self, topic: TopicName) -> str | None:
        """Return why only a policy by name offloads a topic; see LedgerSource."""
        reason = pulsar_names.system_reason(topic)
        if reason is None and pulsar_names.is_compacted(await self._directory.cursors(topic)):
            return "it is compacted: readers expect the newest value of each key"
        return reason

    async def ledgers(self, topic: TopicName) -> Sequence[LedgerInfo]:
        """Return the topic's ledgers in order. Raises NotFound, CorruptData."""
        return await self._topic(topic).ledgers()

    async def offloaded(self, topic: TopicName) -> Sequence[LedgerInfo]:
        """Return the ledgers that brokers have offloaded as a whole; see BrokerOffloads."""
        return await self._topic(topic).offloaded()

    async def listed(self, topic: TopicName) -> Collection[int]:
        """Return the ledgers of Pulsar's list, also those that BookKeeper does not have; see LedgerRegister."""
        return await self._directory.listed(topic)

    async def source_topic(self, topic: TopicName) -> TopicName | None:
        """Return the topic whose ledgers a shadow topic reads; see ShadowTopics."""
        return pulsar_names.shadow_source(topic, (await self._directory.topic(topic)).properties)

    async def identity(self) -> str | None:
        """Return the INSTANCEID that the cluster's BookKeeper got when it was initialised; see LedgerOrigin."""
        return await self._directory.instance_id()

    async def moved(self, topic: TopicName) -> str | None:
        """Return why the cluster's metadata is elsewhere, now or soon; see LedgerOrigin."""
        return await self._directory.migration() or await self._topic(topic).standing_still()

    async def inspected(self, topic: TopicName, ledger_id: int) -> LedgerInfo:
        """Return a ledger from fresh metadata of BookKeeper; see LedgerOrigin."""
        return await self._topic(topic).inspected(ledger_id)

    async def watch(self, topic: TopicName) -> AsyncGenerator[None, None]:
        """Yield at once and after changes; see LedgerSource."""
        follower = self._followers.get(topic)
        if follower is None:
            follower = self._followers[topic] = Follower(
                self._topic(topic),
                self._long_polls,
                self._slow_polls,
                self._pulse,
                partial(self._changes.notify, topic),
            )
            del self._topics[topic]
        follower.watchers += 1
        try:
            while True:  # as Changes.watch does, without a second generator for each of thousands of topics
                changed = self._changes.next(topic)
                yield
                await changed.wait()
        finally:
            follower.watchers -= 1
            if not follower.watchers:
                del self._followers[topic]
                self._topics[topic] = follower.topic
                follower.stop()

    async def confirmed(self, topic: TopicName, ledger_id: int) -> Confirmed:
        """Return how far the ledger may be read. Raises NotFound, CorruptData."""
        return await self._topic(topic).confirmed(ledger_id)

    async def read(
        self, topic: TopicName, ledger_id: int, first_entry_id: int, last_entry_id: int, *, batch_bytes: int
    ) -> AsyncGenerator[EntryBatch, None]:
        """Yield the range in batches; see LedgerSource.

        Raises InvalidInput for entries that are not confirmed, and what LedgerSource names. All entries before an error
        are complete and right.
        """
        if batch_bytes < 1:
            raise InvalidInput(f"batch_bytes must be positive, not {batch_bytes}")
        reading = await self._range(topic, ledger_id, first_entry_id, last_entry_id, batch_bytes)
        try:
            async with aclosing(reading.runs()) as runs:
                async for run in runs:
                    yield EntryBatch(ledger_id, run.first_entry_id, run.payloads)
        except NotFound:
            self._topic(topic).vanished(ledger_id)
            raise

    async def length_at(self, topic: TopicName, ledger_id: int, entry_id: int) -> int:
        """Return the payload bytes up to and including the entry. Raises NotFound, and what `read` does."""
        reading = await self._range(topic, ledger_id, entry_id, entry_id, 1)
        async with aclosing(reading.runs()) as runs:
            return (await anext(runs)).lengths[-1]

    async def described(self, topic: TopicName, ledger_id: int) -> bytes:
        """Return BookKeeper's metadata of a closed ledger; see LedgerDescriber. Raises NotFound, InvalidInput."""
        if ledger_id not in await self._directory.listed(topic):
            raise NotFound(f"{topic} has no ledger {ledger_id}")
        metadata = await self._directory.ledger(ledger_id, fresh=True)
        return index_metadata(metadata, node_created_ms=0)  # the directory has set ctime_ms

    async def delete(self, topic: TopicName, ledger_id: int) -> None:
        """Refuse: Pulsar's ledgers are deleted by its brokers. Raises Denied."""
        raise Denied(
            f"ledger {ledger_id} of {topic} is not ours to delete",
            hint="its broker deletes it by the retention of its namespace",
        )

    async def _range(
        self, topic: TopicName, ledger_id: int, first_entry_id: int, last_entry_id: int, batch_bytes: int
    ) -> RangeRead:
        """Return a read of a confirmed range. Raises InvalidInput, NotFound."""
        if not 0 <= first_entry_id <= last_entry_id:
            raise InvalidInput(f"no range of entries: {first_entry_id} to {last_entry_id}")
        known = self._topic(topic)
        metadata, confirmed = await known.readable(ledger_id)
        if last_entry_id > confirmed:
            confirmed = (await known.confirmed(ledger_id)).last_entry_id
        if last_entry_id > confirmed:
            raise InvalidInput(
                f"entry {ledger_id}:{last_entry_id} of {topic} is not confirmed, the last one is {confirmed}",
                hint="ask for the last confirmed entry first",
            )
        return RangeRead(
            self._replica_reader,
            LedgerAt(topic, ledger_id, metadata, checker_for(ledger_id, metadata)),
            first_entry_id,
            last_entry_id,
            batch_bytes=batch_bytes,
            lengths=self._lengths,
            clock=self._clock,
            options=self._options,
        )

    def _topic(self, name: TopicName) -> Topic:
        follower = self._followers.get(name)
        if follower is not None:
            return follower.topic
        topic = self._topics[name] = self._topics.get(name) or Topic(name, self._directory, self._asker)
        return topic
