"""AdminService: what an operator asks of a daemon, answered from the engine and the metadata store.

The service needs little of the engine, and says so in the Protocols below; everything it answers about a topic that
another daemon owns, or that is disabled, comes from the metadata store. It raises OffloaderError; the server's
interceptor turns that into a status.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from offloaderd.errors import NotFound, Transient
from offloaderd.metadata import catalog, paths
from offloaderd.metadata.records import attempt as attempt_record
from offloaderd.metadata.records.policy import TopicPolicy
from offloaderd.model import TopicName
from offloaderd.rpc.admin_messages import (
    checked_policy,
    checked_prefix,
    committed_segment,
    lost_range,
    open_segment,
    position,
    progress_of,
    topic_status,
)
from offloaderd.rpc.v1 import admin_pb2, admin_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from offloaderd.health import Dependency
    from offloaderd.ledgers.port import LedgerSource
    from offloaderd.metadata.catalog import TopicMap
    from offloaderd.metadata.port import MetadataStore
    from offloaderd.metadata.records.attempt import Attempt
    from offloaderd.model import Position
    from offloaderd.offload.status import TopicStatus
    from offloaderd.rpc.v1.admin_pb2_grpc import _ServicerContext as Context

HEARTBEAT_S = 1.0
"""A waiting Offload call reports at least this often, so that a client can tell a slow upload from a dead daemon."""
CLAIM_S = 10.0
"""A topic that was enabled a moment ago is claimed well within this time."""


class Signal(Protocol):
    """Something that tells of changes."""

    async def wait(self) -> object:
        """Return after the next change."""
        ...


class TopicOffloader(Protocol):
    """One topic that this daemon owns."""

    @property
    def offloaded(self) -> Position | None:
        """Newest committed position."""
        ...

    @property
    def attempt(self) -> Attempt | None:
        """The open segment's record."""
        ...

    @property
    def changed(self) -> Signal:
        """Fires when the status may have changed."""
        ...

    def status(self) -> TopicStatus:
        """Return how far the topic is."""
        ...

    async def request_roll(self) -> Position | None:
        """Seal the open segment; returns the position to wait for, None when nothing is confirmed."""
        ...


class Owner(Protocol):
    """The daemon that owns a topic."""

    @property
    def daemon_id(self) -> str:
        """Its id."""
        ...

    @property
    def epoch(self) -> int:
        """Number of its ownership."""
        ...


class Engine(Protocol):
    """What the service needs of the offload engine."""

    async def enable(self, topic: TopicName, policy: TopicPolicy) -> None:
        """Start offloading a topic, or change its policy."""
        ...

    async def disable(self, topic: TopicName) -> None:
        """Complete the open segment and stop. Raises NotFound."""
        ...

    @property
    def changed(self) -> Signal:
        """Fires when a topic was claimed or released."""
        ...

    def find(self, topic: TopicName) -> TopicOffloader | None:
        """Return the topic's offloader if this daemon owns it."""
        ...

    async def owned(self, topic: TopicName) -> TopicOffloader:
        """Return the topic's offloader.

        Raises NotFound (not enabled), Conflict (owned elsewhere), Transient (being claimed), or what stalled it.
        """
        ...

    async def owner_of(self, topic: TopicName) -> Owner | None:
        """Return the topic's owner, None when nobody holds it."""
        ...

    async def topic_map(self, topic: TopicName) -> TopicMap:
        """Return the topic's committed segments."""
        ...

    def statuses(self) -> Sequence[TopicStatus]:
        """Describe every enabled topic that this daemon works on or waits for."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSnapshot:
    """The daemon as a whole, at one moment. `state` is starting, serving or draining."""

    daemon_id: str
    version: str
    state: str
    started_ms: int
    dependencies: tuple[Dependency, ...] = ()
    memory_used_bytes: int = 0
    memory_budget_bytes: int = 0


class Daemon(Protocol):
    """The composition root, as far as Status shows it."""

    def snapshot(self) -> DaemonSnapshot:
        """Return the daemon's state now."""
        ...


class AdminService(admin_pb2_grpc.AdminServiceServicer):
    """Topics, policies, manual offload, segments and status.

    `source` is None when the daemon has no ledger source; `bucket` and `prefix` say where new segments go.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        metadata: MetadataStore,
        source: LedgerSource | None,
        daemon: Daemon,
        bucket: str,
        prefix: str = "",
    ) -> None:
        self._engine = engine
        self._metadata = metadata
        self._source = source
        self._daemon = daemon
        self._bucket = bucket
        self._prefix = prefix

    async def ListTopics(  # noqa: N802 - named by the proto
        self, request: admin_pb2.ListTopicsRequest, context: Context
    ) -> admin_pb2.ListTopicsResponse:
        """Return the topics that have a policy or that the ledger source knows, in name order."""
        prefix = checked_prefix(request.prefix)
        policies = await catalog.topic_policies(self._metadata)
        enabled = {topic for topic, policy in policies.items() if isinstance(policy, TopicPolicy) and policy.enabled}
        known = set(await self._source.topics()) if self._source is not None else set()
        response = admin_pb2.ListTopicsResponse()
        for topic in sorted(policies.keys() | known):
            if prefix and (topic.tenant, topic.namespace)[: len(prefix)] != prefix:
                continue
            owner = await self._engine.owner_of(topic) if topic in enabled else None
            ledgers, entries = await self._confirmed(topic) if topic in known else (0, 0)
            response.topics.add(
                topic=str(topic),
                enabled=topic in enabled,
                owner=owner.daemon_id if owner is not None else "",
                ledgers=ledgers,
                entries=entries,
            )
        return response

    async def EnableTopic(  # noqa: N802 - named by the proto
        self, request: admin_pb2.EnableTopicRequest, context: Context
    ) -> admin_pb2.EnableTopicResponse:
        """Enable a topic, or change the policy of an enabled one."""
        await self._engine.enable(TopicName.parse(request.topic), checked_policy(request))
        return admin_pb2.EnableTopicResponse()

    async def DisableTopic(  # noqa: N802 - named by the proto
        self, request: admin_pb2.DisableTopicRequest, context: Context
    ) -> admin_pb2.DisableTopicResponse:
        """Complete the open segment and stop offloading; what was offloaded stays readable."""
        await self._engine.disable(TopicName.parse(request.topic))
        return admin_pb2.DisableTopicResponse()

    async def ListSegments(  # noqa: N802 - named by the proto
        self, request: admin_pb2.ListSegmentsRequest, context: Context
    ) -> AsyncIterator[admin_pb2.Segment]:
        """Yield the committed segments in order, then the open one."""
        topic = TopicName.parse(request.topic)
        stored = await self._engine.topic_map(topic)
        attempt = await self._attempt(topic)
        if not stored.segments and attempt is None:
            await self._known(topic)
        for segment in stored.segments:
            yield committed_segment(segment)
        if attempt is not None and (stored.offloaded is None or attempt.begin > stored.offloaded):
            offloader = self._engine.find(topic)
            status = offloader.status() if offloader is not None else None
            yield open_segment(attempt, status, bucket=self._bucket, prefix=self._prefix)

    async def Offload(  # noqa: N802 - named by the proto
        self, request: admin_pb2.OffloadRequest, context: Context
    ) -> AsyncIterator[admin_pb2.OffloadProgress]:
        """Seal the open segment; with `wait`, report until all that was confirmed at the call is committed.

        Without `wait` there is one report. A topic that is just being claimed is waited for. Raises NotFound (not
        enabled), Conflict (owned elsewhere), and what stopped the topic meanwhile.
        """
        topic = TopicName.parse(request.topic)
        offloader = await self._claimed(topic)
        target = await offloader.request_roll()
        while True:
            seen = offloader.offloaded
            progress = progress_of(target, seen, offloader.status())
            yield progress
            if progress.done or not request.wait:
                return
            if offloader.offloaded == seen:
                await changed_or_heartbeat(offloader.changed)
            if self._engine.find(topic) is not offloader:
                offloader = await self._claimed(topic)
                await offloader.request_roll()

    async def Status(  # noqa: N802 - named by the proto
        self, request: admin_pb2.StatusRequest, context: Context
    ) -> admin_pb2.StatusResponse:
        """Return the daemon's state with one topic, or all topics that this daemon works on."""
        if request.topic:
            topics = [await self._topic_status(TopicName.parse(request.topic))]
        else:
            topics = [await self._supervised_status(status) for status in self._engine.statuses()]
        now = self._daemon.snapshot()
        return admin_pb2.StatusResponse(
            daemon_id=now.daemon_id,
            version=now.version,
            state=now.state,
            started_ms=now.started_ms,
            dependencies=[
                admin_pb2.StatusResponse.Dependency(name=one.name, up=one.up, message=one.message)
                for one in now.dependencies
            ],
            topics=topics,
            memory_used_bytes=now.memory_used_bytes,
            memory_budget_bytes=now.memory_budget_bytes,
        )

    async def _topic_status(self, topic: TopicName) -> admin_pb2.TopicStatus:
        for status in self._engine.statuses():
            if status.topic == topic:
                return await self._supervised_status(status)
        stored = await self._engine.topic_map(topic)
        if not stored.segments:
            await self._known(topic)
        return admin_pb2.TopicStatus(
            topic=str(topic),
            state="stopped",
            offloaded=position(stored.offloaded),
            segments_committed=len(stored.segments),
            losses=map(lost_range, stored.losses),
        )

    async def _supervised_status(self, status: TopicStatus) -> admin_pb2.TopicStatus:
        """Complete what the engine knows by who owns the topic, and by what its owner has committed."""
        message = topic_status(status)
        if self._engine.find(status.topic) is not None:
            message.owner = status.owner or self._daemon.snapshot().daemon_id
            return message
        owner = await self._engine.owner_of(status.topic)
        stored = await self._engine.topic_map(status.topic)
        message.segments_committed = len(stored.segments)
        message.losses.extend(map(lost_range, stored.losses))
        if (offloaded := position(stored.offloaded)) is not None:
            message.offloaded.CopyFrom(offloaded)
        if owner is not None:
            message.owner, message.epoch = owner.daemon_id, owner.epoch
            if status.state == "claiming":
                message.state = "not-owner"
        return message

    async def _claimed(self, topic: TopicName) -> TopicOffloader:
        """Return the topic's offloader, waiting CLAIM_S for a claim that is under way."""
        tries = round(CLAIM_S / HEARTBEAT_S)
        while True:
            tries -= 1
            try:
                return await self._engine.owned(topic)
            except Transient:
                if tries < 0:
                    raise
            except NotFound:
                if tries < 0 or topic not in await catalog.enabled_topics(self._metadata):
                    raise
            await changed_or_heartbeat(self._engine.changed)

    async def _confirmed(self, topic: TopicName) -> tuple[int, int]:
        """Count ledgers and confirmed entries; a topic that vanished meanwhile has none."""
        if self._source is None:
            return 0, 0
        try:
            ledgers = await self._source.ledgers(topic)
            entries = sum(ledger.entries for ledger in ledgers if ledger.closed)
            if ledgers and not ledgers[-1].closed:
                entries += (await self._source.confirmed(topic, ledgers[-1].ledger_id)).last_entry_id + 1
        except NotFound:
            return 0, 0
        return len(ledgers), entries

    async def _attempt(self, topic: TopicName) -> Attempt | None:
        """Return the open segment's record: the owner's live one, else as stored."""
        offloader = self._engine.find(topic)
        if offloader is not None:
            return offloader.attempt
        path = paths.attempt(topic)
        try:
            node = await self._metadata.get(path)
        except NotFound:
            return None
        return attempt_record.decode(node.value, path=path)

    async def _known(self, topic: TopicName) -> None:
        """Raise NotFound unless the topic has a policy or the ledger source knows it."""
        if topic in await catalog.topic_policies(self._metadata):
            return
        if self._source is not None and topic in await self._source.topics():
            return
        raise NotFound(f"unknown topic {topic}", hint="`offloadctl topics list` shows what there is")


async def changed_or_heartbeat(changed: Signal) -> None:
    """Return after the next change, or after HEARTBEAT_S."""
    try:
        async with asyncio.timeout(HEARTBEAT_S):
            await changed.wait()
    except TimeoutError:
        return
