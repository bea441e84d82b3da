"""Values of policies: units, ranges, spellings, and what is said of a wrong one."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.core.errors import InvalidInput
from offloaderd.core.model import MirrorRequired, OffloadMethod
from offloaderd.core.read_options import ReadPriority
from offloaderd.policy.policies import DEFAULTS, FIELDS, NAMES, Kind, OffloadPolicies, differences, shown
from tests.unit.policy.test_effective import VALUES

MiB = 2**20
NUMBERS = [field for field in FIELDS.values() if field.kind in {Kind.BYTES, Kind.SECONDS}]


def test_there_is_a_field_for_every_value() -> None:
    """In the same order, so that lists agree; and the defaults are sound."""
    assert tuple(FIELDS) == NAMES
    defaults = DEFAULTS.set_values()
    assert [FIELDS[name].flaw(value) for name, value in defaults.items()] == [None] * len(DEFAULTS.set_values())


@pytest.mark.parametrize(
    ("name", "text", "scale", "value"),
    [
        ("segment_bytes_max", "256M", 1, 256 * MiB),
        ("segment_bytes_max", "1.5 GiB", 1, 1536 * MiB),
        ("segment_bytes_max", "10", MiB, 10 * MiB),
        ("segment_bytes_max", "10K", MiB, 10 * 1024),
        ("segment_age_max_s", "2h", 1, 7200.0),
        ("segment_age_max_s", "10", 60, 600.0),
        ("segment_age_max_s", "500ms", 60, 0.5),
        ("segment_age_max_s", "3 min", 1, 180.0),
        ("segment_age_min_s", "0", 1, 0.0),
        ("threshold_bytes", "0", 1, 0),
        ("threshold_bytes", "-5", 1, -1),
        ("threshold_bytes", "off", 1, -1),
        ("deletion_lag_s", "5000", Fraction(1, 1000), 5.0),
        ("deletion_lag_s", "5w", 1, 35 * 86_400.0),
        ("deletion_lag_s", "never", 1, -1.0),
        ("read_priority", "tiered-first", 1, ReadPriority.TIERED_STORAGE_FIRST),
        ("method", "streaming-based", 1, OffloadMethod.STREAMING),
        ("prefix", "", 1, ""),
        ("storage_class", "STANDARD_IA", 1, "STANDARD_IA"),
        ("storage_class", "", 1, ""),
        ("tags", " tenant={tenant}, team=a+b ", 1, "tenant={tenant}, team=a+b"),
        ("tags", "team=", 1, "team="),
        ("mirror", "pulsar-eu/topics/", 1, "pulsar-eu/topics/"),
        ("mirror", "", 1, ""),
        ("mirror_required", "yes", 1, MirrorRequired.YES),
    ],
)
def test_values_are_read_as_people_write_them(name: str, text: str, scale: Fraction, value: object) -> None:
    """A unit that is written wins over the one of a bare number; negative numbers are off; Pulsar's words are known."""
    found = FIELDS[name].read(text, scale=Fraction(scale))
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("segment_bytes_max", "0"),
        ("segment_bytes_max", "-1"),
        ("segment_bytes_max", "6T"),
        ("segment_bytes_max", "0.3"),
        ("segment_bytes_max", "5 apples"),
        ("segment_bytes_max", "2h"),
        ("segment_bytes_max", "off"),
        ("segment_age_max_s", "0"),
        ("segment_age_max_s", "4000d"),
        ("segment_age_max_s", "3G"),
        ("segment_age_min_s", "-1"),
        ("threshold_s", "nan"),
        ("threshold_s", ""),
        ("method", "fast"),
        ("method", ""),
        ("bucket", "No_Bucket"),
        ("prefix", "/a"),
        ("storage_class", "STANDARD IA"),
        ("tags", "tenant"),
        ("tags", "tenant={topic}"),
        ("tags", "team=a&b"),
        ("tags", ",".join(f"t{number}=1" for number in range(11))),
        ("retention_bytes", "0"),
    ],
)
def test_a_wrong_value_is_refused_with_its_name_and_range(name: str, text: str) -> None:
    """The message has the field, what was written, and what is allowed with its unit."""
    with pytest.raises(InvalidInput) as caught:
        FIELDS[name].read(text)
    message = caught.value.message
    assert message.startswith(name)
    assert repr(text) in message
    assert FIELDS[name].allowed in message


@pytest.mark.parametrize("field", NUMBERS, ids=lambda field: field.name)
def test_numbers_are_checked_at_their_bounds(field: object) -> None:
    """The bounds are in or out as the text says; a wrong type, an infinite and a missing number are out."""
    assert field in NUMBERS
    for one in NUMBERS:
        if one is not field:
            continue
        number = int if one.kind is Kind.BYTES else float
        assert (one.flaw(number(one.low)) is None) is not one.above
        assert one.flaw(number(one.high)) is None
        assert one.flaw(number(one.high) * 2 + 1) is not None
        assert (one.flaw(number(-7)) is None) is one.off
        if one.off:
            assert one.settled(number(-7)) == -1
        for wrong in (None, "5", True, math.inf, math.nan, [1]):
            assert one.flaw(wrong) is not None


def test_bytes_are_whole() -> None:
    """Half a byte is a mistake, a whole number of seconds is none."""
    assert FIELDS["segment_bytes_max"].flaw(1.5) is not None
    assert FIELDS["segment_age_max_s"].settled(5) == 5.0


@given(st.sampled_from(NAMES).flatmap(lambda name: st.tuples(st.just(name), VALUES[name])))
def test_every_sound_value_is_shown_and_kept(drawn: tuple[str, object]) -> None:
    """What the model can hold is no flaw, settles to itself, and has words."""
    name, value = drawn
    assert FIELDS[name].flaw(value) is None
    assert FIELDS[name].settled(value) == value
    assert shown(name, value)


def test_differences_name_both_sides() -> None:
    """Only what differs, in words with units."""
    before = OffloadPolicies(segment_bytes_max=MiB, threshold_s=-1.0, segment_age_max_s=90.0)
    after = OffloadPolicies(segment_bytes_max=3 * 2**30, threshold_s=7200.0, segment_age_max_s=90.0)
    assert differences(before, after) == ["segment_bytes_max: 1 MiB -> 3 GiB", "threshold_s: off -> 2 h"]


def test_the_documentation_has_every_value() -> None:
    """Each value that may be said, with its name in Pulsar; and every word of it."""
    page = Path(__file__).parents[3].joinpath("docs", "policies.md").read_text(encoding="utf-8")
    table, _, _ = page[page.index("| value |") :].partition("\n\n")
    for field in FIELDS.values():
        assert f"`{field.name}`" in table
        assert all(f"`{word}`" in page for word in (field.pulsar, *field.choices) if word)
