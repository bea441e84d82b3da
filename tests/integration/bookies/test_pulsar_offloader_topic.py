"""A topic in every form there is: V1 by Pulsar's offloader, V1 and V2 by a daemon, bookies and buffer, read as one."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from socket import gethostname
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from azure.storage.blob import AccountSasPermissions, ResourceTypes, generate_account_sas

from offloaderd.core.clock import SystemClock
from offloaderd.core.model import Position
from offloaderd.ledgers.pulsar.managed_ledger import PulsarOffload
from offloaderd.objects import keys
from offloaderd.objects.s3.store import S3Store
from offloaderd.objects.settings import ObjectsSettings
from offloaderd.protocol.v1 import common_pb2, policy_pb2
from offloaderd.standalone.ports import LOOPBACK
from tests.azure.service import ACCOUNT, KEY
from tests.integration.processes import DaemonProcess, Site
from tests.patience import PATIENCE_S
from tests.real import gcs_emulator
from tests.real.pulsar_offloader import AZURE_DRIVER, GOOGLE_DRIVER, OffloadTo, pulsar_offloader
from tests.real.writer import Plan, ledger_writer
from tests.real.written_topic import written_topic

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from offloaderd.client import DaemonClient
    from tests.real.bookies import BookKeeperCluster
    from tests.real.pulsar_offloader import PulsarOffloader
    from tests.real.writer import LedgerWriter
    from tests.real.written_topic import WrittenTopic
    from tests.servers import S3Server

CLOCK = SystemClock()
WHOLE = policy_pb2.OffloadPolicies(method="ledger-based", threshold_bytes=0)
STREAMING = policy_pb2.OffloadPolicies(method="streaming")


@dataclass
class BrokeredTopic:
    """A topic whose broker offloads by itself, and all that was ever written to it."""

    topic: WrittenTopic
    writer: LedgerWriter
    broker: PulsarOffloader
    to: OffloadTo
    driver: str
    """As its broker names it in the list of ledgers."""
    entries: dict[Position, bytes] = field(default_factory=dict)

    async def add(self, count: int, *, size: int = 3000) -> int:
        """Add entries to the open ledger, and return its id."""
        ledger = self.topic.ledger
        first = ledger.next_entry_id
        made = [f"{ledger.ledger_id}:{first + number}/".encode().ljust(size, b"#") for number in range(count)]
        await self.topic.add(made, window=1)
        self.entries |= {Position(ledger.ledger_id, first + number): one for number, one in enumerate(made)}
        return ledger.ledger_id

    async def offload(self, ledger_id: int, *, delete: bool) -> None:
        """Have Pulsar offload a closed ledger and say so in its list; with `delete` BookKeeper's copy goes, too."""
        object_id = CLOCK.uuid()
        properties = self.broker.offload(ledger_id, object_id, self.topic.name.managed_ledger, self.to)
        done = PulsarOffload(
            complete=True,
            bookkeeper_deleted=delete,
            segments=0,
            object_id=object_id,
            driver=self.driver,
            properties=properties,
            offloaded_ms=CLOCK.wall_ms(),
        )
        listed = self.topic.listed
        ledgers = [replace(one, offload=done) if one.ledger_id == ledger_id else one for one in listed.ledgers]
        await self.topic.write(replace(listed, ledgers=tuple(ledgers)))
        if delete:
            await (await self.writer.open(ledger_id)).delete()

    async def read(
        self, client: DaemonClient, first: Position | None = None
    ) -> tuple[dict[Position, bytes], set[object]]:
        """Return the entries from `first` on, and the tiers that they came from."""
        found: dict[Position, bytes] = {}
        tiers: set[object] = set()
        async for response in client.read(self.topic.name, first=first):
            tiers.add(response.tier)
            for entry_id, payload in enumerate(response.batch.payloads, response.batch.first_entry_id):
                found[Position(response.batch.ledger_id, entry_id)] = payload
        return found, tiers

    def since(self, first: Position) -> dict[Position, bytes]:
        """Return what was written from a position on and can be seen: all but the last entry of an open ledger."""
        return {position: one for position, one in self.entries.items() if first <= position < max(self.entries)}


@pytest.fixture
def site(tmp_path: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str, bookkeeper: BookKeeperCluster) -> Site:
    """A daemon's surroundings: the bookies, and a ZooKeeper and a bucket of its own."""
    return with_bookies(Site.at(tmp_path, zookeeper, s3_server, s3_bucket), bookkeeper)


def with_bookies(site: Site, bookkeeper: BookKeeperCluster) -> Site:
    """Have a site's daemons read the bookies."""
    site.settings["ledgers"] = {"kind": "bookkeeper"}
    site.settings["bookkeeper"] = {"servers": bookkeeper.zookeeper, "request_timeout_s": 2, "hedge_s": 0.5}
    site.settings["offload"] = {"preamble": True}
    return site


@asynccontextmanager
async def brokered_topic(
    bookkeeper: BookKeeperCluster, broker: PulsarOffloader, to: OffloadTo, driver: str
) -> AsyncIterator[BrokeredTopic]:
    """Make a topic with one open ledger on two of three bookies."""
    async with ledger_writer(bookkeeper.zookeeper, CLOCK) as writer:
        plan = replace(Plan(ensemble=2), bookies=bookkeeper.ids[:2])
        topic = await written_topic(writer, f"public/default/b-{CLOCK.uuid().hex}", plan=plan)
        yield BrokeredTopic(topic, writer, broker, to, driver)


@pytest.fixture
async def brokered(
    bookkeeper: BookKeeperCluster, stock_offloader: PulsarOffloader, s3_server: S3Server, s3_bucket: str
) -> AsyncIterator[BrokeredTopic]:
    """A topic whose broker offloads to S3."""
    async with brokered_topic(bookkeeper, stock_offloader, OffloadTo.s3(s3_server, s3_bucket), "aws-s3") as topic:
        yield topic


async def offloaded(client: DaemonClient, brokered: BrokeredTopic) -> None:
    """Have the daemon offload all that there is, and wait."""
    async for _ in client.offload(brokered.topic.name, wait=True, timeout_s=PATIENCE_S):
        pass


async def test_every_form_is_read_as_one(
    site: Site, brokered: BrokeredTopic, s3_server: S3Server, s3_bucket: str
) -> None:
    """Ledgers that Pulsar offloaded, with and without a copy left, between V1 and V2 of a daemon and the live tail."""
    ledgers = []
    for count in (300, 2500, 200, 150):
        ledgers.append(await brokered.add(count))
        await brokered.topic.roll()
    await brokered.offload(ledgers[0], delete=True)
    await brokered.offload(ledgers[2], delete=False)
    async with AsyncExitStack() as stack:
        daemon = await stack.enter_async_context(DaemonProcess(site))
        client = await stack.enter_async_context(daemon.client())
        await client.enable(brokered.topic.name, policies=WHOLE)
        await offloaded(client, brokered)
        await client.enable(brokered.topic.name, policies=STREAMING)
        streamed = await brokered.add(180)
        await brokered.topic.roll()
        await offloaded(client, brokered)
        tail = await brokered.add(40)
        while (await client.status(brokered.topic.name)).topics[0].confirmed.entry_id < 38:
            await CLOCK.sleep(0.05)
        segments = [one for one in await client.segments(brokered.topic.name) if one.status == "Offloaded"]
        begins = [Position(one.begin.ledger_id, one.begin.entry_id) for one in segments]
        assert begins == [Position(one, 0) for one in (*ledgers, streamed)]
        everything, tiers = await brokered.read(client)
        assert everything == brokered.since(min(brokered.entries))
        assert common_pb2.TIER_OBJECTS in tiers
        assert tiers & {common_pb2.TIER_BUFFER, common_pb2.TIER_SOURCE}  # the tailer may be a moment behind
        for first in (
            Position(ledgers[0], 299), Position(ledgers[1], 1), Position(ledgers[1], 2000), Position(ledgers[2], 128),
            Position(ledgers[3], 149), Position(streamed, 0), Position(streamed, 77), Position(tail, 5),
        ):  # fmt: skip
            found, _ = await brokered.read(client, first)
            assert found == brokered.since(first), first
    options = ObjectsSettings(
        bucket=s3_bucket,
        endpoint=s3_server.endpoint,
        access_key=s3_server.access_key,
        secret_key=s3_server.secret_key,
    )
    async with S3Store(options) as store:
        stored = {info.key async for info in store.list()}
    ids = [UUID(one.segment_id) for one in segments]
    for ledger_id, object_id in ((ledgers[1], ids[1]), (ledgers[3], ids[3])):
        prefix = next(key for key in stored if key.endswith(keys.SegmentKeys("", object_id, ledger_id).data))
        assert prefix == keys.SegmentKeys("", object_id, ledger_id).data, "Pulsar knows of no prefix"
        with closing(brokered.broker.open_v1(ledger_id, object_id, brokered.to)) as handle:
            last = handle.last_add_confirmed
            assert dict(handle.read(0, last)) == contents(brokered, ledger_id)
    with closing(brokered.broker.open_v2(streamed, [ids[4]], brokered.to)) as handle:
        for _ in range(2):
            assert dict(handle.read(0, 179)) == contents(brokered, streamed)


async def test_ledgers_that_pulsar_put_into_azure_are_read(
    azure_site: Site, bookkeeper: BookKeeperCluster, tmp_path: Path
) -> None:
    """By its driver azureblob."""
    host = f"{ACCOUNT}.localhost"  # the driver wants its account in the host's name, as Azure has it
    (hosts := tmp_path / "hosts").write_text(f"{LOOPBACK} localhost {host} {gethostname()}\n")
    to = OffloadTo(
        driver=AZURE_DRIVER,
        endpoint=azure_site.endpoint.replace(LOOPBACK, host),
        account=ACCOUNT,
        secret=account_token(),
        bucket=azure_site.bucket,
    )
    await are_read(azure_site, bookkeeper, to, [f"-Djdk.net.hosts.file={hosts}"])


@pytest.mark.skipif(bool(gcs_emulator.lacking()), reason=gcs_emulator.lacking())
async def test_ledgers_that_pulsar_put_into_google_are_read(gcs_site: Site, bookkeeper: BookKeeperCluster) -> None:
    """By its driver google-cloud-storage, with a token in place of an account."""
    to = OffloadTo(
        driver=GOOGLE_DRIVER, endpoint=gcs_site.endpoint, account="tests", secret="token", bucket=gcs_site.bucket
    )
    await are_read(gcs_site, bookkeeper, to, ["-Djclouds.oauth.credential-type=bearerTokenCredentials"])


async def are_read(site: Site, bookkeeper: BookKeeperCluster, to: OffloadTo, flags: Sequence[str]) -> None:
    """Have ledgers of Pulsar adopted, read and verified by a daemon, and one of the daemon read by Pulsar's handle."""
    site = with_bookies(site, bookkeeper)
    async with AsyncExitStack() as stack:
        running = pulsar_offloader(bookkeeper.metadata_uri, site.directory / "jvm", CLOCK, flags=flags)
        broker = await stack.enter_async_context(running)
        brokered = await stack.enter_async_context(brokered_topic(bookkeeper, broker, to, to.driver))
        ledgers = []
        for count in (300, 2500, 200):
            ledgers.append(await brokered.add(count))
            await brokered.topic.roll()
        await brokered.offload(ledgers[0], delete=True)
        await brokered.offload(ledgers[1], delete=True)
        async with DaemonProcess(site) as daemon, daemon.client() as client:
            await client.enable(brokered.topic.name, policies=WHOLE)
            await offloaded(client, brokered)
            everything, _ = await brokered.read(client)
            segments = [one for one in await client.segments(brokered.topic.name) if one.status == "Offloaded"]
            verified = [event async for event in client.verify(brokered.topic.name)]
        assert everything == brokered.entries
        assert [one.begin.ledger_id for one in segments] == ledgers
        assert [event.segment.begin.ledger_id for event in verified[:-1]] == ledgers
        assert not [flaw for event in verified for flaw in (*event.segment.flaws, *event.between.flaws)]
        with closing(broker.open_v1(ledgers[2], UUID(segments[2].segment_id), to)) as handle:
            assert dict(handle.read(0, 199)) == contents(brokered, ledgers[2])


def account_token() -> str:
    """Return a SAS token with all rights: Azurite refuses the signature that the driver makes of a key."""
    all_of_it = ResourceTypes(service=True, container=True, object=True)
    until = datetime.fromtimestamp(CLOCK.wall_ms() / 1000, UTC) + timedelta(hours=2)
    rights = AccountSasPermissions(read=True, write=True, delete=True, list=True, add=True, create=True)
    return generate_account_sas(ACCOUNT, KEY, all_of_it, rights, until)


def contents(brokered: BrokeredTopic, ledger_id: int) -> dict[int, bytes]:
    """Return what was written to a ledger."""
    return {position.entry_id: one for position, one in brokered.entries.items() if position.ledger_id == ledger_id}


async def test_pulsar_reads_our_segments(site: Site, brokered: BrokeredTopic) -> None:
    """Segments of several ledgers, and one that begins inside of a ledger, are read by Pulsar's handle of PIP-76."""
    ledgers = [await brokered.add(200)]
    await brokered.topic.roll()
    ledgers.append(await brokered.add(300))
    await brokered.topic.roll()
    ledgers.append(await brokered.add(150))
    async with DaemonProcess(site) as daemon, daemon.client() as client:
        await client.enable(brokered.topic.name, policies=STREAMING)
        await offloaded(client, brokered)
        await brokered.add(250)
        await brokered.topic.roll()
        await offloaded(client, brokered)
        segments = [one for one in await client.segments(brokered.topic.name) if one.status == "Offloaded"]
    assert len(segments) == 2
    assert segments[1].begin.ledger_id == ledgers[2]
    assert segments[1].begin.entry_id > 128
    ids = [UUID(one.segment_id) for one in segments]
    for ledger_id, held in ((ledgers[0], ids[:1]), (ledgers[1], ids[:1]), (ledgers[2], ids)):
        wanted = contents(brokered, ledger_id)
        with closing(brokered.broker.open_v2(ledger_id, held, brokered.to)) as handle:
            for _ in range(2):  # whoever reads a segment to its end can read it again
                assert dict(handle.read(0, max(wanted))) == wanted
            assert dict(handle.read(100, 120)).items() >= {one: wanted[one] for one in range(100, 121)}.items()
