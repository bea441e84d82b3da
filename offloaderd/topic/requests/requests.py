"""What was last asked of a topic by hand: recorded before it is begun, gone on with by every later owner.

The record is written once. What became of the request follows from the topic's map and policy, so every daemon gives
the same answer, and an owner that crashes in between has nothing to tell.
"""

from enum import StrEnum
from itertools import takewhile
from typing import NamedTuple

import structlog

from offloaderd.core.errors import Conflict, CorruptData, InvalidInput, NewerRecord, NotFound
from offloaderd.core.model import Position, TopicName
from offloaderd.core.retry import until_answered
from offloaderd.history import plan as history
from offloaderd.metadata import nodes, paths
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.records import request as asked_record
from offloaderd.metadata.records.history import Worker
from offloaderd.metadata.records.request import Asked
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.segment.context import OffloadContext
from offloaderd.topic.requests.plan import AskedTopic, Plan, Wanted, Why, left, planned, reached
from offloaderd.topic.status import lag_of

log = structlog.get_logger(__name__)

WRITE_TRIES = 5
"""Somebody else may ask at the same moment."""


class Outcome(StrEnum):
    """What became of a request."""

    NOTHING = "nothing"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class Fate(NamedTuple):
    """What became of a request, why if that needs a word, and when it was done (0: not, or nobody can say)."""

    outcome: Outcome
    reason: str = ""
    done_ms: int = 0


async def read(store: MetadataStore, topic: TopicName) -> Asked | None:
    """Return what was last asked, None for nothing. Raises CorruptData, Transient."""
    return await nodes.record(store, paths.asked(topic), asked_record.decode)


async def record(store: MetadataStore, topic: TopicName, topic_map: TopicMap, asked: Asked) -> None:
    """Note a request, unless an earlier one that is under way includes it. Raises Transient when it may not be noted.

    What is there and cannot be read is replaced, unless a later release wrote it: raises NewerRecord.
    """
    path, value = paths.asked(topic), asked_record.encode(asked)
    for _ in range(WRITE_TRIES):
        node = await nodes.node(store, path)
        try:
            if node is None:
                await store.create(path, value)
            elif not _includes(node.value, path, topic_map, asked):
                await store.replace(path, value, node.version)
        except (Conflict, NotFound):
            continue
        else:
            return
    raise Conflict(f"others ask for {topic} to be offloaded all the time", hint="`offloadctl topics offload-status`")


def _includes(value: bytes, path: str, topic_map: TopicMap, asked: Asked) -> bool:
    """Say whether a request that is on record is under way and goes at least as far as another one."""
    try:
        known = asked_record.decode(value, path=path)
    except NewerRecord:
        raise
    except CorruptData:
        return False
    if known.target is None or reached(topic_map, known.target):
        return False
    return asked.target is None or asked.target <= known.target


def fate_of(
    asked: Asked, topic_map: TopicMap, *, none: bool = False, paused: bool = False, active: bool = True
) -> Fate:
    """Say what became of a request.

    `none`: the topic's method takes nothing now, `paused`: nor does an operator let it; `active`: it is offloaded.
    """
    target = asked.target
    if target is None:
        return Fate(Outcome.NOTHING, asked.reason)
    if not reached(topic_map, target):
        if not active:
            return Fate(Outcome.FAILED, "the topic is not offloaded any more; it goes on when the topic is enabled")
        if paused:
            return Fate(Outcome.FAILED, f"{Why.PAUSED}; it goes on when that is resumed")
        if none:
            return Fate(Outcome.FAILED, f"{Why.NONE}; it goes on under another method")
        return Fate(Outcome.RUNNING, asked.reason)
    gone = [loss for loss in topic_map.losses if loss.noticed_ms >= asked.asked_ms and loss.after < target]
    if gone:
        ranges = ", ".join(map(str, gone))
        return Fate(Outcome.FAILED, f"the source deleted entries before they were offloaded: {ranges}")
    segment = topic_map.find(target)
    return Fate(Outcome.DONE, asked.reason, segment.offloaded_ms if segment is not None else 0)


class ByHand:
    """What can be asked of one topic's owner."""

    def __init__(self, topic: AskedTopic, context: OffloadContext) -> None:
        self._topic = topic
        self._context = context

    async def plan(self, wanted: Wanted) -> Plan:
        """Say what a wish comes to now. Raises InvalidInput for one that cannot be meant of this topic, Transient."""
        return await planned(self._topic, self._context.source, wanted)

    async def ask(self, wanted: Wanted, by: str) -> tuple[Asked, Plan]:
        """Have offloaded what somebody wants; returns the request and what it comes to.

        Without a position it means all that is written, also what the source is about to hear of. Raises InvalidInput
        for what cannot be meant of this topic, Conflict when its method takes nothing, Transient.
        """
        topic = self._topic
        if topic.tailer is not None and wanted.to is None:
            await topic.tailer.settled()
        plan = await self.plan(wanted)
        if plan.why is Why.NONE:
            raise Conflict(f"the policy of {topic.topic} has the method none", hint="set another method first")
        asked = Asked(
            wanted=str(wanted),
            target=plan.target,
            stood=topic.map.offloaded,
            asked_ms=self._context.upload_context.clock.wall_ms(),
            asked_by=by,
            reason=plan.reason,
        )
        await record(self._context.metadata, topic.topic, topic.map, asked)
        log.info("offload.requested", topic=str(topic.topic), wanted=asked.wanted, target=str(plan.target), by=by)
        if plan.target is not None:
            await topic.request_roll(plan.target)
        return asked, plan

    async def by_itself(self) -> Asked:
        """Return what goes on without having been asked for, as if it had been, in no words. Raises Transient."""
        topic, plan = self._topic, await self.plan(Wanted())
        target, why = plan.target, plan.why
        past = topic.map.unfinished if history.waits(topic.map, topic.policy) else None
        if past is not None:
            target, why = (past.last, None) if past.worker is Worker.DAEMON else (None, Why.HISTORY)
        elif plan.takes:
            going = list(takewhile(lambda take: take.due, plan.takes))
            target = Position(going[-1].ledger_id, going[-1].last_entry_id) if going else None
            why = why if going else Why.NOT_DUE
        return Asked(
            wanted="",
            target=target,
            stood=topic.map.offloaded,
            asked_ms=self._context.upload_context.clock.wall_ms(),
            reason=str(why or ""),
        )

    def left(self, target: Position) -> tuple[int, int]:
        """Return the entries and payload bytes up to `target` that are not offloaded, of what the source has."""
        return left(self._topic, target) if self._topic.tailer is not None else lag_of(self._topic)


async def keep(context: OffloadContext, offloader: AskedTopic) -> None:
    """Go on with what was asked of an earlier owner, or before a method that takes nothing."""
    topic, clock = offloader.topic, context.upload_context.clock
    while True:
        try:
            asked = await until_answered(clock, lambda: read(context.metadata, topic))
            if asked is not None and asked.target is not None and not reached(offloader.map, asked.target):
                await _resume(offloader, asked.target)
        except CorruptData as error:
            log.warning("offload.request_unreadable", topic=str(topic), error=str(error))
        with offloader.resting():
            await offloader.policy_changed.wait()


async def _resume(offloader: AskedTopic, target: Position) -> None:
    """Ask for a position again; not under a method that takes nothing, nor for what the source has no more."""
    try:
        await offloader.failure_tracker.until_answered(lambda: offloader.request_roll(target), "source")
    except InvalidInput as error:
        log.warning("offload.request_dropped", topic=str(offloader.topic), target=str(target), error=str(error))
    except Conflict as error:
        log.info("offload.request_waits", topic=str(offloader.topic), target=str(target), reason=str(error))
