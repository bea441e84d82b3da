"""A whole engine on in-memory adapters, with the loop's clock and small segments."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from offloaderd.core.limits import ByteBudget, Pace
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import Position, TopicName
from offloaderd.core.names.patterns import of_topic
from offloaderd.core.quotas import Accounts
from offloaderd.core.traces import NO_TRACES
from offloaderd.fleet.engine import Engine
from offloaderd.format import manifest_bytes
from offloaderd.format.chunks import checksums
from offloaderd.format.verify import check_index, decode_verified_block
from offloaderd.ledgers.known_source import KnownSource
from offloaderd.metadata.records.ownership import DaemonNode
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.objects import keys
from offloaderd.objects.places import Place, Places
from offloaderd.policy.policies import Level, OffloadPolicies, Origin
from offloaderd.policy.records import TopicPolicy
from offloaderd.policy.resolver import PolicyResolver
from offloaderd.segment.builder import SegmentLayout, WholeLedgers
from offloaderd.segment.roll import RollPolicy
from offloaderd.segment.upload import UploadContext, UploadLimits
from offloaderd.testing.memory.ledgers import MemoryLedgers
from offloaderd.testing.memory.metadata import MemoryTree
from offloaderd.testing.memory.objects import MemoryStore
from offloaderd.topic.buffer import BufferPool
from offloaderd.topic.idle import IdleOptions
from offloaderd.topic.outage import OutageRules, TopicContext
from tests.patience import PATIENCE_S
from tests.virtual import LoopClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from offloaderd.core.traces import Traces
    from offloaderd.fleet.supervisor import Duty
    from offloaderd.ledgers.port import BrokerOffloads, LedgerOrigin, LedgerRegister, LedgerStore
    from offloaderd.metadata.port import MetadataStore
    from offloaderd.objects.port import SegmentStore
    from offloaderd.topic.offloader import TopicOffloader

TOPIC = TopicName.parse("public/default/orders")
LAYOUT = SegmentLayout(block_bytes=4096, part_bytes=16_384)
SHORT_PARTS = SegmentLayout(block_bytes=256, part_bytes=512)
"""For segments of few entries that are to have several parts, and so an upload."""
DEADLINE_S = PATIENCE_S
UNTIL_S = 24 * 3600.0
"""Some tests wait for hours of virtual time."""


@dataclass
class Rig:
    """What one test's daemons share, and the settings of those that it starts."""

    clock: LoopClock = field(default_factory=LoopClock)
    tree: MemoryTree = field(default_factory=MemoryTree)
    ledgers: LedgerStore | None = None
    objects: SegmentStore | None = None
    policy: RollPolicy = field(default_factory=lambda: RollPolicy(segment_bytes_max=100_000, segment_age_max_s=3600.0))
    said: OffloadPolicies = field(default_factory=lambda: OffloadPolicies(deletion_lag_s=0.0))
    layout: SegmentLayout = LAYOUT
    chunk_bytes: int = 1000
    buffer_bytes: int = 4 << 20
    upload_bytes: int = 256 << 10
    readback: bool = False
    outage: OutageRules = field(default_factory=OutageRules)
    history_bytes_max: int = 4 << 30
    pace: Pace = field(default_factory=Pace)
    metrics: Metrics = field(default_factory=Metrics)
    traces: Traces = NO_TRACES
    offloads: BrokerOffloads | None = None
    places: tuple[tuple[str, str], ...] = (("b", "seg/"),)
    duties: dict[str, Duty] = field(default_factory=dict)
    suspend_after_s: float = 0.0
    origin: LedgerOrigin | None = None
    register: LedgerRegister | None = None
    deployment_id: str = ""
    reader_grace_s: float = 0.0

    def __post_init__(self) -> None:
        """Make the stores that the test did not bring."""
        self.objects = self.objects or MemoryStore(self.clock, part_bytes_min=1)

    @property
    def store(self) -> SegmentStore:
        """The bucket."""
        assert self.objects is not None
        return self.objects

    def context(self, metadata: MetadataStore, *, source: LedgerStore | None) -> TopicContext:
        """Put the shared parts of an engine together."""
        upload_context = UploadContext(
            objects=self.store,
            budget=ByteBudget(self.upload_bytes),
            limits=UploadLimits(parts_in_flight_max=3, readback=self.readback),
            clock=self.clock,
            metrics=self.metrics,
            pace=self.pace,
            traces=self.traces,
        )
        return TopicContext(
            metadata=metadata,
            source=source,
            known_source=self.known_source(metadata) if source is not None else None,
            upload_context=upload_context,
            pool=BufferPool(self.buffer_bytes),
            accounts=Accounts(self.clock, self.metrics),
            layout=self.layout,
            cluster="test",
            places=Places(
                *(
                    Place(driver={"driver": "memory", "bucket": bucket, "prefix": prefix})
                    for bucket, prefix in self.places
                )
            ),
            outage=self.outage,
            history_bytes_max=self.history_bytes_max,
            ledgers=WholeLedgers(describer=source, block_bytes=2000, part_bytes=600, run_bytes=300) if source else None,
            offloads=self.offloads,
            chunk_bytes=self.chunk_bytes,
            deployment_id=self.deployment_id,
            reader_grace_s=self.reader_grace_s,
        )

    def known_source(self, metadata: MetadataStore) -> KnownSource | None:
        """Return what tells the source from another one, if the test has said by what."""
        if self.origin is None:
            return None
        said = {"kind": "bookkeeper", "cluster": "test", "daemon_id": "one"}
        return KnownSource(metadata, self.origin, self.register, clock=self.clock, **said)

    def book(self, metadata: MetadataStore) -> PolicyResolver:
        """Return what holds for topics that say nothing: the rig's own policy."""
        said = replace(
            self.said,
            outage=self.outage.policy,
            **OffloadPolicies(
                segment_bytes_max=self.policy.segment_bytes_max,
                segment_age_max_s=self.policy.segment_age_max_s,
                segment_age_min_s=self.policy.segment_age_min_s,
                method=self.policy.method,
                threshold_bytes=self.policy.threshold_bytes,
                threshold_s=self.policy.threshold_s,
                history_order=self.policy.history_order,
                bucket=self.places[0][0],
                prefix=self.places[0][1],
            ).set_values(),
        )
        return PolicyResolver(metadata, [Level(Origin.SETTINGS, said)])

    @asynccontextmanager
    async def engine(
        self,
        name: str = "one",
        *,
        metadata: MetadataStore | None = None,
        push_only: bool = False,
        within_s: float = DEADLINE_S,
    ) -> AsyncIterator[Engine]:
        """Run an engine; at the end it drains, all within so much virtual time."""
        store = metadata or self.tree.connect()
        context = self.context(store, source=None if push_only else self.ledgers)
        engine = Engine(context, self.book(store), duties=self.duties, sleep=IdleOptions(after_s=self.suspend_after_s))
        node = DaemonNode(daemon_id=name, address=f"{name}:1", version="0", started_ms=1)
        async with asyncio.timeout(within_s), asyncio.TaskGroup() as group:
            running = group.create_task(engine.run(node))
            try:
                yield engine
                engine.drain()
                await running
            except BaseException:
                running.cancel()
                raise

    async def committed(self, topic: TopicName = TOPIC) -> list[tuple[Position, bytes]]:
        """Return every committed entry in order, from the bucket alone, checked against index and manifest."""
        found: list[tuple[Position, bytes]] = []
        for segment in (await catalog.load(self.tree.connect(), topic)).segments:
            key, store = segment.keys.data, self.store.at(segment.bucket)
            data = await store.get(key)
            described = manifest_bytes.decode(await store.get(segment.keys.manifest), key="manifest")
            assert described.data_bytes == len(data) == segment.object_bytes
            assert described.range == segment.range
            check_index(await store.get(segment.keys.index), described, key="index")
            before = len(found)
            for block in described.blocks:
                stored = data[block.offset : block.offset + block.length]
                batch = decode_verified_block(stored, block, key=key, method=segment.method)
                if block.chunks:
                    assert checksums(stored, 0, len(stored), described.chunk_bytes) == (block.crc32c, block.chunks)
                found += [
                    (Position(batch.ledger_id, batch.first_entry_id + i), payload)
                    for i, payload in enumerate(batch.payloads)
                ]
            assert found[before][0] == segment.range.begin
            assert found[-1][0] == segment.range.end
        return found

    async def leftovers(self) -> list[str]:
        """Return keys and uploads that belong to no committed segment."""
        known = {str(s.segment_id) for s in (await catalog.load(self.tree.connect(), TOPIC)).segments}
        names = [info.key async for info in self.store.list() if not beside(info.key)]
        stray = [name for name in names if name[4:40] not in known or name.endswith("-draft")]
        return stray + [f"upload of {upload.key}" async for upload in self.store.list_uploads()]


def beside(key: str) -> bool:
    """Whether an object is a topic's head or a place's marker."""
    return keys.HEADS in key or keys.MARKERS in key


async def enabled(engine: Engine, policy: TopicPolicy | None = None, topic: TopicName = TOPIC) -> TopicOffloader:
    """Enable a topic and wait for its offloader."""
    await engine.select(of_topic(topic), policy or TopicPolicy(enabled=True))
    return await offloader_of(engine, topic)


async def offloader_of(engine: Engine, topic: TopicName = TOPIC) -> TopicOffloader:
    """Wait for a topic's offloader."""
    while (found := engine.find(topic)) is None:
        await engine.changed.wait()
    return found


async def until_offloaded(topic: TopicOffloader, position: Position) -> None:
    """Wait until everything up to a position is committed."""
    while topic.offloaded is None or topic.offloaded < position:
        await topic.changed.wait()


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something holds that nobody announces; fail after UNTIL_S of the loop's time."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    while not condition():
        waited_s = loop.time() - began_s
        assert waited_s < UNTIL_S, f"what is waited for does not hold after {UNTIL_S:g} s"
        await asyncio.sleep(max(0.005, waited_s / 1000))  # noqa: TID251 - virtual time, unless the module has REAL_TIME


async def turn() -> None:
    """Let everything that is ready run once."""
    await asyncio.sleep(0)  # noqa: TID251 - gives up the turn, measures no time


def payloads(count: int, size: int = 100, *, seed: int = 0) -> list[bytes]:
    """Make distinguishable payloads."""
    return [f"{seed}/{number}/".encode().ljust(size, b".") for number in range(count)]


def memory_ledgers(clock: LoopClock, *, ledger_entries_max: int = 1000) -> MemoryLedgers:
    """Make an in-memory ledger store with small ledgers."""
    return MemoryLedgers(clock=clock, ledger_entries_max=ledger_entries_max)
