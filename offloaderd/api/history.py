"""Services about entries that were offloaded before, or not at all: HistoryService and RollbackService.

HistoryService returns the segments into which a topic's history would be split, and the progress of its offload.
RollbackService plans which ledgers of a topic a stock broker could read, and has the others rewritten.
"""

import asyncio
from collections.abc import AsyncGenerator

from offloaderd.api.calls import Context
from offloaderd.api.retention import checked_ledger
from offloaderd.core.errors import InvalidInput, NotFound, TopicNotFound
from offloaderd.core.model import OffloadMethod, Position, TopicName
from offloaderd.fleet.engine import Engine
from offloaderd.format.parsing import filled
from offloaderd.history.boundaries import Splitter, segment_bytes_for
from offloaderd.history.plan import Extent, extent_of, left_of, waits
from offloaderd.history.rollback import Progress, Rollback
from offloaderd.metadata import history, nodes, paths
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.records import orders
from offloaderd.metadata.records.history import RangeState, Worker
from offloaderd.metadata.records.orders import RollbackOrder
from offloaderd.metadata.topic_map.conversion import LedgerState, Standing
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.policy.records import TopicPolicy
from offloaderd.policy.resolver import Namespace
from offloaderd.policy.store import topic_policies
from offloaderd.protocol.conversion import to_position
from offloaderd.protocol.v1 import history_pb2, history_pb2_grpc, rollback_pb2, rollback_pb2_grpc
from offloaderd.segment.roll import RollPolicy

RANGES_MAX = 10_000
"""Ranges in one answer."""


class HistoryService(history_pb2_grpc.HistoryServiceServicer):
    """Answers from metadata and source; changes nothing."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._context = engine.context
        self._turn = asyncio.Semaphore(1)  # a split needs many requests to the source

    async def PlanHistory(
        self, request: history_pb2.PlanHistoryRequest, context: Context
    ) -> history_pb2.PlanHistoryResponse:
        """Split the remaining history. Raises InvalidInput, NotFound (unknown, or no source), Transient."""
        topic, source = TopicName.parse(request.topic), self._context.source
        if source is None:
            raise NotFound(f"the ledgers of {topic} have no source", hint="history is read from BookKeeper, or a store")
        topic_map = await self._engine.topic_map(topic)
        infos = await source.ledgers(topic)
        wanted = request.segment_bytes or RollPolicy.of(await self._engine.book.of(topic)).segment_bytes_max
        segment_bytes = segment_bytes_for(wanted, self._context.layout)
        extent = extent_of(infos, _boundary_of(topic_map))
        begin = first_left(topic_map, extent) if extent is not None else None
        if extent is None or begin is None:
            return history_pb2.PlanHistoryResponse(segment_bytes=segment_bytes)
        splitter = Splitter(
            source,
            topic,
            segment_bytes=segment_bytes,
            clock=self._context.upload_context.clock,
            metrics=self._context.upload_context.metrics,
        )
        async with self._turn:
            split = await splitter.split(extent.infos, begin, extent.last)
        if len(split.ranges) > RANGES_MAX:
            raise InvalidInput(
                f"{len(split.ranges)} segments are more than the {RANGES_MAX} that can be shown",
                hint="ask for larger segments with --segment-size",
            )
        plan = topic_map.history
        small = extent.payload_bytes <= self._context.history_bytes_max
        worker = plan.worker if plan is not None else Worker.DAEMON if small else Worker.JOB
        return filled(
            history_pb2.PlanHistoryResponse,
            split,
            boundary=Position(extent.boundary, 0),
            entries=sum(one.entries for one in split.ranges),
            payload_bytes=sum(one.payload_bytes for one in split.ranges),
            segment_bytes=segment_bytes,
            doubtful=split.doubts,
            worker=worker,
            planned=plan is not None,
        )

    async def GetHistory(
        self, request: history_pb2.GetHistoryRequest, context: Context
    ) -> history_pb2.GetHistoryResponse:
        """Return the plan and some of its ranges. Raises InvalidInput, CorruptData, Transient."""
        topic = TopicName.parse(request.topic)
        if request.ranges_max > RANGES_MAX:
            raise InvalidInput(f"ask for {RANGES_MAX} ranges at most, not {request.ranges_max}")
        topic_map, owner = await self._engine.topic_map(topic), await self._engine.owner_of(topic)
        plan, left = topic_map.history, left_of(topic_map)
        if plan is None:
            return history_pb2.GetHistoryResponse(owner=owner.daemon_id if owner is not None else "")
        ranges = await history.load(self._context.metadata, topic, plan.ranges)
        counts = ranges.counts()
        offloader = self._engine.find(topic)
        error = offloader.record.history_error if offloader is not None else None
        policy = offloader.policy if offloader is not None else RollPolicy.of(await self._engine.book.of(topic))
        some = ranges.ranges[request.ranges_from : request.ranges_from + request.ranges_max]
        return history_pb2.GetHistoryResponse(
            plan=filled(
                history_pb2.HistoryPlan,
                plan,
                begin=Position(plan.first, 0),
                boundary=plan.live_begin,
                split_seconds=plan.split_ms / 1000,
            ),
            ranges=[filled(history_pb2.HistoryRange, one) for one in some],
            ranges_planned=counts[RangeState.PLANNED],
            ranges_claimed=counts[RangeState.CLAIMED],
            ranges_done=counts[RangeState.DONE],
            left_entries=left.entries,
            left_bytes=left.payload_bytes,
            offloaded=to_position(topic_map.history_end),
            owner=owner.daemon_id if owner is not None else "",
            error=str(error) if error is not None else "",
            live_waits=waits(topic_map, policy),
        )


def _boundary_of(topic_map: TopicMap) -> int | None:
    """Return the ledger with which live segments begin, None for the newest: nothing is offloaded yet."""
    if topic_map.history is not None:
        return topic_map.history.boundary
    floor = topic_map.floor
    first = topic_map.segments[0].begin if topic_map.segments else floor
    return first.ledger_id if first is not None else None


def first_left(topic_map: TopicMap, extent: Extent) -> Position | None:
    """Return the first entry of history that is not offloaded; None when all is, or retention has deleted it."""
    if topic_map.history is not None and topic_map.unfinished is None:
        return None
    end = topic_map.history_end if topic_map.history is not None else topic_map.floor
    if end is None:
        return extent.begin
    behind = end.next()
    left = [info for info in extent.infos if behind < (info.ledger_id, info.entries)]
    return max(behind, Position(left[0].ledger_id, 0)) if left else None


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
        order = await nodes.record(self._metadata, paths.rollback_order(topic), orders.decode_rollback)
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
            order=_order_message(order) if order is not None else None,
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
        return rollback_pb2.ConvertTopicResponse(order=_order_message(order) if order is not None else None)

    async def FollowRollback(
        self, request: rollback_pb2.FollowRollbackRequest, context: Context
    ) -> AsyncGenerator[rollback_pb2.RollbackProgress, None]:
        """Yield progress until the order is done. Raises NotFound, Conflict with the owner, Transient."""
        topic = TopicName.parse(request.topic)
        clock = self._engine.context.upload_context.clock
        while True:
            offloader = await self._engine.owned(topic)
            found = self._engine.rollback.progress(offloader)
            yield _progress_message(found)
            if found.order is None or not found.order.active:
                return
            await offloader.changed.wait_at_most(clock, FOLLOW_S)

    async def StopRollback(
        self, request: rollback_pb2.StopRollbackRequest, context: Context
    ) -> rollback_pb2.StopRollbackResponse:
        """Withdraw the order. Raises NotFound without one, Conflict with the owner, Transient."""
        offloader = await self._engine.owned(TopicName.parse(request.topic))
        return rollback_pb2.StopRollbackResponse(order=_order_message(await self._engine.rollback.stop(offloader)))


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


def _order_message(order: RollbackOrder) -> rollback_pb2.RollbackOrder:
    failures = sorted(order.failures.items())
    return filled(
        rollback_pb2.RollbackOrder,
        order,
        failures=[rollback_pb2.RollbackFailure(ledger_id=ledger_id, reason=reason) for ledger_id, reason in failures],
    )


def _progress_message(found: Progress) -> rollback_pb2.RollbackProgress:
    order = _order_message(found.order) if found.order is not None else None
    return filled(rollback_pb2.RollbackProgress, found, order=order, ledger_bytes=found.ledger_done_bytes)
