"""An owner that goes away, and the next one that goes on with its open segment."""

from __future__ import annotations

from offloaderd.offload.roll import RollPolicy
from tests.unit.offload.lives import CountingStore, life, until_recorded
from tests.unit.offload.rig import (
    TOPIC,
    Rig,
    enabled,
    memory_ledgers,
    offloader_of,
    payloads,
    until_offloaded,
)


def counting_rig() -> tuple[Rig, CountingStore]:
    """A rig whose segments end when asked to, and its bucket."""
    rig = Rig(policy=RollPolicy(segment_bytes_max=1 << 30, segment_age_max_s=3600))
    rig.objects = store = CountingStore(rig)
    rig.ledgers = memory_ledgers(rig.clock, ledger_entries_max=250)
    return rig, store


async def test_the_next_owner_goes_on_with_the_same_upload() -> None:
    """Killed in the middle of a segment: its upload, its parts and its record are taken over, nothing is sent twice."""
    rig, store = counting_rig()
    assert rig.ledgers is not None
    await rig.ledgers.append(TOPIC, payloads(1000))
    async with life(rig, "one") as first:
        await enabled(first.engine)
        left = await until_recorded(rig, lambda attempt: len(attempt.parts) >= 5)
    async with life(rig, "two") as second:
        topic = await offloader_of(second.engine)
        assert topic.attempt is not None
        target = await topic.request_roll()
        assert target is not None
        await until_offloaded(topic, target)
        (segment,) = topic.map.segments
        assert (segment.segment_id, segment.begin, segment.end) == (left.segment_id, left.begin, target)
    assert [payload for _, payload in await rig.committed()] == payloads(1000)
    assert await rig.leftovers() == []
    assert store.sent_again == 0
    assert rig.metrics.segments_continued._value.get() == 1
