"""The report: values with the spread of their rounds, as a Markdown page with its pictures, and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured figure: its value in each round, and what it should be (`goal` is met by the median).

    `more_is_better` says on which side of the goal it should lie, `little_shows` that little data can show whether it
    does: a quick run judges no other goal. `process` names the process whose figure it is.
    Notes are shown beside it. One without values is `missing`, for that reason.
    """

    benchmark: str
    figure: str
    values: Sequence[float]
    unit: str = ""
    goal: float | None = None
    more_is_better: bool = True
    little_shows: bool = False
    process: str = ""
    missing: str = ""
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def is_reached(self) -> bool | None:
        """Whether the median meets the goal; None without a goal, or without a figure."""
        if self.goal is None or not self.values:
            return None
        middle = median(self.values)
        return middle >= self.goal if self.more_is_better else middle <= self.goal


def shown_by_little(one: Figure) -> Figure:
    """Return a figure of a quick run: without its goal, unless little data can show whether that is met."""
    return one if one.little_shows else replace(one, goal=None)


def page(about: Sequence[str], figures: Sequence[Figure], pictures: Sequence[tuple[str, str]]) -> str:
    """Return the report; `about` are paragraphs, and pictures have a title and a file beside the page."""
    whole = [one for one in figures if not one.process]
    with_goal = [one for one in whole if one.goal is not None and one.values]
    reached = sum(1 for one in with_goal if one.is_reached)
    parts = [
        "# Measured",
        *about,
        *(f"![{title}]({file})" for title, file in pictures),
        f"## Goals\n\n{reached} of {len(with_goal)} are met, by the median.",
        table(with_goal),
        "## Other figures",
        table(one for one in whole if one not in with_goal),
        "## Processes\n\nCPU seconds for a GiB of payload and the most memory, for each process of a measurement.",
        processes([one for one in figures if one.process]),
    ]
    return "\n\n".join(parts) + "\n"


def table(figures: Iterable[Figure]) -> str:
    """Return a Markdown table of the figures."""
    lines = [
        "| benchmark | figure | min | median | max | goal | notes |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in figures:
        low, middle, high = _range(one)
        goal = "" if one.goal is None else f"{'≥' if one.more_is_better else '≤'} {show(one.goal, one.unit)}"
        verdict = {True: " ✓", False: " **missed**", None: ""}[one.is_reached]
        notes = "; ".join([*(f"{name} {text}" for name, text in one.notes.items()), *filter(None, [one.missing])])
        lines.append(f"| {one.benchmark} | {one.figure} | {low} | {middle} | {high} | {goal}{verdict} | {notes} |")
    return "\n".join(lines)


def processes(figures: Sequence[Figure]) -> str:
    """Return a Markdown table with a line for each process of each benchmark."""
    lines = [
        "| benchmark | process | CPU, min | median | max | peak RSS |",
        "|---|---|---|---|---|---|",
    ]
    memory = {(one.benchmark, one.process): one for one in figures if one.figure == PEAK}
    for one in figures:
        if one.figure == CPU:
            peak = memory.get((one.benchmark, one.process))
            most = show(max(peak.values), peak.unit) if peak else ""
            lines.append(f"| {one.benchmark} | {one.process} | {' | '.join(_range(one))} | {most} |")
    return "\n".join(lines)


CPU, PEAK = "CPU", "peak RSS"


def _range(one: Figure) -> tuple[str, str, str]:
    if not one.values:
        return "-", "missing", "-"
    low, middle, high = (show(value, one.unit) for value in (min(one.values), median(one.values), max(one.values)))
    return low, middle, high


def show(value: float, unit: str) -> str:
    """Return a value with three digits that mean something."""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:.{digits}f} {unit}".rstrip()


def spread(values: Sequence[float], unit: str) -> str:
    """Return least and greatest of some values."""
    return f"{min(values):.1f} to {max(values):.1f} {unit}"


def as_json(about: Sequence[str], figures: Sequence[Figure]) -> str:
    """Return the same for machines."""
    content = {"about": list(about), "figures": [{**asdict(one), "met": one.is_reached} for one in figures]}
    return json.dumps(content, indent=1) + "\n"


def write(path: Path, about: Sequence[str], figures: Sequence[Figure], pictures: Sequence[tuple[str, str]]) -> None:
    """Write the page, and the JSON beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(about, figures, pictures), encoding="utf-8")
    path.with_suffix(".json").write_text(as_json(about, figures), encoding="utf-8")
