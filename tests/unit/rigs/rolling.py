"""Engines that rewrite streaming segments as whole ledgers on request, and topics for them to work on."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from offloaderd.core.errors import Transient
from offloaderd.core.model import OffloadMethod, Position
from offloaderd.fleet.engine import Engine
from offloaderd.format import manifest_bytes
from offloaderd.format.verify import check_index, decode_verified_block
from offloaderd.metadata import paths
from offloaderd.metadata.records.ownership import DaemonNode
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.segment.roll import RollPolicy
from tests.unit.rigs.rig import DEADLINE_S, TOPIC, Rig, enabled, memory_ledgers, offloader_of, payloads, turn
from tests.unit.segment.test_faults import QuickClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from offloaderd.history.rollback import Progress, Rollback
    from offloaderd.metadata.port import MetadataStore
    from offloaderd.metadata.topic_map.map import TopicMap
    from offloaderd.topic.offloader import TopicOffloader


@dataclass
class Rolling:
    """A running engine and what it does on request."""

    engine: Engine
    rollback: Rollback
    store: MetadataStore

    async def offloader(self) -> TopicOffloader:
        """Wait until the topic is owned."""
        return await offloader_of(self.engine)

    async def progress(self) -> Progress:
        """Wait until the topic's duty answers."""
        offloader = await self.offloader()
        while True:
            try:
                return self.rollback.progress(offloader)
            except Transient:
                await turn()

    async def order(self, to: int | None = None) -> None:
        """Order a conversion once the duty is there."""
        await self.progress()
        await self.rollback.order(await self.offloader(), to)

    async def ended(self) -> Progress:
        """Wait until nothing is left to be done, and what was replaced is deleted."""
        while True:
            found = await self.progress()
            if found.order is not None and not found.order.active and not await self.store.children(paths.trash(TOPIC)):
                return found
            await turn()


@asynccontextmanager
async def rolling(
    rig: Rig, name: str = "one", *, metadata: MetadataStore | None = None, push_only: bool = False
) -> AsyncIterator[Rolling]:
    """Run an engine with the duty; at the end it drains."""
    store = metadata or rig.tree.connect()
    engine = Engine(rig.context(store, source=None if push_only else rig.ledgers), rig.book(store))
    node = DaemonNode(daemon_id=name, address=f"{name}:1", version="0", started_ms=1)
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
        running = group.create_task(engine.run(node))
        try:
            yield Rolling(engine, engine.rollback, store)
            engine.drain()
            await running
        except BaseException:
            running.cancel()
            raise


async def streamed(
    *segments: int, ledger_entries: int = 10, size: int = 100, rig: Rig | None = None
) -> tuple[Rig, list[bytes]]:
    """Return a rig whose topic was streamed in segments of so many entries, and all that was written."""
    rig = rig or Rig(policy=RollPolicy(segment_bytes_max=1 << 30, segment_age_max_s=3600.0))
    rig.ledgers = memory_ledgers(rig.clock, ledger_entries_max=ledger_entries)
    rig.clock = QuickClock(rig)  # type: ignore[assignment]
    written: list[bytes] = []
    async with rig.engine() as engine:
        topic = await enabled(engine)
        for number, count in enumerate(segments):
            more = payloads(count, size, seed=number)
            written += more
            last = await rig.ledgers.append(TOPIC, more)
            await topic.request_roll()
            while topic.offloaded is None or topic.offloaded < last:
                await topic.changed.wait()
    return rig, written


async def map_of(rig: Rig) -> TopicMap:
    """The topic as it is stored."""
    return await catalog.load(rig.tree.connect(), TOPIC)


def shape(topic_map: TopicMap) -> list[str]:
    """Say of each segment which ledgers it holds, `V1` before a whole one."""
    return [
        ("V1 " if one.method is OffloadMethod.LEDGER_BASED else "")
        + " ".join(f"{part.ledger_id}:{part.first_entry_id}-{part.last_entry_id}" for part in one.slices)
        for one in topic_map.segments
    ]


async def read_all(rig: Rig) -> list[bytes]:
    """Return every committed payload, by the map and the blocks of each segment's manifest."""
    found: list[tuple[Position, bytes]] = []
    for segment in (await map_of(rig)).segments:
        data = await rig.store.get(segment.keys.data)
        described = manifest_bytes.decode(await rig.store.get(segment.keys.manifest), key="manifest")
        assert described.data_bytes == len(data) == segment.object_bytes
        assert segment.is_run_of(described.ledgers)
        check_index(await rig.store.get(segment.keys.index), described, key="index")
        for block in described.blocks:
            stored = data[block.offset : block.offset + block.length]
            batch = decode_verified_block(stored, block, key="data", method=segment.method)
            at = Position(batch.ledger_id, batch.first_entry_id)
            if segment.holds(at):
                found += [(at._replace(entry_id=at.entry_id + n), one) for n, one in enumerate(batch.payloads)]
    assert found == sorted(found)
    return [payload for _, payload in found]
