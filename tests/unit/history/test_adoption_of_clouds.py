"""Ledgers that Pulsar's drivers for Google and Azure wrote, in stores over the services' own protocols."""

from __future__ import annotations

import pytest

from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import Position
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.objects.places import Place
from offloaderd.objects.retrying import RetryingReader
from offloaderd.policy.resolver import PolicyResolver
from offloaderd.read.reader import TopicReader
from offloaderd.segment.roll import RollPolicy
from offloaderd.testing.memory.ledgers import MemoryLedgers
from offloaderd.upkeep.flaws import Level
from offloaderd.upkeep.verify.cluster import check_committed
from tests.unit.history.test_adoption import Brokers, ids
from tests.unit.read.build import Hot
from tests.unit.rigs.rig import TOPIC, Rig, enabled, until_offloaded
from tests.unit.rigs.services import BUCKET, store_of
from tests.unit.rigs.stored_maps import StoredMaps

REAL_TIME = "the services in the process listen on sockets"


@pytest.mark.parametrize(("kind", "driver"), [("azure", "azureblob"), ("gcs", "google-cloud-storage")])
async def test_ledgers_of_a_broker_are_adopted_read_and_verified(
    kind: str, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The objects lie where the broker left them, every entry is read, and verification finds damage, and only that."""
    monkeypatch.setattr("tests.unit.rigs.rig.Place", lambda **of: Place(driver={**of["driver"], "driver": driver}))
    async with store_of(kind) as (store, _):
        rig = Rig(objects=store, policy=RollPolicy(segment_bytes_max=1_000_000, segment_age_max_s=0.05))
        rig.places = ((BUCKET, "seg/"),)
        rig.ledgers = ledgers = MemoryLedgers(clock=rig.clock)
        rig.offloads = brokers = Brokers(rig, ledgers)
        contents = await brokers.write([50, 2])
        theirs, ours = await ids(brokers)
        copy = await brokers.offload(theirs, contents[0])
        copy.driver, copy.bucket = driver, BUCKET
        async with rig.engine() as engine:
            await until_offloaded(await enabled(engine), Position(ours, 1))
        segments = (await catalog.load(rig.tree.connect(), TOPIC)).segments
        assert [(one.begin.ledger_id, one.foreign) for one in segments] == [(theirs, True), (ours, False)]
        assert segments[0].driver == driver
        metadata = rig.tree.connect()
        topic_reader = TopicReader(
            maps=StoredMaps(metadata),
            policies=PolicyResolver(metadata),
            objects=store,
            source=None,
            hot=Hot(),
            clock=rig.clock,
            metrics=Metrics(),
        )
        async with topic_reader:
            found = [bytes(one) async for batch, _ in topic_reader.read(TOPIC) for one in batch.payloads]
        assert found == [*contents[0], *contents[1]]
        reader = RetryingReader(store, clock=rig.clock)

        async def flaws() -> int:
            known, _ = await check_committed(reader, TOPIC, segments[0], Level.FULL, cluster="test", buckets={BUCKET})
            return len(known)

        assert await flaws() == 0
        data = await store.get(segments[0].keys.data)
        await store.put(segments[0].keys.data, data[:-1])
        assert await flaws() > 0
