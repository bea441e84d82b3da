"""HistoryService: the segments into which a topic's history would be split, and the progress of its offload."""

import asyncio

from offloaderd.api.context import Context
from offloaderd.core.errors import InvalidInput, NotFound
from offloaderd.core.model import Position, TopicName
from offloaderd.fleet.engine import Engine
from offloaderd.format.parsing import filled
from offloaderd.history.boundaries import Splitter, segment_bytes_for
from offloaderd.history.plan import Extent, extent_of, left_of, waits
from offloaderd.metadata import history
from offloaderd.metadata.records.history import HistoryPlan, RangeState, Worker
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.protocol.conversion import to_position
from offloaderd.protocol.v1 import history_pb2, history_pb2_grpc
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
        extent = extent_of(infos, boundary_of(topic_map))
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
            plan=plan_message(plan),
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


def boundary_of(topic_map: TopicMap) -> int | None:
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
    behind = Position(end.ledger_id, end.entry_id + 1)
    left = [info for info in extent.infos if behind < (info.ledger_id, info.entries)]
    return max(behind, Position(left[0].ledger_id, 0)) if left else None


def plan_message(plan: HistoryPlan) -> history_pb2.HistoryPlan:
    """Return a plan as a message."""
    return filled(
        history_pb2.HistoryPlan,
        plan,
        begin=Position(plan.first, 0),
        boundary=plan.live_begin,
        split_seconds=plan.split_ms / 1000,
    )
