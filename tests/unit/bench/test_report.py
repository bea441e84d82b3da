"""The report says of every figure what it is, what it should be, and whether it is."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from bench.__main__ import NAMES, main
from bench.report import CPU, PEAK, Figure, as_json, page, shown_by_little, write
from bench.scale import MIB, bytes_of, scale

if TYPE_CHECKING:
    from pathlib import Path

RATE = Figure(benchmark="push", figure="rate", values=[0.5, 0.9, 0.8], goal=0.7, notes={"ours": "8 to 9 MiB/s"})
LATENCY = Figure(benchmark="read", figure="p99", values=[3.0], unit="ms", goal=2.0, more_is_better=False)
MISSING = Figure(benchmark="stock", figure="everything", values=[], missing="no Java here", goal=2.0)
USED = [
    Figure(benchmark="push", figure=CPU, process="daemon", values=[3.0, 4.0], unit="s/GiB"),
    Figure(benchmark="push", figure=PEAK, process="daemon", values=[120.0, 150.0], unit="MiB"),
]
FIGURES = [RATE, LATENCY, MISSING, *USED]


def test_a_goal_is_for_the_median_on_its_side() -> None:
    """One round that misses does not decide, nor does one that meets; more is not always better."""
    assert RATE.is_reached is True
    assert LATENCY.is_reached is False
    assert replace(RATE, values=[0.9, 0.6, 0.6]).is_reached is False
    assert replace(LATENCY, values=[2.0]).is_reached is True


def test_what_was_not_measured_meets_nothing_and_is_said() -> None:
    """A figure that is missing is neither met nor missed, and the page has the reason."""
    assert MISSING.is_reached is None
    shown = page(["A run."], FIGURES, [])
    assert "1 of 2 are met" in shown
    assert "| stock | everything | - | missing | - | ≥ 2.00 | no Java here |" in shown


def test_the_page_has_least_median_and_most() -> None:
    """Each figure has a line with its goal and the verdict; processes have a table of their own."""
    shown = page(["A run."], FIGURES, [("Picture", "report-goals.svg")])
    assert "![Picture](report-goals.svg)" in shown
    assert "| push | rate | 0.50 | 0.80 | 0.90 | ≥ 0.70 ✓ | ours 8 to 9 MiB/s |" in shown
    assert "| read | p99 | 3.00 ms | 3.00 ms | 3.00 ms | ≤ 2.00 ms **missed** |  |" in shown
    assert "| push | daemon | 3.00 s/GiB | 3.50 s/GiB | 4.00 s/GiB | 150 MiB |" in shown


def test_little_data_is_held_to_no_goal_that_it_cannot_show() -> None:
    """A quick run shows such figures without a goal, and judges those that say so."""
    counted = Figure(benchmark="read", figure="GETs", values=[1.0], goal=1.0, more_is_better=False, little_shows=True)
    shown = page(["A run."], [shown_by_little(one) for one in (RATE, LATENCY, counted)], [])
    assert "1 of 1 are met" in shown
    assert "| push | rate | 0.50 | 0.80 | 0.90 |  | ours 8 to 9 MiB/s |" in shown


def test_machines_get_every_round(tmp_path: Path) -> None:
    """The JSON beside the page has all values and the verdicts."""
    write(tmp_path / "new" / "report.md", ["A run."], FIGURES, [])
    read = json.loads((tmp_path / "new" / "report.json").read_text(encoding="utf-8"))
    assert read == json.loads(as_json(["A run."], FIGURES))
    assert [one["met"] for one in read["figures"]] == [True, False, None, None, None]
    assert read["figures"][0]["values"] == [0.5, 0.9, 0.8]


def test_a_quick_run_is_a_small_one() -> None:
    """It has one round of less; what is asked for by hand holds in both."""
    quick, full = (scale(quick=one, runs=None, sustained_s=None) for one in (True, False))
    assert (quick.runs, full.runs) == (1, 3)
    assert quick.segment_bytes < full.segment_bytes
    assert bytes_of(full.segment_bytes, 100) < bytes_of(full.segment_bytes, MIB)
    assert scale(quick=True, runs=2, sustained_s=7.0).sustained_s == 7.0
    assert set(quick.entry_sizes) < set(full.entry_sizes)


def test_mistakes_on_the_command_line_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """No server is started for a benchmark that does not exist, or for no round."""
    with pytest.raises(SystemExit, match="2"):
        main(["--only", "nothing"])
    said = capsys.readouterr().err
    assert all(name in said for name in NAMES)
    with pytest.raises(SystemExit, match="2"):
        main(["--runs", "0"])
    assert "--runs must be 1 or more" in capsys.readouterr().err
