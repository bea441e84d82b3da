"""AdminService's calls about manual offload: request it, plan it, and follow its outcome."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import unquote

from offloaderd.api.calls import Context
from offloaderd.core.aio import Signal
from offloaderd.core.errors import InvalidInput, NotFound, Transient
from offloaderd.core.model import OffloadMethod, Position, TopicName
from offloaderd.fleet.engine import Engine
from offloaderd.format.parsing import filled
from offloaderd.ledgers.port import LedgerSource
from offloaderd.metadata import paths
from offloaderd.metadata.nodes import node
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.records.orders import Asked
from offloaderd.policy import store as policies
from offloaderd.policy.records import TopicPolicy
from offloaderd.protocol.conversion import to_position
from offloaderd.protocol.v1 import admin_pb2 as pb
from offloaderd.protocol.v1 import admin_pb2_grpc
from offloaderd.topic import requests
from offloaderd.topic.offloader import TopicOffloader
from offloaderd.topic.requests import Fate, Outcome, Plan, Wanted, fate_of

HEARTBEAT_S = 1.0
"""Longest pause between two reports of a waiting call, so that a client can tell a slow upload from a dead daemon."""
ELSEWHERE_S = 5.0
"""How often the progress of another daemon's topic is read, which reads all its contexts."""
CLAIM_S = 10.0
"""A topic that was enabled a moment ago is claimed well within this time."""

PLANNED, UNKNOWN = "planned", "unknown"
"""Outcomes without a request: of a dry run, and of another daemon's topic."""


@dataclass(eq=False, kw_only=True)
class ManualCalls(admin_pb2_grpc.AdminServiceServicer):
    """The calls of AdminService about offloading on request. `source` None: the daemon has no ledger source."""

    engine: Engine
    metadata: MetadataStore
    source: LedgerSource | None

    async def Offload(self, request: pb.OffloadRequest, context: Context) -> AsyncIterator[pb.OffloadProgress]:
        """Offload what is requested; with `wait`, report until it is committed, whichever daemon owns the topic then.

        The topic's policy is read first, so that earlier changes count. Without `wait` there is one report; a dry run
        only plans. A topic that is being claimed is waited for. Raises InvalidInput for an impossible request, NotFound
        (not enabled), Conflict (owned by another daemon, or a method that offloads nothing), and the error that stopped
        the topic.
        """
        topic = TopicName.parse(request.topic)
        wanted = Wanted(
            to=Position(request.to.ledger_id, request.to.entry_id) if request.HasField("to") else None,
            keep_bytes=request.size_threshold if request.HasField("size_threshold") else None,
        ).checked()
        offloader = await self._claimed(topic)
        await self.engine.refresh_policy(topic)
        if request.dry_run:
            yield _planned(offloader, await offloader.by_hand.plan(wanted))
            return
        asked, plan = await offloader.by_hand.ask(wanted, unquote(context.peer()))
        async for progress in self._reports(topic, asked, wait=request.wait):
            progress.plan.extend(filled(pb.PlannedOffload, take) for take in plan.takes)
            yield progress

    async def OffloadStatus(
        self, request: pb.OffloadStatusRequest, context: Context
    ) -> AsyncIterator[pb.OffloadProgress]:
        """Report the last request, or the offload that runs by itself; with `wait`, until it ends.

        Raises NotFound for an unknown topic, or one that is not offloaded and has no request; CorruptData, Transient.
        """
        topic = TopicName.parse(request.topic)
        await self.engine.wake(topic)
        asked, offloader = await requests.read(self.metadata, topic), self.engine.find(topic)
        if asked is None and offloader is None:
            yield await self._unasked(topic)
            return
        if asked is None and offloader is not None:
            asked = await offloader.by_hand.by_itself()
        assert asked is not None  # noqa: S101 - one of the above
        async for progress in self._reports(topic, asked, wait=request.wait):
            yield progress

    async def _reports(self, topic: TopicName, asked: Asked, *, wait: bool) -> AsyncIterator[pb.OffloadProgress]:
        while True:
            offloader = self.engine.find(topic)
            seen = offloader.offloaded if offloader is not None else None
            progress = await self._report(topic, asked, offloader)
            yield progress
            if progress.done or not wait:
                return
            if offloader is None:
                await changed_or_heartbeat(self.engine.changed, ELSEWHERE_S)
            elif offloader.offloaded == seen:
                await changed_or_heartbeat(offloader.changed)

    async def _report(self, topic: TopicName, asked: Asked, offloader: TopicOffloader | None) -> pb.OffloadProgress:
        """Return the progress of a request; without the owner's own figures where that is another daemon."""
        stored, owner = await self.engine.topic_map(topic), await self.engine.owner_of(topic)
        none = offloader is not None and offloader.policy.method is OffloadMethod.NONE
        active = offloader is not None or await self._enabled(topic)
        paused = offloader is not None and offloader.policy.paused is not None
        fate = fate_of(asked, stored, none=none, paused=paused, active=active)
        progress = pb.OffloadProgress(
            target=to_position(asked.target),
            offloaded=to_position(stored.offloaded),
            wanted=asked.wanted,
            asked_ms=asked.asked_ms if asked.wanted else 0,
            asked_by=asked.asked_by,
            stood=to_position(asked.stood),
            owner=owner.daemon_id if owner is not None else "",
        )
        if offloader is not None:
            _add_progress(progress, fate, offloader, asked.target)
        elif fate.outcome is Outcome.RUNNING:
            stalled = self._stalled(topic)
            if stalled:
                fate = Fate(Outcome.FAILED, stalled)
            elif owner is None:
                progress.message = "no daemon works on the topic at the moment"
            else:
                progress.message = f"daemon {owner.daemon_id} works on it, and knows how much is left"
                progress.owner_address = owner.address
        progress.outcome, progress.reason, progress.done_ms = fate.outcome, fate.reason, fate.done_ms
        progress.done = fate.outcome is not Outcome.RUNNING
        return progress

    async def _unasked(self, topic: TopicName) -> pb.OffloadProgress:
        """Return the progress of another daemon's topic without a request."""
        await self._known(topic)
        if not await self._enabled(topic):
            raise NotFound(f"{topic} is not offloaded", hint=f"offloadctl topics enable {topic}")
        stored, owner = await self.engine.topic_map(topic), await self.engine.owner_of(topic)
        works = f"daemon {owner.daemon_id} works on the topic" if owner is not None else "no daemon works on the topic"
        return pb.OffloadProgress(
            offloaded=to_position(stored.offloaded),
            outcome=UNKNOWN,
            done=True,
            reason=f"no offload was requested; {works}",
            owner=owner.daemon_id if owner is not None else "",
            owner_address=owner.address if owner is not None else "",
        )

    def _stalled(self, topic: TopicName) -> str:
        """Return why a topic of this daemon is stalled, empty if it is not, or only for a moment."""
        status = self.engine.status(topic)
        if status is None or status.state != "stalled" or status.stalled_class == "transient":
            return ""
        return status.stalled_reason

    async def _claimed(self, topic: TopicName) -> TopicOffloader:
        """Return the topic's offloader, waiting CLAIM_S for a claim."""
        tries = round(CLAIM_S / HEARTBEAT_S)
        while True:
            tries -= 1
            try:
                return await self.engine.owned(topic)
            except Transient:
                if tries < 0:
                    raise
            except NotFound:
                if tries < 0 or not await self._enabled(topic):
                    raise
            await changed_or_heartbeat(self.engine.changed)

    async def _enabled(self, topic: TopicName) -> bool:
        """Whether some daemon offloads the topic, or is about to. Raises InvalidInput for a partitioned one."""
        policy = (await policies.read(self.metadata, [topic])).get(topic)
        if isinstance(policy, TopicPolicy) and policy.partitioned:
            hint = f"name a partition: {topic}-partition-0"
            raise InvalidInput(f"{topic} is partitioned, its entries are those of its partitions", hint=hint)
        return isinstance(policy, TopicPolicy) and policy.active

    async def _known(self, topic: TopicName) -> None:
        """Raise NotFound unless the topic has a policy or the ledger source knows it."""
        if await node(self.metadata, paths.policy(topic)) is not None:
            return
        if self.source is not None:
            with suppress(NotFound):
                await self.source.ledgers(topic)
                return
        raise NotFound(f"unknown topic {topic}", hint="`offloadctl topics list` shows what there is")


async def changed_or_heartbeat(changed: Signal, seconds: float | None = None) -> None:
    """Return after the next change, or after `seconds` (HEARTBEAT_S)."""
    try:
        async with asyncio.timeout(seconds or HEARTBEAT_S):
            await changed.wait()
    except TimeoutError:
        return


def _planned(offloader: TopicOffloader, plan: Plan) -> pb.OffloadProgress:
    nothing = plan.target is None
    entries, size = offloader.by_hand.remaining(plan.target) if plan.target is not None else (0, 0)
    return pb.OffloadProgress(
        target=to_position(plan.target),
        offloaded=to_position(offloader.offloaded),
        remaining_entries=sum(take.entries for take in plan.takes) or entries,
        remaining_bytes=sum(take.payload_bytes for take in plan.takes) or size,
        done=True,
        outcome=Outcome.NOTHING if nothing else PLANNED,
        reason=plan.reason,
        wanted=str(plan.wanted),
        method=plan.method,
        plan=[filled(pb.PlannedOffload, take) for take in plan.takes],
    )


def _add_progress(progress: pb.OffloadProgress, fate: Fate, offloader: TopicOffloader, target: Position | None) -> None:
    """Add the figures of the topic's owner."""
    progress.method = offloader.policy.method
    if fate.outcome is not Outcome.RUNNING or target is None:
        return
    status, attempt = offloader.status(), offloader.attempt
    progress.remaining_entries, progress.remaining_bytes = offloader.by_hand.remaining(target)
    progress.segment_id, progress.segment_entries = status.open_segment_id, status.open_segment_entries
    progress.message = status.stalled_reason
    if not progress.message and attempt is not None and attempt.tries:
        progress.message = f"the open segment was given up {attempt.tries} times, the last time: {attempt.last_error}"
