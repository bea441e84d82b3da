"""What an hour of a table becomes in the documents: figures as JSON and as a table of a page, and pictures.

The plots of the status page stand in its HTML as SVG. They are put into pictures of their own, with the rules of the
page's style sheet that are for them: light for the daemon's page, dark for the topic's.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from xml.etree import ElementTree as ET

import matplotlib as mpl

from offloaderd.core import units as words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
FIGURES, PAGE = "proof/table-hour.json", "tables.md"
STYLE = ROOT / "offloaderd/daemon/status_page/static/status.css"
BEGIN, END = "<!-- make table-hour: begin -->\n", "<!-- make table-hour: end -->\n"
LABELS: Mapping[str, str] = {
    "table_lag_s": "table behind the topic, seconds",
    "table_lag_messages": "table behind the topic, messages",
    "daemon_lag_s": "daemon behind the topic, seconds",
    "daemon_lag_entries": "daemon behind the topic, entries",
}
LAG, ROWS, SIZE = "#1f6f8b", "#1f6f8b", "#9a3d00"


class Sample(NamedTuple):
    """Ten seconds: both lags at their highest, the rest at the end."""

    at_s: int
    lag_s: float
    daemon_lag_s: float
    rows: int
    files: int
    table_bytes: int
    daemon_mib: int
    spark_mib: int


class Spread(NamedTuple):
    """Of the values of all seconds: that which half of them exceed, a hundredth, none."""

    p50: float
    p99: float
    highest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Return the spread of values."""
        ordered = sorted(values)
        return cls(*(round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1) for share in (0.5, 0.99, 1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Hour:
    """What a run saw. `cores`: CPU seconds a second, by part of it."""

    minutes: float
    interval_s: float
    segment_age_s: float
    messages_per_s: float
    figures: dict[str, Spread]
    cores: dict[str, float]
    samples: list[Sample]

    @classmethod
    def of(cls, *, lags: Sequence[tuple[float, ...]], cores: Mapping[str, float], **others: Any) -> Self:  # noqa: ANN401
        """Make the figures of the lags of each second, in the order of LABELS."""
        figures = {name: Spread.of(values) for name, values in zip(LABELS, zip(*lags, strict=True), strict=True)}
        return cls(figures=figures, cores={name: round(value, 3) for name, value in cores.items()}, **others)

    @classmethod
    def load(cls, text: str) -> Self:
        """Read what `text` has written."""
        found = json.loads(text)
        columns = found.pop("columns")
        assert tuple(columns) == Sample._fields
        found["samples"] = [Sample(*row) for row in found["samples"]]
        found["figures"] = {name: Spread(**values) for name, values in found["figures"].items()}
        return cls(**found)

    def text(self) -> str:
        """Return it as JSON, a sample a line."""
        plain = asdict(self) | {"figures": {name: one._asdict() for name, one in self.figures.items()}}
        rows = ",\n  ".join(json.dumps(row) for row in plain.pop("samples"))
        head = json.dumps({**plain, "columns": Sample._fields}, indent=1)
        return f'{head[:-2]},\n "samples": [\n  {rows}\n ]\n}}\n'

    def summary(self) -> str:
        """Return the outcome in a line."""
        lag = self.figures["table_lag_s"]
        return (
            f"{self.minutes:g} minutes, {self.messages_per_s:.0f} messages/s, {self.samples[-1].rows} rows; "
            f"the table was behind the topic p50 {lag.p50:.1f} s, p99 {lag.p99:.1f} s, at most {lag.highest:.1f} s"
        )

    def table(self) -> str:
        """Return the figures as tables in Markdown."""
        memory = {"daemon": "daemon_mib", "Spark": "spark_mib"}
        lines = ["| | p50 | p99 | at most |", "|---|---:|---:|---:|"]
        lines += [
            f"| {label} | {' | '.join(f'{value:,.0f}' for value in self.figures[name])} |"
            for name, label in LABELS.items()
        ]
        lines += ["", "| | cores | resident memory, at most |", "|---|---:|---:|"]
        for name, cores in self.cores.items():
            most = max(getattr(one, memory[name]) for one in self.samples) if name in memory else None
            lines.append(f"| {name} | {cores:.2f} | {words.size(most << 20) if most is not None else ''} |")
        return "\n".join(lines) + "\n"


def published(docs: Path, hour: Hour, pages: Mapping[str, str]) -> None:
    """Write the figures, their table in its page, and the pictures, below a directory."""
    for name in (FIGURES, "pictures/"):
        (docs / name).parent.mkdir(parents=True, exist_ok=True)
    (docs / "pictures").mkdir(exist_ok=True)
    (docs / FIGURES).write_text(hour.text())
    page = docs / PAGE
    page.write_text(with_table(page.read_text() if page.exists() else BEGIN + END, hour))
    draw(docs / "pictures/table-hour.svg", hour)
    (docs / "pictures/status.svg").write_text(plots_of(pages["status"], dark=False))
    (docs / "pictures/topic-dark.svg").write_text(plots_of(pages["topic"], dark=True))


def with_table(page: str, hour: Hour) -> str:
    """Return a page with the table of an hour between its two marks."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}{hour.table()}{END}{rest.partition(END)[2]}"


def draw(path: Path, hour: Hour) -> None:
    """Draw how far the table is behind, and how it grows."""
    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "hour"
    mpl.rcParams["svg.fonttype"] = "none"  # words as words: a tenth of the bytes
    from matplotlib import pyplot  # noqa: PLC0415 - after the choice of a backend

    picture, (above, below) = pyplot.subplots(2, sharex=True, figsize=(9, 6), layout="constrained")
    minutes = [one.at_s / 60 for one in hour.samples]
    above.plot(minutes, [one.lag_s for one in hour.samples], color=LAG, linewidth=1, label="table")
    above.plot(minutes, [one.daemon_lag_s for one in hour.samples], color=SIZE, linewidth=1, label="daemon")
    above.axhline(2 * hour.interval_s, color="black", linewidth=1, linestyle="--", label="two intervals")
    above.set(ylabel="seconds behind the topic", ylim=0, title="Highest lag of each ten seconds")
    above.legend(loc="upper right", ncol=3, fontsize=8)
    below.plot(minutes, [one.rows / 1e6 for one in hour.samples], color=ROWS)
    below.set(xlabel="minutes", ylabel="million rows", ylim=0, title="Growth of the table")
    size = below.twinx()
    size.plot(minutes, [one.table_bytes / 2**20 for one in hour.samples], color=SIZE, linestyle="--")
    size.set_ylim(0)
    size.set_ylabel("MiB of its files (dashed)")
    picture.savefig(path, metadata={"Date": None, "Creator": None})
    pyplot.close(picture)


MARGIN, GAP, TITLE, LEGEND, ROW, LABEL = 16, 16, 28, 18, 40, 230
"""Room between the parts of a picture, heights of its texts, and the width of the names of holders."""
DRAWN = ("svg text", ".grid", ".up", ".across", ".line", ".scale", ".buffer", ".source", ".place", ".table", ".lost")
"""What rules of the style sheet are for that the plots need."""
OWN = """text { font-family: system-ui, sans-serif; }
.page { fill: var(--back); }
.panel { fill: var(--panel); stroke: var(--rule); }
text.title { fill: var(--front); font-size: 15px; font-weight: 600; }
text.words { fill: var(--front); font-size: 13px; }
"""


def plots_of(page: str, *, dark: bool) -> str:
    """Return the plots of a status page, and where the entries of a topic are, as one picture."""
    main = ET.fromstring(page[page.index("<main") : page.index("</main>") + len("</main>")])  # noqa: S314 - our daemon's
    found = [(figure, _drawing(figure)) for figure in main.iter("figure")]
    width, height = (int(number) for number in str(found[0][1].get("viewBox")).split()[2:])
    panel = width + 2 * MARGIN
    whole = 2 * panel + 3 * GAP
    picture = ET.Element("svg", xmlns="http://www.w3.org/2000/svg", role="img")
    ET.SubElement(picture, "style").text = style(dark=dark)
    ground = ET.SubElement(picture, "rect", {"class": "page", "width": str(whole)})
    top = GAP
    for holder in main.findall(".//dl[@class='layout']/div"):
        _text(picture, GAP, top + 12, "words", _said(holder, "dt"))
        if (bar := holder.find(".//svg")) is not None:
            _put(picture, bar, GAP + LABEL, top, whole - LABEL - 2 * GAP, 10)
        _text(picture, GAP + LABEL, top + 26, "", _said(holder, "dd/span"))
        top += ROW
    for at in range(0, len(found), 2):
        legends = [[_said(one) for one in figure.findall("p/span")] for figure, _ in found[at : at + 2]]
        tall = TITLE + height + LEGEND * max(map(len, legends)) + MARGIN
        for column, (figure, drawing) in enumerate(found[at : at + 2]):
            left = GAP + column * (panel + GAP)
            box = {"x": left, "y": top, "width": panel, "height": tall, "rx": 6}
            ET.SubElement(picture, "rect", {"class": "panel", **{name: str(value) for name, value in box.items()}})
            _text(picture, left + MARGIN, top + 20, "title", _said(figure, "figcaption"))
            _put(picture, drawing, left + MARGIN, top + TITLE, width, height)
            for number, (span, said) in enumerate(zip(figure.iterfind("p/span"), legends[column], strict=True)):
                line = top + TITLE + height + LEGEND * (number + 1)
                _put(picture, _drawing(span), left + MARGIN, line - 8, 24, 8)
                _text(picture, left + MARGIN + 32, line, "words", said)
        top += tall + GAP
    ground.set("height", str(top))
    picture.set("viewBox", f"0 0 {whole} {top}")
    return ET.tostring(picture, encoding="unicode") + "\n"


def style(*, dark: bool) -> str:
    """Return the rules for plots, with colours in the place of names."""
    sheet = STYLE.read_text()
    named = re.findall(r"(--[\w-]+): (#\w+);", sheet)  # the dark ones stand behind the light ones
    colours = dict(named if dark else reversed(named))
    rules = [rule for rule in sheet.splitlines() if rule.startswith(DRAWN)]
    return re.sub(r"var\((--[\w-]+)\)", lambda name: colours[name[1]], OWN + "\n".join(rules) + "\n")


def _drawing(element: ET.Element) -> ET.Element:
    (found,) = element.findall("svg")
    return found


def _put(picture: ET.Element, drawing: ET.Element, left: float, top: float, width: float, height: float) -> None:
    """Copy a drawing to a place, without the names of elements that stay behind."""
    place = {"x": left, "y": top, "width": width, "height": height}
    kept = {name: value for name, value in drawing.items() if name in {"viewBox", "preserveAspectRatio"}}
    copy = ET.SubElement(picture, "svg", {**{name: str(value) for name, value in place.items()}, **kept})
    copy.extend(drawing)
    for element in copy.iter():
        element.tail = element.tail and None


def _text(picture: ET.Element, left: float, top: float, kind: str, said: str) -> None:
    ET.SubElement(picture, "text", {"x": str(left), "y": str(top), **({"class": kind} if kind else {})}).text = said


def _said(element: ET.Element, path: str = ".") -> str:
    """Return the words of an element."""
    found = element.find(path)
    return " ".join("".join(found.itertext()).split()) if found is not None else ""
