"""Fetching what is offloaded of a topic into the disk cache, before readers ask for it.

Bytes go from the store to the disk past the cache in memory, which keeps what readers use. Every block is checked as
for a reader. It ends when as many bytes as the disk may hold were looked at: more would replace what was just fetched.
What the disk does not take counts as well, so a disk that takes nothing costs no more than one that is filled.
"""

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from offloaderd.core.errors import Conflict, Transient
from offloaderd.core.model import Position, TopicName
from offloaderd.core.read_options import Goal
from offloaderd.format.verify import framed_block
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.read.broker_ledgers import PIECE_BYTES
from offloaderd.read.disk.cache import DiskCache
from offloaderd.read.disk.fetcher import Fetcher, Range
from offloaderd.read.disk.files import file_bytes, owner_of
from offloaderd.read.places import PASSED_ON
from offloaderd.read.plan import TopicView
from offloaderd.read.reader import TopicReader
from offloaderd.read.seek import seek

RUN_BYTES = 4 * 1024 * 1024
"""About the bytes of one GET, which are in memory at once."""

SPARE = 50
"""One part of so many of the budget is for indexes, manifests and heads of files."""

Check = Callable[[bytes], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmed:
    """Progress: segments looked at, bytes by outcome, GETs. `full`: the disk may hold no more."""

    segments: int = 0
    segments_total: int = 0
    fetched_bytes: int = 0
    present_bytes: int = 0
    declined_bytes: int = 0
    gets: int = 0
    full: bool = False
    done: bool = False


async def warm(reader: TopicReader, topic: TopicName, goal: Goal | None) -> AsyncGenerator[Warmed, None]:
    """Warm a topic from the entry that a seek finds, else from its begin; yield after each GET, and at the end.

    Raises TopicNotFound, InvalidInput; Conflict without a disk cache that is open; and as `SegmentReader.read`.
    """
    disk = reader.segments.fetcher.disk
    if disk is None:
        raise Conflict("this daemon has no disk cache", hint="set cache.directory, and restart it")
    begin = (await seek(reader, topic, goal)).begin if goal is not None else None
    view = await _view(reader, topic)
    if view.is_empty():
        await reader.priority(topic)  # raises TopicNotFound
    wanted = [one for one in view.segments if begin is None or one.range.end >= begin]
    now = Warmed(segments_total=len(wanted))
    for segment in wanted:
        async for progress in _segment(reader, disk, topic, segment, begin, now):
            now = progress
            yield now
        if now.full:
            break
        now = replace(now, segments=now.segments + 1)
    yield replace(now, done=True)


async def _view(reader: TopicReader, topic: TopicName) -> TopicView:
    """Return what is offloaded; a source that does not answer does not matter."""
    try:
        return await reader.view(topic)
    except Transient:
        return await reader.view(topic, Position(0, 0))


async def _segment(
    reader: TopicReader,
    disk: DiskCache,
    topic: TopicName,
    segment: CommittedSegment,
    begin: Position | None,
    now: Warmed,
) -> AsyncGenerator[Warmed, None]:
    for run in await _runs(reader, topic, segment, begin):
        if not disk.is_open:
            raise Conflict(f"the disk cache is off: {disk.state}", hint="docs/failures.md says what to do")
        if not disk.is_writable:
            raise Conflict(
                "the disk cache takes nothing at present: a write failed", hint="docs/failures.md says what to do"
            )
        length = sum(one.length for one, _ in run)
        limit_bytes = disk.table.limit_bytes
        looked_at = now.fetched_bytes + now.present_bytes + now.declined_bytes
        if file_bytes(looked_at + length) > limit_bytes - limit_bytes // SPARE:
            yield replace(now, full=True)
            return
        await disk.room()
        missing_bytes, put_bytes = await _run(reader, topic, segment, run)
        now = replace(
            now,
            fetched_bytes=now.fetched_bytes + put_bytes,
            present_bytes=now.present_bytes + length - missing_bytes,
            declined_bytes=now.declined_bytes + missing_bytes - put_bytes,
            gets=now.gets + bool(missing_bytes),
        )
        yield now


async def _run(
    reader: TopicReader, topic: TopicName, segment: CommittedSegment, run: Sequence[tuple[Range, Check]]
) -> tuple[int, int]:
    """Fetch what the disk lacks of a run from the place that readers use; return its bytes, and those it took."""
    places = reader.segments.places.of(segment)
    for number, one in enumerate(places, start=1):
        there = reader.segments.fetcher.at(one.bucket, owner_of(topic.managed_ledger, one.segment_id))
        key = one.keys.data
        missing = [piece for piece, _ in run if not there.holds(key, piece)]
        try:
            if missing:
                first, last = missing[0].offset, missing[-1].offset
                await _fetch(there, key, [pair for pair in run if first <= pair[0].offset <= last])
        except PASSED_ON as error:
            if number == len(places):
                raise
            reader.segments.places.passed_on(topic, one, error)
        else:
            put = [piece for piece in missing if there.holds(key, piece)]
            return sum(piece.length for piece in missing), sum(piece.length for piece in put)
    return 0, 0


async def _fetch(there: Fetcher, key: str, run: Sequence[tuple[Range, Check]]) -> None:
    async with there.ranges(key, [one for one, _ in run], wanted=True) as fetched:
        for piece, (_, check) in zip(fetched, run, strict=True):
            await there.sound(key, piece, check)


async def _runs(
    reader: TopicReader, topic: TopicName, segment: CommittedSegment, begin: Position | None
) -> Sequence[Sequence[tuple[Range, Check]]]:
    """Return the ranges of a segment from `begin` on with their checks, in runs of one GET each."""
    if segment.foreign:  # without checksums; its pieces are those that readers fetch
        size = segment.object_bytes
        pieces = [Range(at, min(PIECE_BYTES, size - at)) for at in range(0, size, PIECE_BYTES)]
        return [*_cut([(one, bytes) for one in pieces])]
    async with reader.segments.table(topic, segment) as table:
        blocks = table.manifest.blocks[max(0, table.block_at(begin) if begin is not None else 0) :]
        method = table.manifest.method
        checked = [
            (Range(one.offset, one.length), partial(framed_block, info=one, key=table.data_key, method=method))
            for one in blocks
        ]
        return [*_cut(checked)]


def _cut(ranges: Sequence[tuple[Range, Check]]) -> Iterator[Sequence[tuple[Range, Check]]]:
    run: list[tuple[Range, Check]] = []
    for one, check in ranges:
        if run and sum(other.length for other, _ in run) + one.length > RUN_BYTES:
            yield run
            run = []
        run.append((one, check))
    if run:
        yield run
