"""From numbers to lines: places, marks, gaps and words."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from offloaderd.daemon.status_page.last_hour import (
    BYTES,
    BYTES_RATE,
    HEIGHT,
    LEFT,
    RIGHT,
    SECONDS,
    TICKS_MAX,
    WIDTH,
    Scale,
    plot,
    step_for,
)

NOW = 1_700_000_000_000


@pytest.mark.parametrize("scale", [BYTES, BYTES_RATE, SECONDS])
@pytest.mark.parametrize("highest", [0.0, 0.3, 1.0, 7.0, 59.0, 1023.0, 1024.0, 3.7e6, 9e9, 4e13, 1e19])
def test_an_axis_has_few_marks_and_holds_everything(scale: Scale, highest: float) -> None:
    """However large the numbers are: the line stays in the drawing, with one to four marks above 0, evenly apart."""
    drawn = plot("k", "T", scale, {"x": [(NOW - 1000, highest)]}, NOW)
    assert 2 <= len(drawn.up) <= TICKS_MAX + 1
    places = [tick.at for tick in drawn.up]
    gaps = [upper - lower for lower, upper in pairwise(places)]
    assert max(gaps) == pytest.approx(min(gaps))
    _, y = drawn.lines[0].pieces[0].split(",")
    assert min(places) - 0.1 <= float(y) <= max(places) + 0.1 < HEIGHT


def test_time_runs_from_left_to_right() -> None:
    """What is an hour old is at the left edge, now is at the right; what is older is left out."""
    points = [(NOW - 4_000_000, 5.0), (NOW - 3_599_999, 1.0), (NOW, 2.0)]
    drawn = plot("k", "T", SECONDS, {"lag": points}, NOW)
    (piece,) = drawn.lines[0].pieces
    xs = [float(pair.split(",")[0]) for pair in piece.split()]
    assert xs == pytest.approx([LEFT, WIDTH - RIGHT], abs=0.1)
    assert drawn.lines[0].highest == "2.0 s"


def test_a_gap_is_no_line() -> None:
    """Where nothing was measured the line ends, and begins again behind it."""
    points = [(NOW - 400, 1.0), (NOW - 300, math.nan), (NOW - 200, 2.0), (NOW - 100, 3.0)]
    drawn = plot("k", "T", SECONDS, {"lag": points}, NOW)
    assert [len(piece.split()) for piece in drawn.lines[0].pieces] == [1, 2]


def test_what_is_seen_is_also_said() -> None:
    """The summary has every line with its value now and its highest one; of nothing it says that it knows nothing."""
    drawn = plot("k", "Read", BYTES_RATE, {"in": [(NOW - 9, 2048.0), (NOW, 1024.0)], "out": []}, NOW)
    assert drawn.summary == (
        "Read, last hour. in: now 1.0 KiB/s, highest 2.0 KiB/s; out: now unknown, highest unknown."
    )


def test_steps_are_round() -> None:
    """A mark is at a number that people count in: 1, 2, 5 and tens of a unit, minutes and hours."""
    assert step_for(7 * 1024.0, BYTES) == 2 * 1024
    assert step_for(100.0, SECONDS) == 30
    assert step_for(4000.0, SECONDS) == 1800
