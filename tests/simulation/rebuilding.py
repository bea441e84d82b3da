"""P9 at the end of a run: the bucket alone gives back the maps that all those daemons have made, byte for byte."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from offloaderd.core.model import START, Loss
from offloaderd.metadata import paths, pieces
from offloaderd.metadata.records import context
from offloaderd.upkeep import rebuild
from offloaderd.upkeep.flaws import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.core.model import TopicName
    from offloaderd.metadata.committed import CommittedSegment
    from offloaderd.metadata.records.context import LedgerContext
    from offloaderd.metadata.topic_map.map import TopicMap
    from offloaderd.objects.port import ObjectReader
    from offloaderd.upkeep.stored import Site
    from tests.simulation.world import World

HARMLESS = {Kind.FRONT, Kind.DOUBT}
"""What retention took from the front does not come back; what nobody could tell before, nobody can tell now."""


async def check(world: World, objects: ObjectReader, sites: Sequence[Site]) -> None:
    """Plan a rebuild, and compare it with the maps; nobody may be at work. So each place that has all of them alone."""
    found = await _planned(world, objects, sites)
    for topic, live in world.oracle.maps.items():
        if live.segments:
            if topic not in found:
                world.oracle.fail("P9", f"{topic} would not come back")
                return
            _compare(world, live, found[topic])
    for site in sites if len({site.bucket for site in sites}) > 1 else ():
        segments = {topic: live.segments for topic, live in world.oracle.maps.items() if live.segments}
        places = [{it.place for it in one.each_place} for some in segments.values() for one in some]
        if all((site.bucket, site.prefix) in one for one in places):
            world.faults.count("rebuilt from one place")
            alone = await _planned(world, objects, [site])
            for topic, wanted in segments.items():
                back = alone[topic].segments if topic in alone else ()
                if [(one.segment_id, one.slices) for one in back] != [(one.segment_id, one.slices) for one in wanted]:
                    world.oracle.fail("P9", f"{topic} would come back with other segments from {site.bucket} alone")


async def _planned(world: World, objects: ObjectReader, sites: Sequence[Site]) -> dict[TopicName, TopicMap]:
    """Return the maps that a rebuild from some places would write."""
    stored = await rebuild.read_buckets(objects, sites, lambda _: None)
    without = world.last_copies & {one.segment.segment_id for one in stored.known}  # a collection has told of them
    plan = rebuild.make_plan(stored, without=without)
    gaps = {one.segments[0] for topic in plan.topics for one in topic.problems if one.kind is Kind.GAP}
    before = {one.segment.end for one in stored.known if one.segment.segment_id in gaps}
    untold = {loss.after for live in world.oracle.maps.values() for loss in _untold(world, live)}
    if lost := before & (world.operator.lost | untold):  # an operator decides, or decides so again
        plan = rebuild.make_plan(stored, without=without, lost=lost)
    problems = [*plan.problems, *(problem for topic in plan.topics for problem in topic.problems)]
    harmless = HARMLESS | ({Kind.ORPHAN} if world.second is not None else set())  # what it had begun
    if world.faults.rotten and world.faults.fired["metadata restored"]:
        harmless |= {Kind.UNREADABLE}  # a user decides over what a collection has raised an alarm for
    if bad := [problem for problem in problems if problem.kind not in harmless]:
        world.oracle.fail("P9", f"a rebuild would stop over {bad[0].kind}: {bad[0].text}")
    return {topic.topic: topic.map for topic in plan.topics}


def _untold(world: World, live: TopicMap) -> list[Loss]:
    """Return the losses at the end of history that were noticed after the last live segment was sealed.

    No segment of history has them, and the next live one, which is to keep them, is still to come.
    """
    if live.history is None or not live.segments:
        return []
    sealed_ms = live.segments[-1].offloaded_ms if not world.faults.fired["clock jump"] else 0
    return [loss for loss in live.losses if loss.before == live.history.live_begin and loss.noticed_ms >= sealed_ms]


def _settled(segment: CommittedSegment) -> CommittedSegment:
    """Return a segment with its places in one order: no object says which of two equal copies was written first."""
    (bucket, prefix), *copies = sorted(one.place for one in segment.each_place)
    return replace(segment, bucket=bucket, prefix=prefix, mirror=next(iter(copies), None))


def _placeless(known: LedgerContext) -> bytes:
    """Return a context's bytes with the places of each segment in one order."""
    names = (("bucket", "prefix"), ("mirror.bucket", "mirror.prefix"))
    segments = []
    for one in known.segments:
        places = [[(name, one.properties[name]) for name in pair] for pair in names if pair[0] in one.properties]
        values = sorted(tuple(value for _, value in place) for place in places)
        properties = {
            name: value
            for pair, place in zip(names, values, strict=False)
            for name, value in zip(pair, place, strict=True)
        }
        others = {name: value for name, value in one.properties.items() if not name.endswith(("bucket", "prefix"))}
        segments.append(replace(one, properties=others | properties, source=b""))
    return context.encode(replace(known, segments=tuple(segments)))


def _compare(world: World, live: TopicMap, found: TopicMap) -> None:
    """Compare what can come back: not marks, nor what became known only after the last segment was sealed."""
    last = live.segments[-1].end
    if [_settled(one) for one in found.segments] != [_settled(one) for one in live.segments]:
        world.oracle.fail("P9", f"{live.topic} would come back with other segments")
    wanted = {loss for loss in live.losses if loss.before <= last}
    untold = {(loss.after, loss.before) for loss in _untold(world, live)}
    wanted, back = ({one for one in some if (one.after, one.before) not in untold} for some in (wanted, found.losses))
    told = {loss for loss in wanted if loss.certain}  # a doubt may be noticed later
    if live.history is not None and live.history_end is None:
        told = {loss for loss in told if loss.before > live.history.live_begin}  # no segment of history tells of it
    front = live.segments[0].begin if live.floor is not None else START  # what was lost below the floor is forgotten
    if not told <= {loss for loss in back if loss in wanted or loss.before > front} <= wanted:
        world.oracle.fail("P9", f"{live.topic} would come back with the losses {found.losses}, not {wanted}")
    for ledger_id, stored in live.contexts.items():
        path = paths.ledger(live.topic, ledger_id)
        known = replace(pieces.joined(stored, path), deleted_ms=None, source_deleted=False)
        rebuilt = pieces.joined(found.contexts[ledger_id], path)
        end = rebuilt.end
        if rebuilt.created_ms is None:
            known = replace(known, created_ms=None)  # noted after the seal, or by a segment that retention has taken
        if ledger_id == last.ledger_id and end is None:
            known = replace(known, end=None)
        if known.end is not None and end is not None and known.end.entries == end.entries:
            known = replace(known, end=end)  # which ledger comes next may be known before the seal, or only after it
        if known.end is None and end is not None and world.ledgers.ended(live.topic, ledger_id) == end.entries:
            known = replace(known, end=end)  # an owner heard of it, sealed with it, and died; its successor did not
        if _placeless(known) != _placeless(rebuilt):
            world.oracle.fail("P9", f"{path} would come back as {rebuilt}, it is {known}")
