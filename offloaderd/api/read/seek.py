"""Seek, and where a Read begins that is told a time or a number: between the messages and the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offloaderd.core.errors import InvalidInput
from offloaderd.format.parsing import filled
from offloaderd.protocol.conversion import TIERS
from offloaderd.protocol.v1 import common_pb2, read_pb2
from offloaderd.read.seek.goal import Answered, Goal, SeekKind
from offloaderd.read.seek.seek import seek

if TYPE_CHECKING:
    from offloaderd.core.model import TopicName
    from offloaderd.read.reader import TopicReader
    from offloaderd.read.seek.goal import Sought

_KINDS = {"time_ms": SeekKind.TIME, "index": SeekKind.INDEX, "sequence": SeekKind.SEQUENCE}
_ANSWERS = {
    Answered.MANIFEST: read_pb2.SEEK_ANSWER_MANIFEST,
    Answered.BLOCK: read_pb2.SEEK_ANSWER_BLOCK,
    Answered.SCAN: read_pb2.SEEK_ANSWER_SCAN,
}


def goal_of(target: read_pb2.SeekTarget) -> Goal:
    """Read what to look for; raises InvalidInput when nothing is said."""
    chosen = target.WhichOneof("target")
    if chosen is None:
        raise InvalidInput("a seek without a target", hint="say a time, an index or a sequence number")
    return Goal(_KINDS[chosen], getattr(target, chosen))


async def sought(reader: TopicReader, topic: TopicName, target: read_pb2.SeekTarget) -> Sought:
    """Find an entry. Raises what `read.seek.seek` raises."""
    return await seek(reader, topic, goal_of(target))


def to_response(found: Sought) -> read_pb2.SeekResponse:
    """Return what was found as a message."""
    hit, cost = found.hit, found.cost
    return filled(
        read_pb2.SeekResponse,
        cost,
        answer=_ANSWERS[cost.answered] if hit is not None else read_pb2.SEEK_ANSWER_NOTHING,
        position=found.begin,
        time_ms=hit.time.time_ms if hit is not None else None,
        index=hit.time.message_index if hit is not None else None,
        sequence=hit.sequence if hit is not None else None,
        tier=TIERS[hit.tier] if hit is not None else common_pb2.TIER_UNSPECIFIED,
    )
