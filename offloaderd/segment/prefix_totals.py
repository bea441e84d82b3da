"""Totals of the entries before a segment, for its manifest: their number, greatest time and greatest message index.

They continue those in the manifest of the segment directly before (FORMAT.md, 4.4). A daemon remembers the totals of
segments that it has written; for the first segment after a claim that manifest is read once.
"""

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from uuid import UUID

import structlog

from offloaderd.core.errors import CorruptData
from offloaderd.core.limits import Bounded
from offloaderd.core.model import LedgerInfo, Position
from offloaderd.format import manifest_bytes
from offloaderd.format.manifest import BlockInfo, Past, SegmentManifest
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.objects.whole import apart

REMEMBERED_MAX = 20_000
"""Remembered segments; some 300 bytes each."""

log = structlog.get_logger(__name__)


def past_behind(manifest: SegmentManifest) -> Past | None:
    """Return the totals up to a segment's end; None when its manifest has none of its own.

    If the time of a block is unknown, no times before the end are known.
    """
    return None if manifest.past is None else _past_over(manifest.past, manifest.blocks, manifest.range.end)


def past_within(manifest: SegmentManifest, ledger_id: int) -> Past | None:
    """Return the totals before a ledger that begins in this segment; None when the manifest has none of its own."""
    before = [block for block in manifest.blocks if block.ledger_id < ledger_id]
    return None if manifest.past is None else _past_over(manifest.past, before, Position(ledger_id, 0))


def _past_over(past: Past, blocks: Sequence[BlockInfo], end: Position) -> Past:
    """Return the totals behind blocks that follow `past`; if a block's times are unknown, times begin at `end`."""
    surveys = [block.survey for block in blocks]
    entries = past.entries + sum(block.entry_count for block in blocks)
    if None in surveys:
        return Past(entries, end)
    known = [survey for survey in surveys if survey is not None]
    return Past(
        entries,
        past.since,
        _greatest([past.time_max, *(survey.time_max for survey in known)]),
        _greatest([past.index_max, *(survey.index_max for survey in known)]),
    )


def _greatest(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def past_of(topic_map: TopicMap, begin: Position, infos: Mapping[int, LedgerInfo], behind: Past | None) -> Past:
    """Return the totals before the segment that begins at `begin`.

    `behind` are the totals up to the end of the segment before, None if they are unknown or there is none; `infos` are
    the source's ledgers. A gap before the segment restarts the times, since entries may still appear in it.
    """
    number = bisect_left(topic_map.segments, begin, key=lambda one: one.begin)
    if not number:
        return Past(_between(infos, None, begin), begin)
    before = topic_map.segments[number - 1]
    gap = _between(infos, before.end, begin)
    if behind is None:
        kept = sum(one.entries for one in topic_map.segments[:number])
        return Past(_between(infos, None, topic_map.segments[0].begin) + kept + gap, begin)
    lost = any(before.end <= loss.after and loss.before <= begin for loss in topic_map.losses)
    if gap or lost or behind.since == before.end:
        return Past(behind.entries + gap, begin)
    return behind


def _between(infos: Mapping[int, LedgerInfo], after: Position | None, begin: Position) -> int:
    """Count the source's entries between a segment's end (None: the topic's front) and the begin of the next."""
    count = 0
    for ledger_id, info in infos.items():
        first = 0
        if after is not None and ledger_id <= after.ledger_id:
            first = after.entry_id + 1 if ledger_id == after.ledger_id else info.entries
        if ledger_id < begin.ledger_id:
            count += max(0, info.entries - first)
        elif ledger_id == begin.ledger_id:
            count += max(0, begin.entry_id - first)
    return count


class Pasts:
    """Remembers the totals up to the end of segments, so that their manifests need not be read."""

    def __init__(self) -> None:
        self._behind: Bounded[UUID, Past | None] = Bounded(REMEMBERED_MAX)

    def note(self, manifest: SegmentManifest) -> None:
        """Remember the totals of a segment, which has or will have this manifest."""
        self._behind[manifest.segment_id] = past_behind(manifest)

    async def before(
        self,
        topic_map: TopicMap,
        begin: Position,
        infos: Mapping[int, LedgerInfo],
        fetch: Callable[[str, str], Awaitable[bytes | None]],
    ) -> Past:
        """Return the totals before the segment that begins at `begin`. Raises what `fetch` (of bucket and key) raises.

        The manifest of the segment before may be missing (None) or damaged, which stops nothing.
        """
        number = bisect_left(topic_map.segments, begin, key=lambda one: one.begin)
        if not number or topic_map.segments[number - 1].foreign:
            return past_of(topic_map, begin, infos, None)
        before = topic_map.segments[number - 1]
        if before.segment_id not in self._behind:
            key = before.keys.manifest
            data = await fetch(before.bucket, key)
            try:
                decode = partial(manifest_bytes.decode, key=key, data_bytes=before.object_bytes)
                described = None if data is None else await apart(decode, data)
            except CorruptData:
                described = None
            if described is None:
                log.warning("segment.prefix_totals_unknown", topic=str(topic_map.topic), key=key)
            self._behind[before.segment_id] = None if described is None else past_behind(described)
        return past_of(topic_map, begin, infos, self._behind[before.segment_id])
