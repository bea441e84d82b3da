"""A real ZooKeeper with its default limits takes a ledger of 20,000 segments: committed, read, and removed again."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import structlog

from offloaderd.core.clock import SystemClock
from offloaderd.core.model import LedgerEnd
from offloaderd.metadata import paths, pieces
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map import removal
from tests.conformance.metadata_stores import zookeeper_store
from tests.unit.rigs.many_segments import ENTRIES, LEDGER, as_one_node, as_rebuilt, begun, commit
from tests.unit.rigs.rig import TOPIC

if TYPE_CHECKING:
    from offloaderd.metadata.topic_map.map import TopicMap
    from offloaderd.segment.claim.attempt_log import AttemptLog

SEGMENTS = 20_000
TIMED = 1_000
"""So many of the last ones are committed one by one; those before them a rebuild has written."""
FULL = 8_300
"""So many had room in one node."""
FRONT = 500
"""So many are removed from the front one by one."""

CLOCK = SystemClock()
log = structlog.get_logger(__name__)


async def _commits(owner: AttemptLog, topic_map: TopicMap, numbers: range) -> tuple[TopicMap, float]:
    """Commit segments one by one; returns the map, and the median of the milliseconds that one took."""
    spent = []
    for number in numbers:
        started = CLOCK.monotonic()
        topic_map = await commit(owner, topic_map, number)
        spent.append(1000 * (CLOCK.monotonic() - started))
    return topic_map, round(sorted(spent)[len(spent) // 2], 2)


async def test_a_ledger_of_twenty_thousand_segments(zookeeper: str) -> None:
    """Commits go on at their pace, whoever reads it finds all of them, and the front goes one by one."""
    root = f"/many-{CLOCK.uuid().hex}"
    async with zookeeper_store(zookeeper, root) as store, zookeeper_store(zookeeper, root) as reader:
        owner, topic_map = await begun(store, CLOCK, as_rebuilt(SEGMENTS - TIMED))
        topic_map, late_ms = await _commits(owner, topic_map, range(SEGMENTS - TIMED, SEGMENTS))
        log.info("many_segments.measured", commit_ms_at_20000=late_ms)
        started = CLOCK.monotonic()
        assert await catalog.load(reader, TOPIC) == topic_map
        log.info("many_segments.measured", load_s=round(CLOCK.monotonic() - started, 2))
        assert len(topic_map.segments) == SEGMENTS
        stored = topic_map.contexts[LEDGER]
        assert len(await reader.children(paths.ledger(TOPIC, LEDGER))) == len(stored.pieces) > 50
        assert max(len(stored.value), *(len(one.value) for one in stored.pieces.values())) < 3 * pieces.PIECE_BYTES
        topic_map = await owner.note_ends(topic_map, {LEDGER: LedgerEnd(SEGMENTS * ENTRIES, None)})
        topic_map = await owner.change(topic_map, lambda known: removal.mark_deleted(known, [LEDGER], now_ms=1))
        started = CLOCK.monotonic()
        for _ in range(FRONT):
            oldest = partial(removal.without_oldest, segment=topic_map.segments[0], reason="r", now_ms=2)
            topic_map = await owner.change(topic_map, oldest)
        log.info("many_segments.measured", removal_ms=round(1000 * (CLOCK.monotonic() - started) / FRONT, 2))
        assert await catalog.load(reader, TOPIC) == topic_map
        assert len(topic_map.segments) == SEGMENTS - FRONT


async def test_a_ledger_that_has_filled_its_node_goes_on(zookeeper: str) -> None:
    """What an earlier release could not commit any more is committed, and costs less from then on."""
    for held in (0, FULL):
        async with zookeeper_store(zookeeper, f"/many-{CLOCK.uuid().hex}") as store:
            owner, topic_map = await begun(store, CLOCK, as_one_node(held) if held else None)
            topic_map, spent_ms = await _commits(owner, topic_map, range(held, held + 200))
            log.info("many_segments.measured", segments=held, commit_ms=spent_ms)
            assert await catalog.load(store, TOPIC) == topic_map
            assert bool(topic_map.contexts[LEDGER].pieces) is bool(held)
