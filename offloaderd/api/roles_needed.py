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
from offloaderd.protocol.conversion import check_append, check_push
from offloaderd.protocol.message_json import position_text
from offloaderd.protocol.v1 import admin_pb2, offload_pb2, policy_pb2, read_pb2, rollback_pb2

Named = Callable[[Any], Iterator[Where]]


class Need(NamedTuple):
    """Needs of a call: a role (None: any identity) for what a request names; `open`: no identity.

    `bounded` raises InvalidInput for a request's bytes that would make too many objects.
    """

    role: Role | None
    named: Named
    open: bool = False
    bounded: Callable[[bytes], None] | None = None


def nothing(_request: object) -> Iterator[Where]:
    """Yield nothing."""
    return iter(())


def everything(_request: object) -> Iterator[Where]:
    """Yield everything, whatever the request names."""
    yield None


def topic(request: Any) -> Iterator[Where]:  # noqa: ANN401 - a request of any service with a topic
    """Yield one topic. Raises InvalidInput."""
    yield of_topic(TopicName.parse(request.topic))


def topic_of_ledger(request: Any) -> Iterator[Where]:  # noqa: ANN401 - a request that names a ledger by Pulsar's list
    """Yield the ledger's topic. Raises InvalidInput."""
    yield of_topic(TopicName.parse(request.ledger.topic))


def topic_or_everything(request: Any) -> Iterator[Where]:  # noqa: ANN401
    """Yield one topic, or everything. Raises InvalidInput."""
    yield of_topic(TopicName.parse(request.topic)) if request.topic else None


def pattern(request: Any) -> Iterator[Where]:  # noqa: ANN401
    """Yield a topic or a pattern; no expression is compiled before the caller has the role. Raises InvalidInput."""
    yield TopicPattern.named(request.topic)


def prefix(request: admin_pb2.ListTopicsRequest) -> Iterator[Where]:
    """Yield a tenant, a namespace or everything. Raises InvalidInput."""
    parts = checked_prefix(request.prefix)
    yield TopicPattern.parse(DOMAIN + "/".join([*parts, "*"])) if parts else None


def opened(request: offload_pb2.StreamingOffloadRequest) -> Iterator[Where]:
    """Yield the topic of the whole stream; later messages belong to it. Raises InvalidInput."""
    if request.WhichOneof("request") == "open":
        yield of_topic(TopicName.parse(request.open.topic))


def target(request: rollback_pb2.PlanRollbackRequest) -> Iterator[Where]:
    """Yield a topic or a namespace. Raises InvalidInput."""
    named = target_of(request.target)
    yield of_topic(named) if isinstance(named, TopicName) else of_namespace(*named)


def level(request: policy_pb2.SetPoliciesRequest) -> Iterator[Where]:
    """Yield a topic, a namespace or (the broker) everything. Raises InvalidInput."""
    where = level_of(request.level)
    if isinstance(where, TopicName):
        yield of_topic(where)
    else:
        yield None if where is None else of_namespace(*where)


def of_namespace(tenant: str, namespace: str) -> TopicPattern:
    """Return the pattern of a namespace's topics."""
    return TopicPattern.parse(f"{DOMAIN}{tenant}/{namespace}/*")


_SERVICES: dict[str, dict[str, Need]] = {
    "offloaderd.v1.OffloadService": {"StreamingOffload": Need(Role.OFFLOAD, opened, bounded=check_push)},
    "offloaderd.v1.ReadService": {
        "Read": Need(Role.READ, topic),
        "ReadMessages": Need(Role.READ, topic),
        "LastPositions": Need(Role.READ, topic),
        "Seek": Need(Role.READ, topic),
    },
    "offloaderd.v1.BrokerService": {
        "EnsureLedger": Need(Role.OFFLOAD, topic),
        "OpenLedger": Need(Role.READ, topic_of_ledger),
        "ReadLedger": Need(Role.READ, topic_of_ledger),
        "DeleteLedger": Need(Role.ADMIN, topic_of_ledger),
    },
    "offloaderd.v1.AdminService": {
        "ListTopics": Need(Role.READ, prefix),
        "ListSelections": Need(Role.READ, everything),
        "EnableTopic": Need(Role.ADMIN, pattern),
        "DisableTopic": Need(Role.ADMIN, pattern),
        "ListSegments": Need(Role.READ, topic),
        "Offload": Need(Role.OFFLOAD, topic),
        "OffloadStatus": Need(Role.READ, topic),
        "Status": Need(Role.READ, topic_or_everything),
    },
    "offloaderd.v1.PolicyService": {
        "GetPolicies": Need(Role.READ, level),
        "SetPolicies": Need(Role.ADMIN, level),
        "RemovePolicies": Need(Role.ADMIN, level),
    },
    "offloaderd.v1.RetentionService": {
        "ListLedgers": Need(Role.READ, topic),
        "DeleteLedgers": Need(Role.ADMIN, topic),
        "RevokeGrant": Need(Role.ADMIN, topic),
        "AllowGrant": Need(Role.ADMIN, topic),
    },
    "offloaderd.v1.IdentityService": {
        "ShowIdentity": Need(Role.READ, topic_or_everything),
        "AcceptIdentity": Need(Role.ADMIN, topic_or_everything),
    },
    "offloaderd.v1.HistoryService": {
        "PlanHistory": Need(Role.READ, topic),
        "GetHistory": Need(Role.READ, topic),
    },
    "offloaderd.v1.RollbackService": {
        "PlanRollback": Need(Role.READ, target),
        "ConvertTopic": Need(Role.ADMIN, topic),
        "FollowRollback": Need(Role.READ, topic),
        "StopRollback": Need(Role.ADMIN, topic),
    },
    "offloaderd.v1.InspectService": {"Explain": Need(Role.READ, topic), "Verify": Need(Role.READ, topic)},
    "offloaderd.v1.PlacementService": {
        "ListDaemons": Need(Role.READ, topic_or_everything),
        "Drain": Need(Role.ADMIN, everything),
    },
    "offloaderd.v1.ControlService": {
        "Reload": Need(Role.ADMIN, everything),
        "ListLogLevels": Need(Role.READ, everything),
        "SetLogLevel": Need(Role.ADMIN, everything),
        "PauseTopic": Need(Role.ADMIN, topic),
    },
    "offloaderd.v1.DoctorService": {"Examine": Need(Role.ADMIN, everything)},
    "offloaderd.v1.UpkeepService": {"Gc": Need(Role.ADMIN, everything)},
    "offloaderd.v1.LedgerService": {
        "Append": Need(Role.OFFLOAD, topic, bounded=check_append),
        "Roll": Need(Role.OFFLOAD, topic),
    },
    # Probes have no identity. Reflection shows the API, which is no secret, but needs an identity.
    "grpc.health.v1.Health": dict.fromkeys(("Check", "List", "Watch"), Need(None, nothing, open=True)),
    "grpc.reflection.v1alpha.ServerReflection": {"ServerReflectionInfo": Need(None, nothing)},
}

READS = frozenset({
    "/offloaderd.v1.ReadService/Read", "/offloaderd.v1.ReadService/ReadMessages", "/offloaderd.v1.ReadService/Seek",
    "/offloaderd.v1.BrokerService/ReadLedger",
})  # fmt: skip
"""Calls that count as readers."""

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
    given = {name: getattr(request, name) for name in ("first", "last") if request_has(request, name)}
    ends_ = {name: position_text(one) for name, one in given.items()}
    sought = {"target": _seek_text(request.seek)} if request_has(request, "seek") else {}
    return {"topic": request.topic, "first": "", "last": "", **ends_, **sought}


def _seek_text(sought: read_pb2.SeekTarget) -> str:
    """Return the target of a seek for the audit log."""
    target = sought.WhichOneof("target")
    return f"{target}={getattr(sought, target)}" if target else ""


def request_has(request: Any, name: str) -> bool:  # noqa: ANN401
    """Whether a request's type has the field, and the request a value in it."""
    return name in request.DESCRIPTOR.fields_by_name and request.HasField(name)
