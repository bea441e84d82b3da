"""The driver's side of one topic's conversion: has objects written by executors, exchanges them in order.

It takes the claim of a topic's jobs, so neither a backfill nor another conversion works beside it. What an executor has
written is known by its attempt alone: a driver that comes after a crash exchanges what is proven, goes on with what
was begun, and gives up what is not wanted any more. The topic's owner may change the map at any moment; each exchange
names the version of every context that it writes, so it is either of the map as it is, or refused and looked at again.
"""

import asyncio
from dataclasses import dataclass

import structlog

from offloaderd.core.aio.groups import Group
from offloaderd.core.aio.signal import Signal
from offloaderd.core.errors import Fenced, Transient, first_of
from offloaderd.core.model import TopicName
from offloaderd.core.retry import Backoff, until_answered
from offloaderd.history.rewriting.rewrite import exchange, look_up
from offloaderd.history.rewriting.stored_feed import Unreadable
from offloaderd.metadata import paths
from offloaderd.metadata.nodes import node
from offloaderd.metadata.port import Replace
from offloaderd.metadata.records.attempt import Attempt, AttemptStatus
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.metadata.topic_map.merging import Goal
from offloaderd.segment.claim.attempt_log import AttemptLog
from offloaderd.segment.claim.fence import Claim
from offloaderd.segment.claim.head import head_of
from offloaderd.segment.context import OffloadContext
from offloaderd.segment.failures import FailureTracker
from offloaderd.segment.resume import resume as recovery
from offloaderd.segment.upload import SegmentFailed
from offloaderd.spark.jobs.attempts import attempts_of
from offloaderd.spark.jobs.job import Outcome, Written
from offloaderd.spark.jobs.join import stored, verified
from offloaderd.spark.jobs.lease import as_driver
from offloaderd.spark.jobs.rewrite_job import ConversionFailed, Driver, Progress, RewriteTask, Wish, outlook

log = structlog.get_logger(__name__)

TRIES_MAX = 3
"""How often an object is begun or gone on with before what it was to replace is left as it is."""


@dataclass(slots=True, eq=False)
class _Item:
    """One object that is to be made, and how far it is."""

    goal: Goal
    recorded: tuple[AttemptLog, Attempt] | None = None
    again: bool = False
    ready: bool = False
    done: bool = False
    error: str = ""


class TopicConversion:
    """One run of one topic's conversion."""

    def __init__(self, context: OffloadContext, topic: TopicName, driver: Driver, wish: Wish) -> None:
        self._context = context
        self._topic = topic
        self._driver = driver
        self._wish = wish
        self._clock = context.upload_context.clock
        self._changed = Signal()
        self._items: list[_Item] = []
        self._map = catalog.TopicMap(topic)
        self._trash_version = 0

    async def run(self) -> Progress:
        """Work until everything is exchanged that can be; returns how it ended.

        Raises ConversionFailed, Driven, Fenced when another driver took over, CorruptData.
        """
        store, me = self._context.metadata, self._driver.me
        outlook(await self._load(), self._wish, self._context.places.buckets)
        await as_driver(store, self._topic, me, self._clock, self._run, job="conversion", failed=ConversionFailed)
        return self._standing()

    async def _load(self) -> TopicMap:
        store = self._context.metadata
        return await until_answered(self._clock, lambda: catalog.load(store, self._topic))

    async def _look(self) -> None:
        """Read the map, and the version of the folder that tells the owner of exchanges."""
        folder, store = paths.trash(self._topic), self._context.metadata

        async def version() -> int:
            found = await node(store, folder)
            if found is None:
                await store.create(folder, b"")
            return found.version if found is not None else 0

        self._trash_version = await until_answered(self._clock, version)
        self._map = await self._load()

    async def _run(self, claim: Claim) -> None:
        self._claim, self._head = claim, head_of(self._context, claim)
        await self._look()
        goals = outlook(self._map, self._wish, self._context.places.buckets).goals
        self._items = [_Item(goal) for goal in goals]
        await self._take_up()
        self._told()
        try:
            async with Group() as group:
                dispatching = group.create_task(self._dispatch(group), name=f"dispatch {self._topic}")
                for item in self._items:
                    while not item.ready and not item.error:
                        await self._changed.wait()
                    if item.ready:
                        await self._exchange(item)
                    self._told()
                await asyncio.wait([dispatching])
        except BaseExceptionGroup as errors:
            raise first_of(errors) from None

    def _log(self, path: str) -> AttemptLog:
        metrics = self._context.upload_context.metrics
        return AttemptLog(
            self._context.metadata, self._claim, clock=self._clock, metrics=metrics, path=path, head=self._head
        )

    async def _take_up(self) -> None:
        """Go on with what earlier drivers left, if it is still to be made; the rest goes to the trash."""
        wanted = {(item.goal.begin, item.goal.whole): item for item in self._items}
        async for attempts, found in attempts_of(self._context, self._claim, self._head):
            item = wanted.get((found.begin, found.ledger_id is not None))
            reason = recovery.reason_to_give_up(found, None, self._context)
            if item is None or item.recorded is not None or found.end not in {None, item.goal.end}:
                reason = reason or "what it was to replace has changed, or is to become something else"
            if reason or item is None:
                await attempts.give_up(found, reason)
                continue
            item.recorded, item.again = (attempts, found), True
            item.ready = found.status is AttemptStatus.OFFLOADED
            log.info("conversion.resumed", topic=str(self._topic), begin=str(found.begin), ready=item.ready)

    async def _dispatch(self, group: asyncio.TaskGroup) -> None:
        for item in self._items:
            if not item.ready:
                await self._driver.slots.acquire()
                group.create_task(self._written(item), name=f"object of {self._topic} at {item.goal.begin}")

    async def _written(self, item: _Item) -> None:
        """Have one object written and proven; its place is held already. Raises Fenced."""
        backoff, error = Backoff(self._clock), ""
        try:
            for _ in range(TRIES_MAX):
                if item.recorded is None:
                    await self._begin(item)
                self._told()
                written = await self._task(item)
                if await self._is_ready(item, written):
                    break
                error = written.error
                log.warning("conversion.write_failed", topic=str(self._topic), begin=str(item.goal.begin), error=error)
                if written.outcome is Outcome.BROKEN:
                    await self._give_up(item, error)
                await backoff.wait(Transient(error))
            else:
                item.error = error
        except Unreadable as unreadable:
            item.error = str(unreadable)
        finally:
            self._driver.slots.release()
            self._changed.notify()

    async def _begin(self, item: _Item) -> None:
        """Record an attempt before its first byte. Raises Unreadable, Fenced."""
        failure_tracker = FailureTracker(self._topic, self._clock, lambda: None)
        old = await look_up(self._context, self._topic, item.goal, failure_tracker=failure_tracker)
        attempt = await old.new_attempt(self._claim.epoch)
        attempts = self._log(paths.history_job_attempt(self._topic, attempt.segment_id))
        await attempts.begin(attempt)
        item.recorded, item.again = (attempts, attempt), False

    async def _task(self, item: _Item) -> Written:
        assert item.recorded is not None  # noqa: S101 - it has begun
        task = RewriteTask(
            claim=self._claim,
            segment_id=item.recorded[1].segment_id,
            begin=item.goal.begin,
            end=item.goal.end,
            whole=item.goal.whole,
            again=item.again,
            patience_s=self._driver.patience_s,
        )
        item.again = True
        try:
            return await self._driver.runner.run(task)
        except Transient as error:
            return Written(outcome=Outcome.HINDERED, error=str(error))

    async def _is_ready(self, item: _Item, written: Written) -> bool:
        """Say whether an object is proven, by its record. Raises Fenced."""
        assert item.recorded is not None  # noqa: S101 - it has begun
        attempts, _ = item.recorded
        found = await until_answered(self._clock, attempts.load)
        if found is None or written.outcome is Outcome.FENCED:
            raise Fenced(f"somebody else works on {self._topic} now, or the conversion was cancelled")
        item.recorded = attempts, found
        item.ready = found.status is AttemptStatus.OFFLOADED
        return item.ready

    async def _give_up(self, item: _Item, reason: str) -> None:
        assert item.recorded is not None  # noqa: S101 - it has begun
        attempts, attempt = item.recorded
        await attempts.give_up(attempt, reason)
        item.recorded = None

    async def _exchange(self, item: _Item) -> None:
        """Put what is proven in the place of what it was made of, or give it up. Raises Fenced."""
        assert item.recorded is not None  # noqa: S101 - it is ready
        attempts, attempt = item.recorded
        try:
            upload, described = await stored(self._context, self._topic, attempt)
            made = await verified(upload, attempt, described)

            async def put() -> None:
                touched = Replace(paths.trash(self._topic), b"", self._trash_version)
                self._map = await attempts.exchange(self._map, made, [touched])
                self._trash_version += 1

            await exchange(put, self._reloaded, made.segment_id)
        except SegmentFailed as error:
            item.error = str(error)
            await self._give_up(item, str(error))
            return
        item.done = True
        log.info("conversion.exchanged", topic=str(self._topic), segment_id=str(made.segment_id), range=str(made.range))

    async def _reloaded(self) -> TopicMap:
        await self._look()
        return self._map

    def _standing(self) -> Progress:
        items = self._items
        return Progress(
            done=sum(one.done for one in items),
            goals=len(items),
            bytes_done=sum(one.goal.payload_bytes for one in items if one.done),
            bytes_all=sum(one.goal.payload_bytes for one in items),
            writing=sum(one.recorded is not None and not one.ready for one in items),
            failures=tuple(f"{one.goal.range}: {one.error}" for one in items if one.error),
        )

    def _told(self) -> None:
        self._driver.progress(self._topic, self._standing())
