"""What a step of a stream or an export takes: as many bytes as there is room for, over any number of topics."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

from offloaderd.core.model import Position, TopicName
from offloaderd.spark.scan.query import NOTHING, EntryQuery, position
from offloaderd.spark.scan.snapshot import Snapshot
from offloaderd.spark.stream import Step, advance, furthest, reach
from tests.unit.spark.lake import snapshot
from tests.unit.spark.test_source_offsets import FOUND, NAME, cut, segment

MIB = 1024**2
ALL = EntryQuery()


def topic(name: str, *, segments: int, segment_bytes: int, entries: int = 1000) -> Snapshot:
    """Return a topic of one ledger."""
    found = [
        replace(segment(number, (5, number * entries, (number + 1) * entries - 1)), object_bytes=segment_bytes)
        for number in range(segments)
    ]
    return Snapshot(replace(snapshot(found).map, topic=TopicName.parse(name)))


def test_a_step_ends_where_the_room_does() -> None:
    """Inside a segment as well, with the entry that fills it; and never beyond what is asked for."""
    assert advance([FOUND], {}, ALL) == Step({NAME: "3:8"}, {NAME: "-1:-1"}, 300, NAME)
    for room, end, taken in ((1, "1:0", 10), (50, "1:4", 50), (100, "1:9", 100), (150, "1:18", 152), (300, "3:8", 300)):
        step = advance([FOUND], {}, ALL, room=room)
        assert (step.offset, step.object_bytes) == ({NAME: end}, taken)
    assert advance([FOUND], {NAME: "1:4"}, ALL, room=50).offset == {NAME: "1:9"}, "what is left of a segment"
    assert not advance([FOUND], {NAME: "3:8"}, ALL, room=1).object_bytes
    assert advance([FOUND], {NAME: "1:9"}, ALL, target={NAME: "1:12"}).offset == {NAME: "1:12"}, "the target"
    assert advance([FOUND], {NAME: "1:9"}, EntryQuery(last=Position(1, 12))).offset == {NAME: "1:12"}, "the wanted end"
    assert advance([FOUND], {NAME: "1:15"}, EntryQuery(last=Position(1, 12))).offset == {NAME: "1:15"}
    assert advance([FOUND], {}, ALL, target={}).offset == {}, "a topic that came after the target waits"
    assert advance([snapshot([])], {}, ALL) == Step({})
    assert furthest([FOUND, snapshot([])], ALL) == {NAME: "3:8"}
    assert furthest([FOUND], EntryQuery(last=Position(2, 0))) == {NAME: "2:0"}


def test_a_topic_begins_at_its_floor() -> None:
    """Retention has run before the first step: it goes behind what was deleted, and nothing is missing."""
    step = advance([cut(FOUND)], {}, ALL)
    assert (step.start, step.offset) == ({NAME: "1:9"}, {NAME: "3:8"})


def test_positions_between_segments_and_ledgers() -> None:
    """A step ends at an entry that is there, wherever its goal lies."""
    assert reach(FOUND, NOTHING, Position(2, 7), None) == (Position(1, 19), 158)
    assert reach(FOUND, Position(1, 19), Position(2, 7), None) == (Position(1, 19), 0)
    assert reach(FOUND, Position(2, 7), Position(9, 0), None)[0] == Position(3, 8)


def test_two_thousand_topics_and_room_for_few() -> None:
    """A step stays within its room, and all topics have their turn before one has it twice."""
    room, segment_bytes = 4096 * MIB, 256 * MIB
    topics = [topic(f"t{number:04}", segments=1, segment_bytes=segment_bytes) for number in range(2000)]
    step, turns = Step({}), Counter[str]()
    for _ in range(2 * 8):
        step = advance(topics, step.offset, ALL, room=room, turn=step.turn)
        assert room - segment_bytes < step.object_bytes <= room + segment_bytes / 1000
        turns.update(name for name, at in step.offset.items() if at != step.start[name])
        assert max(turns.values()) - min(turns[str(one.topic)] for one in topics) <= 1
    assert len(turns) == 2000
    assert advance(topics, {}, ALL, room=1).object_bytes < segment_bytes / 999, "an entry, when the room is less"


def test_a_busy_topic_takes_what_the_others_leave() -> None:
    """Topics with little to read leave their part of the room to the one with much."""
    topics = [topic("busy", segments=40, segment_bytes=64 * MIB)]
    topics += [topic(f"calm{number}", segments=1, segment_bytes=MIB) for number in range(9)]
    step = advance(topics, {}, ALL, room=1000 * MIB)
    assert 999 * MIB < step.object_bytes <= 1001 * MIB
    assert all(position(step.offset, str(one.topic)) == one.end for one in topics[1:])
    offsets = [step.offset]
    while (step := advance(topics, offsets[-1], ALL, room=1000 * MIB)).object_bytes:
        offsets.append(step.offset)
    assert len(offsets) == 3
    assert all(position(one, NAME) <= position(two, NAME) for one, two in pairwise(offsets))
