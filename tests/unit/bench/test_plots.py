"""The report's pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from bench.plots import draw
from tests.unit.bench.test_report import FIGURES, MISSING

if TYPE_CHECKING:
    from pathlib import Path


def test_pictures_are_drawn_beside_the_page_and_are_the_same_again(tmp_path: Path) -> None:
    """Same figures, same bytes: a report that is made again differs only where it was measured anew."""
    pages = [tmp_path / one / "report.md" for one in ("first", "second")]
    drawn = [draw(path, FIGURES) for path in pages]
    assert drawn[0] == drawn[1]
    assert [name for _, name in drawn[0]] == ["report-goals.svg", "report-cpu.svg"]
    for _, name in drawn[0]:
        first, second = (path.with_name(name).read_bytes() for path in pages)
        assert first == second
        assert ET.fromstring(first).tag.endswith("svg")  # noqa: S314 - written a moment ago


def test_there_is_no_picture_of_nothing(tmp_path: Path) -> None:
    """A run that could measure nothing has a page all the same."""
    assert draw(tmp_path / "report.md", [MISSING]) == []
