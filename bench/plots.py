"""The report's pictures, as SVG: how far each figure is from its goal, and where the CPU of a GiB goes."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

import matplotlib as mpl

from bench.report import CPU

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.figure import Figure as Picture

    from bench.report import Figure

OURS, REFERENCE, MISSED = "#1f6f8b", "#b0b7bd", "#c0392b"
METADATA = {"Date": None, "Creator": None}
"""A picture of the same figures has the same bytes."""


def draw(path: Path, figures: Sequence[Figure]) -> list[tuple[str, str]]:
    """Draw what there are figures for, beside the page `path`; returns titles and names of the files."""
    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "bench"
    mpl.rcParams["svg.fonttype"] = "none"  # words as words: a tenth of the bytes
    path.parent.mkdir(parents=True, exist_ok=True)
    goals = [one for one in figures if one.goal and one.values and min(one.values) > 0]
    cpu = [one for one in figures if one.figure == CPU and one.values]
    drawn = []
    if goals:
        drawn.append(("Figures over their goals", f"{path.stem}-goals.svg", _goals(goals)))
    if cpu:
        drawn.append(("CPU seconds a GiB, by process", f"{path.stem}-cpu.svg", _cpu(cpu)))
    for _, name, picture in drawn:
        picture.savefig(path.with_name(name), metadata=METADATA, bbox_inches="tight")
    return [(title, name) for title, name, _ in drawn]


def _goals(figures: Sequence[Figure]) -> Picture:
    """Draw each figure as a multiple of its goal, turned so that right of 1 it is met; a line from min to max."""
    from matplotlib import pyplot  # noqa: PLC0415 - after the choice of a backend

    picture, axes = pyplot.subplots(figsize=(9, 0.3 * len(figures) + 1))
    for row, one in enumerate(reversed(figures)):
        goal = one.goal or 1.0
        times = [value / goal if one.more_is_better else goal / value for value in one.values]
        colour = OURS if one.is_reached else MISSED
        axes.plot([min(times), max(times)], [row, row], color=colour, linewidth=2)
        axes.plot([median(times)], [row], marker="o", color=colour)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_yticks(range(len(figures)), [f"{one.benchmark}: {one.figure}" for one in reversed(figures)], fontsize=7)
    axes.set_xlabel("times the goal: at 1 and right of it the goal is met")
    pyplot.close(picture)
    return picture


def _cpu(figures: Sequence[Figure]) -> Picture:
    """Draw a bar for each process, benchmark by benchmark."""
    from matplotlib import pyplot  # noqa: PLC0415 - after the choice of a backend

    rows = list(reversed(figures))
    picture, axes = pyplot.subplots(figsize=(9, 0.22 * len(rows) + 1))
    colours = [OURS if one.process in {"daemon", "reader"} else REFERENCE for one in rows]
    axes.barh(range(len(rows)), [median(one.values) for one in rows], color=colours)
    axes.set_yticks(range(len(rows)), [f"{one.benchmark}: {one.process}" for one in rows], fontsize=6)
    axes.set_xlabel("CPU seconds for a GiB of payload")
    pyplot.close(picture)
    return picture
