"""The exchange of a topic's first place and its mirror: what it would do, and the part of it in the topic map.

    policy: first and mirror exchanged -> each segment whose copy is in the new first place: one transaction

- The policy goes first. From then on no segment begins in the old place, so that repeating the call comes to an end,
  and a policy that is refused leaves the map alone.
- A crash at any point leaves a sound topic. The mirror's rules look at the pair of places, not at their order
  (`topic_map/mirroring.py`): while map and policy differ, nothing is copied twice and nothing is garbage.
- A segment that was begun before the exchange is committed in the old place, copied to the new one as every segment
  that lies in the mirror, and exchanged by the next call.
- A segment whose own place is a third one, as an earlier policy left it, is exchanged like the others, and lacks a copy
  in the new mirror then.
- No object moves. Readers that hold the map of before find the same bytes in both places.
"""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from offloaderd.core.errors import Conflict, InvalidInput
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.topic_map.mirroring import Place
from offloaderd.policy.policies import OffloadPolicies, place_named
from offloaderd.segment.claim.topic_record import TopicRecord


def text_of(place: Place) -> str:
    """Return a place as policies write it."""
    return "/".join(place)


@dataclass(frozen=True, slots=True)
class Exchange:
    """What an exchange does: places afterwards, whether the policy changes, segments to exchange, and those that wait.

    `waiting` segments are not in both places yet; those of brokers, which stay where they are, do not count.
    """

    first: Place
    mirror: Place
    policy_changes: bool
    segments: Sequence[CommittedSegment]
    waiting: int


def planned(segments: Sequence[CommittedSegment], policy: OffloadPolicies, to: str = "") -> Exchange:
    """Return the exchange of a topic whose policy this is, with `to` (BUCKET/PREFIX) as its first place.

    Without `to`: the mirror of the policy becomes the first place, but an exchange that was broken off, so that
    segments have their copy in the first place of the policy, is only completed. Raises Conflict without a mirror,
    InvalidInput for a place that is neither of the two.
    """
    own, mirror = (policy.bucket or "", policy.prefix or ""), place_named(policy.mirror or "")
    if mirror is None:
        raise Conflict(
            "the topic has no mirror, so there is nothing to exchange",
            hint="set its policy `mirror` and wait for the copies, or use `offloadctl places move`",
        )
    left = any(one.mirror == own for one in segments)
    first = place_named(to) if to else own if left else mirror
    if first is None or first not in {own, mirror}:
        raise InvalidInput(
            f"{to} is neither the first place nor the mirror of the topic",
            hint=f"they are {text_of(own)} and {text_of(mirror)}; `offloadctl places move` makes another the mirror",
        )
    second = own if first == mirror else mirror
    return Exchange(
        first=first,
        mirror=second,
        policy_changes=first != own,
        segments=[one for one in segments if one.mirror == first],
        waiting=sum(not one.foreign and {one.place, one.mirror} != {first, second} for one in segments),
    )


def unnamed(segments: Sequence[CommittedSegment], policy: OffloadPolicies) -> list[tuple[CommittedSegment, Place]]:
    """Return the segments whose copy lies in a place that the policy does not name, each with the place.

    Segments of such a place that have no other one are not touched: only a copy goes, the first place stays.
    """
    named = named_by(policy)
    return [(one, one.mirror) for one in segments if one.mirror is not None and one.mirror not in named]


def named_by(policy: OffloadPolicies) -> set[Place | None]:
    """Return the places that a policy names, None without a mirror."""
    return {(policy.bucket or "", policy.prefix or ""), place_named(policy.mirror or "")}


async def exchange(record: TopicRecord, wanted: Exchange) -> AsyncGenerator[int, None]:
    """Exchange the places of the planned segments in the map; yield how many are done. Raises Fenced, Conflict.

    Segments that left the map meanwhile, or lie right already, need nothing.
    """
    for number, segment in enumerate(wanted.segments, start=1):
        await record.exchange_places(segment.segment_id, wanted.first)
        yield number
