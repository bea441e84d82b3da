"""The rewriting of stored entries: slices into a whole ledger, or many segments into one.

The segment writer writes the new object. It may replace the only copy, so it is read back through its stored index, and
the hash of its entries has to equal that of the old objects. Only then is the manifest put, which names the replaced
segments and which a rebuild trusts, and the new object exchanged for the old ones (`metadata/topic_map/conversion.py`,
`metadata/topic_map/merging.py`).
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from offloaderd.core.errors import Conflict, Fenced, InvalidInput, NotFound
from offloaderd.core.model import LedgerInfo, Position, TopicName
from offloaderd.core.retry import until_answered
from offloaderd.format.manifest import LedgerPart, Past, SegmentManifest
from offloaderd.format.v1 import LedgerLayout
from offloaderd.history.rewriting.stored_feed import BucketReader, Unreadable, Volume
from offloaderd.ledgers.book import plain_metadata
from offloaderd.metadata.records.attempt import Attempt
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.metadata.topic_map.merging import Goal
from offloaderd.segment.builders.ledger_builder import LedgerCut
from offloaderd.segment.committer import Assignment, FindManifest, Surroundings
from offloaderd.segment.context import OffloadContext
from offloaderd.segment.failures import FailureTracker
from offloaderd.segment.feed import HashingFeed
from offloaderd.segment.prefix_totals import past_within
from offloaderd.segment.stop import ExactStop
from offloaderd.segment.upload import SegmentFailed

BLOCK_BYTES = 64 << 20
"""Pulsar's default size of a block (`managedLedgerOffloadMaxBlockSizeInBytes`), for daemons without a setting."""

EXCHANGES_MAX = 5
"""Tries of the exchange while other processes change the map."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OldObjects:
    """The objects that hold a goal's entries; made by `look_up`.

    `closed_ms` returns when a ledger was closed by the source, None if that is not known.
    """

    context: OffloadContext
    topic: TopicName
    goal: Goal
    reader: BucketReader
    volumes: tuple[Volume, ...]
    closed_ms: Callable[[int], int | None]

    def info(self, ledger_id: int) -> LedgerInfo:
        """Return what map and manifests hold of a ledger, without the source."""
        goal = self.goal
        parts = [part for one in self.volumes for part in one.manifest.ledgers if part.ledger_id == ledger_id]
        known = max(parts, key=lambda part: (part.closed, part.ledger_entries))
        closed_ms = self.closed_ms(ledger_id)
        return LedgerInfo(
            ledger_id=ledger_id,
            closed=goal.whole or known.closed,
            entries=goal.entries if goal.whole else known.ledger_entries,
            size_bytes=sum(part.payload_bytes for part in parts) if goal.whole else known.ledger_bytes,
            closed_at_ms=max(part.closed_ms for part in parts) if closed_ms is None else closed_ms,
            created_ms=known.created_ms,
        )

    async def new_attempt(self, epoch: int) -> Attempt:
        """Return a new attempt, not recorded. Raises Unreadable."""
        context, old = self.context, self.volumes[0]
        layout = await self._whole_layout() if self.goal.whole else context.layout
        place = context.places.find(old.bucket, old.keys.prefix) or context.places.home
        return context.attempt(self.goal.begin, layout, place, epoch=epoch)

    async def _whole_layout(self) -> LedgerLayout:
        info = self.info(self.goal.begin.ledger_id)
        try:
            metadata = await until_answered(
                self.context.upload_context.clock, lambda: _described(self.context, self.topic, info)
            )
        except InvalidInput as error:
            raise Unreadable(error.message) from error
        return cut_of(self.context).layout(entries=info.entries, payload_bytes=info.size_bytes, metadata=metadata)

    def assignment(self, attempt: Attempt, *, resumed: bool, notes: Mapping[str, bool]) -> Assignment:
        """Return the assignment of an attempt."""
        begin, now_s = self.goal.begin, self.context.upload_context.clock.monotonic()
        after = Position(begin.ledger_id, begin.entry_id - 1)
        return Assignment(attempt=attempt, after=after, resumed=resumed, opened_s=now_s, notes=notes)

    def feed(self, attempt: Attempt) -> HashingFeed:
        """Return the feed of the entries; it reserves a part and one piece, which is fetched before the part is cut."""
        part_bytes = (attempt.layout or self.context.layout).part_bytes
        return HashingFeed(
            partial(self.reader.run, self.volumes, self.goal.slices),
            self.context.upload_context.budget,
            begin=self.goal.begin,
            reserve_bytes=part_bytes + self.reader.piece_bytes,
            holder=attempt.segment_id,
        )

    def stop(self) -> ExactStop:
        """Return the stop rule: the new object ends where the old ones do."""
        return ExactStop(end=self.goal.end, entries=self.goal.entries)


async def look_up(
    context: OffloadContext,
    topic: TopicName,
    goal: Goal,
    *,
    failure_tracker: FailureTracker,
    ready: Callable[[], None] = lambda: None,
    closed_ms: Callable[[int], int | None] = lambda _: None,
) -> OldObjects:
    """Find the objects of a goal's entries. `ready` is called before each request, and may raise. Raises Unreadable."""
    reader = BucketReader(context, topic, failure_tracker, ready)
    volumes = [await reader.volume(one) for one in goal.sources]
    return OldObjects(
        context=context, topic=topic, goal=goal, reader=reader, volumes=tuple(volumes), closed_ms=closed_ms
    )


class RewriteFacts:
    """The facts for the new object's manifest; `current` returns the topic's map. See SealFacts."""

    def __init__(self, old: OldObjects, current: Callable[[], TopicMap]) -> None:
        self._old = old
        self._current = current

    async def infos(self) -> Mapping[int, LedgerInfo]:
        """See SealFacts."""
        return {part.ledger_id: self._old.info(part.ledger_id) for part in self._old.goal.slices}

    async def around(
        self, begin: Position, parts: Sequence[LedgerPart], infos: Mapping[int, LedgerInfo], find: FindManifest
    ) -> Surroundings:
        """See SealFacts: from the old manifests."""
        goal, topic_map = self._old.goal, self._current()
        before = max((one for one in topic_map.contexts if one < begin.ledger_id), default=begin.ledger_id)
        losses = tuple(loss for loss in topic_map.losses if begin <= loss.before <= goal.end)
        past = past_within(self._old.volumes[0].manifest, begin.ledger_id)
        lost_before = any(loss.before == begin for loss in losses)
        return Surroundings(
            losses=losses,
            ends=tuple((one, topic_map.ends[one]) for one in sorted({before, *infos}) if one in topic_map.ends),
            past=Past(past.entries, begin) if past is not None and lost_before else past,
            replaces=self._replaced(topic_map),
        )

    def _replaced(self, topic_map: TopicMap) -> tuple[UUID, ...]:
        """Return its sources, and what these replaced if it is still in the map for other entries."""
        known = {one.segment_id for one in topic_map.segments}
        before = {one for volume in self._old.volumes for one in volume.manifest.replaces}
        sources = {one.segment_id for one in self._old.goal.sources}
        return tuple(sorted(sources | (before & known)))


class SameEntries:
    """The proof that a new object holds the entries of the old ones, which `feed` has hashed."""

    def __init__(self, old: OldObjects, feed: HashingFeed, attempt: Attempt) -> None:
        self._old = old
        self._feed = feed
        self._attempt = attempt

    async def check(self, made: SegmentManifest) -> None:
        """Compare the stored entries with those of the old objects. Raises SegmentFailed."""
        old, goal = self._old, self._old.goal
        before = self._feed.digest(goal.end) or await old.reader.hashed(old.volumes, goal.slices)
        try:
            volume = await old.reader.stored(Volume(self._attempt.bucket, self._attempt.keys, made))
            after = await old.reader.hashed([volume], goal.slices)
        except Unreadable as error:
            raise SegmentFailed(f"what was stored reads back differently: {error.message}") from error
        if (before.entries, before.digest()) != (after.entries, after.digest()):
            raise SegmentFailed(f"object {made.segment_id} does not hold the entries of {goal.range}")


async def exchange(
    put: Callable[[], Awaitable[object]], reload: Callable[[], Awaitable[TopicMap]], segment_id: UUID
) -> None:
    """Exchange an object for its sources by `put`; after a conflict the map is read again.

    Raises Fenced, and SegmentFailed if the sources are not in the map any more.
    """
    for tries in range(1, EXCHANGES_MAX + 1):
        try:
            await put()
        except Fenced:
            raise
        except (Conflict, NotFound) as error:
            if any(one.segment_id == segment_id for one in (await reload()).segments):
                return
            if tries == EXCHANGES_MAX:
                raise SegmentFailed(f"the map has changed: {error.message}") from error
        else:
            return


def cut_of(context: OffloadContext) -> LedgerCut:
    """Return how ledgers are cut, with a source or without."""
    layout = context.layout
    return (
        context.ledgers
        or context.cut
        or LedgerCut(block_bytes=BLOCK_BYTES, part_bytes=layout.part_bytes, run_bytes=layout.block_bytes)
    )


async def _described(context: OffloadContext, topic: TopicName, info: LedgerInfo) -> bytes:
    """Return BookKeeper's metadata of a ledger, or metadata made from known values if the source has none."""
    if context.ledgers is None:
        return plain_metadata(info)
    try:
        return await context.ledgers.describer.described(topic, info.ledger_id)
    except (NotFound, InvalidInput):
        return plain_metadata(info)
