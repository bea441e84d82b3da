"""PlacementService: the daemons, the topics for which each ranks first, and draining."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence

from offloaderd.api.admin.requests import changed_or_heartbeat
from offloaderd.api.context import Context
from offloaderd.core.errors import Conflict, NotFound
from offloaderd.core.model import TopicName
from offloaderd.fleet.engine import Engine
from offloaderd.fleet.placement import standing
from offloaderd.fleet.registration import Registration
from offloaderd.format.parsing import filled
from offloaderd.metadata.records.daemon import DaemonNode
from offloaderd.protocol.v1 import placement_pb2, placement_pb2_grpc

STANDINGS = ("working", "impaired", "draining")
TURN_TOPICS = 500


class PlacementService(placement_pb2_grpc.PlacementServiceServicer):
    """Answers from the daemon's own view of the others."""

    def __init__(self, engine: Engine, registration: Registration) -> None:
        self._engine = engine
        self._registration = registration

    async def ListDaemons(
        self, request: placement_pb2.ListDaemonsRequest, context: Context
    ) -> placement_pb2.ListDaemonsResponse:
        """Return all daemons; for a topic in the order of their rank, with its owner.

        Raises NotFound for a topic that was never enabled.
        """
        placement = self._engine.placement
        response = placement_pb2.ListDaemonsResponse()
        found: Sequence[DaemonNode] = sorted(placement.members.values(), key=lambda one: one.daemon_id)
        if request.topic:
            topic = TopicName.parse(request.topic)
            found = placement.ranking(str(topic))
            owner = await self._engine.owner_of(topic)
            response.owner = owner.daemon_id if owner is not None else ""
            if owner is None and not await self._engine.has_policy(topic):
                raise NotFound(f"{topic} is not offloaded", hint="`offloadctl topics list` shows what is")
            if topic in self._engine.enabled():
                response.reason = self._engine.placed(topic, response.owner)
        counts = Counter([node.daemon_id for _, node in await self._firsts(self._engine.enabled())])
        response.daemons.extend(
            filled(
                placement_pb2.Daemon,
                one,
                standing=STANDINGS[standing(one)],
                topics=counts[one.daemon_id],
                asked=one.daemon_id == placement.me.daemon_id,
            )
            for one in found
        )
        return response

    async def Drain(
        self, request: placement_pb2.DrainRequest, context: Context
    ) -> AsyncIterator[placement_pb2.DrainProgress]:
        """Hand all topics over, or take part again. Raises Conflict when no other daemon could take them."""
        me, engine = self._engine.placement.me, self._engine
        if request.undo:
            if not request.dry_run:
                self._registration.announce(draining=False)
                await self._registration.announced()
            yield placement_pb2.DrainProgress(left=len(engine.topics()), done=True)
            return
        others = [one for one in engine.placement.members.values() if one.daemon_id != me.daemon_id]
        if not any(not one.draining for one in others):
            raise Conflict(
                f"no other daemon could take the topics of {me.daemon_id}",
                hint="start another one first; to stop this one anyway send it SIGTERM: it seals what it has",
            )
        if request.dry_run:
            yield await self._plan(me)
            return
        self._registration.announce(draining=True)
        await self._registration.announced()
        while left := len(engine.topics()):
            yield placement_pb2.DrainProgress(left=left)
            await changed_or_heartbeat(engine.changed)
        yield placement_pb2.DrainProgress(done=True)

    async def _plan(self, me: DaemonNode) -> placement_pb2.DrainProgress:
        moves = []
        for topic in self._engine.topics():
            ranking = self._engine.placement.ranking(str(topic))
            to = next(one.daemon_id for one in ranking if one.daemon_id != me.daemon_id)
            moves.append(placement_pb2.Move(topic=str(topic), to=to))
        return placement_pb2.DrainProgress(left=len(moves), moves=moves)

    async def _firsts(self, topics: Sequence[TopicName]) -> list[tuple[TopicName, DaemonNode]]:
        """Return the daemon that ranks first for each topic, giving other tasks their turn."""
        found = []
        for number, topic in enumerate(topics):
            found.append((topic, self._engine.placement.ranking(str(topic))[0]))
            if not number % TURN_TOPICS:
                await asyncio.sleep(0)  # noqa: TID251 - gives others a turn, measures no time
        return found
