"""What the topics of a daemon work with beyond what their segments need: memory to tail in, rules for outages."""

from dataclasses import dataclass, field

from offloaderd.core.model import OutagePolicy
from offloaderd.segment.context import OffloadContext
from offloaderd.topic.buffer import BufferPool
from offloaderd.topic.spill import SpillArea


@dataclass(frozen=True, slots=True)
class OutageRules:
    """What holds for topics whose policy says nothing, and where push-only ones may spill (None: nowhere)."""

    policy: OutagePolicy = OutagePolicy.SOURCE
    area: SpillArea | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicContext(OffloadContext):
    """The same, with what tailing takes."""

    pool: BufferPool
    outage: OutageRules = field(default_factory=OutageRules)
