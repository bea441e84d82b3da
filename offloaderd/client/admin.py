"""The part of the client that is about topics, their segments, and the care of daemon and bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict, Unpack

from offloaderd.client.connection import Connection
from offloaderd.rpc.v1 import admin_pb2, admin_pb2_grpc, doctor_pb2, doctor_pb2_grpc, upkeep_pb2, upkeep_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from offloaderd.model import OutagePolicy, ReadPriority, TierRetention, TopicName
    from offloaderd.patterns import TopicPattern
    from offloaderd.rpc.v1 import policy_pb2


class Said(TypedDict, total=False):
    """What may be said of how topics are offloaded and kept."""

    segment_bytes_max: int | None
    segment_age_max_s: float | None
    segment_age_min_s: float | None
    read_priority: ReadPriority | None
    outage: OutagePolicy | None
    retention: TierRetention | None
    retention_age_s: float | None
    retention_bytes: int | None


class AdminCalls(Connection):
    """Calls of AdminService, DoctorService and UpkeepService, for DaemonClient to inherit."""

    @property
    def _admin(self) -> admin_pb2_grpc.AdminServiceAsyncStub:
        return admin_pb2_grpc.AdminServiceStub(self._channel)

    async def topics(self, prefix: str = "") -> Sequence[admin_pb2.TopicSummary]:
        """Return the topics below `prefix` (tenant or tenant/namespace; empty: all)."""
        with self._errors():
            request = admin_pb2.ListTopicsRequest(prefix=prefix)
            return (await self._admin.ListTopics(request, timeout=self._timeout_s)).topics

    async def selections(self) -> Sequence[admin_pb2.Selection]:
        """Return the patterns whose topics are enabled as they come."""
        with self._errors():
            request = admin_pb2.ListSelectionsRequest()
            return (await self._admin.ListSelections(request, timeout=self._timeout_s)).selections

    async def enable(
        self,
        topics: TopicName | TopicPattern | str,
        *,
        dry_run: bool = False,
        policies: policy_pb2.OffloadPolicies | None = None,
        **policy: Unpack[Said],
    ) -> admin_pb2.EnableTopicResponse:
        """Enable a topic or a pattern and return what becomes of each topic; None is left to the configuration."""
        request = admin_pb2.EnableTopicRequest(topic=str(topics), dry_run=dry_run, policies=policies, **policy)
        with self._errors():
            return await self._admin.EnableTopic(request, timeout=self._timeout_s)

    async def disable(
        self, topics: TopicName | TopicPattern | str, *, dry_run: bool = False, timeout_s: float | None = None
    ) -> admin_pb2.DisableTopicResponse:
        """Complete the open segments and stop offloading; returns what becomes of each topic."""
        with self._errors():
            request = admin_pb2.DisableTopicRequest(topic=str(topics), dry_run=dry_run)
            return await self._admin.DisableTopic(request, timeout=timeout_s or self._timeout_s)

    async def segments(self, topic: TopicName | str) -> list[admin_pb2.Segment]:
        """Return the topic's segments in order, the open one last."""
        with self._errors():
            request = admin_pb2.ListSegmentsRequest(topic=str(topic))
            return [segment async for segment in self._admin.ListSegments(request, timeout=self._timeout_s)]

    async def status(self, topic: TopicName | str | None = None) -> admin_pb2.StatusResponse:
        """Return the daemon's state with one topic, or all of its topics."""
        with self._errors():
            request = admin_pb2.StatusRequest(topic="" if topic is None else str(topic))
            return await self._admin.Status(request, timeout=self._timeout_s)

    async def examine(self, *, timeout_s: float | None = None) -> AsyncGenerator[doctor_pb2.CheckResult, None]:
        """Have the daemon try what it depends on; yields each result as it is found."""
        call = doctor_pb2_grpc.DoctorServiceStub(self._channel).Examine(doctor_pb2.ExamineRequest(), timeout=timeout_s)
        with self._errors(call):
            async for result in call:
                yield result

    async def gc(
        self, *, apply: bool, grace_s: float | None = None, also: Sequence[str] = (), timeout_s: float | None = None
    ) -> AsyncGenerator[upkeep_pb2.GcEvent, None]:
        """Have the daemon collect garbage; yields each find, then the sum. Deletes only with `apply`."""
        call = upkeep_pb2_grpc.UpkeepServiceStub(self._channel).Gc(
            upkeep_pb2.GcRequest(apply=apply, grace_s=grace_s, also=also), timeout=timeout_s
        )
        with self._errors(call):
            async for event in call:
                yield event
