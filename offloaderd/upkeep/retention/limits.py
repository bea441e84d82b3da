"""How long a topic is kept by age and size, and since when somebody has said so."""

from math import inf
from typing import NamedTuple, cast

import structlog

from offloaderd.core.clock import Clock
from offloaderd.core.model import TierRetention, TopicName
from offloaderd.policy.merge import Effective, Origin

log = structlog.get_logger(__name__)


class Limits(NamedTuple):
    """How long a topic is kept; None is no limit."""

    kind: TierRetention = TierRetention.KEEP
    age_s: float | None = None
    size_bytes: int | None = None


def limits_of(effective: Effective) -> Limits:
    """Return a topic's retention, with its limits."""
    values = effective.values
    return Limits(cast("TierRetention", values.retention), values.retention_age_s, values.retention_bytes)


def tighter(now: Limits, before: Limits) -> bool:
    """Whether some limits can take what others leave."""
    if now.kind is not TierRetention.LIMITED:
        return False
    if before.kind is not TierRetention.LIMITED:
        return True
    pairs = ((now.age_s, before.age_s), (now.size_bytes, before.size_bytes))
    return any(one is not None and (other is None or one < other) for one, other in pairs)


class Standing:
    """Since when topics have had limits that were written into the metadata store, as this daemon has seen it.

    Whoever reaches the store could have everything deleted in order, and an operator who mistypes a size would as well.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: dict[TopicName, tuple[Limits, float]] = {}

    def note(self, topic: TopicName, effective: Effective) -> None:
        """Take what holds for a topic now: what takes more than before has stood since now."""
        now_s, limits, said_at = self._clock.monotonic(), limits_of(effective), effective.said_at("retention")
        before, since_s = self._since.get(topic, (Limits(), now_s))
        if said_at.origin in {Origin.SETTINGS, Origin.DEFAULT}:
            since_s = -inf
        elif tighter(limits, before):
            since_s = now_s
            log.info("retention.limits_changed", topic=str(topic), said_at=str(said_at), **limits._asdict())
        self._since[topic] = limits, since_s

    def left_s(self, topic: TopicName, lag_s: float) -> float:
        """Return in how many seconds a topic's limits will have stood for `lag_s`; 0 or less: they have."""
        limits, since_s = self._since.get(topic, (Limits(), -inf))
        return since_s + lag_s - self._clock.monotonic() if limits.kind is TierRetention.LIMITED else 0.0
