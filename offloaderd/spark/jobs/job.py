"""What driver and executors of a backfill tell each other: plain values, small enough for any number of them."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol
from uuid import UUID

from offloaderd.core.errors import OffloaderError
from offloaderd.core.model import HistoryOrder, OffloadMethod, Position, TopicName
from offloaderd.objects.places import Place
from offloaderd.segment.claim.fence import Claim

PATIENCE_S = 300.0
"""How long one request may fail before the executor gives its segment back, to be gone on with elsewhere."""


class BackfillFailed(OffloaderError):
    """The backfill of a topic cannot go on by itself. What is committed stays, what is written is gone on with."""


class AlreadyDone(BackfillFailed):
    """All of a topic's history is offloaded, or known to be lost."""


class Origin(StrEnum):
    """Whose a plan is before a run begins."""

    JOB = "job"
    DAEMON = "daemon"
    """The topic's daemon works on it, and is relieved of it."""
    NEW = "new"
    """Nobody has planned it; the ledgers go as a whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentTask:
    """One segment to be written: its attempt is recorded, and says how it is cut.

    It begins at `begin` and ends at `end`, or with `limit_bytes` of payload unless that is None. History ends with
    `last`, before entry 0 of ledger `boundary`.
    `again` says that somebody may have begun with it.
    """

    claim: Claim
    segment_id: UUID
    begin: Position
    end: Position
    limit_bytes: int | None
    last: Position
    boundary: int
    again: bool
    patience_s: float = PATIENCE_S


class Outcome(StrEnum):
    """What became of a task."""

    READY = "ready"
    """All objects are stored and verified, and the attempt says so."""
    BROKEN = "broken"
    """The attempt cannot become a segment, and has to be given up."""
    FENCED = "fenced"
    """Another driver has taken the topic over."""
    HINDERED = "hindered"
    """It can be gone on with, here or elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What an executor says in the end."""

    outcome: Outcome
    error: str = ""
    seconds: float = 0.0
    payload_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a topic's backfill stands: segments that this run has committed, that wait for their turn, are written."""

    topic: TopicName
    entries_left: int
    bytes_left: int
    bytes_all: int
    committed: int
    waiting: int
    writing: int
    ranges: int
    ranges_done: int
    losses: int
    retries: int


class Runner(Protocol):
    """Whoever has tasks carried out."""

    async def run(self, task: SegmentTask) -> Written:
        """Have a segment written. Raises Transient when nobody knows what became of it. Cancellation stops it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """How a topic's history is to be offloaded, by its policy; `segment_bytes` is what segments have of payload."""

    segment_bytes: int
    place: Place
    method: OffloadMethod = OffloadMethod.STREAMING
    order: HistoryOrder = HistoryOrder.HISTORY_FIRST


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """What all topics of one run share. `slots` are the places for segments that are being written.

    `me` is an id that no other driver ever has.
    """

    runner: Runner
    slots: asyncio.Semaphore
    me: str
    patience_s: float = PATIENCE_S
    progress: Callable[[Progress], None] = lambda _: None
