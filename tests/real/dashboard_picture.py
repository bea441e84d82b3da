"""Panels of the dashboard on one page, where the dashboard has them: lines, big numbers, heads of rows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import matplotlib as mpl
from matplotlib import pyplot
from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator

from offloaderd.core import units as words

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

COLUMNS = 24
"""Grafana's grid has so many, and rows of a third of an inch here."""
WIDTH_INCHES, ROW_INCHES = 15.0, 0.27
HEAD_ROWS, FOOT_ROWS = 1.3, 2.6
"""Room above the lines for the title, and below them for time and legend, in rows of the grid."""
LEGEND_MAX = 6
RED, GREEN = "#c0392b", "#2e7d4f"
WRITTEN: dict[str, Callable[[float], str]] = {
    "bytes": lambda value: words.size(round(value)),
    "Bps": lambda value: f"{words.size(round(value))}/s",
    "s": words.age,
    "percentunit": lambda value: f"{100 * value:.3g} %",
    "ops": lambda value: f"{value:.3g}/s",
    "reqps": lambda value: f"{value:.3g}/s",
    "none": lambda value: f"{value:.3g}",
}


class Curve(NamedTuple):
    """One line: seconds and values, in order. Without a name it is the panel's only one."""

    name: str
    points: list[tuple[float, float]]


class Panel(NamedTuple):
    """One panel, or the head of a row: place and size in the grid, and what it shows."""

    title: str
    kind: str
    unit: str
    x: int
    y: int
    width: int
    height: int
    red_from: float
    stacked: bool
    curves: list[Curve]

    @classmethod
    def of(cls, panel: dict[str, Any], curves: list[Curve]) -> Panel:
        """Read what Grafana's JSON says of a panel."""
        place, defaults = panel["gridPos"], panel.get("fieldConfig", {}).get("defaults", {})
        steps = [step["value"] for step in defaults.get("thresholds", {}).get("steps", ()) if step["color"] == "red"]
        stacked = defaults.get("custom", {}).get("stacking", {}).get("mode") == "normal"
        return cls(
            title=panel["title"],
            kind=panel["type"],
            unit=defaults.get("unit", "none"),
            x=place["x"],
            y=place["y"],
            width=place["w"],
            height=place["h"],
            red_from=steps[0] if steps else math.inf,
            stacked=stacked,
            curves=curves,
        )


def draw(path: Path, panels: Sequence[Panel], all_s: float, shaded_s: tuple[float, float]) -> None:
    """Write the picture of so many seconds; the time between two moments is shaded in every panel."""
    mpl.use("agg")
    rows = max(panel.y + panel.height for panel in panels)
    page = pyplot.figure(figsize=(WIDTH_INCHES, rows * ROW_INCHES))
    for panel in panels:
        bottom = 1 - (panel.y + panel.height) / rows
        if panel.kind == "row":
            page.text(panel.x / COLUMNS + 0.004, bottom + 0.2 / rows, panel.title, fontsize=12, fontweight="bold")
            continue
        left, width = panel.x / COLUMNS, panel.width / COLUMNS
        if panel.kind == "stat":
            axes = page.add_axes((left + 0.004, bottom + 0.2 / rows, width - 0.008, (panel.height - 0.4) / rows))
            _number(axes, panel)
            continue
        inner = (panel.height - HEAD_ROWS - FOOT_ROWS) / rows
        axes = page.add_axes((left + 0.055, bottom + FOOT_ROWS / rows, width - 0.068, inner))
        axes.axvspan(shaded_s[0] / 60, shaded_s[1] / 60, color=RED, alpha=0.08, linewidth=0)
        axes.set_xlim(0, all_s / 60)
        _lines(axes, panel)
    page.savefig(path, dpi=90, metadata={"Software": None})
    pyplot.close(page)


def _number(axes: Axes, panel: Panel) -> None:
    """Draw the last value in big letters, in red from its threshold on."""
    last = panel.curves[0].points[-1][1] if panel.curves else math.nan
    colour = RED if last >= panel.red_from else GREEN
    axes.set_xticks([])
    axes.set_yticks([])
    axes.text(0.04, 0.82, panel.title, fontsize=9, transform=axes.transAxes, va="center")
    said = "no data" if math.isnan(last) else WRITTEN[panel.unit](last)
    axes.text(0.5, 0.38, said, fontsize=19, color=colour, transform=axes.transAxes, ha="center", va="center")


def _lines(axes: Axes, panel: Panel) -> None:
    axes.set_title(panel.title, fontsize=9, loc="left")
    axes.tick_params(labelsize=7)
    axes.grid(visible=True, linewidth=0.3)
    if panel.stacked and panel.curves:
        _stack(axes, panel.curves)
    else:
        for curve in panel.curves:
            minutes = [at / 60 for at, _ in curve.points]
            axes.plot(minutes, [value for _, value in curve.points], linewidth=1.0, label=curve.name)
    highest = axes.dataLim.y1 if any(value for curve in panel.curves for _, value in curve.points) else 1.0
    axes.set_ylim(0, 1.05 * highest)
    if not panel.curves:
        axes.text(0.5, 0.5, "nothing", fontsize=9, color="grey", transform=axes.transAxes, ha="center", va="center")
    in_bytes = panel.unit in {"bytes", "Bps"}
    step = 2 ** math.ceil(math.log2(highest / 4))
    axes.yaxis.set_major_locator(MultipleLocator(step) if in_bytes else MaxNLocator(nbins=4))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: WRITTEN[panel.unit](value)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} min"))
    if any(curve.name for curve in panel.curves):
        handles, names = axes.get_legend_handles_labels()
        axes.legend(
            handles[:LEGEND_MAX],
            names[:LEGEND_MAX],
            loc="upper left",
            bbox_to_anchor=(-0.02, -0.14),
            ncol=3,
            fontsize=6.5,
            frameon=False,
        )


def _stack(axes: Axes, curves: Sequence[Curve]) -> None:
    """Draw lines on top of each other; where one has no value it is nothing."""
    moments = sorted({at for curve in curves for at, _ in curve.points})
    known = [dict(curve.points) for curve in curves]
    heights = [[values.get(at, 0.0) for at in moments] for values in known]
    axes.stackplot([at / 60 for at in moments], heights, labels=[curve.name for curve in curves], alpha=0.6)
