"""The driver of a job: what all topics of a run share, and the driver's side of one topic.

Executors write the objects of a topic in parallel, the driver acts on them in order. It holds the claim of the topic's
jobs, so neither a backfill nor a conversion works beside it. An object's state is that of its attempt's record alone:
after a crash the next driver acts on stored objects, and has executors resume the others.
"""

import asyncio
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Generic, TypeVar

import structlog

from offloaderd.core.aio import Signal, each, race
from offloaderd.core.clock import Clock
from offloaderd.core.errors import CorruptData, Fenced, NotFound, OffloaderError, Transient
from offloaderd.core.model import TopicName
from offloaderd.core.retry import Backoff, until_answered
from offloaderd.format import manifest_bytes
from offloaderd.format.manifest import SegmentManifest
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.records.attempt import Attempt, AttemptStatus
from offloaderd.objects.keys import ObjectKind
from offloaderd.objects.whole import apart
from offloaderd.policy.store import enabled_topics
from offloaderd.segment.claim.attempt_log import AttemptLog
from offloaderd.segment.claim.fence import Claim
from offloaderd.segment.context import OffloadContext
from offloaderd.segment.failures import FailureTracker
from offloaderd.segment.upload import SegmentFailed, SegmentUpload
from offloaderd.spark.jobs.lease import claimed
from offloaderd.spark.jobs.task import PATIENCE_S, Outcome, Written

ItemT = TypeVar("ItemT", bound="Item")
ProgressT = TypeVar("ProgressT")
T = TypeVar("T")
TaskT = TypeVar("TaskT")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class Driver(Generic[TaskT, ProgressT]):
    """The executors and the limits that all topics of one run share.

    `write` has an executor write an object; it raises Transient when the outcome is unknown, and cancellation stops the
    task. `slots` limits the objects that are written at the same time. `me` is an id that no other driver ever has.
    """

    write: Callable[[TaskT], Awaitable[Written]]
    slots: asyncio.Semaphore
    me: str
    patience_s: float = PATIENCE_S
    progress: Callable[[ProgressT], None] = lambda _: None


@dataclass(frozen=True, kw_only=True)
class Ended(Generic[ProgressT]):
    """The end of a run for one topic: its progress, or the error; `nothing`: there was nothing to do."""

    topic: TopicName
    progress: ProgressT | None = None
    error: OffloaderError | None = None
    nothing: bool = False

    @classmethod
    def of(cls, topic: TopicName, found: "ProgressT | OffloaderError", *, nothing: bool = False) -> "Ended[ProgressT]":
        """Return the end with a progress, with an error, or with nothing to do."""
        if nothing:
            return cls(topic=topic, nothing=True)
        if isinstance(found, OffloaderError):
            return cls(topic=topic, error=found)
        return cls(topic=topic, progress=found)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTopics:
    """The topics of a job: by name, and all of namespaces, each `tenant/namespace`."""

    topics: Sequence[TopicName] = ()
    namespaces: Sequence[tuple[str, str]] = ()

    async def enabled(self, store: MetadataStore) -> list[TopicName]:
        """Return the topics by name, then the enabled ones of the namespaces, each once. Raises Transient."""
        known = await enabled_topics(store) if self.namespaces else []
        known = [one for one in known if (one.tenant, one.namespace) in self.namespaces]
        return list(dict.fromkeys([*self.topics, *known]))


async def for_each(
    topics: Sequence[TopicName], act: Callable[[TopicName], Awaitable[T]], *, in_flight_max: int
) -> list[tuple[TopicName, T | OffloaderError]]:
    """Return what `act` returns for each topic, or its error: one topic that fails does not end the others."""

    async def one(topic: TopicName) -> tuple[TopicName, T | OffloaderError]:
        try:
            return topic, await act(topic)
        except OffloaderError as error:
            return topic, error

    return await each(topics, one, in_flight_max=in_flight_max)


def driver_id(clock: Clock) -> str:
    """Return a new id of a driver, which names its machine and process."""
    return f"{socket.gethostname()}-{os.getpid()}-{clock.uuid().hex[:8]}"


@dataclass(slots=True, eq=False, kw_only=True)
class Item:
    """One object to write; `error` is why it is not written any more. `again`: an executor may have begun it."""

    recorded: tuple[AttemptLog, Attempt] | None = None
    again: bool = False
    ready: bool = False
    tries: int = 0
    last_error: str = ""
    error: str = ""

    @property
    def attempt(self) -> Attempt:
        """The attempt as it was last read, of an item that is begun."""
        assert self.recorded is not None  # noqa: S101 - it has begun
        return self.recorded[1]


class TopicJob(ABC, Generic[ItemT, TaskT, ProgressT]):
    """One run of a job on one topic."""

    NAME: ClassVar[str]
    COMMAND: ClassVar[str]
    FAILED: ClassVar[type[OffloaderError]]

    def __init__(self, context: OffloadContext, topic: TopicName, driver: Driver[TaskT, ProgressT]) -> None:
        self._context = context
        self._topic = topic
        self._driver = driver
        self._clock = context.upload_context.clock
        self._changed = Signal()

    async def run(self) -> ProgressT:
        """Work as the topic's driver until all possible items are done; return the progress.

        Raises FAILED, Driven, Fenced when another driver has claimed the topic, CorruptData, and as the work does.
        """
        await self._check()
        store = self._context.metadata
        session = await store.session()

        async def lost() -> None:
            await session.lost.wait()
            raise self.FAILED(
                f"the driver lost its session with the metadata store, and with it the {self.NAME} of {self._topic}",
                hint="run it again: it resumes what was begun",
            )

        async with claimed(store, self._topic, self._driver.me, self._clock) as claim:
            await race(self._work(claim), lost())
        return self._progress()

    @abstractmethod
    async def _check(self) -> None:
        """Raise FAILED for a topic that the job cannot work on."""

    @abstractmethod
    async def _work(self, claim: Claim) -> None:
        """Have all items written, and act on them in order."""

    @abstractmethod
    async def _begin(self, item: ItemT) -> None:
        """Record an item's attempt before its first byte, or set its error. Raises Fenced."""

    @abstractmethod
    def _task(self, item: ItemT) -> TaskT:
        """Return the task of an item that has begun."""

    @abstractmethod
    def _note_failure(self, item: ItemT, written: Written) -> None:
        """Log a failure that is counted; set the item's error, or raise FAILED, after too many of them."""

    @abstractmethod
    def _progress(self) -> ProgressT:
        """Return the progress of the run."""

    def _report(self) -> None:
        self._driver.progress(self._progress())

    async def _write(self, item: ItemT) -> None:
        """Have an item written until it is ready or has an error; its slot is held already. Raises FAILED, Fenced."""
        backoff = Backoff(self._clock)
        try:
            while not (item.ready or item.error):
                if item.recorded is None:
                    item.again = False
                    await self._begin(item)
                    continue
                self._report()
                task, item.again = self._task(item), True
                try:
                    written = await self._driver.write(task)
                except Transient as error:
                    written = Written(outcome=Outcome.UNFINISHED, error=str(error))
                if await self._read_back(item, written):
                    break
                await self._failed(item, written)
                if not item.error:
                    await backoff.wait(Transient(written.error))
        finally:
            self._driver.slots.release()
            self._changed.notify()
        self._report()

    async def _read_back(self, item: ItemT, written: Written) -> bool:
        """Return whether an item is ready, by its record and not by the executor's answer. Raises Fenced."""
        assert item.recorded is not None  # noqa: S101 - it has begun
        attempts, _ = item.recorded
        found = await until_answered(self._clock, attempts.load)
        if found is None or written.outcome is Outcome.FENCED:
            raise Fenced(
                f"another driver has claimed {self._topic}, or the {self.NAME} was cancelled",
                hint=f"see offloadctl {self.COMMAND} status {self._topic}",
            )
        item.recorded = attempts, found
        item.ready = found.status is AttemptStatus.OFFLOADED
        return item.ready

    async def _failed(self, item: ItemT, written: Written) -> None:
        """Count a failure, and give up an attempt that is broken. Raises FAILED, Fenced."""
        item.tries, item.last_error = item.tries + 1, written.error
        self._note_failure(item, written)
        if written.outcome is Outcome.BROKEN:
            await self._give_up(item, written.error)

    async def _give_up(self, item: ItemT, reason: str) -> None:
        """Put the written objects of an item on the trash list. Raises Fenced."""
        if item.recorded is not None:
            await self._discard(*item.recorded, reason)
        item.recorded, item.ready = None, False

    async def _discard(self, attempts: AttemptLog, attempt: Attempt, reason: str) -> None:
        await attempts.give_up(attempt, reason)


async def stored(
    context: OffloadContext, topic: TopicName, attempt: Attempt, kinds: Sequence[ObjectKind] = (ObjectKind.MANIFEST,)
) -> tuple[SegmentUpload, SegmentManifest]:
    """Return the manifest of a segment that an executor has written, with the upload for its objects.

    The manifest is the first of the `kinds` that is found. Raises SegmentFailed for none, and for one of another
    segment.
    """
    where = attempt.keys
    named = context.labels(where, topic)
    failure_tracker = FailureTracker(topic, context.upload_context.clock, lambda: None)
    upload = SegmentUpload(
        context.upload_context,
        attempt.bucket,
        where,
        failure_tracker=failure_tracker,
        labels=named,
        stored_as=attempt.stored_as,
    )
    for key in map(where.of, kinds):
        data = await upload.find(attempt.bucket, key)
        if data is None:
            continue
        try:
            written = await apart(partial(manifest_bytes.decode, key=key), data)
        except CorruptData as error:
            raise SegmentFailed(str(error)) from error
        if (written.segment_id, written.range.begin) != (attempt.segment_id, attempt.begin):
            raise SegmentFailed(f"{key} is of another segment")
        return upload, written
    raise SegmentFailed(f"{where.of(kinds[0])} is gone")


async def verified(upload: SegmentUpload, attempt: Attempt, described: SegmentManifest) -> CommittedSegment:
    """Verify data and index; return the segment to commit. Raises SegmentFailed."""
    where = attempt.keys
    for key, size in ((where.data, described.data_bytes), (where.index, described.index_bytes)):
        try:
            await upload.verify(key, size)
        except NotFound as error:
            raise SegmentFailed(f"{key} is gone") from error
    return CommittedSegment.described(described, bucket=attempt.bucket, prefix=where.prefix)
