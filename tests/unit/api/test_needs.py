"""The table of needs: it knows the whole API, reads names as the services do, and asks for enough."""

from __future__ import annotations

import importlib
import pkgutil
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf import message_factory
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

import offloaderd.protocol.v1
from offloaderd.access.roles import EVERYTHING, Grant, Role, shown
from offloaderd.api.roles_needed import NEEDS
from offloaderd.core.errors import InvalidInput
from offloaderd.core.model import TopicName
from offloaderd.core.names import expressions
from offloaderd.metadata import paths
from offloaderd.protocol.v1 import admin_pb2, offload_pb2, placement_pb2, policy_pb2, read_pb2, rollback_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.descriptor import MethodDescriptor

REAL_TIME = "gRPC"

CHANGES = (
    "Switch",
    "Accept",
    "Enable",
    "Pause",
    "Reload",
    "Disable",
    "Set",
    "Remove",
    "Delete",
    "Revoke",
    "Allow",
    "Convert",
    "Stop",
    "Drain",
    "Gc",
    "Examine",
    "Warm",
    "Purge",
)
"""What the names of calls begin with that change what holds, or act on what everybody shares."""


def methods() -> Iterator[tuple[str, MethodDescriptor]]:
    """Every method that there is a proto for, ours and those of gRPC that are served."""
    ours = [
        importlib.import_module(f"offloaderd.protocol.v1.{found.name}").DESCRIPTOR
        for found in pkgutil.iter_modules(offloaderd.protocol.v1.__path__)
        if found.name.endswith("_pb2")
    ]
    for file in (*ours, health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR):
        for service in file.services_by_name.values():
            for method in service.methods:
                yield f"/{service.full_name}/{method.name}", method


def test_every_call_has_a_need_and_every_need_a_call() -> None:
    """A new call is refused to everybody until somebody has thought of who may make it; this says so first."""
    assert {path for path, _ in methods()} == set(NEEDS)
    assert len(NEEDS) > 30


@pytest.mark.parametrize("path", sorted(path for path in NEEDS if path.startswith("/offloaderd.")))
def test_a_method_without_a_need_is_refused(path: str) -> None:
    """An empty request names everything, or is malformed; only messages within a stream may name nothing."""
    method = dict(methods())[path]
    need = NEEDS[path]
    assert need.role is not None
    assert not need.open
    request = message_factory.GetMessageClass(method.input_type)()
    try:
        named = [shown(where) for where in need.named(request)]
    except InvalidInput:
        return
    assert named == [EVERYTHING] or (path.endswith("/StreamingOffload") and not named)


def test_what_changes_something_needs_the_role_for_it() -> None:
    """Reading calls need read, those that put entries in need offload, all others admin."""
    for path, need in NEEDS.items():
        if not path.startswith("/offloaderd."):
            continue
        name = path.rpartition("/")[2]
        if name.startswith(CHANGES):
            assert need.role is Role.ADMIN, path
        elif name in {"StreamingOffload", "Offload", "EnsureLedger", "Append", "Roll"}:
            assert need.role is Role.OFFLOAD, path
        else:
            assert need.role is Role.READ, path


@pytest.mark.parametrize(
    ("path", "request_", "named"),
    [
        ("ReadService/Read", read_pb2.ReadRequest(topic="orders"), "public/default/orders"),
        ("ReadService/Read", read_pb2.ReadRequest(topic="public/default/*"), "public/default/*"),
        ("ReadService/Read", read_pb2.ReadRequest(topic="re:x/y/.*"), "persistent://re:x/y/.*"),
        ("AdminService/EnableTopic", admin_pb2.EnableTopicRequest(topic="public/*"), "public/*"),
        ("AdminService/EnableTopic", admin_pb2.EnableTopicRequest(topic="re:x/y/.*"), "re:x/y/.*"),
        ("AdminService/ListTopics", admin_pb2.ListTopicsRequest(prefix=""), EVERYTHING),
        ("AdminService/ListTopics", admin_pb2.ListTopicsRequest(prefix="a"), "a/*"),
        ("AdminService/ListTopics", admin_pb2.ListTopicsRequest(prefix="a/b/"), "a/b/*"),
        ("AdminService/Status", admin_pb2.StatusRequest(), EVERYTHING),
        ("AdminService/Status", admin_pb2.StatusRequest(topic="a/b/c"), "a/b/c"),
        ("PlacementService/ListDaemons", placement_pb2.ListDaemonsRequest(), EVERYTHING),
        ("PlacementService/Drain", placement_pb2.DrainRequest(dry_run=True), EVERYTHING),
        (
            "PolicyService/SetPolicies",
            policy_pb2.SetPoliciesRequest(level=policy_pb2.PolicyLevel(broker=True)),
            EVERYTHING,
        ),
        (
            "PolicyService/GetPolicies",
            policy_pb2.GetPoliciesRequest(level=policy_pb2.PolicyLevel(namespace="a/b")),
            "a/b/*",
        ),
        ("RollbackService/PlanRollback", rollback_pb2.PlanRollbackRequest(target="a/b"), "a/b/*"),
        ("RollbackService/PlanRollback", rollback_pb2.PlanRollbackRequest(target="a/b/c"), "a/b/c"),
        (
            "OffloadService/StreamingOffload",
            offload_pb2.StreamingOffloadRequest(open=offload_pb2.StreamingOffloadRequest.Open(topic="a/b/c")),
            "a/b/c",
        ),
    ],
)
def test_names_are_read_as_the_service_reads_them(path: str, request_: Any, named: str) -> None:  # noqa: ANN401 - any message
    """A topic that looks like a pattern stays a topic where a topic is asked for."""
    need = NEEDS[f"/offloaderd.v1.{path}"]
    (where,) = need.named(request_)
    assert shown(where) == named
    if path.startswith("ReadService"):
        assert where is not None
        assert where.topic is not None


def test_nothing_is_compiled_before_the_role_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has no role makes no daemon work at an expression; who has it for the namespace is let through to it."""

    def compiled(source: str) -> None:
        pytest.fail(f"{source} was compiled")

    monkeypatch.setattr(expressions, "compiled", compiled)
    request_ = admin_pb2.EnableTopicRequest(topic="re:acme/x/(?i)" + "[X-\U0010fffd]" * 60)
    for call in ("EnableTopic", "DisableTopic"):
        (named,) = NEEDS[f"/offloaderd.v1.AdminService/{call}"].named(request_)
        assert not Grant.parse("admin mallory acme/y/*").gives(Role.ADMIN, named)
        assert Grant.parse("admin alice acme/x/*").gives(Role.ADMIN, named)


@pytest.mark.parametrize("path", sorted(path for path in NEEDS if path.startswith("/offloaderd.")))
def test_no_field_of_any_call_is_compiled_before_the_role_is_known(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a caller writes an expression: also where a namespace, a target or a level is asked for."""

    def compiled(source: str) -> None:
        pytest.fail(f"{source} was compiled")

    monkeypatch.setattr(expressions, "compiled", compiled)
    kind = message_factory.GetMessageClass(dict(methods())[path].input_type)
    for field in text_fields(kind.DESCRIPTOR):
        for text in ("re:acme/x/(a+)+b", "re:acme/x", "re:acme"):
            request_ = kind()
            holder: Any = request_
            for name in field[:-1]:
                holder = getattr(holder, name)
            setattr(holder, field[-1], text)
            with suppress(InvalidInput):
                list(NEEDS[path].named(request_))


def text_fields(kind: Any, depth: int = 2) -> Iterator[tuple[str, ...]]:  # noqa: ANN401 - of either implementation
    """Yield the names that lead to each text of a message, and of those in it."""
    for field in kind.fields:
        if field.is_repeated:
            continue
        if field.type == field.TYPE_STRING:
            yield (field.name,)
        elif field.message_type is not None and depth:
            for below in text_fields(field.message_type, depth - 1):
                yield (field.name, *below)


def test_a_name_that_is_no_text_is_refused() -> None:
    """Bytes of an argument that are not UTF-8 come as surrogates, which no path and no message can hold."""
    with pytest.raises(InvalidInput, match="control character"):
        TopicName.parse("public/default/\udcc6")


@pytest.mark.parametrize(
    "topic",
    [
        *("../b/c", "a/../c", "a/b/..", "./b/c", "a/b/.", "a/b/../../x", "a/b/%2e%2e", ".."),
        *("a/b/x%2F..%2F..%2Fy", "a/b/%00", "a/b/x\\..\\y", "a/b/c?x#y", "a/b/\u202e", "a/b/" + "\U0010ffff" * 4000),
    ],
)
def test_no_name_climbs_out_of_its_place(topic: str) -> None:
    """Names become paths in ZooKeeper: each stays with its tenant and namespace, and is found again by its path."""
    (where,) = NEEDS["/offloaderd.v1.ReadService/Read"].named(read_pb2.ReadRequest(topic=topic))
    assert where is not None
    assert where.topic is not None
    path = paths.topic(where.topic)
    assert not {".", "..", ""} & set(path.removeprefix("/").split("/"))
    assert paths.parse_topic(path) == where.topic


@pytest.mark.parametrize("topic", ["a/b/x\0y", "a/b/x\ny", "a/b/\x7f", "a/b/" + "x" * 4093, "persistent://a", "/a/b/c"])
def test_what_cannot_be_a_name_is_refused_before_any_request(topic: str) -> None:
    """Control characters, names without end, missing parts: InvalidInput, whichever call brings it."""
    for call, request in (
        ("ReadService/Read", read_pb2.ReadRequest(topic=topic)),
        ("AdminService/EnableTopic", admin_pb2.EnableTopicRequest(topic=topic)),
        ("AdminService/Status", admin_pb2.StatusRequest(topic=topic)),
    ):
        with pytest.raises(InvalidInput):
            list(NEEDS[f"/offloaderd.v1.{call}"].named(request))
