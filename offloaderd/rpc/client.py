"""A daemon as seen by its users: one asyncio client over all services, used by offloadctl and the walkthrough.

Rules: every call has a deadline unless the caller says otherwise; message sizes are limited both ways; an error
status becomes the error that the daemon raised (see errors.py), a daemon that is not there an Unreachable.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self, TypedDict, Unpack

import grpc
from grpc import aio

from offloaderd.errors import InvalidInput, OffloaderError, Transient, first_of
from offloaderd.groups import Group
from offloaderd.rpc.client_control import ControlCalls
from offloaderd.rpc.client_history import HistoryCalls
from offloaderd.rpc.client_inspect import InspectCalls
from offloaderd.rpc.client_manual import ManualCalls
from offloaderd.rpc.client_placement import PlacementCalls
from offloaderd.rpc.client_policy import PolicyCalls
from offloaderd.rpc.client_retention import RetentionCalls
from offloaderd.rpc.client_rollback import RollbackCalls
from offloaderd.rpc.client_seek import SeekCalls, seek_target
from offloaderd.rpc.client_trust import Trust, checked_address
from offloaderd.rpc.errors import DETAIL_KEY, from_rpc_error
from offloaderd.rpc.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    common_pb2,
    doctor_pb2,
    doctor_pb2_grpc,
    ledgers_pb2,
    ledgers_pb2_grpc,
    policy_pb2,
    read_pb2,
    read_pb2_grpc,
    upkeep_pb2,
    upkeep_pb2_grpc,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterator, Sequence
    from types import TracebackType

    from offloaderd.model import OutagePolicy, Position, ReadPriority, TierRetention, TopicName
    from offloaderd.patterns import TopicPattern
    from offloaderd.read.seek_goal import Goal

MESSAGE_BYTES_MAX = 32 * 1024 * 1024
"""Largest message that is sent or taken; an entry is at most 5 MiB, a batch a little more than the batch size."""
CONNECT_S = 5.0


class Unreachable(Transient):
    """No daemon answers at the address."""


class TimedOut(Transient):
    """The call's deadline passed before its result was there."""


class Wanted(TypedDict, total=False):
    """What to read of a topic: from its oldest to its newest entry unless told otherwise; 0 is no limit of ours."""

    first: Position | None
    last: Position | None
    follow: bool
    entries_max: int | None
    batch_bytes: int
    read_priority: ReadPriority | None
    client_bytes: bool
    seek: Goal | None


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


class DaemonClient(
    ControlCalls,
    HistoryCalls,
    InspectCalls,
    ManualCalls,
    PlacementCalls,
    PolicyCalls,
    RetentionCalls,
    RollbackCalls,
    SeekCalls,
):
    """Async context manager over one channel to `address` (`host:port`).

    `timeout_s` is the deadline of each call that is not a stream; streams take their own (None: no limit). Every
    method raises what the daemon raised, Unreachable and TimedOut.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout_s: float | None = 30.0,
        connect_s: float = CONNECT_S,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
        trust: Trust | None = None,
    ) -> None:
        self.address = checked_address(address)
        self._trust = trust or Trust()
        self._timeout_s = timeout_s
        self._connect_s = connect_s
        self._options = (
            ("grpc.max_receive_message_length", message_bytes_max),
            ("grpc.max_send_message_length", message_bytes_max),
            ("grpc.keepalive_time_ms", 60_000),
            ("grpc.enable_http_proxy", 0),
        )

    async def __aenter__(self) -> Self:
        """Open the channel and wait until the daemon answers; raises Unreachable, NotTrusted, InvalidConfig."""
        self._channel = self._trust.channel(self.address, self._options)
        self._admin = admin_pb2_grpc.AdminServiceStub(self._channel)
        self._doctor = doctor_pb2_grpc.DoctorServiceStub(self._channel)
        self._reads = read_pb2_grpc.ReadServiceStub(self._channel)
        self._ledgers = ledgers_pb2_grpc.LedgerServiceStub(self._channel)
        self._upkeep = upkeep_pb2_grpc.UpkeepServiceStub(self._channel)
        try:
            await self._connected()
        except BaseException:
            await self._channel.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the channel; calls that still run are cancelled."""
        await self._channel.close()

    async def _connected(self) -> None:
        """Return once the channel is up; the first refusal is final, since a user is waiting."""
        hint = "is the daemon running there? `offloaderd standalone` or `offloaderd serve` starts one"
        try:
            async with asyncio.timeout(self._connect_s):
                state = self._channel.get_state(try_to_connect=True)
                while state is not grpc.ChannelConnectivity.READY:
                    if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                        if (reason := await self._trust.diagnosis(self.address)) is not None:
                            raise reason
                        raise Unreachable(f"cannot connect to the daemon at {self.address}", hint=hint)
                    await self._channel.wait_for_state_change(state)
                    state = self._channel.get_state(try_to_connect=True)
        except TimeoutError:
            raise Unreachable(f"no answer from {self.address} within {self._connect_s:g} s", hint=hint) from None

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
        topics: TopicName | TopicPattern,
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
        self, topics: TopicName | TopicPattern, *, dry_run: bool = False, timeout_s: float | None = None
    ) -> admin_pb2.DisableTopicResponse:
        """Complete the open segments and stop offloading; returns what becomes of each topic."""
        with self._errors():
            request = admin_pb2.DisableTopicRequest(topic=str(topics), dry_run=dry_run)
            return await self._admin.DisableTopic(request, timeout=timeout_s or self._timeout_s)

    async def segments(self, topic: TopicName) -> list[admin_pb2.Segment]:
        """Return the topic's segments in order, the open one last."""
        with self._errors():
            request = admin_pb2.ListSegmentsRequest(topic=str(topic))
            return [segment async for segment in self._admin.ListSegments(request, timeout=self._timeout_s)]

    async def status(self, topic: TopicName | None = None) -> admin_pb2.StatusResponse:
        """Return the daemon's state with one topic, or all of its topics."""
        with self._errors():
            request = admin_pb2.StatusRequest(topic="" if topic is None else str(topic))
            return await self._admin.Status(request, timeout=self._timeout_s)

    async def examine(self, *, timeout_s: float | None = None) -> AsyncGenerator[doctor_pb2.CheckResult, None]:
        """Have the daemon try what it depends on; yields each result as it is found."""
        call = self._doctor.Examine(doctor_pb2.ExamineRequest(), timeout=timeout_s)
        with self._errors(call):
            async for result in call:
                yield result

    async def gc(
        self, *, apply: bool, grace_s: float | None = None, also: Sequence[str] = (), timeout_s: float | None = None
    ) -> AsyncGenerator[upkeep_pb2.GcEvent, None]:
        """Have the daemon collect garbage; yields each find, then the sum. Deletes only with `apply`."""
        call = self._upkeep.Gc(upkeep_pb2.GcRequest(apply=apply, grace_s=grace_s, also=also), timeout=timeout_s)
        with self._errors(call):
            async for event in call:
                yield event

    async def last_positions(self, topic: TopicName) -> read_pb2.LastPositionsResponse:
        """Return the topic's oldest, newest, offloaded and buffered positions."""
        with self._errors():
            request = read_pb2.LastPositionsRequest(topic=str(topic))
            return await self._reads.LastPositions(request, timeout=self._timeout_s)

    async def read(
        self, topic: TopicName, *, timeout_s: float | None = None, **wanted: Unpack[Wanted]
    ) -> AsyncIterator[read_pb2.ReadResponse]:
        """Yield the entries of a range in batches, each with the tier that served it."""
        call = self._reads.Read(read_request(topic, wanted), timeout=timeout_s)
        with self._errors(call):
            async for response in call:
                yield response

    async def read_messages(
        self, topic: TopicName, *, timeout_s: float | None = None, **wanted: Unpack[Wanted]
    ) -> AsyncIterator[read_pb2.ReadMessagesResponse]:
        """Yield the messages in the entries of a range."""
        call = self._reads.ReadMessages(read_request(topic, wanted), timeout=timeout_s)
        with self._errors(call):
            async for response in call:
                yield response

    async def append(
        self,
        topic: TopicName,
        batches: AsyncIterable[Sequence[bytes]],
        answered: Callable[[ledgers_pb2.AppendResponse], None],
        *,
        timeout_s: float | None = None,
    ) -> None:
        """Append batches to the daemon's ledger store; `answered` is called for each, in order, once it is durable.

        What `batches` raises is raised here.
        """
        call = self._ledgers.Append(timeout=timeout_s)
        turn = Turn()
        with self._errors(call):
            try:
                async with Group() as group:
                    writer = group.create_task(send(call, topic, batches, turn), name=f"append to {topic}")
                    async for response in call:
                        turn.answered()
                        answered(response)
                    writer.cancel()
            except BaseExceptionGroup as errors:
                raise first_of(errors) from None
            if not turn.complete:
                await raise_status(call)
        if not turn.complete:
            raise OffloaderError("the daemon ended the append before everything was acknowledged")

    async def roll(self, topic: TopicName) -> None:
        """Close the open ledger of the daemon's ledger store."""
        with self._errors():
            await self._ledgers.Roll(ledgers_pb2.RollRequest(topic=str(topic)), timeout=self._timeout_s)

    @contextmanager
    def _errors(self, call: aio.Call | None = None) -> Iterator[None]:
        """Turn gRPC's exception into ours, and never leave a stream running that nobody reads."""
        try:
            yield
        except aio.AioRpcError as error:
            raise translated(error, self.address) from None
        finally:
            if call is not None:
                call.cancel()


class Turn:
    """Whose turn it is in an append: a batch is sent only when the one before was answered.

    So the daemon is never cut off in the middle of a refusal: gRPC would report the write that failed in place of what
    the daemon said. The next batch is being made meanwhile.
    """

    def __init__(self) -> None:
        self._ours = asyncio.Event()
        self._ours.set()
        self._all_sent = False

    @property
    def complete(self) -> bool:
        """Whether everything was sent and answered."""
        return self._all_sent and self._ours.is_set()

    async def take(self) -> None:
        """Wait until the next batch may be sent."""
        await self._ours.wait()
        self._ours.clear()

    def answered(self) -> None:
        """The batch was answered."""
        self._ours.set()

    def end(self) -> None:
        """Note that nothing more will be sent."""
        self._all_sent = True


async def send(
    call: aio.StreamStreamCall[ledgers_pb2.AppendRequest, ledgers_pb2.AppendResponse],
    topic: TopicName,
    batches: AsyncIterable[Sequence[bytes]],
    turn: Turn,
) -> None:
    """Write all batches; a call that has ended ends this as well, its reader knows why."""
    async for payloads in batches:
        await turn.take()
        try:
            await call.write(ledgers_pb2.AppendRequest(topic=str(topic), payloads=payloads))
        except (aio.AioRpcError, asyncio.InvalidStateError):
            return
    turn.end()
    await call.done_writing()


async def raise_status(call: aio.Call) -> None:
    """Raise AioRpcError for a call that failed: reading its answers may just end when a write noticed it first."""
    code = await call.code()
    if code is not grpc.StatusCode.OK:
        raise aio.AioRpcError(
            code, await call.initial_metadata(), await call.trailing_metadata(), details=await call.details()
        )


def translated(error: aio.AioRpcError, address: str) -> OffloaderError:
    """Return what a failed call means to the caller.

    What the daemon said itself carries its detail; UNAVAILABLE without it was said by the transport: nobody is there.
    """
    code = error.code()
    if any(key == DETAIL_KEY for key, _ in error.trailing_metadata() or ()):
        return from_rpc_error(error)
    if code is grpc.StatusCode.UNAVAILABLE:
        return Unreachable(f"lost the daemon at {address}: {error.details()}", hint="it may be restarting; try again")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return TimedOut("no result before the deadline", hint="allow more with --timeout SECONDS")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return InvalidInput(
            f"the daemon at {address} does not offer this call",
            hint="it may be an older release; appending needs an embedded ledger store, as standalone has",
        )
    return from_rpc_error(error)


def read_request(topic: TopicName, wanted: Wanted) -> read_pb2.ReadRequest:
    """Return what to ask for a range."""
    return read_pb2.ReadRequest(
        topic=str(topic),
        first=position_message(wanted.get("first")),
        last=position_message(wanted.get("last")),
        follow=wanted.get("follow", False),
        entries_max=wanted.get("entries_max") or 0,
        batch_bytes=wanted.get("batch_bytes", 0),
        read_priority=wanted.get("read_priority") or "",
        client_bytes=wanted.get("client_bytes", False),
        seek=seek_target(goal) if (goal := wanted.get("seek")) is not None else None,
    )


def position_message(value: Position | None) -> common_pb2.Position | None:
    """Return a position as a message, None when there is none."""
    return None if value is None else common_pb2.Position(ledger_id=value.ledger_id, entry_id=value.entry_id)
