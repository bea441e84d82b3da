"""A topic of every kind of ledger is read as one: from any position, by either priority, raw and as messages.

Whole ledgers in one object each (PIP-17), by Pulsar's own offloader and by a daemon, streamed segments over ledgers
and parts of them (PIP-76), the rest of a ledger in whose middle the method changed, entries that only bookies have,
and the newest ones in the buffer.
"""

from __future__ import annotations

import signal
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field, replace
from random import Random  # noqa: TID251 - a seed of the test's own
from typing import TYPE_CHECKING

import google_crc32c
import pytest

from offloaderd.core.clock import SystemClock
from offloaderd.core.model import Position
from offloaderd.core.read_options import ReadPriority
from offloaderd.drill.s3_proxy import Fault, S3Proxy, Shaking
from offloaderd.format.pb.pulsar import messages_pb2
from offloaderd.format.pulsar import broker_entry
from offloaderd.ledgers.pulsar.managed_ledger import PulsarOffload
from offloaderd.protocol.v1 import common_pb2, policy_pb2, read_pb2
from tests.integration.processes import DaemonProcess, Site
from tests.patience import PATIENCE_S
from tests.real.pulsar_messages import Assembly
from tests.real.pulsar_offloader import OffloadTo
from tests.real.writer import Plan, ledger_writer
from tests.real.written_topic import WrittenTopic, written_topic

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from pathlib import Path

    from offloaderd.client import DaemonClient
    from offloaderd.protocol.v1 import admin_pb2
    from tests.real.bookies import BookKeeperCluster
    from tests.real.pulsar_offloader import PulsarOffloader
    from tests.real.writer import LedgerWriter
    from tests.servers import S3Server

CLOCK = SystemClock()
TIERED, BOOKKEEPER = ReadPriority.TIERED_STORAGE_FIRST, ReadPriority.BOOKKEEPER_FIRST
WHOLE = policy_pb2.OffloadPolicies(method="ledger-based", threshold_bytes=0)
STREAMING = policy_pb2.OffloadPolicies(method="streaming")
NONE = policy_pb2.OffloadPolicies(method="none")
OBJECTS, SOURCE, BUFFER = common_pb2.TIER_OBJECTS, common_pb2.TIER_SOURCE, common_pb2.TIER_BUFFER


def made(at: Position, size: int) -> bytes:
    """Make an entry as a producer and a broker do: alone or two in a batch, half of them with PIP-70's head."""
    texts = [f"{at}/{number}/".encode().ljust(size, b"#") for number in range(1 + at.entry_id % 2)]
    metadata = messages_pb2.MessageMetadata(producer_name="p", sequence_id=at.entry_id, publish_time=1000)
    content = texts[0]
    if len(texts) > 1:
        metadata.num_messages_in_batch = len(texts)
        singles = [messages_pb2.SingleMessageMetadata(payload_size=len(text)) for text in texts]
        content = b"".join(sized(one.SerializeToString()) + text for one, text in zip(singles, texts, strict=True))
    client: bytes = sized(metadata.SerializeToString()) + content
    client = b"\x0e\x01" + int(google_crc32c.value(client)).to_bytes(4, "big") + client
    head = broker_entry.encode_head(broker_timestamp=1_700_000_000_000 + at.entry_id, index=at.entry_id)
    return (head if at.entry_id % 4 < 2 else b"") + client


def sized(data: bytes) -> bytes:
    """Return bytes behind their length."""
    return len(data).to_bytes(4, "big") + data


@dataclass
class Mixed:
    """The topic, and its model: every entry that readers may see, in order."""

    topic: WrittenTopic
    writer: LedgerWriter
    broker: PulsarOffloader
    to: OffloadTo
    entries: dict[Position, bytes] = field(default_factory=dict)

    async def add(self, count: int, *, size: int = 300, window: int = 16) -> None:
        """Add entries to the open ledger."""
        ledger = self.topic.ledger
        places = [Position(ledger.ledger_id, ledger.next_entry_id + number) for number in range(count)]
        self.entries |= {at: made(at, size) for at in places}
        await self.topic.add([self.entries[at] for at in places], window=window)

    async def offload_by_pulsar(self, *, delete: bool) -> None:
        """Have Pulsar offload the open ledger, closed, and list it so; with `delete` BookKeeper's copy goes."""
        ledger_id, object_id = self.topic.ledger.ledger_id, CLOCK.uuid()
        await self.topic.roll()
        properties = self.broker.offload(ledger_id, object_id, self.topic.name.managed_ledger, self.to)
        done = PulsarOffload(
            complete=True,
            bookkeeper_deleted=delete,
            segments=0,
            object_id=object_id,
            driver="aws-s3",
            properties=properties,
            offloaded_ms=CLOCK.wall_ms(),
        )
        listed = self.topic.listed
        ledgers = (replace(one, offload=done) if one.ledger_id == ledger_id else one for one in listed.ledgers)
        await self.topic.write(replace(listed, ledgers=tuple(ledgers)))
        if delete:
            await (await self.writer.open(ledger_id)).delete()

    async def change(self, client: DaemonClient, policies: policy_pb2.OffloadPolicies) -> None:
        """Switch the topic's method, and wait until its owner goes by it."""
        await client.set_policies(policy_pb2.PolicyLevel(topic=str(self.topic.name)), policies)
        method = ""
        while method != policies.method:
            async for progress in client.offload_status(self.topic.name, wait=False):
                method = progress.method
            await CLOCK.sleep(0.05)

    async def offloaded(self, client: DaemonClient, last: Position) -> None:
        """Wait until everything up to an entry is in the bucket."""
        while await self._offloaded(client) < last:
            await CLOCK.sleep(0.05)

    async def _offloaded(self, client: DaemonClient) -> Position:
        found = (await client.last_positions(self.topic.name)).offloaded
        return Position(found.ledger_id, found.entry_id)

    async def confirmed(self, client: DaemonClient, last: Position) -> None:
        """Wait until the daemon knows of an entry."""
        while True:
            found = (await client.last_positions(self.topic.name)).confirmed
            if (found.ledger_id, found.entry_id) >= last:
                return
            await CLOCK.sleep(0.05)

    async def offload(self, client: DaemonClient) -> None:
        """Have everything be offloaded, and wait."""
        last = max(self.entries)
        while await self._offloaded(client) < last:
            async for _ in client.offload(self.topic.name, wait=True, timeout_s=PATIENCE_S):
                pass
            await CLOCK.sleep(0.1)

    def starts(self, seed: int) -> list[Position]:
        """Return first, middle and last entry of every ledger, and some anywhere."""
        chance, found = Random(seed), set()  # noqa: S311 - repeatable on purpose
        for ledger_id in {at.ledger_id for at in self.entries}:
            last = max(at.entry_id for at in self.entries if at.ledger_id == ledger_id)
            found |= {Position(ledger_id, entry_id) for entry_id in (0, last // 2, last)}
        return sorted(found & self.entries.keys() | set(chance.sample(sorted(self.entries), 6)))


async def read(
    client: DaemonClient,
    mixed: Mixed,
    first: Position | None,
    priority: ReadPriority,
    last: Position | None = None,
) -> tuple[list[tuple[Position, bytes]], Counter[int]]:
    """Return the entries from `first` on in the order they came, and how many came from which tier."""
    found: list[tuple[Position, bytes]] = []
    tiers: Counter[int] = Counter()
    async for response in client.read(mixed.topic.name, first=first, last=last, read_priority=priority):
        batch = response.batch
        tiers[response.tier] += len(batch.payloads)
        found += [(Position(batch.ledger_id, at), one) for at, one in enumerate(batch.payloads, batch.first_entry_id)]
    return found, tiers


def messages_of(entries: Iterable[tuple[Position, bytes]]) -> list[tuple[Position, int, bytes]]:
    """Return the messages that a consumer would be given of entries, decoded by code of the tests' own."""
    assembly = Assembly()
    return [
        (Position(place.ledger_id, place.entry_id), place.batch_index, content.data)
        for at, payload in entries
        for place, content in assembly.messages(*at, payload)
    ]


async def read_messages(
    client: DaemonClient, mixed: Mixed, first: Position | None, priority: ReadPriority
) -> list[tuple[Position, int, bytes]]:
    """Return the messages from an entry on in the order they came."""
    found = []
    async for response in client.read_messages(mixed.topic.name, first=first, read_priority=priority):
        for one in response.messages:
            assert one.state == read_pb2.MESSAGE_STATE_PLAIN
            found.append((Position(one.position.ledger_id, one.position.entry_id), one.batch_index, one.data))
    return found


async def check(
    client: DaemonClient, mixed: Mixed, *, seed: int, until: Position | None = None
) -> dict[ReadPriority, set[int]]:
    """Read from everywhere to the end, by both priorities; returns which tiers served the reads of everything."""
    model = sorted((at, one) for at, one in mixed.entries.items() if until is None or at <= until)
    messages = messages_of(model)
    tiers = {}
    for priority in ReadPriority:
        found, served = await read(client, mixed, None, priority, until)
        assert found == model
        tiers[priority] = set(served)
        for first in mixed.starts(seed):
            if until is not None and first > until:
                continue
            begin = bisect_left(model, (first, b""))
            found, _ = await read(client, mixed, first, priority, until)
            assert found == model[begin:], f"from {first}, {priority}"
            if until is None:
                wanted = messages[bisect_left(messages, (first, -2, b"")) :]
                assert await read_messages(client, mixed, first, priority) == wanted, f"from {first}, {priority}"
    return tiers


@pytest.fixture
def site(tmp_path: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str, bookkeeper: BookKeeperCluster) -> Site:
    """A daemon that follows the bookies, with a buffer that is soon full, and grants at once what it has verified."""
    site = Site.at(tmp_path, zookeeper, s3_server, s3_bucket)
    site.settings["ledgers"] = {"kind": "bookkeeper"}
    site.settings["bookkeeper"] = {"servers": bookkeeper.zookeeper, "request_timeout_s": 2, "hedge_s": 0.5}
    site.settings["memory"] = {"buffer_bytes": "1MiB"}
    site.settings["offload"] = {"segment_age_max_s": 3600, "block_bytes": 8192}
    site.settings["grants"] = {"deletion_lag_s": 0, "interval_s": 0.2, "readback": True}
    site.settings["objects"] = {"read_timeout_s": 2}
    return site


@pytest.fixture
async def mixed(
    bookkeeper: BookKeeperCluster, stock_offloader: PulsarOffloader, s3_server: S3Server, s3_bucket: str
) -> AsyncIterator[Mixed]:
    """A topic with one open ledger."""
    async with ledger_writer(bookkeeper.zookeeper, CLOCK) as writer:
        plan = replace(Plan(ensemble=2), bookies=bookkeeper.ids[:2])
        topic = await written_topic(writer, f"public/default/m-{CLOCK.uuid().hex}", plan=plan)
        yield Mixed(topic, writer, stock_offloader, OffloadTo.s3(s3_server, s3_bucket))


async def fill(client: DaemonClient, mixed: Mixed) -> list[int]:
    """Write ledgers while the method changes; returns their ids, in order.

    Pulsar offloads two before the daemon comes, one of which BookKeeper has no more. The next is whole, the fourth and
    half of the fifth are streamed in two segments, the rest of the fifth is streamed after the switch, the sixth is
    whole, and of the seventh a part is streamed.
    """
    topic = mixed.topic
    await mixed.add(50)
    await mixed.offload_by_pulsar(delete=True)
    await mixed.add(60)
    await mixed.offload_by_pulsar(delete=False)
    await client.enable(topic.name, policies=WHOLE)
    await mixed.add(90)
    await topic.roll()
    await mixed.offloaded(client, max(mixed.entries))
    await mixed.change(client, STREAMING)
    await mixed.add(70)
    await topic.ledger.tell_lac()
    await mixed.confirmed(client, max(mixed.entries))
    await mixed.offload(client)
    await mixed.add(30)
    await topic.roll()
    await mixed.add(80)
    await topic.ledger.tell_lac()
    await mixed.confirmed(client, max(mixed.entries))
    await mixed.offload(client)
    await mixed.change(client, WHOLE)
    await mixed.add(60)
    await topic.roll()
    await mixed.add(100)
    await topic.roll()
    await mixed.offloaded(client, max(mixed.entries))
    await mixed.change(client, STREAMING)
    await mixed.add(40)
    await topic.ledger.tell_lac()
    await mixed.confirmed(client, max(mixed.entries))
    await mixed.offload(client)
    return [ledger.ledger_id for ledger in topic.ledgers]


async def live_tail(client: DaemonClient, mixed: Mixed, proxy: S3Proxy) -> None:
    """Write more than the buffer holds while nothing can be uploaded: the rest of it is only on the bookies."""
    proxy.spoil("create_upload", Fault.ERROR, times=1_000_000)
    await mixed.change(client, STREAMING)
    await mixed.add(100, size=8000)
    await mixed.topic.roll()
    await mixed.add(100, size=8000)
    await mixed.topic.ledger.tell_lac()
    await mixed.confirmed(client, max(mixed.entries))


def shape(segments: Iterable[admin_pb2.Segment]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return the committed segments' begins and ends."""
    return [
        ((one.begin.ledger_id, one.begin.entry_id), (one.end.ledger_id, one.end.entry_id))
        for one in segments
        if one.status == "Offloaded"
    ]


async def test_a_mixed_topic_is_read_as_one(site: Site, mixed: Mixed, s3_server: S3Server) -> None:
    """Before and after a crash, with the bucket or what the source kept away, and with granted ledgers deleted."""
    async with S3Proxy(s3_server.endpoint) as proxy:
        behind = replace(site, endpoint=proxy.endpoint)
        async with DaemonProcess(behind) as daemon, daemon.client() as client:
            p, q, a, b, c, d, e = await fill(client, mixed)
            assert shape(await client.segments(mixed.topic.name)) == [
                ((p, 0), (p, 49)),
                ((q, 0), (q, 59)),
                ((a, 0), (a, 89)),
                ((b, 0), (b, 69)),
                ((b, 70), (c, 79)),
                ((c, 80), (c, 139)),
                ((d, 0), (d, 99)),
                ((e, 0), (e, 39)),
            ]
            await mixed.change(client, NONE)
            await mixed.add(25)
            await mixed.topic.ledger.tell_lac()
            await mixed.confirmed(client, max(mixed.entries))
            assert await check(client, mixed, seed=1) == {TIERED: {OBJECTS, SOURCE}, BOOKKEEPER: {OBJECTS, SOURCE}}
            await live_tail(client, mixed, proxy)
            assert await check(client, mixed, seed=2) == {
                TIERED: {OBJECTS, BUFFER, SOURCE},
                BOOKKEEPER: {OBJECTS, SOURCE, BUFFER},
            }
            daemon.signal(signal.SIGKILL)
            await daemon.ended()
        async with DaemonProcess(behind) as daemon, daemon.client() as client:
            await mixed.confirmed(client, max(mixed.entries))
            proxy.shake(Shaking(1, 1.0, (Fault.ERROR, Fault.RESET)))
            found, tiers = await read(client, mixed, Position(q, 0), TIERED)
            assert (found, OBJECTS in tiers) == (sorted(mixed.entries.items())[50:], False)
            proxy.heal()
            assert OBJECTS in (await check(client, mixed, seed=3))[TIERED]
            while sum(one.state == "granted" for one in (await client.ledgers(mixed.topic.name)).ledgers) < 4:
                await CLOCK.sleep(0.05)
            await mixed.topic.trim(1, keep_nodes=True)
            await mixed.topic.trim(5)
            assert OBJECTS in (await check(client, mixed, seed=4))[BOOKKEEPER]
            await mixed.offload(client)
            assert (await check(client, mixed, seed=5))[TIERED] == {OBJECTS}


async def test_a_mixed_topic_is_read_while_bookies_are_away(
    site: Site, mixed: Mixed, bookkeeper: BookKeeperCluster
) -> None:
    """All that is offloaded comes from the bucket, whichever tier is to be asked first."""
    async with DaemonProcess(site) as daemon, daemon.client() as client:
        await fill(client, mixed)
        for bookie in bookkeeper.available():
            await bookkeeper.bookie(bookie).kill()
        tiers = await check(client, mixed, seed=6, until=max(mixed.entries))
        assert tiers == {TIERED: {OBJECTS}, BOOKKEEPER: {OBJECTS}}
