"""Roles of all calls, and the topics for which they are needed: one table of the whole API. A call that is not in it is
refused.

A call that could name a topic and does not (Status, ListTopics, ListDaemons) is about all topics, and needs its role
for everything. Names are parsed exactly as the service parses them, so that no name is a topic here and a pattern
there.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from offloaderd.access.roles import Role, Where
from offloaderd.api.admin import checked_prefix
from offloaderd.api.history import target_of
from offloaderd.api.policy import level_of
from offloaderd.core.model import TopicName
from offloaderd.core.names.patterns import DOMAIN, TopicPattern, of_topic
from offloaderd.policy.quotas import level_of as quota_level
from offloaderd.protocol.conversion import check_append, check_push, position_text
from offloaderd.protocol.v1 import admin_pb2, offload_pb2, policy_pb2, quota_pb2, read_pb2, rollback_pb2

Named = Callable[[Any], Iterator[Where]]
"""Yields what a request names. Raises InvalidInput."""


class Need(NamedTuple):
    """Needs of a call: a role (None: any identity) for what a request names; `open`: no identity.

    `bounded` raises InvalidInput for a request's bytes that would make too many objects.
    """

    role: Role | None
    named: Named
    open: bool = False
    bounded: Callable[[bytes], None] | None = None


def _nothing(_request: object) -> Iterator[Where]:
    return iter(())


def _everything(_request: object) -> Iterator[Where]:
    """Yield everything, whatever the request names."""
    yield None


def _topic(request: Any) -> Iterator[Where]:  # noqa: ANN401 - a request of any service with a topic
    yield of_topic(TopicName.parse(request.topic))


def _topic_of_ledger(request: Any) -> Iterator[Where]:  # noqa: ANN401 - a request that names a ledger by Pulsar's list
    yield of_topic(TopicName.parse(request.ledger.topic))


def _topic_or_everything(request: Any) -> Iterator[Where]:  # noqa: ANN401
    yield of_topic(TopicName.parse(request.topic)) if request.topic else None


def _pattern(request: Any) -> Iterator[Where]:  # noqa: ANN401
    """Yield a topic or a pattern; no expression is compiled before the caller has the role."""
    yield TopicPattern.named(request.topic)


def _prefix(request: admin_pb2.ListTopicsRequest | quota_pb2.ListQuotasRequest) -> Iterator[Where]:
    """Yield a tenant, a namespace or everything."""
    parts = checked_prefix(request.prefix)
    yield TopicPattern.parse(DOMAIN + "/".join([*parts, "*"])) if parts else None


def _opened(request: offload_pb2.StreamingOffloadRequest) -> Iterator[Where]:
    """Yield the topic of the whole stream; later messages belong to it."""
    if request.WhichOneof("request") == "open":
        yield of_topic(TopicName.parse(request.open.topic))


def _target(request: rollback_pb2.PlanRollbackRequest) -> Iterator[Where]:
    """Yield a topic or a namespace."""
    named = target_of(request.target)
    yield of_topic(named) if isinstance(named, TopicName) else _of_namespace(*named)


def _level(request: policy_pb2.SetPoliciesRequest) -> Iterator[Where]:
    """Yield a topic, a namespace or (the broker) everything."""
    where = level_of(request.level)
    if isinstance(where, TopicName):
        yield of_topic(where)
    else:
        yield None if where is None else _of_namespace(*where)


def _above_level(request: quota_pb2.SetQuotasRequest) -> Iterator[Where]:
    """Yield what is above a level of quotas: nobody sets quotas of his own."""
    scope = quota_level(request.level)
    yield TopicPattern.parse(f"{DOMAIN}{scope.tenant}/*") if scope.namespace is not None else None


def _of_namespace(tenant: str, namespace: str) -> TopicPattern:
    return TopicPattern.parse(f"{DOMAIN}{tenant}/{namespace}/*")


_SERVICES: dict[str, dict[str, Need]] = {
    "offloaderd.v1.OffloadService": {"StreamingOffload": Need(Role.OFFLOAD, _opened, bounded=check_push)},
    "offloaderd.v1.ReadService": {
        "Read": Need(Role.READ, _topic),
        "ReadMessages": Need(Role.READ, _topic),
        "PlanRead": Need(Role.READ, _topic),
        "LastPositions": Need(Role.READ, _topic),
        "Seek": Need(Role.READ, _topic),
    },
    "offloaderd.v1.BrokerService": {
        "EnsureLedger": Need(Role.OFFLOAD, _topic),
        "OpenLedger": Need(Role.READ, _topic_of_ledger),
        "ReadLedger": Need(Role.READ, _topic_of_ledger),
        "PlanLedger": Need(Role.READ, _topic_of_ledger),
        "DeleteLedger": Need(Role.ADMIN, _topic_of_ledger),
    },
    "offloaderd.v1.AdminService": {
        "ListTopics": Need(Role.READ, _prefix),
        "ListSelections": Need(Role.READ, _everything),
        "EnableTopic": Need(Role.ADMIN, _pattern),
        "DisableTopic": Need(Role.ADMIN, _pattern),
        "ListSegments": Need(Role.READ, _topic),
        "Offload": Need(Role.OFFLOAD, _topic),
        "OffloadStatus": Need(Role.READ, _topic),
        "Status": Need(Role.READ, _topic_or_everything),
    },
    "offloaderd.v1.PolicyService": {
        "GetPolicies": Need(Role.READ, _level),
        "SetPolicies": Need(Role.ADMIN, _level),
        "RemovePolicies": Need(Role.ADMIN, _level),
    },
    "offloaderd.v1.QuotaService": {
        "ListQuotas": Need(Role.READ, _prefix),
        "SetQuotas": Need(Role.ADMIN, _above_level),
    },
    "offloaderd.v1.RetentionService": {
        "ListLedgers": Need(Role.READ, _topic),
        "DeleteLedgers": Need(Role.ADMIN, _topic),
        "RevokeGrant": Need(Role.ADMIN, _topic),
        "AllowGrant": Need(Role.ADMIN, _topic),
    },
    "offloaderd.v1.IdentityService": {
        "ShowIdentity": Need(Role.READ, _topic_or_everything),
        "AcceptIdentity": Need(Role.ADMIN, _topic_or_everything),
    },
    "offloaderd.v1.HistoryService": {"PlanHistory": Need(Role.READ, _topic), "GetHistory": Need(Role.READ, _topic)},
    "offloaderd.v1.RollbackService": {
        "PlanRollback": Need(Role.READ, _target),
        "ConvertTopic": Need(Role.ADMIN, _topic),
        "FollowRollback": Need(Role.READ, _topic),
        "StopRollback": Need(Role.ADMIN, _topic),
    },
    "offloaderd.v1.InspectService": {
        "Explain": Need(Role.READ, _topic),
        "Layout": Need(Role.READ, _topic),
        "Verify": Need(Role.READ, _topic),
    },
    "offloaderd.v1.PlacementService": {
        "ListDaemons": Need(Role.READ, _topic_or_everything),
        "Drain": Need(Role.ADMIN, _everything),
    },
    "offloaderd.v1.ControlService": {
        "Reload": Need(Role.ADMIN, _everything),
        "ListLogLevels": Need(Role.READ, _everything),
        "SetLogLevel": Need(Role.ADMIN, _everything),
        "PauseTopic": Need(Role.ADMIN, _topic),
    },
    "offloaderd.v1.DoctorService": {"Examine": Need(Role.ADMIN, _everything)},
    "offloaderd.v1.CacheService": {
        "ShowCache": Need(Role.READ, _everything),
        "WarmCache": Need(Role.ADMIN, _topic),
        "PurgeCache": Need(Role.ADMIN, _topic_or_everything),
    },
    "offloaderd.v1.PlacesService": {
        "ListPlaces": Need(Role.READ, _topic_or_everything),
        "SetMirror": Need(Role.ADMIN, _topic),
        "SwitchPlaces": Need(Role.ADMIN, _topic),
        "DeleteCopies": Need(Role.ADMIN, _topic),
    },
    "offloaderd.v1.UpkeepService": {"Gc": Need(Role.ADMIN, _everything)},
    "offloaderd.v1.LedgerService": {
        "Append": Need(Role.OFFLOAD, _topic, bounded=check_append),
        "Roll": Need(Role.OFFLOAD, _topic),
    },
    # Probes have no identity. Reflection shows the API, which is no secret, but needs an identity.
    "grpc.health.v1.Health": dict.fromkeys(("Check", "List", "Watch"), Need(None, _nothing, open=True)),
    "grpc.reflection.v1alpha.ServerReflection": {"ServerReflectionInfo": Need(None, _nothing)},
}

READS = frozenset({
    "/offloaderd.v1.ReadService/Read", "/offloaderd.v1.ReadService/ReadMessages", "/offloaderd.v1.ReadService/PlanRead",
    "/offloaderd.v1.ReadService/Seek", "/offloaderd.v1.BrokerService/ReadLedger",
    "/offloaderd.v1.BrokerService/PlanLedger",
})  # fmt: skip
"""Calls that count as readers."""

PACED_READS = READS - {"/offloaderd.v1.ReadService/ReadMessages"}
"""Those whose answers wait for the read rate of their namespace; the other one waits itself, before it takes memory."""

NEEDS: dict[str, Need] = {
    f"/{service}/{method}": need for service, methods in _SERVICES.items() for method, need in methods.items()
}
"""Needs by the full name of the method."""


def range_of(request: Any) -> dict[str, str]:  # noqa: ANN401 - a request of a call in READS
    """Return the topic and the range (empty: open) or the target of a read, for the audit log."""
    if hasattr(request, "ledger"):
        found = request.ledger
        ends = (f"{found.ledger_id}:{one}" for one in (request.first_entry_id, request.last_entry_id))
        return dict(zip(("topic", "first", "last"), (found.topic, *ends), strict=True))
    if isinstance(request, read_pb2.SeekRequest):
        return {"topic": request.topic, "target": _seek_text(request.target)}
    given = {name: getattr(request, name) for name in ("first", "last") if _request_has(request, name)}
    ends_ = {name: position_text(one) for name, one in given.items()}
    sought = {"target": _seek_text(request.seek)} if _request_has(request, "seek") else {}
    return {"topic": request.topic, "first": "", "last": "", **ends_, **sought}


def _seek_text(sought: read_pb2.SeekTarget) -> str:
    target = sought.WhichOneof("target")
    return f"{target}={getattr(sought, target)}" if target else ""


def _request_has(request: Any, name: str) -> bool:  # noqa: ANN401
    """Whether a request's type has the field, and the request a value in it."""
    return name in request.DESCRIPTOR.fields_by_name and request.HasField(name)
