"""A topic with a ledger of thousands of segments that nobody uploaded, in whatever store."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

from offloaderd.core.aio import each
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.metadata import paths, pieces
from offloaderd.metadata.committed import CommittedSegment, LedgerSlice
from offloaderd.metadata.records.attempt import Attempt, AttemptStatus
from offloaderd.metadata.records.context import LedgerContext
from offloaderd.metadata.topic_map.map import TopicMap, ledger_segment
from offloaderd.segment.claim.attempt_log import AttemptLog
from offloaderd.segment.claim.fence import Claim
from tests.unit.rigs.rig import TOPIC

if TYPE_CHECKING:
    from offloaderd.core.clock import Clock
    from offloaderd.metadata.pieces import StoredContext
    from offloaderd.metadata.port import MetadataStore

LEDGER = 3
ENTRIES = 10
"""Of each segment."""
T0_MS = 1_790_000_000_000


def segment(number: int) -> CommittedSegment:
    """Return the ledger's segment of a number, from 0 on; in a record it is as large as a real one."""
    return CommittedSegment(
        segment_id=UUID(int=0xC0FFEE << 100 | 4 << 76 | 2 << 62 | number),
        slices=(LedgerSlice(LEDGER, number * ENTRIES, number * ENTRIES + ENTRIES - 1, 1_234_567),),
        object_bytes=1_300_000,
        assigned_ms=T0_MS + 5000 * number,
        offloaded_ms=T0_MS + 5000 * number + 6000,
        bucket="a-bucket-in-eu-central-1",
        prefix="tier/",
    )


def _context(segments: int) -> LedgerContext:
    return LedgerContext(segments=tuple(ledger_segment(one, one.slices[0]) for one in map(segment, range(segments))))


def as_one_node(segments: int) -> StoredContext:
    """Return the context of so many as an earlier release has left it, in one node."""
    return pieces.created("", _context(segments))[1]


def as_rebuilt(segments: int) -> StoredContext:
    """Return the context of so many as a rebuild writes it."""
    return pieces.of_segments("", _context(segments))


async def begun(store: MetadataStore, clock: Clock, stored: StoredContext | None) -> tuple[AttemptLog, TopicMap]:
    """Put a topic into a store whose ledger has this context; returns its owner's log, and its map."""
    for folder in paths.folders(TOPIC):
        await store.create(folder, b"")
    await store.create(paths.epoch(TOPIC), b"")
    log, topic_map = AttemptLog(store, Claim(TOPIC, 1, 0), clock=clock, metrics=Metrics()), TopicMap(TOPIC)
    if stored is not None:
        path = paths.ledger(TOPIC, LEDGER)
        await store.create(path, stored.value)
        await each([*stored.pieces], lambda number: store.create(f"{path}/{number}", stored.pieces[number].value))
        topic_map = TopicMap.build(TOPIC, {LEDGER: stored})
    return log, topic_map


def attempt(made: CommittedSegment) -> Attempt:
    """Return the record of a segment before it is committed."""
    return Attempt(segment_id=made.segment_id, begin=made.begin, assigned_ms=1, epoch=1, status=AttemptStatus.ASSIGNED)


async def commit(log: AttemptLog, topic_map: TopicMap, number: int) -> TopicMap:
    """Commit the segment of a number, with a record of its own before it."""
    made = segment(number)
    await log.begin(attempt(made))
    return await log.commit(topic_map, made, {})


def merged(topic_map: TopicMap, number: int, begin: int, end: int) -> CommittedSegment:
    """Return a segment of all entries of some that follow each other, from the first to before the last."""
    first, last = topic_map.segments[begin], topic_map.segments[end - 1]
    part = LedgerSlice(LEDGER, first.begin.entry_id, last.end.entry_id, 9_999_999)
    return replace(segment(number), slices=(part,))
