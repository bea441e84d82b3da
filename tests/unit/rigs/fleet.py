"""Several registered daemons over the adapters of one rig, each with a metadata session of its own."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from offloaderd.core.model import TopicName
from offloaderd.fleet.engine import Engine
from offloaderd.fleet.placement import ranked
from offloaderd.fleet.registration import Registration
from offloaderd.fleet.settings import PlacementSettings
from offloaderd.metadata import paths
from offloaderd.metadata.records import ownership
from offloaderd.metadata.records.ownership import DaemonNode
from offloaderd.policy.store import enabled_topics
from offloaderd.topic.idle import IdleOptions
from tests.unit.rigs.rig import DEADLINE_S, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from offloaderd.testing.memory.metadata import MemoryMetadata
    from tests.unit.rigs.rig import Rig

TOPICS = tuple(TopicName.parse(f"public/default/t{number}") for number in range(12))
QUICK = PlacementSettings(settle_s=0.2, grace_s=0.15, handovers_max=2, handover_s=2.0, cooldown_s=60.0)


@dataclass
class Fellow:
    """One daemon."""

    name: str
    engine: Engine
    registration: Registration
    session: MemoryMetadata

    def topics(self) -> set[TopicName]:
        """Return what it owns."""
        return set(self.engine.topics())


@asynccontextmanager
async def fellow(
    rig: Rig,
    name: str,
    *,
    options: PlacementSettings = QUICK,
    push_only: bool = False,
) -> AsyncIterator[Fellow]:
    """Run a registered daemon; at the end it leaves as one that is told to: it drains."""
    session = rig.tree.connect()
    context = rig.context(session, source=None if push_only else rig.ledgers)
    engine = Engine(context, rig.book(session), placement=options, sleep=IdleOptions(after_s=rig.suspend_after_s))
    node = DaemonNode(daemon_id=name, address=f"{name}:1", version="0", started_ms=rig.clock.wall_ms())
    registration = Registration(session, node, clock=rig.clock, patience_s=5.0, changed=engine.placement.become)
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
        await registration.open()
        staying = group.create_task(registration.run())
        running = group.create_task(engine.run(node))
        try:
            yield Fellow(name, engine, registration, session)
            registration.announce(draining=True)
            await registration.announced()
            engine.drain()
            await running
        finally:
            staying.cancel()
            running.cancel()
    session.close()


def belong(names: Sequence[str], topics: Sequence[TopicName] = TOPICS) -> dict[str, set[TopicName]]:
    """Return which topics each of some working daemons should have."""
    nodes = [DaemonNode(daemon_id=name, address="", version="", started_ms=0) for name in names]
    found: dict[str, set[TopicName]] = {name: set() for name in names}
    for topic in topics:
        found[ranked(str(topic), nodes)[0].daemon_id].add(topic)
    return found


async def settled(*fellows: Fellow) -> None:
    """Wait until each daemon owns exactly what belongs to it."""
    wanted = belong([one.name for one in fellows])
    await until(lambda: all(one.topics() == wanted[one.name] for one in fellows))


async def epochs(rig: Rig) -> dict[TopicName, int]:
    """Return how often each topic was claimed."""
    store = rig.tree.connect()
    found = {}
    for topic in await enabled_topics(store):
        path = paths.epoch(topic)
        found[topic] = ownership.decode_epoch((await store.get(path)).value, path=path).epoch
    store.close()
    return found
