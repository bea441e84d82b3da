"""A mirror that is away, or that lacks a right: nothing stops that need not, and it catches up."""

from __future__ import annotations

import pytest

from offloaderd.core.aio import Group
from offloaderd.core.errors import Denied, OutcomeUnknown, Transient
from offloaderd.policy.records import TopicPolicy
from offloaderd.testing.faults import Faults
from offloaderd.upkeep.mirror import Mirror
from offloaderd.upkeep.settings import MirrorSettings
from tests.unit.rigs.owned import Owned, offload_more
from tests.unit.rigs.rig import TOPIC, enabled, payloads, until, until_offloaded
from tests.unit.upkeep.test_mirror import AWAY, breaking, check_copies, lag, mended, mirroring, rig_of
from tests.unit.upkeep.test_mirrored import counts, mirrored

HOUR_S, SEGMENTS_AN_HOUR = 3600.0, 12
WRITES = frozenset({"put", "create_upload", "upload_part", "complete_upload"})
"""Operations that are refused where a mirror can only be read."""


@pytest.mark.parametrize(
    ("error", "readable"),
    [
        (Transient("gone"), False),
        (Denied("no"), False),
        (OutcomeUnknown("no answer"), False),
        (Denied("not to be written"), True),
    ],
)
async def test_a_mirror_that_is_away_for_an_hour_stops_nothing_and_catches_up(
    error: Exception, *, readable: bool
) -> None:
    """Entries are offloaded throughout, the topic does not stall, no memory is held, the lag and the error show."""
    rig, asked = rig_of(), list[str]()
    assert rig.ledgers is not None

    def plan(operation: str, key: str, when: str) -> None:
        if when == "before" and (operation in WRITES or not readable):
            asked.append(key)
            raise error

    async with rig.engine(within_s=2 * HOUR_S) as engine, Group() as group:
        topic = await enabled(engine, TopicPolicy(enabled=True, mirror="eu/topics/"))
        duty = group.create_task(Mirror(engine.context, MirrorSettings()).run(topic))
        last = await rig.ledgers.append(TOPIC, payloads(10))
        await topic.request_roll()
        await until_offloaded(topic, last)
        await until(lambda: [one.mirror for one in topic.map.segments] == [AWAY])
        breaking(rig, AWAY[0], plan)
        for number in range(1, SEGMENTS_AN_HOUR + 1):
            await rig.clock.sleep(HOUR_S / SEGMENTS_AN_HOUR)
            last = await rig.ledgers.append(TOPIC, payloads(10, seed=number))
            await topic.request_roll()
            await until_offloaded(topic, last)
            status = topic.status()
            assert status.mirror is not None
            assert (status.mirror.lag_segments, status.mirror.lag_entries) == (number, 10 * number)
            assert (status.state, status.stalled_reason) == ("offloading", "")
        await rig.clock.sleep(60)
        status = topic.status()
        assert status.mirror is not None
        assert status.mirror.lag_seconds >= HOUR_S - HOUR_S / SEGMENTS_AN_HOUR
        assert str(error) in status.mirror.failure
        assert status.mirror.failing_since_ms
        assert engine.context.upload_context.budget.idle
        assert SEGMENTS_AN_HOUR < len(asked) < HOUR_S / 5
        mended(rig)
        await rig.clock.sleep(60)
        now = topic.status().mirror
        assert now is not None
        assert (now.lag_segments, now.lag_entries, now.lag_bytes, now.lag_seconds) == (0, 0, 0, 0.0)
        assert (now.segments, now.failure) == (SEGMENTS_AN_HOUR + 1, "")
        duty.cancel()
    assert [payload for _, payload in await rig.committed()] == [
        payload for number in range(SEGMENTS_AN_HOUR + 1) for payload in payloads(10, seed=number)
    ]
    await check_copies(rig)


async def test_copies_that_may_not_be_deleted_stay_with_their_record() -> None:
    """Others are made meanwhile; what retention has decided goes from the first place, and the copy with the right."""
    rig = await mirrored(10, 10)
    await offload_more(rig, (10,), seed=9)
    owned, faults = await Owned.claim(rig), Faults()
    faults.fail("delete", Denied("no right", hint="allow it"), times=-1)
    breaking(rig, AWAY[0], faults)
    assert await owned.offloader.record.remove_oldest(owned.offloader.map.segments[0], reason="age")
    with pytest.raises(Denied, match="allow it"):
        await owned.empty_trash()
    async with mirroring(rig, owned):
        await until(lambda: not lag(owned))
    assert await counts(rig) == [6, 9, 0]
    mended(rig)
    assert await owned.empty_trash() == 0
    assert await counts(rig) == [6, 6, 0]
