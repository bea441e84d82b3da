"""The driver's side of one topic: executors write its objects in parallel, the driver acts on them in order.

The driver holds the claim of the topic's jobs, so neither a backfill nor a conversion works beside it. An object's
state is that of its attempt's record alone: after a crash the next driver acts on stored objects, and has executors
resume the others.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from offloaderd.core.aio.signal import Signal, race
from offloaderd.core.errors import Fenced, OffloaderError, Transient
from offloaderd.core.model import TopicName
from offloaderd.core.retry import Backoff, until_answered
from offloaderd.metadata.records.attempt import Attempt, AttemptStatus
from offloaderd.segment.claim.attempt_log import AttemptLog
from offloaderd.segment.claim.fence import Claim
from offloaderd.segment.context import OffloadContext
from offloaderd.spark.jobs.job import Driver, Outcome, Written
from offloaderd.spark.jobs.lease import claimed


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


ItemT = TypeVar("ItemT", bound=Item)
ProgressT = TypeVar("ProgressT")
TaskT = TypeVar("TaskT")


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
                    written = await self._driver.runner.run(task)
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
