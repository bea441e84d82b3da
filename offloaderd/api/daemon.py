"""Services about the daemon itself: its settings, log levels and pauses, its examination, placement, and upkeep."""

import asyncio
import math
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import KW_ONLY, dataclass
from uuid import UUID

from offloaderd.api.calls import Context
from offloaderd.api.manual_offload import changed_or_heartbeat
from offloaderd.api.paging import page
from offloaderd.core.clock import Clock
from offloaderd.core.errors import Conflict, InvalidInput, NotFound
from offloaderd.core.model import TopicName
from offloaderd.fleet.engine import Engine
from offloaderd.fleet.placement import standing
from offloaderd.fleet.registration import Registration
from offloaderd.format.parsing import filled
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.records.ownership import DaemonNode
from offloaderd.policy import updates
from offloaderd.policy.records import Paused
from offloaderd.protocol.v1 import (
    control_pb2,
    control_pb2_grpc,
    doctor_pb2,
    doctor_pb2_grpc,
    placement_pb2,
    placement_pb2_grpc,
    upkeep_pb2,
    upkeep_pb2_grpc,
)
from offloaderd.upkeep.gc.collector import Collector
from offloaderd.upkeep.gc.findings import Finding


@dataclass(eq=False)
class ControlService(control_pb2_grpc.ControlServiceServicer):
    """Answers for the daemon `daemon_id`.

    `reload` takes the caller and whether it is a dry run, and returns the changes (`daemon.reload.Change`). The others
    are methods of `LogLevels`; `pass_level_on` has the other processes of the host do the same. Without `metadata` no
    topic can be paused.
    """

    metadata: MetadataStore | None
    clock: Clock
    _: KW_ONLY
    daemon_id: str
    reload: Callable[[str, bool], Sequence[object]]
    shown: Callable[[], Sequence[object]]
    raised: Callable[[str, str, float], object]
    fallen: Callable[[str], None]
    pass_level_on: Callable[[str, str, float], Awaitable[None]] | None = None

    async def Reload(self, request: control_pb2.ReloadRequest, context: Context) -> control_pb2.ReloadResponse:
        """Apply the settings as they are written now. Raises InvalidConfig, Conflict."""
        changes = self.reload(context.peer(), request.dry_run)
        return filled(control_pb2.ReloadResponse, request, changes=changes, daemon_id=self.daemon_id)

    async def ListLogLevels(self, request: control_pb2.ListLogLevelsRequest, context: Context) -> control_pb2.LogLevels:
        """Return the level of the daemon, then of each module with another one."""
        levels, token = page(request, self._levels().levels, lambda one: one.module)
        return control_pb2.LogLevels(levels=levels, next_page_token=token)

    async def SetLogLevel(self, request: control_pb2.SetLogLevelRequest, context: Context) -> control_pb2.LogLevels:
        """Set a module's level for a time, or reset it. Raises InvalidInput."""
        if request.level:
            self.raised(request.module, request.level, request.seconds)
        else:
            self.fallen(request.module)
        if self.pass_level_on is not None:
            await self.pass_level_on(request.module, request.level, request.seconds)
        return self._levels()

    async def PauseTopic(
        self, request: control_pb2.PauseTopicRequest, context: Context
    ) -> control_pb2.PauseTopicResponse:
        """Pause a topic, or resume it. Raises NotFound when it is not enabled."""
        topic = TopicName.parse(request.topic)
        if self.metadata is None:
            raise Conflict("this daemon has no topics to pause", hint="call a daemon that offloads")
        paused = None if request.undo else Paused(self.clock.wall_ms(), context.peer())
        found = await updates.set_paused(self.metadata, self.clock, topic, paused, dry_run=request.dry_run)
        return control_pb2.PauseTopicResponse(
            topics=[
                filled(
                    control_pb2.PausedTopic,
                    one,
                    paused_ms=one.paused.since_ms if one.paused is not None else 0,
                    paused_by=one.paused.by if one.paused is not None else "",
                )
                for one in found
            ]
        )

    def _levels(self) -> control_pb2.LogLevels:
        return filled(control_pb2.LogLevels, levels=self.shown(), next_page_token="")


class DoctorService(doctor_pb2_grpc.DoctorServiceServicer):
    """Runs one examination at a time: each writes probes and opens connections of its own.

    `examine` yields values with the fields of a CheckResult.
    """

    def __init__(self, examine: Callable[[], AsyncGenerator[object, None]]) -> None:
        self._examine = examine
        self._busy = False

    async def Examine(
        self, request: doctor_pb2.ExamineRequest, context: Context
    ) -> AsyncIterator[doctor_pb2.CheckResult]:
        """Yield results as they are found. Raises Conflict while another examination runs."""
        if self._busy:
            raise Conflict("an examination is under way", hint="wait for it: it takes seconds, a minute at the most")
        self._busy = True
        try:
            async with aclosing(self._examine()) as results:
                async for result in results:
                    yield filled(doctor_pb2.CheckResult, result)
        finally:
            self._busy = False


STANDINGS = ("working", "impaired", "draining")
TURN_TOPICS = 500


class PlacementService(placement_pb2_grpc.PlacementServiceServicer):
    """Answers from the daemon's own view of the others."""

    def __init__(self, engine: Engine, registration: Registration) -> None:
        self._engine = engine
        self._registration = registration
        self._counts: Counter[str] | None = None
        """Topics of each daemon when a first page was shown; the pages behind it show the same."""

    async def ListDaemons(
        self, request: placement_pb2.ListDaemonsRequest, context: Context
    ) -> placement_pb2.ListDaemonsResponse:
        """Return all daemons; for a topic in the order of their rank, with its owner.

        Raises NotFound for a topic that was never enabled, InvalidInput for a token of a ranking that has changed.
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
        ranked = bool(request.topic)
        found, response.next_page_token = page(request, found, lambda one: one.daemon_id, ranked=ranked)
        if not request.page_token or self._counts is None:
            self._counts = await self._topics_of_each()
        counts = self._counts
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

    async def _topics_of_each(self) -> Counter[str]:
        """Return for how many topics each daemon ranks first, giving other tasks their turn."""
        found: Counter[str] = Counter()
        for number, topic in enumerate(self._engine.enabled()):
            found[self._engine.placement.first(str(topic)).daemon_id] += 1
            if not number % TURN_TOPICS:
                await asyncio.sleep(0)  # noqa: TID251 - gives others a turn, measures no time
        return found


class UpkeepService(upkeep_pb2_grpc.UpkeepServiceServicer):
    """Collects on request; `grace_s` is the grace age if the caller names none."""

    def __init__(self, collector: Collector, *, grace_s: float) -> None:
        self._collector = collector
        self.grace_s = grace_s

    async def Gc(self, request: upkeep_pb2.GcRequest, context: Context) -> AsyncIterator[upkeep_pb2.GcEvent]:
        """Yield findings, then the summary. Raises InvalidInput, and Conflict while another collection runs."""
        grace_s = request.grace_s if request.HasField("grace_s") else self.grace_s
        if not (math.isfinite(grace_s) and grace_s >= 0):
            raise InvalidInput(f"grace_s must be a number of seconds >= 0, not {grace_s}")
        also = frozenset(map(_checked_segment, request.also))
        async with aclosing(self._collector.collect(grace_s=grace_s, apply=request.apply, also=also)) as found:
            async for one in found:
                if isinstance(one, Finding):
                    yield upkeep_pb2.GcEvent(find=filled(upkeep_pb2.GcFind, one))
                else:
                    yield upkeep_pb2.GcEvent(summary=filled(upkeep_pb2.GcSummary, one))


def _checked_segment(text: str) -> UUID:
    """Parse a segment's id; raises InvalidInput."""
    try:
        return UUID(text)
    except ValueError:
        raise InvalidInput(f"not a segment: {text[:80]!r}", hint="write its whole uuid, as in its key") from None
