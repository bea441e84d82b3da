"""RollbackService: the ledgers of a topic that a stock broker could read, and the rewriting of the others."""

from collections.abc import AsyncGenerator

from offloaderd.api.context import Context
from offloaderd.api.services.retention import checked_ledger
from offloaderd.core.errors import InvalidInput, NotFound, TopicNotFound
from offloaderd.core.model import OffloadMethod, TopicName
from offloaderd.fleet.engine import Engine
from offloaderd.format.parsing import filled
from offloaderd.history.rewriting.rollback import Progress, Rollback
from offloaderd.metadata import nodes, paths
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.records import rollback as rollback_record
from offloaderd.metadata.records.rollback import RollbackOrder
from offloaderd.metadata.topic_map.conversion import LedgerState, Standing
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.policy.records import TopicPolicy
from offloaderd.policy.resolver import Namespace
from offloaderd.policy.store import topic_policies
from offloaderd.protocol.v1 import rollback_pb2, rollback_pb2_grpc

FOLLOW_S = 1.0
"""Longest pause between two messages of progress."""


class RollbackService(rollback_pb2_grpc.RollbackServiceServicer):
    """Plans from metadata, for any topic; the topic's owner rewrites its segments."""

    def __init__(self, engine: Engine, metadata: MetadataStore) -> None:
        self._engine = engine
        self._metadata = metadata

    async def PlanRollback(
        self, request: rollback_pb2.PlanRollbackRequest, context: Context
    ) -> AsyncGenerator[rollback_pb2.PlanRollbackResponse, None]:
        """Yield a plan for each topic. Raises InvalidInput, NotFound (unknown topic, or namespace without any)."""
        to = checked_ledger(request.to_ledger_id) if request.HasField("to_ledger_id") else None
        target = target_of(request.target)
        policies = await topic_policies(self._metadata)
        if isinstance(target, TopicName):
            named = [target]
        else:
            if to is not None:
                raise InvalidInput("a ledger belongs to one topic", hint="name the topic")
            named = sorted(one for one in policies if (one.tenant, one.namespace) == target)
            if not named:
                raise NotFound(f"no topic of {request.target} is known here", hint="offloadctl topics list")
        for topic in named:
            topic_map = await self._engine.topic_map(topic)
            if topic not in policies and not topic_map.contexts:
                raise TopicNotFound(f"unknown topic {topic}", hint="`offloadctl topics list` shows what there is")
            found = policies.get(topic)
            enabled = isinstance(found, TopicPolicy) and found.active
            yield await self._plan(topic_map, to, enabled=enabled)

    async def _plan(self, topic_map: TopicMap, to: int | None, *, enabled: bool) -> rollback_pb2.PlanRollbackResponse:
        topic, rollback = topic_map.topic, self._engine.rollback
        if to is not None and to not in topic_map.contexts:
            raise NotFound(f"{topic} has no ledger {to} in the tier", hint="offloadctl ledgers list")
        order = await nodes.record(self._metadata, paths.rollback_order(topic), rollback_record.decode)
        method = (await self._engine.book.of(topic)).values.method or OffloadMethod.STREAMING
        unfinished = topic_map.unfinished
        return rollback_pb2.PlanRollbackResponse(
            topic=str(topic),
            ledgers=[_ledger_message(rollback, one) for one in rollback.ledger_states(topic_map, to)],
            losses=[str(loss) for loss in topic_map.losses],
            method=method.value,
            enabled=enabled,
            prefix=next((one.prefix for one in topic_map.segments if one.prefix), ""),
            bytes_per_s=rollback.speed.bytes_per_s,
            measured=rollback.speed.measured,
            order=order_message(order) if order is not None else None,
            unfinished=f"before {unfinished.live_begin}" if unfinished is not None else "",
        )

    async def ConvertTopic(
        self, request: rollback_pb2.ConvertTopicRequest, context: Context
    ) -> rollback_pb2.ConvertTopicResponse:
        """Order the rollback. Raises InvalidInput, NotFound (not enabled, no such ledger), Conflict with the owner,
        Transient.
        """
        topic = TopicName.parse(request.topic)
        to = checked_ledger(request.to_ledger_id) if request.HasField("to_ledger_id") else None
        order = await self._engine.rollback.order(await self._engine.owned(topic), to)
        return rollback_pb2.ConvertTopicResponse(order=order_message(order) if order is not None else None)

    async def FollowRollback(
        self, request: rollback_pb2.FollowRollbackRequest, context: Context
    ) -> AsyncGenerator[rollback_pb2.RollbackProgress, None]:
        """Yield progress until the order is done. Raises NotFound, Conflict with the owner, Transient."""
        topic = TopicName.parse(request.topic)
        clock = self._engine.context.upload_context.clock
        while True:
            offloader = await self._engine.owned(topic)
            found = self._engine.rollback.progress(offloader)
            yield progress_message(found)
            if found.order is None or not found.order.active:
                return
            await offloader.changed.wait_at_most(clock, FOLLOW_S)

    async def StopRollback(
        self, request: rollback_pb2.StopRollbackRequest, context: Context
    ) -> rollback_pb2.StopRollbackResponse:
        """Withdraw the order. Raises NotFound without one, Conflict with the owner, Transient."""
        offloader = await self._engine.owned(TopicName.parse(request.topic))
        return rollback_pb2.StopRollbackResponse(order=order_message(await self._engine.rollback.stop(offloader)))


def target_of(text: str) -> TopicName | Namespace:
    """Parse a topic, or TENANT/NAMESPACE. Raises InvalidInput."""
    tenant, slash, namespace = text.partition("/")
    if slash and namespace and "/" not in namespace and "://" not in text:
        TopicName.parse(f"persistent://{text}/any")
        return tenant, namespace
    return TopicName.parse(text)


def _ledger_message(rollback: Rollback, row: LedgerState) -> rollback_pb2.RollbackLedger:
    goes = row.standing is Standing.CONVERTIBLE
    seconds = row.payload_bytes / rollback.speed.bytes_per_s if goes else 0.0
    return filled(rollback_pb2.RollbackLedger, row, requests=rollback.requests(row) if goes else 0, seconds=seconds)


def order_message(order: RollbackOrder) -> rollback_pb2.RollbackOrder:
    """Return an order as a message."""
    failures = sorted(order.failures.items())
    return filled(
        rollback_pb2.RollbackOrder,
        order,
        failures=[rollback_pb2.RollbackFailure(ledger_id=ledger_id, reason=reason) for ledger_id, reason in failures],
    )


def progress_message(found: Progress) -> rollback_pb2.RollbackProgress:
    """Return progress as a message."""
    order = order_message(found.order) if found.order is not None else None
    return filled(rollback_pb2.RollbackProgress, found, order=order, ledger_bytes=found.ledger_done_bytes)
