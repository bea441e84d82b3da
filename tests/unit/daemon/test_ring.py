"""The hour in memory: what is kept, in which order, and that it never grows."""

from __future__ import annotations

import math

from offloaderd.daemon.status_page.last_hour import Ring, TopicRings


def test_the_oldest_sample_makes_room() -> None:
    """A full ring keeps the newest samples, the oldest of them first."""
    ring = Ring(["a", "b"], capacity=3)
    for number in range(5):
        ring.add(number * 10, {"b": number + 0.5, "a": number})
    assert ring.column("a") == [(20, 2.0), (30, 3.0), (40, 4.0)]
    assert ring.column("b") == [(20, 2.5), (30, 3.5), (40, 4.5)]


def test_topics_come_and_go() -> None:
    """A topic that comes later has nothing before; one that goes takes its hour along, and begins anew."""
    rings = TopicRings(["lag"], capacity=4)
    rings.add(1, {"x": [1.0]})
    rings.add(2, {"x": [2.0], "y": [7.0]})
    late = rings.column("y", "lag")
    assert late is not None
    assert math.isnan(late[0][1])
    assert late[1] == (2, 7.0)
    rings.add(3, {"y": [8.0]})
    assert rings.column("x", "lag") is None
    rings.add(4, {"x": [4.0], "y": [9.0]})
    again = rings.column("x", "lag")
    assert again is not None
    assert [math.isnan(value) for _, value in again] == [True, True, True, False]


def test_a_topic_s_ring_turns() -> None:
    """After more samples than fit the newest are there, in order, in every column."""
    rings = TopicRings(["rate", "lag"], capacity=3)
    for number in range(8):
        rings.add(number, {"x": [float(number), float(-number)]})
    assert rings.column("x", "rate") == [(5, 5.0), (6, 6.0), (7, 7.0)]
    assert rings.column("x", "lag") == [(5, -5.0), (6, -6.0), (7, -7.0)]


def test_there_is_room_for_so_many_topics() -> None:
    """Who has room keeps it; those that find none are counted, and get it when somebody goes."""
    rings = TopicRings(["lag"], topics_max=2, capacity=4)
    rings.add(1, {name: [1.0] for name in ("a", "b", "c", "d")})
    assert (rings.kept, rings.left_out) == (2, 2)
    assert rings.column("c", "lag") is None
    rings.add(2, {name: [1.0] for name in ("0", "b", "c")})
    assert (rings.kept, rings.left_out) == (2, 1)
    assert rings.column("b", "lag") is not None
    assert rings.column("0", "lag") is not None
