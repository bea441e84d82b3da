"""Which role each call needs, and for which topics: the whole API in one table. What is not in it nobody may call.

A call that names no topic where it could (Status, ListTopics, ListDaemons) is about all of them, and needs its role for
everything. Names are read here exactly as the service reads them: what one takes for a topic's name the other must not
take for an expression.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from offloaderd.access.roles import Role, Where
from offloaderd.api.admin.messages import checked_prefix
from offloaderd.api.services.policy import level_of
from offloaderd.api.services.rollback import target_of
from offloaderd.core.model import TopicName
from offloaderd.core.names.patterns import DOMAIN, TopicPattern, of_topic
from offloaderd.protocol.conversion import check_append, check_push
from offloaderd.protocol.message_json import position_text
from offloaderd.protocol.v1 import admin_pb2, offload_pb2, policy_pb2, read_pb2, rollback_pb2

Named = Callable[[Any], Iterator[Where]]


class Need(NamedTuple):
    """What a call needs: a role (None: to be somebody), and for what a request names; `open`: nothing at all.

    `bounded` raises InvalidInput for the bytes of a request that would make too many objects.
    """

    role: Role | None
    named: Named
    open: bool = False
    bounded: Callable[[bytes], None] | None = None


def nothing(_request: object) -> Iterator[Where]:
    """Name nothing."""
    return iter(())


def everything(_request: object) -> Iterator[Where]:
    """Name everything, whatever the request says."""
    yield None


def topic(request: Any) -> Iterator[Where]:  # noqa: ANN401 - a request of any service with a topic
    """Name one topic. Raises InvalidInput."""
    yield of_topic(TopicName.parse(request.topic))


def topic_of_ledger(request: Any) -> Iterator[Where]:  # noqa: ANN401 - a request that names a ledger by Pulsar's list
    """Name the ledger's topic. Raises InvalidInput."""
    yield of_topic(TopicName.parse(request.ledger.topic))


def topic_or_everything(request: Any) -> Iterator[Where]:  # noqa: ANN401
    """Name one topic, or everything. Raises InvalidInput."""
    yield of_topic(TopicName.parse(request.topic)) if request.topic else None


def pattern(request: Any) -> Iterator[Where]:  # noqa: ANN401
    """Name a topic or a pattern, of which nothing is compiled before its sender is known to have the role.

    Raises InvalidInput.
    """
    yield TopicPattern.named(request.topic)


def prefix(request: admin_pb2.ListTopicsRequest) -> Iterator[Where]:
    """Name a tenant, a namespace or everything. Raises InvalidInput."""
    parts = checked_prefix(request.prefix)
    yield TopicPattern.parse(DOMAIN + "/".join([*parts, "*"])) if parts else None


def opened(request: offload_pb2.StreamingOffloadRequest) -> Iterator[Where]:
    """Name the topic of the whole stream; the messages that follow belong to it. Raises InvalidInput."""
    if request.WhichOneof("request") == "open":
        yield of_topic(TopicName.parse(request.open.topic))


def target(request: rollback_pb2.PlanRollbackRequest) -> Iterator[Where]:
    """Name a topic or a namespace. Raises InvalidInput."""
    named = target_of(request.target)
    yield of_topic(named) if isinstance(named, TopicName) else of_namespace(*named)


def level(request: policy_pb2.SetPoliciesRequest) -> Iterator[Where]:
    """Name a topic, a namespace or (the broker) everything. Raises InvalidInput."""
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
    # Probes have no names. Reflection tells the API, which is no secret but nobody's business without one.
    "grpc.health.v1.Health": dict.fromkeys(("Check", "List", "Watch"), Need(None, nothing, open=True)),
    "grpc.reflection.v1alpha.ServerReflection": {"ServerReflectionInfo": Need(None, nothing)},
}

READS = frozenset({
    "/offloaderd.v1.ReadService/Read", "/offloaderd.v1.ReadService/ReadMessages", "/offloaderd.v1.ReadService/Seek",
    "/offloaderd.v1.BrokerService/ReadLedger",
})  # fmt: skip
"""Calls that take one of the readers' places."""

NEEDS: dict[str, Need] = {
    f"/{service}/{method}": need for service, methods in _SERVICES.items() for method, need in methods.items()
}
"""By the full name of the method."""


def range_of(request: Any) -> dict[str, str]:  # noqa: ANN401 - a request of a call in READS
    """Return what a reader asks for, as the audit log has it: the topic and the range's ends (empty: open) or what is
    sought."""
    if hasattr(request, "ledger"):
        found = request.ledger
        ends = (f"{found.ledger_id}:{one}" for one in (request.first_entry_id, request.last_entry_id))
        return dict(zip(("topic", "first", "last"), (found.topic, *ends), strict=True))
    if isinstance(request, read_pb2.SeekRequest):
        return {"topic": request.topic, "target": _told(request.target)}
    given = {name: getattr(request, name) for name in ("first", "last") if request_has(request, name)}
    ends_ = {name: position_text(one) for name, one in given.items()}
    sought = {"target": _told(request.seek)} if request_has(request, "seek") else {}
    return {"topic": request.topic, "first": "", "last": "", **ends_, **sought}


def _told(sought: read_pb2.SeekTarget) -> str:
    """Return what is sought as the audit log has it."""
    target = sought.WhichOneof("target")
    return f"{target}={getattr(sought, target)}" if target else ""


def request_has(request: Any, name: str) -> bool:  # noqa: ANN401
    """Whether a request has a field of its kind, and in it something."""
    return name in request.DESCRIPTOR.fields_by_name and request.HasField(name)
