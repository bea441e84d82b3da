"""Clocks side by side: what can be known of a server's clock, and what it means."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.daemon.doctor.examination import clock_finding
from offloaderd.daemon.doctor.finding import Reading, Verdict


@pytest.mark.parametrize(
    ("told_ms", "verdict", "words"),
    [
        (10_000, Verdict.OK, "agrees"),
        (12_050, Verdict.OK, "agrees with ours to 2 s"),
        (12_051, Verdict.WARN, "2.0 s ahead of ours"),
        (8_000, Verdict.OK, "agrees"),
        (7_998, Verdict.WARN, "2.0 s behind ours"),
        (310_050, Verdict.WARN, "300.0 s ahead"),
        (310_051, Verdict.FAIL, "300.0 s ahead"),
        (-300_000, Verdict.FAIL, "310.0 s behind"),
    ],
)
async def test_bounds(told_ms: int, verdict: Verdict, words: str) -> None:
    """Two seconds are well, five minutes are too much, in both directions, to the millisecond."""
    finding = await clock_finding("S3", Reading(told_ms, 10_000, 10_050))
    assert (finding.verdict, words in finding.found) == (verdict, True), finding
    assert bool(finding.what_to_do) == (verdict is not Verdict.OK)


@given(
    skew=st.integers(-(10**7), 10**7),
    flight=st.integers(0, 10_000),
    at=st.floats(0, 1),
    grain=st.sampled_from([1, 1000]),
)
def test_a_reading_never_exaggerates(skew: int, flight: int, at: float, grain: int) -> None:
    """Whenever the server looked at its clock, and however coarse it tells it, the skew is at least what is said."""
    before = 1_700_000_000_000
    told = before + round(flight * at) + skew
    reading = Reading(told // grain * grain, before, before + flight, grain)
    assert abs(reading.skew_ms) <= abs(skew)
    assert reading.skew_ms * skew >= 0
    assert abs(skew) - abs(reading.skew_ms) <= flight + grain
