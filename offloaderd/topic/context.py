"""The context of topics: that of segments, with memory for tailing and rules for outages."""

from dataclasses import dataclass, field

from offloaderd.core.model import OutagePolicy
from offloaderd.segment.context import OffloadContext
from offloaderd.topic.buffer import BufferPool
from offloaderd.topic.spill import SpillArea


@dataclass(frozen=True, slots=True)
class OutageRules:
    """The outage policy of topics without their own, and the spill area of push-only ones (None: no spill)."""

    policy: OutagePolicy = OutagePolicy.SOURCE
    area: SpillArea | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicContext(OffloadContext):
    """The context of segments, with memory and outage rules."""

    pool: BufferPool
    outage: OutageRules = field(default_factory=OutageRules)
