"""What driver and executors of a conversion tell each other, and what may be asked of one."""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol
from uuid import UUID

from offloaderd.core.errors import OffloaderError
from offloaderd.core.model import OffloadMethod, Position, TopicName
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.topic_map import conversion, merging
from offloaderd.metadata.topic_map.conversion import Standing
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.metadata.topic_map.merging import Goal, goal_of
from offloaderd.segment.builders.builder import LEDGERS_MAX
from offloaderd.segment.claim.fence import Claim
from offloaderd.spark.jobs.job import PATIENCE_S, Written


class ConversionFailed(OffloaderError):
    """A topic's segments cannot be rewritten. What is rewritten stays so, everything else is as it was."""


class Target(StrEnum):
    """What segments are to become."""

    LEDGER_BASED = "ledger-based"
    """Each ledger of streaming segments (V2) an object of its own (V1)."""
    STREAMING = "streaming"
    """Whole ledgers (V1) streaming segments (V2), neighbours together up to the size of a segment."""
    MERGED = "merged"
    """Small neighbouring streaming segments one of up to the size of a segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is to be made: segments of about so many bytes of payload, of those that have less than `small_bytes`."""

    target: Target
    segment_bytes: int
    small_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What would be rewritten of a topic, in the order in which it can be exchanged; why how many segments stay."""

    goals: tuple[Goal, ...]
    left: dict[str, int] = field(default_factory=dict)


def outlook(topic_map: TopicMap, wish: Wish, buckets: Collection[str]) -> Outlook:
    """Say what can become of a topic's segments.

    Raises ConversionFailed while its history is not all offloaded, or when it has none.
    """
    if topic_map.unfinished is not None:
        raise ConversionFailed(
            f"the history of {topic_map.topic} is still being offloaded",
            hint=f"wait for it, or see offloadctl backfill status {topic_map.topic}",
        )
    if not topic_map.segments:
        raise ConversionFailed(f"nothing of {topic_map.topic} is offloaded", hint="offloadctl topics list")
    if wish.target is Target.LEDGER_BASED:
        return _whole_ledgers(topic_map, buckets)
    left: dict[str, int] = {}
    wanted: list[CommittedSegment] = []
    for one in topic_map.segments:
        whole = one.method is OffloadMethod.LEDGER_BASED
        if whole is not (wish.target is Target.STREAMING):
            continue
        if wish.target is Target.MERGED and one.payload_bytes >= wish.small_bytes:
            continue
        if why := merging.obstacle(topic_map, one, buckets):
            left[why] = left.get(why, 0) + 1
        else:
            wanted.append(one)
    goals = merging.runs(topic_map, wanted, payload_bytes=wish.segment_bytes, ledgers=LEDGERS_MAX)
    if wish.target is Target.MERGED:
        alone = sum(len(one.sources) == 1 for one in goals)
        left |= {"it has no small neighbour": alone} if alone else {}
        goals = [one for one in goals if len(one.sources) > 1]
    return Outlook(goals=tuple(goals), left=left)


def _whole_ledgers(topic_map: TopicMap, buckets: Collection[str]) -> Outlook:
    newest = topic_map.segments[-1].end.ledger_id
    rows = conversion.outlook(topic_map, buckets=buckets, to=newest - 1)
    left: dict[str, int] = {}
    wanted: set[int] = set()
    for one in rows:
        if one.standing is Standing.CONVERTIBLE and one.ledger_id < newest:
            wanted.add(one.ledger_id)
        elif one.standing is not Standing.WHOLE:
            why = one.why or "it is the newest ledger of the tier"
            left[why] = left.get(why, 0) + 1
    order = conversion.sequence(topic_map, wanted)
    goals = (goal_of(conversion.holders_of(topic_map, one), ledger_id=one) for one in order)
    return Outlook(goals=tuple(goals), left=left)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteTask:
    """One object to be written; its attempt is recorded. It begins at `begin` and ends at `end`, both inclusive.

    `whole`: of a ledger. `again` says that somebody may have begun with it.
    """

    claim: Claim
    segment_id: UUID
    begin: Position
    end: Position
    whole: bool
    again: bool
    patience_s: float = PATIENCE_S


def goal_at(topic_map: TopicMap, task: RewriteTask) -> Goal | None:
    """Return what a task is to be made of, None when the map does not hold it so any more."""
    if task.whole:
        holders = conversion.holders_of(topic_map, task.begin.ledger_id)
        goal = goal_of(holders, ledger_id=task.begin.ledger_id) if holders else None
    else:
        sources = [one for one in topic_map.segments if one.begin <= task.end and task.begin <= one.end]
        goal = goal_of(sources) if sources else None
    return goal if goal is not None and (goal.begin, goal.end) == (task.begin, task.end) else None


class Runner(Protocol):
    """Whoever has tasks carried out."""

    async def run(self, task: RewriteTask) -> Written:
        """Have an object written. Raises Transient when nobody knows what became of it. Cancellation stops it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a topic's conversion stands: objects and payload bytes that are exchanged, of all that were to be."""

    done: int
    goals: int
    bytes_done: int
    bytes_all: int
    writing: int
    failures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """What all topics of one run share. `slots` are the places for objects that are being written.

    `me` is an id that no other driver ever has.
    """

    runner: Runner
    slots: asyncio.Semaphore
    me: str
    patience_s: float = PATIENCE_S
    progress: Callable[[TopicName, Progress], None] = lambda _topic, _progress: None
