"""What our driver costs and gains beside Pulsar's own in stock brokers: the same messages, in turns (`broker_run`).

Each driver has a topic, or several that are read at the same time. Ours streams from the first message on
(docs/stock-broker.md says to enable topics first).
Every ledger is offloaded at its close and deleted from BookKeeper at once. Smaller topics go first and do not count,
until the JVMs have compiled what they run.

Then the topics of both are read from the beginning, round by round, who goes first changes: by consumers through the
broker, and by the drivers' read handles alone (tests/real/tiered_handles.py). Each read comes from the S3 server:
nothing is in BookKeeper, the broker has closed the topic, the daemons' caches are smaller than what was read before.
Only the files of the S3 server are in the machine's memory, for both.
"""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from math import inf
from threading import Event
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pulsar

from offloaderd.core.model import DRIVER
from offloaderd.ledgers.pulsar.managed_ledger import decode
from offloaderd.standalone.ports import http_get
from tests.patience import PATIENCE_S
from tests.real.broker_servers import CLOCK, COMPILED, OURS, THEIRS, cpu_s
from tests.real.driven import RECEIVE_MS
from tests.real.pulsar_topics import pulsar_client
from tests.real.tiered_handles import OffloadedLedger, tiered_handles

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from tests.real.bookies import BookKeeperCluster
    from tests.real.broker import PulsarBroker
    from tests.real.broker_servers import Servers
    from tests.real.driven import Driven
    from tests.real.tiered_handles import TieredHandles

T = TypeVar("T")
KEYS = 500
MESSAGE_BYTES = 1000
QUEUES = {"consumer": 5_000, "consumer with a long queue": 50_000}
"""Messages that a consumer has room for. A broker reads 100 entries, here 10,000 messages, once there is any room: the
first waits for each read, the second has the broker read while it works."""
HANDLES = "read handles"
WARM_UP_MESSAGES = 50_000
WARM_UP_ROUNDS = 2
CLOSED = re.compile(r"^(\S+) INFO +OpAddEntry: \[(\S+)\] Closing ledger (\d+) for being full", re.MULTILINE)
OFFLOADED = re.compile(r"^(\S+) INFO +ManagedLedgerImpl: \[(\S+)\] End Offload\. ledger=(\d+)", re.MULTILINE)


class Scale(NamedTuple):
    """How much goes through each driver: messages, at most so many a second, in ledgers of so many MiB of each topic.

    `turns` of writing and offloading; `rounds` of reading what the last turn wrote, from a store that is so far away.
    """

    messages: int
    rate: float = inf
    ledger_mib: int = 32
    turns: int = 1
    rounds: int = 5
    latency_s: float = 0.0
    topics: int = 1
    readers: int = 1
    """Readers of each topic, which take a message in turns."""
    flags: Sequence[str] = ()
    """Of the JVMs of brokers and handles."""


@dataclass
class Written:
    """The topics that were written through a driver, and what that took; each has an equal part of the messages."""

    driver: str
    driven: Sequence[Driven]
    messages: int
    closes_s: list[float]
    cpu_s: Mapping[str, float]
    ledgers: Sequence[Sequence[OffloadedLedger]] = ()
    """Those of each topic."""

    @property
    def mib(self) -> float:
        """Payload of its messages, before compression."""
        return self.messages * MESSAGE_BYTES / 2**20


class Reading(NamedTuple):
    """One read of all topics from the beginning: MiB of messages a second, and CPU seconds by process."""

    driver: str
    way: str
    mib_per_s: float
    cpu_s: Mapping[str, float]


def content(number: int) -> bytes:
    """Return a message; half of it cannot be compressed."""
    head = b"%d|" % number
    noise = b"".join(sha256(head + bytes([part])).digest() for part in range(MESSAGE_BYTES // 64))
    return (head + noise).ljust(MESSAGE_BYTES, b".")


def send(service_url: str, topic: str, numbers: range, rate: float = inf) -> None:
    """Send messages in compressed batches, so many a second at most."""
    with pulsar_client(service_url) as client:
        producer = client.create_producer(
            topic,
            block_if_queue_full=True,
            batching_enabled=True,
            batching_max_messages=100,
            batching_max_publish_delay_ms=10,
            compression_type=pulsar.CompressionType.LZ4,
            max_pending_messages=5000,
        )
        began, never = CLOCK.monotonic(), Event()
        for number in numbers:
            never.wait(max(0.0, began + number / rate - CLOCK.monotonic()))
            producer.send_async(content(number), None, partition_key=f"key-{number % KEYS}")
        producer.flush()


def catch_up(service_url: str, topics: Sequence[str], count: int, queue: int, readers: int) -> tuple[float, float]:
    """Receive every message of each topic, all topics at once and each by so many readers, without a look at them.

    Returns the seconds that took, and the consumers' CPU seconds.
    """
    with pulsar_client(service_url) as client:
        for topic in topics:
            client.create_reader(topic, pulsar.MessageId.latest)  # the broker loads it
        began, cpu_before_s = CLOCK.monotonic(), time.process_time()
        opened = [
            [client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=queue) for _ in range(readers)]
            for topic in topics
        ]

        def receive(of_topic: Sequence[pulsar.Reader]) -> None:
            for _ in range(count):
                for reader in of_topic:
                    reader.read_next(RECEIVE_MS)

        at_once(receive, opened)
        return CLOCK.monotonic() - began, time.process_time() - cpu_before_s


def at_once(do: Callable[[T], None], things: Sequence[T]) -> None:
    """Do something with all things at once, in a thread for each."""
    with ThreadPoolExecutor(len(things)) as pool:
        list(pool.map(do, things))


def seconds(text: str) -> float:
    """Return the time of day of a log line."""
    hours, minutes, rest = text.split(":")
    return int(hours) * 3600 + int(minutes) * 60 + float(rest)


def closes(logs: Sequence[str], managed_ledger: str) -> list[float]:
    """Return how long after its close each ledger was offloaded, by the brokers' word."""
    ended = {
        found[3]: seconds(found[1]) for log in logs for found in OFFLOADED.finditer(log) if found[2] == managed_ledger
    }
    begun = {
        found[3]: seconds(found[1]) for log in logs for found in CLOSED.finditer(log) if found[2] == managed_ledger
    }
    return [(ended[ledger] - begun[ledger]) % 86_400 for ledger in begun if ledger in ended]


async def direct_bytes(broker: PulsarBroker) -> int:
    """Return the direct memory that a broker's JVM has, by its own metrics."""
    _, page = await http_get(broker.web, "/metrics/", PATIENCE_S)
    found = re.search(rb"^jvm_memory_direct_bytes_used\S* ([0-9.E+]+)", page, re.MULTILINE)
    return int(float(found[1])) if found else 0


async def written(servers: Servers, driver: str, messages: int, scale: Scale) -> Written:
    """Write the topics of a driver one by one, until all of it is in the tier and nothing in BookKeeper."""
    driven = [await servers.driven(driver) for _ in range(scale.topics)]
    before, each = servers.spent(), messages // scale.topics
    for one in driven:
        await asyncio.to_thread(send, servers.url, str(one.topic), range(each), scale.rate)
    for one in driven:
        await one.freed(0)
    used, logs = servers.spent().since(before), [broker.log for broker in servers.brokers]
    lasted = [wait for one in driven for wait in closes(logs, one.topic.managed_ledger)]
    for one in driven:
        await one.cleared()
    ledgers = [ledgers_of(servers.cluster, one) for one in driven]
    return Written(driver, driven, each * scale.topics, lasted, used, ledgers)


def ledgers_of(cluster: BookKeeperCluster, driven: Driven) -> list[OffloadedLedger]:
    """Return the topic's offloaded ledgers, as Pulsar's list has them."""
    path = f"/managed-ledgers/{driven.topic.managed_ledger}"
    with cluster.zookeeper_client() as client:
        node, _ = client.get(path)
    return [
        OffloadedLedger(
            one.ledger_id,
            one.offload.object_id,
            one.entries,
            {**one.offload.properties, "ManagedLedgerName": driven.topic.managed_ledger},
        )
        for one in decode(node, key=path).ledgers
        if one.offload is not None and one.offload.object_id is not None and one.entries
    ]


async def consumed(servers: Servers, topics: Written, way: str, readers: int) -> Reading:
    """Have consumers of each topic catch up through the broker, which has nothing of them in its memory."""
    for one in topics.driven:
        await one.unload()
    before = servers.spent()
    names, each = [str(one.topic) for one in topics.driven], topics.messages // len(topics.driven)
    lasted_s, consumer_s = await asyncio.to_thread(catch_up, servers.url, names, each, QUEUES[way], readers)
    used = {**servers.spent().since(before), "consumer": round(consumer_s, 2)}
    return Reading(topics.driver, way, readers * topics.mib / lasted_s, used)


async def skimmed(servers: Servers, handles: TieredHandles, topics: Written) -> Reading:
    """Read through the driver's handles alone, all topics at once."""
    policies = {"managedLedgerOffloadDriver": DRIVER, **servers.policies(topics.driver)}
    policies.pop("managedLedgerExtraConfigurations", None)
    extra = {"Address": servers.daemons[0].address}
    offloader = await asyncio.to_thread(handles.offloader, policies, extra if topics.driver == OURS else {})
    before, jvm_before, began = servers.spent(), cpu_s(handles.server.child.pid), CLOCK.monotonic()
    await asyncio.to_thread(at_once, partial(handles.skim, offloader), topics.ledgers)
    lasted_s = CLOCK.monotonic() - began
    used = {**servers.spent().since(before), "handles": round(cpu_s(handles.server.child.pid) - jvm_before, 2)}
    return Reading(topics.driver, HANDLES, topics.mib / lasted_s, used)


async def read(servers: Servers, handles: TieredHandles, topics: Written, readers: int) -> list[Reading]:
    """Read the topics of a driver in each way."""
    consumers = [await consumed(servers, topics, way, readers) for way in QUEUES]
    return [*consumers, await skimmed(servers, handles, topics)]


async def measured(servers: Servers, scale: Scale, directory: Path) -> str:
    """Write, offload and read as much as is said, and tell what came of it."""
    found: list[Written] = []
    flags = [COMPILED, *scale.flags]
    async with tiered_handles(directory / "handles", CLOCK, flags=flags, environment=servers.secrets) as handles:
        few, small = min(WARM_UP_MESSAGES, scale.messages), scale._replace(rate=inf, topics=1)
        warm = [await written(servers, driver, few, small) for driver in (THEIRS, OURS)]
        for topics in warm * WARM_UP_ROUNDS:
            await read(servers, handles, topics, scale.readers)
        for turn in range(scale.turns):
            for driver in in_turn(turn, THEIRS, OURS):
                found.append(await written(servers, driver, scale.messages, scale))
                say(json.dumps(shown(found[-1])))
        readings: list[Reading] = []
        servers.far.latency_s = scale.latency_s
        for number in range(scale.rounds):
            for topics in in_turn(number, *sorted(found[-2:], key=lambda one: one.driver == OURS)):
                for reading in await read(servers, handles, topics, scale.readers):
                    readings.append(reading)
                    say(json.dumps({**reading._asdict(), "mib_per_s": round(reading.mib_per_s, 1)}))
        servers.far.latency_s = 0.0
    direct = sum([await direct_bytes(broker) for broker in servers.brokers])
    say(f"direct memory of the brokers: {direct / 2**20:.1f} MiB")
    return compared(found, readings)


def in_turn(number: int, first: Any, second: Any) -> tuple[Any, Any]:  # noqa: ANN401 - two of anything
    """Return two things in one order, or in the other."""
    return (second, first) if number % 2 else (first, second)


def shown(topics: Written) -> dict[str, Any]:
    """Return what writing took, for people and machines."""
    return {
        "driver": topics.driver,
        "topics": len(topics.driven),
        "ledgers": sum(map(len, topics.ledgers)),
        "messages_mib": round(topics.mib, 1),
        "close_to_offloaded_s": {
            "median": round(statistics.median(topics.closes_s), 3),
            "max": round(max(topics.closes_s), 3),
        }
        if topics.closes_s
        else None,
        "produce_and_offload_cpu_s": topics.cpu_s,
    }


def compared(found: Sequence[Written], readings: Sequence[Reading]) -> str:
    """Say how our driver did beside Pulsar's own: medians, and how many times as fast or as dear."""
    lines = []
    waits = {
        driver: [wait for topic in found if topic.driver == driver for wait in topic.closes_s]
        for driver in (THEIRS, OURS)
    }
    if all(waits.values()):
        theirs, ours = (statistics.median(waits[driver]) for driver in (THEIRS, OURS))
        lines.append(f"from close to offloaded: theirs {theirs:.2f} s, ours {ours:.2f} s (medians of all ledgers)")
    for way in (*QUEUES, HANDLES) if readings else ():
        of = {driver: [one for one in readings if (one.driver, one.way) == (driver, way)] for driver in (THEIRS, OURS)}
        theirs, ours = (statistics.median(one.mib_per_s for one in of[driver]) for driver in (THEIRS, OURS))
        dear, cheap = (statistics.median(sum(one.cpu_s.values()) for one in of[driver]) for driver in (THEIRS, OURS))
        rounds = ", ".join(f"{b.mib_per_s / a.mib_per_s:.2f}" for a, b in zip(of[THEIRS], of[OURS], strict=True))
        lines.append(
            f"{way}: theirs {theirs:.0f} MiB/s, ours {ours:.0f} MiB/s, {ours / theirs:.2f} times as fast "
            f"(by rounds {rounds}); CPU of all processes {dear:.2f} s and {cheap:.2f} s"
        )
    return "\n".join(lines)


def say(text: str) -> None:
    """Tell how far it is."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
