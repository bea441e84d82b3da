"""What came out: values with the spread of their rounds, as a Markdown table and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured figure: its value in each round, and what it should be (`goal` is met by the median).

    `more_is_better` says on which side of the goal it should lie. Notes are shown beside it.
    """

    benchmark: str
    figure: str
    values: Sequence[float]
    unit: str = ""
    goal: float | None = None
    more_is_better: bool = True
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def met(self) -> bool | None:
        """Whether the median meets the goal; None without a goal."""
        if self.goal is None:
            return None
        middle = median(self.values)
        return middle >= self.goal if self.more_is_better else middle <= self.goal


def table(figures: Sequence[Figure]) -> str:
    """Return a Markdown table of the figures."""
    lines = [
        "| benchmark | figure | min | median | max | goal | notes |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in figures:
        low, middle, high = (show(value, one.unit) for value in (min(one.values), median(one.values), max(one.values)))
        goal = "" if one.goal is None else f"{'≥' if one.more_is_better else '≤'} {show(one.goal, one.unit)}"
        verdict = {True: " ✓", False: " **missed**", None: ""}[one.met]
        notes = "; ".join(f"{name} {text}" for name, text in one.notes.items())
        lines.append(f"| {one.benchmark} | {one.figure} | {low} | {middle} | {high} | {goal}{verdict} | {notes} |")
    return "\n".join(lines)


def show(value: float, unit: str) -> str:
    """Return a value with three digits that mean something."""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:.{digits}f} {unit}".rstrip()


def write(directory: Path, title: str, figures: Sequence[Figure]) -> None:
    """Write report.md and report.json."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "report.md").write_text(f"# Benchmarks\n\n{title}\n\n{table(figures)}\n", encoding="utf-8")
    content = {"about": title, "figures": [{**asdict(one), "met": one.met} for one in figures]}
    (directory / "report.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
