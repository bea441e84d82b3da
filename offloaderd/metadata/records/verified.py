"""`verified`: time, depth and result of the scrub's last check of each segment of a topic.

One node per topic, written by its owner some seconds after the checks; checks that a crash loses are repeated. A
segment without an entry was never checked. The record only decides when segments are checked again.

A node has room for a limited number of segments. In a larger topic, sound neighbours that were checked within an hour
share one entry with their earliest time. The scrub follows the map's order, so such runs are few.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from offloaderd.core.model import SegmentRange
from offloaderd.format.parsing import filled, halves
from offloaderd.format.pb.storage import verified_pb2
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.records import codec

SEGMENTS_MAX = 8_000
"""Most segments with entries of their own; further sound segments are in runs, because of the node's size."""
RUNS_MAX = 2_000
"""Most runs, because of the node's size; the segments of the oldest runs count as never checked."""
RUN_MS = 3_600_000
"""Longest time between the first and the last check of a run."""
FLAW_CHARS_MAX = 300
FLAWS_BYTES_MAX = 300_000
"""Limit for the texts of all flaws together; if everything is damaged, their number is what counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentVerified:
    """One check of a segment. `flaw` describes the first of its `flaws`."""

    verified_ms: int
    level: str
    flaws: int = 0
    flaw: str = ""


@dataclass(frozen=True, slots=True)
class Cursor:
    """The segment that is being read, and the number of its blocks that are sound so far."""

    segment_id: UUID
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Sound neighbouring segments, with the earliest time of their checks."""

    range: SegmentRange
    verified_ms: int
    level: str

    def holds(self, segment: CommittedSegment) -> bool:
        """Whether a segment is in the run. A segment written later in place of others is not."""
        within = self.range.begin <= segment.begin and segment.end <= self.range.end
        return within and segment.offloaded_ms <= self.verified_ms


@dataclass(frozen=True, slots=True)
class Verified:
    """The checks of a topic."""

    segments: Mapping[UUID, SegmentVerified]
    cursor: Cursor | None = None
    runs: tuple[Run, ...] = ()

    def of(self, segments: Sequence[CommittedSegment]) -> dict[UUID, SegmentVerified]:
        """Return the last checks of segments, which are in the order of the topic's map."""
        found: dict[UUID, SegmentVerified] = {}
        runs = iter(self.runs)
        run = next(runs, None)
        for one in segments:
            while run is not None and run.range.end < one.begin:
                run = next(runs, None)
            known = self.segments.get(one.segment_id)
            if known is None and run is not None and run.holds(one):
                known = SegmentVerified(verified_ms=run.verified_ms, level=run.level)
            if known is not None:
                found[one.segment_id] = known
        return found


def fitting(known: Mapping[UUID, SegmentVerified], segments: Sequence[CommittedSegment]) -> Verified:
    """Return the checks that fit a node; `segments` are in the order of the topic's map.

    Unsound segments and those checked last have entries of their own; the others are in runs.
    """
    if len(known) <= SEGMENTS_MAX:
        return Verified(known)
    order = sorted(known, key=lambda one: (not known[one].flaws, -known[one].verified_ms))
    runs = sorted(_runs(known, segments), key=lambda one: -one.verified_ms)[:RUNS_MAX]
    alone = {one: known[one] for one in order[:SEGMENTS_MAX]}
    return Verified(alone, runs=tuple(sorted(runs, key=lambda one: one.range.begin)))


def _runs(known: Mapping[UUID, SegmentVerified], segments: Sequence[CommittedSegment]) -> list[Run]:
    runs: list[Run] = []
    follows, newest_ms, offloaded_ms = False, 0, 0
    for one in segments:
        seen = known.get(one.segment_id)
        if seen is None or seen.flaws:
            follows = False
            continue
        newest_ms = max(newest_ms, seen.verified_ms)
        offloaded_ms = max(offloaded_ms, one.offloaded_ms)
        earliest_ms = min(runs[-1].verified_ms, seen.verified_ms) if follows else 0
        joins = offloaded_ms <= earliest_ms and newest_ms - earliest_ms <= RUN_MS
        if follows and joins and runs[-1].level == seen.level:
            whole = SegmentRange(runs[-1].range.begin, one.end)
            runs[-1] = Run(range=whole, verified_ms=earliest_ms, level=seen.level)
        else:
            runs.append(Run(range=SegmentRange(one.begin, one.end), verified_ms=seen.verified_ms, level=seen.level))
            newest_ms, offloaded_ms = seen.verified_ms, one.offloaded_ms
        follows = True
    return runs


def encode(value: Verified) -> bytes:
    """Return the node's content."""
    flawed = sum(bool(one.flaws) for one in value.segments.values())
    chars = min(FLAW_CHARS_MAX, FLAWS_BYTES_MAX // (4 * max(1, flawed)))  # a character has at most 4 bytes
    return codec.content(
        verified_pb2.VerifiedRecord,
        value,
        segments=[
            filled(verified_pb2.VerifiedSegment, one, segment_id=segment_id, flaw=one.flaw[:chars])
            for segment_id, one in sorted(value.segments.items(), key=lambda one: one[0])
        ],
        runs=[
            filled(verified_pb2.VerifiedRun, one, **halves("begin", one.range.begin), **halves("end", one.range.end))
            for one in value.runs
        ],
    )


def decode(data: bytes, *, path: str) -> Verified:
    """Read a node's content; raises CorruptData."""
    record = codec.parse(verified_pb2.VerifiedRecord, data, path)
    segments = {codec.segment_id(path, one.segment_id): codec.read(SegmentVerified, one) for one in record.segments}
    cursor = None
    if record.HasField("cursor"):
        cursor = Cursor(codec.segment_id(path, record.cursor.segment_id), record.cursor.blocks)
    runs = tuple(
        codec.read(
            Run,
            one,
            range=SegmentRange(
                codec.position(path, one.begin_ledger_id, one.begin_entry_id),
                codec.position(path, one.end_ledger_id, one.end_entry_id),
            ),
        )
        for one in record.runs
    )
    return Verified(segments, cursor, runs)
