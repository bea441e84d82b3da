"""What an operator does with the places of a topic: exchanges them, deletes copies, and moves it for good.

A move is that of `offloadctl places move --delete-old`, by the command's own steps, within the process of a daemon.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, cast

from offloaderd.api.places import PlacesService
from offloaderd.cli.offloadctl import places as commands
from offloaderd.cli.progress import Bars
from offloaderd.core.errors import OffloaderError
from offloaderd.core.retry import retried
from offloaderd.policy.rules import ANYWHERE
from offloaderd.protocol.v1 import places_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from offloaderd.api.calls import Context
    from offloaderd.client import DaemonClient
    from offloaderd.core.model import TopicName
    from tests.simulation.daemon import SimDaemon
    from tests.simulation.world import World

MOVES = 0.3
"""How likely it is, where there is a mirror, that a topic moves in the end."""
WITHIN_S = 400.0
"""Longest that a move takes where nothing goes wrong."""
CALLER = cast("Context", None)


class PlacesClient:
    """Asks a daemon as the commands do, without a wire."""

    def __init__(self, daemon: SimDaemon) -> None:
        self._clock = daemon.clock
        self._service = PlacesService(daemon.engine, daemon.zookeeper, ANYWHERE, {})

    async def places(self, topic: TopicName) -> pb.ListPlacesResponse:
        """See DaemonClient."""
        return await self._service.ListPlaces(pb.ListPlacesRequest(topic=str(topic)), CALLER)

    async def set_mirror(self, topic: TopicName, mirror: str, *, dry_run: bool = False) -> pb.SetMirrorResponse:
        """See DaemonClient."""
        request = pb.SetMirrorRequest(topic=str(topic), mirror=mirror, dry_run=dry_run)
        return await retried(lambda: self._service.SetMirror(request, CALLER), clock=self._clock)

    def switch_places(
        self, topic: TopicName, *, to: str = "", dry_run: bool = False, timeout_s: float = 0.0
    ) -> AsyncGenerator[pb.SwitchProgress, None]:
        """See DaemonClient."""
        return self._service.SwitchPlaces(pb.SwitchPlacesRequest(topic=str(topic), to=to, dry_run=dry_run), CALLER)

    def delete_copies(
        self, topic: TopicName, *, dry_run: bool = False, timeout_s: float = 0.0
    ) -> AsyncGenerator[pb.DeleteCopiesProgress, None]:
        """See DaemonClient."""
        return self._service.DeleteCopies(pb.DeleteCopiesRequest(topic=str(topic), dry_run=dry_run), CALLER)


async def switch(world: World, daemon: SimDaemon, topic: TopicName) -> None:
    """Exchange the first place and the mirror of a topic."""
    async with aclosing(PlacesClient(daemon).switch_places(topic)) as progress:
        async for one in progress:
            if one.done:
                world.faults.count("switch places")


async def delete_copies(world: World, daemon: SimDaemon, topic: TopicName, pause_s: float) -> None:
    """Withdraw the mirror of a topic, delete its copies, and name the mirror again."""
    client = PlacesClient(daemon)
    mirror = (await client.set_mirror(topic, "")).before
    async with aclosing(client.delete_copies(topic)) as progress:
        async for one in progress:
            if one.done and one.copies:
                world.faults.count("delete copies")
    await daemon.clock.sleep(pause_s)
    await client.set_mirror(topic, mirror)


async def move(world: World, daemon: SimDaemon, topic: TopicName, to: str = "") -> None:
    """Move a topic to a place, else to one where it does not store now, and delete its copies in the other one."""
    asked = PlacesClient(daemon)
    first = commands.named_roles(await asked.places(topic))["first"]
    to = to or next(text for text in map("/".join, world.options.places) if text != first)
    client = cast("DaemonClient", asked)
    world.trace("user", f"moves {topic.local} to {to}")
    wait = commands.Wait(topic, None, Bars(hidden=True), daemon.clock)
    await commands.moved(client, topic, wait, to=to, dry_run=False)
    await commands.deleted(client, topic, wait, to=to, dry_run=False)
    world.faults.count("move")


async def in_the_end(world: World, *, begun: bool) -> None:
    """P8: while nothing goes wrong a topic moves, and nothing of it stays where it was; also one that was `begun`.

    The command is repeated at each owner until it comes to its end. It has none while a segment is open in the old
    place, and that of history which waits for a deleted topic stays open.
    """
    rng = world.chance.stream("move")
    if not begun and not (world.options.mirror and rng.random() < MOVES):
        return
    topic, to = rng.choice(world.topics), "/".join(rng.choice(world.options.places))
    if world.history_waits(topic):
        return
    deadline = world.loop.time() + WITHIN_S
    while not await _moved(world, topic, to):
        if world.loop.time() > deadline:
            world.oracle.fail("P8", f"{topic} has not moved in {WITHIN_S:g} s")
            return
        await asyncio.sleep(0.5)  # noqa: TID251 - the loop's own time
    await world.until_offloaded()
    found = world.oracle.maps.get(topic)
    held = {"/".join(place.place) for one in (found.segments if found else ()) for place in one.each_place}
    if held - {to}:
        world.oracle.fail("P8", f"{topic} has moved to {to}, and is in {sorted(held)}")


async def _moved(world: World, topic: TopicName, to: str) -> bool:
    """Have the owner of a topic move it, whoever that is; say whether that came to its end."""
    for daemon in world.daemons:
        try:
            if await world.within(daemon, partial(move, world, daemon, topic, to), limit_s=WITHIN_S):
                return True
        except OffloaderError as error:
            world.trace("user", f"not moved: {error}")
    return False
