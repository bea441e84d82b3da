"""Everything but the bucket is gone: an empty cluster gets its topics back, under their message ids."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pulsar

from offloaderd.core.clock import SystemClock
from offloaderd.core.names import managed_ledgers
from offloaderd.ledgers.pulsar.managed_ledger import decode
from offloaderd.ledgers.pulsar.schemas import Schema
from offloaderd.mount.lists import INDEX
from offloaderd.mount.schemas import SchemaAdmin
from tests.integration.command_line import ran
from tests.integration.processes import DaemonProcess, Site
from tests.real.driven import RECEIVE_MS, Driven
from tests.real.histories import avro
from tests.real.mounting import (
    COORDINATED,
    OWN,
    SHORT_IDS_END,
    Shape,
    accept_source,
    all_offloaded,
    cluster_of_its_own,
    coordinated,
    empty_cluster,
    follower,
    in_transactions,
    mount,
    offloaded,
    reading,
)
from tests.real.pulsar_topics import pulsar_client
from tests.real.pulsar_transactions import transactional

if TYPE_CHECKING:
    from pathlib import Path

    from tests.real.bookies import BookKeeperCluster
    from tests.real.broker import PulsarBroker
    from tests.servers import S3Server

CLOCK = SystemClock()
KINDS = ("unbatched", "batched", "batched zstd", "keyed", "chunked")
COUNT = 60
SUBSCRIPTION = "billing & more"


Message = tuple[object, bytes, str]
"""Place, data and key, as a reader gets them."""


def place_of(message: Message) -> tuple[int, int]:
    """Return the ledger and the entry of a message."""
    ledger_id, entry_id, _ = cast("tuple[int, int, int]", message[0])
    return ledger_id, entry_id


def pattern(driven: Driven) -> str:
    """Return the topics of the namespace."""
    return f"public/{driven.namespace}/*"


async def half_consumed(driven: Driven) -> list[Message]:
    """Have a subscription acknowledge the first messages, and two behind them; returns these."""

    def consume() -> list[Message]:
        with pulsar_client(driven.broker.service_url) as client:
            earliest = pulsar.InitialPosition.Earliest
            consumer = client.subscribe(str(driven.topic), SUBSCRIPTION, initial_position=earliest)
            received = [consumer.receive(RECEIVE_MS) for _ in range(15)]
            consumer.acknowledge_cumulative(received[9])
            for one in (received[11], received[13]):
                consumer.acknowledge(one)
            return [message_of(one) for one in (*received[:10], received[11], received[13])]

    return await asyncio.to_thread(consume)


async def consumed(driven: Driven, count: int) -> list[Message]:
    """Return what the subscription gets next."""

    def consume() -> list[Message]:
        with pulsar_client(driven.broker.service_url) as client:
            consumer = client.subscribe(str(driven.topic), SUBSCRIPTION)
            return [message_of(consumer.receive(RECEIVE_MS)) for _ in range(count)]

    return await asyncio.to_thread(consume)


def message_of(message: pulsar.Message) -> Message:
    """Return a message as a reader of `Driven` gives it."""
    place = message.message_id()
    return (place.ledger_id(), place.entry_id(), place.batch_index()), message.data(), message.partition_key()


async def described(driven: Driven) -> None:
    """Give the topic three versions of a schema, and a property."""
    for number in range(1, 4):
        given = {"type": "AVRO", "schema": avro(*"abc"[:number]), "properties": {"number": str(number)}}
        assert await driven.broker.send("POST", driven.schemas("schema"), given) == 200
    assert await driven.broker.put(f"{driven.path}/properties", {"colour": "red"}) == 204


async def written_and_offloaded(driven: Driven, site: Site) -> tuple[list[Message], list[Message]]:
    """Write messages of all kinds, and capture the rest.

    Returns the messages that the bucket has when the daemon ends, and those that a subscription has acknowledged.
    """
    async with DaemonProcess(site) as daemon:
        await daemon.serving()
        driven.address = daemon.address
        await driven.create()
        await driven.offload()
        await driven.write(*KINDS, count=COUNT)
        for _ in range(2):  # what was sent before the last time is known as confirmed, and so offloaded
            await driven.write("unbatched", count=3)
        written = await driven.read(COUNT * len(KINDS) + 6)
        end = await offloaded(daemon, driven.topic, place_of(written[-4]))
        await described(driven)
        acknowledged = await half_consumed(driven)
        code, said, _ = await ran(site, "offloadctl", "metadata", "capture")
        assert code == 0, said
        return [one for one in written if place_of(one) <= end], acknowledged


async def continued(driven: Driven, site: Site, written: list[Message]) -> None:
    """Offload what producers wrote after the mount, have it deleted from BookKeeper, and read everything."""
    code, said, _ = await ran(site, "offloaderd", "rebuild", "--apply", "--enable")
    assert code == 0, said
    async with DaemonProcess(site) as daemon:
        async with daemon.client() as client:
            await accept_source(client, driven.topic)
        await driven.unload()
        await offloaded(daemon, driven.topic, place_of(written[-1]))
        driven.address = daemon.address
        await driven.offload()
        await driven.freed()
        await driven.unload()
        assert await driven.read(len(written)) == written
        assert max(await driven.opened_in_tier()) > SHORT_IDS_END


async def schemas_come_up(old: Driven, new: Driven, site: Site) -> None:
    """The topic has the same versions, of the same numbers; a pair of schemas is written and compared as well."""
    admin_url = f"http://127.0.0.1:{new.broker.web}"
    site.settings["pulsar"] = {"admin_url": admin_url}
    for count in (3, 0):
        code, said = await mount(site, "schemas", pattern(new), "--json")
        assert (code, json.loads(said)["topics"][0]["versions_written"]) == (0, count), said
    found = [await one.broker.get(one.schemas("schemas")) for one in (old, new)]
    versions = [
        [(one["version"], one["data"], one["properties"]) for one in answer["getSchemaResponses"]] for answer in found
    ]
    assert versions[0] == versions[1]
    assert [number for number, _, _ in versions[0]] == [0, 1, 2]
    parts = [avro("a").encode(), b""]
    pair = Schema(
        type="KEY_VALUE",
        content=b"".join(len(part).to_bytes(4, "big") + part for part in parts),
        deleted=False,
        created_ms=0,
        properties={"key.schema.type": "AVRO", "value.schema.type": "STRING"},
    )
    async with SchemaAdmin(admin_url) as admin:
        topic = replace(new.topic, local="pairs")
        assert [await admin.restore(topic, {0: pair}) for _ in range(2)] == [1, 0]


async def test_a_cluster_that_lost_everything_reads_on_under_the_old_ids(
    tmp_path: Path,
    s3_server: S3Server,
    s3_bucket: str,
    bookkeeper: BookKeeperCluster,
    driven_broker: PulsarBroker,
) -> None:
    """Every message of the old cluster, its open ledger included; producers go on above, and join the same history."""
    old_site = follower(tmp_path, bookkeeper, s3_server, s3_bucket, CLOCK.uuid().hex)
    old = Driven(driven_broker, bookkeeper, "")
    written, acknowledged = await written_and_offloaded(old, old_site)

    site = reading(tmp_path, s3_server, s3_bucket, old_site.cluster)
    async with empty_cluster(tmp_path / "new", site) as (cluster, (broker,)), DaemonProcess(site) as reader:
        await reader.serving()
        new = Driven(broker, cluster, reader.address, namespace=old.namespace)
        code, said = await mount(site, "plan", pattern(new), "--capture", "none")
        assert (code, "the cluster has no namespace" in said) == (1, True)
        code, said = await mount(site, "apply", pattern(new))
        assert (code, f"remove-retention public/{new.namespace}" in said) == (0, True), said
        await new.offload()
        await schemas_come_up(old, new, site)

        path = managed_ledgers.topic_path(new.topic)
        with cluster.zookeeper_client() as client:
            listed = decode(client.get(path)[0], key=path)
        assert int(listed.properties[INDEX]) >= len(written) - 1, "brokers count on from the last message"
        assert listed.properties["colour"] == "red"
        left = [one for one in written if one not in acknowledged]
        assert await consumed(new, len(left)) == left
        assert await new.read(len(written)) == written
        await new.unload()
        await new.write("keyed", count=COUNT)
        everything = await new.read(len(written) + COUNT)
        assert everything[: len(written)] == written
        assert all(place_of(one)[0] > SHORT_IDS_END for one in everything[len(written) :])
        await broker.kill()
        await broker.start()
        assert await new.read(len(everything)) == everything
        await continued(new, follower(tmp_path, cluster, s3_server, s3_bucket, old_site.cluster), everything)

        code, said = await mount(site, "undo", pattern(new), "--yes")
        assert (code, "it has subscriptions" in said) == (1, True)


async def test_policies_of_topics_and_aborted_transactions_come_up_where_they_are_named(
    tmp_path: Path, s3_server: S3Server, s3_bucket: str
) -> None:
    """Brokers keep both in topics of their own, one of each a namespace."""
    kept, gone = [b"kept %d" % number for number in range(20)], [b"gone"] * 20

    shape = Shape(settings=COORDINATED)
    async with cluster_of_its_own(tmp_path / "old", shape) as (bookkeeper, (broker,)):
        await coordinated(broker, bookkeeper)
        site = follower(tmp_path, bookkeeper, s3_server, s3_bucket, CLOCK.uuid().hex)
        async with DaemonProcess(site) as daemon:
            await daemon.serving()
            old = Driven(broker, bookkeeper, daemon.address)
            topics = [old.topic, *(replace(old.topic, local=one) for one in OWN)]
            await old.create()
            await old.offload()
            async with transactional(broker, tmp_path, CLOCK) as client:
                await asyncio.to_thread(in_transactions, client, str(old.topic), kept, gone)
                assert [one.data for one in await asyncio.to_thread(client.receive, str(old.topic), len(kept))] == kept
            assert await broker.send("POST", f"{old.path}/maxConsumers", 7) == 204
            async with daemon.client() as api:
                for topic in topics:
                    await api.enable(topic)
            assert await broker.put(f"namespaces/public/{old.namespace}/unload") == 204
            await all_offloaded(daemon, topics)
            code, said, _ = await ran(site, "offloadctl", "metadata", "capture")
            assert code == 0, said

    site = reading(tmp_path, s3_server, s3_bucket, site.cluster)
    async with empty_cluster(tmp_path / "new", site, shape) as (cluster, (broker,)), DaemonProcess(site) as reader:
        await reader.serving()
        new = Driven(broker, cluster, reader.address, namespace=old.namespace)
        await coordinated(broker, cluster)
        code, said = await mount(site, "apply", pattern(new), *map(str, topics[1:]))
        assert code == 0, said
        await new.offload()
        async with transactional(broker, tmp_path, CLOCK) as client:
            assert [one.data for one in await asyncio.to_thread(client.receive, str(new.topic), len(kept))] == kept
        assert await broker.get(f"{new.path}/maxConsumers") == 7
