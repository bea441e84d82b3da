"""Values that a job's driver and its executors exchange; small, since a driver has any number of executors."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, Protocol, TypeVar
from uuid import UUID

from offloaderd.core.aio.each import each
from offloaderd.core.clock import Clock
from offloaderd.core.errors import OffloaderError
from offloaderd.core.model import Position, TopicName
from offloaderd.metadata.port import MetadataStore
from offloaderd.policy.store import enabled_topics
from offloaderd.segment.claim.fence import Claim

T = TypeVar("T")
ProgressT = TypeVar("ProgressT")
TaskT = TypeVar("TaskT")
TaskT_contra = TypeVar("TaskT_contra", contravariant=True)

PATIENCE_S = 300.0
"""Seconds that one request may fail before the executor gives its task back, for another to resume it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One object to write; its attempt is recorded, with the layout. `begin` and `end` are inclusive.

    `again`: an executor may have begun it before.
    """

    claim: Claim
    segment_id: UUID
    begin: Position
    end: Position
    again: bool
    patience_s: float = PATIENCE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentTask(Task):
    """A segment of history, which ends at `end` or, unless that is None, with `limit_bytes` of payload.

    History ends with `last`, before entry 0 of ledger `boundary`.
    """

    limit_bytes: int | None
    last: Position
    boundary: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteTask(Task):
    """An object that is made from stored ones; `whole`: it holds a ledger."""

    whole: bool


class Outcome(StrEnum):
    """The outcome of a task."""

    READY = "ready"
    """All objects are stored and verified, and the attempt records it."""
    BROKEN = "broken"
    """The attempt cannot become a segment, and has to be given up."""
    FENCED = "fenced"
    """Another driver has the topic's claim."""
    UNFINISHED = "unfinished"
    """The attempt can be resumed, here or by another executor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """An executor's answer."""

    outcome: Outcome
    error: str = ""
    seconds: float = 0.0
    payload_bytes: int = 0


class Runner(Protocol[TaskT_contra]):
    """Sends tasks to executors."""

    async def run(self, task: TaskT_contra) -> Written:
        """Have an object written. Raises Transient when the outcome is unknown. Cancellation stops the task."""
        ...


@dataclass(frozen=True, kw_only=True)
class Driver(Generic[TaskT, ProgressT]):
    """The runner and the limits that all topics of one run share.

    `slots` limits the objects that are written at the same time. `me` is an id that no other driver ever has.
    """

    runner: Runner[TaskT]
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
