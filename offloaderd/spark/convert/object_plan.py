"""The plan of a conversion: the stored segments to rewrite, the objects to make of them, and why the others stay."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from offloaderd.core.errors import OffloaderError
from offloaderd.core.model import OffloadMethod
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.topic_map import conversion, merging
from offloaderd.metadata.topic_map.conversion import Standing
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.metadata.topic_map.merging import Goal, goal_of
from offloaderd.segment.builders.builder import LEDGERS_MAX


class ConversionFailed(OffloaderError):
    """A topic's segments cannot be rewritten. Rewritten ones stay so, all others are unchanged."""


class Target(StrEnum):
    """The form that segments are to have."""

    LEDGER_BASED = "ledger-based"
    """Each ledger of streaming segments (V2) an object of its own (V1)."""
    STREAMING = "streaming"
    """Whole ledgers (V1) streaming segments (V2), neighbours together up to the size of a segment."""
    MERGED = "merged"
    """Small neighbouring streaming segments one of up to the size of a segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The segments to make: of about `segment_bytes` of payload, from those that have less than `small_bytes`."""

    target: Target
    segment_bytes: int
    small_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectPlan:
    """The objects to make of a topic, in the order of their exchange; `left`: segments that stay, counted by reason."""

    goals: tuple[Goal, ...]
    left: Mapping[str, int] = field(default_factory=dict)


def plan_objects(topic_map: TopicMap, wish: Wish, buckets: Collection[str]) -> ObjectPlan:
    """Return the objects that a topic's segments can become.

    Raises ConversionFailed while its history is not all offloaded, or when it has none.
    """
    if topic_map.unfinished is not None:
        raise ConversionFailed(
            f"the history of {topic_map.topic} is still being offloaded",
            hint=f"wait for it, or see offloadctl backfill status {topic_map.topic}",
        )
    if not topic_map.segments:
        raise ConversionFailed(f"nothing of {topic_map.topic} is offloaded", hint="offloadctl topics list")
    if wish.target is Target.LEDGER_BASED:
        return _whole_ledgers(topic_map, buckets)
    left: Counter[str] = Counter()
    wanted: list[CommittedSegment] = []
    for one in topic_map.segments:
        whole = one.method is OffloadMethod.LEDGER_BASED
        if whole is not (wish.target is Target.STREAMING):
            continue
        if wish.target is Target.MERGED and one.payload_bytes >= wish.small_bytes:
            continue
        if why := merging.obstacle(topic_map, one, buckets):
            left[why] += 1
        else:
            wanted.append(one)
    goals = merging.runs(topic_map, wanted, payload_bytes=wish.segment_bytes, ledgers=LEDGERS_MAX)
    if wish.target is Target.MERGED:
        if alone := sum(len(one.sources) == 1 for one in goals):
            left["it has no small neighbour"] = alone
        goals = [one for one in goals if len(one.sources) > 1]
    return ObjectPlan(goals=tuple(goals), left=left)


def _whole_ledgers(topic_map: TopicMap, buckets: Collection[str]) -> ObjectPlan:
    newest = topic_map.segments[-1].end.ledger_id
    left: Counter[str] = Counter()
    wanted: set[int] = set()
    for one in conversion.ledger_states(topic_map, buckets=buckets, to=newest - 1):
        if one.standing is Standing.CONVERTIBLE and one.ledger_id < newest:
            wanted.add(one.ledger_id)
        elif one.standing is not Standing.WHOLE:
            left[one.why or "it is the newest ledger of the tier"] += 1
    order = conversion.sequence(topic_map, wanted)
    goals = (goal_of(conversion.holders_of(topic_map, one), ledger_id=one) for one in order)
    return ObjectPlan(goals=tuple(goals), left=left)
