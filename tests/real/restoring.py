"""The clusters of `restore_run`, and what happens in each: topics of ten sorts are written, consumed and captured."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.integration.command_line import ran
from tests.integration.processes import DaemonProcess
from tests.real.broker_speed import say
from tests.real.driven import Driven
from tests.real.histories import (
    SORTS,
    VERSIONS,
    History,
    acknowledge,
    count_of,
    read,
    stand,
    write,
    write_in_transactions,
)
from tests.real.jars import broker_jars
from tests.real.mounting import (
    CLOCK,
    COORDINATED,
    OWN,
    Shape,
    all_offloaded,
    follower,
    offloaded,
)
from tests.real.pulsar_transactions import transactional
from tests.servers import S3Server

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from offloaderd.core.model import TopicName
    from tests.integration.processes import Site
    from tests.real.bookies import BookKeeperCluster
    from tests.real.broker import PulsarBroker
    from tests.real.histories import Note, Place, Sort

CONSUMERS = 7
"""A policy of one topic, kept in a topic of Pulsar's own."""
SMALL = 20_000
"""So many messages are offloaded within a second each; more within ten."""


@dataclass(frozen=True, slots=True)
class Had:
    """What the bucket had of a topic, or a partition, when its cluster was lost.

    `lost` messages were sent behind that. `left` is what the subscription had to be given, from `begin` on.
    """

    note: Note
    lost: int
    left: Note | None
    begin: Place | None


@dataclass
class Scenario:
    """What outlives the clusters: the store, and what is known of the topics' histories, by the topics' names."""

    directory: Path
    store: S3Server
    bucket: str
    messages: int
    namespace: str = field(default_factory=lambda: f"r{CLOCK.uuid().hex[:10]}")
    cluster: str = field(default_factory=lambda: CLOCK.uuid().hex)
    sent: dict[str, int] = field(default_factory=dict)
    """Numbers of messages used so far, by sort."""
    had: dict[str, Had] = field(default_factory=dict)

    def shape(self, version: str) -> Shape:
        """Return the clusters' shape: ledgers are small enough that each topic has several."""
        settings = {
            **COORDINATED,
            "managedLedgerMaxEntriesPerLedger": max(10, self.messages // 1000),
            "acknowledgmentAtBatchIndexLevelEnabled": True,
        }
        return Shape(bookies=3, brokers=("one", "two"), jars=broker_jars(version), settings=settings)

    @property
    def parts(self) -> dict[str, Sort]:
        """Topics without partitions and partitions, by name, in order."""
        return {name: sort for sort in SORTS for name in names_of(sort)}

    @property
    def pattern(self) -> str:
        """All of them."""
        return f"public/{self.namespace}/*"

    def follower(self, directory: Path, bookkeeper: BookKeeperCluster) -> Site:
        """Return the daemon that offloads in a cluster."""
        site = follower(directory, bookkeeper, self.store, self.bucket, self.cluster)
        site.settings["offload"] = {"segment_age_max_s": 1 if self.messages <= SMALL else 10}
        return site


def names_of(sort: Sort) -> list[str]:
    """Return the local names of a topic's partitions, or of the topic itself without any."""
    return [f"{sort.name}-partition-{number}" for number in range(sort.partitions)] or [sort.name]


@dataclass
class Cluster:
    """A cluster that runs; `address` is that of its daemon."""

    scenario: Scenario
    directory: Path
    bookkeeper: BookKeeperCluster
    brokers: Sequence[PulsarBroker]
    address: str = ""

    @property
    def url(self) -> str:
        """Where clients find any of the brokers."""
        return "pulsar://" + ",".join(broker.service_url.removeprefix("pulsar://") for broker in self.brokers)

    def driven(self, local: str) -> Driven:
        """Return a topic of the namespace."""
        first, *others = self.brokers
        namespace = self.scenario.namespace
        return Driven(first, self.bookkeeper, self.address, others=others, namespace=namespace, local=local)

    def name(self, local: str) -> str:
        """Return the full name of a topic."""
        return str(self.driven(local).topic)

    @property
    def own(self) -> list[TopicName]:
        """Topics of Pulsar itself that the namespace has."""
        return [self.driven(name).topic for name in OWN]

    async def make(self) -> None:
        """Make the namespace with bundles for both brokers, and the partitioned topic."""
        path = f"public/{self.scenario.namespace}"
        assert await self.brokers[0].put(f"namespaces/{path}", {"bundles": {"numBundles": 4}}) == 204
        for sort in SORTS:
            if sort.partitions:
                at = f"persistent/{path}/{sort.name}/partitions"
                assert await self.brokers[0].put(at, sort.partitions) == 204

    async def unload(self) -> None:
        """Have all topics closed."""
        assert await self.brokers[0].put(f"namespaces/public/{self.scenario.namespace}/unload") == 204

    async def kill(self) -> None:
        """End all servers at once, and delete what they have."""
        for server in (*self.brokers, *self.bookkeeper.bookies, self.bookkeeper.zookeeper_server):
            await server.kill()


async def at_once(calls: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """Run blocking calls in threads, all together; returns what each has returned."""
    async with asyncio.TaskGroup() as group:
        tasks = {name: group.create_task(asyncio.to_thread(call), name=name) for name, call in calls.items()}
    return {name: task.result() for name, task in tasks.items()}


async def produce_all(live: Cluster, share: Callable[[Sort], int]) -> None:
    """Have producers send so many messages of each sort."""
    scenario = live.scenario
    ranges = {}
    for sort in SORTS:
        first = scenario.sent.get(sort.name, 0)
        ranges[sort] = range(first, first + share(sort))
        scenario.sent[sort.name] = ranges[sort].stop
    versions = VERSIONS if not scenario.had else VERSIONS[-1:]
    await at_once(
        {
            sort.name: partial(write, live.url, live.name(sort.name), sort.kind, numbers, versions)
            for sort, numbers in ranges.items()
            if sort.kind != "transaction"
        }
    )
    async with transactional(live.brokers[0], live.directory, CLOCK) as client:
        for sort, numbers in ranges.items():
            if sort.kind == "transaction":
                await asyncio.to_thread(write_in_transactions, client, live.name(sort.name), numbers)


async def first_written(live: Cluster, daemon: DaemonProcess) -> None:
    """Write all topics, each of which streams from its first entry on."""
    await live.make()
    await live.driven("").offload()
    async with daemon.client() as client:
        for topic in (*(live.driven(name).topic for name in live.scenario.parts), *live.own):
            await client.enable(topic)
    await produce_all(live, lambda sort: count_of(sort, live.scenario.messages))
    path = live.driven("holes").path
    assert 204 in [await broker.send("POST", f"{path}/maxConsumers", CONSUMERS) for broker in live.brokers]


async def consume_half(live: Cluster) -> None:
    """Have each subscription acknowledge about half of what it has left."""
    scenario, counts = live.scenario, {}
    for name, sort in scenario.parts.items():
        had = scenario.had.get(name)
        if sort.subscribed:
            left = scenario.sent[sort.name] // max(1, sort.partitions) if had is None else messages_of(had.left)
            counts[name] = left // 2
    await at_once(
        {
            name: partial(acknowledge, live.url, live.name(name), count, single=name == "holes")
            for name, count in counts.items()
        }
    )


def messages_of(note: Note | None) -> int:
    """Return how many messages a history has, none without one."""
    return note.messages if note is not None else 0


async def settled(live: Cluster, daemon: DaemonProcess) -> dict[str, History]:
    """Consume the half, write a little behind it into ledgers that stay open, capture, and read everything.

    Returns the histories; what the bucket has of them is noted in the scenario.
    """
    scenario = live.scenario
    await consume_half(live)
    say("subscriptions stand in the middle")
    await live.unload()
    await all_offloaded(daemon, [*(live.driven(name).topic for name in scenario.parts), *live.own])
    for _ in range(2):  # what was sent before the last time is known as confirmed, and so offloaded
        await at_once({name: partial(tail, live, name) for name in scenario.parts})
    for name in scenario.parts:
        await live.driven(name).freed()
    say("all closed ledgers are offloaded and gone from BookKeeper")
    code, said, told = await ran(daemon.site, "offloadctl", "metadata", "capture")
    assert code == 0, said + told
    histories = await read_all(live, noting=True)
    left = {name: History(noting=True) for name, sort in scenario.parts.items() if sort.subscribed}
    lasts = {name: history.note().last for name, history in histories.items()}
    await at_once({name: partial(stand, live.url, live.name(name), one, lasts[name]) for name, one in left.items()})
    for name, history in histories.items():
        least = history.newest[-4].last
        end = await offloaded(daemon, live.driven(name).topic, least[:2])
        note, given = history.up_to(end), left.get(name)
        scenario.had[name] = Had(
            note,
            history.note().messages - note.messages,
            given.up_to(end) if given is not None else None,
            given.first if given is not None else None,
        )
        assert given is None or given.note().messages < history.note().messages, f"{name}: nothing is acknowledged"
    return histories


def tail(live: Cluster, name: str) -> None:
    """Send three messages to a topic or a partition."""
    write(live.url, live.name(name), "unbatched", range(3))


async def read_all(live: Cluster, *, noting: bool = False) -> dict[str, History]:
    """Read all topics; those with aborted messages at their end as far as is known that there is something."""
    scenario = live.scenario
    histories, calls = {}, {}
    for name in scenario.parts:
        had = scenario.had.get(name)
        wanted = frozenset({had.note.messages}) if had is not None else frozenset()
        history = History(wanted, noting=noting)
        histories[name] = history
        count = had.note.messages if had is not None and not noting else None
        calls[name] = partial(read, live.url, live.name(name), history, count)
    await at_once(calls)
    return histories
