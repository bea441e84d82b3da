"""Merging levels: the narrowest that says something, for each value, and who that was."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from offloaderd.core.model import HistoryOrder, MirrorRequired, OffloadMethod, OutagePolicy, TierRetention
from offloaderd.core.read_options import ReadPriority
from offloaderd.policy.policies import BUILT_IN, DEFAULTS, NAMES, Level, OffloadPolicies, Origin, effective

LIMITS = ("retention_age_s", "retention_bytes")
ORDER = (Origin.TOPIC, Origin.SELECTION, Origin.NAMESPACE, Origin.BROKER, Origin.SETTINGS)

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "method": st.sampled_from(OffloadMethod),
    "segment_bytes_max": st.integers(1, 2**40),
    "segment_age_max_s": st.floats(0.1, 1e6),
    "segment_age_min_s": st.floats(0, 1e6),
    "threshold_bytes": st.integers(-1, 2**40),
    "threshold_s": st.floats(0, 1e6) | st.just(-1.0),
    "deletion_lag_s": st.floats(0, 1e6) | st.just(-1.0),
    "read_priority": st.sampled_from(ReadPriority),
    "bucket": st.sampled_from(["one", "two"]),
    "prefix": st.sampled_from(["", "a/"]),
    "storage_class": st.sampled_from(["", "STANDARD_IA"]),
    "tags": st.sampled_from(["", "tenant={tenant},team=data"]),
    "mirror": st.sampled_from(["", "two/a/"]),
    "mirror_required": st.sampled_from(MirrorRequired),
    "history_order": st.sampled_from(HistoryOrder),
    "outage": st.sampled_from(OutagePolicy),
    "retention": st.sampled_from(TierRetention),
    "retention_age_s": st.floats(0.1, 1e6),
    "retention_bytes": st.integers(1, 2**40),
}
POLICIES = st.builds(OffloadPolicies, **{name: st.none() | value for name, value in VALUES.items()})


def test_every_value_is_drawn() -> None:
    """A field that is added is merged here as well."""
    assert tuple(VALUES) == NAMES


@given(st.tuples(*[POLICIES for _ in ORDER]))
def test_the_narrowest_that_says_something_counts(said: tuple[OffloadPolicies, ...]) -> None:
    """For every value by itself; limits of a retention come from whoever said the retention; OFF is something said."""
    levels = [Level(origin, policies, str(origin)) for origin, policies in zip(ORDER, said, strict=True)]
    merged = effective(levels)
    for name in NAMES:
        asked = "retention" if name in LIMITS else name
        first = next((one for one in levels if getattr(one.policies, asked) is not None), BUILT_IN)
        assert merged.levels[name] == first
        assert getattr(merged.values, name) == getattr(first.policies, name)


def test_nobody_says_anything() -> None:
    """The built-in defaults hold: streaming, thresholds off, a lag of four hours, the tier first, as in Pulsar."""
    merged = effective([Level(Origin.TOPIC, OffloadPolicies())])
    assert merged.values == DEFAULTS
    assert {level.origin for level in merged.levels.values()} == {Origin.DEFAULT}
    assert (DEFAULTS.method, DEFAULTS.threshold_bytes, DEFAULTS.threshold_s) == (OffloadMethod.STREAMING, -1, -1.0)
    assert (DEFAULTS.deletion_lag_s, DEFAULTS.read_priority) == (14_400.0, ReadPriority.TIERED_STORAGE_FIRST)


def test_a_level_is_named_with_its_kind() -> None:
    """What tells an operator where to look."""
    assert str(Level(Origin.NAMESPACE, OffloadPolicies(), "acme/eu")) == "namespace acme/eu"
    assert str(Level(Origin.BROKER, OffloadPolicies())) == "broker"
