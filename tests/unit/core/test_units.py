"""Sizes and durations: one spelling means one thing in the settings, the environment, on the command line, in jobs."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import pytest

from offloaderd.cli.options import DURATION, SIZE, duration_param
from offloaderd.core.units import DURATIONS, SIZES, parse_bytes, parse_seconds
from offloaderd.daemon.settings import check
from offloaderd.policy.policies import FIELDS

if TYPE_CHECKING:
    from pathlib import Path

MiB = 2**20
BUCKET = {"OFFLOADERD__OBJECTS__BUCKET": "the-bucket"}


def setting(name: str, text: str, directory: Path) -> object:
    """Read a setting of [offload] from a file and from the environment; both say the same."""
    path = directory / "offloaderd.toml"
    path.write_text(f'[offload]\n{name} = "{text}"\n')
    environ = {f"OFFLOADERD__OFFLOAD__{name.upper()}": text}
    reports = [check(path, BUCKET), check(None, BUCKET | environ)]
    found = {getattr(report.settings.offload, name) if report.settings else report.mistakes for report in reports}
    (value,) = found
    return value


@pytest.mark.parametrize("text", ["256MB", "256M", "256MiB", "256 mib", "1.5G", "268435456", "20GB", "0.5GiB"])
def test_a_size_means_one_thing_everywhere(text: str, tmp_path: Path) -> None:
    """Also where a person would write it without a thought, as 256MB."""
    size = parse_bytes(text)
    assert setting("segment_bytes_max", text, tmp_path) == size
    assert SIZE.convert(text, None, None) == size
    assert FIELDS["segment_bytes_max"].read(text) == size


def test_families_of_units_differ_as_they_are_written() -> None:
    """MB is a million; MiB, and M as in Pulsar's tools, are powers of 1024."""
    assert [parse_bytes(text) for text in ("256MB", "256MiB", "256M")] == [256_000_000, 256 * MiB, 256 * MiB]
    assert set(SIZES) == {"b"} | {f"{letter}{end}" for letter in "kmgt" for end in ("", "b", "ib")}


@pytest.mark.parametrize("text", ["90s", "15min", "15m", "2h", "1.5d", "1w", "1500ms", "600", "2 H"])
def test_a_duration_means_one_thing_everywhere(text: str, tmp_path: Path) -> None:
    """With a unit or, in seconds, without."""
    seconds = parse_seconds(text)
    assert setting("segment_age_max_s", text, tmp_path) == seconds
    assert DURATION.convert(text, None, None) == seconds
    assert FIELDS["segment_age_max_s"].read(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "soon", "2 fortnights", "1e3s", "1,5h", "٣h"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    """With what one looks like."""
    with pytest.raises(ValueError, match=r"not a duration: write a number with ms"):
        parse_seconds(text)


def test_a_bare_number_is_what_the_caller_says() -> None:
    """As broker.conf counts in MiB and minutes."""
    assert parse_bytes("5", bare=Fraction(MiB)) == 5 * MiB
    assert parse_seconds("5", bare=DURATIONS["m"]) == 300
    assert parse_bytes("5kB", bare=Fraction(MiB)) == 5000


def test_limits_of_an_option_are_its_own() -> None:
    """Nothing is no duration, unless the option says so."""
    assert duration_param(0).convert("0s", None, None) == 0
    for param in (DURATION, duration_param(0.2)):
        with pytest.raises(Exception, match=r"is not more than 0|is less than 0\.2 s"):
            param.convert("0", None, None)
