"""What an hour of a table becomes in the documents."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from tests.real.table_hour_pictures import (
    BEGIN,
    DOCS,
    END,
    FIGURES,
    PAGE,
    Hour,
    Sample,
    Spread,
    plots_of,
    published,
    style,
)
from tests.unit.daemon.scene import HOSTILE, Scene, opened, status, topic

if TYPE_CHECKING:
    from pathlib import Path

REAL_TIME = "HTTP"
SVG = "{http://www.w3.org/2000/svg}"


def hour() -> Hour:
    """Return a minute in which the table is up to 30 s behind."""
    return Hour.of(
        minutes=1.0,
        interval_s=30,
        segment_age_s=10,
        messages_per_s=1000.0,
        lags=[(at % 31, 1000 * (at % 31), at % 11, 10 * (at % 11)) for at in range(60)],
        cores={"daemon": 0.12345, "Spark": 0.5, "other programs": 1.0},
        samples=[Sample(10 * at, 30.0, 10.0, 10_000 * at, at, 2**20 * at, 150 + at, 900) for at in range(1, 7)],
    )


async def pages() -> dict[str, str]:
    """Return the page of a daemon, and that of a topic."""
    scene = Scene([status(1)])
    await scene.an_hour()
    async with opened(scene) as client:
        return {
            name: await (await client.get(f"/status{query}")).text()
            for name, query in (("status", ""), ("topic", f"?topic={topic(1)}"))
        }


def test_a_spread_is_of_all_values() -> None:
    """Half of the values are above the first, a hundredth above the second, none above the third."""
    assert Spread.of(range(1000, 0, -1)) == (501, 991, 1000)
    assert Spread.of([7.04]) == (7.0, 7.0, 7.0)


def test_figures_are_read_as_they_were_written() -> None:
    """Nothing of an hour is lost in its file, so its table and its picture can be made again."""
    assert Hour.load(hour().text()) == hour()


def test_the_page_has_the_figures_of_its_file() -> None:
    """The table in the documents is that of the hour whose figures are beside it."""
    table = (DOCS / PAGE).read_text().partition(BEGIN)[2].partition(END)[0]
    assert table == Hour.load((DOCS / FIGURES).read_text()).table()


async def test_everything_is_written(tmp_path: Path) -> None:
    """Again from the same: the same bytes, and the rest of the page stays."""
    (tmp_path / PAGE).write_text(f"before\n{BEGIN}old\n{END}behind\n")
    found = await pages()
    published(tmp_path, hour(), found)
    first = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert len(first) == 5
    published(tmp_path, hour(), found)
    assert all(path.read_bytes() == content for path, content in first.items())
    page = (tmp_path / PAGE).read_text()
    assert page == f"before\n{BEGIN}{hour().table()}{END}behind\n"
    assert "| daemon | 0.12 | 156.0 MiB |" in page
    assert "| other programs | 1.00 |  |" in page


async def test_plots_of_a_page_are_a_picture_of_their_own() -> None:
    """Each plot with its lines and words, where the entries are, and nothing that is not in the picture itself."""
    found = await pages()
    kinds = {f"{SVG}{kind}" for kind in ("svg", "style", "rect", "text", "line", "polyline")}
    daemon, topics = plots_of(found["status"], dark=False), plots_of(found["topic"], dark=True)
    for text, plots in ((daemon, 4), (topics, 2)):
        picture = ET.fromstring(text)  # noqa: S314 - written a moment ago
        assert len(picture.findall(f"{SVG}rect[@class='panel']")) == plots
        assert len(picture.findall(f".//{SVG}polyline")) >= plots
        assert "var(" not in text
        assert "Throughput" in text
        assert {element.tag for element in picture.iter()} <= kinds
        _, _, width, height = map(float, str(picture.get("viewBox")).split())
        for part in picture:
            assert 0 <= float(part.get("x", 0)) <= width
            assert 0 <= float(part.get("y", 0)) + float(part.get("height", 0)) <= height
    assert HOSTILE[1] not in topics
    assert "lake/orders" in topics


def test_a_dark_picture_has_the_dark_colours() -> None:
    """The rules are those of the page, each with the colours of its kind."""
    light, dark = style(dark=False), style(dark=True)
    assert ".line-0 { stroke: #0550ae; }" in light
    assert ".line-0 { stroke: #79b8ff; }" in dark
    assert light.count("\n") == dark.count("\n")
