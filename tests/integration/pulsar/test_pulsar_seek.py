"""Seeking in a real broker's topic, PIP-70 switched on in its middle: where we lead is where Pulsar's consumers go."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, NamedTuple

import pulsar as pulsar_module
import pytest

from offloaderd.core.clock import SystemClock
from offloaderd.core.model import Position, TopicName
from offloaderd.core.read_options import Goal, SeekKind
from offloaderd.format.pulsar.entry_time import time_of
from offloaderd.protocol.v1 import common_pb2, read_pb2
from tests.integration.processes import DaemonProcess, Site
from tests.patience import PATIENCE_S
from tests.real.pulsar import PulsarOptions, pulsar_standalone
from tests.real.pulsar_topics import KINDS, TOPIC_SETTINGS, produce, pulsar_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from offloaderd.client import DaemonClient
    from offloaderd.format.pulsar.entry_time import EntryTime
    from tests.real.pulsar import PulsarServer
    from tests.servers import S3Server

CLOCK = SystemClock()
RECEIVE_MS = 10_000
PLAIN = "brokerEntryMetadataInterceptors="
ON = (
    "brokerEntryMetadataInterceptors=org.apache.pulsar.common.intercept.AppendIndexMetadataInterceptor,"
    "org.apache.pulsar.common.intercept.AppendBrokerTimestampMetadataInterceptor"
)


class Entry(NamedTuple):
    """One entry as the daemon serves it."""

    position: Position
    time: EntryTime
    tier: int


@pytest.fixture
async def pulsar_changing(tmp_path: Path) -> AsyncIterator[tuple[PulsarServer, Path]]:
    """A Pulsar without broker entry metadata, and its configuration to be changed while it is stopped."""
    directory = tmp_path / "pulsar"
    directory.mkdir()
    settings = {**TOPIC_SETTINGS, "brokerEntryMetadataInterceptors": ""}
    async with pulsar_standalone(PulsarOptions(directory=directory, settings=settings), CLOCK) as server:
        yield server, directory / "pulsar.conf"


@pytest.fixture
def site(
    tmp_path: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str, pulsar_changing: tuple[PulsarServer, Path]
) -> Site:
    """A daemon's surroundings: that Pulsar, and a ZooKeeper and a bucket of its own; segments roll by hand only."""
    site = Site.at(tmp_path, zookeeper, s3_server, s3_bucket)
    site.settings["ledgers"] = {"kind": "bookkeeper"}
    site.settings["bookkeeper"] = {"servers": pulsar_changing[0].zookeeper}
    site.settings["pulsar"] = {"admin_url": pulsar_changing[0].admin_url}
    site.settings["offload"] = {"segment_age_max_s": 3600, "block_bytes": 4096, "part_bytes": 5 << 20}
    return site


def write(service_url: str, topic: str, first: int) -> None:
    """Produce single messages and batches with some time between."""
    with pulsar_client(service_url) as client:
        for step in range(4):
            for kind in ("unbatched", "batched"):
                numbers = range(first + 20 * step, first + 20 * step + 20)
                produce(client, topic, KINDS[kind], numbers)


def sought_by_pulsar(service_url: str, topic: str, times: list[int]) -> dict[int, Position | None]:
    """Return the entry that a consumer receives first after a seek to each time; None when it receives none."""
    found: dict[int, Position | None] = {}
    with pulsar_client(service_url) as client:
        for time in times:
            reader = client.create_reader(topic, pulsar_module.MessageId.earliest)
            reader.seek(time)
            try:
                place = reader.read_next(RECEIVE_MS if time < times[-1] else 1000).message_id()
                found[time] = Position(place.ledger_id(), place.entry_id())
            except pulsar_module.Timeout:
                found[time] = None
            reader.close()
    return found


async def all_entries(client: DaemonClient, topic: TopicName, seek: Goal | None = None) -> list[Entry]:
    """Read the whole topic, or from where a seek leads."""
    return [
        Entry(Position(answer.batch.ledger_id, answer.batch.first_entry_id + at), time_of(payload), answer.tier)
        async for answer in client.read(topic, seek=seek)
        for at, payload in enumerate(answer.batch.payloads)
    ]


async def served_to_the_end(client: DaemonClient, server: PulsarServer, topic: TopicName) -> None:
    """Wait until the daemon sees all that the broker has confirmed."""
    path = f"persistent/{topic.tenant}/{topic.namespace}/{topic.local}/internalStats"
    wanted = Position.parse((await server.get(path))["lastConfirmedEntry"])
    async with asyncio.timeout(PATIENCE_S):
        while True:
            seen = (await client.last_positions(topic)).confirmed
            if (seen.ledger_id, seen.entry_id) == wanted:
                return
            await CLOCK.sleep(0.1)


async def test_seeks_lead_where_pulsars_do(site: Site, pulsar_changing: tuple[PulsarServer, Path]) -> None:
    """By time as a reader of Pulsar, by index and sequence as a look at every entry says, from bucket and source."""
    server, conf = pulsar_changing
    topic = TopicName.parse(f"seek-{CLOCK.uuid().hex}")
    await asyncio.to_thread(write, server.service_url, str(topic), 0)
    await server.stop()
    text = conf.read_text()
    assert PLAIN in text
    conf.write_text("\n".join(ON if line.startswith(PLAIN) else line for line in text.splitlines()))
    await server.start()
    await asyncio.to_thread(write, server.service_url, str(topic), 1000)
    async with AsyncExitStack() as stack:
        daemon = await stack.enter_async_context(DaemonProcess(site))
        client = await stack.enter_async_context(daemon.client())
        await client.enable(topic)
        async for _ in client.offload(topic, wait=True, timeout_s=PATIENCE_S):
            pass
        await asyncio.to_thread(write, server.service_url, str(topic), 2000)
        await served_to_the_end(client, server, topic)
        entries = await all_entries(client, topic)
        kinds = {(entry.tier == common_pb2.TIER_OBJECTS, entry.time.message_index is None) for entry in entries}
        assert kinds == {(True, True), (True, False), (False, False)}, "PIP-70 from the middle on, a tail in the source"
        times = sorted({entry.time.time_ms for entry in entries if entry.time.time_ms is not None})
        wanted = [0, *(time + off for time in times[:: len(times) // 12] for off in (0, 1)), times[-1], times[-1] + 1]
        wanted = sorted(set(wanted))
        reference = await asyncio.to_thread(sought_by_pulsar, server.service_url, str(topic), wanted)
        for time in wanted:
            found = await client.seek(topic, Goal(SeekKind.TIME, time))
            there = found.answer != read_pb2.SEEK_ANSWER_NOTHING
            ours = Position(found.position.ledger_id, found.position.entry_id)
            assert (ours if there else None) == reference[time], time
            assert found.gets <= 1
        for number, entry in list(enumerate(entries))[::17]:
            numbered = await client.seek(topic, Goal(SeekKind.SEQUENCE, number))
            assert (numbered.position.ledger_id, numbered.position.entry_id) == entry.position
            if entry.time.message_index is not None:
                indexed = await client.seek(topic, Goal(SeekKind.INDEX, entry.time.message_index))
                assert (indexed.position.ledger_id, indexed.position.entry_id) == entry.position
        middle = Goal(SeekKind.TIME, times[len(times) // 2])
        after = [entry.position for entry in entries if (entry.time.time_ms or 0) >= middle.value]
        assert [entry.position for entry in await all_entries(client, topic, seek=middle)] == after
