"""The loop over stock brokers at length: `make test-broker` (MESSAGES=n), on servers of its own.

Three bookies, two brokers, two daemons, an S3 server. The same messages (batched, compressed, keyed) go through our
driver and through Pulsar's own, in turns, so that what else the machine does falls on both; each time every ledger is
offloaded at its close and deleted from BookKeeper at once. What is measured: seconds from a ledger's close to the
broker's word that it is offloaded, bytes a second of catching up, CPU seconds and direct memory of the brokers.

Then our driver is put to the test: a daemon is killed while messages are produced and offloaded, the topic moves to the
other broker, a daemon and a broker are killed while somebody reads. Whatever happens, a reader from the earliest one
gets every message as it was sent, and seeks by message id and by time and a compacted reader get what they got before.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import signal
import statistics
import sys
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from hashlib import sha256
from math import inf
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, NamedTuple

import pulsar

from offloaderd.clock import SystemClock
from offloaderd.standalone.ports import free_ports
from offloaderd.standalone.probe import http_get
from offloaderd.standalone.seaweed import PORT_COUNT, SeaweedOptions, seaweed
from tests.integration.processes import DaemonProcess, Site
from tests.real.bookies import ClusterOptions, bookkeeper_cluster
from tests.real.broker import BrokerOptions, offloaders, pulsar_broker
from tests.real.driven import RECEIVE_MS, Driven
from tests.real.pulsar_topics import pulsar_client
from tests.servers import S3Server, bucket_at

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.real.broker import PulsarBroker

CLOCK = SystemClock()
NAMES = "broker-1", "broker-2"
KEYS = 500
MESSAGE_BYTES = 1000
SETTINGS = {
    "managedLedgerMaxEntriesPerLedger": 1_000_000,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    "defaultRetentionTimeInMinutes": -1,
    "defaultRetentionSizeInMB": -1,
    "brokerServiceCompactionThresholdInBytes": 0,
}
CLOSED = re.compile(r"^(\S+) INFO +OpAddEntry: \[(\S+)\] Closing ledger (\d+) for being full", re.MULTILINE)
OFFLOADED = re.compile(r"^(\S+) INFO +ManagedLedgerImpl: \[(\S+)\] End Offload\. ledger=(\d+)", re.MULTILINE)


class Scale(NamedTuple):
    """How much goes through each driver: messages, at most so many a second, in ledgers of so many MiB, in turns."""

    messages: int
    rate: float
    ledger_mib: int
    rounds: int


@dataclass
class Figures:
    """What was measured of one driver in one turn."""

    driver: str
    payload_bytes: int
    closes_s: list[float] = field(default_factory=list)
    catch_up_s: float = 0.0
    offload_cpu_s: Mapping[str, float] = field(default_factory=dict)
    catch_up_cpu_s: Mapping[str, float] = field(default_factory=dict)
    direct_bytes: int = 0

    def shown(self) -> dict[str, Any]:
        """Return them for people and machines."""
        return {
            "driver": self.driver,
            "ledgers": len(self.closes_s),
            "payload_mib": round(self.payload_bytes / 2**20, 1),
            "close_to_offloaded_s": {
                "median": round(statistics.median(self.closes_s), 3),
                "max": round(max(self.closes_s), 3),
            },
            "catch_up_mib_per_s": round(self.payload_bytes / 2**20 / self.catch_up_s, 1),
            "produce_and_offload_cpu_s": self.offload_cpu_s,
            "catch_up_cpu_s": self.catch_up_cpu_s,
            "broker_direct_mib": round(self.direct_bytes / 2**20, 1),
        }


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


def catch_up(service_url: str, topic: str, count: int) -> float:
    """Receive every message without a look at it; returns how many seconds that took."""
    with pulsar_client(service_url) as client:
        reader = client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=5000)
        began = CLOCK.monotonic()
        for _ in range(count):
            reader.read_next(RECEIVE_MS)
        return CLOCK.monotonic() - began


def read_all(service_url: str, topic: str, count: int) -> list[str]:
    """Return place and digest of every message; the numbers have to be those that were sent, each once, in order."""
    found = []
    with pulsar_client(service_url) as client:
        reader = client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=2000)
        for number in range(count):
            message = reader.read_next(RECEIVE_MS)
            assert message.data() == content(number), f"message {number} is another: {message.data()[:20]!r}"
            found.append(f"{message.message_id()}")
    return found


def seek_and_compact(service_url: str, topic: str, places: Sequence[str]) -> dict[str, list[str]]:
    """Return what a reader gets after seeks into the middle, and what a compacted one gets."""
    found: dict[str, list[str]] = {}
    with pulsar_client(service_url) as client:
        reader = client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=10)
        third = [reader.read_next(RECEIVE_MS) for _ in range(max(1, len(places) // 3))][-1]
        reader.seek(third.message_id())
        found["by id"] = [str(reader.read_next(RECEIVE_MS).message_id()) for _ in range(20)]
        reader.seek(third.publish_timestamp())
        found["by time"] = [str(reader.read_next(RECEIVE_MS).message_id()) for _ in range(20)]
        reader.close()
        compacted = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
        found["compacted"] = [str(compacted.read_next(RECEIVE_MS).message_id()) for _ in range(KEYS)]
    return found


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


class Spent(NamedTuple):
    """CPU seconds that processes have used."""

    brokers_s: float
    daemons_s: float

    def since(self, before: Spent) -> dict[str, float]:
        """Return what was used in between."""
        return {
            "brokers": round(self.brokers_s - before.brokers_s, 2),
            "daemons": round(self.daemons_s - before.daemons_s, 2),
        }


def cpu_s(pid: int | None) -> float:
    """Return the CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def direct_bytes(broker: PulsarBroker) -> int:
    """Return the direct memory that a broker's JVM has, by its own metrics."""
    _, page = await http_get(broker.web, "/metrics/")
    found = re.search(rb"^jvm_memory_direct_bytes_used\S* ([0-9.E+]+)", page, re.MULTILINE)
    return int(float(found[1])) if found else 0


async def measured(driven: Driven, servers: Servers, scale: Scale, policies: Mapping[str, object]) -> Figures:
    """Produce, offload, free and read one topic."""
    count = scale.messages
    brokers = servers.brokers
    topic, url = str(driven.topic), service_url(brokers)
    figures = Figures(str(policies.get("managedLedgerOffloadDriver", "offloaderd")), count * MESSAGE_BYTES)
    await driven.create()
    await driven.offload(**policies)
    before = servers.spent()
    await asyncio.to_thread(send, url, topic, range(count), scale.rate)
    await driven.freed()
    figures.offload_cpu_s = servers.spent().since(before)
    figures.closes_s = closes([broker.log for broker in brokers], driven.topic.managed_ledger)
    await driven.unload()
    before = servers.spent()
    figures.catch_up_s = await asyncio.to_thread(catch_up, url, topic, count)
    figures.catch_up_cpu_s = servers.spent().since(before)
    figures.direct_bytes = sum([await direct_bytes(broker) for broker in brokers])
    say(json.dumps(figures.shown()))
    return figures


async def tried(driven: Driven, servers: Servers, count: int) -> None:
    """Send and read one topic through our driver, whatever happens. Raises AssertionError."""
    brokers = servers.brokers
    topic, url = str(driven.topic), service_url(brokers)
    await driven.create()
    await driven.offload()
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.to_thread(send, url, topic, range(count)))
        await servers.kill_a_daemon()
    say(f"{len(await driven.freed())} ledgers are offloaded and gone from BookKeeper")
    places = await asyncio.to_thread(read_all, url, topic, count)
    await driven.put("compaction")
    while (await driven.get("compaction") or {}).get("status") == "RUNNING":
        await CLOCK.sleep(1)
    sought = await asyncio.to_thread(seek_and_compact, url, topic, places)
    assert sought["by id"][0] in places
    for broker in (*brokers[1:], brokers[0]):
        await driven.move(broker)
        assert await asyncio.to_thread(read_all, url, topic, count) == places
    say("the same after the topic has moved to the other broker and back")
    await driven.unload()
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(asyncio.to_thread(read_all, url, topic, count))
        await servers.kill_a_daemon()
        await servers.kill_a_broker()
    assert reading.result() == places
    assert await asyncio.to_thread(seek_and_compact, url, topic, places) == sought
    say("the same after a daemon and a broker were killed while somebody read")


def service_url(brokers: Sequence[PulsarBroker]) -> str:
    """Return where clients find any of the brokers."""
    return "pulsar://" + ",".join(broker.service_url.removeprefix("pulsar://") for broker in brokers)


@dataclass
class Servers:
    """Brokers and daemons; kills one of them and brings it back."""

    stack: AsyncExitStack
    sites: list[Site]
    daemons: list[DaemonProcess]
    brokers: Sequence[PulsarBroker]

    def spent(self) -> Spent:
        """Return what they have used so far."""
        return Spent(
            sum(cpu_s(broker.child.pid) for broker in self.brokers),
            sum(cpu_s(daemon.process.pid) for daemon in self.daemons),
        )

    async def kill_a_daemon(self) -> None:
        """The first daemon dies, and comes back at its address."""
        await CLOCK.sleep(3)
        old = self.daemons[0]
        old.signal(signal.SIGKILL)
        await old.ended()
        self.daemons[0] = new = DaemonProcess(self.sites[0])
        new.grpc_port, new.http_port = old.grpc_port, old.http_port
        await self.stack.enter_async_context(new)
        await new.serving()
        say("a daemon was killed and is back")

    async def kill_a_broker(self) -> None:
        """The first broker, which has the topic, dies and comes back."""
        await self.brokers[0].kill()
        await self.brokers[0].start()
        say("a broker was killed and is back")


def say(text: str) -> None:
    """Tell how far it is."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def run(scale: Scale, directory: Path) -> list[Figures]:
    """Run it all. Raises AssertionError for the first message that is not what was sent."""
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(
            bookkeeper_cluster(ClusterOptions(directory=directory / "cluster"), CLOCK)
        )
        master, volume, filer, s3 = free_ports(PORT_COUNT, CLOCK, grpc=True)
        options = SeaweedOptions(
            directory=directory / "seaweed", ports=(master, volume, filer, s3), access_key="a" * 20, secret_key="s" * 40
        )
        store = await stack.enter_async_context(seaweed(options, CLOCK))
        server = S3Server(store.endpoint, options.access_key, options.secret_key)
        bucket = stack.enter_context(bucket_at(server))
        secrets = {"ACCESS_KEY_ID": server.access_key, "ACCESS_KEY_SECRET": server.secret_key}
        for name in NAMES:
            offloaders(directory / name)
        brokers = [
            await stack.enter_async_context(
                pulsar_broker(
                    BrokerOptions(
                        directory=directory / name,
                        cluster=cluster,
                        name=name,
                        settings={**SETTINGS, "managedLedgerMaxSizePerLedgerMbytes": scale.ledger_mib},
                        environment=secrets,
                        flags=["-XX:-TieredCompilation", "-XX:TieredStopAtLevel=4"],
                    ),
                    CLOCK,
                )
            )
            for name in NAMES
        ]
        sites, daemons = [], []
        for name in ("one", "two"):
            site = Site.at(directory, cluster.zookeeper, server, bucket)
            site.cluster, site.daemon_id = "loop", name
            site.settings["ledgers"] = {"kind": "bookkeeper"}
            sites.append(site)
            daemons.append(await stack.enter_async_context(DaemonProcess(site)))
            await daemons[-1].serving()
        stock: dict[str, object] = {
            "managedLedgerOffloadDriver": "S3",
            "managedLedgerOffloadBucket": bucket,
            "managedLedgerOffloadServiceEndpoint": server.endpoint,
            "managedLedgerOffloadMaxBlockSizeInBytes": 64 << 20,
            "managedLedgerExtraConfigurations": {},
        }
        servers, found = Servers(stack, sites, daemons, brokers), []
        for policies in (stock, {}) * scale.rounds:
            driven = Driven(brokers[0], cluster, daemons[0].address, others=brokers[1:])
            found.append(await measured(driven, servers, scale, policies))
        driven = Driven(brokers[0], cluster, daemons[0].address, others=brokers[1:])
        await tried(driven, servers, scale.messages)
        return found


def compared(found: Sequence[Figures]) -> str:
    """Say how our driver did beside Pulsar's own, turn by turn."""
    turns = zip(found[::2], found[1::2], strict=True)
    reads, waits = zip(
        *(
            (theirs.catch_up_s / ours.catch_up_s, statistics.median(theirs.closes_s) / statistics.median(ours.closes_s))
            for theirs, ours in turns
        ),
        strict=True,
    )
    shown = [", ".join(f"{ratio:.2f}" for ratio in ratios) for ratios in (reads, waits)]
    return (
        f"Pulsar's own driver takes this many times as long: to catch up {shown[0]}; from close to offloaded {shown[1]}"
    )


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--messages", type=int, default=1_000_000, help="through each driver, 1000 bytes each")
    parser.add_argument("--rate", type=float, default=inf, help="messages a second while it is measured")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each driver")
    parser.add_argument("--ledger-mib", type=int, default=32, help="size of a ledger")
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="broker-run-"))
    say(f"what the servers say is in {directory} until all is well")
    scale = Scale(arguments.messages, arguments.rate, arguments.ledger_mib, arguments.rounds)
    say(compared(asyncio.run(run(scale, directory))))
    shutil.rmtree(directory)


if __name__ == "__main__":
    main()
