"""The calls of the client with one answer or a plain stream of answers."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, Generic, TypedDict, TypeVar, Unpack, cast

from google.protobuf.message import Message
from grpc import aio

from offloaderd.client.channel import Connection
from offloaderd.core.model import OutagePolicy, Position, TierRetention, TopicName
from offloaderd.core.names.patterns import TopicPattern
from offloaderd.core.read_options import Goal, ReadPriority, SeekKind
from offloaderd.protocol.conversion import to_position
from offloaderd.protocol.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    cache_pb2,
    cache_pb2_grpc,
    control_pb2,
    control_pb2_grpc,
    doctor_pb2,
    doctor_pb2_grpc,
    history_pb2,
    history_pb2_grpc,
    identity_pb2,
    identity_pb2_grpc,
    inspect_pb2,
    inspect_pb2_grpc,
    ledgers_pb2,
    ledgers_pb2_grpc,
    placement_pb2,
    placement_pb2_grpc,
    places_pb2,
    places_pb2_grpc,
    policy_pb2,
    policy_pb2_grpc,
    quota_pb2,
    quota_pb2_grpc,
    read_pb2,
    read_pb2_grpc,
    retention_pb2,
    retention_pb2_grpc,
    rollback_pb2,
    rollback_pb2_grpc,
    upkeep_pb2,
    upkeep_pb2_grpc,
)

Answer = TypeVar("Answer", bound="Message")
Service = TypeVar("Service")

PAGE_SIZE = 10_000
"""Elements of a list in one answer, which so stays below the largest message; each page costs a look at all names."""


class Said(TypedDict, total=False):
    """Policies of offload and retention; None is left to the settings."""

    segment_bytes_max: int | None
    segment_age_max_s: float | None
    segment_age_min_s: float | None
    read_priority: ReadPriority | None
    outage: OutagePolicy | None
    retention: TierRetention | None
    retention_age_s: float | None
    retention_bytes: int | None


class Stub(Generic[Service]):
    """A service of the present channel."""

    def __init__(self, make: "Callable[[aio.Channel], Service]") -> None:
        self._make = make

    def __get__(self, calls: Connection, _owner: object) -> Service:
        """Return the stub."""
        return self._make(calls._channel)  # noqa: SLF001 - a part of the connection


class Calls(Connection):
    """The calls by service, for DaemonClient to inherit."""

    _admin: Stub["admin_pb2_grpc.AdminServiceAsyncStub"] = Stub(admin_pb2_grpc.AdminServiceStub)
    _cache: Stub["cache_pb2_grpc.CacheServiceAsyncStub"] = Stub(cache_pb2_grpc.CacheServiceStub)
    _control: Stub["control_pb2_grpc.ControlServiceAsyncStub"] = Stub(control_pb2_grpc.ControlServiceStub)
    _doctor: Stub["doctor_pb2_grpc.DoctorServiceAsyncStub"] = Stub(doctor_pb2_grpc.DoctorServiceStub)
    _history: Stub["history_pb2_grpc.HistoryServiceAsyncStub"] = Stub(history_pb2_grpc.HistoryServiceStub)
    _identity: Stub["identity_pb2_grpc.IdentityServiceAsyncStub"] = Stub(identity_pb2_grpc.IdentityServiceStub)
    _inspect: Stub["inspect_pb2_grpc.InspectServiceAsyncStub"] = Stub(inspect_pb2_grpc.InspectServiceStub)
    _ledgers: Stub["ledgers_pb2_grpc.LedgerServiceAsyncStub"] = Stub(ledgers_pb2_grpc.LedgerServiceStub)
    _placement: Stub["placement_pb2_grpc.PlacementServiceAsyncStub"] = Stub(placement_pb2_grpc.PlacementServiceStub)
    _places: Stub["places_pb2_grpc.PlacesServiceAsyncStub"] = Stub(places_pb2_grpc.PlacesServiceStub)
    _policy: Stub["policy_pb2_grpc.PolicyServiceAsyncStub"] = Stub(policy_pb2_grpc.PolicyServiceStub)
    _quota: Stub["quota_pb2_grpc.QuotaServiceAsyncStub"] = Stub(quota_pb2_grpc.QuotaServiceStub)
    _reads: Stub["read_pb2_grpc.ReadServiceAsyncStub"] = Stub(read_pb2_grpc.ReadServiceStub)
    _retention: Stub["retention_pb2_grpc.RetentionServiceAsyncStub"] = Stub(retention_pb2_grpc.RetentionServiceStub)
    _rollback: Stub["rollback_pb2_grpc.RollbackServiceAsyncStub"] = Stub(rollback_pb2_grpc.RollbackServiceStub)
    _upkeep: Stub["upkeep_pb2_grpc.UpkeepServiceAsyncStub"] = Stub(upkeep_pb2_grpc.UpkeepServiceStub)

    async def _ask(
        self, method: Callable[..., Awaitable[Answer]], request: Message, timeout_s: float | None = None
    ) -> Answer:
        """Make a call with one answer, by the client's deadline unless another is given."""
        with self._errors():
            return await method(request, timeout=timeout_s or self._timeout_s)

    async def _stream(self, call: "Callable[[], aio.UnaryStreamCall[Any, Answer]]") -> AsyncGenerator[Answer, None]:
        """Make a call when its first answer is requested; yields its answers."""
        made = call()
        with self._errors(made):
            async for answer in made:
                yield answer

    async def _list(self, method: Callable[..., Awaitable[Answer]], request: Any) -> Answer:  # noqa: ANN401 - of any list
        """Return all of a list as one answer, whose pages are requested one after the other.

        Its other fields are those of the last page that has them, so an error of any page is there.
        """
        request.page_size, found = PAGE_SIZE, None
        while found is None or request.page_token:
            one: Any = await self._ask(method, request)
            request.page_token = one.next_page_token
            one.ClearField("next_page_token")
            if found is None:
                found = one
                continue
            for field, _ in one.ListFields():
                if field.message_type is not None and not field.is_repeated:
                    found.ClearField(field.name)  # a merge would leave fields of the other value in it
            found.MergeFrom(one)
        return cast("Answer", found)

    async def topics(self, prefix: str = "") -> Sequence[admin_pb2.TopicSummary]:
        """Return the topics below `prefix` (tenant or tenant/namespace; empty: all)."""
        return (await self._list(self._admin.ListTopics, admin_pb2.ListTopicsRequest(prefix=prefix))).topics

    async def selections(self) -> Sequence[admin_pb2.Selection]:
        """Return the patterns whose topics are enabled as they come."""
        return (await self._list(self._admin.ListSelections, admin_pb2.ListSelectionsRequest())).selections

    async def enable(
        self,
        topics: TopicName | TopicPattern | str,
        *,
        dry_run: bool = False,
        policies: policy_pb2.OffloadPolicies | None = None,
        timeout_s: float | None = None,
        **policy: Unpack[Said],
    ) -> admin_pb2.EnableTopicResponse:
        """Enable a topic or a pattern and return the outcome for each topic; None is left to the configuration."""
        request = admin_pb2.EnableTopicRequest(topic=str(topics), dry_run=dry_run, policies=policies, **policy)
        return await self._ask(self._admin.EnableTopic, request, timeout_s)

    async def disable(
        self, topics: TopicName | TopicPattern | str, *, dry_run: bool = False, timeout_s: float | None = None
    ) -> admin_pb2.DisableTopicResponse:
        """Complete the open segments and stop offloading; returns what becomes of each topic."""
        request = admin_pb2.DisableTopicRequest(topic=str(topics), dry_run=dry_run)
        return await self._ask(self._admin.DisableTopic, request, timeout_s)

    async def segments(self, topic: TopicName | str) -> list[admin_pb2.Segment]:
        """Return the topic's segments in order, the open one last."""
        request = admin_pb2.ListSegmentsRequest(topic=str(topic))
        with self._errors():
            return [segment async for segment in self._admin.ListSegments(request, timeout=self._timeout_s)]

    async def status(self, topic: TopicName | str | None = None, *, tables: bool = False) -> admin_pb2.StatusResponse:
        """Return the daemon's state with one topic, or all of its topics; `tables`: and the declared tables."""
        request = admin_pb2.StatusRequest(topic="" if topic is None else str(topic), tables=tables)
        return await self._ask(self._admin.Status, request)

    def offload(
        self,
        topic: TopicName | str,
        *,
        wait: bool,
        to: Position | None = None,
        size_threshold: int | None = None,
        dry_run: bool = False,
        timeout_s: float | None = None,
    ) -> AsyncGenerator[admin_pb2.OffloadProgress, None]:
        """Offload everything, or up to an entry, or all but the newest `size_threshold` bytes.

        Yields one report, or with `wait` reports until it is committed; for a dry run the plan.
        """
        request = admin_pb2.OffloadRequest(
            topic=str(topic), wait=wait, to=to_position(to), size_threshold=size_threshold, dry_run=dry_run
        )
        return self._stream(lambda: self._admin.Offload(request, timeout=timeout_s))

    def offload_status(
        self, topic: TopicName | str, *, wait: bool, timeout_s: float | None = None
    ) -> AsyncGenerator[admin_pb2.OffloadProgress, None]:
        """Yield the state of the last manual offload; with `wait` reports until none is in progress."""
        request = admin_pb2.OffloadStatusRequest(topic=str(topic), wait=wait)
        return self._stream(lambda: self._admin.OffloadStatus(request, timeout=timeout_s))

    def examine(self, *, timeout_s: float | None = None) -> AsyncGenerator[doctor_pb2.CheckResult, None]:
        """Make the daemon check its dependencies; yields the results in order."""
        return self._stream(lambda: self._doctor.Examine(doctor_pb2.ExamineRequest(), timeout=timeout_s))

    def gc(
        self, *, apply: bool, grace_s: float | None = None, also: Sequence[str] = (), timeout_s: float | None = None
    ) -> AsyncGenerator[upkeep_pb2.GcEvent, None]:
        """Make the daemon collect garbage; yields each find, then the summary. Deletes only with `apply`."""
        request = upkeep_pb2.GcRequest(apply=apply, grace_s=grace_s, also=also)
        return self._stream(lambda: self._upkeep.Gc(request, timeout=timeout_s))

    async def cache(self) -> cache_pb2.CacheState:
        """Return the state of the daemon's disk cache, and its use since the start."""
        return await self._ask(self._cache.ShowCache, cache_pb2.ShowCacheRequest())

    def warm_cache(
        self, topic: TopicName | str, *, from_time_ms: int | None = None, timeout_s: float | None = None
    ) -> AsyncGenerator[cache_pb2.WarmProgress, None]:
        """Fetch a topic into the daemon's disk cache; yields progress. Raises NotFound, Conflict without a cache."""
        request = cache_pb2.WarmCacheRequest(topic=str(topic), from_time_ms=from_time_ms)
        return self._stream(lambda: self._cache.WarmCache(request, timeout=timeout_s))

    async def purge_cache(
        self, topic: TopicName | str | None = None, *, dry_run: bool = False
    ) -> cache_pb2.CachePurged:
        """Delete a topic from the daemon's disk cache, or all. Raises Conflict without a cache that is open."""
        request = cache_pb2.PurgeCacheRequest(topic=str(topic) if topic is not None else "", dry_run=dry_run)
        return await self._ask(self._cache.PurgeCache, request)

    async def quotas(self, prefix: str = "") -> quota_pb2.ListQuotasResponse:
        """Return quotas and use of the namespaces below `prefix` (tenant or tenant/namespace; empty: all)."""
        return await self._list(self._quota.ListQuotas, quota_pb2.ListQuotasRequest(prefix=prefix))

    async def set_quotas(
        self, level: str, quotas: quota_pb2.Quotas, *, dry_run: bool = False
    ) -> quota_pb2.SetQuotasResponse:
        """Replace the quotas of a level: *, TENANT or TENANT/NAMESPACE. Raises InvalidInput with every mistake."""
        request = quota_pb2.SetQuotasRequest(level=level, quotas=quotas, dry_run=dry_run)
        return await self._ask(self._quota.SetQuotas, request)

    async def places(self, topic: TopicName | str = "") -> places_pb2.ListPlacesResponse:
        """Return the places of the daemon; for a topic with what lies in each."""
        return await self._ask(self._places.ListPlaces, places_pb2.ListPlacesRequest(topic=str(topic)))

    async def set_mirror(
        self, topic: TopicName | str, mirror: str, *, dry_run: bool = False
    ) -> places_pb2.SetMirrorResponse:
        """Name the mirror (BUCKET/PREFIX) in a topic's policy. Only its owner takes the call."""
        request = places_pb2.SetMirrorRequest(topic=str(topic), mirror=mirror, dry_run=dry_run)
        return await self._ask(self._places.SetMirror, request)

    def switch_places(
        self, topic: TopicName | str, *, to: str = "", dry_run: bool = False, timeout_s: float | None = None
    ) -> AsyncGenerator[places_pb2.SwitchProgress, None]:
        """Exchange the first place and the mirror of a topic; yields progress. Only its owner takes the call."""
        request = places_pb2.SwitchPlacesRequest(topic=str(topic), to=to, dry_run=dry_run)
        return self._stream(lambda: self._places.SwitchPlaces(request, timeout=timeout_s))

    def delete_copies(
        self, topic: TopicName | str, *, dry_run: bool = False, timeout_s: float | None = None
    ) -> AsyncGenerator[places_pb2.DeleteCopiesProgress, None]:
        """Delete the copies of a topic in places that its policy does not name; yields progress."""
        request = places_pb2.DeleteCopiesRequest(topic=str(topic), dry_run=dry_run)
        return self._stream(lambda: self._places.DeleteCopies(request, timeout=timeout_s))

    async def reload(self, *, dry_run: bool = False) -> control_pb2.ReloadResponse:
        """Make the daemon read its settings again; returns the changes. Raises InvalidConfig with every mistake."""
        return await self._ask(self._control.Reload, control_pb2.ReloadRequest(dry_run=dry_run))

    async def log_levels(self) -> Sequence[control_pb2.ModuleLevel]:
        """Return the log levels; the first is that of all modules without their own."""
        return (await self._ask(self._control.ListLogLevels, control_pb2.ListLogLevelsRequest())).levels

    async def set_log_level(self, module: str, level: str, seconds: float = 0.0) -> Sequence[control_pb2.ModuleLevel]:
        """Set the log level of a module for a time; an empty level resets it. Raises InvalidInput."""
        request = control_pb2.SetLogLevelRequest(module=module, level=level, seconds=seconds)
        return (await self._ask(self._control.SetLogLevel, request)).levels

    async def pause(
        self, topic: TopicName, *, undo: bool = False, dry_run: bool = False
    ) -> Sequence[control_pb2.PausedTopic]:
        """Pause or resume a topic and its partitions. Raises NotFound when it is not enabled."""
        request = control_pb2.PauseTopicRequest(topic=str(topic), undo=undo, dry_run=dry_run)
        return (await self._ask(self._control.PauseTopic, request)).topics

    async def plan_history(self, topic: TopicName | str, *, segment_bytes: int = 0) -> history_pb2.PlanHistoryResponse:
        """Return how the history of a topic would be split; takes as long as the answers of the source."""
        request = history_pb2.PlanHistoryRequest(topic=str(topic), segment_bytes=segment_bytes)
        return await self._ask(self._history.PlanHistory, request)

    async def history(
        self, topic: TopicName | str, *, ranges_from: int = 0, ranges_max: int = 0
    ) -> history_pb2.GetHistoryResponse:
        """Return how far a topic's planned history is, with some of its ranges."""
        request = history_pb2.GetHistoryRequest(topic=str(topic), ranges_from=ranges_from, ranges_max=ranges_max)
        return await self._ask(self._history.GetHistory, request)

    async def identity(self, topic: TopicName | str = "") -> identity_pb2.ShowIdentityResponse:
        """Return the deployment, and the refusals of a topic."""
        return await self._ask(self._identity.ShowIdentity, identity_pb2.ShowIdentityRequest(topic=str(topic)))

    async def accept_identity(
        self, topic: TopicName | str = "", *, kind: str = "", places: bool = False, source: bool = False, dry_run: bool
    ) -> list[str]:
        """Accept a refusal of a topic, of the places, or of the source; returns what was accepted as text."""
        request = identity_pb2.AcceptIdentityRequest(kind=kind, dry_run=dry_run)
        if topic:
            request.topic = str(topic)
        elif places:
            request.places = True
        elif source:
            request.source = True
        return list((await self._ask(self._identity.AcceptIdentity, request)).believed)

    async def explain(self, topic: TopicName | str, position: Position) -> inspect_pb2.ExplainResponse:
        """Return where an entry is stored, or why it is not."""
        request = inspect_pb2.ExplainRequest(topic=str(topic), position=to_position(position))
        return await self._ask(self._inspect.Explain, request)

    async def layout(self, topic: TopicName | str) -> inspect_pb2.LayoutResponse:
        """Return which entries of a topic are in the buffer, the source, each place and each table."""
        return await self._ask(self._inspect.Layout, inspect_pb2.LayoutRequest(topic=str(topic)))

    def verify(
        self, topic: TopicName | str, *, level: str = "full", timeout_s: float | None = None
    ) -> AsyncGenerator[inspect_pb2.VerifyEvent, None]:
        """Make the daemon verify the segments of a topic; yields the result of each, then the summary."""
        request = inspect_pb2.VerifyRequest(topic=str(topic), level=level)
        return self._stream(lambda: self._inspect.Verify(request, timeout=timeout_s))

    async def daemons(self, topic: TopicName | str | None = None) -> placement_pb2.ListDaemonsResponse:
        """Return all daemons; for a topic in the order of placement."""
        request = placement_pb2.ListDaemonsRequest(topic="" if topic is None else str(topic))
        return await self._ask(self._placement.ListDaemons, request)

    def drain(
        self, *, undo: bool = False, dry_run: bool = False, timeout_s: float | None = None
    ) -> AsyncGenerator[placement_pb2.DrainProgress, None]:
        """Make the daemon hand its topics to the others; yields the remaining number, until it is 0."""
        request = placement_pb2.DrainRequest(undo=undo, dry_run=dry_run)
        return self._stream(lambda: self._placement.Drain(request, timeout=timeout_s))

    async def policies(self, level: policy_pb2.PolicyLevel) -> policy_pb2.GetPoliciesResponse:
        """Return the policies that are set at a level, and the effective ones."""
        return await self._ask(self._policy.GetPolicies, policy_pb2.GetPoliciesRequest(level=level))

    async def set_policies(
        self, level: policy_pb2.PolicyLevel, policies: policy_pb2.OffloadPolicies, *, dry_run: bool = False
    ) -> policy_pb2.ChangePoliciesResponse:
        """Set the policies of a level, in place of the present ones."""
        request = policy_pb2.SetPoliciesRequest(level=level, policies=policies, dry_run=dry_run)
        return await self._ask(self._policy.SetPolicies, request)

    async def remove_policies(
        self, level: policy_pb2.PolicyLevel, *, dry_run: bool = False
    ) -> policy_pb2.ChangePoliciesResponse:
        """Remove the policies of a level."""
        request = policy_pb2.RemovePoliciesRequest(level=level, dry_run=dry_run)
        return await self._ask(self._policy.RemovePolicies, request)

    async def seek(self, topic: TopicName | str, goal: Goal) -> read_pb2.SeekResponse:
        """Return the position of an entry, or of the next one. Raises InvalidInput for an invalid number."""
        request = read_pb2.SeekRequest(topic=str(topic), target=seek_target(goal))
        return await self._ask(self._reads.Seek, request)

    async def last_positions(self, topic: TopicName | str) -> read_pb2.LastPositionsResponse:
        """Return the topic's oldest, newest, offloaded and buffered positions."""
        request = read_pb2.LastPositionsRequest(topic=str(topic))
        return await self._ask(self._reads.LastPositions, request)

    async def roll(self, topic: TopicName | str) -> None:
        """Close the open ledger of the daemon's ledger store."""
        await self._ask(self._ledgers.Roll, ledgers_pb2.RollRequest(topic=str(topic)))

    async def ledgers(self, topic: TopicName | str) -> retention_pb2.ListLedgersResponse:
        """Return the ledgers of a topic with their states."""
        return await self._list(self._retention.ListLedgers, retention_pb2.ListLedgersRequest(topic=str(topic)))

    async def delete_ledgers(
        self, topic: TopicName | str, ledger_ids: Sequence[int], *, dry_run: bool = False
    ) -> retention_pb2.DeleteLedgersResponse:
        """Mark ledgers deleted in the tier; only the owner of the topic takes the call."""
        request = retention_pb2.DeleteLedgersRequest(topic=str(topic), ledger_ids=ledger_ids, dry_run=dry_run)
        return await self._ask(self._retention.DeleteLedgers, request)

    async def revoke_grant(self, topic: TopicName | str, ledger_id: int, *, reason: str = "") -> retention_pb2.Grant:
        """Revoke, or forbid in advance, the deletion of a ledger from its source."""
        request = retention_pb2.RevokeGrantRequest(topic=str(topic), ledger_id=ledger_id, reason=reason)
        return (await self._ask(self._retention.RevokeGrant, request)).grant

    async def allow_grant(self, topic: TopicName | str, ledger_id: int) -> None:
        """Lift a revocation."""
        request = retention_pb2.AllowGrantRequest(topic=str(topic), ledger_id=ledger_id)
        await self._ask(self._retention.AllowGrant, request)

    def plan_rollback(
        self, target: str, *, to_ledger_id: int | None = None
    ) -> AsyncGenerator[rollback_pb2.PlanRollbackResponse, None]:
        """Yield what a stock broker could read, for a topic or the topics of TENANT/NAMESPACE."""
        request = rollback_pb2.PlanRollbackRequest(target=target, to_ledger_id=to_ledger_id)
        return self._stream(lambda: self._rollback.PlanRollback(request, timeout=self._timeout_s))

    async def convert_topic(
        self, topic: TopicName | str, *, to_ledger_id: int | None = None
    ) -> rollback_pb2.ConvertTopicResponse:
        """Order that the ledgers of a topic are rewritten; only the owner of the topic takes the call."""
        request = rollback_pb2.ConvertTopicRequest(topic=str(topic), to_ledger_id=to_ledger_id)
        return await self._ask(self._rollback.ConvertTopic, request)

    def follow_rollback(
        self, topic: TopicName | str, *, timeout_s: float | None
    ) -> AsyncGenerator[rollback_pb2.RollbackProgress, None]:
        """Yield progress until the order has ended."""
        request = rollback_pb2.FollowRollbackRequest(topic=str(topic))
        return self._stream(lambda: self._rollback.FollowRollback(request, timeout=timeout_s))

    async def stop_rollback(self, topic: TopicName | str) -> rollback_pb2.RollbackOrder:
        """Cancel the order."""
        request = rollback_pb2.StopRollbackRequest(topic=str(topic))
        return (await self._ask(self._rollback.StopRollback, request)).order


def seek_target(goal: Goal) -> read_pb2.SeekTarget:
    """Return a goal as a message. Raises InvalidInput for an invalid number."""
    value = goal.checked().value
    return read_pb2.SeekTarget(**{"time_ms" if goal.kind is SeekKind.TIME else goal.kind.value: value})
