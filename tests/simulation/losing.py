"""One of two buckets is away while nothing else goes wrong: what is read then, and what goes on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from offloaderd.core.errors import CorruptData
from offloaderd.format.head import decode_marker
from offloaderd.objects import keys
from tests.simulation.bucket import PREFIXES, SERVICES
from tests.simulation.daemon import CLUSTER

if TYPE_CHECKING:
    from offloaderd.core.model import TopicName
    from tests.simulation.world import World

WITHIN_S = 400.0
"""Longest that topics take to offload some entries."""


async def each(world: World) -> None:
    """Lose one bucket after the other, where the mirror has its own."""
    if world.options.mirror and world.options.apart:
        for bucket in dict(world.options.places):
            await _one(world, bucket)


async def _one(world: World, bucket: str) -> None:
    """P6 and P8: what has a copy is read, and what is stored elsewhere is offloaded, by daemons that start as well.

    Copies are made once the bucket is back.
    """
    world.conditions[SERVICES[bucket]] = "outage"
    world.trace("fate", f"{SERVICES[bucket]} is away")
    maps = world.oracle.maps
    copied = [topic for topic in world.topics if topic in maps and all(held.mirror for held in maps[topic].segments)]
    world.faults.fired["read without a bucket"] += len(copied)
    await world.read_all(copied)
    if all(_goes_on_without(world, topic, bucket) for topic in world.topics):
        world.faults.count("offloaded without a bucket")
        for daemon in world.daemons if world.chance.seed % 2 and _is_marked(world) else ():
            daemon.crash()
            daemon.start()
        for topic in world.topics:
            world.ledgers.append(topic, [100] * 3)
            world.ledgers.confirm(topic)
        deadline = world.loop.time() + WITHIN_S
        while not all(map(world.done, world.topics)):
            if world.loop.time() > deadline:
                world.oracle.fail("P8", f"nothing is offloaded in {WITHIN_S:g} s while {bucket} is away")
                return
            await asyncio.sleep(0.5)  # noqa: TID251 - the loop's own time
    world.conditions.clear()
    world.trace("fate", f"{SERVICES[bucket]} is back")
    await world.until_offloaded()


def _is_marked(world: World) -> bool:
    """Say whether the marker of each place can be read: else a daemon that starts needs the heads of all places.

    Only they say whether a topic is of another deployment, which the marker may have named.
    """
    for prefix in PREFIXES:
        key = keys.marker(prefix, CLUSTER)
        if (data := world.buckets.data(key)) is not None:
            try:
                decode_marker(data, key=key)
            except CorruptData:
                return False
    return True


def _goes_on_without(world: World, topic: TopicName, bucket: str) -> bool:
    """Say whether a topic needs no bucket but others to offload: it has no segment there, and does not store there.

    Nor has it a newest ledger that is closed: if the source deletes that, a next owner cannot tell that the one behind
    it follows, and no loss is recorded before all heads were read.
    """
    found, ledgers = world.oracle.maps.get(topic), world.ledgers.topics[topic]
    owners = (daemon.engine.find(topic) for daemon in world.daemons if daemon.up)
    places = {(owned.policy.place or world.options.places[0])[0] for owned in owners if owned is not None}
    held = {segment.bucket for segment in (found.segments if found else ())}
    return bool(ledgers) and not ledgers[-1].closed and bool(places) and bucket not in places | held
