"""The driver's side of one topic's conversion: executors write objects, the driver exchanges them in order.

The topic's owner may change the map at any moment. Each exchange names the version of every context that it writes, so
it is either made in the map as it is, or refused and compared with the map again.
"""

import asyncio
from dataclasses import dataclass

import structlog

from offloaderd.core.aio.groups import Group
from offloaderd.core.model import TopicName
from offloaderd.core.retry import until_answered
from offloaderd.history.rewriting.rewrite import exchange, look_up
from offloaderd.history.rewriting.stored_feed import Unreadable
from offloaderd.metadata import paths
from offloaderd.metadata.nodes import node
from offloaderd.metadata.port import Replace
from offloaderd.metadata.records.attempt import AttemptStatus
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.metadata.topic_map.merging import Goal
from offloaderd.segment.claim.fence import Claim
from offloaderd.segment.claim.head import head_of
from offloaderd.segment.context import OffloadContext
from offloaderd.segment.failures import FailureTracker
from offloaderd.segment.resume import reason_to_give_up
from offloaderd.segment.upload import SegmentFailed
from offloaderd.spark.convert.object_plan import ConversionFailed, Wish, plan_objects
from offloaderd.spark.jobs.job import Driver, RewriteTask, Written
from offloaderd.spark.jobs.join import stored, verified
from offloaderd.spark.jobs.lease import attempt_log, attempts_of
from offloaderd.spark.jobs.topic_job import Item, TopicJob

log = structlog.get_logger(__name__)

TRIES_MAX = 3
"""Failures of one object after which its sources stay as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A topic's conversion: exchanged objects and payload bytes, and the totals to exchange."""

    topic: TopicName
    done: int
    goals: int
    bytes_done: int
    bytes_all: int
    writing: int
    failures: tuple[str, ...] = ()


@dataclass(slots=True, eq=False, kw_only=True)
class _Object(Item):
    """An object and the segments that it is made of."""

    goal: Goal
    done: bool = False


class TopicConversion(TopicJob[_Object, RewriteTask, Progress]):
    """One run of one topic's conversion."""

    NAME, COMMAND = "conversion", "convert"
    FAILED = ConversionFailed

    def __init__(
        self, context: OffloadContext, topic: TopicName, driver: Driver[RewriteTask, Progress], wish: Wish
    ) -> None:
        super().__init__(context, topic, driver)
        self._wish = wish
        self._objects: list[_Object] = []
        self._map = TopicMap(topic)
        self._trash_version = 0

    async def _check(self) -> None:
        self._goals(await self._load())

    def _goals(self, topic_map: TopicMap) -> tuple[Goal, ...]:
        return plan_objects(topic_map, self._wish, self._context.places.buckets).goals

    async def _load(self) -> TopicMap:
        return await until_answered(self._clock, lambda: catalog.load(self._context.metadata, self._topic))

    async def _reload(self) -> TopicMap:
        """Read the map, and the version of the folder by which the owner is notified of exchanges."""
        folder, store = paths.trash(self._topic), self._context.metadata

        async def version() -> int:
            found = await node(store, folder)
            if found is None:
                await store.create(folder, b"")
            return found.version if found is not None else 0

        self._trash_version = await until_answered(self._clock, version)
        self._map = await self._load()
        return self._map

    async def _work(self, claim: Claim) -> None:
        self._claim, self._head = claim, head_of(self._context, claim)
        self._objects = [_Object(goal=goal) for goal in self._goals(await self._reload())]
        await self._take_up()
        self._report()
        async with Group() as group:
            dispatching = group.create_task(self._dispatch(group), name=f"dispatch {self._topic}")
            for one in self._objects:
                while not (one.ready or one.error):
                    await self._changed.wait()
                if one.ready:
                    await self._exchange(one)
                self._report()
            await asyncio.wait([dispatching])

    async def _take_up(self) -> None:
        """Take over the attempts of earlier drivers that are still in the plan; the others go to the trash."""
        wanted = {(one.goal.begin, one.goal.whole): one for one in self._objects}
        async for attempts, found in attempts_of(self._context, self._claim, self._head):
            one = wanted.get((found.begin, found.ledger_id is not None))
            reason = reason_to_give_up(found, None, self._context)
            if one is None or one.recorded is not None or found.end not in {None, one.goal.end}:
                reason = reason or "its sources have changed, or the conversion has another target"
            if reason or one is None:
                await attempts.give_up(found, reason)
                continue
            one.recorded, one.again = (attempts, found), True
            one.ready = found.status is AttemptStatus.OFFLOADED
            log.info("conversion.resumed", topic=str(self._topic), begin=str(found.begin), ready=one.ready)

    async def _dispatch(self, group: asyncio.TaskGroup) -> None:
        for one in self._objects:
            if not one.ready:
                await self._driver.slots.acquire()
                group.create_task(self._write(one), name=f"object of {self._topic} at {one.goal.begin}")

    async def _begin(self, item: _Object) -> None:
        failure_tracker = FailureTracker(self._topic, self._clock, lambda: None)
        try:
            old = await look_up(self._context, self._topic, item.goal, failure_tracker=failure_tracker)
            attempt = await old.new_attempt(self._claim.epoch)
        except Unreadable as error:
            item.error = str(error)
            return
        path = paths.history_job_attempt(self._topic, attempt.segment_id)
        attempts = attempt_log(self._context, self._claim, path, self._head)
        await attempts.begin(attempt)
        item.recorded = attempts, attempt

    def _task(self, item: _Object) -> RewriteTask:
        return RewriteTask(
            claim=self._claim,
            segment_id=item.attempt.segment_id,
            begin=item.goal.begin,
            end=item.goal.end,
            whole=item.goal.whole,
            again=item.again,
            patience_s=self._driver.patience_s,
        )

    def _note_failure(self, item: _Object, written: Written) -> None:
        log.warning("conversion.write_failed", topic=str(self._topic), begin=str(item.goal.begin), error=written.error)
        if item.tries >= TRIES_MAX:
            item.error = written.error or written.outcome.value

    async def _exchange(self, item: _Object) -> None:
        """Exchange an object for its sources, or give it up. Raises Fenced."""
        assert item.recorded is not None  # noqa: S101 - it is ready
        attempts, attempt = item.recorded
        try:
            upload, described = await stored(self._context, self._topic, attempt)
            made = await verified(upload, attempt, described)

            async def put() -> None:
                touched = Replace(paths.trash(self._topic), b"", self._trash_version)
                self._map = await attempts.exchange(self._map, made, [touched])
                self._trash_version += 1

            await exchange(put, self._reload, made.segment_id)
        except SegmentFailed as error:
            item.error = str(error)
            await self._give_up(item, item.error)
            return
        item.done = True
        log.info("conversion.exchanged", topic=str(self._topic), segment_id=str(made.segment_id), range=str(made.range))

    def _progress(self) -> Progress:
        return Progress(
            topic=self._topic,
            done=sum(one.done for one in self._objects),
            goals=len(self._objects),
            bytes_done=sum(one.goal.payload_bytes for one in self._objects if one.done),
            bytes_all=sum(one.goal.payload_bytes for one in self._objects),
            writing=sum(one.recorded is not None and not one.ready for one in self._objects),
            failures=tuple(f"{one.goal.range}: {one.error}" for one in self._objects if one.error),
        )
