"""How old the oldest entry is that is not durable."""

from __future__ import annotations

from offloaderd.core.model import Position
from offloaderd.topic.lag import SAMPLES_MAX, LagTracker, Sample


def test_age_is_that_of_the_oldest_entry_that_is_not_durable() -> None:
    """Committing the older entries leaves the age of the newer ones."""
    lag = LagTracker()
    assert lag.age_s(5.0) == 0
    lag.saw(Position(1, 9), 10.0)
    lag.saw(Position(1, 19), 12.0)
    assert lag.age_s(13.0) == 3.0
    assert lag.durable(Position(1, 9)) == [Sample(Position(1, 9), 10.0)]
    assert lag.age_s(13.0) == 1.0
    assert lag.durable(Position(2, 0)) == [Sample(Position(1, 19), 12.0)]
    assert lag.age_s(99.0) == 0
    assert lag.newest is None


def test_a_sample_is_done_only_when_all_of_it_is_durable() -> None:
    """Half a sample committed is a sample still waiting."""
    lag = LagTracker()
    lag.saw(Position(1, 9), 1.0)
    assert lag.durable(Position(1, 8)) == []
    assert lag.age_s(2.0) == 1.0


def test_old_samples_change_nothing_and_close_ones_merge_to_the_earlier_time() -> None:
    """Ages are never understated by merging."""
    lag = LagTracker()
    lag.saw(Position(1, 9), 1.0)
    lag.saw(Position(1, 5), 2.0)
    lag.saw(Position(1, 9), 2.0)
    lag.saw(Position(1, 10), 1.01)
    assert lag.newest == (1, 10)
    assert lag.durable(Position(1, 10)) == [Sample(Position(1, 10), 1.0)]


def test_samples_are_bounded() -> None:
    """However long nothing is committed, the memory stays bounded and the oldest age exact."""
    lag = LagTracker()
    for second in range(SAMPLES_MAX * 2):
        lag.saw(Position(1, second), float(second))
    assert lag.age_s(SAMPLES_MAX * 2.0) == SAMPLES_MAX * 2.0
    assert len(lag.durable(Position(1, SAMPLES_MAX * 3))) == SAMPLES_MAX
