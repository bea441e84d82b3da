"""What an operator does about a refusal: accepts what was found, or rebuilds the topic's metadata from the bucket."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

from offloaderd.core.errors import OffloaderError
from offloaderd.core.model import RefusalKind
from offloaderd.core.names.patterns import of_topic
from offloaderd.metadata import identity, paths
from offloaderd.metadata.records import identity as identity_record
from offloaderd.metadata.records.identity import Acceptance
from offloaderd.upkeep import rebuild
from offloaderd.upkeep.flaws import Kind
from tests.simulation.bucket import BucketClient
from tests.simulation.loop import Process
from tests.simulation.zookeeper import ZooKeeper

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    from offloaderd.core.model import Position, TopicName
    from offloaderd.metadata.committed import CommittedSegment
    from offloaderd.metadata.records.identity import Refusal
    from offloaderd.upkeep.rebuild import Plan
    from offloaderd.upkeep.rebuild_plan import Problem
    from tests.simulation.world import World


OF_METADATA = {RefusalKind.METADATA_WENT_BACK, RefusalKind.HEAD_UNREADABLE}
"""What says that the metadata may have gone back."""


class Operator:
    """Lifts refusals, once the world has healed."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.chance.stream("operator")
        self._process = Process(world.loop, "operator")
        self.bucket = BucketClient(world, self._process)
        self._metadata: ZooKeeper | None = None
        self.lost: set[Position] = set()
        """The positions behind which a rebuild had to record a gap as lost."""

    @property
    def metadata(self) -> ZooKeeper:
        """The metadata, connected to when they are first asked for."""
        if self._metadata is None:
            self._metadata = ZooKeeper(self._world, self._process)
        return self._metadata

    async def lift(self, topic: TopicName) -> None:
        """Look what is refused of a topic, and do what the refusal says. Others than these kinds end by themselves.

        A list that shares nothing with what is offloaded is believed: retention at the source has taken all of it
        while nobody offloaded. So is what was found of a ledger that the source no longer has: it cannot be compared
        again. Old metadata are believed only if the source still has all that lies beyond them, and always where a
        rebuild would cost what history has offloaded and the source has deleted since.
        """
        for one in self._refusals(topic):
            if one.kind == RefusalKind.UNKNOWN_SOURCE or self._outlived(topic, one):
                await self._accept(topic, one)
            elif one.kind in OF_METADATA:
                repeatable = self._world.oracle.can_be_repeated(topic)
                if repeatable and (self._has_last_copies(topic) or self._rng.random() < 0.5):
                    await self._accept(topic, one)
                else:
                    await self._rebuild(topic)

    def _outlived(self, topic: TopicName, refusal: Refusal) -> bool:
        """Tell whether a refusal is about a ledger that the source no longer has."""
        if refusal.kind not in {RefusalKind.LEDGER_REPLACED, RefusalKind.LEDGER_SHORTER}:
            return False
        gone = {one.ledger_id for one in self._world.ledgers.topics[topic] if one.deleted}
        return not gone.isdisjoint(map(int, re.findall(r"ledger (\d+)", refusal.evidence)))

    def _has_last_copies(self, topic: TopicName) -> bool:
        """Tell whether unfinished history has offloaded what the source has no more: a rebuild begins behind it."""
        found = self._world.oracle.maps.get(topic)
        if found is None or found.unfinished is None:
            return False
        parts = [part for one in found.segments if one.begin < found.unfinished.live_begin for part in one.slices]
        return any(self._world.is_deleted(topic, part.range.begin) for part in parts)

    def refuses_old_metadata(self, topic: TopicName) -> bool:
        """Say whether a topic waits for a word on metadata that went back."""
        return any(one.kind in OF_METADATA for one in self._refusals(topic))

    def _refusals(self, topic: TopicName) -> tuple[Refusal, ...]:
        path = paths.identity(topic)
        node = self._world.tree.nodes.get(path)
        return identity_record.decode(node.value, path=path).refusals if node is not None else ()

    async def _accept(self, topic: TopicName, refusal: Refusal) -> None:
        """Do as `offloadctl identity accept`."""
        if refusal.kind in OF_METADATA:
            self._world.lose_grants(topic)
        record, version = await identity.load(self.metadata, topic)
        accepted = Acceptance(kind=refusal.kind, evidence=refusal.evidence, by="operator", at_ms=1)
        value = identity_record.encode(record.accepting(accepted))
        self._world.faults.count(f"accepted {refusal.kind}")
        await self.metadata.replace(paths.identity(topic), value, version or 0)

    async def _rebuild(self, topic: TopicName) -> None:
        """Do as `offloaderd rebuild --topic` after the topic was disabled and its nodes were moved away."""
        world = self._world
        daemon = next(one for one in world.daemons if one.up)
        await world.within(daemon, lambda: daemon.engine.deselect(of_topic(topic)))
        while paths.owner(topic) in world.tree.nodes:
            await asyncio.sleep(0.2)  # noqa: TID251 - the loop's own time
        world.trace("user", f"rebuilds {topic.local}")
        world.faults.count("rebuilt a topic")
        world.oracle.rebuilding.add(topic)
        self._world.lose_grants(topic)
        world.tree.remove(paths.topic(topic))
        found = await rebuild.read_buckets(self.bucket, self._world.sites, lambda _: None)
        plan = self._decided(found, topic)
        await rebuild.write(
            self.metadata, plan, topics=[topic], enable=True, now_ms=world.wall_ms(), progress=lambda _: None
        )
        world.oracle.rebuilding.discard(topic)
        world.oracle.restored([topic])

    def _begun_history(self, topic: TopicName, found: rebuild.Found) -> dict[UUID, CommittedSegment]:
        """Return the segments of unfinished history, between which and the live ones is a gap."""
        plan = self._world.oracle.maps[topic].unfinished
        same = [one.segment for one in found.known if one.topic == topic]
        return {one.segment_id: one for one in same if plan is not None and one.begin < plan.live_begin}

    def _is_gone(self, topic: TopicName, segments: Iterable[CommittedSegment]) -> bool:
        """Return whether the source has deleted anything of these segments."""
        return any(self._world.is_deleted(topic, part.range.begin) for one in segments for part in one.slices)

    def _noticed(self, topic: TopicName, found: rebuild.Found, problem: Problem) -> set[Position]:
        """Return the end of the segment before a gap if the entries of the gap were once recorded as lost."""
        ends = {one.segment.end for one in found.known if one.segment.segment_id == problem.segments[0]}
        return {one for one in ends if (topic, one) in self._world.oracle.noticed}

    def _decided(self, found: rebuild.Found, topic: TopicName) -> Plan:
        """Plan it, deciding whatever stands in the way."""
        prefer: set[UUID] = set()
        lost: set[Position] = set()
        without = self._world.oracle.gone_for_good
        without = without & {one.segment.segment_id for one in found.known}
        while True:
            plan = rebuild.make_plan(found, prefer=prefer, without=without, lost=lost, topics=[topic])
            blocking = [one for planned in plan.topics for one in planned.problems if one.blocks]
            if not blocking:
                return plan
            problem, begun = blocking[0], self._begun_history(topic, found)
            self._world.trace("user", f"decides over {problem.kind}: {problem.text}")
            if problem.kind is Kind.OVERLAP and problem.segments[0] not in prefer:
                prefer.add(problem.segments[0])
            elif problem.kind in {Kind.INCOMPLETE, Kind.UNREADABLE} and problem.segments[0] not in without:
                without = without | set(problem.segments)
            elif problem.kind is Kind.GAP and not self._is_gone(topic, begun.values()) and begun.keys() - without:
                without = without | begun.keys()  # as docs/failures.md says: the next owner offloads it again
            elif problem.kind is Kind.GAP and problem.segments[0] in begun and problem.segments[0] not in without:
                lost.add(begun[problem.segments[0]].end)
                self.lost |= lost
            elif problem.kind is Kind.GAP and (ends := self._noticed(topic, found, problem)) - lost:
                lost |= ends  # metadata that were lost have told of it, and no later segment
                self.lost |= lost
            else:
                break
        self._world.oracle.fail("P9", f"{topic} cannot be rebuilt: {blocking[0].text}")
        raise OffloaderError(blocking[0].text)
