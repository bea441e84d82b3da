"""Ledgers that Pulsar's own driver has offloaded: a caller reads and deletes those of the topic that it named."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from offloaderd.core.errors import BucketMissing, CorruptData, EntriesMissing, IdentityRefused
from offloaderd.core.model import RefusalKind, TopicName
from offloaderd.metadata import paths
from offloaderd.metadata.records import identity as identity_record
from offloaderd.metadata.records.identity import Refusal, TopicIdentityRecord
from offloaderd.objects.places import Place
from offloaderd.protocol.v1 import broker_pb2
from tests.unit.api.test_broker_service import OBJECT, Listing, Served, served
from tests.unit.api.test_manual import CALLER
from tests.unit.broker_objects import BrokerLedger
from tests.unit.rigs.rig import TOPIC, Rig, payloads

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MALLORYS = TopicName.parse("evil/ns/mine")


def ledger_of(topic: TopicName, rig: Rig) -> broker_pb2.OffloadedLedger:
    """Name the one ledger as a ledger of a topic."""
    bucket = rig.places[0][0]
    return broker_pb2.OffloadedLedger(topic=str(topic), ledger_id=4, object_id=OBJECT, bucket=bucket)


@asynccontextmanager
async def stored(*, warm: bool) -> AsyncIterator[tuple[Rig, Served, BrokerLedger]]:
    """Serve a bucket with one ledger of a broker, which its own broker has read before if `warm`."""
    rig = Rig()
    one = BrokerLedger(topic=TOPIC, ledger_id=4, object_id=UUID(OBJECT), payloads=payloads(9), bucket=rig.places[0][0])
    await one.put(rig.store)
    async with served(rig, register=Listing(())) as daemon:
        if warm:
            assert await read(daemon, TOPIC, rig) == one.payloads
        yield rig, daemon, one


async def read(daemon: Served, topic: TopicName, rig: Rig) -> list[bytes]:
    """Open a ledger and read all of it as one of a topic."""
    ledger = ledger_of(topic, rig)
    opened = await daemon.service.OpenLedger(broker_pb2.OpenLedgerRequest(ledger=ledger), CALLER)
    return await daemon.read_of(ledger, 0, opened.last_entry_id)


async def plan(daemon: Served, topic: TopicName, rig: Rig) -> broker_pb2.PlanLedgerResponse:
    """Ask where the first entries of a ledger are."""
    request = broker_pb2.ReadLedgerRequest(ledger=ledger_of(topic, rig), first_entry_id=0, last_entry_id=8)
    return await daemon.service.PlanLedger(request, CALLER)


async def delete(daemon: Served, topic: TopicName, rig: Rig) -> str:
    """Ask for a ledger's deletion as one of a topic."""
    request = broker_pb2.DeleteLedgerRequest(ledger=ledger_of(topic, rig))
    return (await daemon.service.DeleteLedger(request, CALLER)).outcome


@pytest.mark.parametrize("warm", [False, True])
async def test_another_topics_ledger_is_neither_opened_nor_read(warm: bool) -> None:
    """Whoever knows its id and bucket, and has a role for a topic of his own, whether it was read before or not."""
    async with stored(warm=warm) as (rig, daemon, _):
        with pytest.raises(CorruptData, match="evil/ns"):
            await read(daemon, MALLORYS, rig)
        with pytest.raises(CorruptData, match="evil/ns"):
            await daemon.read_of(ledger_of(MALLORYS, rig), 0, 8)
        with pytest.raises(CorruptData, match="evil/ns"):
            await plan(daemon, MALLORYS, rig)
        assert not (await plan(daemon, TOPIC, rig)).blocks


@pytest.mark.parametrize("warm", [False, True])
async def test_another_topics_ledger_is_not_deleted(warm: bool) -> None:
    """Its own broker reads and deletes it afterwards."""
    async with stored(warm=warm) as (rig, daemon, one):
        with pytest.raises(CorruptData, match="evil/ns"):
            await delete(daemon, MALLORYS, rig)
        assert await read(daemon, TOPIC, rig) == one.payloads
        assert await delete(daemon, TOPIC, rig) == "deleted"
        with pytest.raises(EntriesMissing):
            await read(daemon, TOPIC, rig)


async def test_what_is_deleted_was_looked_at_now() -> None:
    """Objects that another topic's have taken the place of since they were read stay."""
    async with stored(warm=True) as (rig, daemon, one):
        one.topic = MALLORYS
        await one.put(rig.store)
        with pytest.raises(CorruptData, match="orders"):
            await delete(daemon, TOPIC, rig)
        await rig.store.head(one.keys.data)


async def test_objects_that_name_no_topic_are_nobodys_by_a_callers_word() -> None:
    """Pulsar before 2.2 wrote no name, so whoever knows their id could say that they are his."""
    async with stored(warm=False) as (rig, daemon, one):
        one.nameless = True
        await one.put(rig.store)
        for topic in (TOPIC, MALLORYS):
            with pytest.raises(CorruptData, match="names none"):
                await read(daemon, topic, rig)
            with pytest.raises(CorruptData, match="names none"):
                await delete(daemon, topic, rig)


@pytest.mark.parametrize("driver", ["s3", "google-cloud-storage", "azureblob"])
async def test_ledgers_of_every_cloud_are_read_and_deleted(monkeypatch: pytest.MonkeyPatch, driver: str) -> None:
    """A broker names the bucket alone: its driver is Pulsar's for such a store."""
    monkeypatch.setattr("tests.unit.rigs.rig.Place", lambda **of: Place(driver={**of["driver"], "driver": driver}))
    async with stored(warm=True) as (rig, daemon, one):
        assert await delete(daemon, TOPIC, rig) == "deleted"
        assert not [info async for info in rig.store.list(str(one.object_id))]


async def test_a_bucket_that_is_gone_is_no_ledger_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """To read nothing is missing, and to delete there is not nothing."""
    async with stored(warm=False) as (rig, daemon, _):

        async def head(key: str) -> None:
            raise BucketMissing("no such bucket")

        monkeypatch.setattr(rig.store, "head", head)
        with pytest.raises(BucketMissing):
            await read(daemon, TOPIC, rig)
        with pytest.raises(BucketMissing):
            await delete(daemon, TOPIC, rig)


async def test_while_a_topic_is_refused_nothing_of_it_is_deleted_or_called_gone() -> None:
    """A broker that hears that there is nothing drops the ledger, whose objects may lie in another account."""
    async with stored(warm=False) as (rig, daemon, one):
        one_refused = Refusal(kind=RefusalKind.UNKNOWN_PLACE, found="not there", evidence="ledger 1", since_ms=1)
        store = rig.tree.connect()
        await store.create(paths.identity(TOPIC), identity_record.encode(TopicIdentityRecord(refusals=(one_refused,))))
        with pytest.raises(IdentityRefused, match="not there"):
            await delete(daemon, TOPIC, rig)
        await rig.store.head(one.keys.data)
        await rig.store.delete([one.keys.data, one.keys.index])
        with pytest.raises(IdentityRefused, match="not there"):
            await delete(daemon, TOPIC, rig)
        await store.delete(paths.identity(TOPIC))
        assert await delete(daemon, TOPIC, rig) == "nothing"
