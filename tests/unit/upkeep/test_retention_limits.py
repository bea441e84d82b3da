"""Limits that somebody wrote into the metadata store hold after a while in which they can be taken back."""

from __future__ import annotations

from offloaderd.core.model import TierRetention, TopicName
from offloaderd.policy.policies import Effective, Level, OffloadPolicies, Origin, effective
from offloaderd.testing.clock import FakeClock
from offloaderd.upkeep.retention import Standing

TOPIC = TopicName.parse("orders")
LAG_S = 100.0


def said(origin: Origin, size: int | None = None, age_s: float | None = None) -> Effective:
    """Return what holds when one level says it; without a limit the topic is kept."""
    kind = TierRetention.KEEP if size is None and age_s is None else TierRetention.LIMITED
    return effective([Level(origin, OffloadPolicies(retention=kind, retention_bytes=size, retention_age_s=age_s))])


async def test_what_takes_more_begins_to_stand_anew() -> None:
    """Tighter limits, or others, wait; looser ones do not; taken back, they never held."""
    clock = FakeClock()
    standing = Standing(clock)

    async def left_s(found: Effective, later_s: float) -> float:
        standing.note(TOPIC, found)
        await clock.advance(later_s)
        standing.note(TOPIC, found)
        return standing.left_s(TOPIC, LAG_S)

    for origin in (Origin.TOPIC, Origin.SELECTION, Origin.NAMESPACE, Origin.BROKER):
        assert await left_s(said(origin, 50), 60) == 40
        assert await left_s(said(origin, 40), 60) == 40
        assert await left_s(said(origin, 60), 40) == 0
        assert await left_s(said(origin, 60, 5.0), 1) == 99
        assert await left_s(said(origin), 1000) == 0
    assert await left_s(said(Origin.TOPIC, 60), 0) == LAG_S


async def test_the_daemons_own_settings_hold_at_once() -> None:
    """Nobody writes them by way of the store."""
    standing = Standing(FakeClock())
    standing.note(TOPIC, said(Origin.SETTINGS, 1))
    assert standing.left_s(TOPIC, LAG_S) < 0
    standing.note(TOPIC, said(Origin.TOPIC, 2))
    assert standing.left_s(TOPIC, LAG_S) < 0
    standing.note(TOPIC, said(Origin.TOPIC, 1))
    assert standing.left_s(TOPIC, LAG_S) == LAG_S
