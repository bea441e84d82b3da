"""The site of the pages: every page is in it, every link leads somewhere, nothing comes from elsewhere."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from offloaderd import client
from tests.pages import ROOT
from tools import site
from tools.failures import symptoms

if TYPE_CHECKING:
    from pathlib import Path


def test_the_navigation_is_the_map_of_the_pages() -> None:
    """Each page of docs/ is there once, under the group that names it first."""
    groups = site.navigation((ROOT / "docs/README.md").read_text(encoding="utf-8"))
    named = [page for group in groups for pages in group.values() if isinstance(pages, list) for page in pages]
    assert len(named) == len(set(named))
    pages = {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} - {"docs/README.md"}
    assert not pages - set(named)
    assert [name for group in groups for name in group][:3] == ["offloaderd", "Begin here", "Run it"]


@pytest.mark.parametrize(
    ("link", "words"),
    [
        ('<a href="none.html">x</a>', "none.html leads nowhere"),
        ('<a href="other.html#none">x</a>', "other.html#none is no heading there"),
        ('<a href="#none">x</a>', "#none is no heading there"),
        ('<script src="https://cdn.example/x.js"></script>', "loads https://cdn.example/x.js"),
        ('<img src="//cdn.example/x.png">', "loads //cdn.example/x.png"),
    ],
)
def test_a_broken_link_is_found(link: str, words: str, tmp_path: Path) -> None:
    """A page or a heading that is not there, and what a browser would fetch from elsewhere."""
    good = '<a href="https://pulsar.apache.org">x</a> <a href="other.html#there">x</a> <a href="sub/">x</a>'
    (tmp_path / "sub").mkdir()
    for name in ("other.html", "sub/index.html"):
        (tmp_path / name).write_text('<h2 id="there">x</h2>')
    (tmp_path / "page.html").write_text(good)
    assert site.broken_links(tmp_path) == []
    (tmp_path / "page.html").write_text(good + link)
    (wrong,) = site.broken_links(tmp_path)
    assert wrong == f"page.html: {words}"


def test_versions_are_listed_newest_first(tmp_path: Path) -> None:
    """By their numbers; the first page and `latest` lead to the newest, also when a newer one is built."""
    for built in ("0.9.0", "0.10.0"):
        (tmp_path / built).mkdir()
        (tmp_path / built / "index.html").write_text(built)
        site.list_versions(tmp_path)
    listed = json.loads((tmp_path / "versions.json").read_text())
    assert [(one["version"], one["aliases"]) for one in listed] == [("0.10.0", ["latest"]), ("0.9.0", [])]
    assert "url=0.10.0/index.html" in (tmp_path / "index.html").read_text()
    assert (tmp_path / "latest" / "index.html").read_text() == "0.10.0"


@pytest.mark.skipif(find_spec("mkdocstrings") is None, reason="needs the extra `site`: `make site` installs it")
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """Strictly, and its links are checked; it has the client's classes, each failure's anchor, an index to search."""
    built = tmp_path / "site"
    site.build(built, tmp_path / "pages")
    reference = (built / "docs/client-reference.html").read_text(encoding="utf-8")
    assert [name for name in client.__all__ if f'id="offloaderd.client.{name}"' not in reference] == []
    failures = (built / "docs/failures.html").read_text(encoding="utf-8")
    assert [name for name in symptoms() if f'id="{name}"' not in failures] == []
    found = {entry["location"] for entry in json.loads((built / "search/search_index.json").read_text())["docs"]}
    assert {"docs/alerts.html#offloaderddown", "docs/api.html#readservice", "CHANGELOG.html"} <= found
