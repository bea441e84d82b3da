"""A daemon made of canned answers, on a real port: what offloadctl is tested against.

It is gRPC's threaded server, as the command under test runs an event loop of its own.
"""

# ruff: noqa: ANN401, N802 - a servicer's methods are named by the proto, and generated messages come as they are
from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import grpc

from offloaderd.protocol.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    common_pb2,
    ledgers_pb2,
    ledgers_pb2_grpc,
    policy_pb2,
    policy_pb2_grpc,
    read_pb2,
    read_pb2_grpc,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

TOPIC = "persistent://public/default/orders"
SEGMENT_ID = "2c2f8f6e-8d4f-4b8f-9f36-0d8a6a1f2b11"
OPEN_ID = "5e0b1c9a-1111-4222-8333-444455556666"


def at(ledger_id: int, entry_id: int) -> common_pb2.Position:
    """Write a position shortly."""
    return common_pb2.Position(ledger_id=ledger_id, entry_id=entry_id)


@dataclass
class Failure:
    """How the next call ends."""

    code: grpc.StatusCode
    text: str
    reason: str = ""
    hint: str = ""


@dataclass
class FakeDaemon(
    admin_pb2_grpc.AdminServiceServicer,
    read_pb2_grpc.ReadServiceServicer,
    ledgers_pb2_grpc.LedgerServiceServicer,
    policy_pb2_grpc.PolicyServiceServicer,
):
    """Answers every call with what a test put here, and keeps the requests."""

    address: str = ""
    failure: Failure | None = None
    requests: list[Any] = field(default_factory=list)
    deadlines: list[float | None] = field(default_factory=list)
    topics: list[admin_pb2.TopicSummary] = field(default_factory=list)
    selections: list[admin_pb2.Selection] = field(default_factory=list)
    pattern: str = ""
    changes: list[admin_pb2.TopicChange] = field(default_factory=list)
    segments: list[admin_pb2.Segment] = field(default_factory=list)
    progress: list[admin_pb2.OffloadProgress] = field(default_factory=list)
    waited: list[admin_pb2.OffloadProgress] = field(default_factory=list)
    batches: list[read_pb2.ReadResponse] = field(default_factory=list)
    messages: list[read_pb2.Message] = field(default_factory=list)
    held_back: read_pb2.HeldBack | None = None
    status: admin_pb2.StatusResponse = field(default_factory=admin_pb2.StatusResponse)
    positions: read_pb2.LastPositionsResponse = field(default_factory=read_pb2.LastPositionsResponse)
    plan: read_pb2.PlanReadResponse = field(default_factory=read_pb2.PlanReadResponse)
    sought: read_pb2.SeekResponse = field(default_factory=read_pb2.SeekResponse)
    appended: list[bytes] = field(default_factory=list)
    rolled: int = 0
    policies: policy_pb2.GetPoliciesResponse = field(default_factory=policy_pb2.GetPoliciesResponse)
    effects: policy_pb2.ChangePoliciesResponse = field(default_factory=policy_pb2.ChangePoliciesResponse)

    def _seen(self, request: object, context: grpc.ServicerContext) -> None:
        self.requests.append(request)
        self.deadlines.append(context.time_remaining())
        if self.failure is not None:
            self._fail(context)

    def _fail(self, context: grpc.ServicerContext) -> NoReturn:
        failure = self.failure
        assert failure is not None
        if failure.reason:
            detail = common_pb2.ErrorDetail(reason=failure.reason, hint=failure.hint)
            context.set_trailing_metadata((("offloaderd-error-bin", detail.SerializeToString()),))
        context.abort(failure.code, failure.text)

    def ListTopics(self, request: Any, context: Any) -> Any:
        """Answer with the topics."""
        self._seen(request, context)
        return admin_pb2.ListTopicsResponse(topics=self.topics)

    def ListSelections(self, request: Any, context: Any) -> Any:
        """Answer with the selections."""
        self._seen(request, context)
        return admin_pb2.ListSelectionsResponse(selections=self.selections)

    def EnableTopic(self, request: Any, context: Any) -> Any:
        """Agree."""
        self._seen(request, context)
        return admin_pb2.EnableTopicResponse(pattern=self.pattern or request.topic, topics=self.changes)

    def DisableTopic(self, request: Any, context: Any) -> Any:
        """Agree."""
        self._seen(request, context)
        return admin_pb2.DisableTopicResponse(pattern=self.pattern or request.topic, topics=self.changes)

    def GetPolicies(self, request: Any, context: Any) -> Any:
        """Answer with the policies, at the level that was asked for."""
        self._seen(request, context)
        self.policies.level.CopyFrom(request.level)
        return self.policies

    def SetPolicies(self, request: Any, context: Any) -> Any:
        """Agree."""
        self._seen(request, context)
        return self.effects

    def RemovePolicies(self, request: Any, context: Any) -> Any:
        """Agree."""
        self._seen(request, context)
        return self.effects

    def ListSegments(self, request: Any, context: Any) -> Any:
        """Answer with the segments."""
        self._seen(request, context)
        yield from self.segments

    def Offload(self, request: Any, context: Any) -> Any:
        """Answer with the reports."""
        self._seen(request, context)
        yield from self.progress

    def OffloadStatus(self, request: Any, context: Any) -> Any:
        """Answer with the reports, other ones to who waits if there are."""
        self._seen(request, context)
        yield from (self.waited if request.wait else []) or self.progress

    def Status(self, request: Any, context: Any) -> Any:
        """Answer with the status."""
        self._seen(request, context)
        return self.status

    def Read(self, request: Any, context: Any) -> Any:
        """Answer with the batches; a failure that is set after the start comes after them."""
        self.requests.append(request)
        self.deadlines.append(context.time_remaining())
        yield from self.batches
        if self.failure is not None:
            self._fail(context)

    def ReadMessages(self, request: Any, context: Any) -> Any:
        """Answer with the messages."""
        self._seen(request, context)
        yield read_pb2.ReadMessagesResponse(messages=self.messages)
        if self.held_back is not None:
            yield read_pb2.ReadMessagesResponse(held_back=self.held_back)

    def PlanRead(self, request: read_pb2.ReadRequest, context: Any) -> read_pb2.PlanReadResponse:
        """Answer with the plan; an empty one leaves all to Read."""
        self._seen(request, context)
        return self.plan

    def LastPositions(self, request: Any, context: Any) -> Any:
        """Answer with the positions."""
        self._seen(request, context)
        return self.positions

    def Seek(self, request: Any, context: Any) -> Any:
        """Answer with what was found."""
        self._seen(request, context)
        return self.sought

    def Append(self, request_iterator: Iterable[Any], context: Any) -> Any:
        """Take the entries."""
        for request in request_iterator:
            self._seen(request.topic, context)
            self.appended.extend(request.payloads)
            last = at(3, len(self.appended) - 1)
            yield ledgers_pb2.AppendResponse(last=last, entry_count=len(request.payloads))

    def Roll(self, request: Any, context: Any) -> Any:
        """Count the rolls."""
        self._seen(request, context)
        self.rolled += 1
        return ledgers_pb2.RollResponse()


@contextmanager
def serving(*register: Callable[[grpc.Server], None]) -> Iterator[str]:
    """Serve what is registered on a free port of loopback; gives the address, and leaves no thread."""
    with ThreadPoolExecutor(4) as threads:
        server = grpc.server(threads)
        for one in register:
            one(server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait()


@contextmanager
def running_fake() -> Iterator[FakeDaemon]:
    """Serve a fake daemon."""
    fake = FakeDaemon()
    with serving(
        partial(admin_pb2_grpc.add_AdminServiceServicer_to_server, fake),
        partial(read_pb2_grpc.add_ReadServiceServicer_to_server, fake),
        partial(ledgers_pb2_grpc.add_LedgerServiceServicer_to_server, fake),
        partial(policy_pb2_grpc.add_PolicyServiceServicer_to_server, fake),
    ) as fake.address:
        yield fake
