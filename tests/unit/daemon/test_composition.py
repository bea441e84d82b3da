"""From settings to components: what several sections decide together, and what is put together from them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from pydantic import SecretStr

from offloaderd.bookkeeper.settings import BookkeeperSettings
from offloaderd.core.errors import Transient
from offloaderd.core.limits import ByteBudget
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import TierRetention
from offloaderd.daemon import components as serving
from offloaderd.daemon import stores
from offloaderd.daemon import topic_context as contexts
from offloaderd.daemon.settings import Settings
from offloaderd.daemon.settings.sections import MemorySettings
from offloaderd.daemon.stores import Ledgers
from offloaderd.history.rewrite import cut_of
from offloaderd.ledgers.settings import LedgersSettings
from offloaderd.metadata.settings import MetadataSettings
from offloaderd.objects.settings import ObjectsSettings
from offloaderd.policy.policies import Origin, effective
from offloaderd.policy.rules import Surroundings
from offloaderd.segment.settings import OffloadSettings
from offloaderd.spark.jobs import executors
from offloaderd.testing.memory.ledgers import MemoryLedgers
from offloaderd.testing.memory.metadata import MemoryTree
from offloaderd.testing.memory.objects import MemoryStore
from offloaderd.topic.buffer import BufferPool
from offloaderd.topic.settings import SpillSettings
from offloaderd.upkeep.retention import Limits, limits_of
from offloaderd.upkeep.settings import GrantSettings, RetentionSettings
from offloaderd.upkeep.verify.cluster import CALLS_BYTES
from tests.unit.read.build import turns
from tests.virtual import LoopClock

if TYPE_CHECKING:
    from pathlib import Path

FILES = ObjectsSettings(kind="filesystem")
SETTINGS = Settings(objects=FILES, bookkeeper=BookkeeperSettings(servers="zk:2181"))


def test_outages(tmp_path: Path) -> None:
    """Policy and place to spill arrive, with their limit in the metrics; no topic may hold all that uploads may."""
    metrics = Metrics()
    spill = SpillSettings(directory=str(tmp_path / "spill"), bytes_max=64 << 20)
    settings = Settings(objects=FILES, spill=spill)
    area = contexts.spill_area(settings, metrics)
    assert area is not None
    assert (area.directory, area.bytes_max) == (tmp_path / "spill", 64 << 20)
    assert not area.directory.exists(), "nothing is opened yet"
    assert metrics.registry.get_sample_value("offloaderd_spill_limit_bytes") == 64 << 20
    assert contexts.spill_area(Settings(objects=FILES), metrics) is None
    assert contexts.parts_of_topic(settings) == 4
    tight = Settings(objects=FILES, memory=MemorySettings(upload_bytes=24 << 20))
    assert contexts.parts_of_topic(tight) == 2


def test_a_small_window_bounds_single_reads_too() -> None:
    """What one ledger's reader has on its way is never more than one bookie may have, nor more than is of use."""
    assert BookkeeperSettings(requests_in_flight_max=17).singles_window == 17
    assert BookkeeperSettings().singles_window == 64


def test_the_clusters_zookeeper_is_the_daemons_unless_it_is_named() -> None:
    """One list of servers serves both in the usual case."""
    assert SETTINGS.cluster_servers == "zk:2181"
    ours = Settings(objects=FILES, metadata=MetadataSettings(servers="m:2181"))
    assert ours.cluster_servers == "m:2181"


def test_retention_and_grants() -> None:
    """Limits of 0 are none; how long the source keeps ledgers."""
    settings = Settings(
        objects=FILES,
        retention=RetentionSettings(kind=TierRetention.LIMITED, size_bytes=5),
        grants=GrantSettings(deletion_lag_s=9),
    )
    holds = effective(contexts.policy_levels(settings))
    assert holds.values.deletion_lag_s == 9
    assert limits_of(holds) == Limits(TierRetention.LIMITED, None, 5)
    aged = RetentionSettings(kind=TierRetention.LIMITED, age_s=4)
    limits = limits_of(effective(contexts.policy_levels(Settings(objects=FILES, retention=aged))))
    assert limits == Limits(TierRetention.LIMITED, 4, None)


def test_what_is_written_down_is_told_from_what_is_so_by_default() -> None:
    """Of every value it is known whether somebody set it in the daemon's file; all of them agree with the settings."""
    settings = Settings(objects=FILES, offload=OffloadSettings(segment_age_max_s=30))
    holds = effective(contexts.policy_levels(settings))
    assert holds.levels["segment_age_max_s"].origin is Origin.SETTINGS
    assert holds.levels["segment_bytes_max"].origin is Origin.DEFAULT
    assert holds.values.segment_bytes_max == settings.offload.segment_bytes_max
    untouched = effective([])
    by_settings = effective(contexts.policy_levels(Settings(objects=FILES)))
    assert replace(by_settings.values, bucket="", prefix="") == untouched.values


def test_a_policy_has_to_go_with_the_daemon() -> None:
    """Its bucket, its prefix, whether closed ledgers can be read, and whether brokers may delete them."""
    objects = ObjectsSettings(bucket="b-1", prefix="p/")
    for kind, has_source, has_brokers in (
        ("none", False, False),
        ("embedded", True, False),
        ("bookkeeper", True, True),
    ):
        settings = Settings(objects=objects, ledgers=LedgersSettings(kind=kind))
        expected = Surroundings(
            places=(("b-1", "p/"),), has_source=has_source, has_brokers=has_brokers, services={"b-1": "aws"}
        )
        assert serving.surroundings(settings) == expected


def test_ledgers_are_cut_alike_with_a_source_and_without() -> None:
    """What is rewritten as whole ledgers follows the same settings where there is nobody to describe a ledger."""
    settings = SETTINGS.model_copy(update={"offload": OffloadSettings(block_bytes=2 << 20, part_bytes=16 << 20)})
    clock, metrics = LoopClock(), Metrics()
    store = MemoryLedgers(clock=clock, ledger_entries_max=10)
    made = [
        contexts.topic_context(
            settings,
            MemoryTree().connect(),
            MemoryStore(clock),
            ledgers,
            BufferPool(1),
            ByteBudget(64 << 20),
            clock=clock,
            metrics=metrics,
        )
        for ledgers in (Ledgers(), Ledgers(source=store, describer=store))
    ]
    assert (made[0].ledgers, made[0].cut) == (None, made[1].cut)
    cut = cut_of(made[0])
    assert (cut.block_bytes, cut.part_bytes, cut.run_bytes) == (64 << 20, 16 << 20, 2 << 20)
    told = {"entries": 3, "payload_bytes": 30, "metadata": b"m"}
    assert cut.layout(**told) == cut_of(made[1]).layout(**told)  # type: ignore[arg-type]


async def test_a_backfill_reaches_the_metadata_as_the_daemon_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """By TLS and as whom the settings say: nodes that a job makes have the same owner."""
    metadata = MetadataSettings(username="offloaderd", password=SecretStr("x"), tls=True, tls_ca_file="/ca.pem")
    settings = SETTINGS.model_copy(update={"metadata": metadata})
    seen: list[object] = []

    def made(_servers: str, _root: str, options: MetadataSettings, **_: object) -> NoReturn:
        seen.append(options)
        raise Transient("no server in this test")

    monkeypatch.setattr(stores, "ZooKeeperStore", made)
    with pytest.raises(Transient):
        await executors.open_stores(settings, LoopClock()).__aenter__()
    assert seen == [metadata]


async def test_calls_that_verify_hold_so_much_however_many_they_are() -> None:
    """A role to read is enough for them, and blocks may be large."""
    held = most = 0

    class Slow(MemoryStore):
        async def get(self, key: str, first: int = 0, length: int | None = None) -> bytes:
            nonlocal held, most
            held += length or 0
            most = max(most, held)
            await turns(3)
            held -= length or 0
            return await super().get(key, first, length)

    objects = Slow(LoopClock(), part_bytes_min=1)
    await objects.put("block", b"x")
    engine: Any = SimpleNamespace(book=SimpleNamespace(of=None))
    keeper, reader = SimpleNamespace(found=None), SimpleNamespace(priority=None)
    layouts: Any = SimpleNamespace(reader=reader, metadata=MemoryTree().connect(), clock=LoopClock(), of=None)
    made: Any = serving.inspection(SETTINGS, engine, layouts, objects, keeper)  # type: ignore[arg-type]

    async def look() -> None:
        async with made.verifier._reader().piece("block", 0, 5 << 20):
            pass

    async with asyncio.TaskGroup() as group:
        for _ in range(40):
            group.create_task(look())
    assert 0 < most <= CALLS_BYTES
